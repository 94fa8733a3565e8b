"""Where training starts: hidden units whose kinks lie among the data."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from jaxmpd.network import Layer


def spread(
    key: PRNGKeyArray, widths: Sequence[int], deviation: float = 14.0, dtype: Any = jnp.float32
) -> tuple[Layer, ...]:
    """Random parameters whose hidden pre-activations have a given spread.

    Glorot's scale ([`init`][jaxmpd.network.init]) gives 500 units on two inputs pre-activations
    of standard deviation 0.1: every sample lies between the kinks at -1 and 1, the network starts
    as a linear function, and gradient methods spend dozens of passes before they leave it. Here
    the kinks of most units cut through the data from the beginning.

    Args:
        key: a PRNG key.
        widths: the number of inputs, of every hidden layer's units, and of outputs.
        deviation: the standard deviation of a hidden pre-activation, for inputs of zero mean and
            unit variance.
        dtype: of the parameters.

    Returns:
        One layer for each pair of neighbouring widths, with Gaussian kernels and hidden biases.

    Raises:
        ValueError: if there are fewer than two widths, one is not positive, or the deviation is
            not positive and finite.

    Example:
        >>> hidden, output = spread(jax.random.key(0), (2, 500, 1), deviation=4.0)
        >>> x = jax.random.normal(jax.random.key(1), (100, 2))
        >>> round(float(jnp.std(x @ hidden.kernel + hidden.bias)))
        4
    """
    if len(widths) < 2 or min(widths) < 1:
        raise ValueError(f"widths must be at least two positive numbers, got {tuple(widths)}")
    if not 0 < deviation < float("inf"):
        raise ValueError(f"deviation must be positive and finite, got {deviation}")
    *hidden, output = zip(jax.random.split(key, len(widths) - 1), widths, widths[1:], strict=False)
    layers: list[Layer] = []
    for k, d_in, d_out in hidden:
        scale = deviation / (d_in + 1) ** 0.5
        numbers = scale * jax.random.normal(k, (d_in + 1, d_out), dtype)
        layers.append(Layer(numbers[:-1], numbers[-1]))
    k, d_in, d_out = output
    kernel = jax.random.normal(k, (d_in, d_out), dtype) / d_in**0.5
    return (*layers, Layer(kernel, jnp.zeros(d_out, dtype)))
