import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmpd import lbfgs

SIZE = 7


def positive(rng):
    a = rng.normal(size=(SIZE, SIZE))
    return a @ a.T + 0.1 * np.eye(SIZE)


def tree(vector):
    vector = jnp.asarray(vector)
    return {"kernel": vector[:6].reshape(2, 3), "bias": vector[6:]}


def vector(params):
    return np.concatenate([np.asarray(params["kernel"]).ravel(), np.asarray(params["bias"])])


def applied(matrix):
    """A matrix as a function of trees."""
    matrix = jnp.asarray(matrix)
    return lambda p: tree(matrix @ jnp.concatenate([p["kernel"].ravel(), p["bias"]]))


def dense_inverse(pairs, c):
    """The BFGS formula, pair after pair, from the scaled initial inverse Hessian."""
    s, y = pairs[-1]
    inverse = (s @ y) / (y @ c @ y) * c
    for s, y in pairs:
        v = np.eye(SIZE) - np.outer(y, s) / (s @ y)
        inverse = v.T @ inverse @ v + np.outer(s, s) / (s @ y)
    return inverse


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("count", [1, 4, 6])
def test_the_direction_is_that_of_the_dense_formula(count, plain):
    """Memory for four pairs: not full, just full, and after it has forgotten two."""
    rng = np.random.default_rng(count)
    hessian, c = positive(rng), np.eye(SIZE) if plain else positive(rng)
    with jax.enable_x64(True):
        memory = lbfgs.empty(tree(np.zeros(SIZE)), 4)
        pairs = []
        for s in rng.normal(size=(count, SIZE)):
            pairs.append((s, hessian @ s))
            memory = lbfgs.remember(memory, tree(s), tree(hessian @ s))
        g = rng.normal(size=SIZE)
        got = lbfgs.direction(tree(g), memory, applied(c))
        np.testing.assert_allclose(vector(got), -dense_inverse(pairs[-4:], c) @ g, rtol=1e-9)


def test_without_pairs_the_direction_is_the_preconditioned_gradient():
    rng = np.random.default_rng(0)
    c, g = positive(rng), rng.normal(size=SIZE)
    with jax.enable_x64(True):
        got = lbfgs.direction(tree(g), lbfgs.empty(tree(g), 3), applied(c))
        np.testing.assert_allclose(vector(got), -c @ g, rtol=1e-12)


def test_pairs_that_do_not_curve_upwards_are_not_remembered():
    rng = np.random.default_rng(1)
    s, y = rng.normal(size=(2, SIZE))
    y = y * np.sign(s @ y)
    across = y - (s @ y) / (s @ s) * s
    with jax.enable_x64(True):
        memory = lbfgs.remember(lbfgs.empty(tree(s), 3), tree(s), tree(y))
        for step, change in [(s, -y), (s, across), (0 * s, y), (s, 0 * y), (1e-12 * s, y)]:
            same = lbfgs.remember(memory, tree(step), tree(change))
            for a, b in zip(*map(jax.tree.leaves, (same, memory)), strict=True):
                np.testing.assert_array_equal(a, b)
        more = lbfgs.remember(memory, tree(1e-8 * s), tree(y))  # little, but enough
        assert float(more.inverses[0]) == pytest.approx(1e8 * float(memory.inverses[0]))


def test_exact_line_searches_end_at_the_minimum_of_a_quadratic():
    """As many as there are parameters: the directions are conjugate, whatever the start."""
    rng = np.random.default_rng(2)
    hessian, c, at = positive(rng), positive(rng), rng.normal(size=SIZE)
    with jax.enable_x64(True):
        memory = lbfgs.empty(tree(at), SIZE)
        direction = jax.jit(functools.partial(lbfgs.direction, precondition=applied(c)))
        start = np.linalg.norm(hessian @ at)
        for _ in range(SIZE):
            assert np.linalg.norm(hessian @ at) > 1e-9 * start
            d = vector(direction(tree(hessian @ at), memory))
            step = -(d @ hessian @ at) / (d @ hessian @ d) * d
            memory = lbfgs.remember(memory, tree(step), tree(hessian @ step))
            at = at + step
        assert np.linalg.norm(hessian @ at) < 1e-9 * start
