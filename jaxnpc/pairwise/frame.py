"""One point between two prototypes, seen so that every coordinate moves upwards."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxnpc.domains import Domain

Vector = Float[Array, " d"]
Scalar = Float[Array, ""]


class PairRadius(NamedTuple):
    r"""How far z can be moved before $w_j$ is as close as $w_i$.

    Attributes:
        radius: the distance, or a lower bound of it; 0 where $w_j$ is as close already, infinite
            where no admissible point is as close to $w_j$.
        witness: a point at that distance where the two tie; z itself where the radius is 0 or
            infinite. Of a lower bound: an admissible point that does flip the pair, so that its
            distance from z is an upper bound.
    """

    radius: Scalar
    witness: Vector


class Frame(NamedTuple):
    r"""The coordinates of a pair, reflected so that $w_j$ lies above $w_i$ (appendix E).

    Attributes:
        sign: $s = \operatorname{sign}(w_j - w_i)$, +1 where they agree.
        at: $a = s (z - w_i)$: in the frame $w_i$ is at 0, z at a, $w_j$ at D.
        gap: $D = |w_j - w_i|$.
        room: the distance from z to the wall of the domain above it.
    """

    sign: Vector
    at: Vector
    gap: Vector
    room: Vector


def frame(z: Vector, w_i: Vector, w_j: Vector, domain: Domain) -> Frame:
    """The frame of one triple."""
    sign = jnp.where(w_j >= w_i, 1, -1).astype(z.dtype)
    return Frame(sign, sign * (z - w_i), jnp.abs(w_j - w_i), domain.room(z, sign))


def moved(z: Vector, sign: Vector, step: Vector, radius: Scalar, domain: Domain) -> Vector:
    """The witness: z moved by `step` along the frame; z itself where nothing is to be shown."""
    shown = jnp.isfinite(radius) & (radius > 0)
    return domain.clip(z + jnp.where(shown, sign * step, 0))
