r"""The embedding in which the l2 distance is the LPIPS distance (paper, eq. 3).

$$\phi(x) = \Bigl( \sqrt{\tfrac{w_l}{H_l W_l}} \odot
  \frac{g^{(l)}_{h,w}(x)}{|g^{(l)}_{h,w}(x)|_2} \Bigr)_{l,h,w}, \qquad
  d(x, y) = |\phi(x) - \phi(y)|_2$$

with the post-ReLU activations g of the layers l, a vector of channels at every location (h, w), and
$w_l = 1$ for the unweighted distance. Where no channel is active the embedding is 0.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxnpc.batching import blocks, padded
from jaxnpc.distances import length, rounding
from jaxnpc.domains import SphereProduct
from jaxnpc.perceptual.alexnet import AlexNet, Architecture
from jaxnpc.prototypes import finite_rows

CHUNK = 64
"""Images that pass through the network together: always as many, so that there is one program."""

EPS = 1e-10
"""What the lpips package and perceptual-advex add to a norm before they divide by it."""

Params = Mapping[str, Mapping[str, Float[Array | np.ndarray, "..."]]]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Embedding:
    r"""A feature network as a perceptual metric: images in, points of $\mathbb{R}^D$ out.

    Coordinates are ordered by layer, row, column and channel. Calling it is pure, differentiable
    and of the arithmetic of the images; [`embed`][jaxnpc.perceptual.embedding.embed] is the one
    float32 pass that certificates speak of.

    Attributes:
        params: of [`AlexNet`][jaxnpc.perceptual.alexnet.AlexNet]: `conv1`, ... with `kernel` and
            `bias`, float32.
        linear: for weighted LPIPS the weight of each channel, one array a layer, at least 0; or
            None.
        architecture: the network.
        size: the height and width of the images.
        eps: what is added to a norm before the division; by default nothing, and 0 stays 0.

    Example:
        >>> from jaxnpc.perceptual.alexnet import CIFAR
        >>> phi = random_embedding(CIFAR, jax.random.key(0))
        >>> phi.dimension, phi(jnp.ones((2, 32, 32, 3))).shape
        (43008, (2, 43008))
    """

    params: Params
    linear: tuple[Float[Array | np.ndarray, " c"], ...] | None
    architecture: Architecture = field(metadata={"static": True})
    size: tuple[int, int] = field(metadata={"static": True})
    eps: float = field(default=0.0, metadata={"static": True})

    def __call__(
        self, images: Float[Array, "n h w 3"], *, patches: bool = False
    ) -> Float[Array, "n D"]:
        """The embeddings of images with values in [0, 1], not checked; see `check_images`.

        Args:
            images: n images.
            patches: as for [`AlexNet`][jaxnpc.perceptual.alexnet.AlexNet]: for training in loops.
        """
        net: Any = AlexNet(self.architecture, images.dtype, patches=patches)
        found: tuple[Array, ...] = net.apply({"params": self.params}, images)
        parts: list[Array] = []
        for l, g in enumerate(found):
            unit = unit_vectors(g, self.eps) * (1 / (g.shape[1] * g.shape[2])) ** 0.5
            if self.linear is not None:
                unit = unit * jnp.sqrt(jnp.asarray(self.linear[l], unit.dtype))
            parts.append(unit.reshape(len(unit), -1))
        return jnp.concatenate(parts, axis=1)

    @property
    def blocks(self) -> tuple[tuple[int, int], ...]:
        """The number of locations and of channels of each layer."""
        return tuple(
            (height * width, layer.features)
            for (height, width), layer in zip(
                self.architecture.locations(*self.size), self.architecture.layers, strict=True
            )
        )

    @property
    def dimension(self) -> int:
        """D, the number of coordinates of an embedded image."""
        return sum(count * channels for count, channels in self.blocks)

    def domain(self) -> SphereProduct:
        r"""A set that holds the embeddings of all images, as numbers and as `embed` rounds them.

        Each location has norm $(H_l W_l)^{-1/2}$ to the rounding of float32, or is 0. With `eps`
        every norm from 0 to that occurs; with weights those between the least and the largest
        $\sqrt{w}$ of the layer: the ellipsoids that they make of the spheres are not used.

        Returns:
            The domain for the bounds in [`jaxnpc.perceptual.bounds`][jaxnpc.perceptual.bounds].
        """
        inner, outer = np.zeros((2, len(self.blocks)))
        for l, (count, channels) in enumerate(self.blocks):
            root = np.ones(1)
            if self.linear is not None:
                root = np.sqrt(np.asarray(self.linear[l], np.float64))
            slack = rounding(channels + 8)
            radius = count**-0.5
            outer[l] = radius * root.max() * (1 + slack)
            inner[l] = radius * root.min() * (1 - slack) if self.eps == 0 else 0.0
        return SphereProduct(self.blocks, inner, outer)

    @property
    def digest(self) -> str:
        """SHA-256 of all that makes the metric: weights as float32, network, size and eps."""
        found = hashlib.sha256()
        record = [self.architecture.name, list(self.size), float(self.eps)]
        found.update(json.dumps(record).encode())
        for name, array in arrays_of(self).items():
            wide = np.ascontiguousarray(np.asarray(array), "<f4")
            found.update(f"{name} {wide.shape}".encode() + wide.tobytes())
        return found.hexdigest()


def arrays_of(embedding: Embedding) -> dict[str, Float[np.ndarray, "..."]]:
    """The weights by name: `conv1.kernel`, `conv1.bias`, ..., and `linear1`, ... if there are."""
    found: dict[str, Any] = {
        f"{layer}.{name}": np.asarray(embedding.params[layer][name])
        for layer in sorted(embedding.params)
        for name in ("kernel", "bias")
    }
    for l, weights in enumerate(embedding.linear or ()):
        found[f"linear{l + 1}"] = np.asarray(weights)
    return found


def random_embedding(
    architecture: Architecture, key: Array, *, size: tuple[int, int] | None = None, eps: float = 0.0
) -> Embedding:
    """An untrained network, with He's initialisation: for tests, and to start training from.

    Args:
        architecture: the network.
        key: a PRNG key.
        size: height and width of the images; by default those that it is meant for.
        eps: as for `Embedding`.
    """
    size = size or (architecture.side, architecture.side)
    architecture.locations(*size)
    params = AlexNet(architecture).init(key, jnp.zeros((1, *size, 3)))["params"]
    return Embedding(params, None, architecture, size, eps)


def unit_vectors(g: Float[Array, "*n c"], eps: float = 0.0) -> Float[Array, "*n c"]:
    r"""Vectors over their l2 norm plus eps; 0 stays 0, with a finite gradient.

    Scaled by the largest entry first, so that no square under- or overflows.

    Example:
        >>> unit_vectors(jnp.array([[3e-30, 4e-30], [0.0, 0.0]])).round(3).tolist()
        [[0.6000..., 0.8000...], [0.0, 0.0]]
    """
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(g), axis=-1, keepdims=True))
    largest = jnp.where(largest == 0, 1, largest)  # NaN stays
    scaled = g / largest
    size = length(scaled, 2)[..., None]
    if eps == 0:
        return scaled / jnp.where(size == 0, 1, size)
    return scaled / (size + eps / largest)


def check_images(
    embedding: Embedding, images: ArrayLike, name: str = "images"
) -> Float[np.ndarray, "n h w 3"]:
    """Images as the embedding takes them: float32 in [0, 1], of its size.

    Args:
        embedding: the embedding.
        images: n images (n, height, width, 3), or flattened rows of these.
        name: the argument's name, for messages.

    Returns:
        The images; those with NaN are passed on.

    Raises:
        TypeError: if they are no floating-point numbers; bytes are to be divided by 255.
        ValueError: if the shape does not fit or a value lies outside [0, 1], naming it.
    """
    found = np.asarray(images)
    if found.dtype.name not in ("float32", "float64"):
        raise TypeError(
            f"{name} has dtype {found.dtype}: give float32 values in [0, 1], bytes divided by 255"
        )
    shape = (*embedding.size, 3)
    if found.ndim == 2 and found.shape[1] == np.prod(shape):
        found = found.reshape(len(found), *shape)
    if found.shape[1:] != shape:
        raise ValueError(
            f"{name} has shape {found.shape}: give (n, {shape[0]}, {shape[1]}, 3), channels last"
        )
    outside = (found < 0) | (found > 1)
    if outside.any():
        at = tuple(int(i) for i in np.argwhere(outside)[0])
        raise ValueError(
            f"{name}{list(at)} is {found[at]}, outside [0, 1]: divide values up to 255 by it, map "
            "those in [-1, 1] by (x + 1) / 2; the network's own mean and scale are applied here"
        )
    return found.astype(np.float32, copy=False)


def embed(embedding: Embedding, images: ArrayLike) -> Float[np.ndarray, "n D"]:
    """The embeddings of images by the one float32 pass that certificates speak of.

    Worked off in chunks of one size, so that an image's embedding is that of the same program
    whatever else is embedded; always in full precision, on whatever device JAX uses by default.

    Args:
        embedding: the embedding.
        images: n images with values in [0, 1].

    Returns:
        The embeddings, float32; NaN for images that are not finite.

    Raises:
        TypeError: if the images are no floating-point numbers.
        ValueError: if their shape or a value does not fit.
    """
    checked = check_images(embedding, images)
    found = np.empty((len(checked), embedding.dimension), np.float32)
    for part in blocks(len(checked), CHUNK):
        values = _forward(embedding, jnp.asarray(padded(checked[part], CHUNK)))
        found[part] = np.asarray(values)[: part.stop - part.start]
    found[~finite_rows(checked)] = np.nan
    return found


def lpips(embedding: Embedding, x: ArrayLike, y: ArrayLike) -> Float[np.ndarray, " n"]:
    """The LPIPS distances d of n pairs of images; the lpips package returns their squares.

    Args:
        embedding: the metric.
        x: n images with values in [0, 1].
        y: n more.

    Returns:
        The distances, float64 from float32 embeddings.

    Raises:
        TypeError: if the images are no floating-point numbers.
        ValueError: if a shape or a value does not fit.

    Example:
        >>> from jaxnpc.perceptual.alexnet import CIFAR
        >>> phi = random_embedding(CIFAR, jax.random.key(0))
        >>> images = np.linspace(0, 1, 2 * 3072, dtype=np.float32).reshape(2, 32, 32, 3)
        >>> lpips(phi, images, images).tolist(), bool(lpips(phi, images, images[::-1])[0] > 0.1)
        ([0.0, 0.0], True)
    """
    x, y = check_images(embedding, x, "x"), check_images(embedding, y, "y")
    if len(x) != len(y):
        raise ValueError(f"x has {len(x)} images and y {len(y)}: give pairs")
    found = np.empty(len(x))
    for part in blocks(len(x), 4 * CHUNK):
        gap = embed(embedding, x[part]).astype(np.float64) - embed(embedding, y[part])
        found[part] = np.sqrt(np.einsum("nd,nd->n", gap, gap))
    return found


@jax.jit
def _forward(embedding: Embedding, images: Float[Array, "n h w 3"]) -> Float[Array, "n D"]:
    return embedding(images)
