r"""What own prototypes prove against every rival at once, where the distance is l-infinity.

However the rival lies, a pair flips no sooner than some admissible point is as far from $w_i$ as
$w_j$ can have come:

$$\rho^q_\infty(z)_{i,j} \ge g_i(|z - w_j|_\infty), \qquad
  g_i(D) = \min \Bigl\{e : \max_{|x - z|_\infty \le e,\ x \in X} |x - w_i|_\infty \ge D - e\Bigr\}$$

and $g_i(D') \ge g_i(D) + (D' - D) / 2$ for $D' \ge D$: the margin's share and, where walls keep x
from getting away, much more. One look at the closest rival left bounds all others, so that of tens
of thousands that are about equally far a handful need their radius computed.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxnpc import rounding
from jaxnpc.batching import queued
from jaxnpc.domains import Domain
from jaxnpc.pairwise.linf import reach
from jaxnpc.pairwise.proofs import linf_reach
from jaxnpc.rivals import Rival, Rivals, Space

OWN = 16
"""How many of the closest own prototypes are tried."""


@dataclass(frozen=True)
class Lift:
    """The means to raise the floors of a block of points.

    Attributes:
        z: the points.
        images: all prototypes.
        own: for each point the indices of its closest own prototypes.
        position: their positions among the class's members.
        low: lower bounds of the distances to the rivals left; infinite for all else.
        keeper: for each point the index of the own prototype that raised its floors last, or -1.
        domain: where adversarial points are sought.
        error: by how much a coordinate of a point, and of a room to a wall, may be off.
    """

    z: Float[Array, "B d"]
    images: Float[Array, "K d"]
    own: Int[np.ndarray, "B c"]
    position: Int[np.ndarray, "B c"]
    low: Float[np.ndarray, "B K"]
    keeper: Int[np.ndarray, " B"]
    domain: Domain
    error: float

    @classmethod
    def prepare(
        cls,
        space: Space,
        rival: Rival,
        rivals: Rivals,
        z: Float[Array, "B d"],
        domain: Domain,
        every_own: bool,
        error: float,
    ) -> "Lift":
        """For the points of one class; with the nearest own prototype alone, or some."""
        some = min(OWN, rivals.high.shape[1]) if every_own else 1
        position = np.asarray(jax.lax.top_k(-rivals.high, some)[1])
        low = np.where(np.asarray(rival.foreign), np.asarray(rivals.low), np.inf)
        return cls(
            z,
            space.device_images,
            np.asarray(rival.own)[position],
            position,
            np.where(np.isnan(low), np.inf, low),
            np.full(len(low), -1),
            domain,
            error,
        )

    def drop(self, row: Int[np.ndarray, " P"], j: Int[np.ndarray, " P"]) -> None:
        """Of these rivals the radius itself will be known."""
        self.low[row, j] = np.inf

    def __call__(
        self,
        rows: Int[np.ndarray, " R"],
        floor: Float[np.ndarray, "B K"],
        key: Float[np.ndarray, "B K"],
        own: Int[np.ndarray, "B K"],
    ) -> None:
        """Raise the floors and keys of some points, in place, and say which own prototype did it.

        Floors are lowered by all that rounding may have added; keys are not, lest rivals that tie
        with the one that leads be taken for closer.
        """
        nearest = np.full(len(self.low), np.inf, self.low.dtype)
        nearest[rows] = self.low[rows].min(axis=1)
        found = _reach(self.z, self.images, self.own, nearest, self.domain, self.error)
        bound, slack, best = (np.asarray(v)[rows] for v in found)
        shrink = 1 - 4 * np.finfo(floor.dtype).eps
        for row, d, least, wide, i in zip(rows, nearest[rows], bound, slack, best, strict=True):
            if not least > 0:
                continue
            gain = (least + (self.low[row] - d) / 2) * shrink
            left = gain < np.inf
            better = left & (gain > floor[row])
            np.copyto(floor[row], gain, where=better)
            np.copyto(own[row], self.position[row, i], where=better)
            np.maximum(key[row], gain + wide, out=key[row], where=left)
            self.keeper[row] = self.own[row, i]

    def prove(
        self,
        points: Float[np.ndarray, "n d"],
        prototypes: Float[np.ndarray, "K d"],
        row: Int[np.ndarray, " P"],
        j: Int[np.ndarray, " P"],
    ) -> Float[np.ndarray, " n"]:
        """What the keepers of n points prove in float64 against given rivals: 0 if nothing.

        Args:
            points: the first n of the block, as they were given.
            prototypes: all prototypes, likewise.
            row: the points that have rivals left.
            j: those rivals.

        Returns:
            A lower bound of the radii of all rivals given of a point.
        """
        distance = np.full(len(points), np.inf)
        for part, (rows, js) in queued(row, j):
            # Any coordinate bounds the distance from below: take the widest.
            k = np.asarray(_widest(self.z, self.images, rows, js))[: len(part)]
            at, w = row[part], prototypes[j[part], k]
            gap = abs(rounding.difference(points[at, k], w)).lower
            np.minimum.at(distance, at, gap)
        bound = np.zeros(len(points))
        some = np.flatnonzero((self.keeper[: len(points)] >= 0) & np.isfinite(distance))
        z, w = (np.asarray(v, np.float64) for v in (points[some], prototypes[self.keeper[some]]))
        bound[some] = np.fmax(linf_reach(z, w, distance[some], self.domain), 0.0)
        return bound


@jax.jit
def _reach(
    z: Float[Array, "B d"],
    images: Float[Array, "K d"],
    own: Int[Array, "B c"],
    distance: Float[Array, " B"],
    domain: Domain,
    error: float,
) -> tuple[Float[Array, " B"], Float[Array, " B"], Int[Array, " B"]]:
    """The best of each point's bounds, less its rounding; by how much; and which it is."""
    eps = float(jnp.finfo(z.dtype).eps)
    w = images[own]
    each = jax.vmap(jax.vmap(partial(reach, domain=domain), (None, 0, None)))(z, w, distance)
    each = jnp.where(jnp.isfinite(each), each, 0)
    best = jnp.argmax(each, axis=1)
    # Differences of numbers of this size are off by a few of their last bits.
    size = distance + jnp.max(jnp.abs(z[:, None] - w), axis=(1, 2))
    slack = 8 * eps * size + 2 * error
    bound = jnp.take_along_axis(each, best[:, None], axis=1)[:, 0] - slack
    return jnp.where((bound > 0) & (bound < jnp.inf), bound, 0), 2 * slack, best


@jax.jit
def _widest(
    z: Float[Array, "B d"], images: Float[Array, "K d"], row: Int[Array, " P"], j: Int[Array, " P"]
) -> Int[Array, " P"]:
    return jnp.argmax(jnp.abs(z[row] - images[j]), axis=1)
