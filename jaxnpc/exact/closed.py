r"""The l1 classifier under linf perturbations: the nearest rival in closed form.

Whatever the own prototype, the best a perturbation of size e can do for the rival j is to move
every coordinate as far towards $w_j$ as e and the domain allow (paper, eq. 19):

$$x_e = z + \mathrm{clip}(w_j - z, \max(-e, l), \min(e, u)), \qquad
  r_j = \max_{i \in I_y} \min \{e : f_i(e) \le 0\}, \qquad
  f_i(e) = |x_e - w_j|_1 - |x_e - w_i|_1$$

f never increases. Where it is positive at e, so is the margin in the whole ball of radius e.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxnpc.batching import blocks, float64_on_cpu, padded
from jaxnpc.distances import pairwise, rounding
from jaxnpc.exact.halfspace import CACHE, ROUNDING
from jaxnpc.exact.problem import Pairs, Solution, Violation

BISECTIONS = 64
ITEMS = 64
# How far below a root to look for a radius that can be proved, relative to it.
RETREATS = (0.0, *(2.0**k for k in range(-50, 0, 3)), 1.0)


@dataclass(frozen=True)
class Clipped:
    """The prototypes of an l1 classifier.

    Attributes:
        prototypes: K prototypes in float64.
        labels: their classes.
    """

    prototypes: Float[np.ndarray, "K d"]
    labels: Int[np.ndarray, " K"]

    @cached_property
    def members(self) -> dict[int, Int[np.ndarray, " k"]]:
        """The prototypes of each class."""
        return {int(c): np.flatnonzero(self.labels == c) for c in np.unique(self.labels)}

    @cached_property
    def device(self) -> tuple[float, Float[Array, "K d"], Int[Array, " K"]]:
        """A scale, the prototypes in units of it in float32, and their classes."""
        scale = float(np.abs(self.prototypes).max()) or 1.0
        w = (self.prototypes / scale).astype(np.float32)
        return scale, jnp.asarray(w), jnp.asarray(self.labels)

    def screen(
        self, points: Float[np.ndarray, "n d"], labels: Int[np.ndarray, " n"]
    ) -> tuple[Float[np.ndarray, "n K"], Int[np.ndarray, " n"]]:
        """As `Problem.screen`: a step e changes an l1 distance by at most d e."""
        scale, w, classes = self.device
        z = points / scale
        wrong = 2.0**-22 * (np.abs(z).sum(axis=1) + points.shape[1])
        bound, closest = _screen(
            w,
            classes,
            jnp.asarray(z.astype(np.float32)),
            jnp.asarray(labels),
            jnp.asarray(wrong.astype(np.float32)),
        )
        return np.asarray(bound, np.float64) * (scale * (1 - ROUNDING)), np.array(closest)

    def single(self, pairs: Pairs, ceiling: Float[np.ndarray, " m"]) -> Float[np.ndarray, " m"]:
        """As `Problem.single`."""
        own = pairs.own
        bound = np.zeros(len(pairs))
        # Most rivals lose at the ceiling: one evaluation tells.
        goal = np.where(np.isfinite(ceiling), ceiling, 0)
        some = np.flatnonzero(goal > 0)
        value, error = self._margin(pairs.take(some), own[some], goal[some])
        safe = some[value > error]
        bound[safe] = goal[safe]
        rest = np.flatnonzero(bound == 0)
        bound[rest] = self.solve(pairs.take(rest), own[rest, None]).bound
        return bound

    def solve(self, pairs: Pairs, rows: Int[np.ndarray, "m k"]) -> Solution:
        """As `Problem.solve`, by bisection: no row depends on another."""
        m, k = rows.shape
        radius, worst = np.zeros(m), np.zeros(m, int)
        for part in blocks(m, ITEMS):
            some, used = pairs.take(part), rows[part] >= 0
            low, high = self._reach(some)
            z, w_j = some.z, self.prototypes[some.rival]
            # An absent row is the rival itself, which never leads.
            w_i = self.prototypes[np.where(used, rows[part], some.rival[:, None])]
            items = [padded(x, ITEMS) for x in (z, w_j, w_i, low, high)]
            with float64_on_cpu():
                found = [np.asarray(x)[: len(some)] for x in _root(*items)]
            radius[part], worst[part] = found
        own = rows[np.arange(m), worst]
        own = np.where(own >= 0, own, rows[:, 0])
        bound = self._prove(pairs, own, radius)
        low, high = self._reach(pairs)
        size = np.where(np.isfinite(radius), radius, 0)[:, None]
        multipliers = np.zeros((m, k))
        multipliers[np.arange(m), worst] = 1
        return Solution(bound, _toward(low, high, size), multipliers)

    def violation(self, pairs: Pairs, step: Float[np.ndarray, "m d"]) -> Violation:
        """As `Problem.violation`."""
        worst, own = np.empty(len(pairs)), np.empty(len(pairs), int)
        x, w_j = pairs.z + step, self.prototypes[pairs.rival]
        theirs = np.abs(x - w_j).sum(axis=1)
        for a, label in enumerate(pairs.batch.labels[pairs.point]):
            members = self.members[int(label)]
            distance = np.abs(x[a] - self.prototypes[members]).sum(axis=1)
            best = distance.argmin()
            worst[a], own[a] = theirs[a] - distance[best], members[best]
        size = np.abs(x).sum(axis=1) + np.abs(w_j).sum(axis=1)
        return Violation(worst, own, 64 * ROUNDING * size)

    def _reach(self, pairs: Pairs) -> tuple[Float[np.ndarray, "m d"], Float[np.ndarray, "m d"]]:
        """How far coordinates go towards the rival, down and up, at most."""
        away, (lower, upper) = self.prototypes[pairs.rival] - pairs.z, pairs.room
        return np.clip(away, lower, 0), np.clip(away, 0, upper)

    def _margin(
        self, pairs: Pairs, own: Int[np.ndarray, " m"], radius: Float[np.ndarray, " m"]
    ) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"]]:
        """f_i at a radius, and a bound of its error."""
        value, error = np.zeros(len(pairs)), np.zeros(len(pairs))
        d = self.prototypes.shape[1]
        for part in blocks(len(pairs), max(1, CACHE // (8 * d))):
            some = pairs.take(part)
            z, w_i, w_j = some.z, self.prototypes[own[part]], self.prototypes[some.rival]
            e = np.minimum(radius[part], 1e300)[:, None]
            low, high = self._reach(some)
            x = z + _toward(low, high, e)
            theirs, ours = np.abs(x - w_j), np.abs(x - w_i)
            value[part] = (theirs - ours).sum(axis=1)
            size = np.abs(z).sum(axis=1) + np.abs(w_i).sum(axis=1) + np.abs(w_j).sum(axis=1)
            total = theirs.sum(axis=1) + ours.sum(axis=1)
            error[part] = (8 * ROUNDING * size + (d + 8) * ROUNDING * total) * 1.01
        return value, error

    def _prove(
        self, pairs: Pairs, own: Int[np.ndarray, " m"], radius: Float[np.ndarray, " m"]
    ) -> Float[np.ndarray, " m"]:
        """The greatest radius, of a few at or below those given, at which the rival loses."""
        bound = np.zeros(len(pairs))
        todo = np.arange(len(pairs))
        for retreat in RETREATS:
            trial = np.where(np.isinf(radius[todo]), np.inf, radius[todo] * (1 - retreat))
            value, error = self._margin(pairs.take(todo), own[todo], trial)
            won = value > error
            bound[todo[won]] = trial[won]
            todo = todo[~won & np.isfinite(radius[todo])]
        return bound


def _toward(
    low: Float[np.ndarray, "m d"], high: Float[np.ndarray, "m d"], e: Float[np.ndarray, "m 1"]
) -> Float[np.ndarray, "m d"]:
    return np.maximum(low, -e) + np.minimum(high, e)


@jax.jit
def _screen(
    w: Float[Array, "K d"],
    classes: Int[Array, " K"],
    z: Float[Array, "n d"],
    labels: Int[Array, " n"],
    wrong: Float[Array, " n"],
) -> tuple[Float[Array, "n K"], Int[Array, " n"]]:
    """(|z - w_j| - |z - w_i|) / 2d: a step e changes an l1 distance by at most d e."""
    d = z.shape[1]
    distance = pairwise(z, w, 1)
    error = (rounding(d + 4) * distance + wrong[:, None]) * 1.01
    own = labels[:, None] == classes
    closest = jnp.argmin(jnp.where(own, distance, jnp.inf), axis=1)
    rows = jnp.arange(len(z))
    lead = (distance - error) - (distance + error)[rows, closest][:, None]
    bound = lead / (2 * d) * (1 - 2.0**-20)
    bound = jnp.where(jnp.isfinite(bound) & (bound > 1e-30), bound, 0)
    return jnp.where(own, jnp.inf, bound), closest


@jax.jit
def _root(
    z: Float[Array, "m d"],
    w_j: Float[Array, "m d"],
    w_i: Float[Array, "m k d"],
    low: Float[Array, "m d"],
    high: Float[Array, "m d"],
) -> tuple[Float[Array, " m"], Int[Array, " m"]]:
    """The least e at which no own prototype leads, infinite where one always does; the last one."""

    def one(item: tuple[Array, Array, Array, Array, Array]) -> tuple[Array, Array]:
        z, w_j, w_i, low, high = item

        def lead(e: Array) -> Array:
            x = z + jnp.maximum(low, -e) + jnp.minimum(high, e)
            return jnp.sum(jnp.abs(x - w_j) - jnp.abs(x - w_i), axis=1)

        def halve(_: int, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
            left, right = bracket
            middle = (left + right) / 2
            leads = jnp.max(lead(middle)) > 0
            return jnp.where(leads, middle, left), jnp.where(leads, right, middle)

        end = jnp.max(jnp.maximum(high, -low))
        left, right = jax.lax.fori_loop(0, BISECTIONS, halve, (jnp.zeros_like(end), end))
        never, now = jnp.max(lead(end)) > 0, jnp.max(lead(jnp.zeros_like(end))) <= 0
        radius = jnp.where(never, math.inf, jnp.where(now, 0, right))
        return radius, jnp.argmax(lead(jnp.where(never, end, left)))

    return jax.lax.map(one, (z, w_j, w_i, low, high), batch_size=8)
