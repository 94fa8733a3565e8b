"""Distances in tiles: against NumPy in float64, at every ragged shape, and within their bounds."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxnpc import distances

NORMS = (1, 2, math.inf)


def reference(x, w, p):
    gap = x[:, None].astype(np.float64) - w[None].astype(np.float64)
    return np.linalg.norm(gap, ord=p, axis=-1)


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 17), (130, 7, 40), (5, 515, 33), (2, 3, 16)])
def test_every_ragged_shape_matches_numpy(p, shape):
    n, k, d = shape
    rng = np.random.default_rng(n + k + d)
    x, w = (rng.normal(size=(m, d)).astype(np.float32) for m in (n, k))
    w[0] = x[0]
    found = np.asarray(distances.pairwise(x, w, p))
    assert found.shape == (n, k)
    assert found[0, 0] == 0
    np.testing.assert_allclose(found, reference(x, w, p), rtol=1e-5)


@pytest.mark.parametrize("p", NORMS)
def test_differences_do_not_cancel(p):
    x = np.full((1, 20), 1e4, np.float32)
    w = x + np.float32(2**-8)
    np.testing.assert_allclose(distances.pairwise(x, w, p), reference(x, w, p), rtol=1e-6)


@pytest.mark.parametrize("p", NORMS)
def test_nan_spreads_to_its_own_point_only(p):
    x = jnp.array([[1.0, jnp.nan], [1.0, 2.0]])
    found = np.asarray(distances.pairwise(x, jnp.zeros((3, 2)), p))
    assert np.isnan(found[0]).all()
    assert np.isfinite(found[1]).all()


@pytest.mark.parametrize("shape", [(0, 3, 2), (3, 0, 2), (3, 2, 0)])
def test_empty_sets(shape):
    n, k, d = shape
    found = distances.pairwise(jnp.zeros((n, d)), jnp.zeros((k, d)))
    assert found.shape == (n, k)
    assert not found.any()


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match=r"p must be 1, 2 or float\('inf'\), got 3"):
        distances.pairwise(jnp.zeros((1, 2)), jnp.zeros((1, 2)), 3)
    with pytest.raises(ValueError, match="x has 2 coordinates a point and w 3"):
        distances.pairwise(jnp.zeros((1, 2)), jnp.zeros((1, 3)))


def test_memory_is_bounded_by_result_and_copies():
    n, k, d = 256, 2048, 512
    x, w = jnp.zeros((n, d)), jnp.zeros((k, d))
    for p in NORMS:
        memory = distances.pairwise.lower(x, w, p).compile().memory_analysis()
        assert memory.temp_size_in_bytes < 4 * (4 * n * k + 3 * (n + k) * d)


def test_float64_is_kept():
    with jax.enable_x64(True):
        x = jnp.array([[1.0 + 2.0**-40]])
        assert float(distances.pairwise(x, jnp.ones((1, 1)))[0, 0]) == 2.0**-40


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1e-18, 1e-6, 1.0, 1e4]),
    st.sampled_from([0.0, 1.0, 1e3]),
    st.booleans(),
)
def test_bounds_for_choosing_hold(seed, scale, offset, close):
    rng = np.random.default_rng(seed)
    x = (scale * (offset + rng.normal(size=(6, 24)))).astype(np.float32)
    w = (scale * (offset + rng.normal(size=(9, 24)))).astype(np.float32)
    if close:
        w[:6] = x * (1 + 1e-6 * rng.normal(size=x.shape))
    # Float64 inputs reach the device rounded: the bound covers that too.
    wide = x + 1e-8 * np.abs(x) * rng.uniform(-1, 1, x.shape)
    for p in NORMS:
        moved = np.float32(1.0001 * np.linalg.norm(wide - x, ord=p, axis=1).max())
        d, error = (np.asarray(v, np.float64) for v in distances.choosing_distances(x, w, p, moved))
        true = reference_wide(wide, w, p)
        assert (np.abs(d - true) <= error).all()


def reference_wide(x, w, p):
    gap = x[:, None] - w[None].astype(np.float64)
    return np.linalg.norm(gap, ord=p, axis=-1) ** (2 if p == 2 else 1)


def test_the_cheap_form_is_wrong_where_its_bound_says_so():
    x = np.full((1, 64), 100.0, np.float32)
    w = x + np.float32(2**-10)
    cheap = float(distances.squared_l2(x, w)[0, 0])
    true = 64 * 2.0**-20
    assert abs(cheap - true) > 0.1 * true
    assert abs(cheap - true) <= float(distances.squared_l2_error(x, w)[0, 0])


def test_length_has_finite_gradients_at_zero():
    for p in NORMS:
        gradient = jax.grad(lambda x, p=p: distances.length(x, p))(jnp.zeros(3))
        assert np.isfinite(gradient).all()
    with pytest.raises(ValueError, match="got 0"):
        distances.length(jnp.zeros(3), 0)


@pytest.mark.parametrize("p", [np.array([2]), np.array(2), jnp.array(2), "2", None, 3])
def test_what_is_no_norm_is_named(p):
    with pytest.raises(ValueError, match="q must be 1, 2 or float"):
        distances.named_norm(p, "q")
