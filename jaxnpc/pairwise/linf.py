r"""The pair radius for the l-infinity distance, exact for every q.

The pair flips at x if $|x - w_j|_\infty \le t$ and $|x_k - w_{ik}| \ge t$ for some t and coordinate
k. For q = infinity every coordinate may use the whole budget, and the least one is where a rising
maximum meets a falling one. For q = 1 and 2 each k is a convex problem in t alone: with
$b = |z - w_j|$, in the frame of the pair,

$$f_k(t) = \sum_{l \ne k} (b_l - t)_+^q + (t - a_k)_+^q, \qquad
  \max(D_k / 2, \tau) \le t \le a_k + u_k,$$

where $\tau$ is how far the farthest coordinate of $w_j$ lies outside the box and $u_k$ the room
of z. The radius is the least of the minima (eq. 34 fixes k, which overstates it). Sorting b once,
with prefix sums, gives every k its minimiser by binary search.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxnpc.domains import Domain, Unbounded
from jaxnpc.pairwise.frame import Frame, PairRadius, Scalar, Vector, frame, moved
from jaxnpc.pairwise.search import crossing, newton_step

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
    """Q = infinity: all coordinates move by the budget, or to their walls.

    Those that the prototypes share move away from both: that raises the distance to w_i, and no
    coordinate can lower it to w_j below what it raises.
    """
    sign, at, gap, room = frame(z, w_i, w_j, domain)
    shared = gap == 0
    outward = jnp.abs(at)
    away = jnp.where(shared, jnp.where(at >= 0, sign, -sign), sign)
    if isinstance(domain, Unbounded):
        falling = jnp.max(jnp.where(shared, -jnp.inf, gap - at))
        rising = jnp.max(jnp.where(shared, outward, at))
        radius = jnp.maximum((falling - rising) / 2, 0)
        return radius, moved(z, away, radius, radius, domain)

    # No budget beyond the sum of both distances helps, hence finite rooms on half-lines too.
    enough = jnp.max(jnp.abs(z - w_i)) + jnp.max(jnp.abs(z - w_j))
    room = jnp.minimum(room, enough)
    back = jnp.minimum(domain.room(z, -sign), enough)
    # Shared coordinates rise in either direction.
    room_up = jnp.stack([room, jnp.where(shared, back, 0)])
    at_up = jnp.stack([at, jnp.where(shared, -at, -jnp.inf)])

    def excess(radius: Scalar, room_up: Array, at_up: Array, room: Vector, fall: Vector):
        up, down = at_up + jnp.minimum(radius, room_up), fall - jnp.minimum(radius, room)
        top, bottom = jnp.max(up), jnp.max(down)
        # To the right of a kink the fastest of the tied coordinates leads.
        rises = jnp.any((up == top) & (radius < room_up))
        falls = ~jnp.any((down == bottom) & (radius >= room))
        return top - bottom, rises.astype(z.dtype) + falls.astype(z.dtype)

    data = (room_up, at_up, room, jnp.where(shared, -jnp.inf, gap - at))
    fixed = lax.stop_gradient(data)
    info = jnp.finfo(z.dtype)
    stop = lax.stop_gradient(jnp.max(jnp.maximum(room, back)))
    missing = -excess(jnp.zeros_like(stop), *fixed)[0]
    start = jnp.maximum(missing / 2 * (1 - 4 * info.eps), info.tiny)
    radius = crossing(lambda t: excess(t, *fixed), start, stop)
    radius = newton_step(lambda t: excess(t, *data), radius)
    slack = 8 * info.eps * enough
    reached = excess(stop, *fixed)[0] >= -slack
    radius = jnp.where(reached, jnp.maximum(radius, 0), jnp.inf)
    # Each shared coordinate goes whichever way ends farther from the prototypes.
    ends = at_up + jnp.minimum(radius, room_up)
    away = jnp.where(shared & (ends[1] > ends[0]), -sign, sign)
    return radius, moved(z, away, radius, radius, domain)


def _single(z: Vector, w_i: Vector, w_j: Vector, q: float, domain: Domain) -> tuple[Scalar, Vector]:
    """Q = 1 or 2: one coordinate k gets far from w_i, the others close enough to w_j."""
    pair = frame(z, w_i, w_j, domain)
    shared = pair.gap == 0
    if isinstance(domain, Unbounded):
        # Of the two ways around a shared coordinate, on with where z lies is the shorter.
        turn = jnp.where(shared & (pair.at < 0), -1, 1).astype(z.dtype)
        ways = Frame(turn * pair.sign, turn * pair.at, pair.gap, pair.room)
        ways = Frame(*(part[None] for part in ways))
        outside = jnp.zeros((), z.dtype)
    else:
        # In a box a wall may close the shorter way.
        back = domain.room(z, -pair.sign)
        ways = Frame(
            jnp.stack([pair.sign, -pair.sign]),
            jnp.stack([pair.at, jnp.where(shared, -pair.at, INF)]),
            jnp.stack([pair.gap, pair.gap]),
            jnp.stack([pair.room, back]),
        )
        outside = jnp.max(jnp.maximum(domain.lower - w_j, w_j - domain.upper), initial=0)

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
