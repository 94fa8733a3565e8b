"""What attacks on images came to: the closest images of another class, and files of them."""

import json
import zipfile
import zlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxmpd.files import replacing
from jaxnpc.certificate import Certificate, name_array
from jaxnpc.readers import PathLike


@dataclass(frozen=True)
class Attacked:
    """The closest image of another class that was found for each of n images.

    Attributes:
        images: an image in [0, 1] that is not of the label's class, as judged in float64 on its
            float32 embedding; the image itself where that is not of the class, or none was found.
        distance: its LPIPS distance, as [`lpips`][jaxnpc.perceptual.embedding.lpips] gives it; 0
            where the image itself is not of its label's class or not finite, infinite where none
            was found.
        label: the class, as an index into `classes`.
        found: the class that the image found is assigned to; -1 where there is none.
        checksum: of each original image, as in a [`Certificate`][jaxnpc.certificate.Certificate].
        classes: the names of the classes.
        settings: the metric's SHA-256 and how the attack was run, in words.
    """

    images: Float[np.ndarray, "n h w 3"]
    distance: Float[np.ndarray, " n"]
    label: Int[np.ndarray, " n"]
    found: Int[np.ndarray, " n"]
    checksum: Int[np.ndarray, " n"]
    classes: tuple[Hashable, ...]
    settings: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.distance)

    @property
    def success(self) -> Bool[np.ndarray, " n"]:
        """Whether there is an image of another class, at whatever distance."""
        return np.isfinite(self.distance)

    def take(self, rows: Int[np.ndarray, " r"]) -> "Attacked":
        """What was found for some of the images, in the order given."""
        return replace(self, **{name: getattr(self, name)[rows] for name in ARRAYS})

    def name(self, index: int) -> Hashable:
        """The name of a class by its index; None for -1."""
        return self.classes[index] if index >= 0 else None


DAMAGE = (EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error)
"""What reading a file raises that is none of these, or only a part of one."""

ARRAYS = tuple(f.name for f in fields(Attacked) if f.name not in ("classes", "settings"))


def upper_accuracy(
    attacked: Attacked, radii: float | Sequence[float] | Float[np.ndarray, "*r"]
) -> Float[np.ndarray, "*r"]:
    """The share of images for which no image of another class is known within these distances.

    It is an upper bound of the robust accuracy (URA): counted are distances > eps, as for a
    certificate's radii.

    Args:
        attacked: of at least one image.
        radii: one or more LPIPS distances eps, at least 0.

    Returns:
        The shares, in the shape of the radii.

    Raises:
        ValueError: if a radius is negative or NaN, or there are no images.

    Example:
        >>> two = Attacked(np.zeros((2, 1, 1, 3)), np.array([0.5, np.inf]), np.zeros(2, int),
        ...                np.array([1, -1]), np.zeros(2, int), ("a", "b"))
        >>> upper_accuracy(two, [0.4, 0.5, np.inf]).tolist()
        [1.0, 0.5, 0.5]
    """
    eps = np.asarray(radii, float)
    if not np.all(eps >= 0):
        raise ValueError(f"radii must be at least 0, got {radii}")
    if not len(attacked):
        raise ValueError("attacked has no images: a share of none is not defined")
    reached = np.sort(attacked.distance[attacked.success])
    return 1 - np.searchsorted(reached, eps, side="right") / len(attacked)


class Soundness(NamedTuple):
    """Certificates held against attacks.

    Attributes:
        broken: rows of images with an image of another class inside their certified ball: none,
            unless there is an error.
        ratio: the least distance found over the radius, of all images with both; infinite without.
    """

    broken: Int[np.ndarray, " r"]
    ratio: float


def check_soundness(certificate: Certificate, attacked: Attacked) -> Soundness:
    """Count the images that an attack broke inside their certificates.

    Args:
        certificate: of [`certify`][jaxnpc.perceptual.certify.certify], by any bound.
        attacked: attacks on the first of its images, at least one, with the same labels and metric.

    Returns:
        Which images were broken, and how close the attacks came.

    Raises:
        ValueError: if they are of other images, labels or metrics, naming the first that differs.
    """
    if len(attacked) > len(certificate):
        raise ValueError(f"attacked has {len(attacked)} images, the certificate {len(certificate)}")
    head = certificate.take(np.arange(len(attacked)))
    digests = [found.settings.get("embedding") for found in (head, attacked)]
    if digests[0] != digests[1]:
        raise ValueError(
            f"attacked is in the metric {digests[1]}, the certificate in {digests[0]}: attack and "
            "certify with one embedding"
        )
    for name in ("checksum", "label"):
        differ = np.flatnonzero(getattr(head, name) != getattr(attacked, name))
        if len(differ):
            raise ValueError(
                f"attacked is not of the certificate's images: row {differ[0]} has another {name}"
            )
    both = attacked.success & (head.radius > 0)
    ratio = attacked.distance[both] / head.radius[both]
    return Soundness(
        np.flatnonzero(attacked.distance < head.radius), float(ratio.min(initial=np.inf))
    )


def tighten(certificate: Certificate, attacked: Attacked) -> Certificate:
    """The certificate of the attacked images, its `upper` the smallest distance that is known.

    `robust_accuracy(..., upper=True)` of the result is the upper bound after the attacks, and its
    curves show the gap. The witnesses stay in `attacked`: they are images, no embedded points.

    Args:
        certificate: of at least these images.
        attacked: attacks on the first of them.

    Raises:
        ValueError: as [`check_soundness`][jaxnpc.perceptual.attacked.check_soundness].
    """
    check_soundness(certificate, attacked)
    head = certificate.take(np.arange(len(attacked)))
    return replace(head, upper=np.minimum(head.upper, attacked.distance))


def concatenate(parts: Sequence[Attacked]) -> Attacked:
    """What was found for several batches of images as one; all else as in the first."""
    arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in ARRAYS}
    return replace(parts[0], **arrays)


def save_attacked(attacked: Attacked, path: PathLike) -> None:
    """Write everything as an npz file, for `load_attacked`.

    Class names that are neither all numbers nor all strings are written as strings.
    """
    with replacing(path) as temporary:
        np.savez_compressed(
            temporary,
            allow_pickle=False,
            classes=name_array(attacked.classes),
            settings=json.dumps(attacked.settings),
            **{name: getattr(attacked, name) for name in ARRAYS},
        )


def load_attacked(path: PathLike) -> Attacked:
    """Read what [`save_attacked`][jaxnpc.perceptual.attacked.save_attacked] wrote.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it holds no such thing or is damaged.
    """
    try:
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as archive:
            found = {name: archive[name] for name in (*ARRAYS, "classes", "settings")}
    except DAMAGE as error:
        raise ValueError(f"{path} holds no attacked images, or is damaged: {error}") from error
    return Attacked(
        **{name: found[name] for name in ARRAYS},
        classes=tuple(found["classes"].tolist()),
        settings=json.loads(str(found["settings"])),
    )


class Parts(NamedTuple):
    """A folder of finished batches of an attack, so that an interrupted run goes on.

    Attributes:
        folder: where they lie; None keeps nothing.
        run: the fingerprint of everything that determines the result.
    """

    folder: Path | None
    run: str

    def load(self, start: int) -> Attacked | None:
        """The batch that begins with the image `start`, if it is there and not damaged.

        Raises:
            ValueError: if it belongs to another run.
        """
        if self.folder is None or not self.path(start).is_file():
            return None
        try:
            part = load_attacked(self.path(start))
        except ValueError:  # garbage, to be written anew
            return None
        if part.settings.get("run") != self.run:
            raise ValueError(
                f"checkpoint '{self.folder}' belongs to an attack on other images or another "
                "classifier, or with other settings: remove it or name another folder"
            )
        return part

    def save(self, start: int, part: Attacked) -> None:
        """Keep a finished batch."""
        if self.folder is not None:
            save_attacked(replace(part, settings={"run": self.run}), self.path(start))

    def path(self, start: int) -> Path:
        """The file of the batch that begins with the image `start`."""
        assert self.folder is not None
        return self.folder / f"images-{start:09d}.npz"
