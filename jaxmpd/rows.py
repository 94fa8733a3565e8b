"""A network of one hidden layer laid out unit by unit, as the steps work on it."""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from jaxmpd.activations import PiecewiseLinear
from jaxmpd.network import Layer
from jaxmpd.primitives import dot


class Rows(NamedTuple):
    """The parameters of a network of one hidden layer, or anything that stands in their places.

    Attributes:
        incoming: a row a hidden unit: its weights, then its bias.
        outgoing: a row a hidden unit: its weights into the outputs; last the outputs' biases.
    """

    incoming: Shaped[Array, "d1 d0+1"]
    outgoing: Shaped[Array, "d1+1 d2"]


def to_rows(layers: Sequence[Layer]) -> Rows:
    """The rows of a hidden and an output layer; a bias that a layer has not got is 0."""
    hidden, output = layers
    return Rows(
        jnp.concatenate([hidden.kernel.T, _bias(hidden)[:, None]], axis=1),
        jnp.concatenate([output.kernel, _bias(output)[None]]),
    )


def from_rows(rows: Rows, like: Sequence[Layer]) -> tuple[Layer, Layer]:
    """The layers again, with the biases that `like` has."""
    hidden, output = like
    return (
        Layer(rows.incoming[:, :-1].T, None if hidden.bias is None else rows.incoming[:, -1]),
        Layer(rows.outgoing[:-1], None if output.bias is None else rows.outgoing[-1]),
    )


def movable_rows(movable: Sequence[Layer]) -> Rows:
    """Flags in the parameters' places as rows of a NumPy array; an absent bias may not move."""
    hidden, output = (
        (layer.kernel, np.zeros_like(layer.kernel[0]) if layer.bias is None else layer.bias)
        for layer in movable
    )
    return Rows(
        np.column_stack([hidden[0].T, hidden[1]]),  # pyright: ignore[reportArgumentType]
        np.vstack([output[0], output[1]]),  # pyright: ignore[reportArgumentType]
    )


def with_ones(inputs: Float[Array, "S d0"]) -> Float[Array, "d0+1 S"]:
    """The inputs by columns, ones for the biases below them: a parameter's samples lie together."""
    return jnp.concatenate([inputs.T, jnp.ones((1, inputs.shape[0]), inputs.dtype)])


def predict(
    rows: Rows, x: Float[Array, "d0+1 S"], activation: PiecewiseLinear
) -> Float[Array, "d2 S"]:
    """The predictions, a column a sample."""
    features = activation(dot(rows.incoming, x))
    return dot(rows.outgoing[:-1].T, features) + rows.outgoing[-1][:, None]


def _bias(layer: Layer) -> Float[Array, " d"]:
    return jnp.zeros_like(layer.kernel[0]) if layer.bias is None else layer.bias
