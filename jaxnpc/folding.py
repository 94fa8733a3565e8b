"""Radii in the units of the input: the affine maps before a classifier, folded into it."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxnpc.prototypes import PrototypeClassifier, prototype_classifier


class Affine(NamedTuple):
    """The map of x to A x + b, in float64.

    Attributes:
        linear: the matrix A, or its diagonal where it has no other entries.
        offset: b, or one number for all coordinates.
    """

    linear: Float[np.ndarray, "m d"] | Float[np.ndarray, " d"]
    offset: Float[np.ndarray, "*m"] | float = 0.0


def fold(classifier: PrototypeClassifier, maps: Sequence[Affine]) -> PrototypeClassifier:
    r"""The classifier of x for one of T(x) = A x + b, so that certificates speak of x itself.

    The prototypes are points w with A w + b = w', and the distance becomes

    $$d(x, w) = |M (T(x) - w')|_2 = |M A (x - w)|_2$$

    which `PrototypeClassifier` knows as a metric (M is the given one's, or the identity). A map
    that scales all coordinates alike changes no comparison: with it any norm remains as it is.

    Args:
        classifier: of points T(x), where T applies the maps in order.
        maps: affine maps, each onto: its A has linearly independent rows.

    Returns:
        The classifier of x. It is computed in float64; JAX keeps float32 unless its x64 is enabled,
        and then it is that of the rounded prototypes.

    Raises:
        ValueError: if the distance is none that stays one under the maps (a norm other than l2 with
            coordinates scaled differently, or a function), shapes do not fit, a map is not onto, or
            a number is not finite.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxnpc.prototypes import scores
        >>> scaled = prototype_classifier([[0.0, 0.0], [1.0, 1.0]], ["low", "high"])
        >>> folded = fold(scaled, [Affine(np.array([0.1, 2.0]), np.array([-1.0, 0.0]))])
        >>> folded.prototypes.tolist(), folded.classes
        ([[10.0, 0.0], [20.0, 0.5]], ('high', 'low'))
        >>> scores(folded, jnp.array([[20.0, 0.0]])).tolist()  # of [1, 0] when scaled
        [[-1.0, -1.0]]
    """
    if not maps:
        return classifier
    p = classifier.distance
    if callable(p):
        raise ValueError(
            f"distance is the function {getattr(p, '__name__', repr(p))}: behind a scaler only "
            "norms are known to be distances of the input; train on the input as it is"
        )
    w = np.asarray(classifier.prototypes, np.float64)
    metric = None if classifier.metric is None else np.asarray(classifier.metric, np.float64)
    for k, affine in reversed(list(enumerate(maps))):
        a, b = _checked(affine, w.shape[1], f"maps[{k}]")
        w = _sources(a, w - b, f"maps[{k}]")
        if a.ndim == 1 and metric is None and np.all(np.abs(a) == np.abs(a[0])):
            continue
        if p != 2:
            raise ValueError(
                f"maps[{k}] does not scale all coordinates alike: with distance={p!r} there are no "
                "certificates in the units of its input; use distance=2, or one scale for all "
                "coordinates, such as 1 / 255"
            )
        metric = _times(metric, a)
    return prototype_classifier(
        w,
        [classifier.classes[c] for c in np.asarray(classifier.labels)],
        distance=p,
        metric=metric,
        classes=classifier.classes,
    )


def _checked(
    affine: Affine, size: int, name: str
) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]:
    a, b = (np.asarray(part, np.float64) for part in affine)
    if a.ndim not in (1, 2) or len(a) != size or b.shape not in {(), (size,)}:
        raise ValueError(
            f"{name} has a linear part of shape {a.shape} and an offset of shape {b.shape}: to "
            f"{size} coordinates it takes a matrix ({size}, d) or its diagonal ({size},), and one "
            f"number or {size}"
        )
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError(f"{name} holds numbers that are not finite")
    if a.ndim == 2 and a.shape[1] == size and np.array_equal(a, np.diag(diagonal := np.diag(a))):
        a = diagonal
    return a, b


def _sources(
    a: Float[np.ndarray, "..."], images: Float[np.ndarray, "K m"], name: str
) -> Float[np.ndarray, "K d"]:
    """The points that a maps to these images; of several the one closest to 0."""
    if a.ndim == 1:
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            w, rank = images / a, np.count_nonzero(a)  # an infinite prototype is an error later
    else:
        first, _, rank, _ = np.linalg.lstsq(a, images.T)
        # What the first solution lacks, solved for again, leaves little more than rounding.
        w = (first + np.linalg.lstsq(a, images.T - a @ first)[0]).T
    if rank < len(a):
        raise ValueError(
            f"{name} maps to {len(a)} coordinates but has rank {rank}: no input is mapped to a "
            "prototype off its image; leave out coordinates that depend on others"
        )
    return w


def _times(
    metric: Float[np.ndarray, "k m"] | None, a: Float[np.ndarray, "..."]
) -> Float[np.ndarray, "k d"]:
    """The matrix of one map after another, which may be a diagonal."""
    if metric is None:
        return np.diag(a) if a.ndim == 1 else a
    return metric * a if a.ndim == 1 else metric @ a


def _moved_and_divided(middle: Any, scale: Any, size: int) -> Affine:
    """(x - middle) / scale, either of which may be None."""
    linear = np.ones(size) if scale is None else 1 / np.asarray(scale, np.float64)
    return Affine(linear, 0.0 if middle is None else -np.asarray(middle, np.float64) * linear)


def _standard(t: Any) -> Affine:
    # The mean is there, too, where it is not subtracted.
    middle, scale = t.mean_ if t.with_mean else None, t.scale_ if t.with_std else None
    return _moved_and_divided(middle, scale, t.n_features_in_)


def _robust(t: Any) -> Affine:
    middle, scale = t.center_ if t.with_centering else None, t.scale_ if t.with_scaling else None
    return _moved_and_divided(middle, scale, t.n_features_in_)


def _projection(t: Any) -> Affine:
    linear = np.asarray(t.components_, np.float64)
    if getattr(t, "whiten", False):
        scale = np.sqrt(t.explained_variance_)
        scale = np.maximum(scale, np.finfo(scale.dtype).eps)  # as transform does
        linear = linear / np.asarray(scale, np.float64)[:, None]
    middle = getattr(t, "mean_", None)
    return Affine(linear, 0.0 if middle is None else -linear @ np.asarray(middle, np.float64))


def _selection(t: Any) -> Affine:
    support = t.get_support()
    return Affine(np.eye(len(support))[support])


AFFINE: dict[str, Callable[[Any], Affine]] = {
    "StandardScaler": _standard,
    "RobustScaler": _robust,
    "MaxAbsScaler": lambda t: _moved_and_divided(None, t.scale_, t.n_features_in_),
    "MinMaxScaler": lambda t: Affine(np.asarray(t.scale_, float), np.asarray(t.min_, float)),
    "PCA": _projection,
    "IncrementalPCA": _projection,
    "TruncatedSVD": _projection,
    "NeighborhoodComponentsAnalysis": _projection,
    "VarianceThreshold": _selection,
    "SelectKBest": _selection,
    "SelectPercentile": _selection,
    "SelectFromModel": _selection,
}
"""The affine transformers of scikit-learn, and how to read a fitted one's map."""


def affine_map(transformer: Any) -> Affine:
    """The map of a fitted transformer of scikit-learn.

    Args:
        transformer: one of those in `AFFINE`.

    Returns:
        Its map, read off its attributes and so as exact as these.

    Raises:
        TypeError: if it is none of them, or clips, and so is not affine.

    Example:
        >>> from sklearn.preprocessing import MinMaxScaler
        >>> affine_map(MinMaxScaler().fit([[0.0, 1.0], [4.0, 3.0]]))
        Affine(linear=array([0.25, 0.5 ]), offset=array([ 0. , -0.5]))
    """
    kind = type(transformer)
    # By its name: scikit-learn need not be installed. A subclass may transform as it likes.
    if kind.__module__.partition(".")[0] != "sklearn" or kind.__name__ not in AFFINE:
        raise TypeError(
            f"{kind.__name__} is not known to be affine, as it must be for radii in the units of "
            f"its input; known are {', '.join(AFFINE)}. Certify behind it, in the units of its "
            "output, or give its map to jaxnpc.folding.fold"
        )
    if getattr(transformer, "clip", False):
        raise TypeError(
            f"{kind.__name__}(clip=True) is not affine: leave clip out, and name the domain of the "
            "input where you certify"
        )
    return AFFINE[kind.__name__](transformer)
