"""Where training starts: prototypes from the points of each class."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxmpd.runs import at_least_one
from jaxnpc.distances import squared_l2

ROWS = 2048  # points whose distances to all centres are held at a time
ITERATIONS = 20

Start = Callable[[Float[np.ndarray, "n d"], int, PRNGKeyArray, int], Float[Array, "k d"]]
"""Points of one class, how many prototypes, a key, and how many rows to pad to."""


@functools.partial(jax.jit, static_argnames=("k", "iterations"))
def kmeans(
    points: Float[Array, "n d"],
    k: int,
    key: PRNGKeyArray,
    *,
    weights: Float[Array, " n"] | None = None,
    iterations: int = ITERATIONS,
) -> Float[Array, "k d"]:
    r"""Lloyd's algorithm from k-means++: centres of small $\sum_a u_a \min_c |x_a - w_c|_2^2$.

    A centre without points moves to the point that is farthest from its own, so that no centre is
    lost while there are as many distinct points. Deterministic; memory is bounded.

    Args:
        points: n points.
        k: how many centres; static.
        key: a PRNG key.
        weights: non-negative weights u; points of weight 0 only fill up. By default ones.
        iterations: the most rounds; it ends when no point changes its centre. Static.

    Returns:
        The centres.

    Raises:
        ValueError: if k is not between 1 and n.

    Example:
        >>> points = jnp.array([[0.0], [1.0], [10.0], [11.0], [12.0]])
        >>> jnp.sort(kmeans(points, 2, jax.random.key(0))[:, 0]).tolist()
        [0.5, 11.0]

    References:
        Arthur, Vassilvitskii: k-means++: the advantages of careful seeding, 2007.
    """
    n = len(points)
    if not 1 <= k <= n:
        raise ValueError(f"k must be at least 1 and at most the number of points {n}, got {k}")
    mass = jnp.ones(n, points.dtype) if weights is None else weights
    # Squared distances as a product cancel less around the mean.
    mean = mass @ points / jnp.sum(mass)
    x = points - mean

    def improve(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        centres, old, _, step = state
        distance, closest = _closest(x, centres)
        distance = jnp.where(mass > 0, distance, -1)
        total = jax.ops.segment_sum(mass, closest, k)
        sums = jax.ops.segment_sum(mass[:, None] * x, closest, k)
        empty = total <= 0
        far = jax.lax.top_k(distance, k)[1]
        fallback = x[far[jnp.maximum(jnp.cumsum(empty) - 1, 0)]]
        moved = jnp.where(empty[:, None], fallback, sums / jnp.where(empty, 1, total)[:, None])
        return moved, closest, jnp.any(closest != old), step + 1

    state = (_plus_plus(x, mass, k, key), jnp.full(n, -1), jnp.array(True), jnp.array(0))
    state = jax.lax.while_loop(lambda s: s[2] & (s[3] < iterations), improve, state)
    return state[0] + mean


def _plus_plus(
    x: Float[Array, "n d"], mass: Float[Array, " n"], k: int, key: PRNGKeyArray
) -> Float[Array, "k d"]:
    """Points drawn one after the other, each by its squared distance from those drawn before."""
    squares = jnp.sum(x * x, axis=1)

    def draw(carry: tuple[Array, Array], key: PRNGKeyArray) -> tuple[tuple[Array, Array], Array]:
        remaining, taken = carry
        chance = mass * jnp.where(remaining < jnp.inf, remaining, 1)  # the first one: evenly
        # Where all points coincide with one drawn before, any other one.
        chance = jnp.where(jnp.sum(chance) > 0, chance, jnp.where(taken, 0, mass))
        index = jax.random.categorical(key, jnp.log(chance))
        centre = x[index]
        product = jnp.matmul(x, centre, precision=jax.lax.Precision.HIGHEST)
        distance = jnp.maximum(squares - 2 * product + squares[index], 0)
        taken = taken.at[index].set(True)
        return (jnp.where(taken, 0, jnp.minimum(remaining, distance)), taken), index

    carry = (jnp.full_like(mass, jnp.inf), jnp.zeros(len(x), bool))
    return x[jax.lax.scan(draw, carry, jax.random.split(key, k))[1]]


def _closest(
    x: Float[Array, "n d"], centres: Float[Array, "k d"]
) -> tuple[Float[Array, " n"], Int[Array, " n"]]:
    """The squared distance to the closest centre, and which it is, in bounded memory."""
    n = len(x)
    size = min(ROWS, n)
    blocks = jnp.pad(x, ((0, -n % size), (0, 0))).reshape(-1, size, x.shape[1])

    def block(rows: Array) -> tuple[Array, Array]:
        d = squared_l2(rows, centres)
        return jnp.min(d, axis=1), jnp.argmin(d, axis=1)

    least, index = jax.lax.map(block, blocks)
    return least.reshape(-1)[:n], index.reshape(-1)[:n]


def sample(
    points: Float[np.ndarray, "n d"], k: int, key: PRNGKeyArray, rows: int
) -> Float[Array, "k d"]:
    """K different points."""
    del rows
    return jnp.asarray(points[np.asarray(jax.random.permutation(key, len(points))[:k])])


def centres(
    points: Float[np.ndarray, "n d"], k: int, key: PRNGKeyArray, rows: int
) -> Float[Array, "k d"]:
    """The centres of `kmeans`, the points padded to that many rows: one program for all classes."""
    filled = np.zeros((rows, points.shape[1]), points.dtype)
    filled[: len(points)] = points
    weights = (np.arange(rows) < len(points)).astype(points.dtype)
    return kmeans(jnp.asarray(filled), k, key, weights=jnp.asarray(weights))


STARTS: dict[str, Start] = {"kmeans": centres, "sample": sample}
"""How prototypes are found among the points of a class, by name."""


def start(
    points: Float[np.ndarray, "n d"],
    classes: Int[np.ndarray, " n"],
    per_class: int,
    key: PRNGKeyArray,
    method: str = "kmeans",
) -> tuple[Float[Array, "K d"], Int[np.ndarray, " K"]]:
    """Prototypes to start from, class by class.

    Args:
        points: n points.
        classes: their class indices; every class from 0 on has a point.
        per_class: prototypes a class; a class with fewer points gets as many as it has points.
        key: a PRNG key.
        method: "kmeans" or "sample".

    Returns:
        The prototypes and their class indices, in order.

    Raises:
        ValueError: if there is no such method, or `per_class` is not positive.

    Example:
        >>> points = np.array([[0.0], [1.0], [5.0]], np.float32)
        >>> w, labels = start(points, np.array([0, 0, 1]), 2, jax.random.key(0), "sample")
        >>> w.shape, labels.tolist()
        ((3, 1), [0, 0, 1])
    """
    labels, counts = allotted(classes, per_class, method), np.bincount(classes)
    parts = [
        STARTS[method](
            points[classes == c],
            int(np.sum(labels == c)),
            jax.random.fold_in(key, c),
            int(counts.max()),
        )
        for c in range(len(counts))
    ]
    return jnp.concatenate(parts), labels


def allotted(classes: Int[np.ndarray, " n"], per_class: int, method: str) -> Int[np.ndarray, " K"]:
    """The class indices of the prototypes of `start`, known before any work.

    Raises:
        ValueError: if there is no such method, or `per_class` is not positive.
    """
    if method not in STARTS:
        raise ValueError(f"start must be one of {', '.join(STARTS)}, got {method!r}")
    at_least_one(per_class=per_class)
    counts = np.minimum(np.bincount(classes), per_class)
    return np.repeat(np.arange(len(counts)), counts)
