"""AlexNet's convolutions in flax: the network whose activations LPIPS compares."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen
from jaxtyping import Array, Float

from jaxnpc.perceptual import patches

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
"""Of ImageNet's channels in [0, 1]; both networks take images less these, over these."""

NORM_EPS = 1e-5
"""What is added to a variance before it is divided by."""


class Convolution(NamedTuple):
    """One convolution, with bias and ReLU, and the pooling before it.

    Attributes:
        features: the number of channels that come out.
        kernel: the side of its kernel.
        stride: how many pixels it moves at a time.
        padding: how many zeros stand on each side of the image.
        pool: the window of the max pooling before, with stride 2; 0 for none.
    """

    features: int
    kernel: int
    stride: int
    padding: int
    pool: int


@dataclass(frozen=True)
class Architecture:
    """What a network looks like.

    Attributes:
        name: its name in files.
        layers: the convolutions.
        pool: the window of the max pooling after the last one, for a head; stride 2.
        side: the side of the images that it is meant for, in pixels.
    """

    name: str
    layers: tuple[Convolution, ...]
    pool: int
    side: int

    def shapes(self) -> list[tuple[int, int, int, int]]:
        """The shape of each kernel, (height, width, channels in, channels out)."""
        channels = [3, *(layer.features for layer in self.layers)]
        return [
            (layer.kernel, layer.kernel, channels[l], layer.features)
            for l, layer in enumerate(self.layers)
        ]

    def locations(self, height: int, width: int) -> list[tuple[int, int]]:
        """The height and width of each layer's activations.

        Raises:
            ValueError: if an image of this size is too small, naming the layer.

        Example:
            >>> CIFAR.locations(32, 32), IMAGENET.locations(224, 224)[:2]
            ([(16, 16), (8, 8), (4, 4), (4, 4), (4, 4)], [(55, 55), (27, 27)])
        """
        sizes: list[tuple[int, int]] = []
        size = height, width
        for l, layer in enumerate(self.layers):
            if layer.pool:
                size = tuple((side - layer.pool) // 2 + 1 for side in size)
            size = tuple(
                (side + 2 * layer.padding - layer.kernel) // layer.stride + 1 for side in size
            )
            if min(size) < 1:
                raise ValueError(
                    f"images of {height} x {width} pixels leave nothing of layer {l + 1} of "
                    f"{self.name}: it is meant for {self.side} x {self.side}"
                )
            sizes.append((size[0], size[1]))
        return sizes


CIFAR = Architecture(
    "alexnet_cifar",
    (
        Convolution(64, 3, 2, 1, 0),
        Convolution(192, 3, 1, 1, 2),
        Convolution(384, 3, 1, 1, 2),
        Convolution(256, 3, 1, 1, 0),
        Convolution(256, 3, 1, 1, 0),
    ),
    pool=2,
    side=32,
)
"""For images of 32 x 32 pixels (Laidlaw, Singla, Feizi 2021)."""

IMAGENET = Architecture(
    "alexnet",
    (
        Convolution(64, 11, 4, 2, 0),
        Convolution(192, 5, 1, 2, 3),
        Convolution(384, 3, 1, 1, 3),
        Convolution(256, 3, 1, 1, 0),
        Convolution(256, 3, 1, 1, 0),
    ),
    pool=3,
    side=224,
)
"""Torchvision's, which the lpips package takes too (Krizhevsky 2014)."""


class AlexNet(linen.Module):
    """The convolutions of an AlexNet: images in, the activations of every layer out.

    The parameters are `conv1`, ..., each with `kernel` (height, width, in, out) and `bias`.

    Attributes:
        architecture: the network.
        dtype: what is computed in, with parameters in float32: bfloat16 is for training only.
        patches: whether convolutions are written as matrix products of patches: the same numbers
            to rounding, for training inside loops ([`patches`][jaxnpc.perceptual.patches]).
        normalized: whether the batch's own mean and variance are taken off every channel before
            the ReLU, with a `scale` and a `bias` in `norm1`, ... instead of the convolution's bias:
            for training, and folded into the convolutions afterwards. What was taken off is in the
            collection `batch_stats`.

    Example:
        >>> net = AlexNet(CIFAR)
        >>> params = net.init(jax.random.key(0), jnp.zeros((1, 32, 32, 3)))
        >>> [a.shape[1:] for a in net.apply(params, jnp.zeros((1, 32, 32, 3)))][::4]
        [(16, 16, 64), (4, 4, 256)]
    """

    architecture: Architecture
    dtype: Any = jnp.float32
    patches: bool = False
    normalized: bool = False

    @linen.compact
    def __call__(self, images: Float[Array, "n h w 3"]) -> tuple[Float[Array, "n h w c"], ...]:
        """The post-ReLU activations of each layer.

        Args:
            images: n images with values in [0, 1]: what the network sees is less ImageNet's mean
                and over its standard deviation.

        Returns:
            One array a layer.
        """
        mean, std = (jnp.array(v, images.dtype) for v in (MEAN, STD))
        x = ((images - mean) / std).astype(self.dtype)
        found: list[Array] = []
        for l, layer in enumerate(self.architecture.layers):
            if layer.pool:
                x = self.max_pool(x, layer.pool)
            convolution = linen.Conv(
                layer.features,
                (layer.kernel, layer.kernel),
                (layer.stride, layer.stride),
                padding=layer.padding,
                dtype=self.dtype,
                precision=jax.lax.Precision.HIGHEST,
                kernel_init=linen.initializers.he_normal(),
                use_bias=not self.normalized,
                conv_general_dilated=patches.convolve if self.patches else None,
                name=f"conv{l + 1}",
            )
            x = convolution(x)
            if self.normalized:
                norm = linen.BatchNorm(
                    use_running_average=False,
                    momentum=0.0,
                    epsilon=NORM_EPS,
                    dtype=self.dtype,
                    name=f"norm{l + 1}",
                )
                x = norm(x)
            x = linen.relu(x)
            found.append(x)
        return tuple(found)

    def max_pool(self, x: Float[Array, "n h w c"], window: int) -> Float[Array, "n p q c"]:
        """The maxima of windows that start at every second pixel."""
        if self.patches:
            return patches.max_pool(x, window)
        return linen.max_pool(x, (window, window), (2, 2))
