r"""The pair radius for the l-infinity distance, exact for every q.

The pair flips at x if $|x - w_j|_\infty \le t$ and $|x_k - w_{ik}| \ge t$ for some t and coordinate
k. In the frame of the pair, with $b = |z - w_j|$, $\tau$ how far the farthest coordinate of $w_j$
lies outside the box and $u_k$ the room of z, moving k and bringing the others closer takes

$$q = \infty: \max\Bigl(\frac{|b|_\infty - a_k}2,\; |b|_\infty - a_k - u_k,\; \tau - a_k\Bigr)$$

where $a_k + u_k \ge \tau$, and for q = 1 and 2 a convex problem in t alone:

$$f_k(t) = \sum_{l \ne k} (b_l - t)_+^q + (t - a_k)_+^q, \qquad
  \max(D_k / 2, \tau) \le t \le a_k + u_k.$$

The radius is the least over k of these, or of their minima (eq. 34 fixes k, which overstates it).
Sorting b once, with prefix sums, gives every k its minimiser by binary search.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array

from jaxnpc.domains import Domain, Unbounded
from jaxnpc.pairwise.frame import Frame, PairRadius, Scalar, Vector, frame, moved

INF = float("inf")


def rho(z: Vector, w_i: Vector, w_j: Vector, *, q: float, domain: Domain) -> PairRadius:
    r"""The exact radius $\rho_\infty^q$ of one triple (eq. 15, 31 and 34, corrected).

    Args:
        z: the point.
        w_i: the prototype that z is closer to.
        w_j: the other one.
        q: the norm of the perturbation: 1, 2 or infinity.
        domain: where adversarial points are sought.

    Returns:
        The radius and a nearest tie.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> z, w_i, w_j = jnp.zeros(2), jnp.zeros(2), jnp.array([1.0, 3.0])
        >>> jitted = jax.jit(rho, static_argnames="q")
        >>> [float(jitted(z, w_i, w_j, q=q, domain=Unbounded()).radius) for q in (1, float("inf"))]
        [1.5, 1.5]
    """
    near, far = jnp.max(jnp.abs(z - w_i)), jnp.max(jnp.abs(z - w_j))
    solve = _uniform if q == INF else _single
    radius, witness = solve(z, w_i, w_j, q, domain)
    apart = near < far
    radius = jnp.where(apart, radius, 0)
    shown = apart & jnp.isfinite(radius)
    return PairRadius(radius, jnp.where(shown, witness, z))


def _uniform(
    z: Vector, w_i: Vector, w_j: Vector, q: float, domain: Domain
) -> tuple[Scalar, Vector]:
    """Q = infinity: some coordinate k gets away from w_i by the budget, or to its wall.

    In the witness all of them do. Those that the prototypes share move away from both: that raises
    the distance to w_i, and no coordinate can lower it to w_j below what it raises.
    """
    ways, outside = _ways(z, w_i, w_j, domain)
    far = jnp.max(jnp.abs(z - w_j))
    slack = 8 * jnp.finfo(z.dtype).eps * (jnp.abs(ways.at) + far)
    step = jnp.maximum(_steps(far - ways.at, ways.room), outside - ways.at)
    open_way = (outside <= ways.at + ways.room + slack) & (ways.at < INF)
    radius = jnp.maximum(jnp.min(jnp.where(open_way, step, INF)), 0)
    # Each shared coordinate goes whichever way ends farther from the prototypes.
    end = jnp.where(ways.at < INF, ways.at + jnp.minimum(radius, ways.room), -INF)
    away = jnp.take_along_axis(ways.sign, jnp.argmax(end, axis=0)[None], axis=0)[0]
    return radius, moved(z, away, radius, radius, domain)


def _steps(lack: Array, room: Array) -> Array:
    """How far a coordinate must go to make up for a lack that the same distance lessens."""
    return jnp.maximum(lack / 2, lack - room)


def reach(z: Vector, w_i: Vector, distance: Scalar, domain: Domain) -> Scalar:
    r"""A lower bound of the radius against any rival at a distance from z.

    The least budget within which some admissible point is as far from $w_i$ as the rival, brought
    closer by the budget, is from it: the minimum over all coordinates and both directions, of which
    the rival's own coordinates may rule out some.

    Args:
        z: the point.
        w_i: the prototype that keeps it.
        distance: D, at most $|z - w_j|_\infty$.
        domain: where adversarial points are sought.

    Returns:
        A bound of $\rho_\infty^q$ for every q, in the arithmetic of z; it grows by half of what D
        grows or more.
    """
    at = jnp.stack([z - w_i, w_i - z])
    up = jnp.ones_like(z)
    room = jnp.stack([domain.room(z, up), domain.room(z, -up)])
    return jnp.min(_steps(distance - at, room))


def _single(z: Vector, w_i: Vector, w_j: Vector, q: float, domain: Domain) -> tuple[Scalar, Vector]:
    """Q = 1 or 2: one coordinate k gets far from w_i, the others close enough to w_j."""
    ways, outside = _ways(z, w_i, w_j, domain)
    b = jnp.abs(z - w_j)
    # Measured from the largest b, so that the prefix sums are of the size of their differences.
    top = jnp.max(b)
    at, least = ways.at - top, jnp.maximum(ways.gap / 2, outside) - top
    most = at + ways.room
    ranked = jnp.sort(b - top, descending=True)
    t = jnp.clip(_MINIMISER[q](at, b - top, ranked), least, most)
    value = _others(t, b - top, ranked, q) + jnp.maximum(t - at, 0) ** q
    slack = 8 * jnp.finfo(z.dtype).eps * (jnp.abs(ways.at) + top)
    open_way = (least <= most + slack) & (ways.at < INF)
    value = jnp.where(open_way, value, jnp.inf)
    way, k = jnp.unravel_index(jnp.argmin(value), value.shape)
    best = value[way, k]
    t_best = t[way, k] + top

    # The witness, and the radius once more as its distance: plain sums, no prefix differences.
    chosen = jnp.arange(z.size) == k
    others = jnp.where(chosen, 0, jnp.maximum(b - t_best, 0))
    own = jnp.where(chosen, jnp.maximum(t_best - ways.at[way, k], 0), 0)
    x = z + jnp.where(chosen, ways.sign[way, k] * own, jnp.sign(w_j - z) * others)
    steps = others + own
    if q == 1:
        radius = jnp.sum(steps)
    else:
        squared = jnp.sum(steps**2)
        radius = jnp.where(squared > 0, jnp.sqrt(jnp.where(squared > 0, squared, 1)), 0)
    return jnp.where(best < INF, radius, INF), domain.clip(x)


def _ways(z: Vector, w_i: Vector, w_j: Vector, domain: Domain) -> tuple[Frame, Scalar]:
    """The frame in one row for each way around shared coordinates, infinite where there is none.

    And how far the rival lies outside the domain.
    """
    pair = frame(z, w_i, w_j, domain)
    shared = pair.gap == 0
    if isinstance(domain, Unbounded):
        # Of the two ways around a shared coordinate, on with where z lies is the shorter.
        turn = jnp.where(shared & (pair.at < 0), -1, 1).astype(z.dtype)
        ways = Frame(turn * pair.sign, turn * pair.at, pair.gap, pair.room)
        return Frame(*(part[None] for part in ways)), jnp.zeros((), z.dtype)
    # In a box a wall may close the shorter way.
    ways = Frame(
        jnp.stack([pair.sign, -pair.sign]),
        jnp.stack([pair.at, jnp.where(shared, -pair.at, INF)]),
        jnp.stack([pair.gap, pair.gap]),
        jnp.stack([pair.room, domain.room(z, -pair.sign)]),
    )
    return ways, jnp.max(jnp.maximum(domain.lower - w_j, w_j - domain.upper), initial=0)


def _leave_one_out_top(b: Vector, ranked: Vector, rank: int) -> Vector:
    """For every k the entry of that rank (0 or 1) among the b_l, l != k; -inf if there is none."""
    padded = jnp.concatenate([ranked, jnp.full(3, -jnp.inf, b.dtype)])
    return jnp.where(b >= padded[rank], padded[rank + 1], padded[rank])


def _minimiser_1(at: Array, b: Vector, ranked: Vector) -> Array:
    """Slope minus the number of others above t, plus 1 beyond at: flat from the second one on."""
    first = _leave_one_out_top(b, ranked, 0)
    second = _leave_one_out_top(b, ranked, 1)
    return jnp.where(first <= at, first, jnp.maximum(at, second))


def _minimiser_2(at: Array, b: Vector, ranked: Vector) -> Array:
    r"""The t with $t - a_k = \sum_{l \ne k} (b_l - t)_+$, or the largest other b_l if below a_k."""
    first = _leave_one_out_top(b, ranked, 0)
    count = jnp.arange(1, b.size + 1, dtype=b.dtype)
    prefix = jnp.cumsum(ranked)
    excess = prefix - count * ranked  # sum of (b_l - t)_+ at t = ranked
    # Coordinate k counted among the others: right where b_k does not reach the answer.
    m = jnp.searchsorted(excess - ranked, -at, side="left", method="scan_unrolled")
    below = jnp.where(m > 0, prefix[jnp.maximum(m - 1, 0)], 0)
    t = (below + at) / (m + 1)
    # Where it does, its term is taken out: sum over all of (b_l - t)_+ equals b_k - a_k.
    lack = b - at
    m = jnp.maximum(jnp.searchsorted(excess, lack, side="left", method="scan_unrolled"), 1)
    alone = (prefix[m - 1] - lack) / m
    return jnp.where(first <= at, first, jnp.where(b > t, alone, t))


def _others(t: Array, b: Vector, ranked: Vector, q: float) -> Array:
    r"""$\sum_{l \ne k} (b_l - t_k)_+^q$ for every k."""
    m = b.size - jnp.searchsorted(ranked[::-1], t, side="right", method="scan_unrolled")
    prefix = jnp.concatenate([jnp.zeros(1, b.dtype), jnp.cumsum(ranked)])[m]
    own = jnp.maximum(b - t, 0)
    if q == 1:
        return jnp.maximum(prefix - m * t - own, 0)
    squares = jnp.concatenate([jnp.zeros(1, b.dtype), jnp.cumsum(ranked**2)])[m]
    return jnp.maximum(squares - 2 * t * prefix + m * t**2 - own**2, 0)


_MINIMISER: dict[float, Callable[[Array, Vector, Vector], Array]] = {
    1: _minimiser_1,
    2: _minimiser_2,
}
