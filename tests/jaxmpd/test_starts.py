import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmpd.activations import LEAKY_HARD_TANH
from jaxmpd.network import pre_activations
from jaxmpd.starts import spread


@pytest.mark.parametrize("deviation", [0.5, 4.0])
@pytest.mark.parametrize("inputs", [1, 2, 30])
def test_hidden_pre_activations_spread_as_asked(inputs, deviation):
    layers = spread(jax.random.key(0), (inputs, 2000, 3), deviation)
    x = jax.random.normal(jax.random.key(1), (2000, inputs))
    hidden, output = pre_activations(layers, x, LEAKY_HARD_TANH)
    assert np.isclose(jnp.std(hidden), deviation, rtol=0.1)
    assert 0.05 < jnp.std(output) < 1.5


def test_layers_are_independent_and_shaped():
    layers = spread(jax.random.key(0), (2, 4, 4, 1), dtype=jnp.float16)
    assert [layer.kernel.shape for layer in layers] == [(2, 4), (4, 4), (4, 1)]
    assert all(leaf.dtype == jnp.float16 for leaf in jax.tree.leaves(layers))
    assert not (layers[0].bias == layers[1].bias).any()


@pytest.mark.parametrize(
    ("widths", "deviation", "message"),
    [
        ((2,), 1.0, "at least two positive numbers"),
        ((2, 0, 1), 1.0, "at least two positive numbers"),
        ((2, 3, 1), 0.0, "deviation must be positive"),
        ((2, 3, 1), float("inf"), "deviation must be positive"),
    ],
)
def test_what_cannot_start(widths, deviation, message):
    with pytest.raises(ValueError, match=message):
        spread(jax.random.key(0), widths, deviation)
