"""How far common changes of an image are in a metric, and whether two metrics agree about it.

Certified accuracy says nothing without the metric's scale: what is a distance of one half? The
median distances of changes that everybody knows are such a scale. A metric that was trained for the
certified margin may have shrunk what it is measured by, so its figures count only if these
distances are still those of the metric that it started from.
"""

import io
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray

from jaxnpc.augmentation import Augment, Shift
from jaxnpc.distances import squared_l2
from jaxnpc.extras import require
from jaxnpc.perceptual.embedding import Embedding, check_images, embed

OTHER_CLASS = "other class"
"""The name of the distance to the nearest image of another class."""

TOLERANCE = 0.1
"""How far a distance may have moved, relatively, for a co-trained metric's figures to count."""


def mirror(key: PRNGKeyArray, images: Float[Array, "n h w c"]) -> Float[Array, "n h w c"]:
    """Images mirrored left to right.

    Example:
        >>> mirror(jax.random.key(0), jnp.arange(3.0).reshape(1, 1, 3, 1)).ravel().tolist()
        [2.0, 1.0, 0.0]
    """
    del key
    return images[:, :, ::-1]


@dataclass(frozen=True)
class Noise:
    """Gaussian noise of a fixed l2 size, cut off where it leaves [0, 1].

    Attributes:
        size: its norm over the whole image, before it is cut off.

    Example:
        >>> grey = jnp.full((2, 8, 8, 3), 0.5)
        >>> gap = (Noise(0.5)(jax.random.key(0), grey) - grey).reshape(2, -1)
        >>> jnp.linalg.norm(gap, axis=1).round(4).tolist()
        [0.5, 0.5]
    """

    size: float

    def __call__(
        self, key: PRNGKeyArray, images: Float[Array, "n h w c"]
    ) -> Float[Array, "n h w c"]:
        """Images with noise."""
        drawn = jax.random.normal(key, images.shape, images.dtype)
        norm = jnp.sqrt(jnp.sum(jnp.square(drawn), axis=(1, 2, 3), keepdims=True))
        return jnp.clip(images + self.size * drawn / norm, 0, 1)


@dataclass(frozen=True)
class Jpeg:
    """Images compressed as JPEG, by Pillow (extra `data`); not to be traced.

    Attributes:
        quality: from 1 to 95.
    """

    quality: int

    def __call__(
        self, key: PRNGKeyArray, images: Float[Array, "n h w c"]
    ) -> Float[Array, "n h w c"]:
        """Images as they come out of the file."""
        del key
        pillow = require("PIL.Image")

        def through(pixels: np.ndarray) -> np.ndarray:
            stream = io.BytesIO()
            pillow.fromarray(pixels).save(stream, "JPEG", quality=self.quality)
            return np.asarray(pillow.open(stream))

        coded = [through(pixels) for pixels in np.rint(255 * np.asarray(images)).astype(np.uint8)]
        return jnp.asarray(np.stack(coded), images.dtype) / 255


DIFFERENTIABLE: dict[str, Augment] = {
    "mirror": mirror,
    "shift 1": Shift(1, keep=0.0, fill="edge"),
    "noise 0.5": Noise(0.5),
    "noise 1": Noise(1.0),
}
"""Changes that can be traced: a mirror image, one pixel to one of four sides, noise."""

CHANGES: dict[str, Augment] = {**DIFFERENTIABLE, "jpeg 50": Jpeg(50)}
"""All changes by name."""


def calibrate(
    embedding: Embedding,
    images: ArrayLike,
    labels: Iterable[Hashable],
    *,
    changes: Mapping[str, Augment] = CHANGES,
    seed: int = 0,
) -> dict[str, float]:
    """Median LPIPS distances of common changes of images, and to the nearest of another class.

    The last one depends on how many images there are: compare metrics on the same ones.

    Args:
        embedding: the metric.
        images: n images with values in [0, 1], some hundred.
        labels: their n labels, of two classes at least.
        changes: by name what is done to the images, a function of key and images.
        seed: of what is random in the changes.

    Returns:
        The medians, by the names of `changes` and `OTHER_CLASS`.

    Raises:
        TypeError: if the images are no floating-point numbers.
        ValueError: if their shape or a value does not fit, or the labels do not.
        ImportError: if Pillow is missing, for JPEG.

    Example:
        >>> from jaxnpc.perceptual.alexnet import CIFAR
        >>> from jaxnpc.perceptual.embedding import random_embedding
        >>> phi = random_embedding(CIFAR, jax.random.key(0))
        >>> images = np.random.default_rng(0).random((4, 32, 32, 3), dtype=np.float32)
        >>> found = calibrate(phi, images, [0, 0, 1, 1])
        >>> list(found)
        ['mirror', 'shift 1', 'noise 0.5', 'noise 1', 'jpeg 50', 'other class']
        >>> found["noise 0.5"] < found["noise 1"] < found["mirror"]
        True
    """
    x, names = check_images(embedding, images), list(labels)
    if len(names) != len(x):
        raise ValueError(f"there are {len(x)} images and {len(names)} labels: give one each")
    index = {name: k for k, name in enumerate(dict.fromkeys(names))}
    if len(index) < 2:
        raise ValueError(f"labels has the classes {list(index)}: calibration needs two at least")
    z, key = embed(embedding, x), jax.random.key(seed)
    found: dict[str, float] = {}
    for name, change in changes.items():
        moved = embed(embedding, np.asarray(change(key, jnp.asarray(x))))
        found[name] = _median(z, moved)
    nearest = _nearest_other(z, np.array([index[name] for name in names]))
    found[OTHER_CLASS] = _median(z, z[nearest])
    return found


class Comparison(NamedTuple):
    """Distances of the same changes in two metrics.

    Attributes:
        ratio: those of the second metric over those of the first, by name.
        deviation: the largest relative deviation among them.
        within: whether it is at most `TOLERANCE`.
    """

    ratio: dict[str, float]
    deviation: float
    within: bool


def compare(before: Mapping[str, float], after: Mapping[str, float]) -> Comparison:
    """Two calibrations beside each other.

    Args:
        before: of the frozen metric.
        after: of the co-trained one, of the same changes of the same images.

    Raises:
        ValueError: if they are not of the same changes.

    Example:
        >>> found = compare({"mirror": 1.0, "noise": 0.5}, {"mirror": 0.95, "noise": 0.6})
        >>> found.ratio, round(found.deviation, 2), found.within
        ({'mirror': 0.95, 'noise': 1.2}, 0.2, False)
    """
    if not before or set(before) != set(after):
        raise ValueError(
            f"calibrations of {sorted(before)} and of {sorted(after)} do not compare: take the "
            "same changes, and at least one"
        )
    ratio = {name: _ratio(after[name], before[name]) for name in before}
    deviation = float(np.max(np.abs(np.array(list(ratio.values())) - 1)))
    return Comparison(ratio, deviation, deviation <= TOLERANCE)


def record(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Two calibrations as a metric's settings hold them.

    Example:
        >>> record({"mirror": 1.0}, {"mirror": 0.95})
        {'mirror': {'frozen': 1.0, 'cotrained': 0.95}}
    """
    return {name: {"frozen": before[name], "cotrained": after[name]} for name in before}


def _ratio(after: float, before: float) -> float:
    return after / before if before else (1.0 if after == before else float("inf"))


def _median(z: Float[np.ndarray, "n D"], moved: Float[np.ndarray, "n D"]) -> float:
    squares = [np.sum(np.square(a.astype(np.float64) - b)) for a, b in zip(z, moved, strict=True)]
    return float(np.median(np.sqrt(squares)))


def _nearest_other(
    z: Float[np.ndarray, "n D"], classes: Int[np.ndarray, " n"]
) -> Int[np.ndarray, " n"]:
    """For each the nearest one of another class; rounding may take one that is as near."""
    squares = np.array(squared_l2(jnp.asarray(z), jnp.asarray(z)))
    squares[classes[:, None] == classes] = np.inf
    return squares.argmin(axis=1)
