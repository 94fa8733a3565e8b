"""Bounds by weak duality, in exact rational arithmetic."""

import math
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxnpc.exact.halfspace import multiplier, prove
from tests.jaxnpc.planar import least_norm

NORMS = (1, 2, math.inf)


def exact_norm(v, c, low, high, q):
    """The least norm in the plane (squared for q = 2), None where there is no point."""
    one, zero = Fraction(1), Fraction(0)
    v, c, low, high = (
        [Fraction(x) for x in v],
        Fraction(c),
        *[list(map(Fraction, x)) for x in (low, high)],
    )
    walls = [
        (one, zero, low[0]),
        (-one, zero, -high[0]),
        (zero, one, low[1]),
        (zero, -one, -high[1]),
    ]
    return least_norm([(v[0], v[1], c)], walls, q)


numbers = st.one_of(st.integers(-8, 8).map(float), st.floats(-8, 8, width=32))
rooms = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 4, width=32))
items = st.lists(
    st.tuples(numbers, numbers, st.floats(0.015625, 8, width=32), rooms, rooms, rooms, rooms),
    min_size=8,
    max_size=8,
)


@pytest.mark.parametrize("q", NORMS)
@settings(max_examples=25, deadline=None)
@given(items=items, factor=st.sampled_from([1.0, 1 + 1e-6, 0.5, 3.0, 0.01]))
def test_never_above_the_truth_whatever_the_multiplier_and_close_at_the_right_one(q, items, factor):
    table = np.array(items)
    v, c, low, high = table[:, :2], table[:, 2], -table[:, 3:5], table[:, 5:7]
    room = np.where(v > 0, high, -low)
    t = np.asarray(multiplier(*(jnp.asarray(x, jnp.float32) for x in (v, c, room)), q), float)
    bound = prove(v, np.zeros_like(v), c, low, high, t * factor, q)
    for n in range(len(c)):
        truth = exact_norm(v[n], c[n], low[n], high[n], q)
        if truth is None:
            assert bound[n] >= 0
            continue
        assert math.isfinite(bound[n])
        lower = Fraction(bound[n])
        assert (lower * lower if q == 2 else lower) <= truth
        if factor == 1.0:
            radius = math.sqrt(truth) if q == 2 else float(truth)
            # Where v is tiny, or just reaches, float32 cannot choose the multiplier well.
            sane = np.abs(v[n]).max() > 1e-3 and (np.abs(v[n]) * room[n]).sum() > 1.001 * c[n]
            assert not sane or bound[n] >= radius * (1 - 1e-4)


@pytest.mark.parametrize("q", NORMS)
def test_an_error_of_the_normal_is_paid_for(q):
    rng = np.random.default_rng(0)
    v, c = rng.integers(-4, 5, size=(50, 2)).astype(float), rng.uniform(0.5, 4, size=50)
    low, high = -rng.uniform(0, 2, size=(50, 2)), rng.uniform(0, 2, size=(50, 2))
    error = np.full_like(v, 1e-3)
    for sign in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
        moved = v + error * sign
        room = np.where(moved > 0, high, -low)
        t = np.asarray(multiplier(jnp.asarray(moved), jnp.asarray(c), jnp.asarray(room), q), float)
        bound = prove(v, error, c, low, high, t, q)
        for n in range(50):
            truth = exact_norm(moved[n], c[n], low[n], high[n], q)
            if truth is not None:
                lower = Fraction(bound[n])
                assert (lower * lower if q == 2 else lower) <= truth


@pytest.mark.parametrize("q", NORMS)
def test_infinite_exactly_where_the_box_is_too_small(q):
    v, c = np.array([[1.0, 2.0], [1.0, 2.0]]), np.array([2.9, 3.1])
    low, high = np.zeros((2, 2)), np.ones((2, 2))
    t = np.asarray(multiplier(jnp.asarray(v), jnp.asarray(c), jnp.asarray(high), q), float)
    bound = prove(v, np.zeros_like(v), c, low, high, t, q)
    assert math.isfinite(bound[0])
    assert bound[1] == math.inf


@pytest.mark.parametrize(("q", "radius"), [(1, 1.5), (2, 3 / math.sqrt(5)), (math.inf, 1.0)])
def test_without_walls(q, radius):
    v, c, room = np.array([[1.0, -2.0]]), np.array([3.0]), np.full((1, 2), np.inf)
    t = np.asarray(multiplier(jnp.asarray(v), jnp.asarray(c), jnp.asarray(room), q), float)
    bound = prove(v, np.zeros_like(v), c, -room, room, t, q)
    assert radius * (1 - 1e-12) <= bound[0] <= radius


def test_nan_proves_nothing():
    v, c, t = np.array([[np.nan, 1.0], [1.0, 1.0]]), np.array([1.0, np.nan]), np.ones(2)
    for q in NORMS:
        bound = prove(v, np.zeros_like(v), c, -np.ones((2, 2)), np.ones((2, 2)), t, q)
        np.testing.assert_array_equal(bound, 0)
