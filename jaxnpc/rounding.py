"""Rigorous bounds under rounding: interval arithmetic on NumPy float64 arrays.

A certificate speaks of exact arithmetic, and floating point rounds. Here every operation returns a
pair of float64 numbers between which the exact real result lies, whatever overflowed, underflowed
or cancelled on the way. Plain round-to-nearest is enough: the neighbour of a correctly rounded
result, on either side, bounds the exact one. Arrays that fit the cache are several times faster:
work through long ones in chunks.
"""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

Array = np.ndarray[Any, np.dtype[np.float64]]


# Between a half and one unit of rounding, and the least positive number: with them
# x - (STEP |x| + TINY) rounds to the predecessor of x or below (after Rump et al. 2009), at a
# fraction of the cost of np.nextafter. A half and a little would do but for x of some 2^-1021,
# where the product is rounded to a multiple of TINY: exactly half a unit then, a tie.
_STEP = 1.5 * 2.0**-53
_TINY = 2.0**-1074

# Overflow and 0 / 0 are expected: the bounds become infinite.
_quiet = functools.partial(np.errstate, over="ignore", invalid="ignore", divide="ignore")


def down(x: ArrayLike, tiny: float = _TINY) -> Array:
    """A float64 below each x, its neighbour or the next; -inf where x is infinite or NaN.

    Args:
        x: results of one correctly rounded operation.
        tiny: how far to step from results that are too small to round relatively. Sums and
            differences take 0: they are exact there.

    Returns:
        Lower bounds of the exact results.
    """
    x = np.asarray(x, np.float64)
    with _quiet():
        return np.fmax(x - (_STEP * np.abs(x) + tiny), -np.inf)


def up(x: ArrayLike, tiny: float = _TINY) -> Array:
    """A float64 above each x; +inf where x is infinite or NaN. Arguments as for `down`."""
    x = np.asarray(x, np.float64)
    with _quiet():
        return np.fmin(x + (_STEP * np.abs(x) + tiny), np.inf)


@dataclass(frozen=True, eq=False)
class Interval:
    r"""Arrays of real numbers of which only bounds are known: lower <= value <= upper.

    The operators +, -, *, / and the functions below broadcast like NumPy's. The mathematics of each
    is the exact real operation, for every value inside the operands; the result encloses it:

    $$\{x \circ y : x \in X,\ y \in Y\} \subseteq X \circ Y$$

    Attributes:
        lower: lower bounds, float64.
        upper: upper bounds, of the same shape.

    Example:
        >>> third = exact(1.0) / 3.0
        >>> bool(third.lower < third.upper), float(third.upper - third.lower) < 2e-16
        (True, True)
        >>> total(exact([0.1, 0.2, -0.3])).contains(0.1 + 0.2 - 0.3)
        True
    """

    lower: Array
    upper: Array
    __array_ufunc__ = None  # array + interval is the interval's business

    def __add__(self, other: "Interval | ArrayLike") -> "Interval":
        other = exact(other)
        with _quiet():
            return _outward(self.lower + other.lower, self.upper + other.upper, tiny=0.0)

    def __sub__(self, other: "Interval | ArrayLike") -> "Interval":
        return self + -exact(other)

    def __mul__(self, other: "Interval | ArrayLike") -> "Interval":
        other = exact(other)
        with _quiet():
            if self.is_exact and other.is_exact:
                product = _zero_times_infinity(self.lower * other.lower)
                return _outward(product, product)
            corners = [
                _zero_times_infinity(x * y)
                for x in (self.lower, self.upper)
                for y in (other.lower, other.upper)
            ]
            return _outward(np.minimum.reduce(corners), np.maximum.reduce(corners))

    def __truediv__(self, other: "Interval | ArrayLike") -> "Interval":
        other = exact(other)
        flip = other.upper <= 0
        low, high = np.where(flip, -self.upper, self.lower), np.where(flip, -self.lower, self.upper)
        least = np.where(flip, -other.upper, other.lower) + 0.0  # -0 + 0 is 0
        most = np.where(flip, -other.lower, other.upper) + 0.0
        with _quiet():
            quotient = _outward(
                low / np.where(low >= 0, most, least), high / np.where(high >= 0, least, most)
            )
        # A divisor of either sign bounds nothing; one that reaches 0 bounds one side.
        mixed = least < 0
        return Interval(
            np.where(mixed, -np.inf, quotient.lower), np.where(mixed, np.inf, quotient.upper)
        )

    def __neg__(self) -> "Interval":
        if self.is_exact:
            return exact(-self.lower)
        return Interval(-self.upper, -self.lower)

    def __radd__(self, other: ArrayLike) -> "Interval":
        return self + other

    def __rsub__(self, other: ArrayLike) -> "Interval":
        return -self + other

    def __rmul__(self, other: ArrayLike) -> "Interval":
        return self * other

    def __rtruediv__(self, other: ArrayLike) -> "Interval":
        return exact(other) / self

    def __abs__(self) -> "Interval":
        if self.is_exact:
            return exact(np.abs(self.lower))
        return Interval(
            np.maximum(np.maximum(self.lower, -self.upper), 0.0),
            np.maximum(-self.lower, self.upper),
        )

    def __getitem__(self, index: Any) -> "Interval":
        if self.is_exact:
            return exact(self.lower[index])
        return Interval(self.lower[index], self.upper[index])

    @property
    def is_exact(self) -> bool:
        """Whether it was made by `exact`, so that both bounds are one array."""
        return self.lower is self.upper

    def contains(self, x: ArrayLike) -> bool:
        """Whether every x lies between its bounds."""
        return bool(np.all((self.lower <= np.asarray(x)) & (np.asarray(x) <= self.upper)))


def exact(x: Interval | ArrayLike) -> Interval:
    """Floating-point numbers (up to float64) as the real numbers they are; NaN is none."""
    if isinstance(x, Interval):
        return x
    x = np.asarray(x, np.float64)
    return Interval(x, x)


def total(x: Interval | ArrayLike) -> Interval:
    r"""The sum over the last axis, in a balanced tree.

    The width is at most about $2 \lceil\log_2 d\rceil$ units of rounding of $\sum_l |x_l|$.

    Args:
        x: (..., d) numbers or intervals.

    Returns:
        (...) intervals.
    """
    x = exact(x)
    width = x.lower.shape[-1]
    if width == 0:
        return exact(np.zeros(x.lower.shape[:-1]))
    while width > 1:
        half = width // 2
        paired = x[..., :half] + x[..., half : 2 * half]
        if width % 2:
            rest = x[..., 2 * half :]
            paired = Interval(
                np.concatenate([paired.lower, rest.lower], axis=-1),
                np.concatenate([paired.upper, rest.upper], axis=-1),
            )
        x, width = paired, half + width % 2
    return x[..., 0]


def running_totals(x: Array) -> Interval:
    r"""The sums of the first 0, 1, ..., d numbers of the last axis, nearly to the last bit.

    The rounding error of every addition is a floating-point number, found without error (Knuth's
    TwoSum); only the sum of those errors is estimated.

    Args:
        x: (..., d) float64 numbers.

    Returns:
        (..., d + 1) intervals.

    Example:
        >>> sums = running_totals(np.array([1.0, 1e100, -1e100]))
        >>> sums.contains([0.0, 1.0, 1e100, 1.0])
        True
    """
    x = np.asarray(x, np.float64)
    with _quiet():
        sums = np.cumsum(x, axis=-1)
        before = np.concatenate([np.zeros_like(x[..., :1]), sums[..., :-1]], axis=-1)
        added = sums - before
        errors = (before - (sums - added)) + (x - added)
        correction = np.cumsum(errors, axis=-1)
        slack = up(x.shape[-1] * 2.0**-52 * np.cumsum(np.abs(errors), axis=-1))
        totals = exact(sums) + _outward(correction - slack, correction + slack)
    zero = np.zeros_like(x[..., :1])
    return Interval(
        np.concatenate([zero, totals.lower], axis=-1), np.concatenate([zero, totals.upper], axis=-1)
    )


def dot(x: Interval | ArrayLike, y: Interval | ArrayLike) -> Interval:
    """The inner product over the last axis."""
    return total(exact(x) * y)


def square(x: Interval | ArrayLike) -> Interval:
    """The square: tighter than x * x where the interval straddles zero."""
    size = abs(exact(x))
    with _quiet():
        return maximum(_outward(size.lower * size.lower, size.upper * size.upper), 0.0)


def sqrt(x: Interval | ArrayLike) -> Interval:
    """The square root of the non-negative part."""
    x = maximum(x, 0.0)
    return maximum(_outward(np.sqrt(x.lower), np.sqrt(x.upper)), 0.0)


def maximum(x: Interval | ArrayLike, y: Interval | ArrayLike) -> Interval:
    """The larger of two numbers."""
    x, y = exact(x), exact(y)
    return Interval(np.maximum(x.lower, y.lower), np.maximum(x.upper, y.upper))


def minimum(x: Interval | ArrayLike, y: Interval | ArrayLike) -> Interval:
    """The smaller of two numbers."""
    x, y = exact(x), exact(y)
    return Interval(np.minimum(x.lower, y.lower), np.minimum(x.upper, y.upper))


def norm(x: Interval | ArrayLike, q: float) -> Interval:
    r"""The norm $|x|_q$ over the last axis.

    Args:
        x: (..., d) numbers or intervals.
        q: 1, 2 or infinity.

    Returns:
        (...) intervals; 0 where d is 0.

    Raises:
        ValueError: if q is none of these.

    Example:
        >>> norm(difference([[3.0, 4.0]], [[0.0, 0.0]]), 2).contains(5.0)
        True
    """
    x = exact(x)
    if q == 1:
        return total(abs(x))
    if q == 2:
        return sqrt(total(square(x)))
    if q == np.inf:
        size = abs(x)
        return Interval(
            np.max(size.lower, axis=-1, initial=0.0), np.max(size.upper, axis=-1, initial=0.0)
        )
    raise ValueError(f"q is {q!r}, but only the norms 1, 2 and float('inf') are defined here")


def difference(
    x: Float[np.ndarray, "*n d"] | ArrayLike, y: Float[np.ndarray, "*n d"] | ArrayLike
) -> Interval:
    """The exact difference of floating-point arrays, enclosed."""
    return exact(x) - y


def _outward(lower: Array, upper: Array, tiny: float = _TINY) -> Interval:
    return Interval(down(lower, tiny), up(upper, tiny))


def _zero_times_infinity(product: Array) -> Array:
    # An infinite bound stands for arbitrarily large finite values, and 0 times those is 0.
    return np.where(np.isnan(product), 0.0, product)
