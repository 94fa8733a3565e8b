"""Where inputs live: the set X over which adversarial points are sought."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxnpc.distances import length


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


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SphereProduct:
    r"""All $x \ge 0$ whose groups of coordinates each are 0 or have an l2 norm within bounds.

    $$X = \{x \ge 0 : |x_g|_2 \in \{0\} \cup [r_g^-, r_g^+] \ \forall g\}$$

    holds the embeddings of all images (paper, eq. 5): each location of each layer is a vector of
    channels of norm $r_l = (H_l W_l)^{-1/2}$, or 0 where no channel is active, which the paper
    leaves out. Bounds that differ admit rounding, a normalisation that shrinks short vectors
    ($r^- = 0$), or weights of the channels. The coordinates follow one another group by group.

    Attributes:
        blocks: (number of groups, coordinates of a group) of each block of equal groups; static.
        inner: the least norm $r^-$ of a group that is not 0, one a block, at least 0.
        outer: the largest norm $r^+$, likewise, at least `inner` and finite.

    Example:
        >>> circle = SphereProduct(((2, 2),), np.array([1.0]), np.array([1.0]))
        >>> circle.contains(jnp.array([[0.6, 0.8, 0, 0], [0.5, 0.5, 1, 0], [-1, 0, 0, 1]])).tolist()
        [True, False, False]
        >>> circle.clip(jnp.array([3.0, 4.0, 0.1, -2.0])).round(3).tolist()
        [0.6000..., 0.8000..., 0.0, 0.0]
    """

    blocks: tuple[tuple[int, int], ...] = field(metadata={"static": True})
    inner: Float[Array | np.ndarray, " B"]
    outer: Float[Array | np.ndarray, " B"]

    @property
    def dimension(self) -> int:
        """The number of coordinates."""
        return sum(count * size for count, size in self.blocks)

    @property
    def groups(self) -> int:
        """The number of groups."""
        return sum(count for count, _ in self.blocks)

    def split(self, x: Any) -> Iterator[Any]:
        """The coordinates of each block as (..., groups, coordinates); NumPy's or JAX's arrays."""
        start = 0
        for count, size in self.blocks:
            stop = start + count * size
            yield x[..., start:stop].reshape(*x.shape[:-1], count, size)
            start = stop

    def spread(self, values: Float[Array | np.ndarray, " B"]) -> Float[np.ndarray, " G"] | Array:
        """Numbers of the blocks, repeated for each group."""
        return values.repeat(np.array([count for count, _ in self.blocks]), axis=0)

    def clip(self, x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """The nearest admissible point, to rounding."""
        parts: list[Array] = []
        for part, inner, outer in zip(self.split(x), self.inner, self.outer, strict=True):
            positive = jnp.maximum(part, 0)
            size = length(positive, 2)[..., None]
            wanted = jnp.where(2 * size > inner, jnp.clip(size, inner, outer), 0)
            scaled = positive * (wanted / jnp.where(size > 0, size, 1))
            parts.append(scaled.reshape(*x.shape[:-1], -1))
        return jnp.concatenate(parts, axis=-1)

    def contains(self, x: Float[Array, "*n d"]) -> Bool[Array, "*n"]:
        """Whether a point is admissible, judged in its own precision; NaN is not."""
        inside = jnp.all((x >= 0) & jnp.isfinite(x), axis=-1)
        for part, inner, outer in zip(self.split(x), self.inner, self.outer, strict=True):
            size = length(part, 2)
            inside &= jnp.all((size == 0) | ((size >= inner) & (size <= outer)), axis=-1)
        return inside


def check_spheres(domain: Any, dimension: int, name: str = "domain") -> SphereProduct:
    """Make sure that a user's domain is a product of spheres, and fits.

    Raises:
        TypeError: if it is none.
        ValueError: if its blocks do not add up to the dimension or its bounds are no bounds.
    """
    if not isinstance(domain, SphereProduct):
        raise TypeError(f"{name} is {domain!r}: give a SphereProduct(blocks, inner, outer)")
    if domain.dimension != dimension or any(min(block) < 1 for block in domain.blocks):
        raise ValueError(
            f"{name}.blocks {domain.blocks} have {domain.dimension} coordinates: give positive "
            f"numbers whose products add up to {dimension}"
        )
    inner, outer = np.asarray(domain.inner), np.asarray(domain.outer)
    for side, bound in (("inner", inner), ("outer", outer)):
        if bound.shape != (len(domain.blocks),):
            raise ValueError(
                f"{name}.{side} has shape {bound.shape}: give one number for each of "
                f"{len(domain.blocks)} blocks"
            )
    if not np.all((inner >= 0) & (inner <= outer) & (outer < np.inf)):
        raise ValueError(
            f"{name} must have 0 <= inner <= outer < inf, got {inner.tolist()} and {outer.tolist()}"
        )
    return domain


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
    if isinstance(domain, SphereProduct):
        raise TypeError(
            f"{name} is a SphereProduct, which holds embedded images: jaxnpc.perceptual certifies "
            "those. Here give Unbounded() or Box(lower, upper)"
        )
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
