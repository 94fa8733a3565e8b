"""Exact unit steps for networks of any depth, as an optax transformation."""

import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from jaxmpd.activations import LEAKY_HARD_TANH, PiecewiseLinear
from jaxmpd.linesearch import as_batch
from jaxmpd.losses import SQUARED, Batch, weighted_mean
from jaxmpd.network import PyTree, apply, as_layers
from jaxmpd.steps.deep import sweep


class UnitDescentState(NamedTuple):
    """What unit descent carries from step to step.

    Attributes:
        steps: the number of steps taken.
        key: raw data of the PRNG key that the next step draws its order from.
        loss: the last minibatch's mean squared error after its step, infinite before the first.
    """

    steps: Int[Array, ""]
    key: Array
    loss: Float[Array, ""]


def unit_descent(
    activation: PiecewiseLinear = LEAKY_HARD_TANH,
    *,
    l2: float = 0.0,
    budget: int = 64,
    seed: int = 0,
) -> optax.GradientTransformationExtraArgs:
    r"""Exact descent, unit by unit, for multi-layer perceptrons of any depth.

    A step visits every hidden unit in random order, layer by layer from the output, and moves its
    incoming weights along their Gauss-Newton direction to the *global* minimum of the minibatch's
    mean squared error plus $\lambda$ times the sum of the parameters' squares (those of the
    outputs' biases left out); the output layer is solved in closed form. That minibatch's objective
    never rises. No learning rate; the incoming updates are not used. In a chain it stands last.

    Two layers before the output and nearer to it a unit's knots are known in closed form; further
    back they are traced, which is slower and exact as far as the budget reaches.

    Args:
        activation: after every layer but the last.
        l2: the factor of the squares. A little of it keeps small minibatches from over-fitting.
        budget: knots a sample and side where they are traced.
        seed: of the random orders.

    Returns:
        A transformation whose `update` needs `params` and `batch=`, a
        [`Batch`][jaxmpd.losses.Batch] or a tuple `(inputs, targets)` or `(inputs, targets,
        weights)`, and ignores other extra arguments.

    Raises:
        ValueError: from here, if l2 is negative or the budget not positive; from `update`, if
            `params` or `batch` is missing or does not fit.

    Example:
        >>> import jaxmpd
        >>> x = jax.random.normal(jax.random.key(1), (300, 2))
        >>> y = jnp.sin(2 * x[:, :1]) * x[:, 1:]
        >>> params = jaxmpd.init(jax.random.key(0), (2, 6, 5, 1))
        >>> optimizer = jaxmpd.unit_descent(jaxmpd.LEAKY_HARD_TANH, l2=1e-6)
        >>> state = optimizer.init(params)
        >>> @jax.jit
        ... def step(params, state):
        ...     updates, state = optimizer.update(params, state, params, batch=(x, y))
        ...     return optax.apply_updates(params, updates), state
        >>> for _ in range(5):
        ...     params, state = step(params, state)
        >>> bool(state.loss < 0.6 * jnp.var(y))
        True
    """
    if l2 < 0 or budget < 1:
        raise ValueError(f"l2={l2} must not be negative and budget={budget} must be positive")
    root = jax.random.key(operator.index(seed))

    def init(params: PyTree) -> UnitDescentState:
        as_layers(params)
        return UnitDescentState(
            steps=jnp.zeros((), jnp.int32),
            key=jnp.array(jax.random.key_data(root)),
            loss=jnp.full((), jnp.inf, jnp.result_type(*jax.tree.leaves(params))),
        )

    def update(
        updates: PyTree,
        state: Any,
        params: PyTree | None = None,
        *,
        batch: Any = None,
        **extra_args: Any,
    ) -> tuple[PyTree, UnitDescentState]:
        del updates, extra_args
        if params is None:
            raise ValueError(
                "You are using a transformation that requires the current value of parameters, "
                "but you are not passing `params` when calling `update`."
            )
        layers, rebuild = as_layers(params)
        samples = as_batch(batch, layers[0].kernel.dtype)
        next_key, key = jax.random.split(jax.random.wrap_key_data(state.key))
        swept = rebuild(sweep(layers, samples, key, activation, l2=l2, budget=budget))

        # What counts is the loss where the caller lands: old + (new - old) may not be new.
        change = jax.tree.map(jnp.subtract, swept, params)
        new = optax.apply_updates(params, change)
        before, after = (_objectives(p, samples, activation, l2) for p in (params, new))
        better = after[1] <= before[1]
        change = jax.tree.map(lambda c: jnp.where(better, c, jnp.zeros_like(c)), change)
        return change, UnitDescentState(
            steps=jnp.asarray(optax.safe_increment(state.steps)),
            key=jax.random.key_data(next_key),
            loss=jnp.where(better, after[0], before[0]).astype(state.loss.dtype),
        )

    return optax.GradientTransformationExtraArgs(init, update)


def _objectives(
    params: PyTree, batch: Batch, activation: PiecewiseLinear, l2: float
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The mean squared error, without and with the penalty."""
    predictions = apply(params, batch.inputs, activation)
    error = weighted_mean(SQUARED(predictions, batch.targets), batch.weights)
    *hidden, output = as_layers(params)[0]
    squares = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves((hidden, output.kernel)))
    return error, error + l2 * squares
