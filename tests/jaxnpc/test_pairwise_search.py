"""Crossings of monotone piecewise-linear functions, and fractional knapsacks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog

from jaxnpc.pairwise.knapsack import cover
from jaxnpc.pairwise.search import crossing, newton_step


def ramps(rng, n, k):
    """Sums of k ramps and jumps: starts, ends, heights; and a need below their total."""
    start, length, height = rng.random((3, n, k)) ** 3
    jump = rng.random((n, k)) < 0.2
    end = np.where(jump, start, start + length)
    need = rng.random(n) * height.sum(axis=1)
    return start, end, height, need


def evaluate(t, start, end, height, need, xp=np):
    length = xp.where(end > start, end - start, 1)
    share = xp.where(end > start, xp.clip((t[:, None] - start) / length, 0, 1), t[:, None] >= start)
    moving = (t[:, None] >= start) & (t[:, None] < end)
    return (share * height).sum(-1) - need, xp.where(moving, height / length, 0).sum(-1)


@pytest.mark.parametrize("kind", ["numpy", "jax"])
def test_the_crossing_is_the_least_point_that_is_not_negative(kind):
    data = ramps(np.random.default_rng(0), 400, 6)
    xp = np if kind == "numpy" else jnp
    with jax.enable_x64(True):
        arrays = [xp.asarray(x) for x in data]
        low, high = xp.full(400, 1e-9), xp.full(400, 4.0)
        t = np.asarray(crossing(lambda t: evaluate(t, *arrays, xp=xp), low, high))
    value = evaluate(t * (1 + 1e-12), *data)[0]
    before = evaluate(t * (1 - 1e-12), *data)[0]
    at_start = evaluate(np.full(400, 1e-9), *data)[0] >= 0
    assert np.all(value >= -1e-13)
    assert np.all((before <= 1e-13) | at_start)
    assert np.all((evaluate(t * (1 - 1e-7), *data)[0] < 0) | at_start)


def test_few_evaluations_where_the_function_is_concave():
    rng = np.random.default_rng(1)
    wall = rng.random((64, 784)) ** 2
    need = rng.random(64) * wall.sum(axis=1)
    calls = []

    def excess(t):
        calls.append(1)
        free = t[:, None] < wall
        return np.where(free, t[:, None], wall).sum(-1) - need, free.sum(-1).astype(float)

    t = crossing(excess, need / 784 * (1 - 1e-12), wall.max(axis=1))
    np.testing.assert_allclose(excess(t)[0], 0, atol=1e-11)
    assert len(calls) <= 30


def test_a_function_that_never_turns_gives_the_upper_end():
    t = crossing(lambda t: (t - 10, np.ones_like(t)), np.array([1.0, 11.0]), np.array([5.0, 2.0]))
    np.testing.assert_array_equal(t, [5.0, 11.0])


def test_the_derivative_is_that_of_the_implicit_function():
    def root(a):
        start, stop = jnp.array(1e-3), jnp.array(10.0)
        fixed = jax.lax.stop_gradient(a)
        t = crossing(lambda t: (a_times(t, fixed) - 6, fixed), start, stop)
        return newton_step(lambda t: (a_times(t, a) - 6, a), t)

    def a_times(t, a):
        return a * t

    value, slope = jax.jit(jax.value_and_grad(root))(2.0)
    assert value == pytest.approx(3.0)
    assert slope == pytest.approx(-1.5)


def test_cover_is_the_optimum_of_the_linear_program():
    rng = np.random.default_rng(2)
    cost, gain = rng.random((2, 60, 5))
    gain[:20] = np.round(3 * gain[:20]) / 3
    cost[:20] = np.where(gain[:20] > 0, gain[:20], 1)  # all ratios tie
    cost[20:30, :2], gain[30:40, 1:] = 0, 0
    need = rng.random(60) * gain.sum(axis=1)
    need[40:50] = gain[40:50].sum(axis=1)
    with jax.enable_x64(True):
        share = np.asarray(jax.jit(jax.vmap(cover))(*map(jnp.asarray, (cost, gain, need))))
    assert np.all((share >= 0) & (share <= 1))
    assert np.all((share * gain).sum(axis=1) >= need * (1 - 1e-12))
    best = [
        linprog(c, A_ub=-g[None], b_ub=[-b], bounds=(0, 1)).fun
        for c, g, b in zip(cost, gain, need, strict=True)
    ]
    np.testing.assert_allclose((share * cost).sum(axis=1), best, rtol=1e-9, atol=1e-9)
    # All but one item are whole or left.
    assert np.all(((share > 0) & (share < 1)).sum(axis=1) <= 1)


def test_cover_takes_all_where_nothing_else_will_do():
    share = jax.jit(cover)(jnp.array([1.0, 2.0]), jnp.array([1.0, 1.0]), jnp.array(5.0))
    np.testing.assert_array_equal(share, 1)
