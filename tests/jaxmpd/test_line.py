from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_trace import ODD, mlp, move_layer, problem

from jaxmpd import activations, losses, network
from jaxmpd.deep import LayerDirection, curves_along
from jaxmpd.piecewise import PiecewisePolynomial
from jaxmpd.steps.line import minimum_along, truncate
from jaxmpd.trace import trace

pytestmark = pytest.mark.compiled_quickly

OUT = 2


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_a_truncated_function_is_itself_inside_and_constant_outside(degree):
    rng = np.random.default_rng(degree)
    with jax.enable_x64(True):
        jumps = rng.normal(size=(degree + 1, 9))
        jumps[0] = 0
        knots = np.append(rng.normal(size=8) * 2, np.inf)
        jumps[:, -1] = 0
        f = PiecewisePolynomial(*map(jnp.asarray, (rng.normal(size=degree + 1), knots, jumps)))
        t = jnp.linspace(-4, 4, 401)
        for lo, hi in ((-1.3, 0.7), (-np.inf, 2.0), (-3.0, np.inf), (-1e-3, 1e-3)):
            g = truncate(f, jnp.asarray(lo), jnp.asarray(hi))
            np.testing.assert_allclose(g(t), f(jnp.clip(t, lo, hi)), rtol=1e-10, atol=1e-10)


def brute_force(layers, direction, inputs, targets, weights, f, loss, ends):
    """The least loss over all knots, the ends, and a vertex in every gap between them."""

    @jax.jit
    def at(t):
        def one(t):
            new = jax.tree.map(
                lambda a, b: a if b is None else a + t * b,
                layers,
                direction,
                is_leaf=lambda a: a is None,
            )
            predictions = network.apply(new, inputs, f)
            return jnp.sum(weights * loss(predictions, targets))

        return jax.vmap(one)(t)

    points = jnp.sort(ends)
    lo, hi = points[:-1], points[1:]
    middle = (lo + hi) / 2
    a, m, b = at(lo), at(middle), at(hi)
    bend = a - 2 * m + b
    x = jnp.clip((a - b) / jnp.where(bend > 1e-14, 4 * bend, 1), -0.5, 0.5)
    vertex = middle + jnp.where(bend > 1e-14, x, 0) * (hi - lo)
    return at(jnp.zeros(1))[0], jnp.min(jnp.concatenate([a, m, b, at(vertex)])), at


@pytest.mark.parametrize(
    ("f", "grid"), [(activations.LEAKY_HARD_TANH, True), (activations.ABS, False)]
)
@pytest.mark.parametrize("depth", [2, 4])
def test_exact_against_brute_force(f, grid, depth):
    """A whole layer's direction, for any layer of networks of up to three hidden layers."""
    widths = (2, *[5, 4, 4][: depth - 1], OUT)
    with jax.enable_x64(True):
        for layer in range(depth):
            rng = np.random.default_rng(layer)
            layers, inputs = problem(rng, widths, 30, grid)
            direction = move_layer(layers, layer, rng, grid)
            targets = jnp.asarray(rng.normal(size=(30, OUT)))
            weights = jnp.asarray(rng.integers(0, 3, 30) / 1.0)
            weights = weights / jnp.sum(weights)
            along = LayerDirection(layer, network.Layer(*direction[layer]))
            follow = partial(curves_along, activation=f, direction=along, budget=200)
            resolved = jax.jit(follow)(layers, inputs)
            assert np.isinf(resolved.hi).all()
            found = jax.jit(minimum_along)(resolved, targets, weights)
            knots = resolved.curves.knots.reshape(-1)
            ends = jnp.where(jnp.isfinite(knots), knots, 0)
            ends = jnp.concatenate([ends, jnp.array([-1e3, 1e3])])
            start, best, at = brute_force(
                layers, direction, inputs, targets, weights, f, losses.SQUARED, ends
            )
            reached = at(found.argmin[None])[0]
            # Far out the square of t multiplies the rounding of the coefficients.
            rounding = 1e-12 * (1 + float(found.argmin) ** 2)
            assert abs(float(reached - (start - found.gain))) <= rounding
            assert float(reached) <= float(best) * (1 + 1e-9) + 1e-10


@pytest.mark.parametrize("name", ["huber", "hinge", "logistic"])
def test_other_losses_through_the_trace(name):
    loss = losses.LOSSES[name]
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        layers, inputs = problem(rng, (2, 5, 4, OUT), 30)
        direction = move_layer(layers, 0, rng)
        targets = jnp.asarray(rng.choice([-1.0, 1.0], (30, OUT)))
        weights = jnp.full(30, 1 / 30)

        @jax.jit
        def search(layers, direction):
            resolved = trace(mlp(ODD), layers, direction, inputs, budget=60)
            return minimum_along(resolved, targets, weights, loss)

        found = search(layers, direction)
        t = jnp.concatenate([jnp.linspace(-20, 20, 20001), jnp.linspace(-0.2, 0.2, 2001)])
        start, best, at = brute_force(layers, direction, inputs, targets, weights, ODD, loss, t)
        reached = float(at(found.argmin[None])[0])
        assert reached <= float(best) + 2 * OUT * loss.error + 1e-9
        assert reached < float(start)


def test_softmax_falls():
    rng = np.random.default_rng(0)
    layers, inputs = problem(rng, (2, 6, 5, 3), 40)
    direction = move_layer(layers, 1, rng)
    targets = jax.nn.one_hot(jnp.asarray(rng.integers(0, 3, 40)), 3)
    weights = jnp.full(40, 1 / 40)
    along = LayerDirection(1, network.Layer(*direction[1]))

    @jax.jit
    def search(layers):
        resolved = curves_along(layers, inputs, ODD, along)
        return minimum_along(resolved, targets, weights, losses.SOFTMAX)

    found = search(layers)

    def value(t):
        moved = (
            layers[0],
            jax.tree.map(lambda a, b: a + t * b, layers[1], direction[1]),
            layers[2],
        )
        return float(jnp.mean(losses.SOFTMAX(network.apply(moved, inputs, ODD), targets)))

    assert value(float(found.argmin)) < value(0.0) - 1e-3


def test_a_spent_budget_leaves_the_minimum_of_what_was_resolved():
    """Never outside, never worse than the start, never better than brute force in the interval."""
    f = activations.RELU
    with jax.enable_x64(True):
        rng = np.random.default_rng(5)
        layers, inputs = problem(rng, (2, 12, 8, 6, OUT), 40)
        targets = jnp.asarray(rng.normal(size=(40, OUT)))
        weights = jnp.full(40, 1 / 40)
        direction = move_layer(layers, 0, rng)
        for budget in (1, 20):
            along = LayerDirection(0, network.Layer(*direction[0]))
            resolved = jax.jit(partial(curves_along, activation=f, direction=along, budget=budget))(
                layers, inputs
            )
            lo, hi = float(jnp.max(resolved.lo)), float(jnp.min(resolved.hi))
            found = jax.jit(minimum_along)(resolved, targets, weights)
            assert lo * (1 + 1e-12) <= float(found.argmin) <= hi * (1 + 1e-12)
            knots = resolved.curves.knots.reshape(-1)
            ends = jnp.clip(jnp.where(jnp.isfinite(knots), knots, 0), lo, hi)
            start, best, at = brute_force(
                layers, direction, inputs, targets, weights, f, losses.SQUARED, ends
            )
            reached = float(at(found.argmin[None])[0])
            assert reached <= min(float(best), float(start)) + 1e-9
