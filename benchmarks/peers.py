"""Peers that optax does not hold ready for `fit`."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from jaxmpd.activations import PiecewiseLinear
from jaxmpd.chunks import in_chunks, summed
from jaxmpd.expansion import normalized_weights
from jaxmpd.losses import Batch, squared_error
from jaxmpd.network import apply
from jaxmpd.penalties import penalty

CHUNK = 1024


def lbfgs(
    activation: PiecewiseLinear, l2: float, memory: int = 20, iterations: int = 20
) -> optax.GradientTransformationExtraArgs:
    """Optax's L-BFGS on all samples, run fairly.

    A naive loop loses most of its time to arrays of all samples times all units that do not fit
    the cache, and to taking every gradient twice. Here samples come in chunks, value and gradient
    in one pass, and what the line search has evaluated last is not evaluated again.

    Args:
        activation: of the hidden layer.
        l2: the ridge, on all parameters but the outputs' biases.
        memory: pairs that it remembers.
        iterations: a call of `update`, so that calls are not too short to time.
    """
    method = optax.lbfgs(memory_size=memory)

    def update(updates: Any, state: Any, params: Any, *, batch: Batch, **others: Any) -> Any:
        del updates, others
        weights = normalized_weights(batch)
        chunks = in_chunks(Batch(batch.inputs, batch.targets, weights), CHUNK)

        def share(params: Any, chunk: Batch) -> jax.Array:
            predictions = apply(params, chunk.inputs, activation)
            return jnp.sum(chunk.weights * squared_error(predictions, chunk.targets))

        error = summed(share, chunks)

        def objective(params: Any) -> jax.Array:
            return error(params) + penalty(params, l2)

        known = optax.value_and_grad_from_state(objective)

        def iterate(carry: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], None]:
            params, state = carry
            value, grad = known(params, state=state)
            change, state = method.update(
                grad, state, params, value=value, grad=grad, value_fn=objective
            )
            return (optax.apply_updates(params, change), state), None

        (new, state), _ = jax.lax.scan(iterate, (params, state), length=iterations)
        return jax.tree.map(jnp.subtract, new, params), state

    return optax.GradientTransformationExtraArgs(method.init, update)


class Damped(NamedTuple):
    """State of Levenberg-Marquardt: the damping, and the factor it grows by if a step fails."""

    damping: jax.Array
    growth: jax.Array


def levenberg_marquardt(
    activation: PiecewiseLinear, l2: float
) -> optax.GradientTransformationExtraArgs:
    """Levenberg and Marquardt's method on all samples, one iteration an update.

    The normal equations are summed over chunks of samples, so that the Jacobian of all of them is
    never held; the damping follows Nielsen. A step that does not lower the objective is not taken.

    Args:
        activation: of the hidden layer.
        l2: the ridge, on all parameters but the outputs' biases.
    """

    def init(params: Any) -> Damped:
        dtype = jnp.result_type(*jax.tree.leaves(params))
        return Damped(jnp.asarray(1e-3, dtype), jnp.asarray(2, dtype))

    def update(updates: Any, state: Damped, params: Any, *, batch: Batch, **others: Any) -> Any:
        del updates, others
        chunks = in_chunks(Batch(batch.inputs, batch.targets, normalized_weights(batch)), CHUNK)
        flat, restore = ravel_pytree(params)

        def residuals(flat: jax.Array, chunk: Batch) -> jax.Array:
            gap = apply(restore(flat), chunk.inputs, activation) - chunk.targets
            return (jnp.sqrt(chunk.weights)[:, None] * gap).ravel()

        def objective(flat: jax.Array) -> jax.Array:
            error = jax.lax.map(lambda chunk: jnp.sum(residuals(flat, chunk) ** 2), chunks)
            return jnp.sum(error) + penalty(restore(flat), l2)

        def add(total: tuple[jax.Array, jax.Array], chunk: Batch) -> Any:
            def one(flat: jax.Array, inputs: jax.Array) -> jax.Array:
                return apply(restore(flat), inputs[None], activation)[0]

            slopes = jax.vmap(jax.jacrev(one), (None, 0))(flat, chunk.inputs)
            rows = (jnp.sqrt(chunk.weights)[:, None, None] * slopes).reshape(-1, flat.size)
            return (total[0] + rows.T @ rows, total[1] + residuals(flat, chunk) @ rows), None

        zero = (jnp.zeros((flat.size, flat.size), flat.dtype), jnp.zeros_like(flat))
        (matrix, slope), _ = jax.lax.scan(add, zero, chunks)

        def half_slope(flat: jax.Array) -> jax.Array:
            return jax.grad(lambda flat: penalty(restore(flat), l2))(flat) / 2

        # The penalty is quadratic and without cross terms: its slope at ones is its curvature.
        matrix, slope = matrix + jnp.diag(half_slope(jnp.ones_like(flat))), slope + half_slope(flat)
        scale = jnp.max(jnp.diag(matrix))
        factor = jax.scipy.linalg.cho_factor(
            matrix + state.damping * scale * jnp.eye(flat.size, dtype=flat.dtype)
        )
        change = -jax.scipy.linalg.cho_solve(factor, slope)
        promised = change @ (state.damping * scale * change - slope)
        gained = objective(flat) - objective(flat + change)
        taken = gained > 0
        ratio = gained / promised
        shrink = jnp.maximum(1 / 3, 1 - (2 * ratio - 1) ** 3)
        state = Damped(
            jnp.where(taken, state.damping * shrink, state.damping * state.growth),
            jnp.where(taken, 2, 2 * state.growth),
        )
        return restore(jnp.where(taken, change, 0)), state

    return optax.GradientTransformationExtraArgs(init, update)
