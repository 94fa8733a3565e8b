"""Networks and samples for the tests of the steps, and what a step must not raise."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from jaxmpd import activations, network
from jaxmpd.losses import SOFTMAX, SQUARED, Batch
from jaxmpd.network import Layer

F = activations.LEAKY_HARD_TANH


def problem(seed, widths=(2, 6, 2), samples=80, loss=SQUARED, bias=True):
    """Random layers, and samples of a curved function with noise; a third has the weight 0.

    In float64 inside `jax.enable_x64(True)`, in float32 otherwise.
    """
    rng = np.random.default_rng(seed)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape), float)  # noqa: E731
    layers = tuple(
        Layer(normal(a, b), normal(b) if bias else None) for a, b in itertools.pairwise(widths)
    )
    x, noise = normal(samples, widths[0]), normal(samples, widths[-1])
    targets = jnp.sin(2 * x[:, :1] + jnp.arange(widths[-1])) * x[:, -1:] + 0.1 * noise
    if loss == SOFTMAX:
        targets = jax.nn.one_hot(jnp.argmax(targets, axis=1), widths[-1], dtype=x.dtype)
    elif loss.margin:
        targets = jnp.where(targets > 0, 1, -1).astype(x.dtype)
    return layers, Batch(x, targets, jnp.asarray(rng.integers(0, 3, samples), float))


@functools.partial(jax.jit, static_argnames=("loss", "f"))
def objective(layers, batch, loss=SQUARED, l2=0.0, f=F):
    """The weighted mean loss plus ridge, the output's biases left out."""
    values = loss(network.apply(layers, batch.inputs, f), batch.targets)
    squares = sum(jnp.sum(a**2) for a in jax.tree.leaves((layers[:-1], layers[-1].kernel)))
    return jnp.sum(batch.weights * values) / jnp.sum(batch.weights) + l2 * squares


def all_movable(layers):
    return jax.tree.map(lambda a: np.ones(a.shape, bool), layers)


def some_movable(layers, seed=0, share=0.6):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda a: rng.random(a.shape) < share, layers)


def assert_still(old, new, movable):
    """What may not move is the same bit for bit, and something else is not."""
    pairs = list(zip(*map(jax.tree.leaves, (old, new, movable)), strict=True))
    for a, b, free in pairs:
        np.testing.assert_array_equal(np.asarray(a)[~free], np.asarray(b)[~free])
    assert any(np.any(np.asarray(a) != np.asarray(b)) for a, b, _ in pairs)
