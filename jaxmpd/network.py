"""Multi-layer perceptrons: parameters in any tree, the forward pass, the pre-activations."""

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxmpd.activations import PiecewiseLinear
from jaxmpd.primitives import dot

PyTree = Any


class Layer(NamedTuple):
    """An affine layer, z -> z kernel + bias (eq. 36), laid out as flax lays it out.

    Attributes:
        kernel: weights, one row an input, one column a unit.
        bias: one entry a unit, or None for a layer without.
    """

    kernel: Float[Array, "d_in d_out"]
    bias: Float[Array, " d_out"] | None


def init(key: PRNGKeyArray, widths: Sequence[int], dtype: Any = jnp.float32) -> tuple[Layer, ...]:
    """Random parameters: zero-mean Gaussian kernels of Glorot's scale, zero biases (Algorithm 3).

    Args:
        key: a PRNG key.
        widths: the number of inputs, of every hidden layer's units, and of outputs.
        dtype: of the parameters.

    Returns:
        One layer for each pair of neighbouring widths.

    Raises:
        ValueError: if there are fewer than two widths or one is not positive.

    Example:
        >>> [layer.kernel.shape for layer in init(jax.random.key(0), (2, 500, 1))]
        [(2, 500), (500, 1)]
    """
    if len(widths) < 2 or min(widths) < 1:
        raise ValueError(f"widths must be at least two positive numbers, got {tuple(widths)}")
    keys = jax.random.split(key, len(widths) - 1)
    # jax's own glorot_normal cuts the Gaussian off.
    glorot = jax.nn.initializers.variance_scaling(1.0, "fan_avg", "normal")
    return tuple(
        Layer(glorot(k, (d_in, d_out), dtype), jnp.zeros(d_out, dtype))
        for k, d_in, d_out in zip(keys, widths, widths[1:], strict=False)
    )


def as_layers(params: PyTree) -> tuple[tuple[Layer, ...], Callable[[Sequence[Layer]], PyTree]]:
    """The layers of an MLP's parameters kept in any tree, and the way back.

    A layer is a subtree of one matrix and at most one vector; layers stand in the tree's order,
    with numbers in the names compared as numbers (`Dense_2` before `Dense_10`). Dictionaries,
    flax's FrozenDict and nnx.State, tuples of [`Layer`][jaxmpd.network.Layer]: all will do.

    Args:
        params: the parameters.

    Returns:
        The layers, and a function that puts layers of the same shapes back into the tree.

    Raises:
        ValueError: if the leaves do not pair up or the widths of neighbouring layers differ.

    Example:
        >>> params = {"Dense_0": {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(3)},
        ...           "Dense_1": {"kernel": jnp.ones((3, 1)), "bias": jnp.zeros(1)}}
        >>> layers, rebuild = as_layers(params)
        >>> [layer.kernel.shape for layer in layers]
        [(2, 3), (3, 1)]
        >>> jax.tree.structure(rebuild(layers)) == jax.tree.structure(params)
        True
    """
    leaves, treedef = jax.tree_util.tree_flatten_with_path(params)
    parents: dict[Any, list[int]] = {}
    for position, (path, _) in enumerate(leaves):
        parents.setdefault(parent(path), []).append(position)

    def natural(name: str) -> list[int | str]:
        return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]

    layers: list[Layer] = []
    places: list[tuple[int, int | None]] = []
    for name in sorted(parents, key=natural):
        positions = parents[name]
        ranks = [jnp.ndim(leaves[i][1]) for i in positions]
        if sorted(ranks) not in ([2], [1, 2]):
            shapes = [jnp.shape(leaves[i][1]) for i in positions]
            raise ValueError(
                f"params{name} holds arrays of shapes {shapes}: a layer is one matrix (kernel) and "
                "at most one vector (bias)"
            )
        kernel = positions[ranks.index(2)]
        bias = positions[ranks.index(1)] if 1 in ranks else None
        places.append((kernel, bias))
        layers.append(Layer(leaves[kernel][1], None if bias is None else leaves[bias][1]))
    for before, after in itertools.pairwise(layers):
        if before.kernel.shape[1] != after.kernel.shape[0]:
            raise ValueError(
                f"kernels of shapes {[layer.kernel.shape for layer in layers]} do not chain: "
                "each must have as many rows as the one before has columns"
            )

    def rebuild(new: Sequence[Layer]) -> PyTree:
        flat = [leaf for _, leaf in leaves]
        for (kernel, bias), layer in zip(places, new, strict=True):
            flat[kernel] = layer.kernel
            if bias is not None:
                flat[bias] = layer.bias
        return jax.tree.unflatten(treedef, flat)

    return tuple(layers), rebuild


def parent(path: Sequence[Any]) -> str:
    """The name of the subtree that a leaf at this path stands in, a layer's for a kernel."""
    # nnx wraps a leaf in a Variable: the parent is the last key but those of the wrapper.
    keys = [k for k in path if not isinstance(k, jax.tree_util.GetAttrKey) or k.name != "value"]
    return jax.tree_util.keystr(tuple(keys[:-1]))


def affine(layer: Layer, x: Float[Array, "S d_in"]) -> Float[Array, "S d_out"]:
    """The layer's affine map (eq. 36), in full precision on every device."""
    z = dot(x, layer.kernel)
    return z if layer.bias is None else z + layer.bias


def pre_activations(
    layers: Sequence[Layer], inputs: Float[Array, "S d0"], activation: PiecewiseLinear
) -> list[Float[Array, "S d"]]:
    """The values before the activation in every layer, the last one's being the prediction."""
    z = affine(layers[0], inputs)
    values = [z]
    for layer in layers[1:]:
        z = affine(layer, activation(z))
        values.append(z)
    return values


def apply(
    params: PyTree, inputs: Float[Array, "S d0"], activation: PiecewiseLinear
) -> Float[Array, "S dN"]:
    """The network's prediction, with the activation after every layer but the last (eq. 38)."""
    return pre_activations(as_layers(params)[0], inputs, activation)[-1]
