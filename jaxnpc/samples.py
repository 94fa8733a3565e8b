"""Labelled points as training takes them, and those held out."""

import math
from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from jaxnpc.prototypes import (
    Distance,
    as_points,
    class_indices,
    finite_rows,
    prototype_classifier,
    real_array,
)


class Samples(NamedTuple):
    """Checked points.

    Attributes:
        points: n points in float32, flat unless the distance is a function.
        classes: their class indices.
        names: the classes' names.
        shape: of one point as it was given.
    """

    points: Float[np.ndarray, "n *d"]
    classes: Int[np.ndarray, " n"]
    names: tuple[Hashable, ...]
    shape: tuple[int, ...]

    def take(self, rows: Int[np.ndarray, " r"]) -> "Samples":
        """Some of them."""
        return self._replace(points=self.points[rows], classes=self.classes[rows])


def samples(points: Any, labels: Iterable[Hashable], distance: float | Distance) -> Samples:
    """Points and labels, checked.

    Args:
        points: n points of any shape.
        labels: their labels, of any hashable kind.
        distance: of the classifier to come: a norm takes flat points.

    Raises:
        TypeError: if the points are no real numbers, or a label is not hashable.
        ValueError: if a point is not finite, there are more or fewer labels, or fewer than two
            classes.
    """
    given = _finite_points(points, "points")
    # The points as prototypes of themselves: the same is asked of both.
    known = prototype_classifier(given, labels, distance=distance)
    shape = known.prototypes.shape
    return Samples(given.reshape(shape), np.asarray(known.labels), known.classes, given.shape[1:])


def _finite_points(points: Any, name: str) -> Float[np.ndarray, "n ..."]:
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite
        given = real_array(points, name).astype(np.float32)
    rows = np.flatnonzero(~finite_rows(given)) if given.ndim > 1 else np.zeros(0, int)
    if len(rows):
        raise ValueError(
            f"{name}[{rows[0]}] is not finite in float32: drop or fill in {len(rows)} such points"
        )
    return given


def hold_out(
    data: Samples, validation: float | tuple[Any, Any], distance: float | Distance
) -> tuple[Samples, Samples]:
    """What is trained on and what is validated on.

    Args:
        data: the training points.
        validation: points and labels; or a share of the training points, which are taken from the
            end, or from the end of each class if the one or the other part would lack a class.
        distance: of the classifier to come.

    Raises:
        TypeError: if the points are no real numbers.
        ValueError: if they do not fit, are not finite, have labels that are no class, or the share
            leaves no points for the one or the other.
    """
    if isinstance(validation, tuple):
        points, labels = validation
        some = prototype_classifier(
            data.points[:1].repeat(len(data.names), axis=0),
            data.names,
            distance=distance,
            classes=data.names,
        )
        given = as_points(some, _finite_points(points, "validation"))
        classes = class_indices(some, labels)
        if len(classes) != len(given) or not len(given):
            raise ValueError(
                f"validation has {len(given)} points and {len(classes)} labels: give one each, and "
                "at least one"
            )
        return data, data._replace(points=given, classes=classes)
    share = float(validation)
    if not 0 < share < 1:
        raise ValueError(f"validation must be (points, labels) or a share in (0, 1), got {share}")
    n = len(data.points)
    kept = np.arange(n) < n - round(share * n)
    parts = (data.classes[kept], data.classes[~kept])
    if any(len(np.unique(part)) < len(data.names) for part in parts):
        # The last ones of each class, of which the first one stays.
        for c in range(len(data.names)):
            rows = np.flatnonzero(data.classes == c)
            kept[rows] = np.arange(len(rows)) < max(1, len(rows) - math.ceil(share * len(rows)))
    if kept.all():
        raise ValueError(
            f"validation {share} leaves no points to validate on: every class has one only"
        )
    return data.take(np.flatnonzero(kept)), data.take(np.flatnonzero(~kept))
