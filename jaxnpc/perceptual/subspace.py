"""Training in few coordinates of embedded images: the directions that each layer uses most."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float
from tqdm import tqdm

from jaxnpc.batching import blocks
from jaxnpc.perceptual.embedding import Embedding, check_images, embed
from jaxnpc.subspace import Subspace, principal

COMPONENTS = (192, 384, 512, 512, 512)
"""Of the layers of an AlexNet for 32 x 32 pixels: 2,112 of 43,008 coordinates."""

ROWS = 512
"""Images whose embeddings are held at a time."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LayerSubspace:
    r"""The product of one subspace through 0 for each layer.

    For w in it and any z, $|z - w|_2^2 = |B z - c|_2^2 + r(z)^2$ with c the coefficients of w and
    r(z) the distance of z from it, the same for all prototypes: differences of squared distances,
    distances between prototypes and so the half-space bound are those of the coefficients, to
    rounding.

    Attributes:
        layers: a subspace for the coordinates of each layer.
    """

    layers: tuple[Subspace, ...]

    @jax.jit
    def coefficients(self, z: Float[Array, "n D"]) -> Float[Array, "n r"]:
        """The coefficients of the closest points of the subspace."""
        ends = np.cumsum([layer.basis.shape[1] for layer in self.layers])[:-1]
        parts = jnp.split(z, ends, axis=1)
        return jnp.concatenate(
            [layer.coefficients(part) for layer, part in zip(self.layers, parts, strict=True)],
            axis=1,
        )

    @jax.jit
    def points(self, c: Float[Array, "n r"]) -> Float[Array, "n D"]:
        """The points with these coefficients."""
        ends = np.cumsum([len(layer.basis) for layer in self.layers])[:-1]
        parts = jnp.split(c, ends, axis=1)
        return jnp.concatenate(
            [layer.points(part) for layer, part in zip(self.layers, parts, strict=True)], axis=1
        )


def layer_subspace(
    embedding: Embedding, images: ArrayLike, components: Sequence[int] = COMPONENTS
) -> LayerSubspace:
    """The directions of each layer that the embeddings of some images use most.

    Args:
        embedding: the metric.
        images: n images with values in [0, 1], some thousand; their embeddings are held at once.
        components: the dimension of each layer's subspace; cut down to n and to the layer's own.

    Returns:
        The subspace, through 0: that of each layer is where its part of the embedding is longest.

    Raises:
        TypeError: if the images are no floating-point numbers.
        ValueError: if there is not one positive number of components a layer, or as
            [`embed`][jaxnpc.perceptual.embedding.embed].

    Example:
        >>> from jaxnpc.perceptual.alexnet import CIFAR
        >>> from jaxnpc.perceptual.embedding import random_embedding
        >>> phi = random_embedding(CIFAR, jax.random.key(0))
        >>> images = np.random.default_rng(0).random((6, 32, 32, 3), dtype=np.float32)
        >>> space = layer_subspace(phi, images, (2, 3, 3, 4, 9))
        >>> space.coefficients(embed(phi, images)).shape
        (6, 18)
    """
    if len(components) != len(embedding.blocks) or min(components, default=0) < 1:
        raise ValueError(
            f"components must be {len(embedding.blocks)} numbers of at least 1, one a layer, got "
            f"{tuple(components)}"
        )
    z = embed(embedding, images)
    if not len(z):
        raise ValueError("images has none: a subspace of nothing is not defined")
    sizes = [count * channels for count, channels in embedding.blocks]
    ends = list(itertools.accumulate(sizes, initial=0))
    return LayerSubspace(
        tuple(
            principal(np.ascontiguousarray(z[:, a:b]), min(r, len(z), b - a), centred=False)
            for r, (a, b) in zip(components, itertools.pairwise(ends), strict=True)
        )
    )


def project(
    embedding: Embedding,
    space: LayerSubspace,
    images: ArrayLike,
    *,
    progress: str | None = None,
) -> Float[np.ndarray, "n r"]:
    """The coefficients of the embeddings of images, which are never held all at once.

    Args:
        embedding: the metric.
        space: a subspace for it.
        images: n images with values in [0, 1].
        progress: the title of a progress bar; by default none is shown.

    Raises:
        TypeError: if the images are no floating-point numbers.
        ValueError: if their shape or a value does not fit.
    """
    checked = check_images(embedding, images)
    found = np.empty((len(checked), sum(len(layer.basis) for layer in space.layers)), np.float32)
    parts = list(blocks(len(checked), ROWS))
    for part in tqdm(parts, progress, disable=progress is None, unit="block"):
        found[part] = space.coefficients(jnp.asarray(embed(embedding, checked[part])))
    return found
