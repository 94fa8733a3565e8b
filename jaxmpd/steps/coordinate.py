"""The coordinate step: one parameter at a time, each to its global minimum (Algorithm 4)."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxmpd.activations import PiecewiseLinear
from jaxmpd.buckets import minimize_convex_pieces
from jaxmpd.expansion import centred, expand_hidden, expand_output, normalized_weights
from jaxmpd.losses import SQUARED, AnyLoss, Batch, Softmax
from jaxmpd.minimum import Minimum, minimize
from jaxmpd.network import Layer
from jaxmpd.penalties import check, penalty_along, size
from jaxmpd.piecewise import PiecewisePolynomial
from jaxmpd.primitives import dot
from jaxmpd.rows import Rows, from_rows, movable_rows, predict, to_rows, with_ones

Search = Callable[[PiecewisePolynomial], Minimum]


def search(line: PiecewisePolynomial) -> Minimum:
    """The global minimum, in the way that the platform does fastest.

    A CPU looks into the few buckets that a histogram leaves; elsewhere a sort is fast and, unlike
    a scattered sum, gives the same result in every run.
    """
    return jax.lax.platform_dependent(line, cpu=minimize_convex_pieces, default=minimize)


def coordinates(movable: Sequence[Layer]) -> np.ndarray:
    """The numbers of the parameters that may move, as `sweep` counts them.

    Hidden parameters come first, unit by unit (its weights, then its bias), then those of the
    output: the outgoing weights, unit by unit, and last the biases.

    Args:
        movable: the hidden and the output layer with a flag in each parameter's place.

    Returns:
        The parameters' numbers in ascending order.
    """
    flags = [np.asarray(part).ravel() for part in movable_rows(movable)]
    return np.flatnonzero(np.concatenate(flags)).astype(np.int32)


def random_order(key: PRNGKeyArray, numbers: np.ndarray, count: int) -> Int[Array, " count"]:
    """Parameters to visit, without repetition, in random order."""
    return jax.random.permutation(key, jnp.asarray(numbers))[:count]


def sweep(
    layers: Sequence[Layer],
    batch: Batch,
    order: Int[Array, " n"],
    activation: PiecewiseLinear,
    loss: AnyLoss = SQUARED,
    *,
    l2: float = 0.0,
    l1: float = 0.0,
    search: Search | None = None,
) -> tuple[Layer, Layer]:
    """Move parameters one after the other, each to the global minimum of the loss along it.

    The predictions are kept up to date in O(S) a parameter; a unit's pre-activations are recomputed
    from its weights at each visit. A parameter keeps its old value unless the loss at the rounded
    new one, penalties included, is lower. A smooth loss is searched through its interpolant, the
    softmax cross-entropy through a quadratic majorant at the current predictions; what decides is
    the loss itself.

    Args:
        layers: the hidden and the output layer.
        batch: S samples.
        order: the parameters' numbers, see `coordinates`.
        activation: of the hidden layer.
        loss: whose weighted mean over the samples falls.
        l2: weight of the sum of the parameters' squares, output biases left out, that is added.
        l1: weight of the sum of their absolute values.
        search: finds the global minimum along a parameter, by default in the way that suits the
            loss.

    Returns:
        The layers after the sweep.

    Raises:
        ValueError: if a penalty is negative.
    """
    check(l2, l1)
    rows, x = to_rows(layers), with_ones(batch.inputs)
    d1, d2 = layers[1].kernel.shape
    weights = normalized_weights(batch)
    predictions = predict(rows, x, activation)
    outputs, targets = (a.T for a in centred(predictions.T, batch.targets, loss))
    find = search or _suited(loss)

    def value(outputs: Float[Array, "dN S"]) -> Float[Array, ""]:
        if loss == SQUARED:
            return jnp.sum(weights * outputs**2)
        return jnp.sum(weights * loss(outputs.T, targets.T))

    def destination(line: PiecewisePolynomial, w: Float[Array, ""]) -> Float[Array, ""]:
        # An infinite argmin, of a line without a minimum, makes the loss NaN: no move.
        plain = line.degree == 2 and line.knots.shape[0] == 0
        new = w + (_vertex(line) if plain else find(line).argmin)
        if l1 == 0:
            return new
        # The knot of |w| is meant to be hit exactly.
        return jnp.where(jnp.abs(new) <= 4 * jnp.finfo(w.dtype).eps * jnp.abs(w), 0, new)

    def penalized(line: PiecewisePolynomial, w: Float[Array, ""], share: Any) -> Any:
        return line + share * penalty_along(w, l2, l1) if l2 or l1 else line

    def rise(new: Float[Array, ""], old: Float[Array, ""], share: Any) -> Any:
        return share * (size(new, l2, l1) - size(old, l2, l1)) if l2 or l1 else 0

    def move_incoming(number: Int[Array, ""], state: Any) -> Any:
        incoming, outgoing, outputs, height = state
        unit, row = number // x.shape[0], number % x.shape[0]
        w, v, u = incoming[unit], outgoing[unit], x[row]
        z = dot(w, x)
        line = expand_hidden(outputs, targets, weights, z, u, v, activation, loss)
        new = destination(penalized(line, w[row], 1), w[row])
        moved = activation(z + (new - w[row]) * u) - activation(z)
        tried = outputs + v[:, None] * moved
        now = value(tried)
        better = now + rise(new, w[row], 1) < height
        return (
            incoming.at[unit, row].set(jnp.where(better, new, w[row])),
            outgoing,
            jnp.where(better, tried, outputs),
            jnp.where(better, now, height),
        )

    def move_outgoing(number: Int[Array, ""], state: Any) -> Any:
        incoming, outgoing, outputs, height = state
        number = number - d1 * x.shape[0]
        unit, column = number // d2, number % d2
        feature = activation(dot(incoming[jnp.minimum(unit, d1 - 1)], x))
        feature = jnp.where(unit < d1, feature, 1)
        old = outgoing[unit, column]
        line = expand_output(outputs, targets, weights, feature, column, loss)
        share = jnp.where(unit < d1, 1, 0)  # biases of the output are not penalised
        new = destination(penalized(line, old, share), old)
        tried = outputs.at[column].add((new - old) * feature)
        now = value(tried)
        better = now + rise(new, old, share) < height
        return (
            incoming,
            outgoing.at[unit, column].set(jnp.where(better, new, old)),
            jnp.where(better, tried, outputs),
            jnp.where(better, now, height),
        )

    def visit(state: Any, number: Int[Array, ""]) -> tuple[Any, None]:
        is_hidden = number < d1 * x.shape[0]
        return jax.lax.cond(is_hidden, move_incoming, move_outgoing, number, state), None

    state = (*rows, outputs, value(outputs))
    (incoming, outgoing, _, _), _ = jax.lax.scan(visit, state, order)
    return from_rows(Rows(incoming, outgoing), layers)


def _suited(loss: AnyLoss) -> Search:
    """The search without sorting wants convex pieces."""
    return search if isinstance(loss, Softmax) or loss.convex_pieces else minimize


def _vertex(line: PiecewisePolynomial) -> Float[Array, ""]:
    """Where a quadratic without knots is least; 0 where it is flat."""
    _, slope, curvature = line.base
    flat = curvature <= 0
    return jnp.where(flat, 0, -slope / (2 * jnp.where(flat, 1, curvature)))
