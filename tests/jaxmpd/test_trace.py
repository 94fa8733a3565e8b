import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxmpd import activations, network
from jaxmpd.trace import next_kink, piecewise_linear_of, trace

pytestmark = pytest.mark.compiled_quickly

ODD = activations.piecewise_linear([-1, 0.5, 2], [1, -2, 0, 3], (0, 1))


def curve_at(resolved, t):
    """Each sample's curve at its own t, by the definition of the jump form."""
    start, rate, knots, bends = (np.asarray(a, np.float64) for a in resolved.curves)
    with np.errstate(invalid="ignore"):
        x = t[:, None] - knots
    passed = np.where(knots > 0, x >= 0, 0) - np.where(knots <= 0, x < 0, 0).astype(int)
    x = np.where(np.isfinite(knots), x, 0)
    return start + rate * t[:, None] + np.sum((passed * x)[:, :, None] * bends, axis=1)


def check(fun, x, dx, samples, budget=64, chunk=64, span=4.0, tolerance=1e-10, seed=0):
    """The curve is the function itself: at each resolved piece's middle and at random points."""
    found = jax.jit(lambda: trace(fun, x, dx, samples, budget=budget, chunk=chunk))()
    knots = np.asarray(found.curves.knots)
    assert np.all(knots[:, 1:] >= knots[:, :-1])
    lo, hi = (np.clip(np.asarray(a), -span, span) for a in (found.lo, found.hi))
    assert np.all(lo < 0)
    assert np.all(hi > 0)
    inner = np.clip(np.where(np.isfinite(knots), knots, 0), lo[:, None], hi[:, None])
    ends = np.sort(np.concatenate([lo[:, None], inner, hi[:, None]], axis=1))
    rng = np.random.default_rng(seed)
    random = lo[:, None] + (hi - lo)[:, None] * rng.random((len(lo), 8))
    points = np.concatenate([(ends[:, 1:] + ends[:, :-1]) / 2, random], axis=1)

    @jax.jit
    def truth(t):
        def one(sample, t):
            moved = jax.tree.map(
                lambda a, b: a if b is None else a + t * b, x, dx, is_leaf=lambda a: a is None
            )
            return fun(moved, sample)

        return jax.vmap(jax.vmap(one, (None, 0)), (0, 0))(samples, t)

    expected = np.asarray(truth(jnp.asarray(points, found.lo.dtype)))
    scale = 1 + np.abs(expected).max()
    for k in range(points.shape[1]):
        error = np.abs(curve_at(found, points[:, k]) - expected[:, k])
        assert error.max() <= tolerance * scale
    return found


def problem(rng, widths, samples, grid=False):
    if grid:
        draw = lambda *shape: rng.integers(-4, 5, shape) / 2.0  # noqa: E731
    else:
        draw = lambda *shape: rng.normal(size=shape)  # noqa: E731
    sizes = itertools.pairwise(widths)
    layers = tuple(network.Layer(jnp.asarray(draw(a, b)), jnp.asarray(draw(b))) for a, b in sizes)
    return layers, jnp.asarray(draw(samples, widths[0]))


def move_layer(layers, layer, rng, grid=False):
    """A direction inside one layer."""
    draw = (lambda s: rng.integers(-1, 2, s) * 1.0) if grid else (lambda s: rng.normal(size=s))
    return tuple(
        jax.tree.map(lambda a, moves=k == layer: jnp.asarray(draw(a.shape)) if moves else None, one)
        for k, one in enumerate(layers)
    )


def mlp(f):
    return lambda layers, x: network.apply(layers, x[None], f)[0]


@pytest.mark.parametrize(
    ("f", "grid"), [(activations.LEAKY_HARD_TANH, True), (activations.ABS, True), (ODD, False)]
)
def test_layers_of_a_deep_network(f, grid):
    """Also on a coarse grid: ties, kinks at the origin, several kinks at one t."""
    with jax.enable_x64(True):
        for layer in (0, 2):
            rng = np.random.default_rng(layer)
            layers, inputs = problem(rng, (2, 5, 4, 4, 2), 20, grid)
            dx = move_layer(layers, layer, rng, grid)
            check(mlp(f), layers, dx, inputs, budget=256)


def test_the_last_layer_has_no_knots_and_one_hidden_layer_the_textbook_ones():
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        layers, inputs = problem(rng, (2, 6, 1), 10)
        f = activations.LEAKY_HARD_TANH
        last = trace(mlp(f), layers, move_layer(layers, 1, rng), inputs, budget=4)
        assert np.isinf(np.delete(last.curves.knots, 0, axis=1)).all()
        dx = move_layer(layers, 0, rng)
        found = trace(mlp(f), layers, dx, inputs, budget=16)
        z, u = (network.affine(layer, inputs) for layer in (layers[0], dx[0]))
        expected = np.sort(np.concatenate([(k - z) / u for k in f.kinks], axis=1))
        knots = np.asarray(found.curves.knots)
        for row, truth in zip(knots, expected, strict=True):
            np.testing.assert_allclose(row[np.isfinite(row) & (row != 0)], truth, rtol=1e-12)
        assert np.isinf(found.hi).all()


def test_a_spent_budget_says_how_far_it_got():
    with jax.enable_x64(True):
        rng = np.random.default_rng(1)
        layers, inputs = problem(rng, (2, 12, 6, 1), 30)
        dx = move_layer(layers, 0, rng)
        found = check(mlp(ODD), layers, dx, inputs, budget=5)
        assert np.isfinite(found.hi).all()
        whole = check(mlp(ODD), layers, dx, inputs, budget=256)
        assert np.all(np.isinf(whole.hi))
        # The first knot that is not listed ends the interval.
        positive = np.sort(np.where(whole.curves.knots > 0, whole.curves.knots, np.inf), axis=1)
        np.testing.assert_allclose(found.hi, positive[:, 5], rtol=1e-12)
        negative = np.sort(np.where(whole.curves.knots < 0, -whole.curves.knots, np.inf), axis=1)
        np.testing.assert_allclose(found.lo, -negative[:, 5], rtol=1e-12)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1e-3, 1.0, 1e3]))
def test_single_precision_and_scales(seed, scale):
    """Rounded knots must not make the walk stall, repeat itself or lose a unit."""
    rng = np.random.default_rng(seed)
    layers, inputs = problem(rng, (2, 5, 4, 4, 2), 20, grid=seed % 2 == 0)
    layers, inputs = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), (layers, inputs))
    dx = move_layer(layers, 0, rng)
    dx = jax.tree.map(lambda a: jnp.asarray(scale * a, jnp.float32), dx)
    found = single(layers, dx, inputs)
    with jax.enable_x64(True):
        layers, dx, inputs = jax.tree.map(
            lambda a: jnp.asarray(a, jnp.float64), (layers, dx, inputs)
        )
        t = jnp.asarray(rng.normal(size=20) / scale)
        moved = (
            network.Layer(
                *(
                    a[None] + b * t.reshape(-1, *[1] * a.ndim)
                    for a, b in zip(layers[0], dx[0], strict=True)
                )
            ),
            *layers[1:],
        )
        at = jax.vmap(mlp(ODD), ((network.Layer(0, 0), *[network.Layer(None, None)] * 3), 0))
        truth = np.asarray(at(moved, inputs))
    assert np.isinf(found.lo).all()
    error = np.abs(curve_at(found, np.asarray(t)) - truth)
    assert error.max() <= 2e-5 * (1 + np.abs(truth).max())


single = jax.jit(lambda layers, dx, inputs: trace(mlp(ODD), layers, dx, inputs, budget=200))


class Residual(nn.Module):
    """Convolution, max-pooling, a residual connection, average pooling, a global maximum."""

    @nn.compact
    def __call__(self, x):
        x = nn.max_pool(nn.relu(nn.Conv(2, (3, 3))(x)), (2, 2), strides=(2, 2))
        x = x + nn.leaky_relu(nn.Conv(2, (1, 1))(x))
        y = nn.avg_pool(jnp.abs(x), (2, 2), strides=(1, 1), padding="SAME")
        return nn.Dense(2)(jnp.concatenate([y.mean(axis=(1, 2)), x.max(axis=(1, 2))], axis=1))


def test_convolution_pooling_and_residual_connections():
    with jax.enable_x64(True):
        model = Residual(parent=None)
        rng = np.random.default_rng(0)
        inputs = jnp.asarray(rng.normal(size=(5, 6, 6, 1)))
        params = model.init(jax.random.key(0), inputs)["params"]
        params = jax.tree.map(lambda a: jnp.asarray(rng.normal(size=a.shape)), params)
        fun = lambda p, x: model.apply({"params": p}, x[None])[0]  # noqa: E731
        for name in params:
            dx = {
                k: jax.tree.map(lambda a: jnp.asarray(rng.normal(size=a.shape)), sub)
                if k == name
                else jax.tree.map(lambda a: None, sub)
                for k, sub in params.items()
            }
            check(fun, params, dx, inputs, budget=60, chunk=4, span=1.0)


def test_loops_branches_indices_and_signs():
    def fun(x, s):
        looped, tops = jax.lax.scan(
            lambda c, k: (jnp.maximum(c + k * s[0], -c), jnp.max(c)), x, jnp.arange(3.0)
        )
        chosen = jax.lax.cond(s[1] > 0, lambda v: jnp.abs(v), lambda v: jnp.minimum(v, 0.5), looped)
        best = chosen[jnp.argmax(x)] + jnp.min(chosen) + x[jnp.argmin(-x)]
        soft = jnp.sign(x) * jnp.maximum(jnp.abs(x) - 1, 0)
        clipped = jax.lax.clamp(-0.5, x, 2.0 + 0 * x) + jnp.where(x != 0.25, x, 0.25)
        return jnp.concatenate([soft + clipped, tops, best[None]])

    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        x, dx = (jnp.asarray(rng.normal(size=4)) for _ in range(2))
        check(fun, x, dx, jnp.asarray(rng.normal(size=(12, 2))), budget=64)
        check(fun, jnp.zeros(4), jnp.ones(4), jnp.asarray(rng.normal(size=(12, 2))), budget=64)


def test_next_kink_is_pure_and_steps_from_knot_to_knot():
    f = lambda x: jnp.sum(jnp.abs(x - jnp.arange(4.0)), keepdims=True)  # noqa: E731
    step = jax.jit(jax.vmap(lambda x, t: next_kink(f, x, jnp.ones(4), t), (0, None)))
    value, slope, way = step(jnp.zeros((2, 4)), 0.0)
    assert (value[0, 0], slope[0, 0], way[0]) == (6, -2, 1)
    value, slope, way = step(jnp.zeros((2, 4)), 1.0)
    assert (value[0, 0], slope[0, 0], way[0]) == (4, 0, 1)
    assert np.isinf(step(jnp.zeros((2, 4)), 3.0)[2]).all()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("relu", activations.RELU),
        ("hard_tanh", activations.HARD_TANH),
        ("hard_sigmoid", activations.HARD_SIGMOID),
        ("leaky_relu", activations.LEAKY_RELU),
        ("relu6", activations.piecewise_linear([0, 6], [0, 1, 0])),
    ],
)
def test_activations_of_jax(name, data):
    assert piecewise_linear_of(getattr(jax.nn, name)) == data


def test_activations_written_by_hand():
    assert piecewise_linear_of(jnp.abs) == activations.ABS
    assert piecewise_linear_of(lambda x: x) == activations.IDENTITY
    assert piecewise_linear_of(ODD) is ODD
    assert piecewise_linear_of(lambda x: ODD(x)) == ODD
    assert piecewise_linear_of(lambda x: jnp.where(x < -2, 2 - x, jnp.maximum(4.0, 2 * x))) == (
        activations.piecewise_linear([-2, 2], [-1, 0, 2], (0, 4))
    )
    assert piecewise_linear_of(lambda x: jnp.maximum(x, x)) == activations.IDENTITY
    assert jax.jit(lambda x: piecewise_linear_of(jax.nn.relu)(x))(jnp.array(-1.0)) == 0


@pytest.mark.parametrize(
    ("fun", "message"),
    [
        (jnp.tanh, "tanh of a value that moves"),
        (jax.nn.gelu, "piecewise-linear function in its place"),
        (lambda x: x * jax.nn.hard_sigmoid(x), "mul multiplies two values.*fewer layers at once"),
        (lambda x: 1 / x, "div of a value"),
        (jnp.sign, "jumps at 0 from -1 to 1"),
        (lambda x: jnp.where(x > 2, x, 0), "jumps at 2 from 0 to 2"),
        (lambda x: x.astype(int) * 1.0, "convert_element_type"),
        (lambda x: jnp.stack([x, x]), "returned shape"),
        (lambda x: jax.lax.while_loop(lambda v: v < 1, lambda v: v + 1, x), "while"),
    ],
)
def test_what_is_not_piecewise_linear_is_named(fun, message):
    with pytest.raises(ValueError, match=message):
        piecewise_linear_of(fun)


def test_two_layers_at_once_are_refused():
    layers, inputs = problem(np.random.default_rng(0), (2, 3, 1), 4)
    with pytest.raises(ValueError, match="fewer layers at once"):
        trace(mlp(activations.RELU), layers, layers, inputs)
    with pytest.raises(TypeError, match="structure"):
        trace(mlp(activations.RELU), layers, layers[:1], inputs)
    with pytest.raises(ValueError, match="budget=0"):
        trace(mlp(activations.RELU), layers, layers, inputs, budget=0)
