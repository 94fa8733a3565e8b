"""Where inputs live: the set X over which adversarial points are sought."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Unbounded:
    """All of R^d."""

    def room(self, z: Float[Array, "*n d"], sign: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """How far each coordinate of z can move: without end."""
        return jnp.full(jnp.broadcast_shapes(z.shape, sign.shape), jnp.inf, z.dtype)

    def clip(self, x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """The admissible point next to x: x itself."""
        return x

    def contains(self, x: Float[Array, "*n d"]) -> Bool[Array, "*n"]:
        """Whether a point is admissible: it need only be finite."""
        return jnp.all(jnp.isfinite(x), axis=-1)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Box:
    """The box of all x with lower <= x <= upper in every coordinate.

    A bound may be infinite. Nothing is checked here, since the bounds may be traced: public
    functions call [`check`][jaxnpc.domains.check].

    Attributes:
        lower: the least admissible values: a scalar or one a coordinate.
        upper: the greatest admissible values, likewise.

    Example:
        >>> Box(0, 1).contains(jnp.array([[0.0, 1.0], [0.5, 1.5]])).tolist()
        [True, False]
    """

    lower: Float[Array, "*d"] | float = 0.0
    upper: Float[Array, "*d"] | float = 1.0

    def room(self, z: Float[Array, "*n d"], sign: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """How far each coordinate of z can move in the direction of `sign` (+1 or -1)."""
        return jnp.maximum(jnp.where(sign > 0, self.upper - z, z - self.lower), 0)

    def clip(self, x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """The admissible point next to x."""
        return jnp.clip(x, self.lower, self.upper)

    def contains(self, x: Float[Array, "*n d"]) -> Bool[Array, "*n"]:
        """Whether a point is admissible; NaN is not."""
        return jnp.all((x >= self.lower) & (x <= self.upper) & jnp.isfinite(x), axis=-1)


Domain = Unbounded | Box


def check(domain: Any, dimension: int, name: str = "domain") -> Domain:
    """Make sure that a user's domain is one, and fits.

    Args:
        domain: what the user gave.
        dimension: the number d of coordinates of a point.
        name: the argument's name, for the message.

    Returns:
        The domain, its bounds as arrays where they were sequences.

    Raises:
        TypeError: if it is no domain.
        ValueError: if a bound is NaN, has neither one value nor d, or the box is empty.
    """
    if isinstance(domain, Unbounded):
        return domain
    if not isinstance(domain, Box):
        raise TypeError(f"{name} is {domain!r}: give Unbounded() or Box(lower, upper)")
    bounds = {"lower": np.asarray(domain.lower), "upper": np.asarray(domain.upper)}
    for side, bound in bounds.items():
        if bound.shape not in {(), (1,), (dimension,)}:
            raise ValueError(
                f"{name}.{side} has shape {bound.shape}: give one number or one for each of the "
                f"{dimension} coordinates"
            )
        if np.isnan(bound).any():
            raise ValueError(f"{name}.{side} holds NaN: use -inf or inf where there is no bound")
    lower, upper = np.broadcast_arrays(bounds["lower"], bounds["upper"])
    if (lower > upper).any():
        at = int(np.argmax(lower > upper))
        raise ValueError(
            f"{name} is empty: lower {lower.flat[at]} exceeds upper {upper.flat[at]} at "
            f"coordinate {at}"
        )
    lists = {s: b for s, b in bounds.items() if isinstance(getattr(domain, s), Sequence)}
    return replace(domain, **lists) if lists else domain


def check_inside(x: Float[np.ndarray, "n d"], domain: Domain, name: str = "x") -> None:
    """Make sure that finite points are admissible; points with NaN or infinities are passed over.

    Args:
        x: the points, compared in their own precision.
        domain: the domain.
        name: the argument's name, for the message.

    Raises:
        ValueError: naming the first point outside, its coordinate and the value.
    """
    if isinstance(domain, Unbounded):
        return
    x = np.asarray(x)
    # A bound such as 0.1 means its rounded value to float32 points, which cannot meet it closer.
    with np.errstate(over="ignore"):  # beyond the points' precision there is no bound
        lower, upper = (np.asarray(bound).astype(x.dtype) for bound in (domain.lower, domain.upper))
    outside = ((x < lower) | (x > upper)) & np.isfinite(x).all(axis=-1, keepdims=True)
    if not outside.any():
        return
    point, coordinate = (int(i) for i in np.argwhere(outside)[0])
    low, high = (np.broadcast_to(bound, x.shape[-1:])[coordinate] for bound in (lower, upper))
    raise ValueError(
        f"{name}[{point}, {coordinate}] is {x[point, coordinate]}, outside the domain's "
        f"[{low}, {high}]: {int(outside.any(axis=-1).sum())} of {len(x)} points lie outside. "
        "Scale or clip the points, or give another domain"
    )
