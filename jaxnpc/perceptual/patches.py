"""Convolution and pooling as products and maxima of shifted images: for training inside loops.

In a loop, such as the scan over minibatches, XLA's CPU backend computes a convolution and its
gradients many times slower than outside; a matrix product it computes as fast in both places.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float


def convolve(
    images: Float[Array, "n h w a"],
    kernel: Float[Array, "k l a b"],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    *,
    precision: Any = None,
    **others: Any,
) -> Float[Array, "n p q b"]:
    """What `jax.lax.conv_general_dilated` gives for channels last and no dilation.

    Args:
        images: images, channels last.
        kernel: height, width, channels in and out.
        strides: along height and width.
        padding: zeros before and after, along both.
        precision: of the product.
        others: arguments that only other convolutions have; passed over.

    Example:
        >>> import jax
        >>> x = jnp.arange(32.0).reshape(1, 4, 4, 2)
        >>> kernel = jnp.arange(36.0).reshape(3, 3, 2, 2)
        >>> names = ("NHWC", "HWIO", "NHWC")
        >>> given = (x, kernel, (2, 2), [(1, 1), (1, 1)])
        >>> theirs = jax.lax.conv_general_dilated(*given, dimension_numbers=names)
        >>> bool((convolve(*given) == theirs).all())
        True
    """
    del others
    height, width, _, channels = kernel.shape
    x = jnp.pad(images, ((0, 0), *padding, (0, 0)))
    rows, columns = (
        (side - size) // stride + 1
        for side, size, stride in zip(x.shape[1:3], (height, width), strides, strict=True)
    )
    taps = [
        x[:, i : i + strides[0] * rows : strides[0], j : j + strides[1] * columns : strides[1]]
        for i, j in itertools.product(range(height), range(width))
    ]
    patches = jnp.concatenate(taps, axis=-1)
    flat = patches.reshape(-1, patches.shape[-1])
    found = jnp.matmul(flat, kernel.reshape(-1, channels), precision=precision)
    return found.reshape(len(x), rows, columns, channels)


def max_pool(images: Float[Array, "n h w c"], window: int) -> Float[Array, "n p q c"]:
    """The maxima of windows that start at every second pixel.

    Example:
        >>> max_pool(jnp.arange(25.0).reshape(1, 5, 5, 1), 3)[0, ..., 0].tolist()
        [[12.0, 14.0], [22.0, 24.0]]
    """
    rows, columns = ((side - window) // 2 + 1 for side in images.shape[1:3])
    found = images[:, : 2 * rows : 2, : 2 * columns : 2]
    for i, j in itertools.product(range(window), range(window)):
        if i or j:
            found = jnp.maximum(found, images[:, i : i + 2 * rows : 2, j : j + 2 * columns : 2])
    return found
