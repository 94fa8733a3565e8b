"""Independent answers for the radius of one (z, w_i, w_j): rational arithmetic, LP, QP and MILP.

`rational` follows the problem's structure in exact arithmetic and is meant for verdicts about the
last bit; `solver` hands the problem as it is defined to HiGHS or DAQP, which know nothing of that
structure, and is meant for verdicts about the mathematics. Both enumerate, so keep d small.
"""

import itertools
import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

INF = math.inf
# Above this many coordinates nothing is enumerated in place of a mixed-integer program.
LARGE = 6
Number = Fraction | float


def sample(rng: np.random.Generator, n: int, d: int, p: float) -> tuple[np.ndarray, ...]:
    """Triples of d coordinates, n of them, in and around the unit box.

    Shared coordinates, equal prototypes, z on a prototype, on the boundary of the box or midway,
    prototypes outside the box, coarse grids where everything ties. z is closer to w_i in all but a
    tenth of them.
    """
    z, w_i, w_j = rng.random((3, n, d))
    kind = rng.integers(0, 2, (8, n, 1)).astype(bool) & rng.integers(0, 2, (8, n, 1)).astype(bool)
    coin = rng.random((3, n, d)) < 0.4
    w_i, w_j = (np.where(kind[0], 2 * w - 0.5, w) for w in (w_i, w_j))
    w_j = np.where(kind[1] & coin[0], w_i, w_j)
    z = np.where(kind[2] & coin[1], np.round(z), z)
    z, w_i, w_j = (np.where(kind[3], np.round(4 * x) / 4, x) for x in (z, w_i, w_j))
    rare = rng.random((n, 1))
    z = np.where(kind[4] & (rare < 0.3), np.clip(w_i, 0, 1), z)
    z = np.where(kind[5] & (rare < 0.2), np.clip((w_i + w_j) / 2, 0, 1), z)
    w_j = np.where(rare > 0.98, w_i, w_j)
    z = np.where(kind[6] & coin[2], np.clip(w_j, 0, 1), z)
    nearer = np.linalg.norm(z - w_i, p, axis=1) < np.linalg.norm(z - w_j, p, axis=1)
    swap = (~nearer & (rng.random(n) < 0.9))[:, None]
    return z, np.where(swap, w_j, w_i), np.where(swap, w_i, w_j)


# Rational arithmetic.


def rational(z: Any, w_i: Any, w_j: Any, p: float, q: float, box: tuple[float, float] | None):
    """The minimal perturbation of the pair, exactly; its square for q = 2.

    Args:
        z: d floats, likewise w_i and w_j.
        w_i: see z.
        w_j: see z.
        p: the norm of the distance.
        q: the norm of the perturbation.
        box: the bounds of every coordinate, or None.

    Returns:
        A fraction, or infinity.
    """
    points = [list(map(Fraction, np.asarray(x, np.float64).tolist())) for x in (z, w_i, w_j)]
    walls = (-INF, INF) if box is None else tuple(map(Fraction, box))
    return {1: _rational_1, 2: _rational_2, INF: _rational_inf}[p](*points, q, *walls)


def overstated(radius: float, truth: Number, q: float) -> bool:
    """Whether a claimed radius exceeds what `rational` found."""
    if truth == INF or radius == 0:
        return False
    return radius == INF or Fraction(float(radius)) ** (2 if q == 2 else 1) > truth


def _first_crossing(function: Callable[[Fraction], Number], breaks: Iterable[Number]) -> Number:
    """The least t >= 0 where a nondecreasing function, linear between breaks, is not negative."""
    left, value = Fraction(0), function(Fraction(0))
    if value >= 0:
        return left
    for right in sorted({b for b in breaks if 0 < b < INF}):
        following = function(right)
        if following >= 0:
            return left - value * (right - left) / (following - value)
        left, value = right, following
    slope = function(left + 1) - value
    return left - value / slope if slope > 0 else INF


def _room(z: Fraction, up: bool, low: Number, high: Number) -> Number:
    return high - z if up else z - low


def _rational_2(z, w_i, w_j, q: float, low: Number, high: Number) -> Number:
    need = sum((x - b) ** 2 - (x - a) ** 2 for x, a, b in zip(z, w_i, w_j, strict=True)) / 2
    if need <= 0:
        return Fraction(0)
    items = [
        (abs(b - a), _room(x, b > a, low, high))
        for x, a, b in zip(z, w_i, w_j, strict=True)
        if a != b
    ]
    if q == 1:
        cost = Fraction(0)
        for speed, room in sorted(items, reverse=True):
            step = min(room, need / speed)
            cost, need = cost + step, need - step * speed
            if need == 0:
                return cost
        return INF
    if q == INF:
        return _first_crossing(
            lambda t: sum(s * min(t, u) for s, u in items) - need, [u for _, u in items]
        )
    multiplier = _first_crossing(
        lambda t: sum(s * min(t * s, u) for s, u in items) - need, [u / s for s, u in items]
    )
    return INF if multiplier == INF else sum(min(multiplier * s, u) ** 2 for s, u in items)


def _rational_1(z, w_i, w_j, q: float, low: Number, high: Number) -> Number:
    need = sum(abs(x - b) - abs(x - a) for x, a, b in zip(z, w_i, w_j, strict=True)) / 2
    if need <= 0:
        return Fraction(0)
    items = []
    for x, a, b in zip(z, w_i, w_j, strict=True):
        at, to = (x - a, b - x) if b >= a else (a - x, x - b)
        reach = min(_room(x, b >= a, low, high), max(to, 0))
        if reach > max(-at, 0):
            items.append((max(-at, Fraction(0)), reach))
    breaks = [t for item in items for t in item]
    if q == INF:
        return _first_crossing(
            lambda t: sum(max(min(t, end) - dead, 0) for dead, end in items) - need, breaks
        )
    best: Number = INF
    for size in range(1, len(items) + 1):
        for moved in itertools.combinations(items, size):
            if sum(end - dead for dead, end in moved) < need:
                continue
            if q == 1:
                best = min(best, sum(dead for dead, _ in moved) + need)
                continue
            t = _first_crossing(
                lambda t, moved=moved: sum(min(max(t, a), b) - a for a, b in moved) - need, breaks
            )
            best = min(best, sum(min(max(t, dead), end) ** 2 for dead, end in moved))
    return best


def _rational_inf(z, w_i, w_j, q: float, low: Number, high: Number) -> Number:
    near = [abs(x - b) for x, b in zip(z, w_j, strict=True)]
    if max(abs(x - a) for x, a in zip(z, w_i, strict=True)) >= max(near):
        return Fraction(0)
    ways = []  # coordinate, z in the frame, the gap, the room
    for l, (x, a, b) in enumerate(zip(z, w_i, w_j, strict=True)):
        ways += [
            (l, x - a if up else a - x, abs(b - a), _room(x, up, low, high))
            for up in ((True, False) if a == b else (b > a,))
        ]
    if q == INF:
        rising = [(at, room) for _, at, _, room in ways]
        falling = [(gap - at, room) for _, at, gap, room in ways if gap > 0]
        breaks = [room for _, room in rising]
        breaks += [v + r - at for v, r in rising for at, _ in rising if r < INF]
        breaks += [at - v + r for v, r in falling for at, _ in falling if r < INF]
        return _first_crossing(
            lambda t: (
                max(at + min(t, room) for at, room in rising)
                - max(at - min(t, room) for at, room in falling)
            ),
            breaks,
        )
    outside = max(max(low - b, b - high, 0) for b in w_j)
    best: Number = INF
    for k, at, gap, room in ways:
        least, most = max(gap / 2, outside), at + room
        if least > most:
            continue
        others = [b for l, b in enumerate(near) if l != k]

        def cost(t: Fraction, at=at, gap=gap, others=others) -> Fraction:
            own = max(t - at, at - gap - t, 0)
            return own**q + sum(max(b - t, 0) ** q for b in others)

        kinks = sorted({t for t in (*others, at, at - gap, most) if least < t <= most and t < INF})
        ends = [Fraction(least), *kinks]
        best = min(best, *map(cost, ends))
        for left, right in itertools.pairwise(ends) if q == 2 else ():
            # The vertex of the parabola through three points of the piece.
            middle = (left + right) / 2
            y0, y1, y2 = cost(left), cost(middle), cost(right)
            bend = y0 - 2 * y1 + y2
            if bend > 0:
                vertex = middle + (y0 - y2) * (right - left) / (4 * bend)
                best = min(best, cost(min(max(vertex, left), right)))
    return best


# Solvers.


def solver(z, w_i, w_j, p: float, q: float, box: tuple[float, float] | None) -> float:
    """The minimal perturbation of the pair by a generic solver, to its tolerance.

    Args:
        z: d floats, likewise w_i and w_j.
        w_i: see z.
        w_j: see z.
        p: the norm of the distance.
        q: the norm of the perturbation.
        box: the bounds of every coordinate, or None.

    Returns:
        The radius; infinite where the solver finds no feasible point.
    """
    if np.linalg.norm(z - w_i, p) >= np.linalg.norm(z - w_j, p):
        return 0.0
    walls = (-INF, INF) if box is None else box
    if p == 1 and q != 2:
        loose, polished = _mixed_1(z, w_i, w_j, q, walls).solve()
        met = polished < INF and np.isclose(loose, polished, rtol=1e-8, atol=1e-9)
        if len(z) > LARGE or met:
            return polished
        # A tie that presolve took for infeasible, or a binary within HiGHS's tolerance: enumerate.
    pieces = _PIECES[p](z, w_i, w_j)
    return min((_nearest(z, *piece, q, walls) for piece in pieces), default=INF)


class _Model(NamedTuple):
    """min cost v s.t. matrix v <= rhs, low <= v <= high, v integral where binary."""

    cost: np.ndarray
    matrix: np.ndarray
    rhs: np.ndarray
    low: np.ndarray
    high: np.ndarray
    binary: np.ndarray

    def solve(self) -> tuple[float, float]:
        """The optimum, and that of the linear program which its binaries leave."""
        found = self._highs(self.low, self.high, self.binary)
        if found.x is None:
            return INF, INF
        fixed = np.where(self.binary, np.round(found.x), np.nan)
        low, high = (np.where(self.binary, fixed, side) for side in (self.low, self.high))
        polished = (
            self._highs(low, high, np.zeros_like(self.binary)) if self.binary.any() else found
        )
        return float(found.fun), INF if polished.x is None else float(polished.fun)

    def _highs(self, low, high, integral):
        from scipy.optimize import Bounds, LinearConstraint, milp

        return milp(
            self.cost,
            constraints=LinearConstraint(self.matrix, -np.inf, self.rhs),
            bounds=Bounds(low, high),
            integrality=integral.astype(int),
            options={"mip_rel_gap": 0.0},
        )


def _model(z, q: float, low, high, rows, rhs, extra: int = 0, binary: int = 0) -> _Model:
    """A model over (x, non-negative variables, binaries, t) with |x - z|_q as its cost."""
    d, times = len(z), len(z) if q == 1 else 1
    spread = np.eye(d) if q == 1 else np.ones((d, 1))
    size = d + extra + binary + times
    distance = np.zeros((2 * d, size))
    distance[:d, :d], distance[d:, :d] = np.eye(d), -np.eye(d)
    distance[:d, -times:] = distance[d:, -times:] = -spread
    matrix = np.vstack([np.pad(rows, ((0, 0), (0, times))), distance])
    least = np.concatenate([low, np.zeros(extra + binary + times)])
    most = np.concatenate([high, np.full(extra, INF), np.ones(binary), np.full(times, INF)])
    kind = np.zeros(size, bool)
    kind[d + extra : d + extra + binary] = True
    cost = np.concatenate([np.zeros(size - times), np.ones(times)])
    return _Model(cost, matrix, np.concatenate([rhs, z, -z]), least, most, kind)


def _mixed_1(z, w_i, w_j, q: float, walls) -> _Model:
    """Each coordinate's clipped progress c <= D y, c <= s (x - w_i) + M (1 - y), y binary."""
    d, sign, gap = len(z), np.where(w_j >= w_i, 1.0, -1.0), np.abs(w_j - w_i)
    big = 2 + 4 * np.max(np.abs([z, w_i, w_j]))
    eye, none = np.eye(d), np.zeros((d, d))
    rows = np.vstack(
        [
            np.hstack([none, eye, -np.diag(gap)]),
            np.hstack([-np.diag(sign), eye, big * eye]),
            np.concatenate([np.zeros(d), -np.ones(d), np.zeros(d)])[None],
        ]
    )
    rhs = np.concatenate([np.zeros(d), big - sign * w_i, [-gap.sum() / 2]])
    low, high = (np.full(d, wall) for wall in walls)
    return _model(z, q, low, high, rows, rhs, extra=d, binary=d)


def _nearest(z, matrix, rhs, low, high, q: float, walls) -> float:
    """The distance of z from {low <= x <= high, matrix x <= rhs} within the walls."""
    low, high = np.maximum(low, walls[0]), np.minimum(high, walls[1])
    if np.any(low > high):
        return INF
    if q == 2:
        return _project(z, matrix, rhs, low, high)
    return _model(z, q, low, high, matrix, rhs).solve()[1]


def _project(z, matrix, rhs, low, high) -> float:
    import daqp

    bounds = (
        np.concatenate([high - z, rhs - matrix @ z]),
        np.concatenate([low - z, np.full(len(rhs), -INF)]),
    )
    upper, lower = (np.clip(side, -1e30, 1e30) for side in bounds)
    x, _, flag, _ = daqp.solve(
        np.eye(len(z)), np.zeros(len(z)), np.ascontiguousarray(matrix), upper, lower,
        primal_tol=1e-10,
    )  # fmt: skip
    return float(np.linalg.norm(x)) if flag > 0 else INF


def _pieces_2(z, w_i, w_j):
    free = np.full(len(z), INF)
    yield (w_i - w_j)[None], np.array([(w_i @ w_i - w_j @ w_j) / 2]), -free, free


def _pieces_1(z, w_i, w_j):
    """Each coordinate below, between or above the prototypes: |x - w_i|_1 - |x - w_j|_1 linear."""
    sign, gap = np.where(w_j >= w_i, 1.0, -1.0), np.abs(w_j - w_i)
    low, high = np.minimum(w_i, w_j), np.maximum(w_i, w_j)
    for pattern in itertools.product(*[(0, 1, 2) if g > 0 else (3,) for g in gap]):
        where = np.array(pattern)
        between = where == 1
        before = np.where(sign > 0, where == 0, where == 2)
        after = np.where(sign > 0, where == 2, where == 0)
        least = np.where(between, low, np.where(after, high, -INF))
        most = np.where(between, high, np.where(before, low, INF))
        score = np.where(where == 2, gap, np.where(where == 3, 0.0, -gap))
        row = np.where(between, -2 * sign, 0.0)
        yield row[None], np.array([score.sum() + row @ w_i]), least, most


def _pieces_inf(z, w_i, w_j):
    """Coordinate k the farthest from w_i, on either side, and no one farther from w_j than that."""
    d = len(z)
    free = np.full(d, INF)
    for k, sign in itertools.product(range(d), (1.0, -1.0)):
        lead = np.zeros((2 * d, d))
        lead[:, k] = sign
        matrix = np.vstack([np.eye(d), -np.eye(d)]) - lead
        yield matrix, np.concatenate([w_j, -w_j]) - sign * w_i[k], -free, free


_PIECES = {1: _pieces_1, 2: _pieces_2, INF: _pieces_inf}


def moved_sets(z, w_i, w_j, box: tuple[float, float] | None) -> float:
    """The minimal l2 perturbation of an l1 pair over every set of coordinates that may move."""
    sign = np.where(w_j >= w_i, 1.0, -1.0)
    at = sign * (z - w_i)
    need = (np.abs(z - w_j).sum() - np.abs(z - w_i).sum()) / 2
    if need <= 0:
        return 0.0
    room = np.full(len(z), INF) if box is None else np.where(sign > 0, box[1] - z, z - box[0])
    end, dead = np.minimum(room, np.maximum(sign * (w_j - z), 0)), np.maximum(-at, 0)
    useful = np.flatnonzero(end > dead)
    best = INF
    for size in range(1, len(useful) + 1):
        for moved in itertools.combinations(useful, size):
            rows = list(moved)
            a, b = dead[rows], end[rows]
            if np.sum(b - a) >= need and np.sum(a**2) < best**2:
                cover = -np.ones((1, size)), np.array([-need - a.sum()])
                best = min(best, _project(np.zeros(size), *cover, a, b))
    return best


def classifier(z, own, rivals, p: float, q: float, box: tuple[float, float] | None) -> float:
    """The minimal perturbation to where a rival is as close as all own prototypes; p = 1 or 2."""
    walls = (-INF, INF) if box is None else box
    near = np.linalg.norm(z - own, p, axis=1).min()
    if near >= np.linalg.norm(z - rivals, p, axis=1).min():
        return 0.0
    pieces = _SHARED[p]
    return min(_nearest(z, *piece, q, walls) for w_j in rivals for piece in pieces(own, w_j))


def _shared_2(own, w_j):
    free = np.full(len(w_j), INF)
    yield own - w_j, (np.sum(own**2, axis=1) - w_j @ w_j) / 2, -free, free


def _shared_1(own, w_j):
    """The cells of the grid through all prototypes, on which every distance is linear."""
    together = np.vstack([w_j, own])
    stops = [np.concatenate([[-INF], np.unique(column), [INF]]) for column in together.T]
    for cell in itertools.product(*[range(len(s) - 1) for s in stops]):
        low, high = (
            np.array([s[k + side] for s, k in zip(stops, cell, strict=True)]) for side in (0, 1)
        )
        # |x - w| = slope * (x - w) on the cell, summed over the coordinates.
        slope = np.where(together <= low, 1.0, -1.0)
        constant = np.sum(slope * together, axis=1)
        yield slope[0] - slope[1:], constant[0] - constant[1:], low, high


_SHARED = {1: _shared_1, 2: _shared_2}
