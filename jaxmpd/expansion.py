r"""The loss along one parameter of a one-hidden-layer network, as a piecewise polynomial.

Along a weight into hidden unit d the unit's pre-activation is affine in the change t of the
weight, $a_s(t) = z_s + t u_s$, and everything else stands still. With the residuals
$r_s = \hat y_s - y_s$, the unit's outgoing weights v and sample weights $\omega_s$ that sum to 1,
the squared error changes by

$$\sum_s \omega_s \left[ |v|^2 \delta_s(t)^2 + 2 (v \cdot r_s)\, \delta_s(t) \right],
\qquad \delta_s(t) = f(a_s(t)) - f(z_s),$$

whatever the number of outputs: a piecewise quadratic with one knot a sample and kink. Along an
output parameter it is one quadratic.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxmpd.activations import PiecewiseLinear
from jaxmpd.curves import Curves, expand_curves, unit_curves
from jaxmpd.losses import SQUARED, AnyLoss, Batch, Softmax, shares, without_padding
from jaxmpd.network import PyTree, affine, as_layers
from jaxmpd.penalties import check, penalty, penalty_along
from jaxmpd.piecewise import PiecewisePolynomial, crossings, polynomial
from jaxmpd.primitives import dot


class Coordinate(NamedTuple):
    """One scalar parameter.

    Attributes:
        layer: 0 for the hidden layer, 1 for the output; a Python integer.
        row: the input of the layer, or the number of its inputs to name the bias.
        column: the unit of the layer.
    """

    layer: int
    row: Int[Array, ""] | int
    column: Int[Array, ""] | int


def expand(
    params: PyTree,
    batch: Batch,
    coordinate: Coordinate,
    activation: PiecewiseLinear,
    loss: AnyLoss = SQUARED,
    *,
    l2: float = 0.0,
    l1: float = 0.0,
) -> PiecewisePolynomial:
    """The mean loss as a function of the change of one parameter (eqs 39, 21 and 22).

    Args:
        params: a network of one hidden layer, in any tree that `as_layers` reads.
        batch: S samples.
        coordinate: the parameter; row and column may be traced, so that `vmap` runs over them
            (then it is up to the caller that there is such a parameter).
        activation: with K kinks.
        loss: with L kinks; of a smooth loss the interpolant is expanded, of the softmax
            cross-entropy a quadratic majorant at the current predictions.
        l2: weight of the sum of the parameters' squares, output biases left out.
        l1: weight of the sum of their absolute values; above 0 it adds a knot where the parameter
            is 0.

    Returns:
        A piecewise polynomial, quadratic unless the loss has a higher degree; its origin is the
        parameter's current value. Under the squared error it has S K knots for a hidden parameter
        and none for one of the output, else S (K + dN L (K + 1)), or S (K + dN L) if the activation
        is monotone, and S L.

    Raises:
        ValueError: if the network does not have one hidden layer or no such parameter, or a penalty
            is negative.

    Example:
        >>> import jax
        >>> from jaxmpd import activations, minimum, network
        >>> params = network.init(jax.random.key(0), (2, 8, 1))
        >>> x = jax.random.normal(jax.random.key(1), (100, 2))
        >>> batch = Batch(x, x[:, :1] * x[:, 1:])
        >>> loss = expand(params, batch, Coordinate(0, 1, 5), activations.LEAKY_HARD_TANH)
        >>> loss.knots.shape
        (200,)
        >>> bool(minimum.minimize(loss).gain > 0)
        True
    """
    layers, _ = as_layers(params)
    batch = without_padding(Batch(*batch))
    if len(layers) != 2 or coordinate.layer not in (0, 1):
        raise ValueError(
            f"params has {len(layers)} layers and coordinate.layer is {coordinate.layer}: a "
            "parameter of layer 0 or 1 of a network with one hidden layer can be expanded"
        )
    hidden, output = layers
    rows, columns = layers[coordinate.layer].kernel.shape
    for name, index, end in (
        ("row", coordinate.row, rows),
        ("column", coordinate.column, columns - 1),
    ):
        if isinstance(index, int) and not 0 <= index <= end:
            raise ValueError(f"coordinate.{name} must lie in 0 to {end}, got {index}")
    check(l2, l1)
    weights = normalized_weights(batch)
    z = affine(hidden, batch.inputs)
    features = activation(z)
    outputs, targets = centred(affine(output, features), batch.targets, loss)
    height = jnp.sum(weights * loss(outputs, targets))
    row, column = coordinate.row, coordinate.column
    if coordinate.layer == 1:
        u = _input_column(features, row)
        line = expand_output(outputs.T, targets.T, weights, u, column, loss)
        free = row == rows
    else:
        u, v = _input_column(batch.inputs, row), output.kernel[column]
        line = expand_hidden(outputs.T, targets.T, weights, z[:, column], u, v, activation, loss)
        free = False
    if l2 or l1:
        height = height + penalty(layers, l2, l1)
        kernel, bias = layers[coordinate.layer]
        w = kernel[jnp.minimum(row, rows - 1), column]
        w = w if bias is None else jnp.where(row < rows, w, bias[column])
        line = line + penalty_along(w, l2, l1) * jnp.where(free, 0, 1)
    base = line.base.at[0].set(height.astype(line.base.dtype))
    return PiecewisePolynomial(base, line.knots, line.jumps)


def centred(
    predictions: Float[Array, "S dN"], targets: Float[Array, "S dN"], loss: AnyLoss
) -> tuple[Float[Array, "S dN"], Float[Array, "S dN"]]:
    """Predictions and targets moved so that the targets are 0, where the loss cannot tell."""
    if isinstance(loss, Softmax) or loss.margin:
        return predictions, targets
    return predictions - targets, jnp.zeros_like(targets)


def expand_hidden(
    outputs: Float[Array, "dN S"],
    targets: Float[Array, "dN S"],
    weights: Float[Array, " S"],
    z: Float[Array, " S"],
    u: Float[Array, " S"],
    v: Float[Array, " dN"],
    activation: PiecewiseLinear,
    loss: AnyLoss,
) -> PiecewisePolynomial:
    """The mean loss when a hidden unit's pre-activations move along a line.

    Args:
        outputs: the predictions, as [`centred`][jaxmpd.expansion.centred] moves them.
        targets: as `centred` moves them.
        weights: of the samples, summing to 1.
        z: the unit's pre-activations.
        u: their rates of change.
        v: the unit's outgoing weights.
        activation: of the unit.
        loss: what is expanded; the softmax cross-entropy through its quadratic majorant.

    Returns:
        The function up to a constant. For a loss without pieces it bounds the loss's change.
    """
    if isinstance(loss, Softmax):
        gradient = loss.gradient(outputs.T, targets.T).T
        majorant = loss.quadratic_majorant(outputs.T, targets.T).weights.T
        signal, energy = dot(v, gradient) / 2, dot(v**2, majorant)
        return expand_unit(z, u, weights * signal, weights * energy, activation)
    if loss == SQUARED:
        signal = weights * dot(v, outputs)
        return expand_unit(z, u, signal, weights * jnp.sum(v**2), activation)
    curves = unit_curves(outputs.T, z, u, v, activation)
    return expand_curves(curves, targets.T, weights, loss, monotone=activation.monotone)


def expand_output(
    outputs: Float[Array, "dN S"],
    targets: Float[Array, "dN S"],
    weights: Float[Array, " S"],
    feature: Float[Array, " S"],
    column: Int[Array, ""] | int,
    loss: AnyLoss,
) -> PiecewisePolynomial:
    """The mean loss when one output moves in proportion to a feature.

    Args:
        outputs: as `expand_hidden` takes them, like the targets, weights and loss.
        targets: of the samples.
        weights: of the samples, summing to 1.
        feature: the rate of change of the output, a unit's activation or 1 for the bias.
        column: which output moves.
        loss: what is expanded.

    Returns:
        The function up to a constant. For a loss without pieces it bounds the loss's change.
    """
    if isinstance(loss, Softmax):
        gradient = loss.gradient(outputs.T, targets.T)[:, column]
        majorant = loss.quadratic_majorant(outputs.T, targets.T).weights[:, column]
        return polynomial(quadratic(feature, weights * gradient / 2, weights * majorant))
    if loss == SQUARED:
        return polynomial(quadratic(feature, weights * outputs[column], weights))
    still = jnp.zeros((feature.shape[0], 0), feature.dtype)
    curve = Curves(outputs[column][:, None], feature[:, None], still, still[..., None])
    return expand_curves(curve, targets[column][:, None], weights, loss)


def expand_unit(
    z: Float[Array, " S"],
    u: Float[Array, " S"],
    signal: Float[Array, " S"],
    energy: Float[Array, " S"],
    activation: PiecewiseLinear,
) -> PiecewisePolynomial:
    r"""The change of the squared error when a hidden unit's pre-activations move along a line.

    $$h(t) = \sum_s e_s \delta_s(t)^2 + 2 g_s \delta_s(t),
    \quad \delta_s(t) = f(z_s + t u_s) - f(z_s)$$

    At a kink of f where its value is f_k and its slope rises by m, the loss bends by
    2 m |u| (g + e (f_k - f(z))); its curvature jumps by e times the difference of the squared
    slopes. Both are differences taken at the kink itself: nothing cancels.

    Args:
        z: S pre-activations.
        u: their rates of change.
        signal: g, the weighted residuals seen through the outgoing weights.
        energy: e, the weighted squared norm of the outgoing weights.
        activation: f, with K kinks.

    Returns:
        A continuous piecewise quadratic with S K knots and convex pieces, 0 at the origin.
    """
    knots, beyond = crossings(activation, z, u)
    now = activation(z)
    slope = jnp.full_like(z, activation.slopes[0])
    bends, curves = [jnp.zeros((0, *z.shape), z.dtype)], [jnp.zeros((0, *z.shape), z.dtype)]
    pieces = zip(activation.slopes, activation.slopes[1:], activation.offsets, strict=False)
    for k, (before, after, offset) in enumerate(pieces):
        slope = jnp.where(beyond[k], after, slope)
        met, value = jnp.isfinite(knots[k]), before * activation.kinks[k] + offset
        bend = 2 * (after - before) * jnp.abs(u) * (signal + energy * (value - now))
        curve = (after - before) * (after + before) * jnp.abs(u) * u * energy
        bends.append(jnp.where(met, bend, 0)[None])
        curves.append(jnp.where(met, curve, 0)[None])
    bend, curve = jnp.concatenate(bends).reshape(-1), jnp.concatenate(curves).reshape(-1)
    base = quadratic(slope * u, signal, energy)
    return PiecewisePolynomial(
        base, knots.reshape(-1), jnp.stack([jnp.zeros_like(bend), bend, curve])
    )


def quadratic(
    rate: Float[Array, " S"], signal: Float[Array, " S"], energy: Float[Array, " S"]
) -> Float[Array, " 3"]:
    """The coefficients of sum_s energy_s (rate_s t)^2 + 2 signal_s rate_s t, constant first."""
    slope = 2 * jnp.sum(signal * rate)
    return jnp.stack([jnp.zeros_like(slope), slope, jnp.sum(energy * rate**2)])


def normalized_weights(batch: Batch) -> Float[Array, " S"]:
    """The samples' weights, scaled to sum to 1 (0 where all are 0)."""
    return shares(batch.weights, batch.inputs.shape[0], batch.inputs.dtype)


def _input_column(x: Float[Array, "S d"], row: Int[Array, ""] | int) -> Float[Array, " S"]:
    """Column `row` of x, ones for the bias (row = d)."""
    column = x[:, jnp.minimum(row, x.shape[1] - 1)]
    return jnp.where(row < x.shape[1], column, 1)
