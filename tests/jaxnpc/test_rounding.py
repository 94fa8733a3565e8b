"""Every enclosure against exact rational arithmetic."""

import math
import operator
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnpc import rounding

finite = st.floats(allow_nan=False, allow_infinity=False)
usual = st.floats(-1e3, 1e3)
numbers = finite | usual | st.sampled_from([0.0, -0.0, 5e-324, 2.0**-1022, 1e308, 1.0, 0.1])


@st.composite
def intervals(draw):
    """An interval and a rational inside it: a point, a neighbour's gap or anything wider."""
    a = draw(numbers)
    b = draw(st.sampled_from([a, math.nextafter(a, math.inf)]) | numbers)
    low, high = sorted([a, b])
    if not math.isfinite(high):
        high = low
    weight = draw(st.fractions(0, 1, max_denominator=7))
    inside = Fraction(low) + weight * (Fraction(high) - Fraction(low))
    if low == high:
        return rounding.exact(low), Fraction(low)
    return rounding.Interval(np.float64(low), np.float64(high)), inside


def encloses(interval, value):
    """Whether bounds, possibly infinite, hold a rational."""
    low, high = float(interval.lower), float(interval.upper)
    return (low == -math.inf or (low != math.inf and Fraction(low) <= value)) and (
        high == math.inf or (high != -math.inf and value <= Fraction(high))
    )


@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv"])
@given(x=intervals(), y=intervals())
def test_arithmetic_encloses_the_rational_result(name, x, y):
    op = getattr(operator, name)
    (interval_x, value_x), (interval_y, value_y) = x, y
    if name == "truediv" and value_y == 0:
        return
    assert encloses(op(interval_x, interval_y), op(value_x, value_y))


@given(x=intervals(), y=intervals())
def test_the_rest_encloses_the_rational_result(x, y):
    (interval_x, value_x), (interval_y, value_y) = x, y
    assert encloses(-interval_x, -value_x)
    assert encloses(abs(interval_x), abs(value_x))
    assert encloses(rounding.square(interval_x), value_x**2)
    assert encloses(rounding.maximum(interval_x, interval_y), max(value_x, value_y))
    assert encloses(rounding.minimum(interval_x, interval_y), min(value_x, value_y))
    root = rounding.sqrt(interval_x)
    assert root.lower >= 0
    if value_x >= 0:
        assert Fraction(float(root.lower)) ** 2 <= value_x
        assert root.upper == math.inf or value_x <= Fraction(float(root.upper)) ** 2


@given(st.lists(st.tuples(numbers, numbers), max_size=9))
def test_sums_and_norms_enclose_the_rational_result(pairs):
    x, y = np.array(pairs, np.float64).reshape(-1, 2).T
    exact_x, exact_y = [list(map(Fraction, v.tolist())) for v in (x, y)]
    difference = [a - b for a, b in zip(exact_x, exact_y, strict=True)]
    gap = rounding.exact(x) - y
    assert encloses(rounding.total(x), sum(exact_x))
    products = [a * b for a, b in zip(exact_x, exact_y, strict=True)]
    assert encloses(rounding.dot(x, y), sum(products))
    assert encloses(rounding.norm(gap, 1), sum(map(abs, difference)))
    assert encloses(rounding.norm(gap, np.inf), max(map(abs, difference), default=Fraction(0)))
    root = rounding.norm(gap, 2)
    squared = sum(v * v for v in difference)
    assert Fraction(float(root.lower)) ** 2 <= squared
    assert root.upper == math.inf or squared <= Fraction(float(root.upper)) ** 2


def test_every_step_outwards_passes_a_neighbour_and_at_most_two():
    """Whatever the size: near 2^-1021 half a unit of rounding is the least positive number."""
    powers = 2.0 ** np.arange(-1022, 1023)
    x = np.concatenate([powers, np.nextafter(powers, 0), np.nextafter(powers, np.inf)])
    x = np.concatenate([x, -x])[np.abs(np.tile(x, 2)) >= 2.0**-1022]
    for step, to in ((rounding.up, np.inf), (rounding.down, -np.inf)):
        near = np.nextafter(x, to)
        taken = np.abs(step(x, tiny=0.0) - x)
        assert np.all(taken >= np.abs(near - x))
        assert np.all(taken <= np.abs(np.nextafter(near, to) - x))


def test_width_is_a_few_units_of_rounding():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 20, 784))
    sums = rounding.total(x)
    depth = math.ceil(math.log2(784))
    assert np.all(sums.upper - sums.lower <= 2 * depth * 2.0**-52 * np.abs(x).sum(axis=-1))
    root = rounding.norm(rounding.exact(x) - y, 2)
    assert np.all(root.upper / root.lower - 1 <= 2 * depth * 2.0**-52)


def test_exact_results_stay_exact_where_nothing_can_round():
    shared = rounding.exact([0.1, 0.2]) - [0.1, 0.2]
    assert shared.contains(0.0)
    assert np.all(shared.lower == 0)
    assert np.all(shared.upper == 0)


def test_bounds_are_never_nan_and_nothing_warns():
    x = rounding.exact([np.inf, -np.inf, 1e308, np.nan, 0.0])
    with np.errstate(all="raise", under="ignore"):
        results = [x + x, x - x, x * 0.0, x * x, x / x, 0.0 / x, rounding.square(x)]
        results += [rounding.total(x), rounding.norm(x[:3], 2)]
    for result in results:
        assert np.all(result.lower <= result.upper)


def test_infinite_bounds_stand_for_large_numbers():
    wide = rounding.Interval(np.float64(-1.0), np.float64(np.inf))
    assert (wide * 0.0).contains(0.0)
    assert (wide * 2.0).upper == np.inf
    assert (1.0 / rounding.Interval(np.float64(0.0), np.float64(2.0))).upper == np.inf


def test_left_operands_may_be_arrays():
    x = np.array([1.0, 2.0])
    third = rounding.exact([3.0, 3.0])
    for result in (x / third, x + third, x - third, x * third):
        assert isinstance(result, rounding.Interval)
    assert (x - third).contains([-2.0, -1.0])


def test_unknown_norm_is_named():
    with pytest.raises(ValueError, match="q is 3"):
        rounding.norm([1.0], 3)
