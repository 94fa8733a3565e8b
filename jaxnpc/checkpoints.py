"""Finished chunks of a certification, kept in a folder so that an interrupted run goes on."""

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from jaxnpc.certificate import Certificate, load_npz, save_npz


def fingerprint(*parts: Any) -> str:
    """A hash of arrays and of anything else by its repr; equal for equal content only.

    Example:
        >>> fingerprint(np.zeros(2), "l2") == fingerprint(np.zeros(2), "l2")
        True
        >>> fingerprint(np.zeros(2)) == fingerprint(np.zeros(3))
        False
    """
    digest = hashlib.sha256()
    for part in parts:
        if hasattr(part, "shape"):
            array = np.ascontiguousarray(part)
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            digest.update(array.data if array.size else b"")
        else:
            digest.update(repr(part).encode())
        digest.update(b";")
    return digest.hexdigest()


@dataclass(frozen=True)
class Checkpoints:
    """A folder of finished chunks, each written whole or not at all.

    Attributes:
        folder: where they lie; None keeps nothing.
        run: the fingerprint of everything that determines the result.
    """

    folder: str | os.PathLike[str] | None
    run: str

    def path(self, start: int) -> Path:
        """The file of the chunk that begins with the point `start`."""
        assert self.folder is not None
        return Path(self.folder) / f"points-{start:09d}.npz"

    def load(self, start: int) -> Certificate | None:
        """The chunk that begins with the point `start`, if it is there and not damaged.

        Raises:
            ValueError: if it belongs to another run.
        """
        if self.folder is None or not self.path(start).is_file():
            return None
        try:
            part = load_npz(self.path(start))
        except ValueError:  # garbage, to be written anew
            return None
        if part.settings.get("run") != self.run:
            raise ValueError(
                f"checkpoint {os.fspath(self.folder)!r} belongs to a run with another classifier, "
                "other points or other settings: remove it or name another folder"
            )
        return part

    def save(self, start: int, part: Certificate) -> None:
        """Keep a finished chunk."""
        if self.folder is not None:
            save_npz(replace(part, settings={"run": self.run}), self.path(start))
