import exact
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from test_piecewise import EIGHTHS, as_jax, functions

from jaxmpd import activations, piecewise, primitives
from jaxmpd.buckets import minimize_convex_pieces
from jaxmpd.minimum import minimize
from jaxmpd.piecewise import PiecewisePolynomial, polynomial

least_of = jax.jit(minimize)


@settings(max_examples=150, deadline=None)
@given(functions(size=6))
def test_minimum_agrees_with_rational_arithmetic(f):
    """Also of functions that jump, have concave pieces or fall without bound."""
    with jax.enable_x64(True):
        found = least_of(as_jax(f))
        truth = exact.least(*f)
        if truth == -np.inf:
            assert not found.attained
            assert np.isinf(found.argmin)
            assert found.value == -np.inf
            return
        assert found.attained
        scale = max(1.0, abs(float(truth)))
        assert abs(float(found.value) - float(truth)) <= 1e-9 * scale
        assert float(found.gain) == pytest.approx(float(f[0][0]) - float(truth), abs=1e-9 * scale)


@settings(max_examples=30, deadline=None)
@given(functions(degree=1, size=6))
def test_minimum_of_piecewise_linear_functions(f):
    with jax.enable_x64(True):
        found, truth = least_of(as_jax(f)), exact.least(*f)
        assert float(found.value) == pytest.approx(float(truth), abs=1e-9)


@pytest.mark.parametrize("degree", [3, 4, 5])
def test_higher_degrees_against_a_grid_and_polished_points(degree):
    rng = np.random.default_rng(degree)
    with jax.enable_x64(True):
        for _ in range(15):
            jumps = rng.normal(size=(degree + 1, 5))
            jumps[0] = 0
            jumps[-1] = 0  # one leading coefficient: bounded below iff it is even and positive
            base = np.append(rng.normal(size=degree), 1.0)
            f = as_jax((base, np.sort(rng.normal(size=5)), jumps))
            found = least_of(f)
            if degree % 2:
                assert not found.attained
                continue
            t = jnp.linspace(-30, 30, 60001)
            values = f(t)
            near = t[jnp.argmin(values)] + jnp.linspace(-2e-3, 2e-3, 4001)
            truth = float(jnp.min(f(near)))
            assert float(found.value) <= truth + 1e-12
            assert float(found.value) == pytest.approx(float(f(found.argmin)), abs=1e-10)
            assert float(found.value) == pytest.approx(truth, abs=1e-6)


def test_flat_functions_and_no_knots():
    assert float(minimize(polynomial(jnp.array([3.0]))).value) == 3
    assert float(minimize(polynomial(jnp.array([3.0, 0.0]))).gain) == 0
    parabola = minimize(polynomial(jnp.array([1.0, -4.0, 2.0])))
    assert (float(parabola.argmin), float(parabola.value)) == (1, -1)
    assert not minimize(polynomial(jnp.array([1.0, -4.0]))).attained


def squared_line(rng, samples, kind, dtype):
    """The squared error along a line through a unit: the functions that descent meets."""
    z, u, g = (rng.normal(size=samples) for _ in range(3))
    if kind == "bias":
        u = np.ones(samples)
    elif kind == "zeros":
        u[rng.random(samples) < 0.5] = 0
    elif kind == "grid":
        z, u = rng.integers(-2, 3, samples) * 1.0, rng.choice([-1.0, 0, 1], samples)
    elif kind == "coinciding":
        z, u = np.full(samples, 0.25), np.ones(samples)
    elif kind == "still":
        u = np.zeros(samples)
    elif kind == "far":
        z = z * 1e3
    elif kind == "tiny":
        z, u = z * 1e-4, u * 1e-6
    elif kind == "outliers":
        u[:3] = 1e-7
    return tuple(jnp.asarray(a, dtype) for a in (z, u, g, np.full(samples, 0.7)))


KINDS = ["plain", "bias", "zeros", "grid", "coinciding", "still", "far", "tiny", "outliers"]


@pytest.mark.parametrize("f", [activations.LEAKY_HARD_TANH, activations.RELU, activations.ABS])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_search_without_sorting_agrees_with_the_sort(f, dtype):
    from jaxmpd.expansion import expand_unit

    rng = np.random.default_rng(5)
    with jax.enable_x64(dtype == "float64"):
        pair = jax.jit(
            lambda *a: (minimize_convex_pieces(expand_unit(*a, f)), minimize(expand_unit(*a, f)))
        )
        for kind in KINDS * 3:
            line = squared_line(rng, 400, kind, dtype)
            bucket, sort = pair(*line)
            z, u, g, e = (np.asarray(a, np.float64) for a in line)

            def change(t, z=z, u=u, g=g, e=e):
                d = np.asarray(f(z + t * u)) - np.asarray(f(z))
                return np.sum(e * d * d + 2 * g * d)

            with jax.enable_x64(True):
                values = change(float(bucket.argmin)), change(float(sort.argmin))
            tolerance = 1e-5 if dtype == "float32" else 1e-11
            assert values[0] <= values[1] + tolerance * max(1e-3, -values[1]), kind
            assert bool(bucket.attained)


def test_search_without_sorting_wants_a_quadratic():
    with pytest.raises(ValueError, match="degree 2, got 1"):
        minimize_convex_pieces(polynomial(jnp.ones(2)))


def test_search_falls_back_where_too_many_knots_survive():
    """Knots in one place all survive: the sort must take over, with the same answer."""
    rng = np.random.default_rng(0)
    bends = rng.normal(size=600)
    f = PiecewisePolynomial(
        jnp.array([0.0, -1.0, 1.0]),
        jnp.asarray(0.45 + 1e-6 * rng.random(600), jnp.float32),
        jnp.asarray(np.stack([np.zeros(600), bends - bends.mean(), np.zeros(600)]), jnp.float32),
    )
    bucket, sort = jax.jit(minimize_convex_pieces)(f), least_of(f)
    assert float(bucket.gain) == float(sort.gain) > 0.2


@given(EIGHTHS)
@settings(max_examples=10, deadline=None)
def test_the_gain_does_not_depend_on_the_height(height):
    f = piecewise.compose_affine(activations.ABS, jnp.array(2.0), jnp.array(1.0))
    high = f + polynomial(jnp.array([float(height) * 1e6, 0.0]))
    assert float(minimize(high).gain) == float(minimize(f).gain) == 2


def test_a_huge_sum_far_away_does_not_blur_what_is_near():
    """Prefix sums by blocks: a term of 1e20 must not take the digits of those before it."""
    terms = jnp.ones((1, 100)).at[0, 60].set(1e20)
    np.testing.assert_array_equal(primitives.cumsum(terms)[0, :60], np.arange(1, 61))


def semidefinite(name):
    a = np.random.default_rng(0).normal(size=(12, 12))
    return {
        "regular": a @ a.T,
        "rank one": 1e6 * np.outer(a[0], a[0]),
        "tiny": 1e-25 * (a[:2].T @ a[:2]),
        "zero": np.zeros((12, 12)),
        # As rounding leaves it: an eigenvalue a little below 0, and one that is not so little.
        "indefinite": a[:5].T @ a[:5] - 1e-4 * np.eye(12),
        "far off": a[:5].T @ a[:5] - np.eye(12),
    }[name]


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("name", ["regular", "rank one", "tiny", "zero", "indefinite", "far off"])
def test_what_cholesky_factors_is_the_matrix_and_the_least_ridge_that_does(name, x64):
    with jax.enable_x64(x64):
        matrix = jnp.asarray(semidefinite(name))
        factor = jax.jit(primitives.cholesky)(matrix)
        assert bool(jnp.all(jnp.isfinite(factor)))
        np.testing.assert_array_equal(factor, jnp.tril(factor))
        size = float(jnp.trace(matrix)) / 12 or 1.0
        size = size if size > 0 else 1.0
        added = np.asarray(factor, float) @ np.asarray(factor, float).T - np.asarray(matrix, float)
        share = np.trace(added) / 12 / size
        np.testing.assert_allclose(added, share * size * np.eye(12), atol=3e-6 * size)
        ladder = 1e-7 * 10.0 ** np.arange(9)
        step = int(np.argmin(np.abs(ladder - share)))
        if step > 1:  # lower down, the rounding of the sum hides which it was
            assert share == pytest.approx(ladder[step], rel=1e-2)
            lower = matrix + ladder[step - 1] * size * jnp.eye(12)
            assert not bool(jnp.all(jnp.isfinite(jnp.linalg.cholesky(lower))))
        assert (step > 1) == (name in ("indefinite", "far off"))


def test_cholesky_gives_up_on_what_is_no_number():
    matrix = jnp.eye(12).at[3, 3].set(jnp.nan)
    assert bool(jnp.all(jnp.isnan(jnp.diag(jax.jit(primitives.cholesky)(matrix))[3:])))


@pytest.mark.parametrize("alpha", [1e-2, 1e-3, 1e-4, 0.0])
def test_a_squared_error_always_has_a_minimum(alpha):
    """The curvature of the outermost pieces, alpha squared of its parts, drowns in rounding."""
    from jaxmpd.expansion import expand_unit

    f = activations.leaky_hard_tanh(alpha)
    pair = jax.jit(
        lambda *a: (minimize_convex_pieces(expand_unit(*a, f)), minimize(expand_unit(*a, f)))
    )
    rng = np.random.default_rng(3)
    for _ in range(12):
        bucket, sort = pair(*squared_line(rng, 300, "plain", "float32"))
        assert bool(sort.attained)
        assert float(sort.gain) == pytest.approx(float(bucket.gain), rel=1e-2)
