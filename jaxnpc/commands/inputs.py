"""What several commands are given: points, classifiers, and where inputs live."""

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

from jaxmpd.options import whole
from jaxnpc.datasets import Dataset, crop, load
from jaxnpc.domains import Box, Domain, Unbounded
from jaxnpc.models import Model, build
from jaxnpc.prototypes import PrototypeClassifier

NORMS: dict[str, float] = {"1": 1, "2": 2, "inf": math.inf}

SOURCES = (
    "'digits', 'mnist', 'mnist:train', or a file: npz (arrays points or prototypes, labels, "
    "metric), CSV (header; labels in the column label, class or target), idx (MNIST's, .gz too, "
    "labels from the file beside it)"
)


def add_points(parser: argparse.ArgumentParser) -> None:
    """Options that say how the points are read."""
    parser.add_argument(
        "--target", metavar="COLUMN", help="the column of the labels where the data are a CSV file"
    )
    parser.add_argument(
        "--crop",
        type=whole(0),
        metavar="N",
        help="drop N pixels at each edge of images (default: as the classifier's file says, else "
        "0)",
    )
    parser.add_argument(
        "--limit", type=whole(1), metavar="N", help="only the first N points (default: all)"
    )


def add_distance(parser: argparse.ArgumentParser) -> None:
    """The option for classifiers whose file does not state their distance."""
    parser.add_argument(
        "--distance",
        choices=list(NORMS),
        help="the classifier's (default: as its file says, else 2)",
    )


def add_box(parser: argparse.ArgumentParser) -> None:
    """The option for the domain."""
    parser.add_argument(
        "--box",
        nargs="+",
        metavar=("LOW HIGH", "none"),
        help="where inputs live: the two ends of every coordinate, or none (default: as the "
        "classifier's file says, else none)",
    )


def read_points(
    source: str, arguments: argparse.Namespace, settings: Mapping[str, Any]
) -> tuple[Dataset, int, tuple[int, ...]]:
    """The points, the margin that was cropped from them, and their shape before that.

    Args:
        source: a file or the name of a data set.
        arguments: of the options of [`add_points`][jaxnpc.commands.inputs.add_points].
        settings: of the classifier's file: how its inputs were prepared.
    """
    whole_points = load(source, arguments.target)
    margin = settings.get("crop", 0) if arguments.crop is None else arguments.crop
    data = crop(whole_points, margin)
    if arguments.limit is not None:
        labels = None if data.labels is None else data.labels[: arguments.limit]
        data = data._replace(points=data.points[: arguments.limit], labels=labels)
    return data, margin, whole_points.shape


def classifier_of(
    model: Model, margin: int, shape: tuple[int, ...], distance: str | None
) -> PrototypeClassifier:
    """The classifier for points that were cropped.

    Args:
        model: the model; prototypes of the points' shape before they were cropped are cropped
            along.
        margin: what was cropped from the points.
        shape: of a point before that.
        distance: the option for it.
    """
    if model.prototypes.shape == shape:
        model = model._replace(prototypes=crop(model.prototypes, margin))
    return build(model, None if distance is None else NORMS[distance])


def names_of(
    classifier: PrototypeClassifier, labels: Shaped[np.ndarray, " n"]
) -> Shaped[np.ndarray, " n"]:
    """Labels as the classifier has them, compared as text.

    A file whose labels are all integers gives integers, one with a name among them strings.
    """
    known = {str(name): name for name in classifier.classes}
    return np.array([known.get(str(label), label) for label in labels.tolist()], object)


def box_words(arguments: argparse.Namespace, settings: Mapping[str, Any]) -> list[str]:
    """The words of `--box`, or what the classifier's file says."""
    words = settings.get("box", ["none"]) if arguments.box is None else arguments.box
    return [str(word) for word in words]


def parse_box(words: Sequence[str]) -> Domain:
    """The domain that the words of `--box` name."""
    if list(words) == ["none"]:
        return Unbounded()
    try:
        low, high = (float(word) for word in words)
    except ValueError:
        raise ValueError(f"--box takes LOW HIGH or none, got {' '.join(words)}") from None
    return Box(low, high)


def check_folder(folder: Path) -> None:
    """Make sure that files can be written into the folder of `--output`, as far as names tell."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--output {folder} exists and is no folder")


def check_file(path: Path) -> None:
    """Make sure that `--output` names a file."""
    if path.is_dir():
        raise ValueError(f"--output {path} is a folder: name a file in it")


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Cells as text, each column as wide as it needs."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )


def bracket(lower: float, upper: float) -> str:
    """A share in percent and, where they differ, its upper bound.

    Example:
        >>> bracket(0.5, 0.5), bracket(0.5, 0.625)
        ('50.00', '50.00 (<= 62.50)')
    """
    low, high = f"{100 * lower:.2f}", f"{100 * upper:.2f}"
    return low if low == high else f"{low} (<= {high})"
