r"""Which pair of prototypes decides about each point of a minibatch.

$$\min_{j \in I_y^c} \max_{i \in I_y} \sigma_{i,j}(z)$$

(Lemma 2.9, with the signed radius of a pair in place of $\rho$). Choosing has no gradient and no
proof: it may round, and looks closely only at those rivals that the cheaper form with
$i^* = \arg\min_i d(z, w_i)$ (Theorem 2.10) puts first. What it costs is matrix products.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PRNGKeyArray

from jaxnpc.distances import DUAL, pairwise, squared_l2
from jaxnpc.domains import Domain, Unbounded
from jaxnpc.signed import signed_radius

OWNS = 4
"""How many own prototypes are tried against a rival where every pair takes a search."""

ROWS = 64  # points of one class whose rivals are compared with its prototypes at a time
POINTS = 128  # points whose pairs are searched at a time


class Members(NamedTuple):
    """The prototypes of each class.

    Attributes:
        label: the class of each prototype.
        table: the prototypes of each class, rows filled up with the class's first.
        real: which entries are no such filling.
    """

    label: Int[np.ndarray, " K"]
    table: Int[np.ndarray, "C m"]
    real: Bool[np.ndarray, "C m"]


class Pairs(NamedTuple):
    """For each point the own prototypes and the rivals chosen, the decisive ones first.

    Attributes:
        own: prototypes of the point's class.
        rival: prototypes of other classes.
        own_counts: which of the own ones count: a class may have fewer, or all others be hidden.
        rival_counts: which of the rivals do.
    """

    own: Int[Array, "n o"]
    rival: Int[Array, "n r"]
    own_counts: Bool[Array, "n o"]
    rival_counts: Bool[Array, "n r"]


Choose = Callable[
    [Float[Array, "K d"], Float[Array, "n d"], Int[Array, " n"], Bool[Array, "n m"]], Pairs
]
"""Prototypes, points, their classes and which own prototypes take part in; pairs out."""


def members(labels: Int[ArrayLike, " K"]) -> Members:
    """Group prototypes by class.

    Args:
        labels: the class index of each prototype, concrete.

    Returns:
        The groups.

    Raises:
        ValueError: if the labels are no class indices, a class has no prototype, or there is only
            one class.

    Example:
        >>> members([0, 1, 0]).table.tolist()
        [[0, 2], [1, 1]]
    """
    label = np.asarray(labels)
    if label.ndim != 1 or label.dtype.kind not in "iu" or not len(label) or label.min() < 0:
        raise ValueError(f"labels must be the prototypes' class indices, got {labels!r}")
    counts = np.bincount(label)
    if len(counts) < 2 or not counts.all():
        raise ValueError(
            f"labels gives the classes {counts.tolist()} prototypes: there must be at least two "
            "classes, each with a prototype"
        )
    rows = [np.flatnonzero(label == c) for c in range(len(counts))]
    most = int(counts.max())
    index = np.stack([np.concatenate([r, np.full(most - len(r), r[0])]) for r in rows])
    return Members(
        label.astype(np.int32), index.astype(np.int32), np.arange(most) < counts[:, None]
    )


def visible(
    key: PRNGKeyArray, group: Members, y: Int[Array, " n"], dropout: float
) -> Bool[Array, "n m"]:
    """Which prototypes of a point's class take part: each is hidden with probability `dropout`.

    A point that has to do without its closest prototypes trains the next ones, and a class that
    would be hidden altogether keeps one. Fillings never take part.
    """
    real = jnp.asarray(group.real)[y]
    luck = jnp.where(real, jax.random.uniform(key, real.shape), -1)
    return (luck >= dropout) | (luck == jnp.max(luck, axis=1, keepdims=True))


def nearest(group: Members, p: float | Callable[..., Array], count: int = 1) -> Choose:
    """The closest own prototypes and the closest rivals, `count` of each (Theorem 2.4).

    Args:
        group: the prototypes of each class.
        p: the norm, or a function of points and prototypes that returns all distances.
        count: how many; fewer if a class or all other classes have fewer.

    Returns:
        A choice of pairs.
    """
    owns, rivals = _at_most(group, count, count)

    def choose(
        w: Float[Array, "K *d"], x: Float[Array, "n *d"], y: Int[Array, " n"], shown: Array
    ) -> Pairs:
        d = p(x, w) if callable(p) else squared_l2(x, w) if p == 2 else pairwise(x, w, p)
        index = jnp.asarray(group.table)[y]
        own = jnp.where(shown, jnp.take_along_axis(d, index, axis=1), jnp.inf)
        near, slots = _least(own, owns)
        there, rival = _least(jnp.where(_foreign(group, y), d, jnp.inf), rivals)
        own = jnp.take_along_axis(index, slots, axis=1)
        return Pairs(own, rival, near < jnp.inf, there < jnp.inf)

    return choose


def decisive(group: Members, *, p: float, q: float, domain: Domain, rivals: int = 8) -> Choose:
    """The pair of Lemma 2.9.

    For the l2 distance on R^d rivals are ranked by their bound with i*, and the first `rivals` are
    compared with all own prototypes: exact to rounding if that covers the minimum. Everywhere else
    those are only candidates (ranked by distance for p = 1 and infinity), and radii are computed
    for each with its `OWNS` most promising own prototypes.

    Args:
        group: the prototypes of each class.
        p: the norm of the distance.
        q: the norm of the perturbation.
        domain: where adversarial points are sought.
        rivals: how many rivals are looked at closely.

    Returns:
        A choice of one pair a point.
    """
    closed = p == 2 and isinstance(domain, Unbounded)
    owns, rivals = _at_most(group, 1 if closed else OWNS, rivals)

    def choose(
        w: Float[Array, "K d"], x: Float[Array, "n d"], y: Int[Array, " n"], shown: Array
    ) -> Pairs:
        if p == 2:
            own, rival, bound, counts = _euclidean(group, w, x, y, shown, q, rivals, owns)
        else:
            pairs = nearest(group, p, max(owns, rivals))(w, x, y, shown)
            rival, counts = pairs.rival[:, :rivals], pairs.rival_counts[:, :rivals]
            shape = (len(x), rivals, owns)
            own = jnp.broadcast_to(pairs.own[:, None, :owns], shape)
            hidden = jnp.where(pairs.own_counts, 0, -jnp.inf)
            bound = jnp.broadcast_to(hidden[:, None, :owns], shape)
        if not closed:
            bound = jnp.where(bound > -jnp.inf, _searched(w, x, own, rival, p, q, domain), -jnp.inf)
        best = jnp.where(counts, jnp.max(bound, axis=2), jnp.inf)
        j = jnp.argmin(best, axis=1)[:, None]
        mine, bound = (jnp.take_along_axis(a, j[:, :, None], axis=1)[:, 0] for a in (own, bound))
        i = jnp.argmax(bound, axis=1)[:, None]
        everywhere = jnp.ones((len(x), 1), bool)
        return Pairs(
            jnp.take_along_axis(mine, i, axis=1),
            jnp.take_along_axis(rival, j, axis=1),
            everywhere,
            everywhere,
        )

    return choose


def _euclidean(
    group: Members,
    w: Float[Array, "K d"],
    x: Float[Array, "n d"],
    y: Int[Array, " n"],
    shown: Bool[Array, "n m"],
    q: float,
    rivals: int,
    owns: int,
) -> tuple[Int[Array, "n r o"], Int[Array, "n r"], Float[Array, "n r o"], Bool[Array, "n r"]]:
    """The l2 distance: own prototypes and rivals, bounds on R^d (-inf: none), rivals that count."""
    d = squared_l2(x, w)
    index = jnp.asarray(group.table)[y]
    own = jnp.where(shown, jnp.take_along_axis(d, index, axis=1), jnp.inf)
    closest = jnp.argmin(own, axis=1)[:, None]
    star = jnp.take_along_axis(index, closest, axis=1)[:, 0]
    excess = d - jnp.take_along_axis(own, closest, axis=1)
    score = _quotient(excess, _lengths(w[star], w, q))
    score, rival = _least(jnp.where(_foreign(group, y), score, jnp.inf), rivals)
    there = jnp.take_along_axis(d, rival, axis=1)
    bound, slot = _best_owns(group, w, y, own, rival, there, q, owns)
    chosen = jnp.take_along_axis(index, slot.reshape(len(x), -1), axis=1)
    return chosen.reshape(slot.shape), rival, bound, score < jnp.inf


def _best_owns(
    group: Members,
    w: Float[Array, "K d"],
    y: Int[Array, " n"],
    own: Float[Array, "n m"],
    rival: Int[Array, "n r"],
    there: Float[Array, "n r"],
    q: float,
    owns: int,
) -> tuple[Float[Array, "n r o"], Int[Array, "n r o"]]:
    """For each rival the own prototypes of the largest bounds, by their places in the class.

    Points are sorted into blocks of one class, so that the distances of all their rivals from all
    their own prototypes are one matrix product a block and nothing of size K x K is ever held.
    """
    (n, r), (classes, m) = rival.shape, group.table.shape
    size = min(ROWS, 1 << max(math.ceil(n / classes) - 1, 0).bit_length())
    blocks = min(n, (n + classes * (size - 1)) // size)
    order = jnp.argsort(y, stable=True)
    count = jnp.bincount(y, length=classes).astype(jnp.int32)
    numbers = jnp.arange(n, dtype=jnp.int32)
    needed = -(-count // size)
    first_row, last_block = jnp.cumsum(count) - count, jnp.cumsum(needed)
    # Where each point lies among the blocks' rows, and who lies in each row (n: nobody).
    rank = jnp.zeros_like(numbers).at[order].set(numbers - first_row[y[order]])
    place = (last_block - needed)[y] * size + rank
    tenant = jnp.full(blocks * size, n, jnp.int32).at[place].set(numbers)
    rows = tenant.reshape(blocks, size)
    label = jnp.searchsorted(last_block, jnp.arange(blocks), side="right")

    def compare(block: tuple[Array, Array]) -> tuple[Array, Array]:
        at, c = block
        gap = _lengths(w[rival[at].reshape(-1)], w[jnp.asarray(group.table)[c]], q)
        excess = there[at][:, :, None] - own[at][:, None, :]
        bound = _quotient(excess.reshape(-1, m), gap)
        best, slot = _least(-bound, owns)
        return -best.reshape(size, r, owns), slot.reshape(size, r, owns)

    def skip(block: tuple[Array, Array]) -> tuple[Array, Array]:
        del block
        return jnp.zeros((size, r, owns), own.dtype), jnp.zeros((size, r, owns), jnp.int32)

    def one(block: tuple[Array, Array]) -> tuple[Array, Array]:
        used = block[1] < classes
        inside = (jnp.minimum(block[0], n - 1), jnp.minimum(block[1], classes - 1))
        return jax.lax.cond(used, compare, skip, inside)

    bound, slot = jax.lax.map(one, (rows, label))
    return bound.reshape(-1, r, owns)[place], slot.reshape(-1, r, owns)[place]


def _searched(
    w: Float[Array, "K d"],
    x: Float[Array, "n d"],
    own: Int[Array, "n r o"],
    rival: Int[Array, "n r"],
    p: float,
    q: float,
    domain: Domain,
) -> Float[Array, "n r o"]:
    """The signed radius of every candidate, one point after the other in bounded memory."""

    def radius(z: Array, i: Array, j: Array) -> Array:
        return signed_radius(z, w[i], w[j], p=p, q=q, domain=domain)

    def point(row: tuple[Array, Array, Array]) -> Array:
        z, i, j = row
        return jax.vmap(lambda i, j: jax.vmap(lambda k: radius(z, k, j))(i))(i, j)

    return jax.lax.map(point, (x, own, rival), batch_size=min(POINTS, len(x)))


def _lengths(a: Float[Array, "n d"], b: Float[Array, "K d"], q: float) -> Float[Array, "n K"]:
    """The dual norms of all differences."""
    dual = DUAL[q]
    if dual == 2:
        return jnp.sqrt(jnp.maximum(squared_l2(a, b), 0))
    return pairwise(a, b, dual)


def _quotient(excess: Float[Array, "n K"], gap: Float[Array, "n K"]) -> Float[Array, "n K"]:
    """The bound of a pair from the difference of its squared distances; 0 for equal prototypes."""
    tie = jnp.where(jnp.isneginf(excess), excess, 0)  # a hidden prototype bounds nothing
    return jnp.where(gap > 0, excess / jnp.where(gap > 0, 2 * gap, 1), tie)


def _least(x: Float[Array, "n k"], count: int) -> tuple[Float[Array, "n c"], Int[Array, "n c"]]:
    """The least entries of each row, in order, and where they are."""
    value, index = jax.lax.top_k(-x, count)
    return -value, index


def _foreign(group: Members, y: Int[Array, " n"]) -> Bool[Array, "n K"]:
    return jnp.asarray(group.label) != y[:, None]


def _at_most(group: Members, owns: int, rivals: int) -> tuple[int, int]:
    """No more than any class has, and than it has rivals."""
    counts = group.real.sum(axis=1)
    return min(owns, int(counts.max())), min(rivals, len(group.label) - int(counts.min()))
