"""Message passing descent as an optax transformation."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxmpd.activations import LEAKY_HARD_TANH, PiecewiseLinear
from jaxmpd.arguments import NO_PARAMS, as_batch, as_key, fill_in, has_masked, leave_out, movable
from jaxmpd.losses import SQUARED, AnyLoss
from jaxmpd.network import Layer, PyTree, as_layers
from jaxmpd.penalties import check
from jaxmpd.steps.kinds import Coordinates, Objective, Step, Task


class MPDState(NamedTuple):
    """What message passing descent carries from step to step.

    Attributes:
        steps: the number of steps taken.
        key: raw data of the PRNG key that the next step draws its parameters from.
        loss: the last minibatch's loss after its step, infinite before the first.
    """

    steps: Int[Array, ""]
    key: Array
    loss: Float[Array, ""]


def mpd(
    activation: PiecewiseLinear = LEAKY_HARD_TANH,
    *,
    steps: Sequence[Step] = (Coordinates(),),
    loss: AnyLoss = SQUARED,
    l2: float = 0.0,
    l1: float = 0.0,
    seed: int | PRNGKeyArray = 0,
) -> optax.GradientTransformationExtraArgs:
    r"""Message passing descent: exact global searches along lines, made into an optimiser.

    An update takes the steps one after the other on its minibatch. The paper's, and the default,
    visits all parameters in random order and moves each to the global minimum of the minibatch's
    loss along it, all others standing still (Algorithm 4):

    $$\theta_p \leftarrow \arg\min_\theta \sum_s \omega_s\, \ell(g(x_s; \theta_1 \dots \theta \dots
    \theta_P), y_s) + \lambda_2 |\theta|^2 + \lambda_1 |\theta|_1 .$$

    By the clock [`HYBRID`][jaxmpd.steps.kinds.HYBRID] is the choice. Whatever the steps, the
    minibatch's loss never rises. There is no learning rate, and the incoming updates (gradients)
    are not used: under `jax.jit` they are not even computed. In a chain it stands last.

    Args:
        activation: after every layer but the last, the same as in the loss that is watched.
        steps: what an update does, see [`jaxmpd.steps.kinds`][jaxmpd.steps.kinds].
        loss: of [`jaxmpd.losses`][jaxmpd.losses]; its weighted mean over the minibatch falls.
        l2: weight of the sum of squares of all parameters but the output's biases.
        l1: weight of the sum of their absolute values.
        seed: of all that is random; an integer or a PRNG key.

    Returns:
        A transformation whose `update` needs `params` and `batch=`, a
        [`Batch`][jaxmpd.losses.Batch] or a tuple `(inputs, targets)` or `(inputs, targets,
        weights)`, the weights non-negative, and ignores other extra arguments. Inside
        `optax.masked` or `optax.multi_transform` it needs `full_params=` too: the loss depends on
        the parameters that are masked out.

    Raises:
        TypeError: if the activation is not piecewise linear as data.
        ValueError: from here, if there are no steps or a penalty is negative; from `init`, if the
            parameters are no network's, or a step does not know its depth, the loss or a penalty;
            from `update`, if `params` or `batch` is missing or does not fit.

    Example:
        >>> import jaxmpd
        >>> x = jax.random.normal(jax.random.key(1), (500, 2))
        >>> y = jnp.sin(2 * x[:, :1]) * x[:, 1:]
        >>> params = jaxmpd.init(jax.random.key(0), (2, 16, 1))
        >>> optimizer = jaxmpd.mpd(jaxmpd.LEAKY_HARD_TANH)
        >>> state = optimizer.init(params)
        >>> @jax.jit
        ... def step(params, state):
        ...     updates, state = optimizer.update(params, state, params, batch=(x, y))
        ...     return optax.apply_updates(params, updates), state
        >>> for _ in range(10):
        ...     params, state = step(params, state)
        >>> bool(state.loss < 0.2 * jnp.var(y))
        True
    """
    steps = tuple(steps)
    if not steps:
        raise ValueError("steps must hold at least one step, such as jaxmpd.Coordinates()")
    check(l2, l1)
    if not hasattr(activation, "kinks"):
        raise TypeError(
            f"activation must be a PiecewiseLinear, got {activation!r}: take one of "
            "jaxmpd.ACTIVATIONS or make one with jaxmpd.piecewise_linear"
        )
    objective = Objective(activation, loss, l2, l1)
    key = as_key(seed)
    key_data, impl = jax.random.key_data(key), jax.random.key_impl(key)

    def init(params: PyTree) -> MPDState:
        if not has_masked(params):
            _fitting(params, steps, objective)
        return MPDState(
            steps=jnp.zeros((), jnp.int32),
            key=jnp.array(key_data),
            loss=jnp.full((), jnp.inf, jnp.result_type(0.0, *jax.tree.leaves(params))),
        )

    def update(
        updates: PyTree,
        state: Any,
        params: PyTree | None = None,
        *,
        batch: Any = None,
        full_params: PyTree | None = None,
        **extra_args: Any,
    ) -> tuple[PyTree, MPDState]:
        del updates, extra_args
        if params is None:
            raise ValueError(NO_PARAMS)
        full = fill_in(params, full_params)
        layers, rebuild = _fitting(full, steps, objective)
        widths = layers[0].kernel.shape[0], layers[-1].kernel.shape[1]
        batch = as_batch(batch, layers[0].kernel.dtype, widths)
        next_key, key = jax.random.split(jax.random.wrap_key_data(state.key, impl=impl))
        keys = [key] if len(steps) == 1 else jax.random.split(key, len(steps))
        moved, free = layers, as_layers(movable(params, full))[0]
        for step, key in zip(steps, keys, strict=True):
            moved = step(moved, Task(objective, batch, free, key, state.steps))

        # What counts is the loss where the caller lands: old + (new - old) may not be new.
        change = leave_out(jax.tree.map(jnp.subtract, rebuild(moved), full), params)
        whole = fill_in(change, jax.tree.map(jnp.zeros_like, full))
        before = objective(layers, batch)
        after = objective(as_layers(optax.apply_updates(full, whole))[0], batch)
        better = after <= before
        change = jax.tree.map(lambda c: jnp.where(better, c, 0), change)
        return change, MPDState(
            steps=jnp.asarray(optax.safe_increment(state.steps)),
            key=jax.random.key_data(next_key),
            loss=jnp.where(better, after, before).astype(state.loss.dtype),
        )

    return optax.GradientTransformationExtraArgs(init, update)


def _fitting(
    params: PyTree, steps: Sequence[Step], objective: Objective
) -> tuple[tuple[Layer, ...], Any]:
    layers, rebuild = as_layers(params)
    if len(layers) < 2:
        raise ValueError(
            f"params has {len(layers)} layers with kernels of shapes "
            f"{[layer.kernel.shape for layer in layers]}: mpd needs a hidden layer and an output"
        )
    dtypes = {jnp.result_type(leaf) for leaf in jax.tree.leaves(params)}
    if len(dtypes) != 1 or not all(jnp.issubdtype(dtype, jnp.floating) for dtype in dtypes):
        raise ValueError(
            f"params must share one floating-point dtype, got {sorted(map(str, dtypes))}"
        )
    for step in steps:
        step.check(objective, len(layers))
    return layers, rebuild
