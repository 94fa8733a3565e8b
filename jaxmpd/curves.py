r"""Piecewise-linear predictions along a line, and any loss of them as a piecewise polynomial.

Along a line through parameters of one layer every prediction of a piecewise-linear network is a
piecewise-linear function of the position t. A loss that is a piecewise polynomial phi of the
residual (or margin) e is then a piecewise polynomial of t, with knots of two kinds:

- where a curve bends, from slope $r^-$ to $r^+$ at the value e: with Taylor coefficients $a_q$ of
  phi about e the jump is $\sum_q a_q ({r^+}^q - {r^-}^q)\, x^q$, one knot for all outputs;
- where a curve of slope r crosses a kink of phi at which these coefficients jump by
  $\Delta_q$: $\pm\Delta_q r^q x^q$, at most once a piece of the curve and kink.

Whether a crossing lies on a piece is read off the sides of the kink on which the curve's two ends
lie, never off where the crossing was computed to be: every piece of the sum then has the right
polynomial, whatever rounding does to the knots.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxmpd.activations import PiecewiseLinear
from jaxmpd.elementwise import Loss
from jaxmpd.losses import shares
from jaxmpd.piecewise import PiecewisePolynomial, crossings
from jaxmpd.primitives import cumsum

UNROLLED = 4
"""Up to this many knots a sample prefix sums are spelt out, beyond they are matrix products."""


class Curves(NamedTuple):
    """Piecewise-linear predictions along a line, one curve of dN outputs a sample.

    The jump form of [`PiecewisePolynomial`][jaxmpd.piecewise.PiecewisePolynomial] for continuous
    functions of degree 1: outwards from the origin every knot adds its bend to the slope.

    Attributes:
        start: the predictions at t = 0.
        rate: their slopes in the piece that holds the origin (just right of it).
        knots: M knots a sample in ascending order; `inf` pads.
        bends: the slope on the right of the knot minus the one on its left; 0 where padded.
    """

    start: Float[Array, "S dN"]
    rate: Float[Array, "S dN"]
    knots: Float[Array, "S M"]
    bends: Float[Array, "S M dN"]


def unit_curves(
    predictions: Float[Array, "S dN"],
    z: Float[Array, " S"],
    u: Float[Array, " S"],
    v: Float[Array, " dN"],
    activation: PiecewiseLinear,
) -> Curves:
    """The predictions when the pre-activations of one unit of the last hidden layer move.

    Args:
        predictions: the current ones.
        z: the unit's S pre-activations.
        u: their rates of change.
        v: the unit's outgoing weights.
        activation: with K kinks.

    Returns:
        Curves with M = K knots a sample.
    """
    knots, beyond = crossings(activation, z, u)
    slope = jnp.full_like(z, activation.slopes[0])
    for k, after in enumerate(activation.slopes[1:]):
        slope = jnp.where(beyond[k], after, slope)
    steps = [b - a for a, b in zip(activation.slopes, activation.slopes[1:], strict=False)]
    bends = jnp.asarray(steps, z.dtype)[:, None] * jnp.abs(u)
    # A falling pre-activation meets the kinks from the last to the first.
    knots, bends = (jnp.where(u < 0, a[::-1], a).T for a in (knots, bends))
    # A rate so small that a knot overflows never bends anything: inf would not be in order.
    met = jnp.all(jnp.isfinite(knots), axis=1, keepdims=True)
    knots, bends = jnp.where(met, knots, jnp.inf), jnp.where(met, bends, 0)
    return Curves(predictions, (slope * u)[:, None] * v, knots, bends[:, :, None] * v)


def expand_curves(
    curves: Curves,
    targets: Float[Array, "S dN"],
    weights: Float[Array, " S"] | None,
    loss: Loss,
    *,
    monotone: bool = False,
) -> PiecewisePolynomial:
    """The mean loss of predictions that follow curves, as a function of the position t.

    Args:
        curves: S samples' predictions, with M knots each.
        targets: of the samples.
        weights: non-negative weights, or None for equal ones. What a sample of weight 0 holds does
            not matter.
        loss: a piecewise polynomial with L kinks; of a smooth loss its interpolant is expanded.
        monotone: whether no curve turns back, so that it crosses a kink at most once.

    Returns:
        A continuous piecewise polynomial of degree 2 or the loss's, whichever is higher, with
        S (M + dN L (M + 1)) knots, S (M + dN L) for monotone curves. Where the loss has convex
        pieces it has, too.

    Example:
        >>> from jaxmpd import activations, losses, minimum
        >>> still = jnp.zeros((3, 1))
        >>> curves = unit_curves(still, still[:, 0], jnp.ones(3), jnp.ones(1), activations.IDENTITY)
        >>> median = expand_curves(curves, jnp.array([[1.0], [2.0], [9.0]]), None, losses.ABSOLUTE)
        >>> float(minimum.minimize(median).argmin)
        2.0
    """
    share = shares(weights, curves.start.shape[0], curves.start.dtype)
    used = share > 0
    e, rate, knots, bends = _arguments(curves, targets, used, loss)
    path = _follow(e, rate, knots, bends)
    home = jnp.sum(knots <= 0, axis=1)[:, None]
    kinks = jnp.asarray(loss.kinks, e.dtype)
    left, right = _sides(path, e, knots, home, kinks)

    # At the origin, the side that holds just right of it.
    own = (jnp.arange(knots.shape[1] + 1) == home)[:, None, :, None]
    before, after = (jnp.any(side & own, axis=2) for side in (left, right))
    beyond = jnp.where(e[..., None] == kinks, after, e[..., None] > kinks)
    weight = share[:, None]
    about = loss.expansion(e, beyond)
    base = [jnp.sum(weight * about[q] * rate**q) for q in range(loss.degree + 1)]

    # Bends of the curves.
    about = loss.expansion(path.value, right[:, :, :-1])
    powers = jnp.ones_like(bends)
    bent = [jnp.zeros_like(knots)]
    for q in range(1, loss.degree + 1):
        # (r+)^q - (r-)^q = (r+ - r-) powers, free of cancellation.
        bent.append(jnp.sum(weight[..., None] * about[q] * bends * powers, axis=1))
        powers = powers * path.right + path.left**q
    all_knots, jumps = [knots.reshape(-1)], [jnp.stack(bent).reshape(loss.degree + 1, -1)]

    # Crossings of the loss's kinks.
    if loss.kinks:
        t = _crossing_times(path, e, knots, home, kinks, beyond == before)
        turn = right.astype(e.dtype) - left.astype(e.dtype)
        met = (turn != 0) & jnp.isfinite(t)
        factor = jnp.where(met, turn, 0) * weight[..., None, None]
        slope = path.slopes[..., None]
        size = jnp.asarray(loss.jumps, e.dtype)
        powers = [factor * size[:, q] * slope**q for q in range(1, loss.degree + 1)]
        t, powers = jnp.where(met, t, jnp.inf), jnp.stack([jnp.zeros_like(t), *powers])
        if monotone:
            t, powers = jnp.min(t, axis=2), jnp.sum(powers, axis=3)
        all_knots.append(t.reshape(-1))
        jumps.append(powers.reshape(loss.degree + 1, -1))

    pad = max(0, 2 - loss.degree)
    return PiecewisePolynomial(
        jnp.pad(jnp.stack(base), (0, pad)),
        jnp.concatenate(all_knots),
        jnp.pad(jnp.concatenate(jumps, axis=1), ((0, pad), (0, 0))),
    )


class _Path(NamedTuple):
    """Residuals or margins along t, a row an output; slopes are derivatives in t.

    Attributes:
        value: at the knots.
        left: the slope on each knot's left.
        right: the slope on each knot's right.
        slopes: the slope of each piece between two knots.
    """

    value: Float[Array, "S dN M"]
    left: Float[Array, "S dN M"]
    right: Float[Array, "S dN M"]
    slopes: Float[Array, "S dN M+1"]


def _arguments(
    curves: Curves, targets: Float[Array, "S dN"], used: Bool[Array, " S"], loss: Loss
) -> tuple[Array, Array, Array, Array]:
    """The curves of the residual or margin, outputs before knots, of samples that count."""
    there = used[:, None]
    targets = jnp.where(there, targets, 0)
    e = loss.argument(jnp.where(there, curves.start, 0), targets)
    rate = jnp.where(there, curves.rate, 0)
    knots = jnp.where(there, curves.knots, jnp.inf)
    bends = jnp.swapaxes(jnp.where(there[..., None], curves.bends, 0), 1, 2)
    if loss.margin:
        rate, bends = targets * rate, targets[..., None] * bends
    return e, rate, knots, bends


def _follow(
    e: Float[Array, "S dN"],
    rate: Float[Array, "S dN"],
    knots: Float[Array, "S M"],
    bends: Float[Array, "S dN M"],
) -> _Path:
    """Values and slopes at the knots, summed up outwards from the origin."""
    positive = knots > 0
    rightwards = _outwards(e, rate, knots, bends, positive)
    # To the left in the mirror t -> -t, where a bend is the same and a slope changes its sign.
    leftwards = _outwards(e, -rate, -knots[:, ::-1], bends[..., ::-1], ~positive[:, ::-1])
    value, inner, outer = ((a, b[..., ::-1]) for a, b in zip(rightwards, leftwards, strict=True))
    positive = positive[:, None]
    left = jnp.where(positive, inner[0], -outer[1])
    right = jnp.where(positive, outer[0], -inner[1])
    last = right[..., -1:] if knots.shape[1] else rate[..., None]
    return _Path(jnp.where(positive, *value), left, right, jnp.concatenate([left, last], axis=-1))


def _outwards(
    e: Float[Array, "S dN"],
    rate: Float[Array, "S dN"],
    knots: Float[Array, "S M"],
    bends: Float[Array, "S dN M"],
    met: Bool[Array, "S M"],
) -> tuple[Float[Array, "S dN M"], Float[Array, "S dN M"], Float[Array, "S dN M"]]:
    """The value at each knot and the slopes before and behind it, going right from the origin."""
    met = met & jnp.isfinite(knots)
    # Knots before the origin stand on it and padding on the last knot met, so that nothing moves.
    at = jnp.where(met, knots, 0)
    at = jnp.where(knots == jnp.inf, jnp.max(at, axis=1, keepdims=True, initial=0), at)
    step = jnp.diff(at, axis=1, prepend=0)[:, None]
    outer = rate[..., None] + _prefix_sums(jnp.where(met[:, None], bends, 0))
    inner = jnp.concatenate([rate[..., None], outer], axis=-1)[..., :-1]
    # A term that overflows would make its neighbours NaN; beyond this size nothing is known anyway.
    limit = float(jnp.finfo(e.dtype).max) / (16 * max(1, knots.shape[1]))
    return e[..., None] + _prefix_sums(jnp.clip(inner * step, -limit, limit)), inner, outer


def _prefix_sums(x: Float[Array, "*rows M"]) -> Float[Array, "*rows M"]:
    count = x.shape[-1]
    if count > UNROLLED:
        return cumsum(x.reshape(-1, count)).reshape(x.shape)
    sums = [jnp.sum(x[..., : k + 1], axis=-1) for k in range(count)]
    return jnp.stack(sums, axis=-1) if sums else x


def _inner_ends(
    at_origin: Float[Array, "*S"], at_knots: Float[Array, "*S M"], home: Array
) -> Float[Array, "*S M+1"]:
    """What holds at the end next to the origin of every piece, at the origin for its own piece."""
    piece = jnp.arange(at_knots.shape[-1] + 1)
    home = home.reshape(home.shape[0], *[1] * (at_knots.ndim - 1))
    widths = [(0, 0)] * (at_knots.ndim - 1)
    before = jnp.pad(at_knots, [*widths, (1, 0)])
    after = jnp.pad(at_knots, [*widths, (0, 1)])
    return jnp.where(piece > home, before, jnp.where(piece < home, after, at_origin[..., None]))


def _sides(
    path: _Path,
    e: Float[Array, "S dN"],
    knots: Float[Array, "S M"],
    home: Array,
    kinks: Float[Array, " L"],
) -> tuple[Bool[Array, "S dN M+1 L"], Bool[Array, "S dN M+1 L"]]:
    """Whether each piece's left and right end lie beyond each kink."""
    inner = _inner_ends(e, path.value, home)[..., None] > kinks
    slopes = path.slopes[..., None]
    finite = jnp.pad(jnp.isfinite(knots), ((0, 0), (0, 1)))[:, None, :, None]
    at_knots = jnp.pad(path.value, ((0, 0), (0, 0), (0, 1)))[..., None] > kinks
    # An end at infinity lies where the slope leads, or with the other end where there is none.
    right = jnp.where(finite, at_knots, jnp.where(slopes != 0, slopes > 0, inner))
    first = jnp.where(slopes[:, :, :1] != 0, slopes[:, :, :1] < 0, inner[:, :, :1])
    return jnp.concatenate([first, right[:, :, :-1]], axis=2), right


def _crossing_times(
    path: _Path,
    e: Float[Array, "S dN"],
    knots: Float[Array, "S M"],
    home: Array,
    kinks: Float[Array, " L"],
    ahead: Bool[Array, "S dN L"],
) -> Float[Array, "S dN M+1 L"]:
    """Where each piece's line meets each kink, moved into the piece.

    `ahead` tells of the origin's own piece whether the kink is met to its right.
    """
    edge = jnp.full((knots.shape[0], 1), jnp.inf, knots.dtype)
    lo = jnp.concatenate([-edge, knots], axis=1)[:, None, :, None]
    hi = jnp.concatenate([knots, edge], axis=1)[:, None, :, None]
    own = (jnp.arange(knots.shape[1] + 1) == home)[:, None, :, None]
    # A knot at 0 counts as met on the way left: one to the right is moved off it.
    tiny = float(jnp.finfo(knots.dtype).tiny)
    lo = jnp.where(own & ahead[:, :, None], tiny, lo)
    hi = jnp.where(own & ~ahead[:, :, None], jnp.minimum(hi, 0), hi)
    anchor = _inner_ends(jnp.zeros_like(e[:, 0]), knots, home)
    start = _inner_ends(e, path.value, home)[..., None]
    slope = path.slopes[..., None]
    t = (kinks - start) / jnp.where(slope != 0, slope, 1)
    anchor = jnp.where(jnp.isfinite(anchor), anchor, 0)[:, None, :, None]
    return jnp.clip(anchor + t, lo, hi)
