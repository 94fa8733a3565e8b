"""CIFAR-10 from the files one has: its original binary batches, or re-encoded as JPEG."""

import io
import itertools
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8

from jaxnpc.extras import require
from jaxnpc.readers import Dataset, PathLike, flatten

SIDE, CHANNELS = 32, 3
RECORD = 1 + CHANNELS * SIDE * SIDE

BATCHES: dict[str, tuple[str, ...]] = {
    "train": tuple(f"data_batch_{k}.bin" for k in range(1, 6)),
    "test": ("test_batch.bin",),
}
"""The files of each split in the original binary version."""

JPEG = "cifar10_jpeg.npz"
"""A file of `{split}_jpeg`, `{split}_offsets` and `{split}_labels`, image k at
`jpeg[offsets[k]:offsets[k + 1]]`."""


def cifar10(split: str = "test", *, folder: PathLike | None = None) -> Dataset:
    """CIFAR-10's images, scaled to [0, 1].

    Args:
        split: "train" (50,000 images) or "test" (10,000).
        folder: where the files lie, there or in a folder `cifar10` or `cifar-10-batches-bin`
            inside; by default what the environment variable JAXNPC_DATA names. The original binary
            batches are preferred to `cifar10_jpeg.npz`, which is slightly lossy.

    Returns:
        The images as float32 rows of 32 x 32 x 3 values, and their labels.

    Raises:
        ValueError: if there is no such split, or a file is damaged.
        FileNotFoundError: if neither is found.
        ImportError: if the images are JPEGs and Pillow is missing (extra `data`).
    """
    if split not in BATCHES:
        raise ValueError(f"split must be one of {sorted(BATCHES)}, got {split!r}")
    home = Path(folder if folder is not None else os.environ.get("JAXNPC_DATA", "."))
    places = (home, home / "cifar10", home / "cifar-10-batches-bin")
    for place in places:
        if all((place / name).is_file() for name in BATCHES[split]):
            images, labels = _binary([place / name for name in BATCHES[split]])
            return flatten(images.astype(np.float32) / 255, labels)
    for place in places:
        if (place / JPEG).is_file():
            images, labels = _jpeg(place / JPEG, split)
            return flatten(images.astype(np.float32) / 255, labels)
    raise FileNotFoundError(
        f"neither {', '.join(BATCHES[split])} nor {JPEG} is in {home} or the folders cifar10 and "
        "cifar-10-batches-bin in it: name their folder, or set JAXNPC_DATA to it"
    )


def _binary(files: Sequence[Path]) -> tuple[UInt8[np.ndarray, "n h w c"], Int[np.ndarray, " n"]]:
    """Records of a label and three planes of pixels."""
    parts = []
    for file in files:
        content = np.frombuffer(file.read_bytes(), np.uint8)
        if not content.size or content.size % RECORD:
            raise ValueError(f"{file} has {content.size} bytes, no multiple of {RECORD}")
        parts.append(content.reshape(-1, RECORD))
    records = np.concatenate(parts)
    planes = records[:, 1:].reshape(-1, CHANNELS, SIDE, SIDE)
    return planes.transpose(0, 2, 3, 1), records[:, 0].astype(np.int64)


def _jpeg(file: Path, split: str) -> tuple[UInt8[np.ndarray, "n h w c"], Int[np.ndarray, " n"]]:
    image = require("PIL.Image")
    with np.load(file, allow_pickle=False) as archive:
        data, offsets, labels = (
            archive[f"{split}_{name}"] for name in ("jpeg", "offsets", "labels")
        )
    images = np.stack(
        [
            np.asarray(image.open(io.BytesIO(data[start:end].tobytes())).convert("RGB"))
            for start, end in itertools.pairwise(offsets)
        ]
    )
    return images, labels.astype(np.int64)
