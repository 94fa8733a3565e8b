r"""What one device pass rules out: lower bounds of the pair radius for every rival prototype.

For a point z of class y with its closest own prototype i* the bounds

$$\rho^q_p(z)_{i^*,j} \ge s_j = \begin{cases}
  \dfrac{|z - w_j|_2^2 - |z - w_{i^*}|_2^2}{2\,|w_j - w_{i^*}|_{q^*}} & p = 2 \\[2ex]
  \dfrac{|z - w_j|_p - |z - w_{i^*}|_p}{2\,d^{\max(0,\,1/p - 1/q)}} & p = 1, \infty
\end{cases}$$

(eq. 13; Theorem 2.4 and the equivalence of norms) hold on all of R^d and so in any domain. They are
computed in the device's precision and lowered by all that rounding can have added: a rival is
dropped because its bound is too large, never because it looked so.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxnpc.distances import DUAL, choosing_distances, pairwise, rounding, tiled
from jaxnpc.prototypes import PrototypeClassifier, linear_image, rounded_by

TABLE_BYTES = 1 << 28
"""The largest table of dual norms |w_j - w_i|_{q*}, own times all prototypes, that is kept."""


@dataclass(frozen=True)
class Space:
    r"""A classifier's prototypes, made ready for one threat model.

    Attributes:
        p: the norm of the distance.
        q: the norm of the perturbation.
        prototypes: K prototypes as floating-point numbers that are taken as exact.
        images: their images under the metric's map, in float64 (the same array without a metric).
        normals: A^T A w for each prototype (again the same): the plane between two prototypes has
            the difference of theirs as its normal.
        image_error: how far, in the l2 norm, float64 rounding moved an image; likewise of a normal,
            in any norm.
        device_images: the images in the device's type.
        center: what is subtracted from images before they are multiplied: the closer to 0, the less
            cancels.
        centered: the images less their center, in the device's type.
        center_moved: how far that subtraction and its rounding moved an image at most.
        device_normals: the normals likewise.
        members: for each class the indices of its prototypes, all of one length: the first repeats.
        labels: the class of each prototype.
    """

    p: float
    q: float
    prototypes: Float[np.ndarray, "K d"]
    metric: Float[np.ndarray, "m d"] | None
    images: Float[np.ndarray, "K m"]
    normals: Float[np.ndarray, "K d"]
    image_error: float
    device_images: Float[Array, "K m"]
    center: Float[np.ndarray, " m"]
    centered: Float[Array, "K m"]
    center_moved: float
    device_normals: Float[Array, "K d"]
    members: Int[np.ndarray, "C own"]
    labels: Int[np.ndarray, " K"]

    def images_of(self, x: Float[np.ndarray, "n d"]) -> tuple[Float[np.ndarray, "n m"], float]:
        """The points' images under the metric's map, and how far rounding moved one at most."""
        if self.metric is None:
            return x, 0.0
        wide = x.astype(np.float64)
        size = np.linalg.norm(np.abs(wide) @ np.abs(self.metric).T, axis=1).max(initial=0.0)
        return wide @ self.metric.T, rounding(x.shape[1] + 4, np.float64) * float(size)

    def narrow(self, x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """Numbers in the device's type; infinite where they exceed it."""
        with np.errstate(over="ignore"):
            return x.astype(self.device_images.dtype)

    def less_center(
        self, x: Float[np.ndarray, "n m"], error: float
    ) -> tuple[Float[np.ndarray, "n m"], Float[np.ndarray, ""]]:
        """The points' images on the device, and how far from the true ones with the prototypes'."""
        narrow, moved = _less_center(x, self.center, self.p, self.device_images.dtype)
        return narrow, np.asarray(
            moved + self.center_moved + error + self.image_error, narrow.dtype
        )


def _less_center(
    x: Float[np.ndarray, "n m"], center: Float[np.ndarray, " m"], p: float, dtype: np.dtype
) -> tuple[Float[np.ndarray, "n m"], float]:
    if not center.any():
        with np.errstate(over="ignore"):
            narrow = x.astype(dtype)
        return narrow, rounded_by(x, narrow, p)
    wide = x - center
    with np.errstate(over="ignore"):
        narrow = wide.astype(dtype)
    # Float64 itself rounds the difference, far less than the device's type may.
    return narrow, 2 * max(rounded_by(wide, narrow, p), rounded_by(wide, np.float32(0), p) / 2**28)


def prepare(classifier: PrototypeClassifier, q: float) -> Space:
    """The classifier made ready for perturbations measured in the q-norm."""
    assert not callable(classifier.distance)
    labels = np.asarray(classifier.labels)
    own = [np.flatnonzero(labels == c) for c in range(len(classifier.classes))]
    width = max(map(len, own))
    prototypes = np.asarray(classifier.prototypes)
    images = linear_image(classifier, prototypes)
    metric = None if classifier.metric is None else np.asarray(classifier.metric, np.float64)
    normals = prototypes if metric is None else images @ metric
    error = 0.0
    if metric is not None:
        steps = sum(metric.shape) + 4
        size = np.abs(prototypes).astype(np.float64) @ np.abs(metric).T
        error = rounding(steps, np.float64) * float(
            np.linalg.norm(size, axis=1).max() + (size @ np.abs(metric)).sum(axis=1).max()
        )
    dtype = prototypes.dtype
    # Only the matrix product of p = 2 cancels; differences do not mind where the origin is.
    center = np.zeros(images.shape[1])
    if classifier.distance == 2:
        center = images.mean(axis=0, dtype=np.float64)
    centered, center_moved = _less_center(images, center, classifier.distance, dtype)
    return Space(
        classifier.distance,
        q,
        prototypes,
        metric,
        images,
        normals,
        error,
        jnp.asarray(images.astype(dtype)),
        center,
        jnp.asarray(centered),
        center_moved,
        jnp.asarray(normals.astype(dtype)),
        np.array([np.pad(k, (0, width - len(k)), constant_values=k[0]) for k in own]),
        labels,
    )


class Rivals(NamedTuple):
    """The bounds of B points of one class.

    Attributes:
        floor: s_j, or less, for every prototype j of another class; infinite for the own class.
        nearest: the position of i* among the class's members.
        low: lower bounds of the distances to all prototypes, squared for p = 2.
        high: upper bounds of the distances to the own prototypes, likewise.
    """

    floor: Float[Array, "B K"]
    nearest: Int[Array, " B"]
    low: Float[Array, "B K"]
    high: Float[Array, "B own"]


class Rival(NamedTuple):
    """What stays the same for all points of one class.

    Attributes:
        own: the indices of the class's prototypes.
        tiles: their images, arranged to be compared with.
        foreign: which prototypes belong to other classes.
        table: an upper bound of |normal_j - normal_i|_{q*} for each own i and all j, or None where
            that would be too large: each block of points then computes the rows of its i*.
    """

    own: Int[Array, " own"]
    tiles: Float[Array, "tiles groups group columns"]
    foreign: Bool[Array, " K"]
    table: Float[Array, "own K"] | None


def against(space: Space, label: int) -> Rival:
    """The constants of one class."""
    own = jnp.asarray(space.members[label])
    normals = space.device_normals
    table = None
    if space.p == 2 and own.size * normals.shape[0] * normals.dtype.itemsize <= TABLE_BYTES:
        table = _dual_norms(normals[own], normals, DUAL[space.q], shift(space))
    return Rival(own, tiled(space.device_images[own]), jnp.asarray(space.labels != label), table)


def survey(space: Space, rival: Rival, x: Float[np.ndarray, "B m"], error: float) -> Rivals:
    """The bounds for all rivals of points of one class.

    Args:
        space: the prepared classifier.
        rival: the constants of the points' class.
        x: images of the points under the metric's map.
        error: how far from the true ones these images may be in the l2 norm.

    Returns:
        The bounds, on the device.
    """
    centered, moved = space.less_center(x, error)
    return _survey(
        jnp.asarray(centered),
        space.centered,
        space.device_normals,
        rival,
        moved,
        shift(space),
        space.p,
        space.q,
    )


@partial(jax.jit, static_argnames=("p", "q"))
def _survey(
    x: Float[Array, "B m"],
    images: Float[Array, "K m"],
    normals: Float[Array, "K d"],
    rival: Rival,
    moved: Float[Array, ""],
    shifted: float,
    p: float,
    q: float,
) -> Rivals:
    distance, error = choosing_distances(x, images, p, moved)
    low, high = distance - error, (distance + error)[:, rival.own]
    nearest = jnp.argmin(high, axis=1)
    need = low - jnp.take_along_axis(high, nearest[:, None], axis=1)
    if p != 2:
        speed = normals.shape[1] ** max(0.0, 1 / p - 1 / q)
    elif rival.table is not None:
        speed = rival.table[nearest]
    else:
        speed = _dual_norms(normals[rival.own[nearest]], normals, DUAL[q], shifted)
    return Rivals(jnp.where(rival.foreign, _quotient(need, 2 * speed), jnp.inf), nearest, low, high)


def contenders(
    space: Space, x: Float[np.ndarray, "B m"], error: float, foreign: Bool[np.ndarray, " K"]
) -> Bool[Array, "B K"]:
    """Which prototypes may be the closest of the own class, or the closest of all others.

    Args:
        space: the prepared classifier.
        x: images of points of one class.
        error: how far from the true ones these images may be in the l2 norm.
        foreign: which prototypes belong to other classes.

    Returns:
        A mask for each point, on the device.
    """
    centered, moved = space.less_center(x, error)
    return _contenders(jnp.asarray(centered), space.centered, foreign, moved, space.p)


@partial(jax.jit, static_argnames="p")
def _contenders(
    x: Float[Array, "B m"],
    images: Float[Array, "K m"],
    foreign: Bool[Array, " K"],
    moved: Float[Array, ""],
    p: float,
) -> Bool[Array, "B K"]:
    distance, error = choosing_distances(x, images, p, moved)

    def least(mask: Array) -> Array:
        return jnp.min(jnp.where(mask, distance + error, jnp.inf), axis=1, keepdims=True)

    # Negated, so that NaN, of which nothing is known, contends.
    return ~(distance - error > jnp.where(foreign, least(foreign), least(~foreign)))


@jax.jit
def sharpen(
    rivals: Rivals, table: Float[Array, "own K"], row: Int[Array, " P"], j: Int[Array, " P"]
) -> tuple[Float[Array, " P"], Int[Array, " P"]]:
    r"""The bound $\max_i$ over all own prototypes instead of i*, for some pairs (z, j), p = 2.

    Args:
        rivals: the bounds so far.
        table: the class's dual norms.
        row: P rows of points.
        j: P rivals of these.

    Returns:
        The bounds, and the positions among the members that attain them.
    """
    need = rivals.low[row, j][:, None] - rivals.high[row]
    bound = _quotient(need, 2 * table.T[j])
    best = jnp.argmax(bound, axis=1)
    return jnp.take_along_axis(bound, best[:, None], axis=1)[:, 0], best


def _quotient(need: Array, speed: Array | float) -> Array:
    """The quotient of two positive numbers, rounded down, and 0 where nothing is known."""
    known = (need > 0) & (need < jnp.inf)
    bound = jnp.where(known, need, 0) / jnp.where(known, speed, 1)
    eps = float(jnp.finfo(need.dtype).eps)
    return jnp.where(bound < jnp.inf, bound * (1 - 8 * eps), 0)


@partial(jax.jit, static_argnames="q")
def _dual_norms(v: Array, w: Array, q: float, shift: Array | float) -> Array:
    """Upper bounds of the norms of differences."""
    inflate = 1 + rounding(v.shape[1] + 4, v.dtype)
    if q == 2:  # one matrix product, whose error is known
        squares, error = choosing_distances(v, w, 2, 0.0)
        return jnp.sqrt(jnp.maximum(squares, 0) + error) * inflate + shift
    return pairwise(v, w, q) * inflate + v.shape[1] * float(jnp.finfo(v.dtype).tiny) + shift


def shift(space: Space) -> float:
    """How far rounding moved a difference of two normals at most, in the dual norm of q."""
    one = rounded_by(space.normals, space.device_normals, DUAL[space.q]) + space.image_error
    return 2 * one
