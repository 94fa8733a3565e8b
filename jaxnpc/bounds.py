r"""Lower bounds of the minimal adversarial perturbation over all prototypes.

$$\epsilon^q_p(z) \ge \min_{j \in I_y^c} \max_{i \in I_y} \rho^q_p(z)_{i,j}
  \ge \min_{j \in I_y^c} \rho^q_p(z)_{i^*,j}$$

(Lemma 2.9 and Theorem 2.10, i* the closest own prototype) and Theorem 2.4 for any semi-metric. The
device chooses pairs in its own precision, the host proves their radii: a radius returned here never
exceeds what exact arithmetic gives.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Bool, Float, Int
from tqdm import tqdm

from jaxnpc import rounding
from jaxnpc.batching import padded
from jaxnpc.best_first import Found, search
from jaxnpc.distances import named_norm
from jaxnpc.domains import Domain, Unbounded, check, check_inside
from jaxnpc.pairwise.table import is_exact
from jaxnpc.proofs import distance_bounds, prove_pairs
from jaxnpc.prototypes import (
    PrototypeClassifier,
    as_points,
    distances,
    finite_rows,
    real_array,
    rounded_by,
)
from jaxnpc.rivals import Rival, Space, against, contenders, prepare, survey

KEYS = 1 << 22  # (point, rival) pairs whose bounds are held at a time
ROWS = 1024  # points worked on together, at most

Selection = Literal["all", "nearest"]


@dataclass(frozen=True)
class Bounds:
    """Lower bounds of the minimal adversarial perturbations of n points.

    Attributes:
        radius: no admissible point strictly closer than this is as close to another class; 0 for
            points that are misclassified, tied or not finite, infinite where no point is.
        pair: the own prototype i and the rival j that attain the bound; -1 where there is none.
        witness: the minimiser of that pair's radius in the device's precision, else the point.
        tight: whether the witness lies as close to j as to all own prototypes, so that the radius
            is the minimal perturbation itself, to rounding (Lemma 2.9).
        evaluated: how many rivals' radii were computed.
    """

    radius: Float[np.ndarray, " n"]
    pair: Int[np.ndarray, "n 2"]
    witness: Float[np.ndarray, "n d"]
    tight: Bool[np.ndarray, " n"]
    evaluated: Int[np.ndarray, " n"]


def lower_bounds(
    classifier: PrototypeClassifier,
    x: Float[ArrayLike, "n d"],
    labels: Int[ArrayLike, " n"],
    *,
    q: float = 2,
    domain: Domain | None = None,
    selection: Selection = "all",
    progress: bool | Callable[[int], object] = False,
) -> Bounds:
    r"""Proved lower bounds of $\epsilon^q_p$, the minimum over j of the maximum over i of rho.

    Rivals are ordered by a cheap bound on R^d. A best-first search evaluates the pair radius in the
    domain for those that can still be the minimum, usually a handful. The maximum over i needs few
    radii too: where a witness is as close to $w_j$ as to $w_i$, that i cannot do better. (Where the
    pair radius itself is a relaxation, for p = 1 and q = 1 or 2, it might, by little: there the
    result lies between the two forms.)

    Args:
        classifier: the classifier, with a norm as its distance.
        x: n points in the domain.
        labels: their classes, as indices; points with a negative label have radius 0.
        q: the norm of the perturbation, 1, 2 or infinity.
        domain: where adversarial points are sought; by default R^d.
        selection: "all" for Lemma 2.9, "nearest" for the cheap form of Theorem 2.10 with i*.
        progress: whether to show a progress bar; or a function, which is called with the number of
            points finished, as they finish.

    Returns:
        The bounds.

    Raises:
        TypeError: if x is not numeric, the labels are not integers or the domain is none.
        ValueError: if the distance is a callable, a shape does not fit, q or `selection` is
            unknown, a label is no class or a point lies outside the domain.

    Example:
        >>> from jaxnpc.prototypes import prototype_classifier
        >>> line = prototype_classifier([[0.0], [1.0]], ["left", "right"])
        >>> lower_bounds(line, [[0.125], [0.75]], [0, 0]).radius.round(6)
        array([0.375, 0.   ])

    References:
        Wang, Liu, Yi, Chen, Hsieh: Evaluating the robustness of nearest neighbor classifiers, 2019.
    """
    if callable(classifier.distance):
        raise ValueError("distance is a callable: give a norm, or use margin_bounds")
    named_norm(q, "q")
    if selection not in ("all", "nearest"):
        raise ValueError(f'selection must be "all" or "nearest", got {selection!r}')
    points, classes = _checked(classifier, x, labels)
    domain = check(Unbounded() if domain is None else domain, points.shape[1])
    check_inside(points, domain)
    space = prepare(classifier, float(q))
    result = Bounds(
        np.zeros(len(points)),
        np.full((len(points), 2), -1),
        space.narrow(points),
        np.zeros(len(points), bool),
        np.zeros(len(points), np.int64),
    )
    hidden = callable(progress) or not progress
    with tqdm(total=len(points), disable=hidden, unit="point") as bar:
        advance = progress if callable(progress) else bar.update
        rivals: dict[int, Rival] = {}
        for label, rows, size in class_blocks(classes, len(space.labels)):
            if label not in rivals:  # the blocks of a class follow one another: keep one
                rivals = {label: against(space, label)}
            rival, block = rivals[label], padded(points[rows], size)
            images, error = space.images_of(block)
            found = search(
                space,
                rival,
                survey(space, rival, images, error),
                jnp.asarray(space.narrow(block)),
                jnp.asarray(space.narrow(images)),
                np.arange(size) < len(rows),
                domain,
                selection == "all",
                rounded_by(block, space.narrow(block), np.inf),
            )
            _collect(result, space, rival, rows, points, found, domain)
            advance(len(rows))
    return result


def margin_bounds(
    classifier: PrototypeClassifier, x: Float[ArrayLike, "n *d"], labels: Int[ArrayLike, " n"]
) -> Bounds:
    r"""The bound of Theorem 2.4, for any semi-metric: half the hypothesis margin.

    $$\epsilon_d(z) \ge \max\Bigl\{0, \tfrac12 \bigl(\min_{j \in I_y^c} d(z, w_j)
      - \min_{i \in I_y} d(z, w_i)\bigr)\Bigr\}$$

    Perturbations are measured by the classifier's own distance, a learned metric included.

    Args:
        classifier: the classifier.
        x: n points.
        labels: their classes, as indices; points with a negative label have radius 0.

    Returns:
        The bounds: proved for a norm, with or without a metric, and for a callable distance
        as exact as its own arithmetic is. No witness is known.

    Raises:
        TypeError: if x is not numeric or the labels are not integers.
        ValueError: if a shape does not fit or a label is no class.

    Example:
        >>> from jaxnpc.prototypes import prototype_classifier
        >>> line = prototype_classifier([[0.0], [1.0]], ["left", "right"])
        >>> margin_bounds(line, [[0.125], [0.75]], [0, 1]).radius.round(6)
        array([0.375, 0.25 ])
    """
    points, classes = _checked(classifier, x, labels)
    n = len(points)
    result = Bounds(
        np.zeros(n), np.full((n, 2), -1), points.copy(), np.zeros(n, bool), np.zeros(n, np.int64)
    )
    k_labels = np.asarray(classifier.labels)
    space = None if callable(classifier.distance) else prepare(classifier, classifier.distance)
    for label, rows, size in class_blocks(classes, len(k_labels)):
        block = padded(points[rows], size)
        foreign = k_labels != label
        if space is None:
            row, k = np.divmod(np.arange(len(rows) * len(foreign)), len(foreign))
            lower = np.asarray(distances(classifier, jnp.asarray(block)), np.float64)
            lower = upper = lower[: len(rows)].ravel()
        else:
            images, error = space.images_of(block)
            close = np.asarray(contenders(space, images, error, foreign))[: len(rows)]
            row, k = np.nonzero(close)
            lower, upper = distance_bounds(space, points[rows[row]], k)
        rival, own = np.full((2, len(rows)), np.inf)
        other = foreign[k]
        np.minimum.at(rival, row[other], lower[other])
        np.minimum.at(own, row[~other], upper[~other])
        margin = rounding.down(rounding.down(rival - own, 0.0) / 2)
        result.radius[rows] = np.where(rival > own, margin, 0.0)
        for column, at, end in ((0, ~other, upper), (1, other, lower)):
            order = np.flatnonzero(at)[np.argsort(-end[at])]  # a row's closest is written last
            result.pair[rows[row[order]], column] = k[order]
        result.evaluated[rows] = np.bincount(row, minlength=len(rows))
    return result


def _collect(
    result: Bounds,
    space: Space,
    rival: Rival,
    rows: Int[np.ndarray, " R"],
    points: Float[np.ndarray, "n d"],
    found: Found,
    domain: Domain,
) -> None:
    """Prove what the search found and write it down.

    The radius of a point is the least of the proved radii of its pairs and of the floors of all
    other rivals. A pair whose floor is no less than the radius already proved needs no proof.
    """
    pairs, count = found.pairs, len(rows)
    own = np.asarray(rival.own)[pairs.own]
    proved = found.sure.astype(np.float64)

    def prove(index: Int[np.ndarray, " P"]) -> None:
        z = points[rows[pairs.row[index]]]
        radius = prove_pairs(space, z, own[index], pairs.rival[index], domain)
        proved[index] = np.maximum(proved[index], radius)

    winner = found.winner[:count]
    prove(winner[winner >= 0])
    least = np.full(len(found.floor), np.inf)
    least[:count] = np.where(winner >= 0, proved[winner], np.inf) if len(proved) else np.inf
    contenders = found.sure < least[pairs.row]
    contenders[winner[winner >= 0]] = False
    prove(np.flatnonzero(contenders))
    np.minimum.at(least, pairs.row, proved)
    rest = found.floor.min(axis=1)[:count]
    if found.lift is not None:
        left = np.nonzero(found.floor[:count] < least[:count, None])
        rest = np.maximum(rest, found.lift.prove(points[rows], space.prototypes, *left))
    radius = np.minimum(least[:count], rest)
    result.radius[rows] = radius
    result.evaluated[rows] = np.bincount(pairs.row, minlength=count)[:count]
    hit = np.isfinite(radius) & (winner >= 0)
    at = winner[hit]
    result.pair[rows[hit]] = np.stack([own[at], pairs.rival[at]], axis=1)
    result.witness[rows[hit]] = pairs.witness[at]
    exact = is_exact(space.p, space.q, domain)
    result.tight[rows] = True  # of points that nothing flips
    result.tight[rows[hit]] = exact & pairs.feasible[at]


def _checked(
    classifier: PrototypeClassifier, x: Float[ArrayLike, "n *d"], labels: Int[ArrayLike, " n"]
) -> tuple[Float[np.ndarray, "n *d"], Int[np.ndarray, " n"]]:
    """Points and classes; points that cannot have a radius get class -1."""
    points, classes = as_points(classifier, real_array(x, "x")), np.asarray(labels)
    if classes.dtype.kind not in "iu":
        raise TypeError(
            f"labels must be class indices, got dtype {classes.dtype}: class_indices translates "
            "names"
        )
    if classes.shape != (len(points),):
        raise ValueError(
            f"labels has shape {classes.shape} for {len(points)} points: give one class a point"
        )
    if len(classes) and classes.max() >= len(classifier.classes):
        raise ValueError(
            f"labels[{int(classes.argmax())}] is {classes.max()}, but the classifier has "
            f"{len(classifier.classes)} classes, counted from 0"
        )
    return points, np.where(finite_rows(points), classes, -1)


def class_blocks(
    classes: Int[np.ndarray, " n"], k: int
) -> Iterator[tuple[int, Int[np.ndarray, " R"], int]]:
    """Rows of one class at a time: the class, the rows, and the block size they are padded to."""
    labels, counts = np.unique(classes[classes >= 0], return_counts=True)
    if not len(labels):
        return
    most = min(ROWS, max(1, KEYS // k))
    size = min(1 << (most.bit_length() - 1), 1 << (int(counts.max()) - 1).bit_length())
    for label in labels:
        rows = np.flatnonzero(classes == label)
        for start in range(0, len(rows), size):
            yield int(label), rows[start : start + size], size
