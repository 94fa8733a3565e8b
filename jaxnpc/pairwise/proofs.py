r"""Pair radii that rounding cannot overstate, on the host in float64.

Each is a dual bound: whatever the multiplier, exact arithmetic would put the value of a certain
formula at or below the minimal perturbation. The multiplier is found in plain floating point, near
the best one, and the formula evaluated in interval arithmetic, whose lower end is returned. Where a
radius appears inside the formula (a monotone gain that it must keep short of the need), it is
shrunk by a few units of rounding until the inequality holds.

All functions take n triples as (n, d) float64 arrays, finite, and return n lower bounds, which may
be negative where $w_j$ is as close as $w_i$, and infinite where no admissible point flips the pair.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from jaxnpc import rounding
from jaxnpc.domains import Box, Domain
from jaxnpc.pairwise.search import crossing
from jaxnpc.rounding import Interval, down, exact, maximum, minimum, running_totals, total, up

INF = float("inf")
Rows = Float[np.ndarray, "n d"]
Radii = Float[np.ndarray, " n"]
TINY = float(np.finfo(np.float64).tiny)
HUGE = float(np.finfo(np.float64).max)


def room(z: Rows, upwards: Bool[np.ndarray, "n d"], domain: Domain) -> Interval:
    """The distances from z to the walls, enclosed: the upper ones or the lower; infinite on R^d."""
    if not isinstance(domain, Box):
        return exact(np.full(z.shape, INF))
    sign = np.where(upwards, 1.0, -1.0)
    lower, upper = (np.asarray(bound, np.float64) for bound in (domain.lower, domain.upper))
    wall = np.where(upwards, upper, lower)
    # A point outside gets room 0, as if x were allowed where it stands: that lowers the bound.
    distance = maximum(exact(sign * wall) - sign * z, 0.0)
    # Unlike a sum that overflows, an infinite wall is infinitely far for sure.
    return Interval(np.where(np.isinf(wall), INF, distance.lower), distance.upper)


def l2(z: Rows, w_i: Rows, w_j: Rows, *, q: float, domain: Domain) -> Radii:
    r"""Lower bounds of $\rho_2^q$."""
    normal = exact(w_j) - w_i
    need = total(normal * ((exact(w_i) - z) + (exact(w_j) - z))) * 0.5
    return half_space(z, normal, need, q=q, domain=domain)


@np.errstate(all="ignore")
def half_space(z: Rows, normal: Interval, need: Interval, *, q: float, domain: Domain) -> Radii:
    r"""Lower bounds of the q-distance of z from $\langle v, x - z\rangle \ge c$ in the domain.

    Args:
        z: the points.
        normal: (n, d) enclosures of v.
        need: (n,) enclosures of c.
        q: 1, 2 or infinity.
        domain: where x is sought.

    Returns:
        For q = infinity and any set F of coordinates $(c - \sum_{l \notin F} |v_l| u_l) /
        \sum_{l \in F} |v_l|$; for q = 1 and 2 and any $\lambda \ge 0$ the Lagrangian bounds
        $\lambda c - \sum_l (\lambda |v_l| - 1)_+ u_l$ and, of half the square,
        $\lambda c + \sum_l \min_{0 \le e \le u_l} (e^2 / 2 - \lambda |v_l| e)$.
    """
    speed = abs(normal)
    if not isinstance(domain, Box):
        size = rounding.norm(normal, {1: INF, 2: 2, INF: 1}[q])
        reach = np.where(size.upper > 0, INF, 0.0)
        return _unreachable(exact(reach), need, (need / size).lower)
    up_room, down_room = (room(z, np.full(z.shape, way), domain) for way in (True, False))
    # Where the direction is not known the wider room bounds both.
    wide = Interval(
        np.where(
            normal.lower > 0,
            up_room.lower,
            np.where(normal.upper < 0, down_room.lower, np.minimum(up_room.lower, down_room.lower)),
        ),
        np.where(
            normal.lower >= 0,
            up_room.upper,
            np.where(
                normal.upper <= 0, down_room.upper, np.maximum(up_room.upper, down_room.upper)
            ),
        ),
    )
    v, u = speed.upper, wide.upper
    c = np.maximum(need.lower, TINY)
    # One coordinate alone never needs more than c / |v|: finite rooms for the search.
    near = np.where(v > 0, np.minimum(u, 2 * c[:, None] / np.where(v > 0, v, 1)), 0.0)
    bound = {1: _half_space_1, 2: _half_space_2, INF: _half_space_inf}[q]
    return _unreachable(total(speed * wide), need, bound(speed, wide, need, v, near, c))


def _half_space_1(
    speed: Interval, wide: Interval, need: Interval, v: Rows, near: Rows, c: Radii
) -> Radii:
    # A little less than the critical item's, which then has no surplus, whatever its room.
    multiplier = (1 - 2.0**-49) / _critical_ratio(near, v * near, c)[:, None]
    surplus = maximum(speed * multiplier - 1.0, 0.0)
    return (need * multiplier[:, 0] - total(surplus * wide)).lower


def _half_space_2(
    speed: Interval, wide: Interval, need: Interval, v: Rows, near: Rows, c: Radii
) -> Radii:
    def excess(multiplier: Radii) -> tuple[Radii, Radii]:
        step = v * multiplier[:, None]
        free = step < near
        gain = np.sum(v * np.where(free, step, near), axis=-1)
        return gain - c, np.sum(np.where(free, v**2, 0.0), axis=-1)

    stop = np.max(np.where(v > 0, near / np.where(v > 0, v, 1), 0.0), axis=-1)
    multiplier = crossing(excess, _positive(c / np.sum(v**2, axis=-1)), _finite(stop))
    pull = (speed * multiplier[:, None]).upper
    step = exact(np.minimum(pull, wide.upper))
    half = need * multiplier + total(step * (step * 0.5 - pull))
    return _root(half * 2.0)


def _half_space_inf(
    speed: Interval, wide: Interval, need: Interval, v: Rows, near: Rows, c: Radii
) -> Radii:
    def excess(radius: Radii) -> tuple[Radii, Radii]:
        free = radius[:, None] < near
        gain = np.sum(v * np.where(free, radius[:, None], near), axis=-1)
        return gain - c, np.sum(np.where(free, v, 0.0), axis=-1)

    start = _positive(c / np.sum(v, axis=-1))
    radius = crossing(excess, start, np.max(near, axis=-1))[:, None]
    # On the verge of its wall a coordinate counts as free: the bound holds either way.
    free = wide.upper >= radius * (1 - 2.0**-50)
    walls = total(_select(~free, speed * wide))
    return ((need - walls) / total(_select(free, speed))).lower


@np.errstate(all="ignore")
def l1(z: Rows, w_i: Rows, w_j: Rows, *, q: float, domain: Domain) -> Radii:
    r"""Lower bounds of $\rho_1^q$; of their relaxations for q = 1 and 2.

    With need c, gains G, dead stretches z and reaches U, which end where a coordinate alone would
    meet the need: for q = 1 the bound is $\lambda c - \sum_l (\lambda G_l - U_l)_+$, for q = 2 and
    its square $\lambda c + \sum_l \min(0, \min_{z_l \le e \le U_l} e^2 - 2 \lambda (e - z_l))$; for
    q = infinity the radius is shrunk until all gains within it fall short of the need.
    """
    upwards = w_j >= w_i
    sign = np.where(upwards, 1.0, -1.0)
    at, ahead = exact(sign * z) - sign * w_i, maximum(exact(sign * w_j) - sign * z, 0.0)
    need = total(abs(exact(z) - w_j) - abs(exact(z) - w_i))
    reach = minimum(room(z, upwards, domain), ahead)
    dead = minimum(maximum(-at, 0.0), reach)
    gain = maximum(reach - dead, 0.0) * 2.0
    bound = {1: _l1_1, 2: _l1_2, INF: _l1_inf}[q]
    return _unreachable(total(gain), need, bound(dead, reach, gain, need))


def _l1_inf(dead: Interval, reach: Interval, gain: Interval, need: Interval) -> Radii:
    lag, end, c = dead.lower, reach.upper, np.maximum(need.lower, TINY)

    def excess(radius: Radii) -> tuple[Radii, Radii]:
        step = np.minimum(radius[:, None], end)
        moving = (radius[:, None] >= lag) & (radius[:, None] < end)
        gained = np.sum(2 * np.maximum(step - lag, 0.0), axis=-1)
        return gained - c, np.sum(np.where(moving, 2.0, 0.0), axis=-1)

    def short(radius: Radii) -> Bool[np.ndarray, " n"]:
        step = exact(np.minimum(radius[:, None], end))
        return total(maximum(step - lag, 0.0) * 2.0).upper < need.lower

    radius = crossing(excess, _positive(c / (2 * end.shape[-1])), np.max(end, axis=-1))
    return _shrunk(np.where(need.lower > 0, radius, 0.0), short)


def _l1_1(dead: Interval, reach: Interval, gain: Interval, need: Interval) -> Radii:
    # Coordinates surely without a dead stretch may be filled first; the others share the rest.
    free = dead.upper <= 0
    rest = maximum(need - total(_select(free, gain)), 0.0)[:, None]
    end = minimum(reach, dead + rest * 0.5)
    reach = Interval(np.where(free, reach.lower, end.lower), np.where(free, reach.upper, end.upper))
    gain = maximum(reach - dead, 0.0) * 2.0
    # Short of the need by more than rounding, lest an item that just meets it seem too little.
    c = need.lower * (1 - 2.0**-44) - 4 * (need.upper - need.lower)
    multiplier = 1 / _critical_ratio(reach.upper, gain.upper, np.maximum(c, TINY))[:, None]
    surplus = maximum(gain * multiplier - reach, 0.0)
    return (need * multiplier[:, 0] - total(surplus)).lower


def _l1_2(dead: Interval, reach: Interval, gain: Interval, need: Interval) -> Radii:
    # Alone, a coordinate needs to go no further than half the need past its dead stretch.
    reach = minimum(reach, dead + (maximum(need, 0.0) * 0.5)[:, None])
    lag, end, c = dead.lower, reach.upper, np.maximum(need.lower, TINY)
    useful = end > lag

    def excess(multiplier: Radii) -> tuple[Radii, Radii]:
        price = multiplier[:, None]
        step = np.clip(price, lag, end)
        taken = useful & (2 * price * (step - lag) > step**2)
        moving = taken & (step < end)
        gained = np.sum(np.where(taken, 2 * (step - lag), 0.0), axis=-1)
        return gained - c, np.sum(np.where(moving, 2.0, 0.0), axis=-1)

    all_the_way = np.where(useful, end**2 / np.where(useful, end - lag, 1), 0.0)
    stop = np.max(np.maximum(all_the_way, end), axis=-1) * (1 + 2.0**-49)
    multiplier = crossing(excess, _positive(c / (2 * end.shape[-1])), _finite(stop))
    price = multiplier[:, None]
    step = exact(np.clip(price, lag, np.maximum(end, lag)))
    worth = maximum((step - lag) * (2 * price) - step * step, 0.0)
    return _root(need * multiplier - total(_select(useful, worth)))


@np.errstate(all="ignore")
def linf(z: Rows, w_i: Rows, w_j: Rows, *, q: float, domain: Domain) -> Radii:
    r"""Lower bounds of $\rho_\infty^q$."""
    upwards = w_j >= w_i
    sign = np.where(upwards, 1.0, -1.0)
    at, fall = exact(sign * z) - sign * w_i, exact(sign * w_j) - sign * z
    outside = np.zeros(len(z))
    if isinstance(domain, Box):
        below, above = exact(domain.lower) - w_j, exact(w_j) - domain.upper
        outside = np.maximum(np.max(np.maximum(below.lower, above.lower), axis=-1), 0.0)
    ways = _Ways(
        at, w_i == w_j, room(z, upwards, domain), room(z, ~upwards, domain), outside[:, None]
    )
    near = abs(fall).lower
    return _linf_inf(near, ways) if q == INF else _linf_single(w_i, w_j, near, ways, q)


@np.errstate(all="ignore")
def linf_reach(z: Rows, w_i: Rows, distance: Radii, domain: Domain) -> Radii:
    r"""Lower bounds of $\rho_\infty^q$ for any rivals no closer to z than a distance.

    Args:
        z: the points.
        w_i: the prototypes that keep them.
        distance: lower bounds of $|z - w_j|_\infty$.
        domain: where adversarial points are sought.
    """
    at, both = exact(z) - w_i, np.ones(z.shape, bool)
    ahead, behind = room(z, both, domain), room(z, ~both, domain)
    return _linf_inf(distance[:, None], _Ways(at, both, ahead, behind, np.zeros((len(z), 1))))


class _Ways(NamedTuple):
    at: Interval  # z in the frame of the pair
    shared: Bool[np.ndarray, "n d"]
    ahead: Interval  # room upwards in the frame
    behind: Interval  # and downwards
    outside: Float[np.ndarray, "n 1"]  # how far the rival is from the domain, or less

    def each(self) -> Iterator[tuple[Rows, Rows, Bool[np.ndarray, "n d"]]]:
        """Forward, then back around shared coordinates: upper bounds of at and room; who may."""
        yield self.at.upper, self.ahead.upper, np.ones(self.shared.shape, bool)
        yield (-self.at).upper, self.behind.upper, self.shared


def _linf_inf(near: Rows, ways: _Ways) -> Radii:
    far, steps = np.max(near, axis=-1, keepdims=True), []
    for at, wall, valid in ways.each():
        lack = down(far - at, 0.0)
        step = np.maximum(down(lack * 0.5), down(lack - wall, 0.0))
        step = np.maximum(step, down(ways.outside - at, 0.0))
        valid = valid & (up(at + wall, 0.0) >= ways.outside)
        steps.append(np.where(valid, step, INF))
    return np.min(steps, axis=(0, 2))


def _linf_single(w_i: Rows, w_j: Rows, near: Rows, ways: _Ways, q: float) -> Radii:
    r"""The least over k of weak-duality bounds of $\min_t f_k(t)$.

    With multipliers $y_l \ge 0$ of the other coordinates and y of k, $(b_l - t)_+^2 \ge
    2 y_l (b_l - t) - y_l^2$ and likewise for k; what remains is linear in t, which lies between
    known bounds. For q = 1 the multipliers are 0 or 1. The others' are $b_l - t_k$ for the largest
    b, whence prefix sums; everything is measured from the largest b.
    """
    pivot = np.max(near, axis=-1, keepdims=True)
    gap = abs(exact(w_j) - w_i)
    b = down(near - pivot)
    least = down(np.maximum((gap * 0.5).lower, ways.outside) - pivot)
    bounds = []
    for at, wall, valid in ways.each():
        a = up(at - pivot)
        most = up(a + wall)
        value = _single_bound(a, b, least, most, q)
        bounds.append(np.where(valid & (least <= most), value, INF))
    bound = np.min(bounds, axis=(0, 2))
    return bound if q == 1 else np.where(bound == INF, INF, _root(exact(bound)))


def _single_bound(a: Rows, b: Rows, least: Rows, most: Rows, q: float) -> Rows:
    ranked = -np.sort(-b, axis=-1)
    sums = running_totals(ranked)
    largest = _largest_other(b, ranked)
    t = np.clip(_minimiser(a, b, ranked, sums.lower, q), least, np.maximum(most, least))
    count = _rows_searchsorted(-ranked, -t)
    own = b > t
    others = count - own

    def chosen(totals: Interval, mine: Interval) -> Interval:
        """The sum over the others above t: a prefix, without k."""
        prefix = Interval(
            np.take_along_axis(totals.lower, count, -1), np.take_along_axis(totals.upper, count, -1)
        )
        return prefix - _select(own, mine)

    span = Interval(least, np.maximum(most, least))
    first = chosen(sums, exact(b))
    if q == 1:
        y = np.where(t >= a, 1.0, 0.0)
        # The largest other alone, whose multiplier cancels k's, settles ties at t.
        bound = first - exact(a) * y + span * (y - others)
        return np.maximum(bound.lower, down(largest - a))
    pulls = first - exact(t) * others
    y = np.maximum(t - a, 0.0)
    y = np.where(t < most, np.maximum(y, pulls.upper), y)
    squares = running_totals(rounding.square(ranked).lower)
    energy = chosen(squares, rounding.square(b)) - rounding.square(t) * others
    rest = (exact(y) - pulls) * span * 2.0
    return (energy - (exact(a) * 2.0 + y) * y + rest).lower


def _minimiser(a: Rows, b: Rows, ranked: Rows, sums: Rows, q: float) -> Rows:
    """The unclipped minimisers of f_k, as in jaxnpc.pairwise.linf."""
    first = _largest_other(b, ranked)
    if q == 1:
        second = _largest_other(b, ranked, 1)
        return np.where(first <= a, first, np.maximum(a, second))
    rank = np.arange(1, b.shape[-1] + 1)
    excess = sums[:, 1:] - rank * ranked
    m = _rows_searchsorted(excess - ranked, -a)
    t = (np.take_along_axis(sums, m, -1) + a) / (m + 1)
    lack = b - a
    m = np.maximum(_rows_searchsorted(excess, lack), 1)
    alone = (np.take_along_axis(sums, m, -1) - lack) / m
    return np.where(first <= a, first, np.where(b > t, alone, t))


def _largest_other(b: Rows, ranked: Rows, rank: int = 0) -> Rows:
    """For every k the largest, or the next, of the b_l with l != k; -inf where there is none."""
    padded = np.concatenate([ranked, np.full((len(b), 2), -INF)], axis=-1)
    here, after = padded[:, rank : rank + 1], padded[:, rank + 1 : rank + 2]
    return np.where(b >= here, after, here)


def _rows_searchsorted(rows: Rows, values: Rows) -> np.ndarray:
    return np.stack([np.searchsorted(*pair) for pair in zip(rows, values, strict=True)])


def _critical_ratio(cost: Rows, gain: Rows, need: Radii) -> Radii:
    """The gain per cost of the item that a fractional knapsack takes in part."""
    ratio = np.where(gain > 0, gain / np.where(cost > 0, cost, TINY), 0.0)
    order = np.argsort(-ratio, axis=-1)
    covered = np.cumsum(np.take_along_axis(gain, order, -1), axis=-1)
    useful = np.sum(gain > 0, axis=-1)
    last = np.maximum(np.minimum(np.sum(covered < need[:, None], axis=-1), useful - 1), 0)
    found = np.take_along_axis(ratio, np.take_along_axis(order, last[:, None], -1), -1)[:, 0]
    return np.clip(found, TINY, HUGE)


def _shrunk(radius: Radii, verified: Callable[[Radii], Bool[np.ndarray, " n"]]) -> Radii:
    """The radii, reduced until each is verified."""
    step = 2.0**-51
    while not (good := verified(radius) | (radius <= 0)).all():
        radius = np.where(good, radius, radius * (1 - min(step, 1.0)))
        step *= 4
    return radius


def _unreachable(reach: Interval, need: Interval, bound: Radii) -> Radii:
    return np.where(reach.upper < need.lower, INF, bound)


def _select(mask: Bool[np.ndarray, "n d"], x: Interval) -> Interval:
    return Interval(np.where(mask, x.lower, 0.0), np.where(mask, x.upper, 0.0))


def _root(squared: Interval) -> Radii:
    return rounding.sqrt(squared).lower


def _positive(x: Radii) -> Radii:
    return np.clip(x * (1 - 2.0**-50), TINY, HUGE)


def _finite(x: Radii) -> Radii:
    return np.minimum(x, HUGE)
