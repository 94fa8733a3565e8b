"""Labelled points and prototypes from files: MNIST's idx format, npz, CSV."""

import contextlib
import csv
import gzip
import io
import math
import os
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Shaped

from jaxnpc.prototypes import real_array

PathLike = str | os.PathLike[str]


class Dataset(NamedTuple):
    """Labelled points.

    Attributes:
        points: n points of d coordinates.
        labels: the class of each point, or None where the source has none.
        shape: the shape of one point before it was flattened, for pictures.
        metric: the linear map of a learned metric, where the source holds prototypes that have one.
    """

    points: Float[np.ndarray, "n d"]
    labels: Shaped[np.ndarray, " n"] | None
    shape: tuple[int, ...]
    metric: Float[np.ndarray, "m d"] | None = None


def flatten(points: Shaped[np.ndarray, "n ..."], labels: Any = None, metric: Any = None) -> Dataset:
    """A data set of the points, one row each; integers become floats wide enough to hold them."""
    points = real_array(points, "points")
    return Dataset(
        points.reshape(len(points), math.prod(points.shape[1:])),
        None if labels is None else np.asarray(labels),
        points.shape[1:],
        metric,
    )


IDX_TYPES: dict[int, str] = {
    0x08: ">u1",
    0x09: ">i1",
    0x0B: ">i2",
    0x0C: ">i4",
    0x0D: ">f4",
    0x0E: ">f8",
}
"""The idx format's element types by their code."""


def read_bytes(path: PathLike) -> bytes:
    """The content of a file, decompressed if its name ends in .gz.

    Raises:
        ValueError: if a .gz file is damaged.
    """
    data = Path(path).read_bytes()
    if Path(path).suffix != ".gz":
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError) as error:
        raise ValueError(f"{path} is not a whole gzip file: {error}") from error


def read_idx(path: PathLike) -> Shaped[np.ndarray, "..."]:
    """An array in MNIST's idx format, compressed or not.

    Args:
        path: the file, for example `t10k-images-idx3-ubyte.gz`.

    Returns:
        The array, with the shape and the type that the file states.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is not an idx file or is cut short.
    """
    data = read_bytes(path)
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in IDX_TYPES:
        raise ValueError(
            f"{path} is not an idx file: it begins with {data[:4].hex(' ') or 'nothing'}"
        )
    rank = data[3]
    header = 4 + 4 * rank
    if len(data) < header:
        raise ValueError(f"{path} is cut short: {len(data)} bytes, its header alone has {header}")
    shape = tuple(int(n) for n in np.frombuffer(data, ">u4", rank, 4))
    kind = np.dtype(IDX_TYPES[data[2]])
    expected = header + kind.itemsize * math.prod(shape)
    if len(data) != expected:
        raise ValueError(
            f"{path} holds {len(data)} bytes, but an array of shape {shape} needs {expected}"
        )
    return np.frombuffer(data, kind, offset=header).reshape(shape).astype(kind.newbyteorder("="))


def read_images(path: PathLike) -> Dataset:
    """Images in an idx file, scaled to [0, 1], with the labels of the file beside it, if any.

    The labels of `NAME-images-idx3-ubyte` are expected in `NAME-labels-idx1-ubyte`.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if either file is not idx or their lengths differ.
    """
    path = Path(path)
    images = read_idx(path)
    if images.ndim < 2:
        raise ValueError(f"{path} holds an array of shape {images.shape}, no images")
    if images.dtype == np.uint8:
        images = images.astype(np.float32) / 255
    sibling = path.with_name(path.name.replace("-images-idx3", "-labels-idx1"))
    if sibling == path or not sibling.is_file():
        return flatten(images)
    labels = read_idx(sibling)
    if labels.shape != images.shape[:1]:
        raise ValueError(f"{sibling} has shape {labels.shape}, but {path} {images.shape}")
    return flatten(images, labels.astype(np.int64))


POINTS = ("points", "prototypes", "x", "images", "data")
LABELS = ("labels", "y", "targets", "target")


def read_npz(path: PathLike) -> Dataset:
    """Points and labels, or prototypes, labels and a metric, from an npz file.

    Args:
        path: the file. The points are the array named `points`, `prototypes`, `x`, `images` or
            `data`, the labels the one named `labels`, `y`, `targets` or `target`, a learned metric
            the one named `metric`.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is no npz file or lacks the points, or if the lengths differ.
    """
    try:
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, EOFError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is not an npz file of plain arrays: {error}") from error
    points = next((arrays[name] for name in POINTS if name in arrays), None)
    labels = next((arrays[name] for name in LABELS if name in arrays), None)
    if points is None or points.ndim < 2:
        raise ValueError(
            f"{path} holds {sorted(arrays) or 'nothing'}; it needs an array of at least two "
            f"dimensions named one of {', '.join(POINTS)}"
        )
    if not np.issubdtype(points.dtype, np.number) or np.iscomplexobj(points):
        raise ValueError(f"{path}: the points must be real numbers, not {points.dtype}")
    if labels is not None and labels.shape != points.shape[:1]:
        raise ValueError(f"{path}: labels of shape {labels.shape} for points of {points.shape}")
    return flatten(points, labels, arrays.get("metric"))


def read_csv(path: PathLike, target: str | None = None) -> Dataset:
    """Points and labels from a CSV file with a header.

    Args:
        path: the file, compressed if its name ends in .gz.
        target: the column that holds the labels; by default `label`, `class` or `target`, if one of
            them exists. All other columns are coordinates.

    Returns:
        The points, as float64, and the labels: 64-bit integers where all of them are, else strings.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is empty or no CSV in UTF-8, the column is missing, a row has another
            length or a cell is not a number, naming its row and column.
    """
    lines = _csv_rows(path)
    header = [name.strip() for name in lines[0][1]] if lines else []
    body = [(line, row) for line, row in lines[1:] if row]
    if not body:
        raise ValueError(f"{path} has no rows below its header")
    if target is not None and target not in header:
        raise ValueError(f"{path} has no column {target!r}; its columns are {', '.join(header)}")
    known = (i for i, name in enumerate(header) if name.lower() in ("label", "class", "target"))
    column = header.index(target) if target is not None else next(known, None)
    for line, row in body:
        if len(row) != len(header):
            raise ValueError(
                f"{path}, line {line}: {len(row)} cells, but the header has {len(header)}"
            )
    features = [i for i in range(len(header)) if i != column]
    points = np.array(
        [[_number(path, line, header[i], row[i]) for i in features] for line, row in body]
    )
    if column is None:
        return flatten(points)
    labels = np.array([row[column].strip() for _, row in body])
    with contextlib.suppress(ValueError, OverflowError):  # class names stay strings
        labels = labels.astype(np.int64)
    return flatten(points, labels)


def _csv_rows(path: PathLike) -> list[tuple[int, list[str]]]:
    """The rows of a CSV file, each with the number of the line that it ends on."""
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8: {error}; save it in that") from None
    # Only csv may split lines: line breaks inside quotes, and Unicode's, belong to a cell.
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        return [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}") from None


def _number(path: PathLike, line: int, column: str, cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise ValueError(
            f"{path}, line {line}, column {column!r}: {cell!r} is not a number"
        ) from None
