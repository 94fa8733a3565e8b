r"""Rivals of an l2 classifier: half-spaces, with or without a linear metric.

With $U = W A^T A$ the rival j beats the own prototype i at $z + \delta$ where

$$\langle v_{ij}, \delta \rangle \ge c_{ij}, \qquad v_{ij} = U_j - U_i, \qquad
  c_{ij} = \tfrac12 \langle U_i - U_j,\ (z - w_i) + (z - w_j) \rangle$$

Differences first: nothing cancels where data lie far from the origin. The device sees everything
centred and scaled, in float32, and chooses; the host works in float64 and proves.
"""

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxnpc.batching import blocks, float64_on_cpu, padded
from jaxnpc.exact.halfspace import CACHE, ROUNDING, prove
from jaxnpc.exact.linear import nearest_linear
from jaxnpc.exact.problem import Pairs, Solution, Violation
from jaxnpc.exact.quadratic import nearest_l2
from jaxnpc.exact.screening import Device, single_multipliers, unbounded_bounds, up32

# Items a jitted call, and how many of them advance together: few enough to stay in cache, and not
# to wait long for the slowest.
SINGLES, SOLVES, LEADS, TOGETHER = 256, 32, 16, 8
# Prototypes whose float64 copies are made at a time.
BLOCK = 4096
# The relative tolerance of the solvers.
SOLVED = 1e-11


class Scores(NamedTuple):
    """What compares the prototypes of one class, in float64 on the CPU.

    Attributes:
        members: which prototypes they are.
        normals: their U', then zeros up to a power of two, so that few shapes occur.
        offsets: their b, then infinity.
    """

    members: Int[np.ndarray, " k"]
    normals: Float[Array, "p d"]
    offsets: Float[Array, " p"]


@dataclass(frozen=True)
class HalfSpaces:
    """The prototypes of an l2 classifier and the norm q of the perturbations.

    Attributes:
        prototypes: K prototypes W in float64.
        labels: their classes.
        q: 1, 2 or infinity.
        metric: A in float64, or None for the identity.
    """

    prototypes: Float[np.ndarray, "K d"]
    labels: Int[np.ndarray, " K"]
    q: float
    metric: Float[np.ndarray, "m d"] | None = None

    @cached_property
    def centre(self) -> Float[np.ndarray, " d"]:
        """The mean of the prototypes."""
        return self.prototypes.mean(axis=0)

    @cached_property
    def extent(self) -> float:
        """The greatest absolute coordinate of a prototype."""
        return float(max(self.prototypes.max(), -self.prototypes.min()))

    @cached_property
    def gain(self) -> float:
        """A bound of the spectral norm of A^T A."""
        return 1.0 if self.metric is None else float((self.metric**2).sum()) or 1.0

    @cached_property
    def normals(self) -> Float[np.ndarray, "K d"]:
        """U, up to a common shift, which no difference sees."""
        if self.metric is None:
            return self.prototypes
        return ((self.prototypes - self.centre) @ self.metric.T) @ self.metric

    @cached_property
    def normal_errors(self) -> Float[np.ndarray, " K"]:
        """Bounds of the l2 error of each row of U, from rounding in the products."""
        if self.metric is None:
            return np.zeros(len(self.prototypes))
        terms = sum(self.metric.shape) + 8
        size = np.linalg.norm(self.prototypes, axis=1) + np.linalg.norm(self.centre)
        return terms * ROUNDING * self.gain * size

    @cached_property
    def scores(self) -> dict[int, Scores]:
        """Of each class: its prototypes, and U' and b such that <U', x - centre> - b compares."""
        scores: dict[int, Scores] = {}
        for c in np.unique(self.labels):
            members = np.flatnonzero(self.labels == c)
            count = 1 << (len(members) - 1).bit_length()
            u = padded(self._score_normals(members), count)
            b = np.concatenate([self.offsets[members], np.full(count - len(members), np.inf)])
            with float64_on_cpu():
                scores[int(c)] = Scores(members, jnp.asarray(u), jnp.asarray(b))
        return scores

    @cached_property
    def offsets(self) -> Float[np.ndarray, " K"]:
        """The b of every prototype."""
        b = np.empty(len(self.prototypes))
        for part in blocks(len(b), BLOCK):
            k = np.arange(part.start, part.stop)
            b[part] = np.einsum(
                "kd,kd->k", self._score_normals(k), self.prototypes[k] - self.centre
            )
        return b / 2

    def _score_normals(self, k: Int[np.ndarray, " m"]) -> Float[np.ndarray, "m d"]:
        return self.prototypes[k] - self.centre if self.metric is None else self.normals[k]

    @cached_property
    def device(self) -> Device:
        """What the device holds, in float32."""
        w = self.prototypes - self.centre
        scale = float(max(w.max(), -w.min())) or 1.0
        w /= scale
        u = w if self.metric is None else self.normals / (scale * self.gain)
        b = self.offsets / (scale**2 * self.gain)
        device_w = jnp.asarray(w.astype(np.float32))
        return Device(
            scale=scale,
            u=device_w if self.metric is None else jnp.asarray(u.astype(np.float32)),
            w=device_w,
            b=jnp.asarray(b.astype(np.float32)),
            labels=jnp.asarray(self.labels),
            size=jnp.asarray(up32(np.sqrt(np.einsum("kd,kd->k", u, u)))),
            b_size=jnp.asarray(up32(np.abs(b))),
            w_size=jnp.asarray(up32(np.sqrt(np.einsum("kd,kd->k", w, w)))),
        )

    def screen(
        self, points: Float[np.ndarray, "n d"], labels: Int[np.ndarray, " n"]
    ) -> tuple[Float[np.ndarray, "n K"], Int[np.ndarray, " n"]]:
        """As `Problem.screen`: c / |v| on R^d, in float32 less its rounding."""
        device, d = self.device, points.shape[1]
        z = (points - self.centre) / device.scale
        # What centring and scaling in float64, and the products with the metric, may be wrong by.
        offset = max(np.abs(points).max(initial=0), self.extent)
        shift = 4 * ROUNDING * math.sqrt(d) * offset / device.scale
        product = 0.0 if self.metric is None else (sum(self.metric.shape) + 8) * ROUNDING
        bound, closest = unbounded_bounds(
            device,
            jnp.asarray(z.astype(np.float32)),
            jnp.asarray(up32(np.linalg.norm(z, axis=1))),
            jnp.asarray(labels),
            jnp.float32(shift),
            jnp.float32(product),
            self.q,
        )
        return np.asarray(bound, np.float64) * (device.scale * (1 - ROUNDING)), np.array(closest)

    def single(self, pairs: Pairs, ceiling: Float[np.ndarray, " m"]) -> Float[np.ndarray, " m"]:
        """As `Problem.single`."""
        del ceiling
        t = self._multipliers(pairs)
        one = np.ones((len(pairs), 1))
        return self._prove(pairs, pairs.own[:, None], one, t)

    def solve(self, pairs: Pairs, rows: Int[np.ndarray, "m k"]) -> Solution:
        """As `Problem.solve`, in float64 on the CPU, then proved."""
        dual, step = np.zeros(rows.shape), np.zeros((len(pairs), self.prototypes.shape[1]))
        # All calls are under way before the first result is waited for.
        found = [
            (part, self._solve_part(pairs.take(part), rows[part]))
            for part in blocks(len(pairs), SOLVES)
        ]
        for part, results in found:
            dual[part], step[part] = (np.asarray(x)[: part.stop - part.start] for x in results)
        # Where nothing is admissible a step may leave the domain.
        step = np.clip(step, *pairs.room)
        # At an optimum of the dual the kinks of q = 1 lie at 1; of q = 2 the slope is 1.
        t = np.ones(len(pairs)) if self.q != math.inf else np.abs(step).max(axis=1)
        bound = self._prove(pairs, rows, np.maximum(dual, 0), t)
        return Solution(bound, step, dual)

    def violation(self, pairs: Pairs, step: Float[np.ndarray, "m d"]) -> Violation:
        """As `Problem.violation`: one matrix product for each class."""
        x = (pairs.z - self.centre) + step
        u, b = self._score_normals(pairs.rival), self.offsets[pairs.rival]
        theirs = np.einsum("md,md->m", x, u) - b
        lead, own = np.empty(len(pairs)), np.empty(len(pairs), int)
        labels = pairs.batch.labels[pairs.point]
        found: list[tuple[Int[np.ndarray, " b"], Int[np.ndarray, " k"], Any]] = []
        with float64_on_cpu():
            for c in np.unique(labels):
                score, mine = self.scores[int(c)], np.flatnonzero(labels == c)
                for part in blocks(len(mine), LEADS):
                    at = mine[part]
                    best = _leader(padded(x[at], LEADS), score.normals, score.offsets)
                    found.append((at, score.members, best))
        for at, members, (best, value) in found:
            own[at] = members[np.asarray(best)[: len(at)]]
            lead[at] = np.asarray(value)[: len(at)]
        # The solvers meet their rows to a relative tolerance, the score to its rounding.
        solved = SOLVED * np.linalg.norm(step, axis=1) * self.spread
        return Violation(lead - theirs, own, self._noise(x, pairs.rival) + solved)

    @cached_property
    def spread(self) -> float:
        """The greatest l2 norm of U'."""
        return float(self.device.size.max()) * self.device.scale * self.gain

    def _noise(
        self, x: Float[np.ndarray, "m d"], rival: Int[np.ndarray, " m"]
    ) -> Float[np.ndarray, " m"]:
        u = self._score_normals(rival)
        size = np.linalg.norm(x, axis=1) * np.linalg.norm(u, axis=1) + np.abs(self.offsets[rival])
        return 32 * math.sqrt(x.shape[1]) * ROUNDING * size

    def _multipliers(self, pairs: Pairs) -> Float[np.ndarray, " m"]:
        batch, scale = pairs.batch, self.device.scale
        size = 1 << (len(batch.points) - 1).bit_length()
        z, low, high = (
            jnp.asarray(padded((x / scale).astype(np.float32), size))
            for x in (batch.points - self.centre, batch.lower, batch.upper)
        )
        columns = pairs.point, pairs.own, pairs.rival
        found = [
            single_multipliers(
                self.device,
                (z, low, high),
                np.stack([padded(x[part].astype(np.int32), SINGLES) for x in columns]),
                self.q,
            )
            for part in blocks(len(pairs), SINGLES)
        ]
        t = np.concatenate(found)[: len(pairs)].astype(np.float64)
        units = {1: scale * self.gain, 2: 1 / self.gain, math.inf: scale}
        return t * units[self.q]

    def _solve_part(self, pairs: Pairs, rows: Int[np.ndarray, "m k"]) -> tuple[Array, Array]:
        v, c = self._rows(pairs, rows)
        c = np.concatenate([c, np.full((SOLVES - len(c), c.shape[1]), -1.0)])
        v, low, high = (padded(x, SOLVES) for x in (v, *pairs.room))
        with float64_on_cpu():
            return _solve_rows(v, c, low, high, self.q)

    def _rows(
        self, pairs: Pairs, rows: Int[np.ndarray, "m k"]
    ) -> tuple[Float[np.ndarray, "m k d"], Float[np.ndarray, "m k"]]:
        """V and c; of rows that are absent 0 and -1."""
        v = self.normals[pairs.rival][:, None] - self.normals[rows]
        z, w = pairs.z, self.prototypes
        middle = (z - w[pairs.rival])[:, None] + (z[:, None] - w[rows])
        c = -np.einsum("mkd,mkd->mk", v, middle) / 2
        absent = rows < 0
        v[absent], c[absent] = 0, -1
        return v, c

    def _prove(
        self,
        pairs: Pairs,
        rows: Int[np.ndarray, "m k"],
        dual: Float[np.ndarray, "m k"],
        t: Float[np.ndarray, " m"],
    ) -> Float[np.ndarray, " m"]:
        bound = np.empty(len(pairs))
        for part in blocks(len(pairs), max(1, CACHE // (8 * self.prototypes.shape[1]))):
            some = pairs.take(part)
            v, error, c = self._combine(some.z, some.rival, rows[part], dual[part])
            bound[part] = prove(v, error, c, *some.room, t[part], self.q)
        return bound

    def _combine(
        self,
        z: Float[np.ndarray, "m d"],
        rival: Int[np.ndarray, " m"],
        rows: Int[np.ndarray, "m k"],
        dual: Float[np.ndarray, "m k"],
    ) -> tuple[Float[np.ndarray, "m d"], Float[np.ndarray, "m d"], Float[np.ndarray, " m"]]:
        """The combination of rows: its normal, the error of that, and a bound of its offset."""
        (m, d), k = z.shape, rows.shape[1]
        v, size, c = np.zeros((m, d)), np.zeros((m, d)), np.zeros(m)
        spread = np.zeros(m)
        to_rival, u_rival = z - self.prototypes[rival], self.normals[rival]
        far = np.linalg.norm(to_rival, axis=1)
        for r in range(k):
            weight = dual[:, r]
            used = np.flatnonzero(weight > 0)
            if not len(used):
                continue
            full = slice(None) if len(used) == m else used
            i, weight = rows[full, r], weight[full]
            normal = u_rival[full] - self.normals[i]
            to_own = z[full] - self.prototypes[i]
            middle = to_own + to_rival[full]
            offset = np.einsum("md,md->m", normal, middle)
            reach = np.linalg.norm(to_own, axis=1) + far[full]
            wrong = self.normal_errors[i] + self.normal_errors[rival[full]]
            wrong_offset = (d + 8) * ROUNDING * np.linalg.norm(normal, axis=1) + wrong
            c[full] += weight / 2 * (-offset - 1.01 * wrong_offset * reach)
            spread[full] += weight / 2 * (np.abs(offset) + wrong_offset * reach)
            normal *= weight[:, None]
            v[full] += normal
            size[full] += np.abs(normal) + (weight * wrong)[:, None] / ROUNDING
        c -= (k + 4) * ROUNDING * spread
        return v, (k + 2) * ROUNDING * size, c


@partial(jax.jit, static_argnames="q")
def _solve_rows(
    v: Float[Array, "m k d"],
    c: Float[Array, "m k"],
    low: Float[Array, "m d"],
    high: Float[Array, "m d"],
    q: float,
) -> tuple[Float[Array, "m k"], Float[Array, "m d"]]:
    solver = nearest_l2 if q == 2 else partial(nearest_linear, maximum=q == math.inf)
    return jax.lax.map(lambda item: solver(*item), (v, c, low, high), batch_size=TOGETHER)


@jax.jit
def _leader(
    x: Float[Array, "b d"], normals: Float[Array, "p d"], offsets: Float[Array, " p"]
) -> tuple[Int[Array, " b"], Float[Array, " b"]]:
    """The prototype closest to each point, by its position, and its score."""
    score = jnp.matmul(x, normals.T, precision=jax.lax.Precision.HIGHEST) - offsets
    return jnp.argmax(score, axis=1), jnp.max(score, axis=1)
