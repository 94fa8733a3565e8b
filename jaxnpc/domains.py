"""Where inputs live: the set X over which adversarial points are sought."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Unbounded:
    """All of R^d."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Box:
    """The box of all x with lower <= x <= upper in every coordinate.

    Attributes:
        lower: the least admissible values: a scalar or one a coordinate.
        upper: the greatest admissible values, likewise.
    """

    lower: Float[Array, "*d"] | float = 0.0
    upper: Float[Array, "*d"] | float = 1.0

    def room(self, z: Float[Array, "*n d"], sign: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """How far each coordinate of z can move in the direction of `sign` (+1 or -1)."""
        return jnp.where(sign > 0, self.upper - z, z - self.lower)


Domain = Unbounded | Box
