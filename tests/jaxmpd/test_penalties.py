import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmpd import penalties
from jaxmpd.network import Layer


@pytest.mark.parametrize("w", [-0.5, 0.0, 0.75])
@pytest.mark.parametrize(("l2", "l1"), [(0.5, 0.0), (0.0, 2.0), (0.25, 0.125)])
def test_the_penalty_along_a_parameter(w, l2, l1):
    t = jnp.linspace(-2, 2, 33)
    along = jax.jit(lambda w: penalties.penalty_along(w, l2, l1)(t))(jnp.array(w))
    change = l2 * ((w + t) ** 2 - w**2) + l1 * (jnp.abs(w + t) - abs(w))
    np.testing.assert_allclose(along, change, atol=1e-6)


@pytest.mark.parametrize("l1", [0.0, 0.5])
def test_the_penalty_along_a_direction(l1):
    """Parameters of 0, ones that stand still, one whose 0 lies beyond the largest number."""
    w = jnp.array([[0.0, 0.0, 1.0], [-2.0, 3.0, 1e30]])
    d = jnp.array([[1.0, -2.0, 0.0], [1.0, 0.5, 1e-30]])
    t = jnp.linspace(-8, 8, 65)
    along = jax.jit(lambda w, d: penalties.penalty_along(w[:, :2], 0.25, l1, d[:, :2])(t))(w, d)
    moved = w[:, :2, None] + t * d[:, :2, None]
    total = jnp.sum(0.25 * moved**2 + l1 * jnp.abs(moved), axis=(0, 1))
    np.testing.assert_allclose(along, total - total[32], rtol=1e-5, atol=1e-5)
    far = penalties.penalty_along(w[:, 2], 0.0, l1, d[:, 2])
    assert np.all(np.isinf(far.knots))
    np.testing.assert_allclose(far.base, [0, l1 * 1e-30, 0], rtol=1e-6)


def test_all_parameters_but_the_last_bias():
    layers = (
        Layer(jnp.array([[1.0, -2.0]]), jnp.array([3.0, 0.0])),
        Layer(jnp.array([[-4.0], [5.0]]), jnp.array([100.0])),
    )
    assert float(penalties.penalty(layers, 1.0, 0.0)) == 1 + 4 + 9 + 16 + 25
    assert float(penalties.penalty(layers, 0.0, 2.0)) == 2 * (1 + 2 + 3 + 4 + 5)
    bare = (layers[0]._replace(bias=None), layers[1]._replace(bias=None))
    assert float(penalties.penalty(bare, 1.0, 1.0)) == 1 + 4 + 16 + 25 + 1 + 2 + 4 + 5


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_unfit_penalties_are_named(value):
    with pytest.raises(ValueError, match="l2 must be a non-negative finite number"):
        penalties.check(value, 0.0)
    with pytest.raises(ValueError, match="l1 must be a non-negative finite number"):
        penalties.check(0.0, value)
