r"""Quadratics that touch a loss at the current predictions and lie above it everywhere.

With predictions p, pseudo-targets z and weights w,

$$\ell(p + D) \le \ell(p) + \sum_k w_k \left[ (p_k + D_k - z_k)^2 - (p_k - z_k)^2 \right]
\quad\text{for every } D,$$

so any step that lowers the weighted squared error from the pseudo-targets lowers the loss by at
least as much: whatever minimises squared errors descends on such losses too.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxmpd.piecewise import taylor_shift


class Quadratic(NamedTuple):
    """A squared error that stands in for another loss near the current predictions.

    Attributes:
        targets: pseudo-targets z, one an output.
        weights: non-negative weights w, one an output; the squared error has 1. Where a weight is
            0 the pseudo-target is the prediction itself.
    """

    targets: Float[Array, "S dN"]
    weights: Float[Array, "S dN"]


def quadratic_from(
    predictions: Float[Array, "S dN"],
    gradient: Float[Array, "S dN"],
    weights: Float[Array, "S dN"],
) -> Quadratic:
    """The weighted squared error with this gradient at the predictions."""
    there = weights > 0
    step = jnp.where(there, gradient / (2 * jnp.where(there, weights, 1)), 0)
    return Quadratic(predictions - step, weights)


def logistic_weight(margin: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    r"""The least weight of a majorant of log(1 + exp(-m)) (Jaakkola and Jordan 2000).

    $$\lambda(m) = \frac{\tanh(m / 2)}{4 m}, \qquad \lambda(0) = \tfrac18$$

    The loss plus m/2 is even in m and concave in m squared, so its tangent in m squared lies above.
    """
    near = jnp.abs(margin) < 1e-2
    m = jnp.where(near, 1, margin)
    return jnp.where(near, 1 / 8 - margin**2 / 96, jnp.tanh(m / 2) / (4 * m))


def least_weight(
    kinks: Sequence[float],
    anchors: Sequence[float],
    coefficients: Sequence[Sequence[float]],
    e: Float[Array, "*shape"],
) -> Float[Array, "*shape"]:
    r"""The least weight of a majorant of a piecewise quadratic without convex kinks.

    $$w(e) = \sup_{x \ne 0} \frac{\phi(e + x) - \phi(e) - \phi'(e) x}{x^2}$$

    On a piece the numerator is A + B x + C x^2, hence the quotient a quadratic in 1/x, greatest at
    an end of the piece or at its vertex. It is C on the piece of e itself, tends to C at an end on
    which e stands, and is nowhere more than the largest C.

    Args:
        kinks: L abscissae where the pieces meet.
        anchors: the point about which each of the L + 1 pieces is expanded.
        coefficients: three a piece, constant first.
        e: where the majorant touches.

    Returns:
        The weights, at least 0.
    """
    largest = max(max(c[2] for c in coefficients), 0.0)
    about = [
        taylor_shift(jnp.stack([jnp.full_like(e, c) for c in row]), e - anchor)
        for row, anchor in zip(coefficients, anchors, strict=True)
    ]
    own = about[0]
    for kink, piece in zip(kinks, about[1:], strict=True):
        own = jnp.where(e > kink, piece, own)
    best = jnp.maximum(own[2], 0)
    ends = [-jnp.inf, *kinks, jnp.inf]
    for piece, lo, hi in zip(about, ends[:-1], ends[1:], strict=True):
        a, b, c = piece[0] - own[0], piece[1] - own[1], piece[2]
        here = (e > lo) & (e <= hi)
        u, v = (
            jnp.where(e == end, jnp.inf, 1 / jnp.where(e == end, 1, end - e)) for end in (lo, hi)
        )
        u, v = jnp.minimum(u, v), jnp.maximum(u, v)
        vertex = jnp.clip(-b / (2 * jnp.where(a < 0, a, 1)), u, v)
        for at in (u, v, jnp.where(a < 0, vertex, u)):
            quotient = jnp.where(jnp.isfinite(at), (a * at + b) * at + c, c)
            best = jnp.where(here, best, jnp.maximum(best, quotient))
    # What rounding adds where e all but stands on a kink.
    return jnp.minimum(best * (1 + 16 * jnp.finfo(best.dtype).eps), largest)
