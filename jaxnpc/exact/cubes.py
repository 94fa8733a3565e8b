r"""The l-infinity classifier under linf perturbations: ties are points outside of cubes.

Within eps of z the domain leaves each coordinate an interval; let X be their product. Of all x in X
the closest to $w_j$ are at the distance

$$T = \max_k \min_{x \in X} |x_k - w_{jk}|,$$

and if any x in X is at least as close to $w_j$ as to every own prototype, so is one of these: where
$|x - w_j|_\infty = T + h$, clipping x to $w_j \pm T$ moves no coordinate by more than h, nor out of
its interval, which reaches as far; of $|x - w_i|_\infty \ge T + h$ there remains T. Hence eps
suffices for the rival j just if there is a point in

$$\{x \in X : |x - w_j|_\infty \le T\} \setminus
  \bigcup_{i \in I_y} \{x : |x - w_i|_\infty < T\},$$

a box less cubes. A cube can be left up or down along each coordinate; from when on it can be left
at all is its pair's radius (Lemma 2.9), which ignores that two cubes may ask one coordinate for
opposite ways. To find ways for all is as hard as SAT, but that is seldom felt: most coordinates are
asked for one way only, and taking those leaves few cubes.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from jaxnpc.batching import padded
from jaxnpc.bounds import Bounds, class_blocks
from jaxnpc.distances import rounding as sum_error
from jaxnpc.domains import Box, Domain
from jaxnpc.prototypes import PrototypeClassifier
from jaxnpc.rivals import against, prepare, survey
from jaxnpc.rounding import down, exact, maximum, minimum

EFFORT = 1 << 27
"""How many pairs of a cube and a way out are looked at, at most, for a point."""

OVERHEAD = 1 << 13
"""As how many of them a look counts, however few they are."""

FEW = 16
"""How many of the closest cubes are tried before all: most rivals fail already there."""

GAP = 2.0**-28
"""To what part of itself a radius is narrowed down."""

Vector = Float[np.ndarray, " d"]
Both = Float[np.ndarray, " two_d"]
"""A number for each coordinate of x, then one for each of -x."""


class Escapes(NamedTuple):
    """The nearest ties of n points.

    Attributes:
        radius: lower bounds, proved: those given, or greater ones where a complete search found
            nothing closer than the witness.
        witness: where a rival is closer than all own prototypes, by hardly more than rounding: as
            near as was found. Where nothing was, those given.
        rival: that rival; -1 where there is none.
        pair: the prototypes (i, j) of the bounds given; of a greater one those that all but tie at
            the witness, -1 where it is infinite.
        searches: how many boxes were searched.
    """

    radius: Float[np.ndarray, " n"]
    witness: Float[np.ndarray, "n d"]
    rival: Int[np.ndarray, " n"]
    pair: Int[np.ndarray, "n 2"]
    searches: Int[np.ndarray, " n"]


@np.errstate(all="ignore")  # distances that exceed float64 prove nothing, which is an answer
def escapes(
    classifier: PrototypeClassifier,
    points: Float[np.ndarray, "n d"],
    labels: Int[np.ndarray, " n"],
    bounds: Bounds,
    domain: Domain,
) -> Escapes:
    """Look for ties as near as the bounds, else for the nearest ones, and prove that they are.

    Args:
        classifier: the classifier, with the l-infinity distance.
        points: n points of the domain.
        labels: their classes, as indices.
        bounds: what `lower_bounds` gave for them and q = infinity.
        domain: where adversarial points are sought.

    Returns:
        The radii, the ties and their rivals.

    Example:
        >>> from jaxnpc.bounds import lower_bounds
        >>> from jaxnpc.domains import Unbounded
        >>> from jaxnpc.prototypes import prototype_classifier
        >>> z, label = np.array([[2.0, 0.0]]), np.array([0])
        >>> w = [[0.0, 0.0], [4.0, 0.0], [2.0, 3.0]]
        >>> classifier = prototype_classifier(w, [0, 0, 1], distance=math.inf)
        >>> bounds = lower_bounds(classifier, z, label, q=math.inf)
        >>> found = escapes(classifier, z, label, bounds, Unbounded())
        >>> bounds.radius.round(6).tolist(), found.radius.round(6).tolist()
        ([0.5], [1.0])
        >>> found.witness.round(6).tolist()
        [[2.0, 1.0]]
    """
    radius, pair, rival = bounds.radius.copy(), bounds.pair.copy(), bounds.pair[:, 1].copy()
    witness, searches = bounds.witness.astype(np.float64), np.zeros(len(points), np.int64)
    walls = np.full((2, points.shape[1]), np.inf)
    if isinstance(domain, Box):
        walls[0], walls[1] = domain.upper, -np.asarray(domain.lower, np.float64)
    space = prepare(classifier, math.inf)
    open_ = np.where((rival >= 0) & np.isfinite(radius), labels, -1)
    for label, rows, size in class_blocks(open_, len(space.labels)):
        cheap = survey(space, against(space, label), padded(points[rows], size), 0.0)
        floor, members = np.asarray(cheap.floor, np.float64), np.flatnonzero(space.labels == label)
        low, own = np.asarray(cheap.low)[:, members], _both(space.prototypes[members])
        for row, bound, near in zip(rows, floor, low, strict=False):
            closest = np.argsort(near)
            search = _Search(
                _both(points[row]), own, near[closest], closest, walls.ravel(), Effort(EFFORT)
            )
            found = search.nearest(space.prototypes, bound, float(radius[row]), int(rival[row]))
            searches[row] = search.effort.searches
            if found.witness is not None:
                witness[row], rival[row] = found.witness, found.rival
            if found.radius > radius[row]:
                radius[row], pair[row] = found.radius, -1
                if found.witness is not None:
                    at = np.max(own - _both(found.witness), axis=1).argmin()
                    pair[row] = members[at], found.rival
    return Escapes(radius, witness, rival, pair, searches)


class GivenUp(Exception):
    """The effort for a point is used up."""


@dataclass
class Effort:
    """What may still be looked at.

    Attributes:
        left: how many pairs of a cube and a way out.
        searches: how many boxes were searched so far.
    """

    left: int
    searches: int = 0

    def spend(self, pairs: int) -> None:
        """Count a look, or give up."""
        self.left -= pairs + OVERHEAD
        if self.left < 0:
            raise GivenUp


def outside(top: Both, edge: Float[np.ndarray, "n two_d"], effort: Effort) -> Both | None:
    """A part of a box that lies outside of n open boxes.

    Ways that none of the boxes still to be left opposes are taken to their end; the only way out of
    a box is taken; else ways are tried, those first that lead out of most boxes. A coordinate goes
    no further than a way asks for, so that others may ask for a place in between.

    Args:
        top: the greatest x and -x in the box.
        edge: for each open box what x or -x has to reach at one coordinate or more, to be outside.
        effort: what may be looked at.

    Returns:
        The greatest x and -x of a box all of which is outside; None if nothing is: the search is
        complete, and consists of comparisons, without any rounding.

    Raises:
        GivenUp: if it takes more effort.

    Example:
        >>> open_box, effort = np.array([[0.75, 0.5]]), Effort(1 << 20)  # from -0.5 to 0.75
        >>> outside(np.array([1.0, 0.0]), open_box, effort).tolist()  # within 0 to 1: at 1
        [1.0, -1.0]
        >>> outside(np.array([0.5, 0.0]), open_box, effort)  # within 0 to 0.5
    """
    other = np.roll(np.arange(top.size), top.size // 2)
    stack = [(top, np.arange(len(edge)))]
    while stack:
        top, left = stack.pop()
        while True:
            effort.spend(left.size * top.size)
            ahead = edge[left]
            inside = ~(ahead <= -top[other]).any(axis=1)
            left, ahead = left[inside], ahead[inside]
            if not left.size:
                return top
            way = ahead <= top
            ways = way.sum(axis=1)
            if not ways.all():
                break
            wanted = np.any(way, axis=0)
            free = wanted & ~wanted[other]
            if free.any():
                top = np.where(free[other], -top[other], top)
                continue
            i = ways.argmin()
            options = np.flatnonzero(way[i])
            end = ahead[i, options]
            weight, opposed = 1 / ways, other[options]
            won = weight @ (ahead[:, options] <= end)
            lost = weight @ (way[:, opposed] & (ahead[:, opposed] > -end))
            best = np.argmax(won - lost)
            if ways[i] > 1:
                rest = top.copy()
                rest[options[best]] = np.nextafter(end[best], -np.inf)
                stack.append((rest, left))
            top = top.copy()
            top[opposed[best]] = -end[best]
    return None


class _Nearest(NamedTuple):
    """A witness within `upper` for a rival, and a proved lower bound for all."""

    radius: float
    upper: float
    witness: Vector | None
    rival: int


@dataclass(frozen=True)
class _Search:
    """The boxes and cubes around one point.

    Attributes:
        z: the point, and its negative.
        own: the prototypes of its class, likewise.
        low: lower bounds of their distances from z, in ascending order.
        closest: which prototypes these are of.
        walls: the greatest x and -x of the domain.
        effort: what may be looked at.
    """

    z: Both
    own: Float[np.ndarray, "k two_d"]
    low: Float[np.ndarray, " k"]
    closest: Int[np.ndarray, " k"]
    walls: Both
    effort: Effort

    def nearest(
        self,
        prototypes: Float[np.ndarray, "K d"],
        floor: Float[np.ndarray, " K"],
        radius: float,
        rival: int,
    ) -> _Nearest:
        """The nearest witness: that of the bound's rival if it is as near as the bound.

        Args:
            prototypes: all of them.
            floor: for each rival a lower bound of how near it can be tied with; infinite for own.
            radius: a lower bound for all.
            rival: the one that it comes from.

        Returns:
            What was found, and a greater radius where that is proved.
        """
        first = _both(prototypes[rival])
        best = _Nearest(radius, math.inf, None, rival)
        try:
            trial = radius + 2 * self.slack(first)
            if (x := self.within(first, trial)) is not None:
                return _Nearest(radius, trial, x, rival)
            end, open_ = math.inf, list[Both]()
            for j in np.argsort(floor):
                w = _both(prototypes[j])
                if floor[j] >= best.upper:
                    break
                if self.never(w, end):
                    continue
                open_.append(w)
                high = min(best.upper * (1 - GAP), self.enough(w))
                if (x := self.within(w, high)) is None:
                    continue
                best, low = _Nearest(radius, high, x, int(j)), max(radius, float(floor[j]))
                while best.upper - low > GAP * best.upper:
                    middle = (low + best.upper) / 2
                    if (x := self.within(w, middle)) is None:
                        low = middle
                    else:
                        best = _Nearest(radius, middle, x, int(j))
                # A little below what was found, lest rounding blur it; no higher than before.
                end = min(end, best.upper * (1 - 2 * GAP) - 4 * self.slack(w))
            if end > radius and all(self.never(w, end) for w in open_):
                return best._replace(radius=end)
        except GivenUp:
            pass
        return best

    def within(self, w: Both, eps: float) -> Vector | None:
        """A point closer to a rival than to all own prototypes, if there is one within eps."""
        reach = np.minimum(self.z + eps, self.walls)
        least = max(np.max(w - reach), 0.0)
        top = self.left(np.minimum(reach, w + least), least + self.slack(w), eps)
        if top is None:
            return None
        d = top.size // 2
        return np.clip(self.z[:d], -top[d:], top[:d])

    def never(self, w: Both, eps: float) -> bool:
        """Whether no point within eps is as close to a rival as to all own prototypes: proved.

        Box and cubes are rounded in favour of such a point: the box up, the cubes down.
        """
        eps = min(eps, self.enough(w))
        reach = minimum(exact(self.z) + eps, np.maximum(self.walls, self.z))
        away = maximum(exact(w) - reach, 0.0)
        least, most = away.lower.max(), away.upper.max()
        return self.left(np.minimum(reach.upper, (exact(w) + most).upper), least, eps) is None

    def left(self, top: Both, half: float, eps: float) -> Both | None:
        """A part of a box within eps that lies outside of all cubes, given half their side."""
        self.effort.searches += 1
        # The others are farther away however z moves; to leave them out can only add to the rest.
        matter = self.closest[: np.searchsorted(self.low, eps + half)]
        for some in (matter[:FEW], matter):
            rest = outside(top, down(self.own[some] + half, 0.0), self.effort)
            if rest is None:
                break
        return rest

    def enough(self, w: Both) -> float:
        """More is never needed: z may go to w, and on to where w is outside of the domain."""
        return 2 * float((exact(self.z) - w).upper.max())

    def slack(self, w: Both) -> float:
        """By how much a witness is closer to the rival: what rounding may hide, and a push."""
        relative = 2 * sum_error(w.size // 2 + 4, np.float64) + 1e-12
        return self.enough(w) * relative + float(np.max(self.z)) * 2.0**-48


def _both(x: Float[np.ndarray, "*n d"]) -> Float[np.ndarray, "*n two_d"]:
    x = np.asarray(x, np.float64)
    return np.concatenate([x, -x], axis=-1)
