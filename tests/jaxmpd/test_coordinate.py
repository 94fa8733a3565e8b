"""The coordinate step under every loss; `test_transform` tests it inside the optimiser."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_losses import CASES

from jaxmpd import activations, minimum, network
from jaxmpd.expansion import Coordinate, expand
from jaxmpd.losses import SOFTMAX, Batch, weighted_mean
from jaxmpd.network import Layer
from jaxmpd.penalties import penalty
from jaxmpd.steps.coordinate import random_order, sweep

pytestmark = pytest.mark.compiled_quickly

LOSSES = {**CASES, "softmax": SOFTMAX}
F = activations.LEAKY_HARD_TANH
WIDTH, OUTPUTS = 3, 2
COUNT = WIDTH * 3 + (WIDTH + 1) * OUTPUTS


def problem(seed, loss, samples=24, dtype="float64"):
    """A network and samples on a coarse grid: ties, kinks met exactly, weights of 0."""
    rng = np.random.default_rng(seed)
    grid = lambda *shape: jnp.asarray(rng.integers(-4, 5, shape) / 2.0, dtype)  # noqa: E731
    layers = (Layer(grid(2, WIDTH), grid(WIDTH)), Layer(grid(WIDTH, OUTPUTS), grid(OUTPUTS)))
    x, targets = grid(samples, 2), grid(samples, OUTPUTS)
    if loss == SOFTMAX:
        targets = jax.nn.one_hot(jnp.argmax(targets, axis=1), OUTPUTS, dtype=dtype)
    elif loss.margin:
        targets = jnp.where(targets > 0, 1, -1).astype(dtype)
    weights = jnp.asarray(rng.integers(0, 3, samples), dtype)
    return layers, Batch(x, targets, weights)


def objective(layers, batch, loss, l2, l1):
    values = loss(network.apply(layers, batch.inputs, F), batch.targets)
    return weighted_mean(values, batch.weights) + penalty(layers, l2, l1)


def moved(layers, number, t):
    """The network with one parameter changed, by the numbers that `sweep` gives them."""
    hidden, output = layers
    incoming = jnp.vstack([hidden.kernel, hidden.bias]).T.reshape(-1)
    outgoing = jnp.vstack([output.kernel, output.bias]).reshape(-1)
    flat = jnp.concatenate([incoming, outgoing]).at[number].add(t)
    incoming = flat[: incoming.size].reshape(WIDTH, 3).T
    outgoing = flat[incoming.size :].reshape(WIDTH + 1, OUTPUTS)
    return (Layer(incoming[:-1], incoming[-1]), Layer(outgoing[:-1], outgoing[-1]))


@functools.partial(jax.jit, static_argnames=("loss", "l2", "l1"))
def all_moves(layers, batch, t, loss, l2, l1):
    """For every parameter alone: the objective before, after its step, and on a grid of moves."""
    numbers = jnp.arange(COUNT)
    at = lambda layers: objective(layers, batch, loss, l2, l1)  # noqa: E731
    after = jax.lax.map(lambda n: at(sweep(layers, batch, n[None], F, loss, l2=l2, l1=l1)), numbers)
    grid = jax.lax.map(lambda n: jax.vmap(lambda t: at(moved(layers, n, t)))(t), numbers)
    return at(layers), after, grid


PENALTIES = {
    "squared": (0.03, 0.02),
    "huber": (0.03, 0.0),
    "pinball": (0.0, 0.02),
    "hinge": (0.03, 0.02),
    "bumpy": (0.03, 0.0),
    "softmax": (0.0, 0.02),
}


@pytest.mark.parametrize("name", LOSSES)
def test_every_parameter_moves_to_the_global_minimum(name):
    loss, (l2, l1) = LOSSES[name], PENALTIES.get(name, (0.0, 0.0))
    with jax.enable_x64(True):
        t = jnp.concatenate([jnp.linspace(-8, 8, 1025), jnp.geomspace(8, 800, 40)])
        t = jnp.concatenate([t, -t[1025:]])
        for seed in range(3):
            layers, batch = problem(seed, loss)
            before, after, grid = map(np.asarray, all_moves(layers, batch, t, loss, l2, l1))
            assert np.all(after <= before)
            assert np.min(after) < before - 1e-3
            # The softmax step minimises a majorant: it descends, but to no global minimum.
            if loss != SOFTMAX:
                allowed = 2 * loss.error + 1e-9
                assert np.all(after <= grid.min(axis=1) + allowed)


@pytest.mark.compiled_quickly(False)
@pytest.mark.parametrize("name", ["squared", "hinge", "softmax"])
def test_float32_sweeps_descend_whatever_the_padding_holds(name):
    loss = LOSSES[name]
    layers, batch = problem(5, loss, samples=200, dtype="float32")
    unused = batch.weights[:, None] == 0
    other = Batch(
        jnp.where(unused, 7.0, batch.inputs), jnp.where(unused, -1.0, batch.targets), batch.weights
    )
    order = random_order(jax.random.key(0), np.arange(COUNT), COUNT)
    step = jax.jit(lambda l, batch: sweep(l, batch, order, F, loss, l2=1e-3, l1=1e-3))
    start = last = float(objective(layers, batch, loss, 1e-3, 1e-3))
    for _ in range(4):
        same = step(layers, other)
        layers = step(layers, batch)
        now = float(objective(layers, batch, loss, 1e-3, 1e-3))
        assert now <= last + 1e-6 * abs(last)
        assert float(objective(same, batch, loss, 1e-3, 1e-3)) == pytest.approx(now, rel=1e-4)
        last = now
    assert last < 0.9 * start


def test_lasso_sets_parameters_to_exactly_0():
    loss = CASES["huber"]
    layers, batch = problem(2, loss, dtype="float32")
    layers = jax.tree.map(lambda p: p + 0.1234567, layers)
    order = jnp.arange(COUNT)
    swept = jax.jit(lambda l: sweep(l, batch, order, F, loss, l1=10.0, search=minimum.minimize))(
        layers
    )
    parameters = [*swept[0], swept[1].kernel]
    assert all(float(jnp.max(jnp.abs(p))) == 0 for p in parameters)
    assert np.any(np.asarray(swept[1].bias) != 0)  # the mean is left free


@pytest.mark.parametrize("name", ["absolute", "softmax"])
def test_the_expansion_is_the_objective(name):
    """Exactly, or as a bound where the loss has no pieces."""
    loss, (l2, l1) = LOSSES[name], (0.05, 0.03)

    @functools.partial(jax.jit, static_argnames="layer")
    def both(layers, batch, row, column, number, t, layer):
        line = expand(layers, batch, Coordinate(layer, row, column), F, loss, l2=l2, l1=l1)
        at = jax.vmap(lambda t: objective(moved(layers, number, t), batch, loss, l2, l1))
        return line(t), at(t), minimum.minimize(line).value

    with jax.enable_x64(True):
        t = jnp.linspace(-4, 4, 65)
        layers, batch = problem(7, loss)
        for number in range(COUNT):
            hidden = number < WIDTH * 3
            row, column = (
                (number % 3, number // 3) if hidden else divmod(number - WIDTH * 3, OUTPUTS)
            )
            line, truth, least = both(layers, batch, row, column, number, t, 0 if hidden else 1)
            line, truth = np.asarray(line), np.asarray(truth)
            if name == "softmax":
                assert np.all(line >= truth - 1e-12)
                assert line[32] == pytest.approx(truth[32])
            else:
                np.testing.assert_allclose(line, truth, rtol=1e-11, atol=1e-11)
                assert float(least) <= truth.min() + 1e-12


def test_unfit_penalties_are_named():
    layers, batch = problem(0, CASES["squared"], dtype="float32")
    with pytest.raises(ValueError, match="l1 must be a non-negative finite number, got -1"):
        sweep(layers, batch, jnp.arange(1), F, l1=-1.0)
    with pytest.raises(ValueError, match="l2 must be a non-negative finite number, got -2"):
        expand(layers, batch, Coordinate(0, 0, 0), F, l2=-2.0)
