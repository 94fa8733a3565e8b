import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxmpd import losses
from jaxmpd.losses import LOSSES, SOFTMAX, Loss, piecewise_loss

RAMP = piecewise_loss([0, 1], [[1], [1, -1], [0]], margin=True)
"""Neither convex nor differentiable."""

BUMPY = piecewise_loss([-1, 0.5], [[0, 0, 1], [2, 1, -1], [0.5, -2, 3]], [-1, 0, 1])
"""A concave piece, kinks of both signs, an anchor off its piece."""


def bumpy(e):
    right = 0.5 - 2 * (e - 1) + 3 * (e - 1) ** 2
    return np.where(e <= -1, (e + 1) ** 2, np.where(e <= 0.5, 2 + e - e * e, right))


CLOSED_FORMS = {
    "squared": lambda e: e**2,
    "absolute": np.abs,
    "huber": lambda e: np.where(np.abs(e) <= 1, e**2 / 2, np.abs(e) - 0.5),
    "pinball": lambda e: np.maximum(-0.3 * e, 0.7 * e),
    "epsilon_insensitive": lambda e: np.maximum(np.abs(e) - 0.1, 0),
    "hinge": lambda m: np.maximum(1 - m, 0),
    "squared_hinge": lambda m: np.maximum(1 - m, 0) ** 2,
    "logistic": lambda m: np.logaddexp(0, -m),
    "ramp": lambda m: np.clip(1 - m, 0, 1),
    "bumpy": bumpy,
}
CASES: dict[str, Loss] = {
    **{k: v for k, v in LOSSES.items() if isinstance(v, Loss)},
    "pinball": losses.pinball(0.3),
    "ramp": RAMP,
    "bumpy": BUMPY,
}
NUMBERS = st.floats(-8, 8, width=32) | st.sampled_from([-1.0, 0.0, 1.0, 1e-3, 0.1, 300.0])


@pytest.mark.parametrize("name", CASES)
def test_losses_have_their_closed_forms(name):
    loss, rng = CASES[name], np.random.default_rng(0)
    p = np.concatenate([rng.normal(size=(40, 3)) * 2, [[0, 1, -1], [1e6, -1e6, 0.1]]])
    y = rng.choice([-1.0, 1], p.shape) if loss.margin else rng.integers(-2, 3, p.shape) / 2
    with jax.enable_x64(True):
        e = y * p if loss.margin else p - y
        expected = np.sum(CLOSED_FORMS[name](e), axis=1)
        p, y = jnp.asarray(p), jnp.asarray(y)
        np.testing.assert_allclose(loss(p, y), expected, rtol=1e-12)
        if loss.smooth is None:
            np.testing.assert_allclose(loss.pieces(jnp.asarray(e)).sum(1), expected, rtol=1e-12)
        gradient = jax.grad(lambda p: jnp.sum(loss(p, y)))(p)
        np.testing.assert_allclose(loss.gradient(p, y), gradient, rtol=1e-12, atol=1e-300)


def test_the_squared_loss_is_the_squared_error():
    p, y = (jax.random.normal(k, (50, 3)) for k in jax.random.split(jax.random.key(0)))
    np.testing.assert_array_equal(LOSSES["squared"](p, y), losses.squared_error(p, y))


@pytest.mark.parametrize("name", [*CASES, "softmax"])
@pytest.mark.parametrize("p", [0.0, 1.0, -1.0, 3e18, -3e18])
def test_values_and_gradients_are_finite_where_float32_is(name, p):
    """A piece that does not hold e must not reach the gradient through 0 times infinity."""
    loss = {**CASES, "softmax": SOFTMAX}[name]
    predictions, targets = jnp.array([[p, 0.0]]), jnp.array([[1.0, 0.0]])
    value, gradient = jax.value_and_grad(lambda p: loss(p, targets)[0])(predictions)
    assert jnp.isfinite(value)
    assert jnp.all(jnp.isfinite(gradient))


def test_properties_that_descent_asks_of_a_loss():
    convex = {name for name, loss in CASES.items() if loss.convex}
    assert convex == set(CASES) - {
        "ramp",
        "bumpy",
        "logistic",
    }  # logistic: its parabolas meet unevenly
    assert {name for name, loss in CASES.items() if not loss.convex_pieces} == {"bumpy"}
    assert all(loss.bounded_below for loss in CASES.values())
    assert not piecewise_loss([], [[0, 1]]).bounded_below
    assert not piecewise_loss([0], [[0, 0, 1], [0, 0, -1]]).bounded_below
    assert piecewise_loss([0], [[0, -1], [0, 0, 1]]).bounded_below
    cubic = piecewise_loss([], [[0, 0, 0, 1]])
    assert not cubic.bounded_below
    assert not cubic.convex_pieces
    assert cubic.quadratic_majorant(jnp.ones((1, 1)), jnp.ones((1, 1))) is None


def test_a_loss_is_a_static_argument():
    traces = []

    @jax.jit
    def plain(p):
        return losses.LOGISTIC(p, jnp.ones_like(p))

    def value(p, loss):
        traces.append(loss)
        return loss(p, jnp.ones_like(p))

    jitted = jax.jit(value, static_argnames="loss")
    p = jnp.array([[0.3]])
    assert float(jitted(p, loss=losses.huber(2.0))[0]) == pytest.approx(0.245)
    jitted(p, loss=losses.huber(2.0))
    assert float(jitted(p, loss=losses.logistic(1e-3))[0]) == float(plain(p)[0])
    jitted(p, loss=losses.logistic(1e-3))
    assert len(traces) == 2


def bound(p, y, q, majorant, loss):
    """What the majorant at p allows the loss at q to be."""
    z, w = majorant
    return loss(p, y) + jnp.sum(w * ((q - z) ** 2 - (p - z) ** 2), axis=-1)


@functools.partial(jax.jit, static_argnames="loss")
def majorise(p, y, q, loss):
    """The majorant's height above the loss at q, its weights and its slope at p."""
    z, w = majorant = loss.quadratic_majorant(p, y)
    return bound(p, y, q, majorant, loss) - loss(q, y), w, 2 * w * (p - z)


@pytest.mark.parametrize("name", CASES)
@given(p=st.lists(NUMBERS, min_size=12, max_size=12), q=st.lists(NUMBERS, min_size=12, max_size=12))
@settings(max_examples=60, deadline=None)
def test_majorants_lie_above_and_touch(name, p, q):
    loss = CASES[name]
    with jax.enable_x64(True):
        p, q = jnp.asarray(p)[:, None], jnp.asarray(q)[:, None]
        y = jnp.tile(jnp.array([1.0, -1.0, 1.0]), 4)[:, None]
        y = y if loss.margin else y / 2
        above, weights, slope = majorise(p, y, q, loss)
        slack = 1e-3 / 4 * sum(max(jump[1], 0) for jump in loss.jumps)
        slack = slack if loss.smooth is None else 0
        assert np.all(above >= -slack - 1e-9 * (1 + np.asarray(loss(q, y))))
        assert np.all(weights >= 0)
        # Where no kink is rounded off, it touches with the loss's own slope.
        e = np.asarray(loss.argument(p, y))
        far = np.all(np.abs(e[..., None] - np.asarray(loss.kinks)) > 1e-3, axis=-1)
        gradient = np.asarray(loss.gradient(p, y))
        np.testing.assert_allclose(slope[far], gradient[far], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["absolute", "huber", "hinge", "squared_hinge", "bumpy", "ramp"])
def test_majorants_are_as_flat_as_can_be(name):
    """A weight 2 % less would cross the loss somewhere, or be the curvature on the spot."""
    loss = CASES[name]
    with jax.enable_x64(True):
        p = jnp.linspace(-2.97, 2.93, 41)[:, None]
        y = jnp.ones_like(p) if loss.margin else jnp.zeros_like(p)
        x = jnp.concatenate([-jnp.geomspace(1e-3, 1e3, 4000), jnp.geomspace(1e-3, 1e3, 4000)])
        e = loss.argument(p, y)
        excess = loss.pieces(e + x) - loss.pieces(e) - loss.slope(e) * x
        least = jnp.maximum(jnp.max(excess / x**2, axis=1), 0)
        weight = loss.quadratic_majorant(p, y, radius=1e-5).weights[:, 0]
        np.testing.assert_allclose(weight, least, rtol=2e-2, atol=1e-6)


def test_iteratively_reweighted_least_squares():
    e = jnp.array([[-3.0], [0.25], [2.0]])
    z, w = losses.huber(0.5).quadratic_majorant(e, jnp.zeros_like(e))
    np.testing.assert_allclose(w[:, 0], [0.5 / 6, 0.5, 0.5 / 4], rtol=1e-5)
    np.testing.assert_allclose(z, 0, atol=2e-5)
    z, w = losses.ABSOLUTE.quadratic_majorant(e, jnp.zeros_like(e))
    np.testing.assert_allclose(w[:, 0], [1 / 6, 2, 1 / 4], rtol=1e-5)
    np.testing.assert_allclose(z, 0, atol=2e-5)


@given(
    st.lists(NUMBERS, min_size=12, max_size=12),
    st.lists(NUMBERS, min_size=12, max_size=12),
    st.lists(st.integers(0, 3), min_size=3, max_size=3),
)
@settings(max_examples=60, deadline=None)
def test_softmax_majorant(p, d, labels):
    with jax.enable_x64(True):
        p, d = (jnp.asarray(a).reshape(3, 4) for a in (p, d))
        y = jax.nn.one_hot(jnp.asarray(labels), 4, dtype=p.dtype)
        y = y.at[2].set(jnp.array([0.5, 0.25, 0.25, 0]))  # probabilities, too
        above, _, slope = majorise(p, y, p + d, SOFTMAX)
        assert np.all(above >= -1e-9)
        gradient, curvature = softmax_derivatives(p, y)
        np.testing.assert_allclose(slope, gradient, atol=1e-12)
        np.testing.assert_allclose(SOFTMAX.gradient(p, y), gradient, atol=1e-12)
        np.testing.assert_allclose(2 * SOFTMAX.gauss_newton(p, y).weights, curvature, atol=1e-12)


@jax.jit
def softmax_derivatives(p, y):
    def one(p, y):
        return -jnp.sum(y * p) + jnp.sum(y) * jax.nn.logsumexp(p)

    hessian = jax.vmap(jax.hessian(one))(p, y)
    return jax.vmap(jax.grad(one))(p, y), jnp.diagonal(hessian, axis1=1, axis2=2)


@pytest.mark.parametrize("name", CASES)
def test_gauss_newton_has_the_slope_and_the_curvature(name):
    loss = CASES[name]
    with jax.enable_x64(True):
        p = jnp.linspace(-2.9, 3.1, 23)[:, None]
        y = -jnp.ones_like(p) if loss.margin else jnp.ones_like(p) / 3
        z, w = loss.gauss_newton(p, y)
        second = jax.grad(jax.grad(lambda p, y: loss(p[None, None], y[None, None])[0]))
        curvature = np.maximum(jax.vmap(second)(p[:, 0], y[:, 0])[:, None], 0)
        gradient = np.asarray(loss.gradient(p, y))
    p, z, w = map(np.asarray, (p, z, w))
    np.testing.assert_allclose(2 * w, curvature, rtol=1e-10, atol=1e-12)
    slope = np.where(w > 0, gradient, 0)
    np.testing.assert_allclose(2 * w * (p - z), slope, rtol=1e-9, atol=1e-12)


def test_a_margin_of_target_0_leaves_the_output_out():
    p, y = jnp.array([[3.0, -5.0]]), jnp.array([[1.0, 0.0]])
    for loss in (losses.HINGE, losses.SQUARED_HINGE, losses.LOGISTIC):
        z, w = loss.quadratic_majorant(p, y)
        assert float(w[0, 1]) == 0
        assert float(z[0, 1]) == -5
        assert float(loss.gradient(p, y)[0, 1]) == 0


def test_the_weight_of_the_logistic_majorant_is_smooth_at_0():
    m = jnp.array([0.0, 9e-3, 1.1e-2, -2.0, 50.0])
    expected = [1 / 8, *(np.tanh(m / 2) / (4 * m) for m in (9e-3, 1.1e-2, -2.0, 50.0))]
    np.testing.assert_allclose(losses.logistic_weight(m), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: piecewise_loss([0], [[0, 1]]), "1 kinks separate 2 pieces, but there are 1 rows"),
        (lambda: piecewise_loss([1, 0], [[0], [0], [0]]), "kinks must strictly increase"),
        (lambda: piecewise_loss([0], [[0], [np.nan]]), "must all be finite"),
        (lambda: piecewise_loss([2], [[0], [1]]), "at the kink 2.0 the pieces are 0.0 and 1.0"),
        (lambda: losses.huber(0), "delta must be a positive finite number, got 0"),
        (lambda: losses.epsilon_insensitive(-1), "epsilon must be a positive finite number"),
        (lambda: losses.pinball(1), "quantile must lie strictly between 0 and 1, got 1"),
        (lambda: losses.logistic(0.0), "error must be positive, got 0"),
    ],
)
def test_bad_data_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
