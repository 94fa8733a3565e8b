"""Classifiers in files: the prototypes, their distance, and the record of how they were made."""

import json
import os
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxmpd.files import replacing
from jaxnpc.certificate import name_array
from jaxnpc.datasets import load
from jaxnpc.distances import is_norm
from jaxnpc.prototypes import PrototypeClassifier, prototype_classifier
from jaxnpc.readers import Dataset, PathLike


class Model(NamedTuple):
    """What a file, or a data set known by name, says of a classifier.

    Attributes:
        prototypes: with their labels, the shape of one and, perhaps, a learned metric.
        distance: the norm, or None where the source does not say.
        classes: in the order that decides ties, or None for sorted ones.
        settings: how the classifier was made; empty where the source does not say.
        source: its name, for messages.
    """

    prototypes: Dataset
    distance: float | None
    classes: tuple[Hashable, ...] | None
    settings: dict[str, Any]
    source: str


def save_model(
    path: PathLike,
    classifier: PrototypeClassifier,
    *,
    shape: tuple[int, ...] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Write a classifier as an npz file that all commands read.

    The arrays are `prototypes`, `labels`, `classes`, `distance`, perhaps `metric`, and `settings`
    as JSON. Class names that are neither all numbers nor all strings are written as strings.

    Args:
        path: the file; it appears whole or not at all.
        classifier: with a norm for its distance.
        shape: of one input, such as (28, 28), for pictures; by default (d,).
        settings: what is to be remembered with it: numbers, strings, lists and mappings of them.

    Raises:
        ValueError: if the distance is a function, or the shape does not fit.

    Example:
        >>> import tempfile
        >>> from jaxnpc.prototypes import prototype_classifier
        >>> pets = prototype_classifier([[0.0, 1.0], [2.0, 3.0]], ["cat", "dog"], distance=1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_model(f"{folder}/pets.npz", pets, settings={"epochs": 40})
        ...     model = load_model(f"{folder}/pets.npz")
        >>> build(model).classes, build(model).distance, model.settings
        (('cat', 'dog'), 1.0, {'epochs': 40})
    """
    if callable(classifier.distance):
        raise ValueError(
            f"classifier.distance is {classifier.distance!r}: a file holds the norms 1, 2 and inf "
            "only, save the prototypes of other distances yourself"
        )
    prototypes = np.asarray(classifier.prototypes)
    size = prototypes.shape[1:] if shape is None else shape
    if np.prod(size) != prototypes.shape[1]:
        raise ValueError(
            f"shape {size} is not that of prototypes with {prototypes.shape[1]} coordinates"
        )
    names = name_array(classifier.classes)
    arrays = {
        "prototypes": prototypes.reshape(-1, *size),
        "labels": names[np.asarray(classifier.labels)],
        "classes": names,
        "distance": np.float64(classifier.distance),
        "settings": np.array(json.dumps(dict(settings or {}))),
    }
    if classifier.metric is not None:
        arrays["metric"] = np.asarray(classifier.metric)
    with replacing(path) as temporary:
        np.savez_compressed(temporary, allow_pickle=False, **arrays)


def load_model(source: PathLike) -> Model:
    """Prototypes from a file of any kind, or from a data set by its name: 1-NN.

    Besides what [`save_model`][jaxnpc.models.save_model] wrote these are arrays of other programs:
    `prototypes` and `labels`, maybe `metric`, in an npz file, or a CSV file.

    Args:
        source: as for [`load`][jaxnpc.datasets.load].

    Returns:
        The prototypes and what is known of them.

    Raises:
        OSError: if the file is missing or cannot be read.
        ValueError: if the source is not known, its content is wrong, or it has no labels.
    """
    name = os.fspath(source)
    data = load(source)
    if data.labels is None:
        raise ValueError(f"{name} has no labels: prototypes need them")
    found: dict[str, Any] = {}
    if name.endswith(".npz"):
        with np.load(name, allow_pickle=False) as archive:
            found = {key: archive[key] for key in _RECORD if key in archive.files}
    # Other arrays under these names are another program's, with another meaning.
    found = {key: value for key, value in found.items() if value.ndim == _RECORD[key]}
    classes = tuple(found["classes"].tolist()) if "classes" in found else ()
    return Model(
        prototypes=data,
        distance=_distance(name, found["distance"]) if "distance" in found else None,
        classes=classes if set(classes) == set(data.labels.tolist()) else None,
        settings=_settings(name, found["settings"]) if "settings" in found else {},
        source=name,
    )


def build(model: Model, distance: float | None = None) -> PrototypeClassifier:
    """The classifier of a model.

    Args:
        model: the model.
        distance: its norm, where the model does not state it; by default 2.

    Raises:
        ValueError: if the model states another distance, or makes no classifier.
    """
    if distance is not None and model.distance is not None and distance != model.distance:
        raise ValueError(
            f"distance {distance:g} is not that of {model.source}, which is made for "
            f"{model.distance:g}: leave it out"
        )
    known = model.distance if distance is None else distance
    points, labels, _, metric = model.prototypes
    assert labels is not None  # load_model saw to it
    return prototype_classifier(
        points, labels, distance=2 if known is None else known, metric=metric, classes=model.classes
    )


_RECORD: dict[str, int] = {"distance": 0, "settings": 0, "classes": 1}
"""What a file may say besides the prototypes, and the rank of each array."""


def _distance(name: str, value: Any) -> float:
    try:
        distance = float(value)
    except (TypeError, ValueError):
        distance = value.item()
    if not is_norm(distance):
        raise ValueError(f"{name}: distance must be 1, 2 or inf, got {distance!r}")
    return distance


def _settings(name: str, text: Any) -> dict[str, Any]:
    try:
        settings = json.loads(str(text))
    except ValueError as error:
        raise ValueError(f"{name}: settings must be JSON: {error}") from None
    if not isinstance(settings, dict):
        raise ValueError(f"{name}: settings must be a JSON object, got {text}")
    return settings
