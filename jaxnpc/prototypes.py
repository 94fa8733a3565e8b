"""The nearest-prototype classifier, a pytree."""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from jaxnpc.distances import is_norm, length, pairwise

Distance = Callable[[Float[Array, "n *shape"], Float[Array, "K *shape"]], Float[Array, "n K"]]

AnyArray = TypeVar("AnyArray", np.ndarray, Array)

BLOCK = 128  # points whose distances to all prototypes are held at a time


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PrototypeClassifier:
    r"""Assigns an input to the class of its nearest prototype (paper, section 2).

    $$f(z) = \arg\min_y \min_{i \in I_y} d(z, w_i)$$

    Between classes at equal distance the one that comes first in `classes` wins, in whatever order
    the prototypes are given; a certificate counts such a tie as a change of class. Build one with
    [`prototype_classifier`][jaxnpc.prototypes.prototype_classifier], which checks its arguments.

    Attributes:
        prototypes: K prototypes of d coordinates (of any shape if the distance is a callable).
        labels: the class of each prototype, an index into `classes`.
        metric: a linear map before the l2 distance, d(x, w) = |A (x - w)|_2 with A of shape
            (m, d), or None for the identity.
        distance: the norm, 1, 2 or inf (`float("inf")`), or a callable semi-metric.
        classes: the classes' names, in order.
    """

    prototypes: Float[Array, "K *d"]
    labels: Int[Array, " K"]
    metric: Float[Array, "m d"] | None = None
    distance: float | Distance = field(default=2, metadata={"static": True})
    classes: tuple[Hashable, ...] = field(default=(), metadata={"static": True})


def prototype_classifier(
    prototypes: ArrayLike,
    labels: Iterable[Hashable],
    *,
    distance: float | Distance = 2,
    metric: ArrayLike | None = None,
    classes: Sequence[Hashable] | None = None,
) -> PrototypeClassifier:
    r"""A classifier from prototypes and their labels; a training set makes it 1-NN.

    Args:
        prototypes: K finite prototypes, (K, ...), flattened to (K, d) unless the distance is a
            callable. Integers become floating point; JAX keeps float32 unless its x64 is enabled,
            and then the classifier, certificates included, is that of the rounded prototypes.
        labels: K labels of any hashable kind: strings, integers with gaps, tuples.
        distance: the norm, 1, 2 or inf, or a function of points (n, ...) and prototypes (K, ...)
            that returns distances (n, K) fulfilling the triangle inequality.
        metric: a finite matrix A of shape (m, d) for the distance |A (x - w)|_2 (GMLVQ).
        classes: all classes in the order that decides ties; by default the labels sorted.

    Returns:
        The classifier.

    Raises:
        TypeError: if prototypes, metric or distance are of a wrong type.
        ValueError: if a shape does not fit, a number is not finite, there is no prototype, only one
            class, a class without prototypes, or a label that is not in `classes`.

    Example:
        >>> pets = prototype_classifier([[0.0, 0.0], [2.0, 0.0]], ["dog", "cat"])
        >>> predict_index(pets, jnp.array([[0.5, 1.0], [1.0, 5.0]])).tolist()
        [1, 0]
        >>> pets.classes
        ('cat', 'dog')

    References:
        Schneider, Biehl, Hammer: Adaptive relevance matrices in learning vector quantization, 2009.
    """
    if not callable(distance) and not is_norm(distance):
        raise ValueError(
            f"distance must be 1, 2, float('inf') or a function of points and prototypes, got "
            f"{distance!r}"
        )
    w = real_array(prototypes, "prototypes")
    if w.ndim < 2 or 0 in w.shape:
        raise ValueError(
            f"prototypes has shape {w.shape}: give at least two of shape (K, d) with d >= 1"
        )
    if not callable(distance):
        w = w.reshape(len(w), -1)
    names = [_plain(label) for label in labels]
    if len(names) != len(w):
        raise ValueError(f"labels has {len(names)} entries for {len(w)} prototypes: give one each")
    order = _class_order(names) if classes is None else tuple(map(_plain, classes))
    index = {name: c for c, name in enumerate(order)}
    if len(index) != len(order):
        raise ValueError(f"classes names one class twice: {order!r}")
    if unknown := [name for name in names if name not in index]:
        raise ValueError(f"label {unknown[0]!r} is not in classes {order!r}")
    if empty := set(order) - set(names):
        raise ValueError(f"class {next(iter(empty))!r} has no prototype: every class needs one")
    if len(order) < 2:
        raise ValueError(
            f"all labels are {names[0]!r}: a classifier needs prototypes of at least two classes"
        )
    return PrototypeClassifier(
        _finite(w, "prototypes"),
        jnp.asarray([index[name] for name in names], jnp.int32),
        _linear_map(metric, w, distance),
        distance if callable(distance) else float(distance),
        order,
    )


def class_indices(classifier: PrototypeClassifier, labels: Iterable[Hashable]) -> np.ndarray:
    """The indices of labels in `classes`.

    Raises:
        ValueError: if a label is none of the classes, naming it.
    """
    index = {name: c for c, name in enumerate(classifier.classes)}
    names = [_plain(label) for label in labels]
    for row, name in enumerate(names):
        if name not in index:
            raise ValueError(
                f"label {name!r} of point {row} is none of the classes {classifier.classes!r}"
            )
    return np.array([index[name] for name in names], np.int32)


@jax.jit
def scores(classifier: PrototypeClassifier, x: Float[Array, "n *d"]) -> Float[Array, "n C"]:
    """The negative distance of each point to the closest prototype of each class.

    Differentiable in the points, the prototypes and the metric, with finite gradients everywhere:
    at distance 0 the gradient is 0, between equally close prototypes that of the first. Memory is
    bounded: the points are worked off in blocks.

    Args:
        classifier: the classifier.
        x: n points.

    Returns:
        A score for each class; the largest one is predicted. NaN for points that are NaN.

    Example:
        >>> pets = prototype_classifier([[0.0, 0.0], [3.0, 4.0]], ["cat", "dog"])
        >>> scores(pets, jnp.zeros((1, 2))).tolist()
        [[-0.0, -5.0]]
    """

    def block(rows: Array) -> Array:
        chosen = jax.lax.stop_gradient(_closest(classifier, rows))
        if callable(classifier.distance):
            # One prototype at a time: a semi-metric is asked for what it defines, no more.
            to_all = classifier.distance(rows, classifier.prototypes)
            return -jnp.take_along_axis(to_all, chosen, axis=1)
        gap = rows[:, None] - classifier.prototypes[chosen]
        if classifier.metric is not None:
            gap = jnp.matmul(gap, classifier.metric.T, precision=jax.lax.Precision.HIGHEST)
        return -length(gap, classifier.distance)

    return _in_blocks(block, as_points(classifier, x))


@jax.jit
def predict_index(classifier: PrototypeClassifier, x: Float[Array, "n *d"]) -> Int[Array, " n"]:
    """The index of the predicted class, in the arithmetic of x; 0 for points that are NaN.

    Jitted as it is; [`predict`][jaxnpc.decisions.predict] judges in float64.

    Args:
        classifier: the classifier.
        x: n points.

    Returns:
        Indices into `classes`; between equally close classes the first.
    """

    def block(rows: Array) -> Array:
        return jnp.argmin(_by_class(classifier, distances(classifier, rows)), axis=1)

    return _in_blocks(block, as_points(classifier, x))


def linear_image(
    classifier: PrototypeClassifier, x: Float[ArrayLike, "n d"]
) -> Float[np.ndarray, "n m"]:
    """Points in float64 under the metric's map, or as they are without one."""
    if classifier.metric is None:
        return np.asarray(x)
    with np.errstate(over="ignore", invalid="ignore"):  # beyond float64: of that nothing is known
        return np.asarray(x, np.float64) @ np.asarray(classifier.metric, np.float64).T


def rounded_by(wide: Float[np.ndarray, "n d"], narrow: ArrayLike, p: float) -> float:
    """How far, at most, rounding to the device's type moved a point, in the p-norm.

    Points out of that type's range do not count: they are infinite there.
    """
    dtype = np.asarray(narrow).dtype
    if wide.dtype == dtype:
        return 0.0
    size, limits = np.abs(wide), np.finfo(dtype)
    largest = float(np.max(size, initial=0.0, where=size <= limits.max))
    step = largest * float(limits.eps) / 2 + float(limits.smallest_subnormal)
    return 1.01 * step * wide.shape[1] ** (1 / p)


def distances(classifier: PrototypeClassifier, x: Float[Array, "n *d"]) -> Float[Array, "n K"]:
    """The distances of all points to all prototypes, unblocked and not to be differentiated."""
    if callable(classifier.distance):
        return classifier.distance(x, classifier.prototypes)
    if classifier.metric is None:
        return pairwise(x, classifier.prototypes, classifier.distance)
    image = partial(jnp.matmul, b=classifier.metric.T, precision=jax.lax.Precision.HIGHEST)
    return pairwise(image(x), image(classifier.prototypes), classifier.distance)


def as_points(classifier: PrototypeClassifier, x: AnyArray) -> AnyArray:
    """Points (n, ...) in the shape that the prototypes have.

    Raises:
        ValueError: if they cannot be brought into it, naming both shapes.
    """
    shape = classifier.prototypes.shape[1:]
    if x.ndim < 2 or math.prod(x.shape[1:]) != math.prod(shape):
        raise ValueError(
            f"x has shape {x.shape}, but the prototypes have {math.prod(shape)} coordinates: give "
            f"points of shape (n, {', '.join(map(str, shape))})"
        )
    return x.reshape(len(x), *shape)


def real_array(x: Any, name: str) -> np.ndarray:
    """Numbers as a NumPy array of float32 or float64, in the machine's byte order.

    No value changes but those of a type wider than float64, which are rounded to it.

    Raises:
        TypeError: if they are not real numbers, naming the argument.
        ValueError: if an integer is so large that float64 need not hold it.
    """
    try:
        x = np.asarray(x)
    except ValueError as error:  # rows of different lengths
        raise TypeError(f"{name} must be an array of real numbers: {error}") from None
    if np.issubdtype(x.dtype, np.integer):
        largest = max(int(x.max(initial=0)), -int(x.min(initial=0)))
        if largest > 2**53:
            raise ValueError(
                f"{name} holds an integer of size {largest}, beyond the 2**53 up to which float64 "
                "is exact: subtract an offset, or convert to float64 where rounding does not matter"
            )
        return x.astype(np.float32 if largest < 2**24 else np.float64)
    if not np.issubdtype(x.dtype, np.floating) and x.dtype != jnp.bfloat16:
        raise TypeError(f"{name} must hold real numbers, got dtype {x.dtype}")
    with np.errstate(over="ignore"):  # of a wider type: infinite, as any point out of range
        return x.astype(np.float32 if x.dtype.itemsize <= 4 else np.float64, copy=False)


def finite_rows(x: Float[np.ndarray, "n *d"]) -> Bool[np.ndarray, " n"]:
    """Which points have neither a NaN nor an infinite coordinate."""
    return np.asarray(np.isfinite(x).all(axis=tuple(range(1, x.ndim))))


def padded_blocks(x: np.ndarray, size: int) -> Iterable[tuple[np.ndarray, int]]:
    """Blocks of one shape: each with the number of its rows that count; zeros fill the last."""
    size = min(size, 1 << max(len(x) - 1, 0).bit_length())
    for start in range(0, len(x), size):
        rows = x[start : start + size]
        count = len(rows)
        if count < size:
            rows = np.concatenate([rows, np.zeros((size - count, *x.shape[1:]), x.dtype)])
        yield rows, count


def _in_blocks(block: Callable[[Array], Array], x: Array) -> Array:
    n = x.shape[0]
    size = min(BLOCK, 1 << max(n - 1, 0).bit_length())
    padded = jnp.pad(x, ((0, -n % size), *[(0, 0)] * (x.ndim - 1)))
    out = jax.lax.map(block, padded.reshape(-1, size, *x.shape[1:]))
    return out.reshape(-1, *out.shape[2:])[:n]


def _by_class(classifier: PrototypeClassifier, d: Float[Array, "n K"]) -> Float[Array, "n C"]:
    return jax.ops.segment_min(d.T, classifier.labels, len(classifier.classes)).T


def _closest(classifier: PrototypeClassifier, x: Float[Array, "n *d"]) -> Int[Array, "n C"]:
    """The prototype of each class that is closest to each point, the first one of several."""
    d = distances(classifier, x)
    least = _by_class(classifier, d)[:, classifier.labels]
    k = d.shape[1]
    index = jnp.where(d <= least, jnp.arange(k), k - 1)
    return _by_class(classifier, index)


def _class_order(names: Sequence[Hashable]) -> tuple[Hashable, ...]:
    distinct = set(names)
    try:
        return tuple(sorted(cast(set[Any], distinct)))
    except TypeError:  # labels of several kinds
        return tuple(sorted(distinct, key=lambda name: (type(name).__name__, repr(name))))


def _plain(label: Any) -> Any:
    """A label as plain Python, so that np.int64(3), 3 and "3" as NumPy gives them compare alike."""
    if isinstance(label, np.generic | jax.Array) and label.ndim == 0:
        return _plain(label.item())
    try:
        hash(label)
    except TypeError:
        raise TypeError(f"labels must be hashable, got {label!r}") from None
    if label != label:
        raise ValueError(f"labels must equal themselves, got {label!r}")
    return label


def _finite(x: np.ndarray, name: str) -> Array:
    with np.errstate(over="ignore"):
        array = jnp.asarray(x)
    bad = np.argwhere(~np.isfinite(np.asarray(array)))
    if len(bad):
        at = tuple(int(i) for i in bad[0])
        reason = (
            f"beyond {array.dtype}: scale the data, or enable JAX's x64"
            if np.isfinite(x[at])
            else "every entry must be finite"
        )
        raise ValueError(f"{name}{list(at)} is {x[at]}: {reason}")
    return array


def _linear_map(
    metric: ArrayLike | None, w: np.ndarray, distance: float | Distance
) -> Array | None:
    if metric is None:
        return None
    if callable(distance) or distance != 2:
        raise ValueError(f"metric needs distance=2, got distance={distance!r}")
    a = real_array(metric, "metric")
    if a.ndim != 2 or a.shape[1] != w.shape[1] or not len(a):
        raise ValueError(
            f"metric has shape {a.shape}: give a matrix (m, {w.shape[1]}) for prototypes of "
            f"{w.shape[1]} coordinates"
        )
    return _finite(a, "metric")
