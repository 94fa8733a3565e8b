"""MNIST: its files, where they are or downloaded once."""

import gzip
import hashlib
import os
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxmpd.files import replacing
from jaxnpc.readers import Dataset, PathLike, flatten, read_idx


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
