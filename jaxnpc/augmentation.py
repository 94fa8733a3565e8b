"""Random shifts and warps of images, drawn anew for every minibatch and compiled into its step."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

Augment = Callable[[PRNGKeyArray, Float[Array, "n h w *c"]], Float[Array, "n h w *c"]]
"""A PRNG key and images to as many images of the same shape; the labels stay theirs."""

FILLS: dict[str, str] = {"zero": "constant", "edge": "edge"}
"""What lies outside an image, and the name `jnp.pad` has for it."""


@dataclass(frozen=True)
class Shift:
    """Moves each image by whole pixels: by one step of `pixels` in a random direction, or not.

    Attributes:
        pixels: the largest step.
        diagonal: whether both axes move independently, by any number up to `pixels`; by default
            one axis moves, one way or the other, as in the paper's recipe.
        flip: whether half of the images are mirrored left to right.
        keep: the share of images that are not moved.
        fill: what comes in: "zero" or the "edge" pixels repeated.

    Raises:
        ValueError: if a number is out of its range or there is no such filling.

    Example:
        >>> images = jnp.arange(9.0).reshape(1, 3, 3)
        >>> moved = Shift(1, keep=0.0)(jax.random.key(0), images)
        >>> float(moved.sum()) in (36 - 3, 36 - 21, 36 - 9, 36 - 15)
        True
    """

    pixels: int = 1
    diagonal: bool = False
    flip: bool = False
    keep: float = 0.2
    fill: str = "zero"

    def __post_init__(self):
        if self.pixels < 0:
            raise ValueError(f"pixels must not be negative, got {self.pixels}")
        _check(self.keep, self.fill)

    def __call__(
        self, key: PRNGKeyArray, images: Float[Array, "n h w *c"]
    ) -> Float[Array, "n h w *c"]:
        """Shifted images."""
        n, most = len(images), self.pixels
        if self.flip:
            mirrored = jax.random.bernoulli(jax.random.fold_in(key, 0), shape=(n,))
            mirrored = mirrored.reshape(n, *[1] * (images.ndim - 1))
            images = jnp.where(mirrored, images[:, :, ::-1], images)
        move, axis, stay = jax.random.split(key, 3)
        if self.diagonal:
            steps = jax.random.randint(move, (n, 2), -most, most + 1)
        else:
            step = most * (2 * jax.random.bernoulli(move, shape=(n,)) - 1)
            across = jax.random.bernoulli(axis, shape=(n,))
            steps = jnp.stack([jnp.where(across, 0, step), jnp.where(across, step, 0)], axis=1)
        steps = jnp.where(_kept(stay, n, self.keep)[:, None], 0, steps)
        around = [(0, 0), (most, most), (most, most), *[(0, 0)] * (images.ndim - 3)]
        padded = jnp.pad(images, around, mode=FILLS[self.fill])

        def cut(image: Array, step: Array) -> Array:
            origin = (*(most + step), *[0] * (image.ndim - 2))
            return jax.lax.dynamic_slice(image, origin, images.shape[1:])

        return jax.vmap(cut)(padded, steps)


@dataclass(frozen=True)
class Warp:
    r"""Random affine and elastic warps, by bilinear interpolation.

    The image at the output pixel u is the input at $c + A (u - c) + t + e(u)$: c the centre, A a
    rotation with one scale an axis and a shear, t a shift, e a smooth random field.

    Attributes:
        rotation: the largest angle, in degrees.
        scale: the largest relative change of size of each axis.
        shear: the largest shear.
        shift: the largest shift, in pixels.
        elastic: the largest root mean square of the elastic field, in pixels; an image's own is
            uniform below it.
        smoothness: the elastic field's correlation length, in pixels.
        flip: whether half of the images are mirrored left to right.
        keep: the share of images that are not warped.
        fill: what lies outside: "zero" or the "edge" pixels repeated.

    Raises:
        ValueError: if a number is out of its range or there is no such filling.

    Example:
        >>> images = jnp.ones((2, 5, 5))
        >>> bool(jnp.allclose(Warp(keep=1.0)(jax.random.key(0), images), images))
        True
    """

    rotation: float = 8.0
    scale: float = 0.06
    shear: float = 0.08
    shift: float = 0.6
    elastic: float = 0.0
    smoothness: float = 4.0
    flip: bool = False
    keep: float = 0.3
    fill: str = "zero"

    def __post_init__(self):
        for name in ("rotation", "scale", "shear", "shift", "elastic"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.scale >= 1:
            raise ValueError(f"scale must be below 1, got {self.scale}")
        if not 0 < self.smoothness < math.inf:
            raise ValueError(f"smoothness must be positive, got {self.smoothness}")
        _check(self.keep, self.fill)

    def __call__(
        self, key: PRNGKeyArray, images: Float[Array, "n h w *c"]
    ) -> Float[Array, "n h w *c"]:
        """Warped images."""
        n, h, w = images.shape[:3]
        affine, field, mirror, stay = jax.random.split(key, 4)
        kept = _kept(stay, n, self.keep)
        to, t = self._affine(affine, n)
        to = jnp.where(kept[:, None, None], jnp.eye(2), to)
        t = jnp.where(kept[:, None], 0, t)
        if self.flip:
            sign = jnp.where(jax.random.bernoulli(mirror, shape=(n,)), -1, 1)
            to = to.at[:, :, 1].multiply(sign[:, None])
        centre = jnp.array([(h - 1) / 2, (w - 1) / 2])
        u = jnp.stack(jnp.meshgrid(jnp.arange(h), jnp.arange(w), indexing="ij"), -1) - centre
        # Two products a coordinate, written out: a matrix product of 2 x 2 would be rounded on
        # accelerators and slow on all.
        row, column = (
            to[:, a, 0, None, None] * u[..., 0]
            + to[:, a, 1, None, None] * u[..., 1]
            + (centre[a] + t[:, a, None, None])
            for a in (0, 1)
        )
        if self.elastic:
            e = self._field(field, n, h, w) * jnp.where(kept, 0, 1)[:, None, None, None]
            row, column = row + e[:, 0], column + e[:, 1]
        return interpolate(images, row, column, self.fill)

    def _affine(self, key: PRNGKeyArray, n: int) -> tuple[Float[Array, "n 2 2"], Array]:
        uniform = jax.random.uniform(key, (6, n), minval=-1, maxval=1)
        angle = math.radians(self.rotation) * uniform[0]
        scale = 1 + self.scale * uniform[1:3]
        cos, sin, shear = jnp.cos(angle), jnp.sin(angle), self.shear * uniform[3]
        rows = [[cos * scale[0], sin * scale[0] + shear], [-sin * scale[1], cos * scale[1]]]
        to = jnp.stack([jnp.stack(row, -1) for row in rows], -2)
        return to, self.shift * uniform[4:].T

    def _field(self, key: PRNGKeyArray, n: int, h: int, w: int) -> Float[Array, "n 2 h w"]:
        """Gaussian noise on a coarse grid, blurred to every pixel: unit variance, then scaled."""
        size, noise = jax.random.split(key)
        rows, columns = (_blur(length, self.smoothness) for length in (h, w))
        grid = jax.random.normal(noise, (n, 2, rows.shape[1], columns.shape[1]))
        field = jnp.einsum("hg,nagk,wk->nahw", rows, grid, columns)
        return self.elastic * jax.random.uniform(size, (n, 1, 1, 1)) * field


def interpolate(
    images: Float[Array, "n h w *c"],
    row: Float[Array, "n a b"],
    column: Float[Array, "n a b"],
    fill: str = "zero",
) -> Float[Array, "n a b *c"]:
    """Images between their pixels, linearly along both axes.

    Args:
        images: n images.
        row: for every output pixel a row of the image, pixels counted from 0.
        column: likewise a column.
        fill: what lies outside, "zero" or "edge".

    Returns:
        The values there.

    Example:
        >>> image = jnp.array([[[0.0, 1.0], [2.0, 3.0]]])
        >>> interpolate(image, jnp.array([[[0.5]]]), jnp.array([[[0.5]]])).tolist()
        [[[1.5]]]
    """
    n, h, w, *channels = images.shape
    around = [(0, 0), (1, 1), (1, 1), *[(0, 0)] * len(channels)]
    flat = jnp.pad(images, around, mode=FILLS[fill]).reshape(n, (h + 2) * (w + 2), -1)
    # One pixel outside all is filling, so farther out is no different.
    row, column = jnp.clip(row, -1, h) + 1, jnp.clip(column, -1, w) + 1
    top, left = (jnp.clip(jnp.floor(v), 0, m) for v, m in ((row, h), (column, w)))
    down, right = row - top, column - left
    at = (top * (w + 2) + left).astype(jnp.int32)

    def corner(offset: int, weight: Array) -> Array:
        index = (at + offset).reshape(n, -1, 1)
        value = jnp.take_along_axis(flat, index, axis=1, mode="promise_in_bounds")
        return weight.reshape(n, -1, 1) * value

    mixed = (
        corner(0, (1 - down) * (1 - right))
        + corner(1, (1 - down) * right)
        + corner(w + 2, down * (1 - right))
        + corner(w + 3, down * right)
    )
    return mixed.reshape(*row.shape, *channels)


def _blur(length: int, smoothness: float) -> Float[np.ndarray, "length grid"]:
    """Gaussian weights of coarse grid points for every pixel, of unit sum of squares."""
    step = smoothness
    grid = np.arange(-2 * step, length + 3 * step, step)
    weights = np.exp(-((np.arange(length)[:, None] - grid) ** 2) / (2 * smoothness**2))
    weights /= np.linalg.norm(weights, axis=1, keepdims=True)
    return weights.astype(np.float32)


def _kept(key: PRNGKeyArray, n: int, share: float) -> Array:
    return jax.random.bernoulli(key, float(share), (n,))


def _check(keep: float, fill: str) -> None:
    if not 0 <= keep <= 1:
        raise ValueError(f"keep must lie between 0 and 1, got {keep}")
    if fill not in FILLS:
        raise ValueError(f"fill must be one of {', '.join(FILLS)}, got {fill!r}")


AUGMENTATIONS: dict[str, Augment] = {
    "shift": Shift(),
    "affine": Warp(),
    "elastic": Warp(elastic=0.8),
}
"""Augmentations by name."""
