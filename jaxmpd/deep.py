r"""Predictions of a multi-layer perceptron along a direction inside one layer, in closed form.

Along a direction inside a layer its pre-activations are affine, $a_s(t) = z_s + t u_s$, and meet
the K kinks of each unit that moves at known t. If a single unit moves, every pre-activation k of
the next layer is an affine image of one piecewise-linear function, $g_{sk}(t) = z_{sk} + w_k
(f(a_s(t)) - f(z_s))$: on each of the K + 1 pieces of f it meets its own K kinks at most once, and
where f is monotone it meets each at most once altogether. A sample's prediction then has at most

- K knots along a parameter, or a direction of one unit, of the last hidden layer;
- $K + K d$ knots one layer further back, $K + (K + 1) K d$ if f is not monotone, d being the width
  of the layer between: linear in the width, where the paper estimates exponential growth;
- $K d$ knots along a direction of the whole last hidden layer.

Elsewhere the knots are found one by one (`jaxmpd.trace`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxmpd.activations import PiecewiseLinear
from jaxmpd.composition import slope_on, unit_curves_through
from jaxmpd.curves import Curves, unit_curves
from jaxmpd.expansion import Coordinate
from jaxmpd.network import Layer, affine, pre_activations
from jaxmpd.piecewise import crossings
from jaxmpd.primitives import argsort, cumsum, dot
from jaxmpd.trace import Resolved, trace


class UnitDirection(NamedTuple):
    """A direction of one unit's incoming weights.

    Attributes:
        layer: which layer, counted from 0; a Python integer.
        column: the unit of the layer; may be traced.
        kernel: the change of its weights, one an input of the layer.
        bias: the change of its bias.
    """

    layer: int
    column: Int[Array, ""] | int
    kernel: Float[Array, " d_in"]
    bias: Float[Array, ""] | float = 0.0


class LayerDirection(NamedTuple):
    """A direction of a whole layer's parameters.

    Attributes:
        layer: which layer, counted from 0; a Python integer.
        change: the change of its kernel and bias.
    """

    layer: int
    change: Layer


Direction = Coordinate | UnitDirection | LayerDirection


def curves_along(
    layers: Sequence[Layer],
    inputs: Float[Array, "S d0"],
    activation: PiecewiseLinear,
    direction: Direction,
    *,
    budget: int = 64,
    chunk: int = 1024,
) -> Resolved:
    """The predictions along a parameter or a direction inside one layer.

    Args:
        layers: a network of any depth.
        inputs: S samples.
        activation: with K kinks, after every layer but the last.
        direction: what moves: a [`Coordinate`][jaxmpd.expansion.Coordinate], a
            [`UnitDirection`][jaxmpd.deep.UnitDirection] or a
            [`LayerDirection`][jaxmpd.deep.LayerDirection]. Rows and columns may be traced.
        budget: knots a sample where not all are listed: the nearest 2 budget + 1 of a layer's
            direction, this many a side of a trace.
        chunk: samples that a trace follows at a time.

    Returns:
        The curves and for each sample the interval of t in which they are exact, infinite for all
        closed forms but a layer's direction with more knots than the budget.

    Raises:
        ValueError: if there is no such layer.

    Example:
        >>> from jaxmpd import network
        >>> from jaxmpd.activations import RELU
        >>> layers = network.init(jax.random.key(0), (2, 50, 20, 1))
        >>> curves, _, _ = curves_along(layers, jnp.ones((7, 2)), RELU, Coordinate(0, 1, 5))
        >>> curves.knots.shape    # K + K d2 = 1 + 20
        (7, 21)
    """
    if not 0 <= direction.layer < len(layers):
        raise ValueError(
            f"direction.layer is {direction.layer}, but there are {len(layers)} layers: 0 to "
            f"{len(layers) - 1}"
        )
    z = pre_activations(layers, inputs, activation)
    behind = len(layers) - 1 - direction.layer
    features = inputs if direction.layer == 0 else activation(z[direction.layer - 1])
    whole = isinstance(direction, LayerDirection)
    if whole and behind == 0:
        return _everywhere(_affine_curves(z[-1], affine(direction.change, features)))
    if whole and behind == 1:
        u = affine(direction.change, features)
        return _layer_curves(z[-1], z[-2], u, layers[-1].kernel, activation, 2 * budget + 1)
    if whole or behind > 2:
        return _traced(layers, features, activation, direction, budget, chunk)
    u = _rates(direction, features)
    column = direction.column
    if behind == 0:
        return _everywhere(_affine_curves(z[-1], jnp.zeros_like(z[-1]).at[:, column].set(u)))
    moving = z[direction.layer][:, column]
    outgoing = layers[direction.layer + 1].kernel[column]
    if behind == 1:
        return _everywhere(unit_curves(z[-1], moving, u, outgoing, activation))
    return _everywhere(
        unit_curves_through(z[-1], moving, u, z[-2], outgoing, layers[-1].kernel, activation)
    )


def breakpoint_bound(widths: Sequence[int], layer: int, activation: PiecewiseLinear) -> int:
    """The most knots a sample's prediction has along a parameter: a product of widths in general.

    Args:
        widths: the number of inputs, of every hidden layer's units, and of outputs.
        layer: the parameter's layer, counted from 0.
        activation: with K kinks.

    Returns:
        The bound, exact for up to two hidden layers behind the parameter.

    Example:
        >>> from jaxmpd.activations import ABS, RELU
        >>> [breakpoint_bound((2, 50, 50, 1), 0, f) for f in (RELU, ABS)]
        [51, 101]
        >>> breakpoint_bound((2, 50, 50, 50, 1), 0, RELU)
        2651
    """
    kinks = len(activation.kinks)
    if layer == len(widths) - 2:
        return 0
    knots = kinks
    monotone = activation.monotone
    for width in widths[layer + 2 : -1]:
        # Each piece meets each kink of each unit at most once; a monotone function only once.
        knots += (1 if monotone else knots + 1) * kinks * width
        monotone = False  # a sum of several units, rising and falling
    return knots


def _everywhere(curves: Curves) -> Resolved:
    end = jnp.full(curves.start.shape[0], jnp.inf, curves.start.dtype)
    return Resolved(curves, -end, end)


def _rates(
    direction: Coordinate | UnitDirection, features: Float[Array, "S d"]
) -> Float[Array, " S"]:
    """How fast the unit's pre-activation moves."""
    if isinstance(direction, UnitDirection):
        change = Layer(direction.kernel[:, None], jnp.reshape(direction.bias, 1))
        return affine(change, features)[:, 0]
    rows = features.shape[1]
    column = features[:, jnp.minimum(direction.row, rows - 1)]
    return jnp.where(direction.row < rows, column, 1)


def _affine_curves(start: Float[Array, "S dN"], rate: Float[Array, "S dN"]) -> Curves:
    count, outputs = start.shape
    return Curves(
        start, rate, jnp.zeros((count, 0), start.dtype), jnp.zeros((count, 0, outputs), start.dtype)
    )


def _layer_curves(
    prediction: Float[Array, "S dN"],
    z: Float[Array, "S d"],
    u: Float[Array, "S d"],
    outgoing: Float[Array, "d dN"],
    activation: PiecewiseLinear,
    budget: int,
) -> Resolved:
    """All units of the last hidden layer move: K d knots, of which the nearest are kept."""
    knots, beyond = crossings(activation, z, u)
    slope = slope_on(activation, beyond, z.shape, z.dtype)
    rate = dot(slope * u, outgoing)
    kinks, (count, width) = len(activation.kinks), z.shape
    knots = jnp.moveaxis(knots, 0, 1).reshape(count, kinks * width)
    place, reach = _nearest(knots, budget)
    knots = jnp.take_along_axis(knots, place, axis=1, mode="fill", fill_value=jnp.inf)
    order = jax.vmap(argsort)(knots)
    knots, place = (jnp.take_along_axis(a, order, axis=1) for a in (knots, place))
    unit = place % width
    jumps = jnp.diff(jnp.asarray(activation.slopes, z.dtype))[place // width]
    size = jumps * jnp.abs(jnp.take_along_axis(u, unit, axis=1))
    bends = jnp.where(jnp.isfinite(knots), size, 0)[:, :, None] * outgoing[unit]
    reach = jnp.full(count, reach)
    return Resolved(Curves(prediction, rate, knots, bends), -reach, reach)


def _nearest(knots: Float[Array, "S N"], budget: int) -> tuple[Int[Array, "S M"], Float[Array, ""]]:
    """The places of all knots within a distance, N for none, and the distance.

    One for all samples, as the line is searched where all are resolved: it is halved until no
    sample has more knots within it than the budget. That costs less than to sort.
    """
    count, size = knots.shape
    if size <= budget:
        places = jnp.arange(size, dtype=jnp.int32)
        return jnp.broadcast_to(places, knots.shape), jnp.asarray(jnp.inf, knots.dtype)
    distance = jnp.abs(knots)
    some = jnp.sort(distance.reshape(-1)[:: max(1, count * size // 4096)])
    start = some[min(len(some) - 1, int(len(some) * budget / size))]
    start = jnp.minimum(start, jnp.finfo(knots.dtype).max)

    def crowded(reach: Float[Array, ""]) -> Bool[Array, ""]:
        return jnp.max(jnp.sum(distance < reach, axis=1)) > budget

    reach = jax.lax.while_loop(crowded, lambda reach: reach / 2, start)
    near = distance < reach
    # The j-th of all that are near, then its place in its row.
    met = cumsum(near.astype(jnp.float32).reshape(1, -1))[0]
    wanted = jnp.arange(1, count * budget + 1, dtype=jnp.float32)
    found = jnp.searchsorted(met, wanted, method="scan_unrolled")
    row = jnp.minimum(found // size, count - 1)
    before = jnp.append(0, met[size - 1 : -1 : size])
    column = jnp.where(found < count * size, wanted - 1 - before[row], budget).astype(jnp.int32)
    places = jnp.full((count, budget), size, jnp.int32)
    return places.at[row, column].set(found % size, mode="drop"), reach


def _traced(
    layers: Sequence[Layer],
    features: Float[Array, "S d"],
    activation: PiecewiseLinear,
    direction: Direction,
    budget: int,
    chunk: int,
) -> Resolved:
    """Any other direction: the part of the network from the moving layer on is followed."""
    first, *rest = layers[direction.layer :]
    if isinstance(direction, LayerDirection):
        change = direction.change
    else:
        kernel, bias = jnp.zeros_like(first.kernel), jnp.zeros_like(first.kernel[0])
        column = direction.column
        if isinstance(direction, UnitDirection):
            kernel = kernel.at[:, column].set(direction.kernel)
            bias = bias.at[column].set(direction.bias)
        else:
            kernel = kernel.at[direction.row, column].set(1, mode="drop")
            bias = bias.at[column].set(jnp.where(direction.row < len(kernel), 0, 1))
        change = Layer(kernel, bias)
    if first.bias is None:
        first = Layer(first.kernel, jnp.zeros_like(first.kernel[0]))
    if change.bias is None:
        change = Layer(change.kernel, jnp.zeros_like(change.kernel[0]))

    def predict(moving: Layer, sample: Float[Array, " d"]) -> Float[Array, " dN"]:
        return pre_activations([moving, *rest], sample[None], activation)[-1][0]

    return trace(predict, first, change, features, budget=budget, chunk=chunk)
