from fractions import Fraction

import chex
import exact
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxmpd import activations, piecewise
from jaxmpd.piecewise import PiecewisePolynomial, polynomial

EIGHTHS = st.integers(-40, 40).map(lambda n: n / 8)
ACTIVATIONS = [
    *activations.ACTIVATIONS.values(),
    activations.piecewise_linear([-1, 0, 2], [1, -2, 0, 3], (0, 1)),
]
GRID = np.concatenate([np.linspace(-9, 9, 145), [-1e3, 1e3]])


@st.composite
def functions(draw, degree=2, size=5):
    """Piecewise polynomials with ties, knots at the origin, empty jumps and padding."""
    knots = draw(
        st.lists(EIGHTHS | st.just(float("inf")) | st.just(0.0), min_size=size, max_size=size)
    )
    jumps = draw(
        st.lists(
            st.lists(EIGHTHS, min_size=size, max_size=size),
            min_size=degree + 1,
            max_size=degree + 1,
        )
    )
    base = draw(st.lists(EIGHTHS, min_size=degree + 1, max_size=degree + 1))
    jumps = np.where(np.isfinite(knots), np.array(jumps), 0.0)
    return np.array(base), np.array(knots), jumps


def as_jax(f, dtype=None):
    return PiecewisePolynomial(*(jnp.asarray(a, dtype) for a in f))


@jax.jit
def both_forms(f, t):
    return f(t), piecewise.segments(f)(t), piecewise.from_segments(piecewise.segments(f))(t)


@settings(max_examples=60, deadline=None)
@given(functions())
def test_evaluation_and_segments_agree_with_rational_arithmetic(f):
    with jax.enable_x64(True):
        t = np.append(
            GRID, f[1][np.isfinite(f[1])].tolist() + [0.0] * int(np.sum(~np.isfinite(f[1])))
        )
        truth = np.array([float(exact.value(*f, x)) for x in t])
        scale = 1e-12 * (1 + 1e2 * t**2)
        for value in both_forms(as_jax(f), jnp.asarray(t)):
            assert np.all(np.abs(value - truth) <= scale)


@settings(max_examples=30, deadline=None)
@given(functions(), functions(degree=1), st.integers(-3, 3))
def test_sum_and_scaling_are_exact(f, g, factor):
    total = as_jax(f) + as_jax(g) * factor
    t = 1.625
    assert float(total(t)) == float(exact.value(*f, t) + factor * exact.value(*g, t))


@settings(max_examples=40, deadline=None)
@given(functions(), functions(degree=1, size=4))
def test_product(f, g):
    with jax.enable_x64(True):
        h = jax.jit(piecewise.multiply)(as_jax(f), as_jax(g))
        t = jnp.asarray(GRID) + 1 / 64  # off the knots: the two sides may differ there
        truth = np.array([float(exact.value(*f, x) * exact.value(*g, x)) for x in t])
        np.testing.assert_allclose(h(t), truth, rtol=1e-11, atol=1e-9)


@pytest.mark.parametrize("f", ACTIVATIONS)
@settings(max_examples=25, deadline=None)
@given(intercept=EIGHTHS, slope=EIGHTHS)
def test_activation_of_an_affine_function(f, intercept, slope):
    with jax.enable_x64(True):
        composed = piecewise.compose_affine(f, jnp.asarray(intercept), jnp.asarray(slope))
        assert composed.knots.shape == (len(f.kinks),)
        t = jnp.asarray(GRID)
        np.testing.assert_allclose(composed(t), f(intercept + slope * t), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("f", ACTIVATIONS)
def test_activation_of_a_piecewise_linear_function(f):
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        compose = jax.jit(piecewise.compose, static_argnums=0)
        for _ in range(30):
            bends = rng.integers(-3, 4, 4).astype(float)
            inner = PiecewisePolynomial(
                jnp.asarray(rng.integers(-3, 4, 2).astype(float)),
                jnp.asarray([*rng.integers(-4, 5, 3).astype(float), jnp.inf]),
                jnp.asarray(np.stack([np.zeros(4), np.append(bends[:3], 0)])),
            )
            outer = compose(f, inner)
            assert outer.knots.shape == (4 + 5 * len(f.kinks),)
            t = jnp.asarray(GRID)
            np.testing.assert_allclose(outer(t), f(inner(t)), rtol=1e-11, atol=1e-9)
            # Composed once more: knots multiply, the function stays exact.
            twice = compose(activations.ABS, outer)
            np.testing.assert_allclose(twice(t), jnp.abs(f(inner(t))), rtol=1e-11, atol=1e-9)


def test_composition_asks_for_a_piecewise_linear_function():
    with pytest.raises(ValueError, match="degree 2"):
        piecewise.compose(activations.RELU, polynomial(jnp.ones(3)))
    with pytest.raises(ValueError, match="at least the function's own, 2, got 1"):
        piecewise.raise_degree(polynomial(jnp.ones(3)), 1)


def test_paper_coefficients():
    """Eq. 27: |t - 1| is 1 - t, then t - 1."""
    f = piecewise.compose_affine(activations.ABS, jnp.array(-1.0), jnp.array(1.0))
    pieces = piecewise.segments(f)
    np.testing.assert_array_equal(pieces.monomials(), [[1, -1], [-1, 1]])
    np.testing.assert_array_equal(pieces.knots, [1])


def test_pytree_transforms():
    """Functions batch under vmap and travel through scan."""
    f = jax.vmap(lambda a, b: piecewise.compose_affine(activations.HARD_TANH, a, b))(
        jnp.arange(3.0), jnp.ones(3)
    )
    chex.assert_shape(f.knots, (3, 2))
    last, values = jax.lax.scan(lambda c, g: (c + g(0.0), g(0.5)), 0.0, f)
    np.testing.assert_allclose(values, [0.5, 1, 1])
    assert float(last) == 2


def test_huge_and_tiny_scales_stay_finite():
    for scale in (1e-30, 1e30):
        f = piecewise.compose_affine(
            activations.LEAKY_HARD_TANH, jnp.asarray(0.3), jnp.asarray(scale, jnp.float32)
        )
        assert np.isfinite(float(f(jnp.asarray(1.0))))
        assert np.isfinite(np.asarray(piecewise.segments(f).coefficients)).all()


def test_rational_reference_knows_a_parabola():
    """The reference itself, on t^2 - 2t with a kink of slope 4 at 0."""
    f = (np.array([0.0, -2.0, 1.0]), np.array([-1.0]), np.array([[0.0], [4.0], [0.0]]))
    assert exact.least(*f) == Fraction(-1)
    assert exact.value(*f, -2) == Fraction(8) + 4
