"""Sorting, prefix sums and factorisation, where the backend's own are slow or give up."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def argsort(keys: Float[Array, " N"]) -> Int[Array, " N"]:
    """The permutation that sorts the keys, equal ones in their given order.

    XLA sorts several operands through a comparator that it calls for each comparison on a CPU; one
    operand of integers takes its fast path. So a CPU sorts the bits of the key and the index packed
    into 64 bits, 4 times as fast. Elsewhere 64-bit sorts leave the fast path instead.

    Args:
        keys: N floats, none of them NaN.

    Returns:
        N indices.
    """
    index = jnp.arange(keys.shape[0], dtype=jnp.int32)

    def plain(keys: Float[Array, " N"]) -> Int[Array, " N"]:
        return jax.lax.sort((keys, index), num_keys=1, is_stable=True)[1]

    def packed(keys: Float[Array, " N"]) -> Int[Array, " N"]:
        bits = jax.lax.bitcast_convert_type(keys + 0.0, jnp.int32)  # + 0.0: -0.0 ties with 0.0
        ordered = jnp.where(bits < 0, bits ^ jnp.int32(0x7FFFFFFF), bits)
        with jax.enable_x64(True):  # the context is local: 64-bit integers, whatever the user chose
            words = (ordered.astype(jnp.int64) << 32) | index.astype(jnp.int64)
            words = jax.lax.sort(words, is_stable=False)
            return (words & 0xFFFFFFFF).astype(jnp.int32)

    if keys.dtype != jnp.float32:
        return plain(keys)
    return jax.lax.platform_dependent(keys, cpu=packed, default=plain)


def cumsum(x: Float[Array, "rows N"], block: int = 16) -> Float[Array, "rows N"]:
    """Prefix sums along the last axis: blocks by a triangular matrix product, then their totals.

    On a CPU several times as fast as XLA's own scan, and more accurate: an element is the sum of
    O(log N) partial sums of `block` terms.

    Args:
        x: rows of N terms.
        block: the number of terms a block.

    Returns:
        The inclusive prefix sums.
    """
    rows, length = x.shape
    if length <= block:
        return _within_blocks(x)
    count = -(-length // block)
    blocks = jnp.pad(x, ((0, 0), (0, count * block - length))).reshape(rows, count, block)
    inner = _within_blocks(blocks)
    # Shifted, not subtracted: a huge term must not take the digits of those before it in its block.
    before = jnp.pad(cumsum(inner[:, :, -1], block)[:, :-1], ((0, 0), (1, 0)))
    return (inner + before[:, :, None]).reshape(rows, count * block)[:, :length]


def cholesky(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The lower factor of a positive semidefinite matrix plus the ridge that rounding asks for.

    Args:
        matrix: symmetric.

    Returns:
        The factor of the matrix plus a multiple of the identity: 1e-7 of the mean diagonal or,
        where that does not factor, the least of its tenfolds that does.
    """
    size = jnp.trace(matrix) / len(matrix)
    ridge = jnp.where(size > 0, size, 1) * jnp.eye(len(matrix), dtype=matrix.dtype)

    def attempt(share: Float[Array, ""]) -> tuple[Array, Array]:
        return 10 * share, jnp.linalg.cholesky(matrix + share * ridge)

    def failed(state: tuple[Array, Array]) -> Array:
        return ~jnp.isfinite(state[1][-1, -1]) & (state[0] < 10)

    start = attempt(jnp.asarray(1e-7, matrix.dtype))
    return jax.lax.while_loop(failed, lambda state: attempt(state[0]), start)[1]


def dot(a: Float[Array, "*m d"], b: Float[Array, "d n"]) -> Float[Array, "*m n"]:
    """The matrix product in full precision on every device."""
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def _within_blocks(x: Float[Array, "*rows block"]) -> Float[Array, "*rows block"]:
    upper = jnp.triu(jnp.ones((x.shape[-1], x.shape[-1]), x.dtype))
    return jnp.matmul(x, upper, precision=jax.lax.Precision.HIGHEST)
