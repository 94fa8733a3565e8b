from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks import all_movable, assert_still, some_movable
from test_trace import problem

from jaxmpd import Batch, activations, network
from jaxmpd.steps import deep

pytestmark = pytest.mark.compiled_quickly

F = activations.LEAKY_HARD_TANH


def objective(layers, batch, l2):
    errors = jnp.sum((network.apply(layers, batch.inputs, F) - batch.targets) ** 2, axis=1)
    squares = sum(jnp.sum(a**2) for a in jax.tree.leaves((layers[:-1], layers[-1].kernel)))
    return jnp.sum(batch.weights * errors) / jnp.sum(batch.weights) + l2 * squares


def samples(rng, count, outputs):
    x = rng.normal(size=(count, 2))
    y = np.sin(2 * x[:, :1]) * x[:, 1:] + 0.1 * rng.normal(size=(count, outputs))
    weights = rng.integers(0, 3, count) * 1.0
    return Batch(*(jnp.asarray(a, jnp.float32) for a in (x, y, weights)))


@pytest.mark.parametrize("hidden", [(8,), (6, 5), (5, 4, 4)])
def test_a_sweep_lowers_the_penalised_loss(hidden):
    batch, l2 = samples(np.random.default_rng(0), 200, 2), 1e-4
    layers = network.init(jax.random.key(0), (2, *hidden, 2))
    sweep = jax.jit(lambda layers, key: deep.sweep(layers, batch, key, F, l2=l2, budget=12))
    falls = [float(objective(layers, batch, l2))]
    for turn in range(3):
        layers = sweep(layers, jax.random.key(turn))
        falls.append(float(objective(layers, batch, l2)))
    assert np.all(np.diff(falls) <= 1e-6)
    assert falls[-1] < 0.5 * falls[0]


def test_a_unit_moves_to_the_global_minimum_along_its_direction():
    """No point of the line through the old and the new weights is lower."""
    l2 = 1e-3
    with jax.enable_x64(True):
        rng = np.random.default_rng(1)
        layers, inputs = problem(rng, (2, 6, 5, 1), 80)
        batch = Batch(inputs, jnp.asarray(rng.normal(size=(80, 1))), jnp.ones(80))
        for layer in (0, 1):
            move = partial(
                deep.move_unit, weights=batch.weights / 80, layer=layer, activation=F, l2=l2
            )
            moved = jax.jit(lambda l, u, move=move: move(l, batch, unit=u))(layers, 2)
            shift = jax.tree.map(jnp.subtract, moved[layer], layers[layer])
            assert np.flatnonzero(np.abs(shift.kernel).sum(axis=0)).tolist() == [2]
            t = jnp.linspace(-30, 30, 6001)

            @jax.jit
            def along(t, layer=layer, shift=shift):
                new = jax.tree.map(lambda a, b: a + t * b, layers[layer], shift)
                return objective((*layers[:layer], new, *layers[layer + 1 :]), batch, l2)

            values = jax.lax.map(along, t)
            assert float(along(1.0)) <= float(values.min()) + 1e-12
            assert float(along(1.0)) < float(along(0.0))


def test_layers_without_biases_and_what_stands_still():
    batch = samples(np.random.default_rng(2), 100, 1)
    layers = network.init(jax.random.key(0), (2, 5, 4, 1))
    layers = tuple(network.Layer(layer.kernel, None) for layer in layers)
    movable = (network.Layer(np.zeros((2, 5), bool), None), *all_movable(layers[1:]))
    swept = jax.jit(lambda l: deep.sweep(l, batch, jax.random.key(0), F, movable=movable))(layers)
    assert all(layer.bias is None for layer in swept)
    np.testing.assert_array_equal(swept[0].kernel, layers[0].kernel)
    assert float(objective(swept, batch, 0.0)) < float(objective(layers, batch, 0.0))


@pytest.mark.parametrize("bias", [True, False])
def test_what_may_not_move_stays_and_the_others_do_not_raise_the_loss(bias):
    l2 = 1e-3
    with jax.enable_x64(True):
        rng = np.random.default_rng(3)
        layers, inputs = problem(rng, (2, 5, 4, 2), 60)
        if not bias:
            layers = tuple(layer._replace(bias=None) for layer in layers)
        batch = Batch(inputs, jnp.asarray(rng.normal(size=(60, 2))), jnp.ones(60))
        movable = some_movable(layers)
        movable[1].kernel[:, 2] = False  # a unit that stands still, but for its bias
        sweep = jax.jit(lambda l, k: deep.sweep(l, batch, k, F, l2=l2, movable=movable))
        falls = [float(objective(layers, batch, l2))]
        for turn in range(3):
            swept = sweep(layers, jax.random.key(turn))
            assert_still(layers, swept, movable)
            assert jax.tree.structure(swept) == jax.tree.structure(layers)
            layers = swept
            falls.append(float(objective(layers, batch, l2)))
        assert np.all(np.diff(falls) < 0)
        assert falls[-1] < 0.9 * falls[0]
