"""Distances between two sets of points, in tiles of bounded memory."""

import math
from collections.abc import Callable
from functools import partial
from numbers import Real
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

# A tile of ROWS x COLUMNS sums stays in a CPU core's cache while GROUP coordinates at a time are
# added to it: ten times faster than reducing one pair after the other, and never n x K x d numbers.
ROWS, COLUMNS, GROUP = 128, 512, 16


class Norm(NamedTuple):
    """How to accumulate |x - w|_p over the coordinates: finish(fold(term(x_l - w_l)))."""

    term: Callable[[Array], Array]
    fold: Callable[[Array, Array], Array]
    finish: Callable[[Array], Array]


def _sqrt(x: Array) -> Array:
    # The derivative of the square root at 0 is infinite, and infinity times 0 is NaN.
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1)), jnp.where(x == 0, 0, x))


NORMS: dict[float, Norm] = {
    1: Norm(jnp.abs, jnp.add, lambda x: x),
    2: Norm(jnp.square, jnp.add, _sqrt),
    math.inf: Norm(jnp.abs, jnp.maximum, lambda x: x),
}
"""The norms by p."""

DUAL: dict[float, float] = {1: math.inf, 2: 2, math.inf: 1}
"""q* with 1/q + 1/q* = 1."""


def is_norm(p: object) -> bool:
    """Whether that is 1, 2 or infinity, as a number and not in an array."""
    return isinstance(p, Real) and p in NORMS


def named_norm(p: float, name: str) -> Norm:
    """The norm of that p.

    Raises:
        ValueError: if p is none of 1, 2 and infinity, naming the argument.
    """
    if not is_norm(p):
        raise ValueError(f"{name} must be 1, 2 or float('inf'), got {p!r}")
    return NORMS[p]


def length(x: Float[Array, "*n d"], p: float) -> Float[Array, "*n"]:
    """The norm |x|_p over the last axis; its gradient at 0 is 0 for p = 2.

    Example:
        >>> length(jnp.array([3.0, -4.0]), 2).item(), jax.grad(length)(jnp.zeros(2), 2.0).tolist()
        (5.0, [0.0, 0.0])
    """
    norm = named_norm(p, "p")
    reduce = jnp.max if norm.fold is jnp.maximum else jnp.sum
    return norm.finish(reduce(norm.term(x), axis=-1))


@partial(jax.jit, static_argnames="p")
def pairwise(x: Float[Array, "n d"], w: Float[Array, "K d"], p: float = 2) -> Float[Array, "n K"]:
    r"""The distances $|x_a - w_k|_p$, as sums over coordinate differences.

    Nothing cancels: the relative error is at most that of adding d non-negative numbers, also where
    the points nearly coincide. Equal prototypes get equal distances. Besides the result, memory is
    needed for transposed copies of x and w only. Not meant to be differentiated.

    Args:
        x: n points.
        w: K points.
        p: 1, 2 or infinity.

    Returns:
        The distances; NaN where a point is NaN.

    Raises:
        ValueError: if p is no such norm or the dimensions differ.

    Example:
        >>> pairwise(jnp.zeros((1, 2)), jnp.array([[3.0, 4.0], [1.0, 0.0]])).tolist()
        [[5.0, 1.0]]
    """
    named_norm(p, "p")
    if x.shape[1] != w.shape[1]:
        raise ValueError(
            f"x has {x.shape[1]} coordinates a point and w {w.shape[1]}: they must agree"
        )
    (n, d), k = x.shape, w.shape[0]
    dtype = jnp.result_type(x, w)
    if 0 in (n, d, k):
        return jnp.zeros((n, k), dtype)
    return to_tiles(x.astype(dtype), tiled(w.astype(dtype)), p)[:, :k]


def tiled(w: Float[Array, "K d"]) -> Float[Array, "tiles groups group columns"]:
    """Points as `to_tiles` takes them, to spare arranging them for every call."""
    k, d = w.shape
    return _tiles(w, min(COLUMNS, _power_of_two(k)), min(GROUP, d))


def to_tiles(
    x: Float[Array, "n d"], w_tiles: Float[Array, "tiles groups group columns"], p: float
) -> Float[Array, "n columns"]:
    """As `pairwise`, to points that were `tiled`; then come columns of no meaning."""
    norm, n, dtype = named_norm(p, "p"), len(x), x.dtype
    group, columns = w_tiles.shape[2:]
    rows = min(ROWS, _power_of_two(n))

    def add(sums: Array, coordinates: tuple[Array, Array]) -> tuple[Array, None]:
        for x_l, w_l in zip(*coordinates, strict=True):
            sums = norm.fold(sums, norm.term(x_l[:, None] - w_l[None, :]))
        return sums, None

    def tile(x_rows: Array, w_rows: Array) -> Array:
        return jax.lax.scan(add, jnp.zeros((rows, columns), dtype), (x_rows, w_rows))[0]

    x_tiles = _tiles(x, rows, group)
    tiles = jax.lax.map(lambda a: jax.lax.map(lambda b: tile(a, b), w_tiles), x_tiles)
    return norm.finish(jnp.moveaxis(tiles, 1, 2).reshape(len(x_tiles) * rows, -1)[:n])


def _tiles(x: Array, rows: int, group: int) -> Array:
    """Points as (tiles, groups, coordinates, rows), padded by zeros, which change no distance."""
    n, d = x.shape
    x = jnp.pad(x, ((0, -n % rows), (0, -d % group)))
    return x.reshape(-1, rows, x.shape[1] // group, group).transpose(0, 2, 3, 1)


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


@jax.jit
def squared_l2(x: Float[Array, "n d"], w: Float[Array, "K d"]) -> Float[Array, "n K"]:
    r"""The squared l2 distances as $|x|^2 + |w|^2 - 2 \langle x, w \rangle$: for choosing only.

    One matrix product, several times faster than `pairwise`, but it cancels:
    `squared_l2_error` bounds what may be lost, and a small distance may come out negative.
    """
    product = jnp.matmul(x, w.T, precision=jax.lax.Precision.HIGHEST)
    return jnp.sum(x * x, axis=1)[:, None] + jnp.sum(w * w, axis=1)[None, :] - 2 * product


def squared_l2_error(x: Float[Array, "n d"], w: Float[Array, "K d"]) -> Float[Array, "n K"]:
    r"""An upper bound of the error of `squared_l2`, whatever the order of its sums.

    $$\gamma\,(|x|^2 + |w|^2 + 2 |x| |w|) \le 2 \gamma\,(|x|^2 + |w|^2)$$

    with $\gamma = 2 (d + 4) u$, u the unit of rounding; the factor 2 covers this bound's own
    rounding and matrix units that split a float32 into three bfloat16.

    Args:
        x: the n points given to `squared_l2`.
        w: the K points.

    Returns:
        The bound of each entry.
    """
    squares = jnp.sum(x * x, axis=1)[:, None] + jnp.sum(w * w, axis=1)[None, :]
    return 2 * rounding(x.shape[1] + 4, x.dtype) * squares + _underflow(x)


def choosing_distances(
    x: Float[Array, "n d"], w: Float[Array, "K d"], p: float, moved: Float[ArrayLike, ""]
) -> tuple[Float[Array, "n K"], Float[Array, "n K"]]:
    """Distances to choose by, squared for p = 2, and how far each may be from the true one.

    Args:
        x: n points, as the device holds them.
        w: K points, likewise.
        p: 1, 2 or infinity.
        moved: how far, in the p-norm, bringing a point and a w to the device's type moved them at
            most, both together.

    Returns:
        The distances and the bounds of their errors, computed generously; where they are NaN or
        infinite nothing is known.
    """
    if p == 2:
        d, error = squared_l2(x, w), squared_l2_error(x, w)
        return d, error + moved * (2.1 * jnp.sqrt(jnp.maximum(d, 0) + error) + moved)
    d, sums = pairwise(x, w, p), x.shape[1] if p == 1 else 0
    return d, rounding(sums + 2, x.dtype) * d + 1.1 * moved + _underflow(x)


def rounding(n: int, dtype: jax.typing.DTypeLike = jnp.float32) -> float:
    r"""Twice $\gamma_n = n u / (1 - n u)$: the relative error of adding n non-negative numbers."""
    nu = n * float(jnp.finfo(dtype).eps) / 2
    return 2 * nu / (1 - nu)


def _underflow(x: Float[Array, "n d"]) -> float:
    # A product below the normal range may be flushed to 0.
    return 4 * x.shape[1] * float(jnp.finfo(x.dtype).tiny)
