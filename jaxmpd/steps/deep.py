r"""The unit step for networks of any depth: each unit's incoming weights along one good direction.

Of a hidden unit with inputs h (and 1 for the bias), pre-activation z and the predictions'
sensitivity $\sigma_s = \partial \hat y_s / \partial z_s$, all of the unit's incoming weights move
along the Gauss-Newton direction

$$p = -\Big(\sum_s \omega_s |\sigma_s|^2 h_s h_s^\top + \lambda I\Big)^{-1}
\Big(\sum_s \omega_s (\sigma_s \cdot r_s) h_s + \lambda w\Big)$$

to the global minimum of the loss along it; the output layer is solved in closed form.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxmpd.activations import PiecewiseLinear
from jaxmpd.deep import UnitDirection, curves_along
from jaxmpd.expansion import normalized_weights
from jaxmpd.losses import Batch
from jaxmpd.network import Layer, pre_activations
from jaxmpd.piecewise import polynomial
from jaxmpd.primitives import dot
from jaxmpd.steps.line import minimum_along
from jaxmpd.steps.output import solve

DAMPING = 1e-4
"""Added to the diagonal of a unit's Gauss-Newton matrix, relative to its mean."""


def sweep(
    layers: Sequence[Layer],
    batch: Batch,
    key: PRNGKeyArray,
    activation: PiecewiseLinear,
    *,
    l2: float = 0.0,
    budget: int = 64,
    movable: Sequence[Layer] | None = None,
) -> tuple[Layer, ...]:
    """Move every hidden unit once, in random order layer by layer, and solve the output layer.

    Layers are visited from the last to the first: what is next to the output is cheapest. The mean
    squared error plus penalty on the batch never rises.

    Args:
        layers: a network of any depth.
        batch: S samples.
        key: of the order of the units.
        activation: after every layer but the last.
        l2: the factor of the squares of all parameters but the outputs' biases in the loss.
        budget: knots a sample and side where they are traced, more than two layers before the last.
        movable: NumPy flags in the parameters' places; None: all may move.

    Returns:
        The layers after the sweep.
    """
    weights = normalized_weights(batch)
    *hidden, output = [None] * len(layers) if movable is None else map(_restriction, movable)
    layers = solve_last(layers, batch, activation, l2, output)
    for k, free in reversed([*enumerate(hidden)]):
        key, order_key = jax.random.split(key)
        units = np.arange(layers[k].kernel.shape[1])
        units = units if free is None else np.flatnonzero(free.any(axis=0))
        if len(units) == 0:
            continue
        order = jax.random.permutation(order_key, jnp.asarray(units))

        def visit(
            layers: tuple[Layer, ...], unit: Int[Array, ""], k: int = k, free: Any = free
        ) -> tuple[tuple[Layer, ...], None]:
            return move_unit(layers, batch, weights, k, unit, activation, l2, budget, free), None

        layers, _ = jax.lax.scan(visit, layers, order)
        layers = solve_last(layers, batch, activation, l2, output)
    return layers


def _restriction(movable: Layer) -> Bool[np.ndarray, "d_in+1 d_out"] | None:
    """The flags of a layer's kernel and, below, its bias; None where all parameters may move."""
    if all(np.all(flags) for flags in jax.tree.leaves(movable)):
        return None
    kernel, bias = movable
    return np.vstack([kernel, np.zeros_like(kernel[0]) if bias is None else bias])


def move_unit(
    layers: Sequence[Layer],
    batch: Batch,
    weights: Float[Array, " S"],
    layer: int,
    unit: Int[Array, ""],
    activation: PiecewiseLinear,
    l2: float = 0.0,
    budget: int = 64,
    free: Bool[np.ndarray, "d_in+1 d_out"] | None = None,
) -> tuple[Layer, ...]:
    """The network with one unit's incoming weights at the minimum along their own direction.

    Of them those move that are free, the last row being the bias's; None: all.
    """
    layers = tuple(layers)
    z = pre_activations(layers, batch.inputs, activation)
    below = batch.inputs if layer == 0 else activation(z[layer - 1])
    h = jnp.concatenate([below, jnp.ones_like(below[:, :1])], axis=1)
    moves = activation.slope(z[layer][:, unit])[:, None] * layers[layer + 1].kernel[unit]
    for k in range(layer + 1, len(layers) - 1):
        moves = dot(moves * activation.slope(z[k]), layers[k + 1].kernel)
    residual = z[-1] - batch.targets

    kernel, bias = layers[layer]
    w = jnp.append(kernel[:, unit], 0 if bias is None else bias[unit])
    pull = weights * jnp.sum(moves * residual, axis=1)
    curvature = weights * jnp.sum(moves**2, axis=1)
    matrix, gradient = dot((curvature[:, None] * h).T, h), pull @ h + l2 * w
    if free is not None:
        may = jnp.asarray(free)[:, unit]
        matrix = jnp.where(may[:, None] & may, matrix, 0)
        gradient = jnp.where(may, gradient, 0)
    damping = DAMPING * jnp.trace(matrix) / len(w)
    damping = l2 + jnp.where(damping > 0, damping, 1)
    matrix = matrix + damping * jnp.eye(len(w), dtype=h.dtype)
    step = -jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(matrix), True), gradient)
    if bias is None:
        step = step.at[-1].set(0)

    along = UnitDirection(layer, unit, step[:-1], step[-1])
    resolved = curves_along(layers, batch.inputs, activation, along, budget=budget)
    penalty = polynomial(l2 * jnp.stack([jnp.zeros_like(w[0]), 2 * w @ step, step @ step]))
    t = minimum_along(resolved, batch.targets, weights, penalty=penalty).argmin
    # An infinite argmin, of a line without a minimum, makes the loss NaN: no move.
    moved = w + t * step
    new = Layer(
        kernel.at[:, unit].set(moved[:-1]), None if bias is None else bias.at[unit].set(moved[-1])
    )
    tried = (*layers[:layer], new, *layers[layer + 1 :])
    after = pre_activations(tried, batch.inputs, activation)[-1] - batch.targets
    rise = weights @ jnp.sum(after**2 - residual**2, axis=1) + l2 * (moved @ moved - w @ w)
    return jax.tree.map(lambda a, b: jnp.where(rise < 0, a, b), tried, layers)


def solve_last(
    layers: Sequence[Layer],
    batch: Batch,
    activation: PiecewiseLinear,
    l2: float = 0.0,
    free: Bool[np.ndarray, "d_in+1 d_out"] | None = None,
) -> tuple[Layer, ...]:
    """The network with its last layer at the minimum of the loss, unless rounding made it rise.

    Of its parameters those move that are free, the last row being the biases'; None: all.
    """
    *hidden, output = layers
    if free is not None and not free.any():
        return (*hidden, output)
    weights = normalized_weights(batch)
    z = pre_activations(layers, batch.inputs, activation)
    below = activation(z[-2]) if hidden else batch.inputs
    features = below.T
    old = output.kernel
    penalty = jnp.full(len(old), l2, old.dtype)
    if output.bias is not None:
        features = jnp.concatenate([features, jnp.ones_like(features[:1])])
        old = jnp.concatenate([old, output.bias[None]])
        penalty = jnp.append(penalty, 0)
    residual = (z[-1] - batch.targets).T
    allowed = None if free is None else jnp.asarray(free[: len(old)])
    change = solve(features, residual, weights, penalty, old, allowed)
    after = residual + dot(change.T, features)
    new = old + change
    rise = jnp.sum(weights * (after**2 - residual**2)) + penalty @ jnp.sum(new**2 - old**2, axis=1)
    new = jnp.where(rise < 0, new, old)
    if output.bias is None:
        return (*hidden, Layer(new, None))
    return (*hidden, Layer(new[:-1], new[-1]))
