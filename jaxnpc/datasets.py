"""Labelled points and prototypes: MNIST's idx files, npz, CSV, the digits of scikit-learn."""

import contextlib
import csv
import gzip
import hashlib
import io
import math
import os
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Shaped

from jaxnpc.extras import require
from jaxnpc.files import replacing
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


class Idx(NamedTuple):
    """One of MNIST's four files: its name and the SHA-256 of its content once decompressed."""

    name: str
    sha256: str


MNIST: dict[str, tuple[Idx, Idx]] = {
    "train": (
        Idx(
            "train-images-idx3-ubyte",
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        ),
        Idx(
            "train-labels-idx1-ubyte",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        ),
    ),
    "test": (
        Idx(
            "t10k-images-idx3-ubyte",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        ),
        Idx(
            "t10k-labels-idx1-ubyte",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    ),
}
"""The images and labels of each split."""

MIRRORS = (
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
)
"""Where MNIST can be downloaded, tried in order."""

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


def flatten(points: Shaped[np.ndarray, "n ..."], labels: Any = None, metric: Any = None) -> Dataset:
    """A data set of the points, one row each; integers become floats wide enough to hold them."""
    points = real_array(points, "points")
    return Dataset(
        points.reshape(len(points), math.prod(points.shape[1:])),
        None if labels is None else np.asarray(labels),
        points.shape[1:],
        metric,
    )


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


def download(
    name: str, mirrors: Sequence[str], sha256: str, target: Path, *, timeout: float = 30.0
) -> Path:
    """Fetch a compressed file from the first mirror that gives the right content.

    Args:
        name: the file's name at the mirrors.
        mirrors: addresses of folders, each ending in a slash.
        sha256: the hash of the decompressed content.
        target: where to keep the file; it appears only once it is whole and checked.
        timeout: seconds to wait for a mirror.

    Returns:
        The target.

    Raises:
        FileNotFoundError: if no mirror gives the right content, with each one's reason.
    """
    failures: list[str] = []
    for mirror in mirrors:
        try:
            with urllib.request.urlopen(mirror + name, timeout=timeout) as reply:
                data = reply.read()
            content = gzip.decompress(data)
        except (OSError, EOFError) as error:
            failures.append(f"{mirror}: {error}")
            continue
        found = hashlib.sha256(content).hexdigest()
        if found != sha256:
            failures.append(f"{mirror}: SHA-256 is {found[:12]}..., not {sha256[:12]}...")
            continue
        with replacing(target) as temporary:
            temporary.write_bytes(data)
        return target
    raise FileNotFoundError(
        f"{name} could not be downloaded ({'; '.join(failures)}); put it into a folder and name "
        "that in the environment variable JAXNPC_DATA"
    )


def cache_folder() -> Path:
    """Where downloads are kept: `jaxnpc` in XDG_CACHE_HOME, which is `~/.cache` by default."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxnpc"


def locate(file: Idx, folder: PathLike | None = None) -> Path:
    """The path of one of MNIST's files.

    It is looked for in `folder` or else in the folder that the environment variable JAXNPC_DATA
    names, there also in a folder `mnist` inside, with and without the suffix .gz; without either
    it is downloaded once and checked.

    Raises:
        FileNotFoundError: if it is not there, or cannot be downloaded.
    """
    home = folder if folder is not None else os.environ.get("JAXNPC_DATA")
    folders = [cache_folder()] if home is None else [Path(home), Path(home) / "mnist"]
    for candidate in (place / (file.name + end) for place in folders for end in (".gz", "")):
        if candidate.is_file():
            return candidate
    if home is not None:
        raise FileNotFoundError(f"{file.name}[.gz] is neither in {folders[0]} nor in {folders[1]}")
    return download(file.name + ".gz", MIRRORS, file.sha256, folders[0] / (file.name + ".gz"))


def mnist(split: str = "test", *, folder: PathLike | None = None) -> Dataset:
    """MNIST's images, scaled to [0, 1].

    Args:
        split: "train" (60,000 images) or "test" (10,000).
        folder: where the idx files lie; by default JAXNPC_DATA, else a checked download.

    Returns:
        The images as float32 rows of 784 values, and their labels.

    Raises:
        ValueError: if there is no such split.
        FileNotFoundError: if the files are not found and cannot be downloaded.
    """
    if split not in MNIST:
        raise ValueError(f"split must be one of {sorted(MNIST)}, got {split!r}")
    images, labels = (read_idx(locate(file, folder)) for file in MNIST[split])
    return flatten(images.astype(np.float32) / 255, labels.astype(np.int64))


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
