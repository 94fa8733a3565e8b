"""Labelled points by name or from a file: the digits of scikit-learn, MNIST, one's own."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from jaxtyping import Shaped

from jaxnpc.extras import require
from jaxnpc.mnist import mnist
from jaxnpc.readers import Dataset, PathLike, flatten, read_csv, read_images, read_npz

__all__ = ["Dataset", "crop", "digits", "load", "mnist"]


def crop(dataset: Dataset, margin: int) -> Dataset:
    """Images without their outer `margin` pixels on each side: 28 x 28 becomes 26 x 26 with 1.

    A learned metric keeps the columns of the pixels that stay.

    Raises:
        ValueError: if the points are no images or too small, or the metric does not fit them.

    Example:
        >>> images = flatten(np.arange(16.0).reshape(1, 4, 4))
        >>> crop(images, 1).points.tolist()
        [[5.0, 6.0, 9.0, 10.0]]
    """
    if margin == 0:
        return dataset
    if len(dataset.shape) < 2 or margin < 0 or min(dataset.shape[:2]) <= 2 * margin:
        raise ValueError(
            f"margin {margin} cannot be cropped from points of shape {dataset.shape}: it must be "
            "at least 0 and leave a pixel of an image"
        )

    def inner(rows: Shaped[np.ndarray, "k d"]) -> Shaped[np.ndarray, "k ..."]:
        return rows.reshape(-1, *dataset.shape)[:, margin:-margin, margin:-margin]

    metric = dataset.metric
    if metric is not None:
        if metric.ndim != 2 or metric.shape[1] != dataset.points.shape[1]:
            raise ValueError(
                f"metric has shape {metric.shape}: give a matrix (m, {dataset.points.shape[1]}) "
                f"for points of shape {dataset.shape}"
            )
        metric = inner(metric).reshape(len(metric), -1)
    return flatten(inner(dataset.points), dataset.labels, metric)


def digits() -> Dataset:
    """The 1,797 digits of 8 x 8 pixels that scikit-learn ships, scaled to [0, 1].

    Raises:
        ImportError: if scikit-learn is missing (extra `data`).

    Example:
        >>> digits().points.shape, float(digits().points.max())
        ((1797, 64), 1.0)
    """
    bunch = require("sklearn.datasets").load_digits()
    return flatten(bunch.images.astype(np.float32) / 16, bunch.target)


BUILT_IN: dict[str, Callable[[], Dataset]] = {
    "digits": digits,
    "mnist": mnist,
    "mnist:train": lambda: mnist("train"),
}
"""Data sets known by name."""

READERS: dict[str, Callable[[PathLike], Dataset]] = {
    ".npz": read_npz,
    ".csv": read_csv,
    "ubyte": read_images,
}
"""How to read a file by the end of its name, before .gz."""


def load(source: PathLike, target: str | None = None) -> Dataset:
    """A data set by its name or from a file.

    Args:
        source: "digits", "mnist", "mnist:train", or the path of an npz, CSV or idx file (the last
            two also compressed).
        target: the column of the labels, for CSV files only.

    Returns:
        The points and their labels.

    Raises:
        OSError: if the file is missing or cannot be read.
        ValueError: if the kind of file is not known, its content is wrong or it has no points.

    Example:
        >>> load("digits").labels[:3].tolist()
        [0, 1, 2]
    """
    name = os.fspath(source)
    stem = name.removesuffix(".gz")
    if target is not None and not stem.endswith(".csv"):
        raise ValueError(f"target {target!r} names a column, but {name!r} is no CSV file")
    if name in BUILT_IN:
        return BUILT_IN[name]()
    reader = next((read for end, read in READERS.items() if stem.endswith(end)), None)
    if reader is None:
        raise ValueError(
            f"cannot tell what {name!r} is: give a file ending in {', '.join(READERS)} or one of "
            f"{', '.join(BUILT_IN)}"
        )
    if not Path(source).is_file():
        raise FileNotFoundError(f"{name} does not exist")
    dataset = reader(source) if target is None else read_csv(source, target)
    if 0 in dataset.points.shape:
        raise ValueError(
            f"{name} holds points of shape {(len(dataset.points), *dataset.shape)}: it needs at "
            "least one point of at least one coordinate"
        )
    return dataset
