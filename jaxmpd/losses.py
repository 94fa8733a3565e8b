"""Losses of a prediction against a target, and the samples they are averaged over."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float


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
    used = batch.weights[:, None] > 0
    return Batch(jnp.where(used, batch.inputs, 0), jnp.where(used, batch.targets, 0), batch.weights)


def weighted_mean(
    values: Float[Array, " S"], weights: Float[Array, " S"] | None
) -> Float[Array, ""]:
    """The mean of the values under the weights, a plain one without; 0 if all weights are 0."""
    if weights is None:
        return jnp.mean(values)
    total = jnp.sum(weights)
    # The value of a padded sample may be anything, NaN included: 0 * NaN is not 0.
    return jnp.sum(jnp.where(weights > 0, weights * values, 0)) / jnp.where(total > 0, total, 1)


def squared_error(
    predictions: Float[Array, "S dN"], targets: Float[Array, "S dN"]
) -> Float[Array, " S"]:
    """The squared Euclidean distance of each prediction from its target (eq. 5)."""
    return jnp.sum((predictions - targets) ** 2, axis=-1)
