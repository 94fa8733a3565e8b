"""Which class a point belongs to, decided in float64 and only where rounding cannot matter."""

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from jaxnpc.batching import float64_on_cpu
from jaxnpc.distances import choosing_distances, pairwise, rounding, squared_l2, squared_l2_error
from jaxnpc.prototypes import (
    PrototypeClassifier,
    as_points,
    finite_rows,
    padded_blocks,
    real_array,
    rounded_by,
)

BLOCK = 1 << 22
"""How many distances are held at a time."""

PAIRS = 1 << 12
"""How many differences of points are."""


class Decision(NamedTuple):
    """The classes of n points.

    Attributes:
        predicted: the class of the closest prototype, in a tie the class that comes first; -1
            where the point is not finite. Where distances exceed float64 it is the closest one
            whose distance does not, if any.
        certain: whether exact arithmetic would give the same and no tie.
        lower: a lower bound, for each class, of the distance to its closest prototype, up to a
            monotone function that is the same for all classes of a point.
        upper: an upper bound of the same.
    """

    predicted: Int[np.ndarray, " n"]
    certain: Bool[np.ndarray, " n"]
    lower: Float[np.ndarray, "n C"]
    upper: Float[np.ndarray, "n C"]


class Prepared(NamedTuple):
    """The classifier's data in float64: images under the metric's map, sorted by class."""

    distance: Any
    prototypes: Float[np.ndarray, "K *m"]
    starts: Int[np.ndarray, " C"]


def decide(classifier: PrototypeClassifier, points: Float[np.ndarray, "n *d"]) -> Decision:
    """The class of each point, in float64 whatever JAX's default is.

    Distances come with bounds of their rounding error, at first in the device's precision; for the
    points that these leave open in float64, from matrix products where the distance allows it; then
    from coordinate differences for the prototypes still open. A callable distance has no such
    bounds: there the float64 values themselves are compared.

    Args:
        classifier: the classifier.
        points: n points, converted to float64.

    Returns:
        The decisions.

    Example:
        >>> from jaxnpc.prototypes import prototype_classifier
        >>> decision = decide(prototype_classifier([[0.0], [2.0]], "ab"), np.array([[0.5], [1.0]]))
        >>> decision.predicted.tolist(), decision.certain.tolist()
        ([0, 0], [True, False])
    """
    finite = finite_rows(np.asarray(points, np.float64))
    if not len(finite):
        none = np.zeros((0, len(classifier.classes)))
        return Decision(np.zeros(0, int), finite, none, none)
    points, spread, prepared = _prepare(classifier, points)
    size = 1 << max(0, (BLOCK // len(prepared.prototypes)).bit_length() - 1)
    if callable(classifier.distance):
        decision = _in_blocks(partial(_closely, prepared), points, spread, size)
    else:
        narrow, p = classifier.prototypes.dtype, prepared.distance
        with np.errstate(over="ignore"):  # out of range: of that nothing is known
            images = jnp.asarray(prepared.prototypes.astype(narrow))
        moved = rounded_by(prepared.prototypes, images, p)
        rough = partial(_roughly, images, moved, prepared.starts, p)
        decision = _in_blocks(rough, points, spread, size)
        if len(open_ := np.flatnonzero(~decision.certain & finite)):
            closer = partial(_closely, prepared)
            rest = _in_blocks(closer, points[open_], spread[open_], size)
            for old, new in zip(decision, rest, strict=True):
                old[open_] = new
    predicted = np.where(finite, decision.predicted, -1)
    return decision._replace(predicted=predicted, certain=decision.certain & finite)


def predict(classifier: PrototypeClassifier, x: Float[ArrayLike, "n *d"]) -> list[Hashable]:
    """The names of the predicted classes, judged in float64 on the host.

    Args:
        classifier: the classifier.
        x: n points, of which those that are not finite are given the first class.

    Returns:
        One class name a point; between equally close classes the first in `classes`.

    Raises:
        TypeError: if x is not numeric.
        ValueError: if the points have another shape than the prototypes.

    Example:
        >>> from jaxnpc.prototypes import prototype_classifier
        >>> pets = prototype_classifier([[0.0, 0.0], [2.0, 0.0]], ["dog", "cat"])
        >>> predict(pets, [[0.5, 1.0], [1.0, 5.0]])
        ['dog', 'cat']
    """
    points = as_points(classifier, real_array(x, "x"))
    # Distances beyond float64 prove nothing, which is an answer.
    with np.errstate(over="ignore", invalid="ignore"):
        return [classifier.classes[max(k, 0)] for k in decide(classifier, points).predicted]


def leaves(
    classifier: PrototypeClassifier,
    points: Float[np.ndarray, "n *d"],
    labels: Int[np.ndarray, " n"],
) -> Bool[np.ndarray, " n"]:
    """Whether each point is certainly closer to another class than to its label's.

    Args:
        classifier: the classifier.
        points: n points; one that is not finite leaves nothing.
        labels: class indices.

    Returns:
        True only where exact arithmetic would agree and there is no tie.
    """
    return left(decide(classifier, points), labels)


def crosses(
    classifier: PrototypeClassifier,
    points: Float[np.ndarray, "n d"],
    labels: Int[np.ndarray, " n"],
    rivals: Int[np.ndarray, " n"],
) -> Bool[np.ndarray, " n"]:
    """Whether each point is certainly closer to its rival than to all prototypes of its label.

    Like `leaves` and, with C classes, about C times cheaper: the others need not be known.

    Args:
        classifier: the classifier, with a norm as its distance.
        points: n points.
        labels: class indices.
        rivals: for each point a prototype of another class.

    Returns:
        True only where exact arithmetic would agree and there is no tie.
    """
    points, spread, prepared = _prepare(classifier, points)
    rank = np.argsort(np.argsort(np.asarray(classifier.labels), kind="stable"), kind="stable")
    ends = np.append(prepared.starts[1:], len(prepared.prototypes))
    most = int((ends - prepared.starts).max())
    crossed = np.zeros(len(points), bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        # Classes of one size, the first prototype repeated, need one compilation only.
        first, end = int(prepared.starts[label]), int(ends[label])
        own = np.arange(first, first + most)
        own = np.where(own < end, own, first)
        size = 1 << max(0, (BLOCK // most).bit_length() - 1)
        begin = 0
        for block, count in padded_blocks(points[rows], size):
            part = rows[begin : begin + count]
            begin += count
            rival = prepared.prototypes[rank[rivals[part]]]
            crossed[part] = _crosses(
                prepared._replace(prototypes=prepared.prototypes[own]), block, rival, spread[part]
            )
    return crossed


def left(decision: Decision, labels: Int[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    """The same of points that are decided already."""
    rows = np.arange(len(labels))
    others = decision.upper.copy()
    others[rows, labels] = np.inf
    return (others.min(axis=1) < decision.lower[rows, labels]) & (decision.predicted >= 0)


def _prepare(
    classifier: PrototypeClassifier, points: Float[np.ndarray, "n *d"]
) -> tuple[Float[np.ndarray, "n *m"], Float[np.ndarray, " n"], Prepared]:
    """Points and classifier as they are compared, and how far rounding moved an image."""
    points = np.asarray(points, np.float64)
    labels = np.asarray(classifier.labels)
    order = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[order], range(len(classifier.classes)))
    prototypes = np.asarray(classifier.prototypes, np.float64)[order]
    spread = np.zeros(len(points))
    if classifier.metric is not None:
        # The map rounds; an error bound of both images bounds what that does to a distance.
        metric = np.asarray(classifier.metric, np.float64).T
        error = rounding(points.shape[1] + 2, np.float64)
        sizes = [np.linalg.norm(np.abs(x) @ np.abs(metric), axis=1) for x in (points, prototypes)]
        spread = error * (sizes[0] + sizes[1].max())
        points, prototypes = points @ metric, prototypes @ metric
    return points, spread, Prepared(classifier.distance, prototypes, starts)


def _crosses(
    own: Prepared,
    block: Float[np.ndarray, "b m"],
    rival: Float[np.ndarray, "n m"],
    spread: Float[np.ndarray, " n"],
) -> Bool[np.ndarray, " n"]:
    """The same for the first n points of a padded block that have one label."""
    n, p, w = len(rival), own.distance, own.prototypes
    squared, gap, relative = p == 2 and not spread.any(), block[:n] - rival, 1 + _relative(block)
    if squared:
        far = np.square(gap).sum(axis=1) * relative + _tiny(block)
    else:
        far = np.linalg.norm(gap, ord=p, axis=1) * relative + _tiny(block) ** 0.5 + spread
    with float64_on_cpu():
        x, images = jnp.asarray(block), jnp.asarray(w)
        if squared:
            bounds = _by_products(x, images)
        else:
            wide = jnp.pad(jnp.asarray(spread), (0, len(block) - n))
            bounds = _by_differences(x, images, wide, p)
        lower, upper = (np.array(v)[:n] for v in bounds)
    if not squared:
        return far < lower.min(axis=1)
    open_ = np.flatnonzero((lower.min(axis=1) <= far) & (far <= upper.min(axis=1)))
    if len(open_):
        lower[open_], _ = _refined(lower[open_], upper[open_], block[open_], w, far[open_])
    return far < lower.min(axis=1)


def _in_blocks(
    judge: Callable[[np.ndarray, int, np.ndarray], Decision],
    points: Float[np.ndarray, "n *m"],
    spread: Float[np.ndarray, " n"],
    size: int,
) -> Decision:
    """The decisions about at least one point, block by block."""
    parts, begin = [], 0
    for block, count in padded_blocks(points, size):
        parts.append(judge(block, count, spread[begin : begin + count]))
        begin += count
    return Decision(*(np.concatenate(field) for field in zip(*parts, strict=True)))


def _roughly(
    images: Float[Array, "K m"],
    moved: float,
    starts: Int[np.ndarray, " C"],
    p: float,
    block: Float[np.ndarray, "b m"],
    n: int,
    spread: Float[np.ndarray, " n"],
) -> Decision:
    """Decide the first n points of a padded block in the device's precision."""
    with np.errstate(over="ignore"):
        x = block.astype(images.dtype)
    off = jnp.asarray(moved + rounded_by(block, x, p) + spread.max(initial=0.0), x.dtype)
    bounds = _bounds(jnp.asarray(x), images, off, p)
    lower, upper = (np.asarray(v)[:n] for v in bounds)
    decision = _compare(lower, upper, starts)
    wide = (np.asarray(v, np.float64) for v in (decision.lower, decision.upper))
    return Decision(decision.predicted, decision.certain, *wide)


@partial(jax.jit, static_argnames="p")
def _bounds(
    x: Float[Array, "b m"], w: Float[Array, "K m"], moved: Float[Array, ""], p: float
) -> tuple[Float[Array, "b K"], Float[Array, "b K"]]:
    """Bounds of the distances, squared for p = 2, in the arithmetic of x."""
    values, error = choosing_distances(x, w, p, moved)
    return values - error, values + error


def _closely(
    prepared: Prepared, block: Float[np.ndarray, "b *m"], n: int, spread: Float[np.ndarray, " n"]
) -> Decision:
    """The same in float64."""
    distance, prototypes, starts = prepared
    with float64_on_cpu():
        x, w = jnp.asarray(block), jnp.asarray(prototypes)
        if callable(distance):
            values = np.asarray(distance(x, w))[:n]
            return _compare(values, values, starts)
        if distance != 2 or spread.any():
            wide = jnp.pad(jnp.asarray(spread), (0, len(block) - n))
            lower, upper = (np.asarray(v)[:n] for v in _by_differences(x, w, wide, distance))
            return _compare(lower, upper, starts)
        lower, upper = (np.asarray(v)[:n] for v in _by_products(x, w))
    decision = _compare(lower, upper, starts)
    open_ = np.flatnonzero(~decision.certain & np.isfinite(block[:n]).all(axis=1))
    if len(open_):
        second = np.partition(np.minimum.reduceat(upper[open_], starts, axis=1), 1, axis=1)[:, 1]
        bounds = _refined(lower[open_], upper[open_], block[open_], prototypes, second)
        for old, new in zip(decision, _compare(*bounds, starts), strict=True):
            old[open_] = new
    return decision


@partial(jax.jit, static_argnames="p")
def _by_differences(
    x: Float[Array, "b m"], w: Float[Array, "K m"], spread: Float[Array, " b"], p: float
) -> tuple[Float[Array, "b K"], Float[Array, "b K"]]:
    """Bounds of the distances."""
    values = pairwise(x, w, p)
    error = values * _relative(x) + _tiny(x) ** 0.5 + spread[:, None]
    return values - error, values + error


@jax.jit
def _by_products(
    x: Float[Array, "b m"], w: Float[Array, "K m"]
) -> tuple[Float[Array, "b K"], Float[Array, "b K"]]:
    """Bounds of the squared distances."""
    values, error = squared_l2(x, w), squared_l2_error(x, w)
    return values - error, values + error


def _refined(
    lower: Float[np.ndarray, "r K"],
    upper: Float[np.ndarray, "r K"],
    points: Float[np.ndarray, "r m"],
    prototypes: Float[np.ndarray, "K m"],
    limit: Float[np.ndarray, " r"],
) -> tuple[Float[np.ndarray, "r K"], Float[np.ndarray, "r K"]]:
    """Closer bounds of those squared distances that may be within a limit, else the same."""
    rows, columns = np.nonzero(lower <= limit[:, None])
    for part in np.array_split(np.arange(len(rows)), len(rows) // PAIRS + 1):
        at = rows[part], columns[part]
        with np.errstate(over="ignore", invalid="ignore"):
            values = np.square(points[at[0]] - prototypes[at[1]]).sum(axis=1)
        error = values * _relative(points) + _tiny(points)
        lower[at], upper[at] = values - error, values + error
    return lower, upper


def _relative(x: Array | np.ndarray) -> float:
    """The relative error of a sum over the coordinates of these points, generously."""
    return rounding(x.shape[1] + 4, np.float64)


def _tiny(x: Array | np.ndarray) -> float:
    """What such a sum of squares loses where they are flushed to zero."""
    return x.shape[1] * float(np.finfo(np.float64).tiny)


def _compare(
    lower: Float[np.ndarray, "n K"],
    upper: Float[np.ndarray, "n K"],
    starts: Int[np.ndarray, " C"],
) -> Decision:
    # NaN comes of distances that exceed float64, of which nothing is known.
    with np.errstate(over="ignore", invalid="ignore"):
        lower = np.minimum.reduceat(lower, starts, axis=1)
        upper = np.fmin.reduceat(upper, starts, axis=1)
        lower = np.where(np.isnan(lower), -np.inf, lower)
        upper = np.where(np.isnan(upper), np.inf, upper)
        middle = lower + upper
    index = np.argmin(np.where(np.isnan(middle), np.inf, middle), axis=1)
    rows = np.arange(len(lower))
    others = lower.copy()
    others[rows, index] = np.inf
    certain = upper[rows, index] < others.min(axis=1)
    return Decision(index, certain, lower, upper)
