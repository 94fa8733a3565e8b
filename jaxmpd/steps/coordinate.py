"""The coordinate step: one parameter at a time, each to its global minimum (Algorithm 4)."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxmpd.activations import PiecewiseLinear
from jaxmpd.buckets import minimize_convex_pieces
from jaxmpd.expansion import expand_unit, normalized_weights, quadratic
from jaxmpd.losses import Batch
from jaxmpd.minimum import Minimum, minimize
from jaxmpd.network import Layer
from jaxmpd.piecewise import PiecewisePolynomial

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
    hidden, output = (
        (layer.kernel, np.zeros_like(layer.kernel[0]) if layer.bias is None else layer.bias)
        for layer in movable
    )
    flags = (np.column_stack([hidden[0].T, hidden[1]]), np.vstack([output[0], output[1]]))
    return np.flatnonzero(np.concatenate([f.ravel() for f in flags])).astype(np.int32)


def random_order(key: PRNGKeyArray, numbers: np.ndarray, count: int) -> Int[Array, " count"]:
    """Parameters to visit, without repetition, in random order."""
    return jax.random.permutation(key, jnp.asarray(numbers))[:count]


def sweep(
    layers: Sequence[Layer],
    batch: Batch,
    order: Int[Array, " n"],
    activation: PiecewiseLinear,
    search: Search = search,
) -> tuple[Layer, Layer]:
    """Move parameters one after the other, each to the global minimum of the loss along it.

    The residuals are kept up to date in O(S) a parameter; a unit's pre-activations are recomputed
    from its weights at each visit. A parameter keeps its old value unless the loss at the rounded
    new one is lower.

    Args:
        layers: the hidden and the output layer.
        batch: S samples.
        order: the parameters' numbers, see `coordinates`.
        activation: of the hidden layer.
        search: finds the global minimum along a hidden parameter.

    Returns:
        The layers after the sweep.
    """
    hidden, output = layers
    d1, d2 = output.kernel.shape
    weights = normalized_weights(batch)
    ones = jnp.ones((1, batch.inputs.shape[0]), batch.inputs.dtype)
    # Rows, so that a parameter's samples lie together: inputs and 1, units and 1, outputs.
    x = jnp.concatenate([batch.inputs.T, ones])
    incoming = jnp.concatenate([hidden.kernel.T, _bias(hidden)[:, None]], axis=1)
    outgoing = jnp.concatenate([output.kernel, _bias(output)[None]])
    residual = outgoing[:-1].T @ activation(_dot(incoming, x)) + outgoing[-1][:, None]
    residual = residual - batch.targets.T
    loss = jnp.sum(weights * residual**2)
    state = (incoming, outgoing, residual, loss)

    def move_incoming(number: Int[Array, ""], state: Any) -> Any:
        incoming, outgoing, residual, loss = state
        unit, row = number // x.shape[0], number % x.shape[0]
        w, v, u = incoming[unit], outgoing[unit], x[row]
        z = _dot(w, x)
        line = expand_unit(z, u, weights * _dot(v, residual), weights * jnp.sum(v**2), activation)
        # An infinite argmin, of a line without a minimum, makes the loss NaN: no move.
        new = w[row] + search(line).argmin
        moved = activation(z + (new - w[row]) * u) - activation(z)
        tried = residual + v[:, None] * moved
        now = jnp.sum(weights * tried**2)
        better = now < loss
        return (
            incoming.at[unit, row].set(jnp.where(better, new, w[row])),
            outgoing,
            jnp.where(better, tried, residual),
            jnp.where(better, now, loss),
        )

    def move_outgoing(number: Int[Array, ""], state: Any) -> Any:
        incoming, outgoing, residual, loss = state
        number = number - d1 * x.shape[0]
        unit, column = number // d2, number % d2
        feature = activation(_dot(incoming[jnp.minimum(unit, d1 - 1)], x))
        feature = jnp.where(unit < d1, feature, 1)
        _, slope, curvature = quadratic(feature, weights * residual[column], weights)
        flat = curvature <= 0
        old = outgoing[unit, column]
        new = old + jnp.where(flat, 0, -slope / (2 * jnp.where(flat, 1, curvature)))
        tried = residual.at[column].add((new - old) * feature)
        now = jnp.sum(weights * tried**2)
        better = now < loss
        return (
            incoming,
            outgoing.at[unit, column].set(jnp.where(better, new, old)),
            jnp.where(better, tried, residual),
            jnp.where(better, now, loss),
        )

    def visit(state: Any, number: Int[Array, ""]) -> tuple[Any, None]:
        is_hidden = number < d1 * x.shape[0]
        return jax.lax.cond(is_hidden, move_incoming, move_outgoing, number, state), None

    (incoming, outgoing, _, _), _ = jax.lax.scan(visit, state, order)
    return (
        Layer(incoming[:, :-1].T, None if hidden.bias is None else incoming[:, -1]),
        Layer(outgoing[:-1], None if output.bias is None else outgoing[-1]),
    )


def _bias(layer: Layer) -> Float[Array, " d"]:
    return jnp.zeros_like(layer.kernel[0]) if layer.bias is None else layer.bias


def _dot(a: Float[Array, "*m d"], b: Float[Array, "d S"]) -> Float[Array, "*m S"]:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
