import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmpd import activations, network
from jaxmpd.expansion import Coordinate, expand
from jaxmpd.losses import Batch
from jaxmpd.minimum import minimize
from jaxmpd.network import Layer

ODD = activations.piecewise_linear([-1, 0.5, 2], [1, -2, 0, 3], (0, 1))


def problem(seed, outputs, samples=20, width=3, inputs=2):
    """A network and samples on a coarse grid: ties, kinks met exactly, inputs of 0."""
    rng = np.random.default_rng(seed)
    grid = lambda *shape: jnp.asarray(rng.integers(-4, 5, shape) / 2.0)  # noqa: E731
    layers = (Layer(grid(inputs, width), grid(width)), Layer(grid(width, outputs), grid(outputs)))
    weights = jnp.asarray(rng.integers(0, 3, samples) * 1.0)
    return layers, Batch(grid(samples, inputs), grid(samples, outputs), weights)


def loss_at(layers, batch, coordinate, t, f):
    layer, row, column = coordinate
    moved = layers[layer]
    if row == moved.kernel.shape[0]:
        moved = moved._replace(bias=moved.bias.at[column].add(t))
    else:
        moved = moved._replace(kernel=moved.kernel.at[row, column].add(t))
    layers = (*layers[:layer], moved, *layers[layer + 1 :])
    errors = jnp.sum((network.apply(layers, batch.inputs, f) - batch.targets) ** 2, axis=1)
    return jnp.sum(batch.weights * errors) / jnp.sum(batch.weights)


@pytest.mark.parametrize(
    "f", [activations.LEAKY_HARD_TANH, activations.ABS, activations.IDENTITY, ODD]
)
@pytest.mark.parametrize("outputs", [1, 3])
def test_expansion_is_the_loss_and_its_minimum_is_global(f, outputs):
    t = jnp.concatenate([jnp.linspace(-12, 12, 97), jnp.array([-300.0, 300])])
    with jax.enable_x64(True):

        @jax.jit
        def check(layers, batch, row, column):
            def one(layer):
                loss = expand(layers, batch, Coordinate(layer, row, column), f)
                found = minimize(loss)
                # Brute force: every knot, a fine grid, and the vertex of every piece between.
                knots = jnp.where(jnp.isfinite(loss.knots), loss.knots, 0)
                ends = jnp.sort(jnp.concatenate([knots, jnp.linspace(-400, 400, 101)]))
                at = jax.vmap(lambda t: loss_at_row(layers, batch, layer, row, column, t, f))
                lo, hi = ends[:-1], ends[1:]
                middle = (lo + hi) / 2
                a, m, b = at(lo), at(middle), at(hi)
                second, first = 2 * (a - 2 * m + b), (b - a)
                x = jnp.clip(-first / jnp.where(second > 1e-12, 2 * second, 1), -0.5, 0.5)
                vertex = middle + jnp.where(second > 1e-12, x, 0) * (hi - lo)
                best = jnp.min(jnp.concatenate([a, m, b, at(vertex)]))
                return loss(t), at(t), found.value, at(found.argmin[None])[0], best

            return [one(layer) for layer in (0, 1)]

        def loss_at_row(layers, batch, layer, row, column, t, f):
            moved = layers[layer]
            d = moved.kernel.shape[0]
            kernel = moved.kernel.at[jnp.minimum(row, d - 1), column].add(jnp.where(row < d, t, 0))
            bias = moved.bias.at[column].add(jnp.where(row < d, 0, t))
            new = list(layers)
            new[layer] = Layer(kernel, bias)
            errors = jnp.sum((network.apply(tuple(new), batch.inputs, f) - batch.targets) ** 2, 1)
            return jnp.sum(batch.weights * errors) / jnp.sum(batch.weights)

        for seed in range(8):
            layers, batch = problem(seed, outputs)
            for row in range(3):
                column = 0 if outputs == 1 else row % 3
                for value, truth, least, reached, best in check(layers, batch, row, column):
                    # Far out the square of t multiplies the rounding of the coefficients.
                    assert np.all(np.abs(value - truth) <= 1e-12 * (1 + t**2))
                    assert float(least) == pytest.approx(float(reached), rel=1e-12, abs=1e-12)
                    assert float(least) <= float(best) * (1 + 1e-12) + 1e-12


def test_many_parameters_under_vmap():
    layers, batch = problem(0, 1)
    rows, columns = jnp.meshgrid(jnp.arange(3), jnp.arange(3), indexing="ij")
    one = lambda r, c: minimize(  # noqa: E731
        expand(layers, batch, Coordinate(0, r, c), activations.RELU)
    )
    found = jax.jit(jax.vmap(one))(rows.ravel(), columns.ravel())
    alone = jax.jit(one)
    for k, (r, c) in enumerate(zip(rows.ravel(), columns.ravel(), strict=True)):
        assert float(found.value[k]) == pytest.approx(float(alone(r, c).value), rel=1e-6)
        at = loss_at(layers, batch, (0, int(r), int(c)), found.argmin[k], activations.RELU)
        assert float(at) == pytest.approx(float(found.value[k]), rel=1e-5)


def test_other_depths_are_refused():
    params = network.init(jax.random.key(0), (2, 3, 3, 1))
    batch = Batch(jnp.ones((4, 2)), jnp.ones((4, 1)))
    with pytest.raises(ValueError, match="3 layers"):
        expand(params, batch, Coordinate(0, 0, 0), activations.RELU)
    with pytest.raises(ValueError, match=r"coordinate.layer is 2"):
        expand(params[1:], batch, Coordinate(2, 0, 0), activations.RELU)
