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


def check(layers, inputs, f, direction, budget=512, tolerance=1e-11):
    """The curve is the network: between all its knots, beyond them and at random points."""
    found = jax.jit(lambda: curves_along(layers, inputs, f, direction, budget=budget))()
    knots = np.asarray(found.curves.knots)
    finite = np.isfinite(knots)
    assert np.all(knots[:, 1:] >= knots[:, :-1])
    assert np.all(np.asarray(found.curves.bends)[~finite] == 0)
    lo, hi = (np.clip(np.asarray(a), -9, 9) for a in (found.lo, found.hi))
    inner = np.clip(np.where(finite, knots, 0), lo[:, None], hi[:, None])
    ends = np.sort(np.concatenate([lo[:, None], inner, hi[:, None]], axis=1))
    points = np.concatenate([ends, (ends[:, 1:] + ends[:, :-1]) / 2], axis=1)

    @jax.jit
    def truth(t):
        one = lambda x, t: network.apply(moved(layers, direction, t), x[None], f)[0]  # noqa: E731
        return jax.vmap(jax.vmap(one, (None, 0)))(inputs, t)

    expected = np.asarray(truth(jnp.asarray(points, knots.dtype)))
    for k in range(points.shape[1]):
        error = np.abs(curve_at(found, points[:, k]) - expected[:, k]).max()
        assert error <= tolerance * (1 + np.abs(expected).max())
    return found


@pytest.mark.parametrize("f", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("grid", [False, True])
def test_parameters_of_every_layer(f, grid):
    """On the grid: ties, still units, kinks at the origin, weights and inputs of 0."""
    with jax.enable_x64(True):
        for seed in range(2):
            rng = np.random.default_rng(seed)
            layers, inputs = problem(rng, (2, 4, 5, 2), 24, grid)
            for direction in (
                Coordinate(0, seed, 1),
                Coordinate(0, 2, 3),
                Coordinate(1, 1, 2),
                Coordinate(1, 4, 0),
                Coordinate(2, 1, 1),
                Coordinate(2, 5, 0),
            ):
                found = check(layers, inputs, f, direction)
                assert np.isinf(found.hi).all()


@pytest.mark.parametrize("f", [activations.LEAKY_HARD_TANH, ODD])
def test_directions_of_units_and_layers(f):
    with jax.enable_x64(True):
        rng = np.random.default_rng(3)
        layers, inputs = problem(rng, (3, 4, 5, 4, 2), 24)
        for k, layer in enumerate(layers):
            kernel = jnp.asarray(rng.normal(size=layer.kernel.shape))
            bias = jnp.asarray(rng.normal(size=layer.bias.shape))
            check(layers, inputs, f, UnitDirection(k, 1, kernel[:, 1], bias[1]))
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
            knots = curves_along(layers, inputs, f, Coordinate(layer, 0, 1)).curves.knots
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
    many = jax.vmap(
        lambda r, c: curves_along(layers, inputs, activations.RELU, Coordinate(0, r, c)).curves
    )(jnp.arange(3), jnp.arange(3))
    alone = curves_along(layers, inputs, activations.RELU, Coordinate(0, 2, 2)).curves
    np.testing.assert_allclose(many.knots[2], alone.knots, rtol=1e-6)


def test_there_is_no_such_layer():
    layers, inputs = problem(np.random.default_rng(0), (2, 4, 2), 6)
    with pytest.raises(ValueError, match=r"direction.layer is 2, but there are 2 layers"):
        curves_along(layers, inputs, activations.RELU, Coordinate(2, 0, 0))
