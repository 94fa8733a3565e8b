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

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxmpd.activations import PiecewiseLinear
from jaxmpd.losses import Batch, without_padding
from jaxmpd.network import PyTree, affine, as_layers
from jaxmpd.piecewise import PiecewisePolynomial, crossings, polynomial


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
) -> PiecewisePolynomial:
    """The mean squared error as a function of the change of one parameter (eqs 39, 21 and 22).

    Args:
        params: a network of one hidden layer, in any tree that `as_layers` reads.
        batch: S samples.
        coordinate: the parameter; row and column may be traced, so that `vmap` runs over them
            (then it is up to the caller that there is such a parameter).
        activation: with K kinks.

    Returns:
        A piecewise quadratic with S K knots for a hidden parameter, none for one of the output;
        its origin is the parameter's current value.

    Raises:
        ValueError: if the network does not have one hidden layer or no such parameter.

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
    weights = normalized_weights(batch)
    z = affine(hidden, batch.inputs)
    features = activation(z)
    residual = affine(output, features) - batch.targets
    loss = polynomial(
        jnp.stack([jnp.sum(weights[:, None] * residual**2), *[jnp.zeros((), weights.dtype)] * 2])
    )
    if coordinate.layer == 1:
        u = _input_column(features, coordinate.row)
        return loss + polynomial(quadratic(u, weights * residual[:, coordinate.column], weights))
    v = output.kernel[coordinate.column]
    return loss + expand_unit(
        z[:, coordinate.column],
        _input_column(batch.inputs, coordinate.row),
        weights * (residual @ v),
        weights * jnp.sum(v**2),
        activation,
    )


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
    count = batch.inputs.shape[0]
    dtype: Any = batch.inputs.dtype
    if batch.weights is None:
        return jnp.full(count, 1 / count, dtype)
    total = jnp.sum(batch.weights)
    return (batch.weights / jnp.where(total > 0, total, 1)).astype(dtype)


def _input_column(x: Float[Array, "S d"], row: Int[Array, ""] | int) -> Float[Array, " S"]:
    """Column `row` of x, ones for the bias (row = d)."""
    column = x[:, jnp.minimum(row, x.shape[1] - 1)]
    return jnp.where(row < x.shape[1], column, 1)
