"""Exact line searches behind any other optimiser, as an optax transformation."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from jaxmpd.activations import PiecewiseLinear
from jaxmpd.arguments import NO_PARAMS, as_batch, fill_in, has_masked, leave_out, movable
from jaxmpd.deep import LayerDirection, curves_along
from jaxmpd.expansion import normalized_weights
from jaxmpd.losses import SQUARED, AnyLoss, weighted_mean
from jaxmpd.network import Layer, PyTree, apply, as_layers, parent
from jaxmpd.steps.line import minimum_along
from jaxmpd.trace import Resolved, trace

Predict = Callable[[PyTree, Array], Float[Array, "S dN"]]


class LineSearchState(NamedTuple):
    """What the line search carries from step to step.

    Attributes:
        steps: the number of steps taken.
        loss: the last batch's loss after its step, infinite before the first.
        sizes: how far the last step went along the update in each layer that moves, in the tree's
            order.
    """

    steps: Int[Array, ""]
    loss: Float[Array, ""]
    sizes: Float[Array, " layers"]


def scale_by_exact_linesearch(
    model: PiecewiseLinear | Predict,
    *,
    loss: AnyLoss = SQUARED,
    budget: int = 16,
    chunk: int = 1024,
) -> optax.GradientTransformationExtraArgs:
    r"""Scale the incoming updates, layer by layer, to the global minimum of the loss along them.

    With the updates $u_1 \dots u_L$ of the layers and the loss $\ell$ on the batch,

    $$\theta_l \leftarrow \theta_l + t_l u_l, \qquad t_l = \arg\min_{t \in [a_l, b_l]}
    \ell(\theta_1, \dots, \theta_l + t u_l, \theta_{l+1} + t_{l+1} u_{l+1}, \dots)$$

    for one layer after the other, the last one first: within a layer the predictions are piecewise
    linear in t, across layers they are not. The interval reaches from 0 to both sides as far as
    `budget` knots a sample do. The batch's loss never rises. There is no learning rate, and as t
    may have either sign it does not matter whether the updates point downhill (gradients) or
    uphill: behind `optax.scale_by_adam()` no `optax.scale(-1)` is needed. In a chain it stands
    last.

    Args:
        model: the activation of a multi-layer perceptron whose parameters
            [`as_layers`][jaxmpd.network.as_layers] reads; or any function of parameters and S
            inputs that gives S rows of outputs, each sample's by itself, and is piecewise linear in
            the parameters of each layer (convolution, max-pooling, residual connections). A layer
            then is a subtree of leaves side by side, such as a kernel and its bias.
        loss: any of [`jaxmpd.losses`][jaxmpd.losses]; a smooth one is searched through its
            interpolant or majorant and decided by itself.
        budget: knots a sample and side.
        chunk: samples at a time, which bounds the memory.

    Returns:
        A transformation whose `update` needs `params` and `batch=`, a
        [`Batch`][jaxmpd.losses.Batch] or a tuple `(inputs, targets)` or `(inputs, targets,
        weights)`, and ignores other extra arguments. Inside `optax.masked` or
        `optax.multi_transform` it needs `full_params=` too, and moves what is not masked out.

    Raises:
        ValueError: from here, if budget or chunk is not positive; from `update`, if `params` or
            `batch` is missing or does not fit, or the model is not piecewise linear within layers.

    Example:
        >>> import jaxmpd
        >>> x = jax.random.normal(jax.random.key(1), (500, 2))
        >>> y = jnp.sin(2 * x[:, :1]) * x[:, 1:]
        >>> params = jaxmpd.init(jax.random.key(0), (2, 16, 1))
        >>> optimizer = optax.chain(
        ...     optax.scale_by_adam(), jaxmpd.scale_by_exact_linesearch(jaxmpd.LEAKY_HARD_TANH)
        ... )
        >>> loss = jaxmpd.regression_loss(jaxmpd.LEAKY_HARD_TANH)
        >>> @jax.jit
        ... def step(params, state):
        ...     grad = jax.grad(loss)(params, jaxmpd.Batch(x, y), None)
        ...     updates, state = optimizer.update(grad, state, params, batch=(x, y))
        ...     return optax.apply_updates(params, updates), state
        >>> state = optimizer.init(params)
        >>> for _ in range(30):
        ...     params, state = step(params, state)
        >>> bool(state[-1].loss < 0.5 * jnp.var(y))
        True
    """
    if budget < 1 or chunk < 1:
        raise ValueError(f"budget={budget} and chunk={chunk} must be positive")
    activation = model if isinstance(model, PiecewiseLinear) else None
    predict = _perceptron(model) if isinstance(model, PiecewiseLinear) else model

    def init(params: PyTree) -> LineSearchState:
        if activation and not has_masked(params):
            as_layers(params)
        dtype = jnp.result_type(0.0, *jax.tree.leaves(params))
        return LineSearchState(
            steps=jnp.zeros((), jnp.int32),
            loss=jnp.full((), jnp.inf, dtype),
            sizes=jnp.zeros(len(_groups(params)), dtype),
        )

    def update(
        updates: PyTree,
        state: Any,
        params: PyTree | None = None,
        *,
        batch: Any = None,
        full_params: PyTree | None = None,
        **extra_args: Any,
    ) -> tuple[PyTree, LineSearchState]:
        del extra_args
        if params is None:
            raise ValueError(NO_PARAMS)
        full = fill_in(params, full_params)
        samples = as_batch(batch, jnp.result_type(*jax.tree.leaves(full)))
        weights = normalized_weights(samples)

        def value(params: PyTree) -> Float[Array, ""]:
            predictions = predict(params, samples.inputs)
            return weighted_mean(loss(predictions, samples.targets), samples.weights)

        free = movable(params, full)
        updates = fill_in(updates, jax.tree.map(jnp.zeros_like, full))
        lines = (
            _layer_lines(updates, free, samples.inputs, activation, budget, chunk)
            if activation
            else _group_lines(updates, free, samples.inputs, predict, budget, chunk)
        )
        now, best, sizes = full, value(full), []
        for direction, resolve in reversed(lines):
            t = minimum_along(resolve(now), samples.targets, weights, loss).argmin
            # An infinite argmin, of a line without a minimum, makes the loss NaN: no move.
            moved = jax.tree.map(
                lambda p, d, t=t: p if d is None else (p + t * d).astype(p.dtype),
                now,
                direction,
                is_leaf=_is_none,
            )
            tried = value(moved)
            better = tried < best
            now = jax.tree.map(lambda a, b, c=better: jnp.where(c, a, b), moved, now)
            best = jnp.where(better, tried, best)
            sizes.append(jnp.where(better, t, 0))

        # What counts is the loss where the caller lands: old + (new - old) may not be new.
        change = jax.tree.map(jnp.subtract, now, full)
        before, after = value(full), value(optax.apply_updates(full, change))
        better = after <= before
        change = jax.tree.map(lambda c: jnp.where(better, c, jnp.zeros_like(c)), change)
        return leave_out(change, params), LineSearchState(
            steps=jnp.asarray(optax.safe_increment(state.steps)),
            loss=jnp.where(better, after, before).astype(state.loss.dtype),
            sizes=jnp.where(better, jnp.array(sizes[::-1]), 0).astype(state.sizes.dtype),
        )

    return optax.GradientTransformationExtraArgs(init, update)


def _perceptron(activation: PiecewiseLinear) -> Predict:
    return lambda params, inputs: apply(params, inputs, activation)


Line = tuple[PyTree, Callable[[PyTree], Resolved]]


def _layer_lines(
    updates: PyTree,
    free: PyTree,
    inputs: Array,
    activation: PiecewiseLinear,
    budget: int,
    chunk: int,
) -> Sequence[Line]:
    """A perceptron's layers: the direction of each that moves, and the predictions along it."""
    changes, rebuild = as_layers(updates)
    flags, _ = as_layers(free)
    nothing = [Layer(*jax.tree.map(lambda a: None, tuple(layer))) for layer in changes]

    def line(k: int) -> Line:
        moving = jax.tree.map(lambda c, f: c if np.any(f) else None, changes[k], flags[k])
        direction = rebuild([*nothing[:k], moving, *nothing[k + 1 :]])

        def resolve(params: PyTree) -> Resolved:
            layers, _ = as_layers(params)
            along = LayerDirection(k, changes[k])
            return curves_along(layers, inputs, activation, along, budget=budget, chunk=chunk)

        return direction, resolve

    return [line(k) for k, layer in enumerate(flags) if any(map(np.any, layer))]


def _group_lines(
    updates: PyTree, free: PyTree, inputs: Array, predict: Predict, budget: int, chunk: int
) -> Sequence[Line]:
    """Any model's layers."""
    leaves, tree = jax.tree.flatten(updates)
    moves = [bool(np.any(flags)) for flags in jax.tree.leaves(free)]

    def line(group: list[int]) -> Line:
        direction = jax.tree.unflatten(
            tree, [leaf if k in group and moves[k] else None for k, leaf in enumerate(leaves)]
        )

        def one(params: PyTree, x: Array) -> Float[Array, " dN"]:
            return predict(params, x[None])[0]

        def resolve(params: PyTree) -> Resolved:
            return trace(one, params, direction, inputs, budget=budget, chunk=chunk)

        return direction, resolve

    return [line(group) for group in _groups(updates) if any(moves[k] for k in group)]


def _groups(params: PyTree) -> list[list[int]]:
    """The places of leaves that stand side by side: a layer's kernel and bias, say."""
    groups: dict[str, list[int]] = {}
    for place, (path, leaf) in enumerate(jax.tree_util.tree_flatten_with_path(params)[0]):
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            continue
        groups.setdefault(parent(path), []).append(place)
    return list(groups.values())


def _is_none(node: Any) -> bool:
    return node is None
