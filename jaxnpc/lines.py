r"""The hinge loss along a line of one prototype, as a piecewise polynomial.

The loss of a point is $\bigl(R - \tfrac12 (\min_{j \in I_y^c} D_j - \min_{i \in I_y} D_i)\bigr)_+$,
with R the cap and D the l1 or l-infinity distance or the squared l2 distance. As a function of the
distance D from one prototype, all others standing still, it is a constant plus

$$\pm \tfrac12 \min\{\max\{D, L\}, U\}, \qquad
  (L, U) = \begin{cases} ((r - 2R)_+,\ \max\{o, L\}) & \text{for an own prototype, } + \\
                         (0,\ \min\{r, o + 2R\}) & \text{for a rival, } - \end{cases}$$

with o and r the distances of the closest other own prototype and the closest other rival: below L
the hinge is closed, above U another prototype decides. Along a coordinate of the prototype, and
for squared l2 distances along any unit direction, D is made of $|t - c|^a$ and a rest that stands
still. So each point contributes four knots, where D meets L and U, symmetric about c.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from jaxmpd.losses import shares
from jaxmpd.piecewise import PiecewisePolynomial
from jaxnpc.distances import NORMS, named_norm, pairwise
from jaxnpc.selection import members


class Geometry(NamedTuple):
    """A distance D along a line.

    Attributes:
        term: of a coordinate's difference.
        fold: makes D of the coordinates' terms.
        degree: a, of the pieces of D.
        width: from a level and the rest of D, how far t is from c where D meets the level; the
            same for all levels that the rest alone exceeds.
    """

    term: Callable[[Array], Array]
    fold: Callable[[Array, Array], Array]
    degree: int
    width: Callable[[Array, Array], Array]


def _geometry(p: float, degree: int, width: Callable[[Array, Array], Array]) -> Geometry:
    return Geometry(NORMS[p].term, NORMS[p].fold, degree, width)


GEOMETRIES: dict[float, Geometry] = {
    1: _geometry(1, 1, lambda level, rest: jnp.maximum(level - rest, 0)),
    2: _geometry(2, 2, lambda level, rest: jnp.sqrt(jnp.maximum(level - rest, 0))),
    math.inf: _geometry(math.inf, 1, jnp.maximum),
}
"""The l1, the squared l2 and the l-infinity distance by p."""


class Clipped(NamedTuple):
    """The loss as a function of n distances from one prototype, up to a constant.

    Attributes:
        weight: half the points' weights, negative where the prototype is a rival.
        lower: L, where the hinge closes.
        upper: U, where another prototype takes over; at least L, maybe infinite.
    """

    weight: Float[Array, " n"]
    lower: Float[Array, " n"]
    upper: Float[Array, " n"]

    def change(self, old: Float[Array, " n"], new: Float[Array, " n"]) -> Float[Array, ""]:
        """What the loss changes by. Summed up on its own, it keeps its digits when it is tiny."""
        new, old = (jnp.clip(distance, self.lower, self.upper) for distance in (new, old))
        return jnp.sum(self.weight * (new - old))


def hinge(
    distances: Float[Array, "n K"],
    labels: Int[Array, " K"],
    classes: Int[Array, " n"],
    cap: float,
) -> Float[Array, " n"]:
    """The loss of each point, from its distances from all prototypes.

    Args:
        distances: l1, l-infinity or squared l2 distances D.
        labels: the class index of each prototype; at least two kinds, those of all points among
            them.
        classes: the class index of each point.
        cap: R, in the units of D.

    Returns:
        The losses, at least 0.
    """
    own, rival = _closest(distances, labels, classes)
    return jnp.maximum(cap - (rival - own) / 2, 0)


def clipped(
    distances: Float[Array, "n K"],
    labels: Int[Array, " K"],
    classes: Int[Array, " n"],
    weights: Float[Array, " n"],
    number: Int[ArrayLike, ""],
    cap: float,
) -> Clipped:
    """The loss as a function of the distances from one prototype.

    Args:
        distances: from all prototypes, of which its own column does not count.
        labels: the class index of each prototype.
        classes: the class index of each point.
        weights: of the points, at least 0.
        number: which prototype.
        cap: R.

    Returns:
        The function.
    """
    others = jnp.arange(len(labels)) != number
    own, rival = _closest(jnp.where(others, distances, jnp.inf), labels, classes)
    mine = classes == labels[number]
    lower = jnp.where(mine, jnp.maximum(rival - 2 * cap, 0), 0)
    upper = jnp.where(mine, jnp.maximum(own, lower), jnp.minimum(rival, own + 2 * cap))
    return Clipped(jnp.where(mine, weights, -weights) / 2, lower, upper)


def along(
    geometry: Geometry,
    loss: Clipped,
    centre: Float[Array, " n"],
    rest: Float[Array, " n"],
) -> PiecewisePolynomial:
    """The change of the loss along a line.

    Args:
        geometry: of the distance.
        loss: of the distance.
        centre: c, where on the line each point's distance is least.
        rest: what the line leaves of the distance: of the other coordinates, or at c.

    Returns:
        A function of degree 2 for squared l2 distances, else 1, with 4 n knots, `inf` for those
        that are none; 0 at the origin.
    """
    inner, outer = (geometry.width(level, rest) for level in (loss.lower, loss.upper))
    widths = jnp.stack([outer, inner, inner, outer])
    side, opens = (jnp.array(s, centre.dtype)[:, None] for s in ([-1, -1, 1, 1], [1, -1, 1, -1]))
    knots = centre + side * widths
    # On which slope of its well the origin lies, read off the knots, so that the two agree.
    before = knots <= 0
    left, right = before[0] & ~before[1], before[2] & ~before[3]
    if geometry.degree == 1:
        base, jumps = [right * 1.0 - left], [side * opens]
    else:
        # About an edge of a well of width h: (h + |e|)^2 - h^2 = e^2 + 2 h |e| outwards.
        base, jumps = (
            [(left | right) * -2 * centre, left | right],
            [2 * side * opens * widths, opens],
        )
    met = (outer > inner) & jnp.isfinite(knots)
    weight, weights = jnp.where(outer > inner, loss.weight, 0), jnp.where(met, loss.weight, 0)
    return PiecewisePolynomial(
        jnp.stack([jnp.zeros((), centre.dtype), *(jnp.sum(weight * b) for b in base)]),
        jnp.where(met, knots, jnp.inf).reshape(-1),
        jnp.stack(
            [jnp.zeros(knots.size, centre.dtype)]
            + [jnp.where(met, weights * j, 0).reshape(-1) for j in jumps]
        ),
    )


def expand(
    prototypes: Float[ArrayLike, "K d"],
    labels: Int[ArrayLike, " K"],
    points: Float[ArrayLike, "n d"],
    classes: Int[ArrayLike, " n"],
    *,
    number: Int[ArrayLike, ""] | int,
    coordinate: Int[ArrayLike, ""] | int,
    distance: float = 2,
    cap: float,
    weights: Float[ArrayLike, " n"] | None = None,
) -> PiecewisePolynomial:
    """The mean loss as a function of the change of one coordinate of one prototype.

    Args:
        prototypes: K prototypes.
        labels: their class indices.
        points: n points.
        classes: their class indices, each with a prototype.
        number: which prototype moves.
        coordinate: along which coordinate.
        distance: 1, 2 (the squared l2 distance) or infinity.
        cap: R, in the units of the distance.
        weights: of the points, at least 0; by default equal ones.

    Returns:
        A function with 4 n knots: piecewise linear, for squared l2 distances piecewise quadratic.

    Raises:
        ValueError: if the distance is unknown or the labels are not those of two classes or more.

    Example:
        >>> from jaxmpd.minimum import minimize
        >>> w, x = jnp.array([[0.0], [4.0]]), jnp.array([[1.0], [5.0]])
        >>> line = expand(w, [0, 1], x, [0, 1], number=0, coordinate=0, cap=5.0)
        >>> float(line(0.0)), float(line(1.0)), float(minimize(line).value)
        (0.5, 0.25, 0.25)
    """
    named_norm(distance, "distance")
    w, x, y = jnp.asarray(prototypes), jnp.asarray(points), jnp.asarray(classes)
    label, geometry = jnp.asarray(members(labels).label), GEOMETRIES[distance]
    share = shares(None if weights is None else jnp.asarray(weights), len(x), x.dtype)
    all_distances = distances(x, w, distance)
    loss = clipped(all_distances, label, y, share, number, cap)
    terms = geometry.term(x - w[number]).at[:, coordinate].set(0)
    rest = jnp.max(terms, axis=1) if distance == math.inf else jnp.sum(terms, axis=1)
    line = along(geometry, loss, x[:, coordinate] - w[number, coordinate], rest)
    origin = jnp.sum(share * hinge(all_distances, label, y, cap))
    return PiecewisePolynomial(line.base.at[0].set(origin), line.knots, line.jumps)


def distances(
    points: Float[Array, "n d"], prototypes: Float[Array, "K d"], p: float
) -> Float[Array, "n K"]:
    """The l1, squared l2 or l-infinity distances, as sums over coordinate differences."""
    d = pairwise(points, prototypes, p)
    return jnp.square(d) if p == 2 else d


def _closest(
    distances: Float[Array, "n K"], labels: Int[Array, " K"], classes: Int[Array, " n"]
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """The distances of the closest own prototype and of the closest rival, infinite for none."""
    own = classes[:, None] == labels
    return (
        jnp.min(jnp.where(own, distances, jnp.inf), axis=1),
        jnp.min(jnp.where(own, jnp.inf, distances), axis=1),
    )
