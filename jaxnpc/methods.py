"""What computes the radii: one function a method, and where each is available."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from jaxnpc import rounding
from jaxnpc.bounds import lower_bounds, margin_bounds
from jaxnpc.domains import Domain
from jaxnpc.exact.cubes import escapes
from jaxnpc.exact.generate import minimal_perturbation, prepare
from jaxnpc.prototypes import PrototypeClassifier

FALLBACK = ("exact", "bound", "margin")
"""The methods from the best to the one that is always available."""

EXACT = {(2, 1), (2, 2), (2, math.inf), (1, math.inf), (math.inf, math.inf)}
"""The (p, q) whose minimal perturbations are computed; (1, 1), (1, 2) and p = inf are NP-hard.

Of the latter (inf, inf) is searched nevertheless: a point that takes too long keeps its bound.
"""


class Found(NamedTuple):
    """What a method gives for n points.

    Attributes:
        radius: the proved lower bounds; infinite where no admissible point leaves the class.
        near: where to look for an adversarial point.
        rival: the prototype that is as close there as those of the class, -1 where there is none.
        pair: the prototypes (i, j) behind each bound, -1 where there are none.
        subproblems: how many optimisation problems were solved for each.
    """

    radius: Float[np.ndarray, " n"]
    near: Float[np.ndarray, "n *d"]
    rival: Int[np.ndarray, " n"]
    pair: Int[np.ndarray, "n 2"]
    subproblems: Int[np.ndarray, " n"]


Method = Callable[
    [Float[np.ndarray, "n *d"], Int[np.ndarray, " n"], Callable[[int], object]], Found
]
"""Points and their classes in, radii out: a method made ready for a classifier, q and domain.

Meanwhile it calls its last argument with numbers of points that are finished."""


def _exact(classifier: PrototypeClassifier, q: float, domain: Domain) -> Method:
    """The minimal perturbation itself (Theorem 2.6, Algorithm 1)."""
    if classifier.distance == math.inf:
        return _searched(classifier, q, domain)
    problem = prepare(classifier, q)

    def method(
        points: Float[np.ndarray, "n *d"],
        label: Int[np.ndarray, " n"],
        progress: Callable[[int], object],
    ) -> Found:
        result = minimal_perturbation(
            classifier, points, label, q=q, domain=domain, problem=problem, progress=progress
        )
        pair = result.pair
        return Found(result.lower, result.witness, pair[:, 1], pair, result.subproblems)

    return method


def _searched(classifier: PrototypeClassifier, q: float, domain: Domain) -> Method:
    """The same for the l-infinity distance: the bound, and a search for a point that meets it."""

    def method(
        points: Float[np.ndarray, "n *d"],
        label: Int[np.ndarray, " n"],
        progress: Callable[[int], object],
    ) -> Found:
        bound = lower_bounds(classifier, points, label, q=q, domain=domain, progress=progress)
        found = escapes(classifier, points, label, bound, domain)
        solved = bound.evaluated + found.searches
        return Found(found.radius, found.witness, found.rival, found.pair, solved)

    return method


def _bound(classifier: PrototypeClassifier, q: float, domain: Domain) -> Method:
    """The best bound from pairs of prototypes (Lemma 2.9)."""

    def method(
        points: Float[np.ndarray, "n *d"],
        label: Int[np.ndarray, " n"],
        progress: Callable[[int], object],
    ) -> Found:
        result = lower_bounds(classifier, points, label, q=q, domain=domain, progress=progress)
        pair = result.pair
        return Found(result.radius, result.witness, pair[:, 1], pair, result.evaluated)

    return method


def _margin(classifier: PrototypeClassifier, q: float, domain: Domain) -> Method:
    """Half the hypothesis margin (Theorem 2.4), brought into the q-norm; the domain cannot help."""
    steepness = None if callable(classifier.distance) else _steepness(classifier, q)

    def method(
        points: Float[np.ndarray, "n *d"],
        label: Int[np.ndarray, " n"],
        progress: Callable[[int], object],
    ) -> Found:
        result = margin_bounds(classifier, points, label)
        progress(len(points))
        radius = result.radius
        if steepness is not None:
            radius = np.maximum(rounding.down(radius / steepness), 0.0)
        rivals = np.asarray(classifier.prototypes, np.float64)[result.pair[:, 1]]
        return Found(radius, rivals, result.pair[:, 1], result.pair, result.evaluated)

    return method


def _steepness(classifier: PrototypeClassifier, q: float) -> float:
    """The least c, rounded up, for which all distances change by at most c |x - z|_q."""
    if classifier.metric is None:
        # |x|_p <= d^(1/p - 1/q) |x|_q for p < q, and <= |x|_q otherwise.
        assert not callable(classifier.distance)
        power = max(0.0, 1 / classifier.distance - 1 / q)
        return classifier.prototypes.shape[1] ** power * (1 + 1e-12) if power else 1.0
    a = np.asarray(classifier.metric, np.float64)
    c = {
        1: np.linalg.norm(a, axis=0).max(),
        2: np.linalg.norm(a, 2),
        math.inf: np.linalg.norm(np.abs(a).sum(axis=1)),  # an upper bound: the least c is NP-hard
    }[q]
    # The norms are computed backward stably, but for squares that are flushed to 0: an error far
    # below this, which also is the steepness of a map to a single point.
    return float(c) * (1 + 1e-9) + a.size * 1e-150


METHODS: dict[str, Callable[[PrototypeClassifier, float, Domain], Method]] = {
    "exact": _exact,
    "bound": _bound,
    "margin": _margin,
}
"""What makes each method ready, by its name."""
