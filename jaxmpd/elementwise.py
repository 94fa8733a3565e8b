"""Losses that are a sum over the outputs of one function of the residual or the margin, as data."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxmpd.majorants import Quadratic, least_weight, quadratic_from
from jaxmpd.piecewise import horner, taylor_shift


class Smooth(NamedTuple):
    """A smooth function that pieces interpolate, elementwise, with what descent asks of it.

    Attributes:
        value: the function.
        slope: its derivative.
        curvature: its second derivative.
        weight: of its quadratic majorant, see [`jaxmpd.majorants`][jaxmpd.majorants].
    """

    value: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    curvature: Callable[[Array], Array]
    weight: Callable[[Array], Array]


@dataclass(frozen=True)
class Loss:
    r"""A loss that is a continuous piecewise polynomial, summed over the outputs.

    $$\ell(p, y) = \sum_k \phi(e_k), \qquad e = p - y \text{ (residual)}
    \quad\text{or}\quad e = y\,p \text{ (margin, } y = \pm 1)$$

    With several outputs a margin loss asks one against all: the target is 1 for the sample's class
    and -1 for the others; 0 leaves an output out. Called with predictions and targets it gives the
    loss of every sample. Hashable, so that it can be a static argument of `jax.jit`; build one with
    [`piecewise_loss`][jaxmpd.losses.piecewise_loss].

    Attributes:
        kinks: L abscissae e where the polynomial changes, strictly increasing.
        anchors: the point about which each of the L + 1 pieces is expanded, left to right.
        coefficients: a row a piece, in powers of e - anchor, constant first, of one length.
        margin: whether e is the margin rather than the residual.
        smooth: the function whose interpolant the pieces are, or None where they are the loss.
            What the loss is called to be, its slope and curvature are then those of the smooth
            function; the pieces serve the exact search.
        error: a bound on the distance of the pieces from the smooth function.
    """

    kinks: tuple[float, ...]
    anchors: tuple[float, ...]
    coefficients: tuple[tuple[float, ...], ...]
    margin: bool = False
    smooth: Smooth | None = None
    error: float = 0.0

    def __call__(
        self, predictions: Float[Array, "S dN"], targets: Float[Array, "S dN"]
    ) -> Float[Array, " S"]:
        """The loss of each sample."""
        return jnp.sum(self.value(self.argument(predictions, targets)), axis=-1)

    def argument(
        self, predictions: Float[Array, "*shape"], targets: Float[Array, "*shape"]
    ) -> Float[Array, "*shape"]:
        """The residual or the margin."""
        return targets * predictions if self.margin else predictions - targets

    def value(self, e: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The loss phi at residuals or margins, elementwise."""
        return self.pieces(e) if self.smooth is None else self.smooth.value(e)

    def slope(self, e: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The derivative of phi, elementwise; at a kink the one on its left."""
        return self.expansion(e)[1] if self.smooth is None else self.smooth.slope(e)

    def curvature(self, e: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The second derivative of phi, elementwise; at a kink the one on its left."""
        if self.smooth is not None:
            return self.smooth.curvature(e)
        return 2 * self.expansion(e)[2] if self.degree > 1 else jnp.zeros_like(e)

    def pieces(self, e: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The piecewise polynomial at e, elementwise; within `error` of the loss."""
        anchor, coefficients = self._active(self.beyond(e), e.dtype)
        return horner(coefficients, e - anchor)

    def beyond(self, e: Float[Array, "*shape"]) -> Bool[Array, "*shape L"]:
        """Which kinks lie strictly before e."""
        return e[..., None] > jnp.asarray(self.kinks, e.dtype)

    def expansion(
        self, e: Float[Array, "*shape"], beyond: Bool[Array, "*shape L"] | None = None
    ) -> Float[Array, "Q+1 *shape"]:
        """The coefficients about e of the piece that holds it, or of the one that is asked for.

        Args:
            e: residuals or margins.
            beyond: the kinks before the piece that is meant, by default those before e.

        Returns:
            The coefficients in powers of the change of e, constant first.
        """
        beyond = self.beyond(e) if beyond is None else beyond
        anchor, coefficients = self._active(beyond, e.dtype)
        return taylor_shift(coefficients, e - anchor)

    def _active(self, beyond: Bool[Array, "*shape L"], dtype: Any) -> tuple[Array, Array]:
        """The anchor and the coefficients of the piece beyond these kinks.

        Constants are selected, not values: the pieces that do not hold e are never evaluated, so
        their overflow cannot reach a gradient.
        """
        rows = [(a, *row) for a, row in zip(self.anchors, self.coefficients, strict=True)]
        chosen: list[Array] = []
        for column in zip(*rows, strict=True):
            number = jnp.full(beyond.shape[:-1], column[0], dtype)
            for k, (before, after) in enumerate(itertools.pairwise(column)):
                if after != before:
                    number = jnp.where(beyond[..., k], after, number)
            chosen.append(number)
        return chosen[0], jnp.stack(chosen[1:])

    @property
    def degree(self) -> int:
        """The degree Q that the coefficients have room for."""
        return len(self.coefficients[0]) - 1

    @property
    def jumps(self) -> tuple[tuple[float, ...], ...]:
        """At each kink, the coefficients about it on its right minus those on its left."""
        return tuple(
            tuple(
                a - b
                for a, b in zip(
                    _shifted(self.coefficients[k + 1], kink - self.anchors[k + 1]),
                    _shifted(self.coefficients[k], kink - self.anchors[k]),
                    strict=True,
                )
            )
            for k, kink in enumerate(self.kinks)
        )

    @property
    def convex_pieces(self) -> bool:
        """Whether every piece is a convex quadratic or a line.

        Along any line the loss of a piecewise-linear prediction then has convex pieces too, which
        the search without sorting needs.
        """
        return all(
            not any(row[3:]) and min(row[2:3], default=0.0) >= 0 for row in self.coefficients
        )

    @property
    def convex(self) -> bool:
        """Whether the piecewise polynomial is convex."""
        return self.convex_pieces and all(jump[1] >= 0 for jump in self.jumps)

    @property
    def bounded_below(self) -> bool:
        """Whether the piecewise polynomial has a least value."""
        left, right = self.coefficients[0], self.coefficients[-1]

        def falls(row: tuple[float, ...], side: int) -> bool:
            leading = next((q for q in range(len(row) - 1, 0, -1) if row[q] != 0), 0)
            return leading > 0 and row[leading] * side**leading < 0

        return not falls(left, -1) and not falls(right, 1)

    def gradient(
        self, predictions: Float[Array, "S dN"], targets: Float[Array, "S dN"]
    ) -> Float[Array, "S dN"]:
        """The derivative of each sample's loss in its predictions."""
        slope = self.slope(self.argument(predictions, targets))
        return targets * slope if self.margin else slope

    def gauss_newton(
        self, predictions: Float[Array, "S dN"], targets: Float[Array, "S dN"]
    ) -> Quadratic:
        """The quadratic of the loss's own slope and curvature: no bound, but the better model.

        Concave places, and straight ones, get the weight 0.
        """
        curvature = self.curvature(self.argument(predictions, targets))
        weights = self._scale(jnp.maximum(curvature, 0) / 2, targets)
        return quadratic_from(predictions, self.gradient(predictions, targets), weights)

    def quadratic_majorant(
        self,
        predictions: Float[Array, "S dN"],
        targets: Float[Array, "S dN"],
        radius: float = 1e-3,
    ) -> Quadratic | None:
        """The sharpest quadratics that touch the loss at the predictions and lie above it.

        For the absolute and Huber's loss these are the weights of iteratively reweighted least
        squares. Over a convex kink no quadratic lies: there a parabola of this radius rounds the
        kink off first, and the majorant may be below the loss by at most a quarter of the radius
        times the kink's jump of slope.

        Args:
            predictions: where the majorants touch.
            targets: of the loss.
            radius: of the rounding; narrower than half the distance of neighbouring kinks.

        Returns:
            Pseudo-targets and weights, or None for a loss of a degree above 2 or without a bound
            on its curvature.
        """
        e = self.argument(predictions, targets)
        if self.smooth is not None:
            slope, weight = self.smooth.slope(e), self.smooth.weight(e)
        elif self.degree > 2 and any(any(row[3:]) for row in self.coefficients):
            return None
        else:
            rounded = self.rounded(radius)
            slope = rounded.slope(e)
            weight = least_weight(rounded.kinks, rounded.anchors, rounded.coefficients, e)
        gradient = targets * slope if self.margin else slope
        return quadratic_from(predictions, gradient, self._scale(weight, targets))

    def rounded(self, radius: float) -> "Loss":
        """The piecewise quadratic with a parabola of this radius in place of every convex kink."""
        gaps = [b - a for a, b in itertools.pairwise(self.kinks)]
        r = min([radius, *(gap / 4 for gap in gaps)])
        kinks: list[float] = []
        anchors, rows = [self.anchors[0]], [_padded(self.coefficients[0], 3)]
        for k, (kink, jump) in enumerate(zip(self.kinks, self.jumps, strict=True)):
            before, after = (
                _shifted(_padded(self.coefficients[i], 3), kink - self.anchors[i])
                for i in (k, k + 1)
            )
            if jump[1] > 0:
                # J max(0, x) becomes J (x + r)^2 / 4r on [-r, r].
                bump = [jump[1] * r / 4, jump[1] / 2, jump[1] / (4 * r)]
                rising = [a + b for a, b in zip(before, bump, strict=True)]
                falling = [a + b for a, b in zip(after, bump, strict=True)]
                falling[1] -= jump[1]
                kinks += [kink - r, kink, kink + r]
                anchors += [kink, kink, self.anchors[k + 1]]
                rows += [tuple(rising), tuple(falling), _padded(self.coefficients[k + 1], 3)]
            else:
                kinks.append(kink)
                anchors.append(self.anchors[k + 1])
                rows.append(_padded(self.coefficients[k + 1], 3))
        return Loss(tuple(kinks), tuple(anchors), tuple(rows), self.margin)

    def _scale(
        self, weight: Float[Array, "S dN"], targets: Float[Array, "S dN"]
    ) -> Float[Array, "S dN"]:
        """A weight in the margin as one in the prediction."""
        return targets**2 * weight if self.margin else weight


def _shifted(row: Sequence[float], shift: float) -> tuple[float, ...]:
    """The coefficients of p(x + shift) from those of p(x)."""
    return tuple(
        sum(comb(p, q) * row[p] * shift ** (p - q) for p in range(q, len(row)))
        for q in range(len(row))
    )


def _padded(row: Sequence[float], length: int) -> tuple[float, ...]:
    """The coefficients with room for this many, the rest known to be 0."""
    return (*row, *[0.0] * length)[:length]
