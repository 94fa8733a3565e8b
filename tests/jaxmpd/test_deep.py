from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_trace import ODD, curve_at, problem

from jaxmpd import activations, network
from jaxmpd.deep import LayerDirection, UnitDirection, breakpoint_bound, curves_along
from jaxmpd.expansion import Coordinate

FLAT = activations.piecewise_linear([-1, 0, 2], [1, 0, 2, 0])  # monotone with flats inside
FALLING = activations.piecewise_linear([-1, 0.5], [-0.5, -2, -1])
FUNCTIONS = {
    "leaky_hard_tanh": activations.LEAKY_HARD_TANH,
    "hard_tanh": activations.HARD_TANH,
    "abs": activations.ABS,
    "identity": activations.IDENTITY,
    "odd": ODD,
    "flat": FLAT,
    "falling": FALLING,
}


def moved(layers, direction, t):
    """The layers with the direction added t times."""
    layer = layers[direction.layer]
    if isinstance(direction, LayerDirection):
        new = jax.tree.map(lambda a, b: a + t * b, layer, direction.change)
    elif isinstance(direction, UnitDirection):
        column = direction.column
        new = network.Layer(
            layer.kernel.at[:, column].add(t * direction.kernel),
            layer.bias.at[column].add(t * direction.bias),
        )
    elif direction.row == len(layer.kernel):
        new = layer._replace(bias=layer.bias.at[direction.column].add(t))
    else:
        new = layer._replace(kernel=layer.kernel.at[direction.row, direction.column].add(t))
    return (*layers[: direction.layer], new, *layers[direction.layer + 1 :])


def truth(layers, direction, inputs, points, f):
    """Predictions at each sample's own points, in NumPy."""
    first, *rest = layers[direction.layer :]
    change = moved((*layers[: direction.layer], jax.tree.map(jnp.zeros_like, first)), direction, 1)[
        -1
    ]
    x = inputs
    for layer in layers[: direction.layer]:
        x = f(network.affine(layer, x))
    z, u = (np.asarray(network.affine(layer, x)) for layer in (first, change))
    z = z[:, None] + points[:, :, None] * u[:, None]
    for kernel, bias in rest:
        inner = np.select(
            [z <= kink for kink in f.kinks] + [np.ones_like(z, bool)],
            [m * z + o for m, o in zip(f.slopes, f.offsets, strict=True)],
        )
        z = inner @ np.asarray(kernel) + (0 if bias is None else np.asarray(bias))
    return z


def check(layers, inputs, f, direction, found=None, budget=256, tolerance=1e-11):
    """The curve is the network: at all its knots and between them."""
    if found is None:
        found = jax.jit(lambda: curves_along(layers, inputs, f, direction, budget=budget))()
    knots = np.asarray(found.curves.knots)
    finite = np.isfinite(knots)
    assert np.all(knots[:, 1:] >= knots[:, :-1])
    assert np.all(np.asarray(found.curves.bends)[~finite] == 0)
    lo, hi = (np.clip(np.asarray(a), -9, 9) for a in (found.lo, found.hi))
    inner = np.clip(np.where(finite, knots, 0), lo[:, None], hi[:, None])
    ends = np.sort(np.concatenate([lo[:, None], inner, hi[:, None]], axis=1))
    points = np.concatenate([ends, (ends[:, 1:] + ends[:, :-1]) / 2], axis=1)

    expected = np.asarray(truth(layers, direction, inputs, points, f))
    for k in range(points.shape[1]):
        error = np.abs(curve_at(found, points[:, k]) - expected[:, k]).max()
        assert error <= tolerance * (1 + np.abs(expected).max())
    return found


@pytest.mark.parametrize("f", FUNCTIONS.values(), ids=FUNCTIONS)
def test_parameters_two_layers_back(f):
    """Half of them on a grid: ties, still units, kinks at the origin, weights and inputs of 0."""
    with jax.enable_x64(True):
        follow = jax.jit(lambda l, x, row, c: curves_along(l, x, f, Coordinate(0, row, c)))
        for seed in range(8):
            rng = np.random.default_rng(seed)
            layers, inputs = problem(rng, (2, 4, 5, 2), 24, grid=seed % 2 == 0)
            row, column = seed % 3, seed % 4
            found = follow(layers, inputs, row, column)
            assert np.isinf(found.hi).all()
            check(layers, inputs, f, Coordinate(0, row, column), found)


@pytest.mark.parametrize("f", [activations.HARD_TANH, ODD])
def test_parameters_next_to_the_output(f):
    with jax.enable_x64(True):
        for grid in (False, True):
            layers, inputs = problem(np.random.default_rng(0), (2, 4, 5, 2), 24, grid)
            for layer, row, column in ((1, 1, 2), (1, 4, 0), (2, 1, 1), (2, 5, 0)):
                check(layers, inputs, f, Coordinate(layer, row, column))


@pytest.mark.parametrize("f", [activations.LEAKY_HARD_TANH, ODD])
def test_directions_of_units_and_layers(f):
    with jax.enable_x64(True):
        rng = np.random.default_rng(3)
        layers, inputs = problem(rng, (3, 4, 5, 4, 2), 24)
        for k, layer in enumerate(layers):
            kernel = jnp.asarray(rng.normal(size=layer.kernel.shape))
            bias = jnp.asarray(rng.normal(size=layer.bias.shape))
            if k % 2 == 0:
                check(layers, inputs, f, UnitDirection(k, 1, kernel[:, 1], bias[1]))
            if k > 0:
                check(layers, inputs, f, LayerDirection(k, network.Layer(kernel, bias)))
        near = check(layers, inputs, f, LayerDirection(2, network.Layer(*layers[2])), budget=2)
        assert near.curves.knots.shape == (24, 5)
        assert np.isfinite(near.hi).all()


@pytest.mark.parametrize("f", [activations.LEAKY_HARD_TANH, activations.ABS, activations.RELU])
def test_numbers_of_knots(f):
    """Measured ones keep to the bound, which is reached: not a hundred times too high."""
    kinks, width = len(f.kinks), 30
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        layers, inputs = problem(rng, (2, 6, width, 1), 200)
        for layer, pieces in ((0, 1 if f.monotone else kinks + 1), (1, 0)):
            bound = breakpoint_bound((2, 6, width, 1), layer, f)
            assert bound == kinks + pieces * kinks * width
            follow = partial(curves_along, activation=f, direction=Coordinate(layer, 0, 1))
            knots = jax.jit(follow)(layers, inputs).curves.knots
            counts = np.isfinite(knots).sum(axis=1)
            assert counts.max() <= bound
            assert counts.max() >= 0.4 * bound
        assert breakpoint_bound((2, 6, width, 1), 2, f) == 0


def test_layers_without_biases_and_single_precision():
    rng = np.random.default_rng(4)
    layers, inputs = problem(rng, (2, 4, 5, 4, 2), 24)
    layers = tuple(network.Layer(jnp.asarray(l.kernel, jnp.float32), None) for l in layers)
    inputs = jnp.asarray(inputs, jnp.float32)
    for k, layer in enumerate(layers):
        change = network.Layer(jnp.asarray(rng.normal(size=layer.kernel.shape), jnp.float32), None)
        for direction in (LayerDirection(k, change), Coordinate(k, 1, 1)):
            check(layers, inputs, activations.LEAKY_RELU, direction, tolerance=3e-5)


def test_rows_and_columns_may_be_traced():
    layers, inputs = problem(np.random.default_rng(0), (2, 4, 5, 2), 6)
    along = lambda r, c: curves_along(layers, inputs, activations.RELU, Coordinate(0, r, c)).curves  # noqa: E731
    many = jax.jit(jax.vmap(along))(jnp.arange(3), jnp.arange(3))
    alone = jax.jit(along)(2, 2)
    np.testing.assert_allclose(many.knots[2], alone.knots, rtol=1e-6)


def test_there_is_no_such_layer():
    layers, inputs = problem(np.random.default_rng(0), (2, 4, 2), 6)
    with pytest.raises(ValueError, match=r"direction.layer is 2, but there are 2 layers"):
        curves_along(layers, inputs, activations.RELU, Coordinate(2, 0, 0))
