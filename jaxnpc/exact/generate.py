r"""Exact minimal adversarial perturbations: which rival to study next, and with which rows.

$$\epsilon(z) = \min_{j \notin I_y} r_j, \qquad r_j = \min_{x \in X} |x - z|_q
  \ \text{ s.t. }\ d(x, w_j) \le d(x, w_i)\ \ \forall i \in I_y$$

(paper, Theorem 2.6). Every rival j carries a proved lower bound of r_j from the start, and each
visit raises it: first by its closest own prototype alone, then by solving with a few own
prototypes, to which the most violated one is added until none is (constraint generation). Rivals
whose bound reaches the best r_j found are never visited. Whenever the search stops, the least bound
is a certificate.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import ArrayLike, Bool, Float, Int

from jaxnpc.distances import named_norm
from jaxnpc.domains import Box, Domain, check, check_inside
from jaxnpc.exact.closed import Clipped
from jaxnpc.exact.euclidean import HalfSpaces
from jaxnpc.exact.problem import Batch, Pairs, Problem
from jaxnpc.prototypes import PrototypeClassifier, as_points, real_array

# Entries of the table of bounds, points times prototypes, that are held at a time.
TABLE = 2**23
CHUNK = 1024
# How many rivals of each point are looked at before any has been solved.
FIRST = 8
# By what factor the number of rivals of a point that advance together grows each time.
GROWTH = 1.3
WIDTHS = (4, 8, 16, 32, 64, 128, 256, 512)
"""How many rows sub-problems may have: each width is one program."""


@dataclass(frozen=True)
class ExactRadius:
    r"""Minimal adversarial perturbations of n points, from both sides.

    Attributes:
        lower: proved lower bounds, under rounding too: no admissible point strictly closer than
            this ties with or beats the class. 0 for points that are misclassified, tied or not
            finite, infinite where no admissible point changes the class.
        upper: the distance of the witness, infinite where none is known.
        witness: the nearest admissible point at which the rival ties or wins, to float64 rounding;
            the point itself where there is none.
        pair: an own prototype that ties there, and the rival; -1 where there are none.
        multipliers: of the pair's sub-problem: own prototypes and their weights, a few a point.
        subproblems: how many sub-problems with a few own prototypes were solved for each point.
        exact: whether the bounds agree to the tolerance.
    """

    lower: Float[np.ndarray, " n"]
    upper: Float[np.ndarray, " n"]
    witness: Float[np.ndarray, "n d"]
    pair: Int[np.ndarray, "n 2"]
    multipliers: tuple[dict[int, float], ...]
    subproblems: Int[np.ndarray, " n"]
    exact: Bool[np.ndarray, " n"]


def minimal_perturbation(
    classifier: PrototypeClassifier,
    points: Float[ArrayLike, "n d"],
    labels: Int[ArrayLike, " n"],
    *,
    q: float,
    domain: Domain,
    upper: Float[ArrayLike, "*n"] | None = None,
    tolerance: float = 1e-6,
    seconds: float = math.inf,
    problem: Problem | None = None,
    progress: Callable[[int], object] | None = None,
) -> ExactRadius:
    """The distance of the nearest admissible input that is not assigned to the label.

    Args:
        classifier: with the l2 distance, a linear metric before it or not, for every q; or with the
            l1 distance for q = inf.
        points: n points of the domain.
        labels: their classes, indices into the classifier's.
        q: the norm of the perturbation: 1, 2 or infinity.
        domain: where inputs live.
        upper: radii beyond which nothing need be found, one a point or one for all: the search for
            a point ends once its lower bound reaches that.
        tolerance: the relative gap up to which a radius counts as exact.
        seconds: the time after which to stop with what has been proved.
        problem: what `prepare` gave for this classifier and q, to spare repeating it.
        progress: called with the number of points finished, as they finish.

    Returns:
        Both bounds of each radius, the witness and how it was found.

    Raises:
        ValueError: if the distance and q have no exact method, or a shape, a label or a point does
            not fit the classifier or the domain.

    Example:
        >>> from jaxnpc.domains import Unbounded
        >>> from jaxnpc.prototypes import prototype_classifier
        >>> corner = prototype_classifier([[0.0, 0.0], [5.0, 0.0], [0.0, 2.0]], ["a", "b", "b"])
        >>> found = minimal_perturbation(corner, [[1.0, 0.0]], [0], q=1, domain=Unbounded())
        >>> found.upper.round(6).tolist(), found.witness.round(6).tolist(), found.exact.tolist()
        ([1.0], [[1.0, 1.0]], [True])

    References:
        Voracek and Hein: Provably adversarially robust nearest prototype classifiers, 2022.
    """
    problem = prepare(classifier, q) if problem is None else problem
    z, y = _checked(classifier, points, labels, domain)
    low, high = _walls(domain, z)
    end = time.monotonic() + seconds
    n = len(z)
    result = ExactRadius(
        lower=np.zeros(n),
        upper=np.zeros(n),
        witness=z.copy(),
        pair=np.full((n, 2), -1),
        multipliers=(),
        subproblems=np.zeros(n, int),
        exact=np.ones(n, bool),
    )
    limit = np.broadcast_to(np.asarray(np.inf if upper is None else upper, np.float64), n)
    multipliers: list[dict[int, float]] = [{} for _ in range(n)]
    proper = np.flatnonzero(np.isfinite(z).all(axis=1))
    count = max(1, min(CHUNK, TABLE // len(classifier.prototypes)))
    if progress is not None and len(proper) < n:
        progress(n - len(proper))
    for start in range(0, len(proper), count):
        rows = proper[start : start + count]
        # Numbers whose squares overflow prove nothing, which is an answer.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            bounds, closest = _screened(problem, z[rows], y[rows], count)
            batch = Batch(z[rows], y[rows], closest, low[rows], high[rows])
            search = _Search(problem, batch, q, bounds, limit[rows], end)
            search.run()
        result.lower[rows], result.upper[rows] = search.lower(), search.best
        witness = z[rows] + search.step
        if isinstance(domain, Box):  # the sum is rounded
            witness = np.clip(witness, np.asarray(domain.lower), np.asarray(domain.upper))
        result.witness[rows], result.pair[rows] = witness, search.pair
        result.subproblems[rows] = search.solved
        for row, found in zip(rows, search.multipliers, strict=True):
            multipliers[row] = found
        if progress is not None:
            progress(len(rows))
    with np.errstate(invalid="ignore"):
        close = result.upper - result.lower <= tolerance * result.upper
    exact = np.where(np.isinf(result.upper), np.isinf(result.lower), close)
    return replace(result, multipliers=tuple(multipliers), exact=exact)


@dataclass
class _Open:
    """Rivals under study, one entry each: with rows of own prototypes, or not yet."""

    point: Int[np.ndarray, " m"]
    rival: Int[np.ndarray, " m"]
    bound: Float[np.ndarray, " m"]
    rows: Int[np.ndarray, "m k"]
    done: Bool[np.ndarray, " m"]


@dataclass
class _Search:
    """The search for a chunk of points."""

    problem: Problem
    batch: Batch
    q: float
    bounds: Float[np.ndarray, "n K"]
    limit: Float[np.ndarray, " n"]
    end: float
    best: Float[np.ndarray, " n"] = field(init=False)
    step: Float[np.ndarray, "n d"] = field(init=False)
    pair: Int[np.ndarray, "n 2"] = field(init=False)
    solved: Int[np.ndarray, " n"] = field(init=False)
    multipliers: list[dict[int, float]] = field(init=False)
    open: _Open = field(init=False)

    def __post_init__(self) -> None:
        n = len(self.batch.points)
        self.best = np.full(n, np.inf)
        self.step = np.zeros_like(self.batch.points)
        self.pair = np.full((n, 2), -1)
        self.solved = np.zeros(n, int)
        self.multipliers = [{} for _ in range(n)]
        none = np.zeros(0, int)
        self.open = _Open(none, none, np.zeros(0), np.zeros((0, WIDTHS[0]), int), none == 1)

    def run(self) -> None:
        """Visit the rivals of smallest bounds, then all that may still be the nearest."""
        first = min(FIRST, self.bounds.shape[1])
        rival = np.argpartition(self.bounds, first - 1, axis=1)[:, :first]
        point = np.repeat(np.arange(len(rival)), first)
        wanted = (self.bounds[point, rival.ravel()] < self._ceiling()[point]).nonzero()[0]
        self._visit(point[wanted], rival.ravel()[wanted])
        self._solve()
        self._visit(*np.nonzero(self.bounds < self._ceiling()[:, None]))
        self._solve()

    def lower(self) -> Float[np.ndarray, " n"]:
        """The least bound over all rivals."""
        lower = self.bounds.min(axis=1)
        np.minimum.at(lower, self.open.point, self.open.bound)
        return np.minimum(lower, self.best)

    def _ceiling(self) -> Float[np.ndarray, " n"]:
        return np.minimum(self.best, self.limit)

    def _late(self) -> bool:
        return time.monotonic() > self.end

    def _visit(self, point: Int[np.ndarray, " m"], rival: Int[np.ndarray, " m"]) -> None:
        """Open rivals, and raise their bounds by one own prototype each."""
        if self._late() or not len(point):
            return
        ceiling = self._ceiling()[point]
        bound = self.problem.single(Pairs(self.batch, point, rival), ceiling)
        bound = np.maximum(bound, self.bounds[point, rival])
        self.bounds[point, rival] = np.inf
        rows = np.full((len(point), self.open.rows.shape[1]), -1)
        rows[:, 0] = self.batch.closest[point]
        new = _Open(point, rival, bound, rows, np.zeros(len(point), bool))
        self.open = _Open(
            *(np.concatenate([getattr(self.open, f), getattr(new, f)]) for f in vars(new))
        )

    def _solve(self) -> None:
        """Advance each point's open rival of smallest bound, until none is below the best."""
        breadth = 1.0
        while not self._late():
            o = self.open
            live = np.flatnonzero(~o.done & (o.bound < self._ceiling()[o.point]))
            if not len(live):
                return
            order = live[np.lexsort((o.bound[live], o.point[live]))]
            _, first, of = np.unique(o.point[order], return_index=True, return_inverse=True)
            rank = np.arange(len(order)) - first[of]
            self._advance(order[rank < breadth])
            breadth *= GROWTH

    def _advance(self, at: Int[np.ndarray, " m"]) -> None:
        o = self.open
        used = (o.rows[at] >= 0).sum(axis=1)
        for width in WIDTHS:
            part = at[(used <= width) & (used > width // 2 * (width > WIDTHS[0]))]
            if len(part):
                self._advance_width(part, width)

    def _advance_width(self, at: Int[np.ndarray, " m"], width: int) -> None:
        o = self.open
        point, rival, rows = o.point[at], o.rival[at], o.rows[at, :width]
        pairs = Pairs(self.batch, point, rival)
        found = self.problem.solve(pairs, rows)
        np.add.at(self.solved, point, 1)
        o.bound[at] = np.maximum(o.bound[at], found.bound)
        # Those that remain below the best are worth looking at all own prototypes.
        alive = np.flatnonzero(o.bound[at] < self._ceiling()[point])
        at, point, rival, rows = at[alive], point[alive], rival[alive], rows[alive]
        step, weights = found.step[alive], found.multipliers[alive]
        gap = self.problem.violation(pairs.take(alive), step)
        known = np.any(rows == gap.own[:, None], axis=1)
        met = gap.worst <= gap.noise
        o.done[at[known | met]] = True
        self._record(point[met], rival[met], step[met], rows[met], weights[met], gap.own[met])
        more = ~(known | met)
        self._add(at[more], gap.own[more])

    def _record(
        self,
        point: Int[np.ndarray, " m"],
        rival: Int[np.ndarray, " m"],
        step: Float[np.ndarray, "m d"],
        rows: Int[np.ndarray, "m k"],
        weights: Float[np.ndarray, "m k"],
        own: Int[np.ndarray, " m"],
    ) -> None:
        size = np.linalg.norm(step, ord=self.q, axis=1)
        for m in np.flatnonzero(size < self.best[point]):
            p = point[m]
            if size[m] >= self.best[p]:
                continue
            self.best[p], self.step[p], self.pair[p] = size[m], step[m], (own[m], rival[m])
            some = weights[m] > 0
            self.multipliers[p] = dict(
                zip(rows[m, some].tolist(), weights[m, some].tolist(), strict=True)
            )

    def _add(self, at: Int[np.ndarray, " m"], own: Int[np.ndarray, " m"]) -> None:
        """One more own prototype for each of some open rivals."""
        o = self.open
        slot = (o.rows[at] >= 0).sum(axis=1)
        if np.any(slot == o.rows.shape[1]):
            o.rows = np.pad(o.rows, ((0, 0), (0, o.rows.shape[1])), constant_values=-1)
        o.rows[at, slot] = own


def prepare(classifier: PrototypeClassifier, q: float) -> Problem:
    """What every search needs of a classifier and q, done once.

    Args:
        classifier: the classifier.
        q: the norm of the perturbation.

    Returns:
        The problem, to be passed to `minimal_perturbation`.

    Raises:
        ValueError: if the distance and q have no exact method.
    """
    named_norm(q, "q")
    prototypes = np.asarray(classifier.prototypes, np.float64)
    prototypes = prototypes.reshape(len(prototypes), -1)
    labels = np.asarray(classifier.labels)
    if classifier.distance == 2 and q in (1, 2, math.inf):
        metric = classifier.metric
        metric = None if metric is None else np.asarray(metric, np.float64)
        return HalfSpaces(prototypes, labels, q, metric)
    if classifier.distance == 1 and q == math.inf:
        return Clipped(prototypes, labels)
    raise ValueError(
        f"distance = {classifier.distance!r} and q = {q!r} have no exact method: that is known for "
        "distance 2 with q = 1, 2 and inf, and for distance 1 with q = inf; use lower bounds"
    )


def _checked(
    classifier: PrototypeClassifier,
    points: Float[ArrayLike, "n d"],
    labels: Int[ArrayLike, " n"],
    domain: Domain,
) -> tuple[Float[np.ndarray, "n d"], Int[np.ndarray, " n"]]:
    z = as_points(classifier, real_array(points, "points"))
    z = z.reshape(len(z), math.prod(z.shape[1:]))
    check_inside(z, check(domain, z.shape[1]), "points")
    y = np.asarray(labels)
    if y.shape != (len(z),) or not np.issubdtype(y.dtype, np.integer):
        raise ValueError(f"labels has shape {y.shape} and type {y.dtype}: give {len(z)} indices")
    known = np.isin(y, np.asarray(classifier.labels))
    if not known.all():
        raise ValueError(f"labels contains {y[~known][0]}, of which there is no prototype")
    return z.astype(np.float64), y


def _walls(
    domain: Domain, z: Float[np.ndarray, "n d"]
) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, "n d"]]:
    """How far each coordinate can move down and up: nowhere at a wall, though it was rounded."""
    if not isinstance(domain, Box):
        return np.full(z.shape, -np.inf), np.full(z.shape, np.inf)
    low, high = (np.asarray(x, np.float64) for x in (domain.lower, domain.upper))
    return np.minimum(low - z, 0), np.maximum(high - z, 0)


def _screened(
    problem: Problem, z: Float[np.ndarray, "n d"], y: Int[np.ndarray, " n"], count: int
) -> tuple[Float[np.ndarray, "n K"], Int[np.ndarray, " n"]]:
    n = len(z)
    size = min(count, 1 << max(n - 1, 0).bit_length())
    padding = np.zeros(max(size - n, 0), int)
    bounds, closest = problem.screen(
        np.concatenate([z, z[padding]]), np.concatenate([y, y[padding]])
    )
    return bounds[:n], closest[:n]
