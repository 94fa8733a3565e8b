r"""Lower bounds of the minimal perturbation of embedded images, over all prototypes.

$$\epsilon(z) \ge \min_{j \in I_y^c} \max_{i \in I_y} \rho(z)_{i,j}$$

(paper, Lemma 2.9) with the half-space bound on all of $\mathbb{R}^D$ or with that of a product of
spheres ([`jaxnpc.pairwise.spheres`][jaxnpc.pairwise.spheres]). A rival is left out once a proved
lower bound of its radius exceeds another's: first the half-space bound of all pairs from one matrix
product, then F at the multipliers that Newton's method visits, in float32 and lowered by all that
rounding can have added; what is left is evaluated in float64 on the host.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxnpc import rounding
from jaxnpc.batching import blocks, padded, queued
from jaxnpc.distances import rounding as sum_error
from jaxnpc.pairwise.sphere_proofs import dual_bound, group_squares
from jaxnpc.pairwise.spheres import START, Dual, ascend, dual
from jaxnpc.perceptual.prepared import ROWS, Device, Prepared, Scores, floors
from jaxnpc.rounding import Interval, down, exact, total, up

TABLE = 1 << 23  # (point, own prototype, rival) triples that are held at a time
TRIES = 2  # own prototypes whose bound is computed for a rival, before it counts
STEPS = 12  # evaluations of F for a pair, at most
TOLERANCE = 1e-4  # the relative gain of F at which the search for a multiplier ends
PAIRS = 8  # pairs whose proofs are computed together: such arrays stay in a core's cache

Rows = Int[np.ndarray, " P"]


class Found(NamedTuple):
    """Bounds of n points.

    Attributes:
        radius: proved; 0 for points that are missed or tied, infinite where nothing flips them.
        pair: the own prototype i and the rival j that give it; -1 where the radius is infinite.
        evaluated: the pairs whose bound on the spheres was computed.
        proved: the pairs that were evaluated in float64.
    """

    radius: Float[np.ndarray, " n"]
    pair: Int[np.ndarray, "n 2"]
    evaluated: Int[np.ndarray, " n"]
    proved: Int[np.ndarray, " n"]


class _Pairs(NamedTuple):
    """Pairs to be searched: row of the point, own and rival prototype, and where to begin."""

    row: Int[Array, " Q"]
    i: Int[Array, " Q"]
    j: Int[Array, " Q"]
    floor: Float[Array, " Q"]
    target: Float[Array, " Q"]


@jax.jit
def _evaluate(
    z: Float[Array, "B d"], pairs: _Pairs, count: Int[Array, ""], device: Device
) -> Float[Array, "2 Q"]:
    """The best multiplier of the first `count` pairs, and a rigorous lower bound of F there.

    One pair after the other: its arrays stay in a core's cache, and it takes the steps it needs.
    """
    domain = device.domain
    eps = float(jnp.finfo(z.dtype).eps)
    largest = max(size for _, size in domain.blocks)
    relative = sum_error(largest + domain.groups + 16)
    radii = jnp.sqrt(jnp.sum(jnp.square(domain.spread(domain.outer))))

    def search(k: Array, found: Array) -> Array:
        pair = _Pairs(*(column[k] for column in pairs))
        at, v = z[pair.row], device.prototypes[pair.j] - device.prototypes[pair.i]
        square = jnp.sum(jnp.stack([jnp.sum(jnp.sum(p * p, -1)) for p in domain.split(at)]))
        beta = 2 * (device.half[pair.j] - device.half[pair.i])
        length = device.apart[pair.i, pair.j]
        halves = device.half[pair.j] + device.half[pair.i]

        def below(multiplier: Array) -> Dual:
            f = dual(at, v, square, beta, multiplier, domain)
            # Of the sums; of z + lambda v, in which the terms are Lipschitz; and of beta.
            error = relative * f.size
            error += 4.1 * eps * radii * (jnp.sqrt(f.size) + multiplier * length)
            error += 4 * eps * multiplier * halves + 1e-15 * radii
            return f._replace(value=f.value - error)

        start = jnp.where(pair.floor > 0, START * pair.floor / length, 0)
        best = ascend(below, start, target=pair.target, tolerance=TOLERANCE, steps=STEPS)
        return found.at[:, k].set(jnp.stack([best.multiplier, best.value]))

    return jax.lax.fori_loop(0, count, search, jnp.zeros((2, len(pairs.row)), z.dtype))


def lower_bounds(
    prepared: Prepared,
    z: Float[np.ndarray, "n d"],
    labels: Int[np.ndarray, " n"],
    found: Scores,
    *,
    spheres: bool = True,
    progress: Callable[[int], object] = lambda _: None,
) -> Found:
    """The bound of Lemma 2.9 on the product of spheres, or on all of R^D.

    Args:
        prepared: the classifier.
        z: n embedded images, float32 and finite.
        labels: their classes.
        found: their `scores`.
        spheres: whether pairs are bounded on the spheres (Prop. 3.1, corrected), else by the
            half-space alone (eq. 13).
        progress: called with numbers of points that are finished.

    Returns:
        The bounds.
    """
    n, k = found.lower.shape
    result = Found(np.zeros(n), np.full((n, 2), -1), np.zeros(n, int), np.zeros(n, int))
    most = max(1, min(ROWS, TABLE // (prepared.members.shape[1] * k)))
    size = min(1 << (most.bit_length() - 1), 1 << max(0, n - 1).bit_length())
    for part in blocks(n, size):
        count = part.stop - part.start
        block = z[part] if count == size else padded(z[part], size)
        search = _Search(prepared, block, found, labels, part, spheres)
        search.run()
        for whole, some in zip(result, search.result(), strict=True):
            whole[part] = some[:count]
        progress(count)
    return result


class _Search:
    """Best-first search for a block of points.

    Every rival j of a point has a key, a proved lower bound of its radius that only rises. The
    rival of the smallest key is looked at more and more closely: with one own prototype after the
    other on the device, then in float64; until the smallest key is as close as it gets.
    """

    def __init__(
        self,
        prepared: Prepared,
        z: Float[np.ndarray, "B d"],
        found: Scores,
        labels: Int[np.ndarray, " n"],
        part: slice,
        spheres: bool,
    ) -> None:
        self.prepared, self.z, self.spheres = prepared, z, spheres
        self.count, size = part.stop - part.start, len(z)
        lower, upper = (padded(v[part], size) for v in found)
        label = padded(np.asarray(labels[part]), size)
        self.lower, self.upper, self.label = lower, upper, label
        self.tries = min(TRIES, prepared.members.shape[1])
        self.floor = np.asarray(floors(lower, upper, label, prepared.device))
        self.device_z = jnp.asarray(z) if spheres else None
        self.key = self.floor.astype(np.float64)
        self.own = np.full(self.key.shape, -1)
        # How many own prototypes were tried on the device; a half-space needs none.
        self.tried = np.full(self.key.shape, 0 if spheres else self.tries)
        self.multiplier = np.zeros(self.key.shape, np.float32)
        self.value = np.full(self.key.shape, -np.inf)
        self.settled = ~np.isfinite(self.key)
        self.evaluated, self.proved = np.zeros((2, size), int)

    def run(self) -> None:
        rows, breadth = np.arange(self.count), 1
        while len(rows):
            leader = np.argmin(self.key[rows], axis=1)
            going = ~self.settled[rows, leader]
            rows, leader = rows[going], leader[going]
            # A rival whose half-space bound is not positive is as good as tied: float64 will tell.
            rough = (self.tried[rows, leader] < self.tries) & (self.floor[rows, leader] > 0)
            if rough.any():
                self._search(*self._lowest(rows[rough], breadth))
                breadth = min(2 * breadth, 8)
            self._prove(rows[~rough], leader[~rough])

    def result(self) -> Found:
        rows = np.arange(len(self.key))
        j = np.argmin(self.key, axis=1)
        radius = self.key[rows, j]
        pair = np.stack([self.own[rows, j], j], axis=1)
        pair[np.isinf(radius)] = -1
        return Found(np.maximum(radius, 0.0), pair, self.evaluated, self.proved)

    def _lowest(self, rows: Rows, breadth: int) -> tuple[Rows, Rows]:
        """Of each row the few rivals of the smallest keys that may be the minimum."""
        key, tried = self.key[rows], self.tried[rows]
        ceiling = np.min(np.where(tried > 0, key, np.inf), axis=1, keepdims=True)
        # A rival that was looked at is looked at again only if it leads.
        open_ = np.where(tried > 0, (key == ceiling) & (tried < self.tries), key <= ceiling)
        open_ = np.where(open_, key, np.inf)
        breadth = min(breadth, key.shape[1] - 1)
        chosen = np.argpartition(open_, breadth - 1, axis=1)[:, :breadth]
        index, place = np.nonzero(np.take_along_axis(open_, chosen, axis=1) < np.inf)
        return rows[index], chosen[index, place]

    def _ranked(
        self, row: Rows, j: Rows, rank: Int[np.ndarray, " P"]
    ) -> tuple[Rows, Float[np.ndarray, " P"]]:
        """The own prototype of that rank by the half-space bound, and that bound, for each pair."""
        own = self.prepared.members[self.label[row]]
        need = self.lower[row[:, None], own] - self.upper[row, j][:, None]
        bound = need / self.prepared.apart[own, j[:, None]]
        # Members that repeat the first one to fill their class up come last.
        bound[:, 1:][own[:, 1:] == own[:, :1]] = -np.inf
        place = np.argsort(-bound, axis=1)[np.arange(len(row)), rank]
        at = np.arange(len(row)), place
        return own[at], np.maximum(bound[at], np.float32(0))

    def _search(self, row: Rows, j: Rows) -> None:
        """Try one more own prototype for each pair, on the device."""
        i, floor = self._ranked(row, j, self.tried[row, j])
        # Nothing is gained by more than the least key of other rivals that were looked at.
        others = np.where(self.tried[row] > 0, self.key[row], np.inf)
        others[np.arange(len(row)), j] = np.inf
        target = np.min(others, axis=1) ** 2
        assert self.device_z is not None
        multiplier, value = np.zeros((2, len(row)), np.float32)
        self.own[row, j] = np.where(self.own[row, j] < 0, i, self.own[row, j])
        for part, index in queued(np.arange(len(row))):
            (at,) = index
            limits = floor[at], target[at].astype(np.float32)
            pairs = _Pairs(*map(jnp.asarray, (row[at], i[at], j[at], *limits)))
            found = _evaluate(self.device_z, pairs, len(part), self.prepared.device)
            multiplier[part], value[part] = np.asarray(found)[:, : len(part)]
        better = value > self.value[row, j]
        at = row[better], j[better]
        self.value[at], self.multiplier[at] = value[better], multiplier[better]
        self.own[at] = i[better]
        bound = rounding.sqrt(exact(np.fmax(value, 0.0))).lower
        bound[value > self.prepared.largest * 2.1] = np.inf  # farther than any point is
        self.key[row, j] = np.fmax(self.key[row, j], bound)
        self.settled[row, j] |= np.isinf(self.key[row, j])
        self.tried[row, j] += 1
        np.add.at(self.evaluated, row, 1)

    def _prove(self, row: Rows, j: Rows) -> None:
        """Evaluate the bounds of pairs in float64."""
        if not len(row):
            return
        new = self.own[row, j] < 0
        self.own[row[new], j[new]] = self._ranked(row[new], j[new], np.zeros(new.sum(), int))[0]
        steep = self.multiplier[row, j] > 0
        for some, proof in ((steep, self._sphere_proof), (~steep, self._plane_proof)):
            at = row[some], j[some]
            if len(at[0]):
                self.key[at] = np.fmax(self.key[at], proof(*at))
        self.settled[row, j] = True
        np.add.at(self.proved, row, 1)

    def _sphere_proof(self, row: Rows, j: Rows) -> Float[np.ndarray, " P"]:
        prepared, domain = self.prepared, self.prepared.domain
        i, multiplier = self.own[row, j], self.multiplier[row, j].astype(np.float64)
        sums: list[Interval] = []
        for part in blocks(len(row), PAIRS):
            z = self.z[row[part]].astype(np.float64)
            ahead = prepared.prototypes[j[part]].astype(np.float64)
            ahead -= prepared.prototypes[i[part]]
            ahead *= multiplier[part, None]
            ahead += z
            np.maximum(ahead, 0.0, out=ahead)
            sums.append(group_squares(np.stack([z, ahead]), domain))
        lower, upper = (
            np.concatenate([getattr(s, e) for s in sums], 1) for e in ("lower", "upper")
        )
        squares, ahead = (Interval(lower[k], upper[k]) for k in (0, 1))
        normal = up(prepared.lengths[i] + prepared.lengths[j])
        beta = prepared.squares[j] - prepared.squares[i]
        value = dual_bound(ahead, squares, normal, beta, multiplier, domain)
        # No point of the domain is farther: all coordinates are at least 0.
        farthest = (total(squares) + prepared.largest).upper
        radius = rounding.sqrt(exact(np.maximum(value, 0.0))).lower
        return np.where(value > farthest, np.inf, radius)

    def _plane_proof(self, row: Rows, j: Rows) -> Float[np.ndarray, " P"]:
        i = self.own[row, j]
        radius = np.empty(len(row))
        for part in blocks(len(row), PAIRS):
            pair = (self.prepared.prototypes[k[part]].astype(np.float64) for k in (i, j))
            radius[part] = plane_bound(self.z[row[part]].astype(np.float64), *pair)
        return radius


def plane_bound(
    z: Float[np.ndarray, "n d"], w_i: Float[np.ndarray, "n d"], w_j: Float[np.ndarray, "n d"]
) -> Float[np.ndarray, " n"]:
    """Lower bounds of the distance from the half-space of w_j, at least 0, by a-priori errors."""
    v, d = w_j - w_i, z.shape[1]
    size = np.einsum("nd,nd->n", v, v) * (1 + sum_error(d + 8, np.float64)) + d * 2.0**-1000
    middle = (w_i - z) + (w_j - z)
    slack = sum_error(d + 8, np.float64) * np.einsum("nd,nd->n", np.abs(v), np.abs(middle))
    # What cancels in a sum of two differences is not in its terms.
    slack += 2.0**-50 * np.einsum("nd,nd->n", np.abs(v), np.abs(z) + np.abs(w_i) + np.abs(w_j))
    need = down(np.einsum("nd,nd->n", v, middle) - up(slack * (1 + 1e-9) + d * 2.0**-1000)) / 2
    return np.where(need > 0, down(need / up(np.sqrt(up(size)))), 0.0)
