"""Peers that optax does not hold ready for `fit`."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

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
