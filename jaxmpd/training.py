"""The training loop that every optimiser shares: `fit`."""

import functools
import math
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray
from tqdm import tqdm

from jaxmpd.activations import LEAKY_HARD_TANH, PiecewiseLinear
from jaxmpd.losses import Batch, squared_error, weighted_mean
from jaxmpd.minibatches import BatchSize, constant, partition, sample_weights, shape, take
from jaxmpd.network import apply, as_layers
from jaxmpd.runs import Budget, Fit, Progress, Run, at_least_one, own

PyTree = Any
Loss = Callable[[PyTree, Batch, PRNGKeyArray], Float[Array, ""]]


@functools.cache  # one function an activation, so that a second fit finds the first one's program
def regression_loss(activation: PiecewiseLinear = LEAKY_HARD_TANH) -> Loss:
    """The mean squared error of a network (eq. 5), as [`fit`][jaxmpd.training.fit] takes it.

    Args:
        activation: after every layer but the last.

    Returns:
        A function of parameters (any tree [`as_layers`][jaxmpd.network.as_layers] reads), a batch
        and an unused PRNG key; it raises a ValueError where inputs do not fit the network, or
        predictions and targets differ in shape, which would otherwise broadcast.
    """

    def loss(params: PyTree, batch: Batch, key: PRNGKeyArray) -> Float[Array, ""]:
        del key
        width = as_layers(params)[0][0].kernel.shape[0]
        if batch.inputs.ndim != 2 or batch.inputs.shape[1] != width:
            raise ValueError(
                f"inputs of shape {batch.inputs.shape} do not fit a network of {width} inputs: one "
                "row a sample, one column an input"
            )
        predictions = apply(params, batch.inputs, activation)
        if predictions.shape != batch.targets.shape:
            raise ValueError(
                f"targets of shape {batch.targets.shape} do not fit predictions of shape "
                f"{predictions.shape}: one row a sample, one column an output"
            )
        return weighted_mean(squared_error(predictions, batch.targets), batch.weights)

    return loss


@functools.partial(
    jax.jit, static_argnames=("loss", "optimizer", "size"), donate_argnames=("params", "opt_state")
)
def batch_step(
    params: PyTree,
    opt_state: optax.OptState,
    key: PRNGKeyArray,
    data: Batch,
    *,
    loss: Loss,
    optimizer: optax.GradientTransformation,
    size: int,
) -> tuple[PyTree, optax.OptState]:
    """One pass over all samples in a random partition, one update a minibatch (eq. 34).

    Args:
        params: the parameters; donated, like `opt_state`.
        opt_state: the optimiser's state.
        key: a PRNG key.
        data: all samples.
        loss: a function of parameters, minibatch and key.
        optimizer: any optax transformation. It is offered the extra arguments `batch`,
            `full_params`, `value`, `grad` and `value_fn`; what it does not use, the gradient too,
            is not computed.
        size: the most samples of a minibatch.

    Returns:
        The new parameters and state.
    """
    update = optax.with_extra_args_support(optimizer).update
    order_key, loss_key = jax.random.split(key)
    indices = partition(order_key, data.inputs.shape[0], size)

    def minibatch_step(carry: tuple[PyTree, Any], x: tuple[Array, PRNGKeyArray]) -> Any:
        params, state = carry
        batch = take(data, x[0])

        # optax's line searches refuse an extra argument that value_fn does not name.
        def value_fn(
            params: PyTree, batch: Batch = batch, full_params: PyTree = None
        ) -> Float[Array, ""]:
            del full_params
            return loss(params, batch, x[1])

        value, grad = jax.value_and_grad(value_fn)(params)
        updates, state = update(
            grad,
            state,
            params,
            batch=batch,
            full_params=params,
            value=value,
            grad=grad,
            value_fn=value_fn,
        )
        return (optax.apply_updates(params, updates), state), None

    keys = jax.random.split(loss_key, len(indices))
    return jax.lax.scan(minibatch_step, (params, opt_state), (indices, keys))[0]


@functools.partial(jax.jit, static_argnames=("loss", "chunk"))
def evaluate(
    loss: Loss, params: PyTree, data: Batch, key: PRNGKeyArray, chunk: int = 4096
) -> Float[Array, ""]:
    """A loss over all samples, in chunks so that memory stays bounded.

    Args:
        loss: a weighted mean over the samples of the batch it is given.
        params: the parameters.
        data: all samples.
        key: passed on to the loss, the same for every chunk.
        chunk: the most samples at a time.

    Returns:
        The loss on all samples: the chunks' losses, averaged by their weight.
    """
    samples = data.inputs.shape[0]
    width = min(chunk, samples)
    everything = (data.inputs, data.targets, sample_weights(data))

    def add(total: tuple[Array, Array], start: Array) -> tuple[tuple[Array, Array], None]:
        # The last chunk reaches back so that it is as wide as the others; what it repeats is
        # given weight 0.
        first = jnp.minimum(start, samples - width)
        piece = [jax.lax.dynamic_slice_in_dim(x, first, width) for x in everything]
        piece[2] = jnp.where(first + jnp.arange(width) >= start, piece[2], 0)
        mass = jnp.sum(piece[2])
        value = loss(params, Batch(*piece), key)
        return (total[0] + jnp.where(mass > 0, mass * value, 0), total[1] + mass), None

    zero = jnp.zeros((), everything[2].dtype)
    (total, mass), _ = jax.lax.scan(add, (zero, zero), jnp.arange(0, samples, width))
    return total / mass


def _samples(name: str, data: Batch | Sequence[Any]) -> Batch:
    """The samples as arrays, checked."""
    if not isinstance(data, tuple | list) or len(data) not in (2, 3):
        raise ValueError(
            f"{name} must be (inputs, targets) or (inputs, targets, weights), got {type(data)}"
        )
    given: tuple[Any, ...] = tuple(data)
    data = Batch(*given)
    arrays = {key: jnp.asarray(x) for key, x in data._asdict().items() if x is not None}
    sizes = {key: len(x) for key, x in arrays.items()}
    if len(set(sizes.values())) > 1 or not sizes["inputs"]:
        raise ValueError(f"{name} needs as many targets and weights as inputs, got {sizes}")
    for key, x in arrays.items():
        bad = np.flatnonzero(~np.isfinite(np.asarray(x)).reshape(len(x), -1).all(axis=1))
        if bad.size:
            raise ValueError(
                f"{name}.{key}[{bad[0]}] is not finite: drop or fill in {bad.size} such samples"
            )
    weights = arrays.get("weights")
    if weights is not None and (weights.min() < 0 or weights.sum() <= 0):
        raise ValueError(f"{name}.weights must not be negative, and not all zero")
    return Batch(**arrays)


def _identity(
    seed: int, schedule: BatchSize, others: Mapping[str, Any], train: Batch
) -> dict[str, Any]:
    """What a resumed run must share with the run it resumes, besides the shapes of its state."""
    checksum = 0
    for x in train:
        checksum = zlib.crc32(b"" if x is None else np.asarray(x).tobytes(), checksum)
    named = {"seed": seed, "batch_size": str(schedule), **others}
    # The checksum last, since the others say more.
    return {**named, "precision": str(train.inputs.dtype), "checksum of train": checksum}


def fit(
    loss: Loss,
    params: PyTree,
    optimizer: optax.GradientTransformation,
    train: Batch | Sequence[Any],
    *,
    validation: Batch | Sequence[Any] | None = None,
    batch_size: int | BatchSize = 256,
    steps: int | None = None,
    seconds: float | None = None,
    patience: int | None = None,
    tolerance: float = 1e-4,
    seed: int = 0,
    metric: Loss | None = None,
    evaluate_every: int = 1,
    callbacks: Sequence[Callable[[Progress], bool | None]] = (),
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 10,
    checkpoint_seconds: float = 10.0,
    identity: Mapping[str, str | float] | None = None,
    resume: bool = False,
    progress: bool = True,
) -> Fit:
    """Minimise a loss over training samples, with any optimiser.

    A *batch step* is one pass over a random partition of the samples into minibatches (eq. 34),
    one compiled program for each size of minibatch. A run is a function of its arguments: the
    same seed gives the same parameters, interrupted and resumed or not.

    Args:
        loss: a scalar function of parameters, minibatch and PRNG key: a weighted mean over the
            minibatch's samples, heeding its weights, and maybe a penalty of the parameters.
        params: any tree of arrays; left as they are.
        optimizer: any optax transformation; see [`batch_step`][jaxmpd.training.batch_step] for
            the extra arguments it is offered.
        train: the training samples, a [`Batch`][jaxmpd.losses.Batch] or a tuple `(inputs,
            targets)` or `(inputs, targets, weights)`.
        validation: samples to choose the best parameters by.
        batch_size: samples a minibatch, a number or a schedule.
        steps: stop after so many batch steps.
        seconds: stop after the batch step in which the optimiser's own time exceeds this.
        patience: stop when the training loss has not fallen in this many batch steps. None: never.
        tolerance: the relative fall that counts for that.
        seed: of the partitions and the loss's keys.
        metric: what the history records and the best parameters minimise, of the same form as the
            loss. None: the loss.
        evaluate_every: batch steps between evaluations.
        callbacks: called after each evaluation; the run stops when one returns True.
        checkpoint: a file to save the run in, whole or not at all.
        checkpoint_every: least batch steps between checkpoints; there is one at the end too.
        checkpoint_seconds: least seconds by the clock between them, so that writing them costs
            little however short a batch step is.
        identity: numbers and strings by name, such as a learning rate, that the run depends on but
            that cannot be read off the loss and the optimiser; a run that resumes it must be given
            the same.
        resume: continue from the checkpoint if it exists.
        progress: whether to show a progress bar.

    Returns:
        The last and the best parameters and the history.

    Raises:
        ValueError: if an argument is out of its range, the samples are not finite, or the
            checkpoint belongs to another run.

    Example:
        >>> from jaxmpd import network
        >>> inputs = jnp.linspace(-1, 1, 64)[:, None]
        >>> params = network.init(jax.random.key(0), (1, 8, 1))
        >>> result = fit(regression_loss(), params, optax.adam(0.3), Batch(inputs, inputs**2),
        ...              steps=50, batch_size=16, progress=False)
        >>> bool(result.history.train_loss[-1] < 0.1 * result.history.train_loss[0])
        True
    """
    train = _samples("train", train)
    held_out = None if validation is None else _samples("validation", validation)
    schedule = batch_size if isinstance(batch_size, BatchSize) else constant(batch_size)
    budget = Budget(steps, seconds, patience, tolerance)
    at_least_one(evaluate_every=evaluate_every, checkpoint_every=checkpoint_every)
    if not checkpoint_seconds >= 0:
        raise ValueError(f"checkpoint_seconds must not be negative, got {checkpoint_seconds}")
    if resume and checkpoint is None:
        raise ValueError("resume=True needs checkpoint=FILE, the file to resume from")
    if not jax.tree.leaves(params):
        raise ValueError("params holds no arrays to train")

    params = jax.tree.map(own, params)
    run = Run(params, jax.tree.map(own, optimizer.init(params)), jax.tree.map(own, params))
    path = None if checkpoint is None else Path(checkpoint)
    agreed = {} if path is None else _identity(seed, schedule, identity or {}, train)
    if resume and path is not None and path.exists():
        run.restore(path, agreed)
    saved = -math.inf  # the first checkpoint is written at once: a full disk shows early

    root = jax.random.key(seed)
    samples = train.inputs.shape[0]
    criterion = loss if metric is None else metric
    programs: dict[int, Callable[..., tuple[PyTree, optax.OptState]]] = {}

    def step() -> None:
        size = schedule(run.minibatch_steps, samples)
        key = jax.random.fold_in(root, run.batch_steps)
        if size not in programs:
            start = time.perf_counter()
            lowered = batch_step.lower(
                run.params, run.opt_state, key, train, loss=loss, optimizer=optimizer, size=size
            )
            programs[size] = lowered.compile()
            run.compile_seconds += time.perf_counter() - start
        start = time.perf_counter()
        run.params, run.opt_state = jax.block_until_ready(
            programs[size](run.params, run.opt_state, key, train)
        )
        run.seconds += time.perf_counter() - start
        run.batch_steps += 1
        run.minibatch_steps += shape(samples, size)[0]

    def record() -> bool:
        start = time.perf_counter()
        losses = {
            name: float(evaluate(criterion, run.params, data, root))
            for name, data in {"train": train, "validation": held_out}.items()
            if data is not None
        }
        run.evaluation_seconds += time.perf_counter() - start
        run.record(losses["train"], losses.get("validation", math.nan), [*losses.values()][-1])
        bar.set_postfix({name: f"{value:.4g}" for name, value in losses.items()}, refresh=False)
        answers = [call(run.progress()) for call in callbacks]
        return any(answers)

    bar = tqdm(total=steps, initial=run.batch_steps, unit="batch step", disable=not progress)
    with bar:
        stopped = "callback" if not run.rows and record() else budget.spent(run)
        while not stopped:
            step()
            bar.update()
            called = run.batch_steps % evaluate_every == 0 and record()
            stopped = "callback" if called else budget.spent(run)
            due = time.monotonic() - saved >= checkpoint_seconds
            if path is not None and due and run.batch_steps % checkpoint_every == 0:
                run.save(path, agreed)
                saved = time.monotonic()
        if run.rows[-1][0] != run.batch_steps:
            record()
        if path is not None:
            run.save(path, agreed)
    return Fit(
        params=run.params,
        best_params=run.best_params,
        best_loss=run.best_loss,
        opt_state=run.opt_state,
        history=run.history(),
        stopped=stopped,
        compile_seconds=run.compile_seconds,
        evaluation_seconds=run.evaluation_seconds,
    )
