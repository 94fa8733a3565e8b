"""The global minimum of a piecewise polynomial (Algorithm 6)."""

from collections.abc import Callable
from math import comb
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxmpd.piecewise import PiecewisePolynomial, Segments, horner, segments, sort_knots

ROUNDINGS = 8
"""How many roundings of its largest partial sum a sum of many terms is trusted to stay within."""


class Minimum(NamedTuple):
    """Where a function is least.

    Attributes:
        argmin: the minimiser; of several, one of them. Infinite where the infimum is not attained.
        value: the least value, minus infinity where the function falls without bound.
        gain: the value at the origin minus the least value. It is summed up on its own, so that it
            keeps its digits where it is tiny beside the value.
        attained: whether there is a minimiser.
    """

    argmin: Float[Array, ""]
    value: Float[Array, ""]
    gain: Float[Array, ""]
    attained: Bool[Array, ""]


def minimize(
    f: PiecewisePolynomial,
    sort: Callable[[PiecewisePolynomial], PiecewisePolynomial] = sort_knots,
) -> Minimum:
    """The global minimum of a piecewise polynomial of any degree, in O(N log N) (Algorithm 6).

    Every piece's ends and stationary points are compared. A function that falls without bound in
    the outermost pieces has no minimiser; it counts as bounded where rounding leaves that open. At
    a jump of a function that is not continuous the lower of the two sides counts. Of minima that
    rounding cannot tell apart the nearer one is taken: far out, on the plateau of a saturated unit,
    noise would pass for a gain.

    Args:
        f: the function; its origin is the current value of whatever t moves.
        sort: brings the knots into ascending order.

    Returns:
        The minimum.

    Example:
        >>> from jaxmpd import activations, piecewise
        >>> bend = piecewise.compose_affine(activations.ABS, jnp.array(1.0), jnp.array(-2.0))
        >>> tilted = bend + piecewise.polynomial(jnp.array([0.0, 1.0]))    # |1 - 2t| + t
        >>> minimum = minimize(tilted)
        >>> float(minimum.argmin), float(minimum.value), float(minimum.gain)
        (0.5, 0.5, 0.5)
    """
    if f.degree == 0:
        f = PiecewisePolynomial(
            jnp.pad(f.base, (0, 1)), f.knots, jnp.pad(f.jumps, ((0, 1), (0, 0)))
        )
    origin = f.base[0]
    pieces = segments(PiecewisePolynomial(f.base.at[0].set(0), f.knots, f.jumps), sort)
    x, values = _candidates(pieces)
    best = jnp.argmin(values + rounding(f, x))
    argmin = x.reshape(-1)[best]
    gain = -values.reshape(-1)[best]
    # The origin itself is a candidate whose value is exact.
    argmin, gain = jnp.where(gain > 0, argmin, 0), jnp.maximum(gain, 0)
    left, right = _falls_without_bound(f)
    inf = jnp.asarray(jnp.inf, argmin.dtype)
    argmin = jnp.where(right, inf, jnp.where(left, -inf, argmin))
    gain = jnp.where(left | right, inf, gain)
    return Minimum(argmin, origin - gain, gain, ~(left | right))


def rounding(f: PiecewisePolynomial, t: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    r"""What rounding can do to the change of f between the origin and t.

    $$\tfrac12 \varepsilon \sum_{q \ge 1} |t|^q \left( |b_q| + \sum_k |c_{qk}| \right)$$

    No jump on the way contributes more than its coefficients times powers of |t|; which jumps lie
    on the way is not looked up, as near the origin the powers make all of them small. An estimate,
    as the roundings of many terms largely cancel; a bound would rule out true minima far away.
    """
    jumps = jnp.where(jnp.isfinite(f.knots), jnp.abs(f.jumps), 0)
    size = (jnp.abs(f.base) + jnp.sum(jumps, axis=1)).at[0].set(0)
    return jnp.finfo(f.base.dtype).eps / 2 * horner(size, jnp.abs(t))


def _candidates(f: Segments) -> tuple[Float[Array, "C N+1"], Float[Array, "C N+1"]]:
    """The ends and stationary points of every piece and the values there, `inf` for none."""
    edge = jnp.full(1, jnp.inf, f.knots.dtype)
    lo, hi = jnp.concatenate([-edge, f.knots]), jnp.concatenate([f.knots, edge])
    anchors = jnp.where(jnp.isfinite(f.anchors), f.anchors, 0)
    lo, hi = lo - anchors, hi - anchors
    degrees = jnp.arange(1, f.coefficients.shape[0], dtype=f.knots.dtype)
    slope = f.coefficients[1:] * degrees[:, None]
    if slope.shape[0] == 1:
        stationary = jnp.zeros((0, lo.shape[0]), lo.dtype)
    elif slope.shape[0] == 2:
        stationary = _root_of_affine(slope, lo, hi)[None]
    else:
        bound = _root_bound(slope)
        stationary = _roots(slope, jnp.maximum(lo, -bound), jnp.minimum(hi, bound))
    x = jnp.concatenate([lo[None], hi[None], stationary])
    # An empty piece, between coinciding knots, is none.
    inside = (x >= lo) & (x <= hi) & (lo < hi) & jnp.isfinite(x)
    x = jnp.where(inside, x, 0)
    values = horner(f.coefficients, x)
    return x + anchors, jnp.where(inside & ~jnp.isnan(values), values, jnp.inf)


def _root_of_affine(
    c: Float[Array, "2 M"], lo: Float[Array, " M"], hi: Float[Array, " M"]
) -> Float[Array, " M"]:
    """The root of c0 + c1 x, moved into [lo, hi]; lo where c1 = 0."""
    return jnp.where(c[1] != 0, jnp.clip(-c[0] / jnp.where(c[1] != 0, c[1], 1), lo, hi), lo)


def _roots(
    c: Float[Array, "n+1 M"], lo: Float[Array, " M"], hi: Float[Array, " M"]
) -> Float[Array, "n M"]:
    """All real roots in [lo, hi] of polynomials of degree n, bracketed by those of the derivative.

    Between two roots of its derivative a polynomial is monotone: bisection finds the root there, if
    any, to the bracket's length times the square of the machine precision. Where there is none an
    end of the bracket stands in.
    """
    degree = c.shape[0] - 1
    if degree == 1:
        return _root_of_affine(c, lo, hi)[None]
    inner = _roots(c[1:] * jnp.arange(1, degree + 1, dtype=c.dtype)[:, None], lo, hi)
    ends = jnp.concatenate([lo[None], inner, hi[None]])
    a, b = ends[:-1], ends[1:]
    at = lambda x: horner(c[:, None], x)  # noqa: E731
    rising = at(b) > at(a)

    def halve(_: int, ab: tuple[Array, Array]) -> tuple[Array, Array]:
        a, b = ab
        middle = a + (b - a) / 2
        above = (at(middle) > 0) == rising
        return jnp.where(above, a, middle), jnp.where(above, middle, b)

    steps = 2 * jnp.finfo(c.dtype).nmant
    return jax.lax.fori_loop(0, steps, halve, (a, b))[0]


def _root_bound(c: Float[Array, "n+1 M"]) -> Float[Array, " M"]:
    """Fujiwara's bound on the absolute value of every root, by the highest coefficient not 0."""
    degree = c.shape[0] - 1
    bound = jnp.ones_like(c[0])
    for n in range(1, degree + 1):
        lead = jnp.where(c[n] != 0, jnp.abs(c[n]), 1)
        terms = jnp.stack([(jnp.abs(c[n - i]) / lead) ** (1 / i) for i in range(1, n + 1)])
        bound = jnp.where(c[n] != 0, 2 * jnp.max(terms, axis=0), bound)
    return jnp.minimum(bound, jnp.sqrt(jnp.finfo(c.dtype).max))


def _falls_without_bound(f: PiecewisePolynomial) -> tuple[Bool[Array, ""], Bool[Array, ""]]:
    """Whether f tends to minus infinity on the left, and on the right.

    In powers of t the coefficients of the outermost pieces are plain sums over the knots on their
    side. The highest that is not exactly 0 decides; below the rounding of its sum it decides
    nothing, and the function counts as bounded: a saturated unit leaves such sums.
    """
    finite = jnp.isfinite(f.knots)
    knots, jumps = jnp.where(finite, f.knots, 0), jnp.where(finite, f.jumps, 0)
    degree = f.degree

    def towards(side: float) -> Bool[Array, ""]:
        met = knots > 0 if side > 0 else knots <= 0
        jump = jnp.where(met, jumps, 0) * side
        falls, settled = jnp.zeros((), bool), jnp.zeros((), bool)
        for q in range(degree, 0, -1):
            # The coefficient of t^q about the outermost knot differs from this one only by higher
            # ones, which are 0 where this one decides.
            terms = [f.base[q], *_powers(jump, knots, q)]
            value = sum(jnp.sum(t) for t in terms)
            size = sum(jnp.sum(jnp.abs(t)) for t in terms)
            certain = jnp.abs(value) > ROUNDINGS * jnp.finfo(knots.dtype).eps * size
            falls = jnp.where(~settled & certain, value * side**q < 0, falls)
            settled = settled | (value != 0)
        return falls

    return towards(-1.0), towards(1.0)


def _powers(
    jumps: Float[Array, "Q+1 N"], knots: Float[Array, " N"], q: int
) -> list[Float[Array, " N"]]:
    """The parts of each jump's coefficient of t^q, one a degree."""
    return [comb(p, q) * jumps[p] * (-knots) ** (p - q) for p in range(q, jumps.shape[0])]
