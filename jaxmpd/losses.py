"""Losses of a prediction against a target, and the samples they are averaged over."""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxmpd.elementwise import Loss, Smooth
from jaxmpd.interpolants import Asymptotes, Nodes, interpolate_pieces
from jaxmpd.majorants import Quadratic, logistic_weight
from jaxmpd.softmax import Softmax, majorise_softmax

__all__ = [
    "ABSOLUTE",
    "HINGE",
    "LOGISTIC",
    "LOSSES",
    "SOFTMAX",
    "SQUARED",
    "SQUARED_HINGE",
    "AnyLoss",
    "Batch",
    "Loss",
    "Quadratic",
    "Smooth",
    "Softmax",
    "epsilon_insensitive",
    "huber",
    "interpolated_loss",
    "logistic",
    "majorise_softmax",
    "piecewise_loss",
    "pinball",
    "shares",
    "squared_error",
    "weighted_mean",
    "without_padding",
]

AnyLoss = Loss | Softmax


class Batch(NamedTuple):
    """Samples to average a loss over.

    Attributes:
        inputs: S inputs of d0 features.
        targets: S targets, one column an output.
        weights: S non-negative weights, or None for equal ones. A weight of 0 pads: the sample
            counts for nothing, so a partial batch keeps the shape of a full one. Where a gradient
            is taken its numbers must be finite (0 times infinity is not 0).
    """

    inputs: Float[Array, "S d0"]
    targets: Float[Array, "S dN"]
    weights: Float[Array, " S"] | None = None


def without_padding(batch: Batch) -> Batch:
    """The batch with zeros for what samples of weight 0 hold."""
    if batch.weights is None:
        return batch
    used = batch.weights > 0

    def cleared(a: Array) -> Array:
        return jnp.where(used.reshape(-1, *[1] * (a.ndim - 1)), a, 0)

    return Batch(cleared(batch.inputs), cleared(batch.targets), batch.weights)


def weighted_mean(
    values: Float[Array, " S"], weights: Float[Array, " S"] | None
) -> Float[Array, ""]:
    """The mean of the values under the weights, a plain one without; 0 if all weights are 0."""
    if weights is None:
        return jnp.mean(values)
    total = jnp.sum(weights)
    # The value of a padded sample may be anything, NaN included: 0 * NaN is not 0.
    return jnp.sum(jnp.where(weights > 0, weights * values, 0)) / jnp.where(total > 0, total, 1)


def shares(weights: Float[Array, " S"] | None, count: int, dtype: Any) -> Float[Array, " S"]:
    """The weights of this many samples, scaled to sum to 1 (0 where all are 0)."""
    if weights is None:
        return jnp.full(count, 1 / count, dtype)
    total = jnp.sum(weights)
    return (weights / jnp.where(total > 0, total, 1)).astype(dtype)


def squared_error(
    predictions: Float[Array, "S dN"], targets: Float[Array, "S dN"]
) -> Float[Array, " S"]:
    """The squared Euclidean distance of each prediction from its target (eq. 5)."""
    return jnp.sum((predictions - targets) ** 2, axis=-1)


def piecewise_loss(
    kinks: Sequence[float],
    coefficients: Sequence[Sequence[float]],
    anchors: Sequence[float] | None = None,
    *,
    margin: bool = False,
) -> Loss:
    """The loss that is this continuous piecewise polynomial of the residual or the margin.

    Args:
        kinks: L abscissae, strictly increasing, finite; may be empty.
        coefficients: a row a piece, left to right, in powers of e - anchor, constant first.
        anchors: the point about which each of the L + 1 pieces is expanded, by default 0. One near
            where the piece is small keeps its digits there.
        margin: whether e is the margin, prediction times target, rather than the residual,
            prediction minus target.

    Returns:
        The loss, as data.

    Raises:
        ValueError: if the lengths do not fit, a number is not finite, the kinks do not increase or
            neighbouring pieces differ where they meet.

    Example:
        >>> ramp = piecewise_loss([0, 1], [[1], [1, -1], [0]], margin=True)    # not convex
        >>> ramp(jnp.array([[0.25], [-3.0]]), jnp.array([[1.0], [1.0]])).tolist()
        [0.75, 1.0]
        >>> ramp.convex, ramp.bounded_below
        (False, True)
    """
    kinks = tuple(map(float, kinks))
    length = max(2, *(len(row) for row in coefficients))
    rows = tuple((*map(float, row), *[0.0] * (length - len(row))) for row in coefficients)
    anchors = (0.0,) * len(rows) if anchors is None else tuple(map(float, anchors))
    if not len(rows) == len(anchors) == len(kinks) + 1:
        raise ValueError(
            f"{len(kinks)} kinks separate {len(kinks) + 1} pieces, but there are {len(rows)} rows "
            f"of coefficients and {len(anchors)} anchors: give one of each a piece"
        )
    if not all(map(math.isfinite, (*kinks, *anchors, *itertools.chain(*rows)))):
        raise ValueError(
            f"kinks {kinks}, coefficients {rows} and anchors {anchors} must all be finite numbers"
        )
    if any(a >= b for a, b in itertools.pairwise(kinks)):
        raise ValueError(f"kinks must strictly increase, got {kinks}")
    for k, kink in enumerate(kinks):
        ends = [_polynomial(rows[i], kink - anchors[i]) for i in (k, k + 1)]
        sizes = [_polynomial([*map(abs, rows[i])], abs(kink - anchors[i])) for i in (k, k + 1)]
        if abs(ends[1] - ends[0]) > 1e-9 * max(sizes):
            raise ValueError(
                f"coefficients must make a continuous function, but at the kink {kink} the pieces "
                f"are {ends[0]} and {ends[1]}"
            )
    return Loss(kinks, anchors, rows, margin)


def _polynomial(row: Sequence[float], x: float) -> float:
    return sum(c * x**q for q, c in enumerate(row))


def _positive(name: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a positive finite number, got {value}")
    return float(value)


def huber(delta: float = 1.0) -> Loss:
    """Half the square of the residual up to delta, straight on beyond; delta must be positive."""
    d = _positive("delta", delta)
    pieces = [[d * d / 2, -d], [0, 0, 0.5], [d * d / 2, d]]
    return piecewise_loss([-d, d], pieces, [-d, 0, d])


def pinball(quantile: float = 0.5) -> Loss:
    """The loss whose minimiser is this quantile, strictly between 0 and 1.

    The quantile times target minus prediction where the prediction is too low, 1 minus the quantile
    times prediction minus target where it is too high.
    """
    if not 0 < quantile < 1:
        raise ValueError(f"quantile must lie strictly between 0 and 1, got {quantile}")
    return piecewise_loss([0], [[0, -quantile], [0, 1 - quantile]])


def epsilon_insensitive(epsilon: float = 0.1) -> Loss:
    """By how much the residual's absolute value exceeds epsilon, which must be positive."""
    e = _positive("epsilon", epsilon)
    return piecewise_loss([-e, e], [[0, -1], [0], [0, 1]], [-e, 0, e])


def interpolated_loss(
    smooth: Smooth,
    error: float,
    asymptotes: Asymptotes,
    *,
    margin: bool = False,
    degree: int = 2,
    table: tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray]]
    | None = None,
    known: Nodes | None = None,
) -> Loss:
    """A smooth loss, searched through an interpolant of its function of the residual or margin.

    The interpolant and its bound are those of [`jaxmpd.interpolants`][jaxmpd.interpolants]; steps
    are accepted by the smooth loss, which is what a call evaluates.

    Args:
        smooth: the function with its derivatives and the weight of its majorant.
        error: the greatest distance allowed between interpolant and function.
        asymptotes: slope and intercept of the lines it tends to on the left and on the right.
        margin: whether it takes the margin rather than the residual.
        degree: 2 for parabolas, 1 for chords.
        table: NumPy versions of the function and of its derivative of order degree + 1, by default
            found by `jax.grad`.
        known: what the search for nodes found before; by default it runs.

    Returns:
        The loss.

    Raises:
        ValueError: if the error is not positive or the asymptotes are not the function's.
    """
    fn, derivative = table or (smooth.value, None)
    pieces = interpolate_pieces(fn, error, asymptotes, degree, derivative, known)
    return Loss(
        pieces.kinks, pieces.anchors, pieces.coefficients, margin, smooth, error=pieces.error
    )


_SOFTPLUS_OF_MINUS = Smooth(
    value=lambda m: jax.nn.softplus(-m),
    slope=lambda m: -jax.nn.sigmoid(-m),
    curvature=lambda m: jax.nn.sigmoid(m) * jax.nn.sigmoid(-m),
    weight=logistic_weight,
)


def _third_derivative(m: np.ndarray) -> np.ndarray:
    s = (1 - np.tanh(m / 2)) / 2
    return s * (1 - s) * (1 - 2 * s)


LOGISTIC_ERROR = 1e-3
LOGISTIC_NODES = Nodes(
    (
        -6.908203125,
        -4.181099960660332,
        -2.7306940694594437,
        -1.6645774500184163,
        -0.6821216432073368,
        0.6821216432073451,
        1.6645774500184185,
        2.7306940694594606,
        4.181099960660393,
        6.908203125,
    ),
    0.0009990530345325155,
)
"""What the search finds for that error; importing the package need not wait for it."""


@functools.cache  # equal arguments, one object: static arguments of jit compare by it
def logistic(error: float = LOGISTIC_ERROR) -> Loss:
    """The binary logistic loss log(1 + exp(-m)) of the margin, searched by parabolas.

    Example:
        >>> loss = logistic(1e-2)
        >>> len(loss.kinks), loss.error <= 1e-2
        (4, True)
    """
    return interpolated_loss(
        _SOFTPLUS_OF_MINUS,
        error,
        ((-1.0, 0.0), (0.0, 0.0)),
        margin=True,
        table=(lambda m: np.logaddexp(0, -m), _third_derivative),
        known=LOGISTIC_NODES if error == LOGISTIC_ERROR else None,
    )


SQUARED = piecewise_loss([], [[0, 0, 1]])
ABSOLUTE = piecewise_loss([0], [[0, -1], [0, 1]])
HINGE = piecewise_loss([1], [[0, -1], [0]], [1, 1], margin=True)
SQUARED_HINGE = piecewise_loss([1], [[0, 0, 1], [0]], [1, 1], margin=True)
LOGISTIC = logistic()
SOFTMAX = Softmax()

LOSSES: dict[str, AnyLoss] = {
    "squared": SQUARED,
    "absolute": ABSOLUTE,
    "huber": huber(),
    "pinball": pinball(),
    "epsilon_insensitive": epsilon_insensitive(),
    "hinge": HINGE,
    "squared_hinge": SQUARED_HINGE,
    "logistic": LOGISTIC,
    "softmax": SOFTMAX,
}
"""Named losses, for command lines and configuration files."""
