r"""The minimum over rivals of the maximum over own prototypes, by best-first search.

Every rival j of a point carries a key, a lower bound of $\max_i \rho_{ij}$ that only ever rises:
first the cheap bound on R^d, then the pair radius in the domain for one i, then for more i. The
rival with the smallest key is taken up again and again until the smallest key is final; all others
were never worth more work. Points advance together, so the device works on batches of pairs.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxnpc.batching import queued
from jaxnpc.distances import pairwise, to_tiles
from jaxnpc.domains import Box, Domain
from jaxnpc.exclusion import pairs_beyond
from jaxnpc.pairwise.frame import PairRadius
from jaxnpc.pairwise.l2 import half_space
from jaxnpc.pairwise.table import rho
from jaxnpc.prototypes import rounded_by
from jaxnpc.reach import Lift
from jaxnpc.rivals import Rival, Rivals, Space, sharpen, shift

NOISE = 1e-5
"""The relative difference of two distances that rounding may account for."""

GROWTH = 2
"""By what factor the number of rivals taken up together grows from one round to the next."""

LEAD = 8
"""How many times more rivals have their cheap bound sharpened than their radius computed."""


@dataclass
class Evaluated:
    """The pairs whose radius was computed, one entry each.

    Attributes:
        row: the point.
        rival: the prototype j.
        own: the position among the class's members of the i with the largest radius so far.
        radius: that radius, in the device's precision.
        witness: its minimiser.
        checked: whether the witness has been compared with all own prototypes; what follows is
            known only then. Only leaders are worth that.
        feasible: whether the witness is as far from every own prototype as from j.
        following: the position of the i to try next, -1 once the maximum is found.
        open: which i might still have a larger radius.
    """

    row: Int[np.ndarray, " P"]
    rival: Int[np.ndarray, " P"]
    own: Int[np.ndarray, " P"]
    radius: Float[np.ndarray, " P"]
    witness: Float[np.ndarray, "P d"]
    checked: Bool[np.ndarray, " P"]
    feasible: Bool[np.ndarray, " P"]
    following: Int[np.ndarray, " P"]
    open: Bool[np.ndarray, "P own"]


class Found(NamedTuple):
    """What the search leaves behind.

    Attributes:
        pairs: all evaluated pairs.
        floor: for each point and prototype the bound that certainly holds; infinite for pairs
            that were evaluated and for own prototypes.
        sure: for each evaluated pair the bound that certainly holds.
        winner: for each point its pair of smallest radius, -1 if no pair was evaluated.
        lift: what raised the floors of all rivals at once, where that is possible.
    """

    pairs: Evaluated
    floor: Float[np.ndarray, "B K"]
    sure: Float[np.ndarray, " P"]
    winner: Int[np.ndarray, " B"]
    lift: Lift | None


def search(
    space: Space,
    rival: Rival,
    rivals: Rivals,
    z: Float[Array, "B d"],
    x: Float[Array, "B m"],
    active: Bool[np.ndarray, " B"],
    domain: Domain,
    every_own: bool,
    moved: float,
) -> Found:
    """The search for a block of points of one class.

    Args:
        space: the prepared classifier.
        rival: the constants of the class.
        rivals: the cheap bounds of the points.
        z: the points.
        x: their images under the metric's map.
        active: which rows are points to be searched for.
        domain: where adversarial points are sought.
        every_own: whether to maximise over all own prototypes or to keep to the nearest.
        moved: by how much a coordinate of a point may differ from the device's.

    Returns:
        The pairs and the bounds of the rest.
    """
    floor = np.array(rivals.floor)
    key = floor.copy()
    own = np.repeat(np.asarray(rivals.nearest)[:, None], floor.shape[1], axis=1)
    sharp = np.zeros(floor.shape, bool)
    table = rival.table if every_own else None
    # Half-spaces in a box, whose cheap bounds ignore the walls, are worth a look in between.
    walls = domain if space.p == 2 and isinstance(domain, Box) else None
    error = np.array([shift(space), moved + _bounds_moved(domain, floor.dtype)], floor.dtype)
    lift = None
    if space.p == np.inf:
        lift = Lift.prepare(space, rival, rivals, z, domain, every_own, error[1])
    slot = np.full(floor.shape, -1, np.int32)
    pairs = _nothing(z.shape[1], rival.own.size, key.dtype)
    rows, breadth = np.flatnonzero(active), 1
    while True:
        # The pair of smallest key of each row; no rival beyond it is worth a radius yet.
        pair_key = key[pairs.row, pairs.rival]
        order = np.argsort(-pair_key, kind="stable")
        leader, ceiling = np.full(len(key), -1), np.full(len(key), np.inf, key.dtype)
        leader[pairs.row[order]], ceiling[pairs.row[order]] = order, pair_key[order]
        behind = key[rows].min(axis=1) < ceiling[rows]
        if lift is not None:
            lift(rows[behind], floor, key, own)
            behind = key[rows].min(axis=1) < ceiling[rows]
        again = leader[rows[~behind]]
        new = again[~pairs.checked[again]]
        _check(space, rival, pairs, new, pairs.own[new], pairs.witness[new])
        again = again[pairs.following[again] >= 0]
        rows = np.sort(np.concatenate([rows[behind], pairs.row[again]]))
        if not len(rows):
            break
        row, j = _lowest(key, slot, ceiling, rows, breadth * LEAD)
        if table is not None:
            blunt = ~sharp[row, j]
            _sharpen(rivals, table, row[blunt], j[blunt], floor, own)
            sharp[row, j] = True
        if walls is not None:
            _exclude(space, rival, rivals, z, row, j, own, ceiling, floor, walls, error)
        key[row, j] = np.maximum(key[row, j], floor[row, j])
        row, j = _first(key, ceiling, row, j, breadth)
        breadth *= GROWTH
        fresh = len(pairs.row) + np.arange(len(row))
        slot[row, j] = fresh
        pairs = _append(pairs, row, j, own[row, j], every_own)
        if lift is not None:
            lift.drop(row, j)
        touched = np.concatenate([again, fresh])
        trial, witness = _evaluate(space, rival, pairs, touched, z, x, domain)
        _check(space, rival, pairs, again, trial[: len(again)], witness[: len(again)])
        row, j = pairs.row[touched], pairs.rival[touched]
        key[row, j] = np.maximum(floor[row, j], pairs.radius[touched])
    winner = np.where(active, leader, -1)
    sure = floor[pairs.row, pairs.rival]
    floor[pairs.row, pairs.rival] = np.inf
    return Found(pairs, floor, sure, winner, lift)


def _lowest(
    key: Float[np.ndarray, "B K"],
    slot: Int[np.ndarray, "B K"],
    ceiling: Float[np.ndarray, " B"],
    rows: Int[np.ndarray, " R"],
    breadth: int,
) -> tuple[Int[np.ndarray, " P"], Int[np.ndarray, " P"]]:
    """The rivals to take up: of each row the `breadth` smallest keys below its ceiling."""
    keys = key[rows]
    below = (keys < ceiling[rows, None]) & (slot[rows] < 0)
    if breadth < keys.shape[1]:
        # Sorting is dear: let only the smallest in.
        kth = np.partition(np.where(below, keys, np.inf), breadth - 1, axis=1)[:, breadth - 1]
        below &= keys <= kth[:, None]
    index, j = np.nonzero(below)
    return _first(key, ceiling, rows[index], j, breadth)


def _first(
    key: Float[np.ndarray, "B K"],
    ceiling: Float[np.ndarray, " B"],
    row: Int[np.ndarray, " P"],
    j: Int[np.ndarray, " P"],
    breadth: int,
) -> tuple[Int[np.ndarray, " P"], Int[np.ndarray, " P"]]:
    """Of some pairs the `breadth` smallest keys of each row that are below its ceiling."""
    order = np.lexsort((key[row, j], row))
    row, j = row[order], j[order]
    rank = np.arange(len(row)) - np.searchsorted(row, row)
    kept = (rank < breadth) & (key[row, j] < ceiling[row])
    return row[kept], j[kept]


def _exclude(
    space: Space,
    rival: Rival,
    rivals: Rivals,
    z: Float[Array, "B d"],
    row: Int[np.ndarray, " P"],
    j: Int[np.ndarray, " P"],
    own: Int[np.ndarray, "B K"],
    ceiling: Float[np.ndarray, " B"],
    floor: Float[np.ndarray, "B K"],
    domain: Box,
    error: Float[np.ndarray, "2"],
) -> None:
    """Raise the floors of pairs that the ceiling's ball cannot reach, in place."""
    worth = np.isfinite(ceiling[row]) & (floor[row, j] < ceiling[row])
    row, j = row[worth], j[worth]
    # A little farther than the leader, whose own radius is rounded.
    ball = ceiling * (1 + 16 * np.finfo(ceiling.dtype).eps)
    for part, (rows, js, i) in queued(row, j, own[row, j]):
        reached = pairs_beyond(
            z, space.device_normals, rivals.low, rivals.high, rival.own,
            rows, js, i, ball[rows], domain, error, q=space.q,
        )  # fmt: skip
        out = np.asarray(reached)[: len(part)]
        floor[row[part][out], j[part][out]] = ball[row[part][out]]


def _bounds_moved(domain: Domain, dtype: np.dtype) -> float:
    """By how much a wall of the box may differ from the device's."""
    if not isinstance(domain, Box):
        return 0.0
    walls = [np.asarray(wall, np.float64).reshape(1, -1) for wall in (domain.lower, domain.upper)]
    return sum(rounded_by(wall, wall.astype(dtype), np.inf) for wall in walls)


def _sharpen(
    rivals: Rivals,
    table: Float[Array, "own K"],
    row: Int[np.ndarray, " P"],
    j: Int[np.ndarray, " P"],
    floor: Float[np.ndarray, "B K"],
    own: Int[np.ndarray, "B K"],
) -> None:
    """Raise the floors of some pairs to the maximum over all own prototypes, in place."""
    for part, (rows, js) in queued(row, j):
        bound, best = (np.asarray(v)[: len(part)] for v in sharpen(rivals, table, rows, js))
        better = bound > floor[row[part], j[part]]
        where = row[part][better], j[part][better]
        floor[where], own[where] = bound[better], best[better]


def _evaluate(
    space: Space,
    rival: Rival,
    pairs: Evaluated,
    touched: Int[np.ndarray, " P"],
    z: Float[Array, "B d"],
    x: Float[Array, "B m"],
    domain: Domain,
) -> tuple[Int[np.ndarray, " P"], Float[np.ndarray, "P d"]]:
    """One more radius for each of some pairs, in place; the i that were tried, and minimisers."""
    trial = np.where(pairs.following[touched] >= 0, pairs.following[touched], pairs.own[touched])
    witness = np.zeros((len(touched), z.shape[1]), pairs.witness.dtype)
    for part, (row, j, i) in queued(pairs.row[touched], pairs.rival[touched], trial):
        result = _radius(
            z, x, space.device_images, space.device_normals, rival.own, row, j, i, domain,
            p=space.p, q=space.q, linear=space.metric is not None,
        )  # fmt: skip
        radius, witness[part] = (np.asarray(v)[: len(part)] for v in result)
        at = touched[part]
        better = ~(radius <= pairs.radius[at])
        at, some = at[better], part[better]
        pairs.radius[at], pairs.witness[at] = radius[better], witness[some]
        pairs.own[at], pairs.checked[at] = trial[some], False
    return trial, witness


@partial(jax.jit, static_argnames=("p", "q", "linear"))
def _radius(
    z: Float[Array, "B d"],
    x: Float[Array, "B m"],
    images: Float[Array, "K m"],
    normals: Float[Array, "K d"],
    members: Int[Array, " own"],
    row: Int[Array, " Q"],
    j: Int[Array, " Q"],
    i: Int[Array, " Q"],
    domain: Domain,
    *,
    p: float,
    q: float,
    linear: bool,
) -> PairRadius:
    """Radius and witness of some triples."""
    z, x, k = z[row], x[row], members[i]
    if not linear:
        return jax.vmap(partial(rho, p=p, q=q, domain=domain))(z, images[k], images[j])
    need = jnp.sum((images[j] - images[k]) * ((images[k] - x) + (images[j] - x)), axis=1) / 2
    return jax.vmap(partial(half_space, q=q, domain=domain))(z, normals[j] - normals[k], need)


def _check(
    space: Space,
    rival: Rival,
    pairs: Evaluated,
    at: Int[np.ndarray, " P"],
    own: Int[np.ndarray, " P"],
    witness: Float[np.ndarray, "P d"],
) -> None:
    """Find out which i the witnesses of some pairs, for own prototypes i, leave open, in place."""
    metric = None if space.metric is None else jnp.asarray(space.metric, pairs.witness.dtype)
    for part, (j, i, index) in queued(pairs.rival[at], own, np.arange(len(at))):
        result = _compare(witness[index], space.device_images, metric, rival, j, i, space.p)
        nearer, excess = (np.asarray(v)[: len(part)] for v in result)
        rows = at[part]
        # An i that the witness satisfies has a minimiser no farther away than this witness.
        pairs.open[rows] &= nearer & np.isfinite(pairs.radius[rows])[:, None]
        best = np.argmax(np.where(pairs.open[rows], excess, -np.inf), axis=1)
        pairs.following[rows] = np.where(pairs.open[rows].any(axis=1), best, -1)
        mine = pairs.own[rows] == own[part]
        pairs.feasible[rows[mine]] = ~nearer[mine].any(axis=1)
    pairs.checked[at] = True


@partial(jax.jit, static_argnames="p")
def _compare(
    witness: Float[Array, "Q d"],
    images: Float[Array, "K m"],
    metric: Float[Array, "m d"] | None,
    rival: Rival,
    j: Int[Array, " Q"],
    i: Int[Array, " Q"],
    p: float,
) -> tuple[Bool[Array, "Q own"], Float[Array, "Q own"]]:
    """Which own prototypes other than i are closer to the witnesses than j, and by how much."""
    image = witness
    if metric is not None:
        image = jnp.matmul(witness, metric.T, precision=jax.lax.Precision.HIGHEST)
    to_rival = jax.vmap(lambda a, b: pairwise(a[None], b[None], p)[0, 0])(image, images[j])
    own = rival.own.size
    excess = to_rival[:, None] - to_tiles(image, rival.tiles, p)[:, :own]
    nearer = (excess > NOISE * to_rival[:, None]) & (jnp.arange(own) != i[:, None])
    return nearer, excess


def _nothing(d: int, members: int, dtype: np.dtype) -> Evaluated:
    index = partial(np.zeros, 0, np.int64)
    return Evaluated(
        index(),
        index(),
        index(),
        np.zeros(0, dtype),
        np.zeros((0, d), dtype),
        np.zeros(0, bool),
        np.zeros(0, bool),
        index(),
        np.zeros((0, members), bool),
    )


def _append(
    pairs: Evaluated,
    row: Int[np.ndarray, " P"],
    j: Int[np.ndarray, " P"],
    own: Int[np.ndarray, " P"],
    every_own: bool,
) -> Evaluated:
    count, (_, d), (_, members) = len(row), pairs.witness.shape, pairs.open.shape
    new = Evaluated(
        row,
        j,
        own,
        np.full(count, -np.inf, pairs.radius.dtype),
        np.zeros((count, d), pairs.witness.dtype),
        np.zeros(count, bool),
        np.zeros(count, bool),
        np.full(count, -1),
        np.full((count, members), every_own),
    )
    return Evaluated(
        *(np.concatenate([getattr(pairs, f), getattr(new, f)]) for f in Evaluated.__annotations__)
    )
