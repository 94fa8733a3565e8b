"""Points that leave their class: found near a given one, verified in float64, pulled back."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxnpc import rounding
from jaxnpc.decisions import crosses, leaves
from jaxnpc.domains import Box, Domain
from jaxnpc.prototypes import PrototypeClassifier

PUSHES = (1e-12, 1e-11, 1e-10, 1e-8, 1e-6, 1e-4, 1e-2, 1e-1, 1.0)
"""How far beyond a point of the boundary a witness is looked for, relative to a direction."""

Points = Float[np.ndarray, "n d"]


def gap(x: Points, y: Points, q: float) -> Float[np.ndarray, " n"]:
    """The distance of each pair of points in the q-norm, rounded up."""
    return rounding.norm(rounding.difference(x, y), q).upper


def admissible(points: Points, domain: Domain) -> Points:
    """The points moved into the domain, coordinate by coordinate; float64."""
    points = np.asarray(points, np.float64)
    if isinstance(domain, Box):
        return np.clip(
            points, np.asarray(domain.lower, np.float64), np.asarray(domain.upper, np.float64)
        )
    return points


def just_outside(
    classifier: PrototypeClassifier,
    points: Points,
    near: Points,
    labels: Int[np.ndarray, " n"],
    rivals: Int[np.ndarray, " n"],
    *,
    q: float,
    domain: Domain,
) -> tuple[Points, Bool[np.ndarray, " n"]]:
    """For each point an admissible one close to `near` that certainly is of another class.

    A nearest adversarial point lies on the boundary, where classes are tied. It is pushed by
    growing amounts towards the rival prototype and away from its point, until it is verified.

    Args:
        classifier: the classifier.
        points: n points.
        near: where to begin, for each of them.
        labels: their class indices.
        rivals: for each the index of a prototype of another class.
        q: the norm in which the nearer one of two witnesses is taken.
        domain: where witnesses must lie.

    Returns:
        The witnesses and whether there is one; where there is none, the point itself.
    """
    points, near = np.asarray(points, np.float64), np.asarray(near, np.float64)
    witness, found = points.copy(), np.zeros(len(points), bool)
    size = np.full(len(points), np.inf)
    prototypes = np.asarray(classifier.prototypes, np.float64)
    for push in PUSHES:
        todo = np.flatnonzero(~found)
        if not len(todo):
            break
        both = np.tile(todo, 2)
        targets = np.concatenate([prototypes[rivals[todo]], 2 * near[todo] - points[todo]])
        pushed = admissible(near[both] + push * (targets - near[both]), domain)
        distance = np.where(
            crosses(classifier, pushed, labels[both], rivals[both]),
            gap(pushed, points[both], q),
            np.inf,
        )
        for half in np.split(np.arange(len(both)), 2):
            better = distance[half] < size[todo]
            rows = todo[better]
            witness[rows], size[rows] = pushed[half][better], distance[half][better]
        found = np.isfinite(size)
    return witness, found


def pull_back(
    classifier: PrototypeClassifier,
    points: Points,
    outside: Points,
    labels: Int[np.ndarray, " n"],
    *,
    rivals: Int[np.ndarray, " n"] | None = None,
    steps: int = 20,
) -> Points:
    """Adversarial points moved towards their points as far as bisection keeps them adversarial.

    Args:
        classifier: the classifier.
        points: n points.
        outside: for each an adversarial point, verified by `leaves`.
        labels: their class indices.
        rivals: for each a prototype of another class to stay closest to: cheaper than to look at
            all classes, as without it.
        steps: how often the segment is halved.

    Returns:
        Points on the segments that leave the class, no farther than those given.
    """

    def still(middle: Points) -> Bool[np.ndarray, " n"]:
        if rivals is None:
            return leaves(classifier, middle, labels)
        return crosses(classifier, middle, labels, rivals)

    return nearest_outside(points, outside, still, steps=steps)


def nearest_outside(
    points: Points,
    outside: Points,
    still: Callable[[Points], Bool[np.ndarray, " n"]],
    *,
    steps: int = 20,
) -> Points:
    """Points moved towards others as far as bisection keeps them outside of something.

    Args:
        points: n points inside.
        outside: n points outside.
        still: whether each of n points is outside.
        steps: how often the segment is halved.

    Returns:
        Points on the segments that are outside, no farther than those given.
    """
    points, outside = np.asarray(points, np.float64), np.array(outside, np.float64)
    inside = points.copy()
    for _ in range(steps):
        middle = (inside + outside) / 2
        out = still(middle)[:, None]
        inside, outside = np.where(out, inside, middle), np.where(out, middle, outside)
    return outside


def approach(
    classifier: PrototypeClassifier,
    points: Points,
    labels: Int[np.ndarray, " n"],
    rivals: Int[np.ndarray, " n"],
    *,
    domain: Domain,
    steps: int = 20,
) -> tuple[Points, Bool[np.ndarray, " n"]]:
    r"""Points brought closer to their rivals, the farthest coordinates only, until they leave.

    For the l-infinity distance the other coordinates need not move:

    $$x_t = \mathrm{clip}(z,\ w_j - t,\ w_j + t)$$

    is, of all points within t of $w_j$, the nearest to z in every norm. Bisection finds about the
    largest t at which it is adversarial.

    Args:
        classifier: the classifier.
        points: n points.
        labels: their class indices.
        rivals: for each the index of a prototype of another class.
        domain: where witnesses must lie.
        steps: how often the range of t is halved.

    Returns:
        The points, and whether each certainly leaves its class.
    """
    points = np.asarray(points, np.float64)
    w = np.asarray(classifier.prototypes, np.float64)[rivals]

    def closer(t: Float[np.ndarray, " n"]) -> Points:
        return admissible(np.clip(points, w - t[:, None], w + t[:, None]), domain)

    low, high = np.zeros(len(points)), np.abs(points - w).max(axis=1)
    for _ in range(steps):
        middle = (low + high) / 2
        out = crosses(classifier, closer(middle), labels, rivals)
        low, high = np.where(out, middle, low), np.where(out, high, middle)
    x = closer(low)
    return x, crosses(classifier, x, labels, rivals)
