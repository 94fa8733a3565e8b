"""Piecewise-linear predictions along a line, sample by sample."""

from typing import NamedTuple

from jaxtyping import Array, Float


class Curves(NamedTuple):
    """Piecewise-linear predictions along a line, one curve of dN outputs a sample.

    The jump form of [`PiecewisePolynomial`][jaxmpd.piecewise.PiecewisePolynomial] for continuous
    functions of degree 1: outwards from the origin every knot adds its bend to the slope.

    Attributes:
        start: the predictions at t = 0.
        rate: their slopes in the piece that holds the origin (just right of it).
        knots: M knots a sample in ascending order; `inf` pads.
        bends: the slope on the right of the knot minus the one on its left; 0 where padded.
    """

    start: Float[Array, "S dN"]
    rate: Float[Array, "S dN"]
    knots: Float[Array, "S M"]
    bends: Float[Array, "S M dN"]
