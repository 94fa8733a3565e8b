import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from flax.core import FrozenDict

from jaxmpd import network
from jaxmpd.activations import RELU
from jaxmpd.network import Layer


def test_initialisation_is_gaussian_of_glorots_scale():
    kernel = network.init(jax.random.key(0), (200, 300, 2))[0].kernel
    assert abs(float(jnp.mean(kernel))) < 1e-3
    assert float(jnp.std(kernel)) == pytest.approx((2 / 500) ** 0.5, rel=0.02)
    # A Gaussian's kurtosis, which tells it from the uniform variant (1.8).
    assert float(jnp.mean((kernel / jnp.std(kernel)) ** 4)) == pytest.approx(3, abs=0.15)


def test_widths_are_checked():
    with pytest.raises(ValueError, match=r"at least two positive numbers, got \(2,\)"):
        network.init(jax.random.key(0), (2,))
    with pytest.raises(ValueError, match="positive"):
        network.init(jax.random.key(0), (2, 0, 1))


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x):
        for _ in range(11):
            x = jax.nn.relu(nn.Dense(3)(x))
        return nn.Dense(1)(x)


def test_layers_come_out_of_linen_in_order_and_go_back():
    model = Linen()
    x = jax.random.normal(jax.random.key(1), (5, 2))
    params = model.init(jax.random.key(0), x)
    for tree in (params, FrozenDict(params)):
        layers, rebuild = network.as_layers(tree)
        assert len(layers) == 12  # Dense_10 after Dense_9, not after Dense_1
        np.testing.assert_allclose(network.apply(tree, x, RELU), model.apply(params, x), rtol=1e-5)
        doubled = rebuild([Layer(2 * k, 2 * b) for k, b in layers])
        assert jax.tree.structure(doubled) == jax.tree.structure(tree)
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(2 * a, b), tree, doubled)


def test_layers_come_out_of_nnx_and_go_back():
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.hidden = nnx.Linear(2, 4, rngs=rngs)
            self.output = nnx.Linear(4, 1, use_bias=False, rngs=rngs)

    model = Model(nnx.Rngs(0))
    state = nnx.state(model, nnx.Param)
    layers, rebuild = network.as_layers(state)
    assert [layer.kernel.shape for layer in layers] == [(2, 4), (4, 1)]
    assert layers[1].bias is None
    x = jnp.ones((3, 2))
    expected = model.output(jax.nn.relu(model.hidden(x)))
    np.testing.assert_allclose(network.apply(state, x, RELU), expected, rtol=1e-6)
    assert jax.tree.structure(rebuild(layers)) == jax.tree.structure(state)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            {"a": {"kernel": jnp.ones((2, 3)), "scale": jnp.ones(3), "bias": jnp.ones(3)}},
            "one matrix",
        ),
        ({"a": {"bias": jnp.ones(3)}}, "one matrix"),
        ({"a": {"kernel": jnp.ones((2, 3))}, "b": {"kernel": jnp.ones((4, 1))}}, "do not chain"),
    ],
)
def test_trees_that_are_no_mlp_are_refused(params, message):
    with pytest.raises(ValueError, match=message):
        network.as_layers(params)
