r"""The polishing step: L-BFGS in the coordinates that whiten the Gauss-Newton matrix by blocks.

Exact searches place the units globally; what is left is a smooth problem of bad condition. Its
Gauss-Newton matrix is approximated by one block a layer, and in it by

- a block of its own for every unit where the layer has few inputs,
- one block for all units, times the mean square of the predictions' sensitivity to each, where it
  has many (for the output layer that is no approximation).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from jaxmpd import lbfgs
from jaxmpd.activations import PiecewiseLinear
from jaxmpd.chunks import in_chunks, summed
from jaxmpd.expansion import normalized_weights
from jaxmpd.losses import SQUARED, AnyLoss, Batch
from jaxmpd.network import Layer, pre_activations
from jaxmpd.penalties import penalty

SAMPLES = 4096
"""Samples that the whitening looks at."""

FEW = 24
"""Inputs, the bias among them, below which each unit of a layer gets a block of its own."""

DAMPING_OWN, DAMPING_COMMON, DAMPING_SHARED = 1e-3, 1e-2, 1e-4
"""Added to the diagonal of a unit's own block, relative to its mean and to the mean over all units;
and to that of a block shared by the units of a layer."""

STRAIGHT = 1e-3
"""The least curvature that a loss is taken to have: straight pieces are left the quickest way."""

CHUNK = 1 << 19
"""Entries of a layer's values that a chunk of samples may have."""

LINE_SEARCH_STEPS = 12
"""Evaluations after which a line search gives up."""


class Whitening(NamedTuple):
    """The Gauss-Newton matrix of one layer: for unit d, factor factor^T times scale_d.

    Attributes:
        factor: lower, of each unit's own block or of the one that they share.
        scale: a number a unit; 1 where each has a block of its own.
    """

    factor: Float[Array, "... d d"]
    scale: Float[Array, " units"]


def whitening(
    layers: Sequence[Layer],
    batch: Batch,
    activation: PiecewiseLinear,
    loss: AnyLoss = SQUARED,
    l2: float = 0.0,
) -> tuple[Whitening, ...]:
    r"""The blocks of the Gauss-Newton matrix of the loss at the current parameters.

    With the sensitivities $\sigma_{skd} = \partial \hat y_{sk} / \partial z_{sd}$, the curvatures
    $c_{sk}$ of the loss and a layer's inputs h (and 1), the block of unit d is

    $$\sum_s \omega_s \Big(\sum_k \tfrac12 c_{sk} \sigma_{skd}^2\Big) h_s h_s^\top ;$$

    where units share one, the sum of $\omega_s h_s h_s^\top$ times the mean of the bracket.

    Args:
        layers: a network of any depth.
        batch: S samples.
        activation: after every layer but the last.
        loss: whose curvature counts, at least `STRAIGHT`.
        l2: weight of the squares of the parameters.

    Returns:
        The damped blocks, layer by layer.
    """
    weights = normalized_weights(batch)
    z = pre_activations(layers, batch.inputs, activation)
    # How much the predictions move with each pre-activation, from the last layer to the first;
    # one slice an output.
    outputs = z[-1].shape[1]
    bend = jnp.sqrt(jnp.maximum(loss.gauss_newton(z[-1], batch.targets).weights, STRAIGHT))
    moves = jnp.eye(outputs, dtype=bend.dtype)[:, None] * bend
    result: list[Whitening] = []
    for k in range(len(layers) - 1, -1, -1):
        below = activation(z[k - 1]) if k else batch.inputs
        rows = jnp.concatenate([below, jnp.ones_like(below[:, :1])], axis=1)
        if k < len(layers) - 1:
            moves = (moves @ layers[k + 1].kernel.T) * activation.slope(z[k])
        squares = jnp.sum(moves**2, axis=0)
        d = rows.shape[1]
        eye = jnp.eye(d, dtype=rows.dtype)
        if d < FEW and k < len(layers) - 1:
            products = (weights[:, None, None] * rows[:, :, None] * rows[:, None]).reshape(
                -1, d * d
            )
            blocks = (squares.T @ products).reshape(-1, d, d)
            size = jnp.trace(blocks, axis1=1, axis2=2)
            damping = DAMPING_OWN * size + DAMPING_COMMON * jnp.mean(size) + l2
            scale = jnp.ones_like(size)
        else:
            blocks = (weights[:, None] * rows).T @ rows
            damping = DAMPING_SHARED * jnp.trace(blocks) / d + l2
            scale = weights @ squares
            scale = scale + DAMPING_COMMON * jnp.mean(scale)
        # Where no unit of a layer moves the predictions there is nothing to go by: the gradient.
        damping, scale = (jnp.where(a > 0, a, 1) for a in (damping, scale))
        result.append(
            Whitening(jnp.linalg.cholesky(blocks + damping[..., None, None] * eye), scale)
        )
    return tuple(result[::-1])


def precondition(factors: Sequence[Whitening], gradient: Sequence[Layer]) -> tuple[Layer, ...]:
    """The inverse of the approximate Gauss-Newton matrix times a gradient.

    Args:
        factors: see `whitening`.
        gradient: a layer each.

    Returns:
        The product, in the gradient's shape.
    """
    result: list[Layer] = []
    for (factor, scale), (kernel, bias) in zip(factors, gradient, strict=True):
        # A layer without a bias: its row in the block meets a zero, an approximation again.
        row = jnp.zeros_like(kernel[0]) if bias is None else bias
        g = jnp.concatenate([kernel, row[None]])
        solve = jax.vmap(_solve, (0, 1), 1) if factor.ndim == 3 else _solve
        g = solve(factor, g)
        g = g / scale
        result.append(Layer(g[:-1], None if bias is None else g[-1]))
    return tuple(result)


def _solve(factor: Float[Array, "d d"], right: Float[Array, "d *k"]) -> Float[Array, "d *k"]:
    return jax.scipy.linalg.cho_solve((factor, True), right)


def polish(
    layers: Sequence[Layer],
    batch: Batch,
    activation: PiecewiseLinear,
    loss: AnyLoss = SQUARED,
    *,
    l2: float = 0.0,
    movable: Sequence[Layer] | None = None,
    iterations: int = 100,
    memory: int = 20,
) -> tuple[Layer, ...]:
    """Some iterations of L-BFGS on the loss of a batch plus ridge, which does not rise.

    Args:
        layers: a network of any depth.
        batch: S samples.
        activation: after every layer but the last.
        loss: whose weighted mean falls.
        l2: weight of the sum of the squares of all parameters but the outputs' biases.
        movable: flags in the parameters' places; None: all may move.
        iterations: their number.
        memory: pairs that L-BFGS remembers.

    Returns:
        The layers after the iterations.
    """
    layers = tuple(layers)
    weights = normalized_weights(batch)
    samples = Batch(batch.inputs, batch.targets, weights)
    every = max(1, len(weights) // SAMPLES)
    sample = jax.tree.map(lambda a: a[::every], samples)
    factors = whitening(layers, sample, activation, loss, l2)
    widest = max(layer.kernel.shape[1] for layer in layers)
    chunks = in_chunks(samples, max(1, CHUNK // widest))

    def share(layers: Sequence[Layer], chunk: Batch) -> Float[Array, ""]:
        predictions = pre_activations(layers, chunk.inputs, activation)[-1]
        return jnp.vdot(jnp.asarray(chunk.weights), loss(predictions, chunk.targets))

    mean = summed(share, chunks)

    def objective(layers: Sequence[Layer]) -> Float[Array, ""]:
        return mean(layers) + penalty(layers, l2)

    def restricted(change: Any) -> Any:
        if movable is None:
            return change
        return jax.tree.map(lambda c, m: jnp.where(m, c, 0), change, tuple(movable))

    search = optax.scale_by_zoom_linesearch(LINE_SEARCH_STEPS, initial_guess_strategy="one")

    def iterate(carry: Any, _: None) -> tuple[Any, None]:
        layers, value, gradient, pairs = carry
        downhill = lbfgs.direction(
            restricted(gradient), pairs, lambda g: restricted(precondition(factors, g))
        )
        found: Any
        change, found = search.update(
            downhill,
            search.init(layers),
            layers,
            value=value,
            grad=gradient,
            value_fn=objective,
        )
        new = optax.apply_updates(layers, change)
        falls = found.value < value
        rise = restricted(optax.tree.sub(found.grad, gradient))
        kept = lbfgs.remember(pairs, change, rise)
        # Where the search failed, the pairs misled it.
        forgotten = pairs._replace(inverses=jnp.zeros_like(pairs.inverses))
        old, fresh = (layers, value, gradient, forgotten), (new, found.value, found.grad, kept)
        return jax.tree.map(lambda a, b: jnp.where(falls, b, a), old, fresh), None

    value, gradient = jax.value_and_grad(objective)(layers)
    carry = (layers, value, gradient, lbfgs.empty(layers, memory))
    return jax.lax.scan(iterate, carry, length=iterations)[0][0]
