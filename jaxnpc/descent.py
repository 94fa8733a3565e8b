r"""Message passing descent for prototypes: every coordinate to the exact minimum of the hinge loss.

Along one coordinate of one prototype the hinge loss on l1, l-infinity or squared l2 distances is a
piecewise polynomial ([`jaxnpc.lines`][jaxnpc.lines]); jaxmpd finds its global minimum. Distances
are kept: what a prototype's coordinates add to them is folded from both ends, those moved already
from the left, those to come from the right, so that a coordinate costs O(n) and nothing drifts.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray

from jaxmpd.arguments import NO_PARAMS, as_key, as_parts
from jaxmpd.losses import Batch, shares, without_padding
from jaxmpd.minimum import minimize
from jaxmpd.piecewise import polynomial
from jaxmpd.primitives import cumsum
from jaxmpd.runs import at_least_one
from jaxmpd.transform import MPDState
from jaxnpc.distances import named_norm
from jaxnpc.lines import GEOMETRIES, Clipped, Geometry, along, clipped, distances, hinge
from jaxnpc.selection import members

PARTS = (32, 8, 1)
"""A search has room for one point in so many, the first that is enough: for the others the line
lies in the flat parts, where another prototype decides or the hinge is closed."""

LEAST = 32
"""Points that every search has room for."""


def prototype_descent(
    labels: Int[ArrayLike, " K"],
    distance: float = 2,
    *,
    cap: float,
    damping: float | optax.Schedule = 0.0,
    rounds: int = 8,
    seed: int | PRNGKeyArray = 0,
) -> optax.GradientTransformationExtraArgs:
    r"""Exact coordinate descent on the hinge loss of prototypes, made into an optimiser.

    An update visits all coordinates of all prototypes in random order and moves each to the global
    minimum of the minibatch's loss along it, all others standing still:

    $$w_{kl} \leftarrow \arg\min_{t} \sum_s \omega_s
      \bigl(R - \tfrac12 (\min_{j \in I_y^c} D_j(t) - \min_{i \in I_y} D_i(t))\bigr)_+
      + \lambda (t - w_{kl})^2 .$$

    It is the loss of [`semi_metric`][jaxnpc.objectives.semi_metric] with the distance 1, infinity
    or, for squared l2 distances, the function [`squared_l2`][jaxnpc.distances.squared_l2]. The
    minibatch's loss never rises. The incoming updates (gradients) are not used; in a chain it
    stands last.

    All samples at once and no damping end where no single coordinate can gain, which the hinge's
    edges make soon. Minibatches with a little damping, then larger ones, get further.

    Args:
        labels: the class index of each prototype.
        distance: 1, 2 (the squared l2 distance) or infinity.
        cap: R, in the units of the distance.
        damping: $\lambda$, a number or a function of the number of updates so far: how little a
            minibatch is trusted.
        rounds: how many times an update visits each prototype, each time for another part of its
            coordinates: more mix better, and each costs a pass over the minibatch a prototype.
        seed: of the order; an integer or a PRNG key.

    Returns:
        A transformation whose `update` needs `params`, a tree with one array (K, d), and `batch=`,
        a tuple `(points, classes)` or `(points, classes, weights)`: (n, d), class indices (n,) that
        have prototypes, non-negative weights (n,). It ignores other extra arguments.

    Raises:
        TypeError: if the seed is neither an integer nor a key.
        ValueError: from here, if an argument is out of its range; from `init` and `update`, if
            parameters or batch are missing or do not fit.

    Example:
        >>> x = jax.random.normal(jax.random.key(0), (200, 2)) + jnp.repeat(
        ...     jnp.array([[0.0, 0.0], [3.0, 0.0]]), 100, axis=0)
        >>> y, w = jnp.repeat(jnp.arange(2), 100), jnp.zeros((2, 2))
        >>> optimizer = prototype_descent([0, 1], cap=2.0)
        >>> state = optimizer.init(w)
        >>> @jax.jit
        ... def step(w, state):
        ...     updates, state = optimizer.update(w, state, w, batch=(x, y))
        ...     return optax.apply_updates(w, updates), state
        >>> for _ in range(3):
        ...     w, state = step(w, state)
        >>> bool(state.loss < 0.5)  # 2 at the start
        True
    """
    named_norm(distance, "distance")
    label = members(labels).label
    if not 0 < cap < math.inf:
        raise ValueError(f"cap must be positive and finite, got {cap}")
    if not callable(damping) and not 0 <= damping < math.inf:
        raise ValueError(f"damping must be at least 0 and finite, got {damping}")
    at_least_one(rounds=rounds)
    key = as_key(seed)
    key_data, impl = jax.random.key_data(key), jax.random.key_impl(key)

    def init(params: Any) -> MPDState:
        w = _prototypes(params, len(label))
        return MPDState(
            steps=jnp.zeros((), jnp.int32),
            key=jnp.array(key_data),
            loss=jnp.full((), jnp.inf, w.dtype),
        )

    def update(
        updates: Any, state: Any, params: Any = None, *, batch: Any = None, **extra_args: Any
    ) -> tuple[Any, MPDState]:
        del updates, extra_args
        if params is None:
            raise ValueError(NO_PARAMS)
        w, k_label = _prototypes(params, len(label)), jnp.asarray(label)
        x, y, weights = _fitting(batch, w)
        weights = shares(weights, len(x), w.dtype)
        next_key, key = jax.random.split(jax.random.wrap_key_data(state.key, impl=impl))
        weight = jnp.asarray(damping(state.steps) if callable(damping) else damping, w.dtype)

        def loss(d: Float[Array, "n K"]) -> Float[Array, ""]:
            return jnp.sum(weights * hinge(d, k_label, y, cap))

        d = distances(x, w, distance)
        task = _Task(x.T, y, weights, k_label, cap, weight, GEOMETRIES[distance])
        moved = _sweep(task, w, d, *_order(key, w, rounds))
        # What counts is the loss where the caller lands: old + (new - old) may not be new.
        change = moved - w
        before, after = loss(d), loss(distances(x, w + change, distance))
        better = after <= before
        change = jax.tree.map(lambda _: jnp.where(better, change, 0), params)
        return change, MPDState(
            steps=jnp.asarray(optax.safe_increment(state.steps)),
            key=jax.random.key_data(next_key),
            loss=jnp.where(better, after, before).astype(state.loss.dtype),
        )

    return optax.GradientTransformationExtraArgs(init, update)


class _Task(NamedTuple):
    """What stands still in a sweep."""

    columns: Float[Array, "d n"]
    classes: Int[Array, " n"]
    weights: Float[Array, " n"]
    labels: Int[Array, " K"]
    cap: float
    damping: Float[Array, ""]
    geometry: Geometry


def _order(
    key: PRNGKeyArray, w: Float[Array, "K d"], rounds: int
) -> tuple[Int[Array, " visits"], Int[Array, "visits block"]]:
    """Visits: a prototype and the coordinates to move there, all different.

    Each round visits all prototypes. Where rounds do not divide d some coordinates come twice.
    """
    count, d = w.shape
    block = -(-d // rounds)
    rounds = -(-d // block)
    prototypes_key, coordinates_key = jax.random.split(key)
    permuted = jax.vmap(jax.random.permutation, (0, None))
    orders = permuted(jax.random.split(coordinates_key, count), d)
    numbers = permuted(jax.random.split(prototypes_key, rounds), count)
    parts = orders[:, jnp.arange(rounds * block) % d].reshape(count, rounds, block)
    return numbers.reshape(-1), parts[numbers, jnp.arange(rounds)[:, None]].reshape(-1, block)


def _sweep(
    task: _Task,
    w: Float[Array, "K d"],
    d: Float[Array, "n K"],
    numbers: Int[Array, " visits"],
    orders: Int[Array, "visits block"],
) -> Float[Array, "K d"]:
    """The prototypes after all visits, from their distances d."""
    columns, classes, weights, labels, cap, damping, geometry = task

    def move(loss: Clipped, carry: tuple[Array, Array], x: tuple[Array, Array]) -> Any:
        row, before = carry
        coordinate, after = x
        old, column = row[coordinate], columns[coordinate]
        rest = geometry.fold(before, after)
        new = old + _search(geometry, loss, column - old, rest, damping)
        here, there = (geometry.fold(rest, geometry.term(column - t)) for t in (old, new))
        # An infinite minimiser, of a line without a minimum, makes the change NaN: no move.
        better = loss.change(here, there) + damping * (new - old) ** 2 < 0
        new = jnp.where(better, new, old)
        before = geometry.fold(before, geometry.term(column - new))
        return (row.at[coordinate].set(new), before), None

    def visit(carry: tuple[Array, Array], x: tuple[Array, Array]) -> Any:
        w, d = carry
        number, order = x
        row = w[number]
        loss = clipped(d, labels, classes, weights, number, cap)

        def fold(total: Array, coordinate: Array) -> tuple[Array, Array]:
            term = geometry.term(columns[coordinate] - row[coordinate])
            return geometry.fold(total, term), total

        zero = jnp.zeros_like(d[:, 0])
        terms = geometry.term(columns - row[:, None]).at[order].set(0)
        others = jax.lax.reduce(terms, jnp.zeros((), w.dtype), geometry.fold, (0,))
        _, after = jax.lax.scan(fold, zero, order, reverse=True)
        (row, distance), _ = jax.lax.scan(
            lambda carry, x: move(loss, carry, x), (row, others), (order, after)
        )
        return (w.at[number].set(row), d.at[:, number].set(distance)), None

    return jax.lax.scan(visit, (w, d), (numbers, orders))[0][0]


def _search(
    geometry: Geometry,
    loss: Clipped,
    centre: Float[Array, " n"],
    rest: Float[Array, " n"],
    damping: Float[Array, ""],
) -> Float[Array, ""]:
    """The global minimiser along a line, of the points alone that do not lie in flat parts."""
    n = len(centre)
    inner, outer = (geometry.width(level, rest) for level in (loss.lower, loss.upper))
    rank = cumsum(((outer > inner) & (loss.weight != 0))[None].astype(jnp.float32))[0]
    sizes = sorted({min(n, max(LEAST, n // part)) for part in PARTS})

    def of(points: tuple[Clipped, Array, Array]) -> Float[Array, ""]:
        penalty = polynomial(jnp.array([0, 0, 1], centre.dtype)) * damping
        return minimize(along(geometry, *points) + penalty).argmin

    def among(size: int) -> Any:
        def search(points: tuple[Clipped, Array, Array]) -> Float[Array, ""]:
            at = jnp.searchsorted(rank, jnp.arange(1, size + 1, dtype=rank.dtype))
            taken = jax.tree.map(lambda a: a[jnp.minimum(at, n - 1)], points)
            weight = jnp.where(at < n, taken[0].weight, 0)
            return of((taken[0]._replace(weight=weight), *taken[1:]))

        return search if size < n else of

    enough = jnp.searchsorted(jnp.array(sizes, rank.dtype), rank[-1])
    return jax.lax.switch(enough, [among(size) for size in sizes], (loss, centre, rest))


def _prototypes(params: Any, count: int) -> Float[Array, "K d"]:
    leaves = jax.tree.leaves(params)
    shapes = [jnp.shape(leaf) for leaf in leaves]
    if len(leaves) != 1 or len(shapes[0]) != 2 or shapes[0][0] != count or not shapes[0][1]:
        raise ValueError(
            f"params holds arrays of shapes {shapes}: give one, with a row for each of the {count} "
            "labels"
        )
    w = jnp.asarray(leaves[0])
    if not jnp.issubdtype(w.dtype, jnp.floating):
        raise ValueError(f"params must be of a floating-point dtype, got {w.dtype}")
    return w


def _fitting(batch: Any, w: Float[Array, "K d"]) -> Batch:
    """The samples in the prototypes' dtype, their padding set to 0."""
    points, classes, weights = as_parts(batch, "points", "classes")
    x, y = jnp.asarray(points, w.dtype), jnp.asarray(classes)
    weights = None if weights is None else jnp.asarray(weights, w.dtype)
    if (
        x.ndim != 2
        or not len(x)
        or x.shape[1] != w.shape[1]
        or y.shape != x.shape[:1]
        or (weights is not None and weights.shape != y.shape)
    ):
        shapes = [jnp.shape(a) for a in batch if a is not None]
        raise ValueError(
            f"batch holds arrays of shapes {shapes}: give points of shape (n, {w.shape[1]}), n "
            "class indices and, if any, n weights"
        )
    if not jnp.issubdtype(y.dtype, jnp.integer):
        raise ValueError(f"batch must have integer class indices, got {y.dtype}")
    return without_padding(Batch(x, y, weights))
