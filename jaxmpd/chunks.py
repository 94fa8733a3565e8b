"""Sums over many samples, a chunk at a time: intermediate values stay in the cache."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxmpd.losses import Batch

PyTree = Any


def in_chunks(batch: Batch, chunk: int) -> Batch:
    """The samples in rows of about `chunk`, the last padded with samples of weight 0.

    Args:
        batch: S samples, with weights.
        chunk: the most samples of a row.

    Returns:
        The same samples with one more leading axis.
    """
    samples = len(batch.inputs)
    number = -(-samples // chunk)
    width = -(-samples // number)
    pad = number * width - samples

    def rows(a: Array) -> Array:
        a = jnp.pad(a, ((0, pad), *[(0, 0)] * (a.ndim - 1)))
        return a.reshape(number, width, *a.shape[1:])

    return jax.tree.map(rows, batch)


def summed(
    function: Callable[[PyTree, Batch], Float[Array, ""]], chunks: Batch
) -> Callable[[PyTree], Float[Array, ""]]:
    """The sum of a function over chunks; value and gradient come from one pass.

    Args:
        function: of parameters and a chunk.
        chunks: see `in_chunks`.

    Returns:
        A function of the parameters. Its gradient is computed along with its value, and nothing
        is kept between chunks.
    """

    def forward(params: PyTree) -> tuple[Float[Array, ""], PyTree]:
        def add(total: Any, chunk: Batch) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, jax.value_and_grad(function)(params, chunk)), None

        dtype = jnp.result_type(*jax.tree.leaves(params))
        zero = (jnp.zeros((), dtype), jax.tree.map(jnp.zeros_like, params))
        return jax.lax.scan(add, zero, chunks)[0]

    def backward(gradient: PyTree, cotangent: Float[Array, ""]) -> tuple[PyTree]:
        return (jax.tree.map(lambda g: cotangent * g, gradient),)

    total = jax.custom_vjp(lambda params: forward(params)[0])
    total.defvjp(forward, backward)
    return total
