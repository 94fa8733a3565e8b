"""The nearest-prototype classifier, a pytree."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import jax
from jaxtyping import Array, Float, Int

Distance = Callable[[Float[Array, "n d"], Float[Array, "K d"]], Float[Array, "n K"]]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PrototypeClassifier:
    r"""Assigns an input to the class of its nearest prototype (paper, section 2).

    Attributes:
        prototypes: K prototypes of d coordinates.
        labels: the class of each prototype, an index into `classes`.
        metric: a linear map before the l2 distance, d(x, w) = |A (x - w)|_2 with A of shape
            (m, d), or None for the identity.
        distance: the norm, 1, 2 or inf (`float("inf")`), or a callable semi-metric.
        classes: the classes' names, in order.
    """

    prototypes: Float[Array, "K d"]
    labels: Int[Array, " K"]
    metric: Float[Array, "m d"] | None = None
    distance: float | Distance = field(default=2, metadata={"static": True})
    classes: tuple[Hashable, ...] = field(default=(), metadata={"static": True})
