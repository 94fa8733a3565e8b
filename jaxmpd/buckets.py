r"""The global minimum without sorting: bounds from a histogram, a search where they leave room.

Outwards from the origin, on each side, knots fall into buckets. Four sums a bucket (of the jumps
of curvature, slope and value as seen from its outer edge, and of the negative jumps of slope) give
the function's exact value, slope and curvature at every edge by prefix sums over the buckets. Where
every piece is convex, the slope inside a bucket is at least the one at its inner edge plus the
negative jumps, and at most the one at its outer edge minus them: two lines that bound the function
from below. Buckets whose bound exceeds the least value at an edge are done with; the few that
remain hold a few dozen knots. O(N) with a small constant, where a sort takes most of the time.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxmpd.minimum import ROUNDINGS, Minimum, minimize, rounding
from jaxmpd.piecewise import PiecewisePolynomial
from jaxmpd.primitives import cumsum

KNOTS_A_BUCKET = 8
"""Knots in an average bucket: more make the search longer, fewer the prefix sums."""

SURVIVORS = 128
"""Knots and edges that the search has room for; beyond it a sort takes over."""


def minimize_convex_pieces(f: PiecewisePolynomial) -> Minimum:
    """The global minimum of a continuous piecewise quadratic whose pieces are all convex, in O(N).

    The squared error of a piecewise-linear prediction is such a function. Up to rounding the result
    of [`minimize`][jaxmpd.minimum.minimize], which is called where too many knots survive (many
    coinciding knots, for example). Under `vmap` both branches run: scan instead.

    Args:
        f: the function, of degree 2, bounded below, its jumps without constant terms; that is not
            checked.

    Returns:
        The minimum.

    Raises:
        ValueError: if the degree is not 2.
    """
    if f.degree != 2:
        raise ValueError(f"f must have degree 2, got {f.degree}: call minimize instead")
    count = f.knots.shape[0]
    if count <= 2 * KNOTS_A_BUCKET:
        return minimize(f)
    t, gain, searched = _search(f)
    gain, t = jnp.maximum(gain, 0), jnp.where(gain > 0, t, 0)
    found = Minimum(t, f.base[0] - gain, gain, jnp.ones((), bool))
    return jax.lax.cond(searched, lambda _: found, minimize, f)


def _search(
    f: PiecewisePolynomial,
) -> tuple[Float[Array, ""], Float[Array, ""], Bool[Array, ""]]:
    """The minimiser, the gain, and whether the search covered every bucket that might hold it."""
    dtype = f.knots.dtype
    half = 1 << max(3, (f.knots.shape[0] // (2 * KNOTS_A_BUCKET)).bit_length() - 1)

    # Outwards: distance from the origin, and the jumps as met when leaving it. A jump of slope is
    # the same from both sides, a jump of curvature changes its sign.
    finite = jnp.isfinite(f.knots)
    distance = jnp.where(finite, jnp.abs(f.knots), 0)
    right = f.knots > 0
    bend = jnp.where(finite, f.jumps[1], 0)
    curve = jnp.where(finite, jnp.where(right, f.jumps[2], -f.jumps[2]), 0)

    # Buckets: equal steps of distance / (scale + distance).
    scale = _scale(distance)
    level = jnp.clip((distance / (scale + distance) * half).astype(jnp.int32), 0, half - 1)
    bucket = level + jnp.where(right, half, 0)
    steps = jnp.arange(half, dtype=dtype) / half
    edge = scale * steps / (1 - steps)
    width = jnp.append(jnp.diff(edge), jnp.inf)
    reach = jnp.where(level < half - 1, jnp.append(edge[1:], 0)[level] - distance, 0)

    sums = _histogram(bucket, curve, bend, reach, 2 * half)
    value, slope, curvature, bound = _states(f.base, sums, width)
    error = rounding(f, edge)
    least = jnp.min(value + error)
    open_ = (bound - jnp.append(error[1:], error[-1]) <= least).reshape(-1)

    # The open buckets' edges and knots, gathered into a table of fixed size.
    keep = jnp.concatenate([open_, open_[bucket] & finite])
    rank = cumsum(keep[None].astype(jnp.float32))[0]
    take = jnp.searchsorted(rank, jnp.arange(1, SURVIVORS + 1, dtype=jnp.float32))
    used = jnp.arange(SURVIVORS) < rank[-1]
    take = jnp.where(used, take, 0)
    is_edge = take < 2 * half
    knot = jnp.where(is_edge, 0, take - 2 * half)
    home = jnp.where(used, jnp.where(is_edge, take, bucket[knot]), -1)
    level = home % half
    x = jnp.where(is_edge, 0, jnp.maximum(distance[knot] - edge[level], 0))
    bend, curve = (jnp.where(is_edge, 0, a[knot]) for a in (bend, curve))
    state = [a.reshape(-1)[home] for a in (value, slope, curvature)]
    offset, gain = _walk(home, x, bend, curve, state, width[level], used)
    t = edge[level] + x + offset
    best = jnp.argmax(gain - rounding(f, t))
    t = t[best]
    return jnp.where(home[best] >= half, t, -t), gain[best], rank[-1] <= SURVIVORS


def _scale(distance: Float[Array, " N"]) -> Float[Array, ""]:
    """A typical distance: the geometric mean of a sample of those that are not 0.

    Any scale gives the same minimum; a bad one leaves more knots to the search.
    """
    sample = distance[:: max(1, distance.shape[0] // 256)]
    there = sample > 0
    logs = jnp.where(there, jnp.log(jnp.where(there, sample, 1)), 0)
    mean = jnp.sum(logs) / jnp.maximum(jnp.sum(there), 1)
    return jnp.exp(jnp.clip(mean, -60, 60))


def _histogram(
    bucket: Int[Array, " N"],
    curve: Float[Array, " N"],
    bend: Float[Array, " N"],
    reach: Float[Array, " N"],
    buckets: int,
) -> Float[Array, "4 2 half"]:
    """Each bucket's sums: jumps of curvature, slope and value at its outer edge, negative bends."""
    terms = jnp.stack(
        [curve, bend + 2 * curve * reach, (bend + curve * reach) * reach, jnp.minimum(bend, 0)],
        axis=1,
    )
    sums = jnp.zeros((buckets, 4), bend.dtype).at[bucket].add(terms)
    return sums.T.reshape(4, 2, -1)


def _states(
    base: Float[Array, " 3"], sums: Float[Array, "4 2 half"], width: Float[Array, " half"]
) -> tuple[Float[Array, "2 half"], ...]:
    """Value, slope and curvature at each bucket's inner edge, and a lower bound inside it."""
    w = width[:-1]
    start = jnp.stack([-base[1], base[1]])[:, None]

    def along(
        first: Float[Array, "2 1"], steps: Float[Array, "2 half-1"]
    ) -> Float[Array, "2 half"]:
        return jnp.concatenate([first, first + cumsum(steps)], axis=1)

    curvature = along(jnp.broadcast_to(base[2], (2, 1)), sums[0, :, :-1])
    slope = along(start, 2 * curvature[:, :-1] * w + sums[1, :, :-1])
    value = along(
        jnp.zeros_like(start), (slope[:, :-1] + curvature[:, :-1] * w) * w + sums[2, :, :-1]
    )
    # Two lines from below: slope at least `least` from the inner edge, at most `most` before the
    # outer one. They cross inside where the first falls and the second rises.
    least = slope + sums[3]
    most = slope[:, 1:] - sums[3, :, :-1]
    falls, rises = least[:, :-1] < 0, most > 0
    inner, outer = value[:, :-1], value[:, 1:]
    cross = (inner - outer + most * w) / jnp.where(falls & rises, most - least[:, :-1], 1)
    crossing = inner + least[:, :-1] * jnp.clip(cross, 0, w)
    bound = jnp.where(falls, jnp.where(rises, crossing, outer), inner)
    last = jnp.where(least[:, -1:] < 0, -jnp.inf, value[:, -1:])
    return value, slope, curvature, jnp.concatenate([bound, last], axis=1)


def _walk(
    home: Int[Array, " M"],
    x: Float[Array, " M"],
    bend: Float[Array, " M"],
    curve: Float[Array, " M"],
    state: list[Float[Array, " M"]],
    width: Float[Array, " M"],
    used: Bool[Array, " M"],
) -> tuple[Float[Array, " M"], Float[Array, " M"]]:
    """The best point of the piece behind each knot or edge, and the gain there.

    All pairs at once: a few hundred knots need no sorting, and coinciding ones no rule.
    """
    eps = jnp.finfo(x.dtype).eps
    # First index: the knots passed; second: the piece. Sums run over the first, the outer axis.
    same = home[:, None] == home
    ahead = x[None] - x[:, None]
    passed = same & (ahead >= 0)
    e = jnp.where(passed, ahead, 0)
    g, c = jnp.where(passed, bend[:, None], 0), jnp.where(passed, curve[:, None], 0)
    value, slope, curvature = state
    value = value + (slope + curvature * x) * x + jnp.sum((g + c * e) * e, axis=0)
    slope = slope + 2 * curvature * x + jnp.sum(g + 2 * c * e, axis=0)
    curvature = curvature + jnp.sum(c, axis=0)
    length = jnp.min(jnp.where(same & (ahead < 0), -ahead, jnp.inf), axis=0)
    length = jnp.minimum(length, width - x)
    # A curvature below the rounding of its sum is 0: a saturated unit's tail is flat.
    largest = jnp.max(jnp.where(used, jnp.abs(state[2]), 0))
    curved = curvature > ROUNDINGS * eps * largest
    turn = jnp.where(curved, -slope / (2 * jnp.where(curved, curvature, 1)), length)
    offset = jnp.where(slope < 0, jnp.minimum(turn, length), 0)
    offset = jnp.where(jnp.isfinite(offset), jnp.maximum(offset, 0), 0)
    gain = -(value + (slope + jnp.where(curved, curvature, 0) * offset) * offset)
    return offset, jnp.where(used, gain, -jnp.inf)
