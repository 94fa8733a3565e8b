r"""Piecewise polynomials of one variable, in jump form.

$$h(t) = \sum_q b_q t^q + \sum_{0 < \tau_k \le t} J_k(t) - \sum_{t < \tau_k \le 0} J_k(t),
\qquad J_k(t) = \sum_q c_{qk} (t - \tau_k)^q .$$

The base polynomial holds around the origin, and every knot adds its jump to whatever lies beyond
it. The sum of two such functions is a concatenation, so the paper's Algorithm 5 costs nothing;
sorting happens once, when a minimum is sought. Jumps are polynomials about their own knots: a
continuous function has c_0k = 0 exactly, moving the origin moves the knots, and nothing cancels.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import comb

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxmpd.activations import PiecewiseLinear
from jaxmpd.primitives import argsort, cumsum


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PiecewisePolynomial:
    """A piecewise polynomial of degree Q with N knots, in any order; a pytree.

    Where the function is not continuous its value at a knot is that of the piece on the right.

    Attributes:
        base: the coefficients of the piece at the origin (just right of it), constant first.
        knots: N knots; `inf` pads (the jump there is never met, and must be 0).
        jumps: a column a knot: the coefficients, in powers of t - knot, of the piece on the
            right of the knot minus the piece on its left.
    """

    base: Float[Array, " Q+1"]
    knots: Float[Array, " N"]
    jumps: Float[Array, "Q+1 N"]

    @property
    def degree(self) -> int:
        """The degree Q that the coefficients have room for."""
        return self.base.shape[0] - 1

    def __call__(self, t: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The value at t, elementwise, in O(N) each."""
        t = jnp.asarray(t, self.base.dtype)
        x = jnp.where(jnp.isfinite(self.knots), t[..., None] - self.knots, 0)
        passed = jnp.where(self.knots > 0, self.knots <= t[..., None], 0)
        passed = passed - jnp.where(self.knots <= 0, self.knots > t[..., None], 0)
        return horner(self.base, t) + jnp.sum(passed * horner(self.jumps, x), axis=-1)

    def __add__(self, other: "PiecewisePolynomial") -> "PiecewisePolynomial":
        """The sum of two functions (Algorithm 5): a concatenation."""
        degree = max(self.degree, other.degree)
        f, g = raise_degree(self, degree), raise_degree(other, degree)
        return PiecewisePolynomial(
            f.base + g.base,
            jnp.concatenate([f.knots, g.knots]),
            jnp.concatenate([f.jumps, g.jumps], axis=1),
        )

    def __mul__(self, factor: Float[Array, ""] | float) -> "PiecewisePolynomial":
        """The function times a number."""
        return PiecewisePolynomial(self.base * factor, self.knots, self.jumps * factor)

    __rmul__ = __mul__


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Segments:
    """The pieces of a piecewise polynomial from left to right (eq. 27); a pytree.

    Attributes:
        knots: N knots in ascending order; piece r lies between knots r - 1 and r.
        anchors: the point about which each of the N + 1 pieces is expanded: its end next to the
            origin, the origin itself for the piece that holds it.
        coefficients: a column a piece, in powers of t - anchor, constant first.
    """

    knots: Float[Array, " N"]
    anchors: Float[Array, " N+1"]
    coefficients: Float[Array, "Q+1 N+1"]

    def __call__(self, t: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The value at t, elementwise, in O(log N) each."""
        t = jnp.asarray(t, self.anchors.dtype)
        piece = jnp.searchsorted(self.knots, t, side="right")
        return horner(self.coefficients[:, piece], t - self.anchors[piece])

    def monomials(self) -> Float[Array, "Q+1 N+1"]:
        """The coefficients in powers of t, as the paper prints them."""
        return taylor_shift(self.coefficients, -self.anchors)


def horner(
    coefficients: Float[Array, "Q+1 *shape"], x: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """The polynomials with these coefficients, constant first, at x."""
    value = jnp.broadcast_to(
        coefficients[-1], jnp.broadcast_shapes(coefficients[-1].shape, x.shape)
    )
    for c in coefficients[-2::-1]:
        value = value * x + c
    return value


def taylor_shift(
    coefficients: Float[Array, "Q+1 *shape"], shift: Float[Array, "*shape"]
) -> Float[Array, "Q+1 *shape"]:
    """The coefficients of p(x + shift) from those of p(x)."""
    degree = coefficients.shape[0] - 1
    return jnp.stack(
        [
            horner(jnp.stack([comb(p, q) * coefficients[p] for p in range(q, degree + 1)]), shift)
            for q in range(degree + 1)
        ]
    )


def polynomial(coefficients: Float[Array, " Q+1"]) -> PiecewisePolynomial:
    """A polynomial without knots, from its coefficients, constant first."""
    c = jnp.asarray(coefficients)
    return PiecewisePolynomial(c, jnp.zeros(0, c.dtype), jnp.zeros((c.shape[0], 0), c.dtype))


def raise_degree(f: PiecewisePolynomial, degree: int) -> PiecewisePolynomial:
    """The same function with room for coefficients up to this degree."""
    if degree < f.degree:
        raise ValueError(f"degree must be at least the function's own, {f.degree}, got {degree}")
    pad = (0, degree - f.degree)
    return PiecewisePolynomial(jnp.pad(f.base, pad), f.knots, jnp.pad(f.jumps, (pad, (0, 0))))


def sort_knots(f: PiecewisePolynomial) -> PiecewisePolynomial:
    """The same function with its knots in ascending order."""
    order = argsort(f.knots)
    return PiecewisePolynomial(f.base, f.knots[order], f.jumps[:, order])


def segments(
    f: PiecewisePolynomial,
    sort: Callable[[PiecewisePolynomial], PiecewisePolynomial] = sort_knots,
) -> Segments:
    """The sorted pieces of f (eq. 27).

    Sums run outwards from the origin, so that a piece near the origin carries the rounding of few
    terms: the coefficients there are what a descent needs most exactly.

    Args:
        f: a piecewise polynomial with N knots.
        sort: brings the knots into ascending order.

    Returns:
        Its N + 1 pieces; pieces between coinciding knots are empty, those beyond `inf` unreachable.
    """
    f = sort(f)
    knots, jumps = f.knots, f.jumps
    right = _outwards(f.base, knots, jumps, knots > 0)
    # To the left, in the mirror t -> -t: a jump c_q (t - knot)^q that is undone there becomes
    # -(-1)^q c_q.
    signs = ((-1.0) ** jnp.arange(f.base.shape[0], dtype=f.base.dtype))[:, None]
    left = _outwards(
        signs[:, 0] * f.base, -knots[::-1], -signs * jumps[:, ::-1], (knots <= 0)[::-1]
    )
    left = signs * left[:, ::-1]
    # right[:, k] is the piece on the right of a knot beyond the origin, left[:, k] the piece on the
    # left of a knot before it; the base lies between.
    home = jnp.sum(knots <= 0)
    piece = jnp.arange(knots.shape[0] + 1)
    coefficients = jnp.where(
        piece > home,
        jnp.pad(right, ((0, 0), (1, 0))),
        jnp.where(piece < home, jnp.pad(left, ((0, 0), (0, 1))), f.base[:, None]),
    )
    return Segments(knots, _inner_ends(knots), coefficients)


def _outwards(
    base: Float[Array, " Q+1"],
    knots: Float[Array, " N"],
    jumps: Float[Array, "Q+1 N"],
    met: Bool[Array, " N"],
) -> Float[Array, "Q+1 N"]:
    """The coefficients about each knot, just beyond it, going right from the origin.

    From knot to knot a coefficient moves by the Taylor terms of the higher ones, which are known
    already: one prefix sum a degree, from the highest down, replaces the recursion.
    """
    met = met & jnp.isfinite(knots)
    # Knots before the origin stand on it and padding on the last knot met, so that nothing moves.
    at = jnp.where(met, knots, 0)
    at = jnp.where(knots == jnp.inf, jnp.max(at, initial=0), at)
    step = jnp.diff(at, prepend=jnp.zeros(1, at.dtype))
    jumps = jnp.where(met, jumps, 0)
    limit = float(jnp.finfo(at.dtype).max) / (16 * max(1, at.shape[0]))
    degree = base.shape[0] - 1
    before: dict[int, Float[Array, " N"]] = {}
    rows: list[Float[Array, " N"]] = []
    for q in range(degree, -1, -1):
        increment = jumps[q]
        if before:
            terms = [comb(p, q) * before[p] for p in range(q + 1, degree + 1)]
            increment = increment + horner(jnp.stack([jnp.zeros_like(step), *terms]), step)
        # An infinite term would make its neighbours NaN; beyond this size nothing is known anyway.
        increment = jnp.clip(jnp.nan_to_num(increment, nan=limit, posinf=limit), -limit, limit)
        row = base[q] + cumsum(increment[None])[0]
        before[q] = jnp.concatenate([base[q, None], row])[:-1]
        rows.append(row)
    return jnp.stack(rows[::-1])


def _inner_ends(knots: Float[Array, " N"]) -> Float[Array, " N+1"]:
    """The end next to the origin of each piece between sorted knots; 0 for the piece around it."""
    home = jnp.sum(knots <= 0)
    piece = jnp.arange(knots.shape[0] + 1)
    return jnp.where(
        piece > home, jnp.pad(knots, (1, 0)), jnp.where(piece < home, jnp.pad(knots, (0, 1)), 0)
    )


def _inside(knots: Float[Array, " N"]) -> Float[Array, " N+1"]:
    """A point inside each piece between sorted knots, or at a knot where the piece is empty."""
    edge = jnp.full(1, jnp.inf, knots.dtype)
    lo, hi = jnp.concatenate([-edge, knots]), jnp.concatenate([knots, edge])
    outer = jnp.where(lo > -jnp.inf, lo + 1 + jnp.abs(lo), hi - 1 - jnp.abs(hi))
    outer = jnp.where(jnp.isfinite(outer), outer, 0)
    return jnp.where(jnp.isfinite(lo) & jnp.isfinite(hi), lo + (hi - lo) / 2, outer)


def _refine(f: Segments, knots: Float[Array, " M"]) -> Segments:
    """The same function cut at sorted knots that hold all its own."""
    piece = jnp.searchsorted(f.knots, _inside(knots), side="right")
    ends = _inner_ends(knots)
    finite = jnp.isfinite(ends) & jnp.isfinite(f.anchors[piece])
    shift = jnp.where(finite, ends - f.anchors[piece], 0)
    return Segments(knots, ends, taylor_shift(f.coefficients[:, piece], shift))


def from_segments(f: Segments, *, continuous: bool = False) -> PiecewisePolynomial:
    """The jump form of sorted pieces.

    Args:
        f: the pieces.
        continuous: whether f is known to be continuous: its jumps then have no constant term, and
            what rounding leaves there is dropped.

    Returns:
        The same function.
    """
    finite = jnp.isfinite(f.knots)
    knots = jnp.where(finite, f.knots, 0)
    anchors = jnp.where(jnp.isfinite(f.anchors), f.anchors, 0)
    after = taylor_shift(f.coefficients[:, 1:], knots - anchors[1:])
    before = taylor_shift(f.coefficients[:, :-1], knots - anchors[:-1])
    jumps = jnp.where(finite, after - before, 0)
    home = jnp.sum(f.knots <= 0)
    return PiecewisePolynomial(
        taylor_shift(f.coefficients[:, home], -anchors[home]),
        f.knots,
        jumps.at[0].set(0) if continuous else jumps,
    )


def compose_affine(
    activation: PiecewiseLinear, intercept: Float[Array, ""], slope: Float[Array, ""]
) -> PiecewisePolynomial:
    """The piecewise-linear function t -> f(intercept + slope t) (eqs 37 and 40).

    Args:
        activation: f.
        intercept: the argument at t = 0.
        slope: of the argument; where it is 0 there are no knots (`inf` stands in).

    Returns:
        A function of degree 1 with a knot a kink.
    """
    intercept, slope = (
        jnp.asarray(v, jnp.result_type(intercept, slope, float)) for v in (intercept, slope)
    )
    knots, right = crossings(activation, intercept, slope)
    m, o = activation.slopes, activation.offsets
    # The piece at the origin: the last whose kink lies before the argument.
    on = [jnp.full_like(intercept, v) for v in (m[0], o[0])]
    for k in range(len(activation.kinks)):
        on = [jnp.where(right[k], v, w) for v, w in zip((m[k + 1], o[k + 1]), on, strict=True)]
    delta = jnp.diff(jnp.asarray(m, knots.dtype)) * jnp.abs(slope)
    delta = jnp.where(jnp.isfinite(knots), delta, 0)
    return PiecewisePolynomial(
        jnp.stack([on[0] * intercept + on[1], on[0] * slope]),
        knots,
        jnp.stack([jnp.zeros_like(delta), delta]),
    )


def crossings(
    activation: PiecewiseLinear, intercept: Float[Array, "*shape"], slope: Float[Array, "*shape"]
) -> tuple[Float[Array, "K *shape"], Bool[Array, "K *shape"]]:
    """Where the line intercept + slope t meets each kink (eq. 40).

    Args:
        activation: whose K kinks are met.
        intercept: the line at t = 0.
        slope: the line's slope.

    Returns:
        The K knots in t, `inf` where the line does not meet the kink at a finite t, and whether the
        line lies beyond the kink just right of t = 0. The second is read off the first, so the two
        agree even where a quotient underflows.
    """
    kinks = jnp.asarray(activation.kinks, intercept.dtype).reshape(-1, *[1] * intercept.ndim)
    moving = slope != 0
    t = (kinks - intercept) / jnp.where(moving, slope, 1)
    met = moving & jnp.isfinite(t)
    beyond = jnp.where(met, (slope > 0) == (t <= 0), intercept >= kinks)
    return jnp.where(met, t, jnp.inf), beyond


def compose(activation: PiecewiseLinear, inner: PiecewisePolynomial) -> PiecewisePolynomial:
    """The composition t -> f(g(t)) of two piecewise-linear functions (eq. 37, by eq. 40).

    Args:
        activation: f, with K kinks.
        inner: g, continuous, of degree 1 (or 0), with N knots.

    Returns:
        A function of degree 1 with N + K (N + 1) knots: g's own and, piece by piece, where g
        meets a kink, `inf` where it does not.

    Raises:
        ValueError: if g has a degree above 1.
    """
    if inner.degree > 1:
        raise ValueError(f"inner must be piecewise linear, got degree {inner.degree}")
    g = segments(raise_degree(inner, 1))
    edge = jnp.full(1, jnp.inf, g.knots.dtype)
    met, _ = crossings(activation, g.coefficients[0], g.coefficients[1])
    met = jnp.where(jnp.isfinite(met), met + jnp.where(jnp.isfinite(g.anchors), g.anchors, 0), met)
    inside = (met > jnp.concatenate([-edge, g.knots])) & (met < jnp.concatenate([g.knots, edge]))
    knots = jnp.sort(jnp.concatenate([g.knots, jnp.where(inside, met, jnp.inf).reshape(-1)]))
    # Between these knots both functions are affine: one point inside tells the pieces.
    g = _refine(g, knots)
    anchors = jnp.where(jnp.isfinite(g.anchors), g.anchors, 0)
    value = horner(g.coefficients, _inside(knots) - anchors)
    part = jnp.sum(value > jnp.asarray(activation.kinks, value.dtype)[:, None], axis=0)
    m = jnp.asarray(activation.slopes, value.dtype)[part]
    o = jnp.asarray(activation.offsets, value.dtype)[part]
    c0, c1 = g.coefficients
    outer = Segments(knots, anchors, jnp.stack([m * c0 + o, m * c1]))
    return from_segments(outer, continuous=True)


def multiply(f: PiecewisePolynomial, g: PiecewisePolynomial) -> PiecewisePolynomial:
    """The product of two piecewise polynomials: degrees and knots add.

    Args:
        f: of degree P with M knots.
        g: of degree Q with N knots.

    Returns:
        Their product, of degree P + Q with M + N knots.
    """
    knots = jnp.sort(jnp.concatenate([f.knots, g.knots]))
    a, b = _refine(segments(f), knots), _refine(segments(g), knots)
    product = [jnp.zeros_like(a.coefficients[0]) for _ in range(f.degree + g.degree + 1)]
    for p in range(f.degree + 1):
        for q in range(g.degree + 1):
            product[p + q] = product[p + q] + a.coefficients[p] * b.coefficients[q]
    return from_segments(Segments(knots, a.anchors, jnp.stack(product)))
