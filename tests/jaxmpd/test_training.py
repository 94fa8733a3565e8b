import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxmpd import checkpoints, network
from jaxmpd.activations import LEAKY_HARD_TANH, RELU
from jaxmpd.linesearch import scale_by_exact_linesearch
from jaxmpd.losses import Batch
from jaxmpd.minibatches import BatchSize, partition, take
from jaxmpd.runs import Budget, Run
from jaxmpd.training import batch_step, evaluate, fit, regression_loss
from jaxmpd.transform import mpd

INPUTS = jnp.linspace(-1, 1, 37)[:, None]
TRAIN = Batch(INPUTS, INPUTS**2)
VALIDATION = Batch(INPUTS[:9] + 0.01, (INPUTS[:9] + 0.01) ** 2)
PARAMS = network.init(jax.random.key(0), (1, 6, 1))
LOSS = regression_loss()
ADAM = optax.adam(0.1)
settings = {"validation": VALIDATION, "batch_size": 10, "progress": False}
run = functools.partial(fit, LOSS, PARAMS, ADAM, TRAIN, **settings)


def noisy_loss(params, batch, key):
    """Uses its key, as dropout does."""
    inputs = batch.inputs + 0.1 * jax.random.normal(key, batch.inputs.shape)
    return LOSS(params, batch._replace(inputs=inputs), key)


def keyed(learning_rate):
    """An optimiser with a typed PRNG key and a counter in its state."""

    def init(params):
        return jax.random.key(7), jnp.zeros((), jnp.int32)

    def update(updates, state, params=None):
        key, draw = jax.random.split(state[0])
        scale = learning_rate * jax.random.uniform(draw)
        return jax.tree.map(lambda g: -scale * g, updates), (key, state[1] + 1)

    return optax.GradientTransformation(init, update)


def same(a, b):
    """Bit for bit."""
    leaves = [
        [np.asarray(jax.random.key_data(x) if checkpoints.is_key(x) else x) for x in leaves]
        for leaves in (jax.tree.leaves(a), jax.tree.leaves(b))
    ]
    return len(leaves[0]) == len(leaves[1]) and all(
        x.dtype == y.dtype and np.array_equal(x, y, equal_nan=True)
        for x, y in zip(*leaves, strict=True)
    )


def same_run(a, b):
    """Equal in all but the times."""
    parts = [
        (r.params, r.best_params, r.opt_state, r.best_loss, r.history._replace(seconds=0.0))
        for r in (a, b)
    ]
    return same(*parts)


def test_fit_is_the_plain_loop():
    params, state = PARAMS, ADAM.init(PARAMS)
    for step in range(3):
        key, loss_key = jax.random.split(jax.random.fold_in(jax.random.key(5), step))
        indices = partition(key, 37, 10)
        for i, k in zip(indices, jax.random.split(loss_key, len(indices)), strict=True):
            grad = jax.grad(noisy_loss)(params, take(TRAIN, i), k)
            updates, state = ADAM.update(grad, state, params)
            params = optax.apply_updates(params, updates)
    result = fit(noisy_loss, PARAMS, ADAM, TRAIN, steps=3, batch_size=10, seed=5, progress=False)
    for ours, plain in zip(*map(jax.tree.leaves, (result.params, params)), strict=True):
        assert np.allclose(ours, plain, atol=1e-5)


def test_history_counts_batch_steps_minibatch_steps_and_time():
    result = run(steps=5, evaluate_every=2)
    assert result.history.batch_steps.tolist() == [0, 2, 4, 5]
    assert result.history.minibatch_steps.tolist() == [0, 8, 16, 20]
    assert (np.diff(result.history.seconds) > 0).all()
    assert result.history.seconds[0] == 0
    assert result.compile_seconds > 0
    assert result.evaluation_seconds > 0
    assert result.stopped == "steps"
    assert result.history.train_loss[0] == pytest.approx(float(LOSS(PARAMS, TRAIN, None)), rel=1e-5)
    last = float(LOSS(result.params, VALIDATION, None))
    assert result.history.validation_loss[-1] == pytest.approx(last, rel=1e-5)


def test_the_callers_parameters_survive():
    before = jax.tree.map(np.asarray, PARAMS)
    run(steps=2)
    assert same(before, PARAMS)


def test_best_parameters_are_those_of_the_least_validation_loss():
    there_and_back = optax.sgd(lambda count: jnp.where(count < 12, 0.1, -0.1))
    result = fit(LOSS, PARAMS, there_and_back, TRAIN, steps=8, **settings)
    least = result.history.validation_loss.min()
    assert result.best_loss == least < result.history.validation_loss[[0, -1]].min()
    assert float(evaluate(LOSS, result.best_params, VALIDATION, jax.random.key(0))) == least


def test_a_metric_chooses_the_best_parameters():
    def norm(params, batch, key):
        return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))

    result = run(steps=4, metric=norm)
    assert result.best_loss == result.history.validation_loss.min()
    assert float(norm(result.best_params, None, None)) == pytest.approx(result.best_loss, rel=1e-5)


def test_same_seed_same_run_and_other_seed_another():
    assert same_run(run(steps=3), run(steps=3))
    assert not same_run(run(steps=3), run(steps=3, seed=1))


@pytest.mark.parametrize("optimizer", [ADAM, keyed(0.1), optax.contrib.schedule_free_adamw(0.1)])
def test_resume_is_bit_equal(tmp_path, optimizer):
    # Grows in the fourth and the sixth batch step; cut at a step that is no checkpoint's.
    growing = BatchSize(initial=10, hold=13, every=5, factor=2)
    go = functools.partial(
        fit,
        noisy_loss,
        PARAMS,
        optimizer,
        TRAIN,
        validation=VALIDATION,
        batch_size=growing,
        seed=3,
        checkpoint=tmp_path / "run",
        checkpoint_every=2,
        checkpoint_seconds=0,
        progress=False,
    )

    def power_cut(seen):
        if seen.batch_steps == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go(steps=8, callbacks=[power_cut])
    resumed = go(steps=8, resume=True)
    whole = go(steps=8, checkpoint=None)
    assert len(set(np.diff(whole.history.minibatch_steps))) == 3
    assert same_run(resumed, whole)
    assert same_run(go(steps=8, resume=True), whole)
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_resume_without_a_checkpoint_starts(tmp_path):
    assert same_run(run(steps=2, checkpoint=tmp_path / "new" / "run", resume=True), run(steps=2))


def test_a_longer_budget_continues(tmp_path):
    file = tmp_path / "run"
    run(steps=3, checkpoint=file)
    assert same_run(run(steps=6, checkpoint=file, resume=True), run(steps=6))


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    file = tmp_path / "run"
    run(steps=1, checkpoint=file)
    again = functools.partial(run, steps=2, checkpoint=file, resume=True)
    with pytest.raises(ValueError, match="seed 0, this one has 1"):
        again(seed=1)
    with pytest.raises(ValueError, match="batch_size"):
        again(batch_size=11)
    other = Batch(TRAIN.inputs, TRAIN.targets.at[3].add(1e-6))
    go = functools.partial(
        fit, steps=2, batch_size=10, checkpoint=file, resume=True, progress=False
    )
    with pytest.raises(ValueError, match="checksum of train"):
        go(LOSS, PARAMS, ADAM, other)
    with pytest.raises(ValueError, match="same model, optimiser"):
        go(LOSS, network.init(jax.random.key(0), (1, 7, 1)), ADAM, TRAIN)
    with pytest.raises(ValueError, match="arrays but this optimiser"):
        go(LOSS, PARAMS, optax.sgd(0.1), TRAIN)
    with pytest.raises(ValueError, match=r"learning rate None, this one has 0\.2"):
        again(identity={"learning rate": 0.2})
    named = tmp_path / "named"
    run(steps=1, checkpoint=named, identity={"learning rate": 0.1, "loss": "mse"})
    with pytest.raises(ValueError, match=r"learning rate 0\.1, this one has 0\.2"):
        again(checkpoint=named, identity={"learning rate": 0.2, "loss": "mse"})
    with pytest.raises(ValueError, match="loss mse, this one has None"):
        again(checkpoint=named, identity={"learning rate": 0.1})
    file.write_bytes(b"something else")
    with pytest.raises(ValueError, match="not a checkpoint"):
        go(LOSS, PARAMS, ADAM, TRAIN)


def test_checkpoints_keep_their_distance(tmp_path, monkeypatch):
    written = []
    write = checkpoints.write_whole
    monkeypatch.setattr(checkpoints, "write_whole", lambda *file: (written.append(1), write(*file)))
    for seconds, number in ((0, 5), (3600, 2)):  # at steps 2, 4, 6, 8 and 9; at 2 and 9
        written.clear()
        run(steps=9, checkpoint=tmp_path / "run", checkpoint_every=2, checkpoint_seconds=seconds)
        assert len(written) == number


def test_a_failed_write_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    file = tmp_path / "run"
    run(steps=1, checkpoint=file)
    before = file.read_bytes()

    def full_disk(source, target):
        raise OSError("no space left on device")

    monkeypatch.setattr("os.replace", full_disk)
    with pytest.raises(OSError, match="no space"):
        run(steps=1, checkpoint=file)
    assert file.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_stops_on_a_plateau():
    still = optax.sgd(0.0)
    result = fit(LOSS, PARAMS, still, TRAIN, patience=4, steps=100, progress=False)
    assert result.stopped == "plateau"
    assert result.history.batch_steps[-1] == 4
    slow = fit(LOSS, PARAMS, still, TRAIN, patience=2, evaluate_every=5, steps=20, progress=False)
    assert slow.history.batch_steps.tolist() == [0, 5]
    moving = run(patience=3, tolerance=0.0, steps=6)
    assert moving.stopped == "steps"
    none = fit(LOSS, PARAMS, still, TRAIN, patience=4, tolerance=0.0, steps=100, progress=False)
    assert none.stopped == "plateau"


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=12),
    st.integers(1, 6),
    st.sampled_from([0.0, 0.1, 0.5]),
)
def test_a_plateau_is_a_loss_that_has_not_fallen(losses, patience, tolerance):
    budget = Budget(None, None, patience, tolerance)
    state = Run({}, (), {})
    for k, loss in enumerate(losses):
        state.batch_steps = 2 * k  # evaluated every other step
        state.record(float(loss), 0.0, 0.0)
        before = [x for i, x in enumerate(losses[: k + 1]) if 2 * i <= 2 * k - patience]
        stuck = bool(before) and min(losses[: k + 1]) >= (1 - tolerance) * min(before)
        assert (budget.spent(state) == "plateau") == stuck


def test_stops_after_seconds():
    result = run(seconds=1e-9)
    assert result.stopped == "seconds"
    assert result.history.batch_steps.tolist() == [0, 1]


def test_stops_when_a_callback_says_so_after_calling_all():
    seen = []
    result = run(steps=9, callbacks=[lambda progress: progress.batch_steps == 2, seen.append])
    assert result.stopped == "callback"
    assert [p.batch_steps for p in seen] == [0, 1, 2]
    # What a callback was handed outlives the steps that followed.
    assert same(seen[0].params, PARAMS)
    assert same(seen[-1].params, result.params)


def test_stops_when_the_loss_is_not_finite():
    result = fit(LOSS, PARAMS, optax.sgd(1e30), TRAIN, steps=50, progress=False)
    assert result.stopped == "not finite"
    assert len(result.history.batch_steps) < 50
    assert math.isfinite(result.best_loss)
    assert np.isfinite(np.asarray(result.best_params[0].kernel)).all()


def test_samples_may_be_a_tuple():
    pairs = fit(
        LOSS,
        PARAMS,
        ADAM,
        tuple(TRAIN)[:2],
        validation=[*VALIDATION][:2],
        steps=2,
        batch_size=10,
        progress=False,
    )
    assert same_run(pairs, run(steps=2))


def test_no_steps_returns_the_start():
    result = run(steps=0)
    assert same(result.params, PARAMS)
    assert result.history.batch_steps.tolist() == [0]


def test_an_unused_gradient_is_not_computed():
    def ignoring(updates, state, params=None, *, batch, **ignored):
        return jax.tree.map(lambda p: -0.1 * p, params), state

    def products(optimizer):
        lowered = batch_step.lower(
            PARAMS,
            optimizer.init(PARAMS),
            jax.random.key(0),
            TRAIN,
            loss=LOSS,
            optimizer=optimizer,
            size=10,
        )
        return lowered.compile().as_text().count(" dot(")

    unused = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), ignoring)
    assert products(unused) == 0 < products(optax.sgd(0.1))


def test_no_step_compiles_anew():
    # 37 samples in minibatches of 10: the last is partial, and the size grows once to 20.
    schedule = BatchSize(initial=10, hold=8, every=1000, factor=2)
    traced = {}
    for steps in (4, 12):
        calls = []

        def counting(params, batch, key, calls=calls):
            calls.append(batch.inputs.shape)
            return LOSS(params, batch, key)

        fit(counting, PARAMS, ADAM, TRAIN, batch_size=schedule, steps=steps, progress=False)
        traced[steps] = calls
    assert traced[4] == traced[12]
    assert {shape[0] for shape in traced[4]} == {10, 19, 37}


def test_line_searches_get_value_and_value_fn():
    result = fit(LOSS, PARAMS, optax.lbfgs(), TRAIN, batch_size=37, steps=20, progress=False)
    assert result.history.train_loss[-1] < 0.5 * result.history.train_loss[0]
    # Full batch and a line search: no step may raise the loss.
    assert (np.diff(result.history.train_loss) <= 1e-6).all()


@pytest.mark.parametrize(
    "optimizer",
    [mpd(), optax.chain(optax.scale_by_adam(), scale_by_exact_linesearch(LEAKY_HARD_TANH))],
)
def test_masked_optimisers_are_given_all_parameters(optimizer):
    optimizer = optax.chain(
        optax.masked(optimizer, (True, False)), optax.masked(optax.set_to_zero(), (False, True))
    )
    result = fit(LOSS, PARAMS, optimizer, TRAIN, batch_size=37, steps=2, progress=False)
    start, *falls = result.history.train_loss
    assert start > falls[0] >= falls[1]
    assert same(result.params[1], PARAMS[1])


@pytest.mark.parametrize("chunk", [1, 10, 37, 4096])
def test_evaluate_in_chunks_is_the_whole(chunk):
    weighted = TRAIN._replace(weights=jnp.arange(37.0) % 3)
    for data in (TRAIN, weighted):
        got = evaluate(LOSS, PARAMS, data, jax.random.key(0), chunk=chunk)
        assert float(got) == pytest.approx(float(LOSS(PARAMS, data, None)), rel=1e-5)


def test_evaluate_where_a_whole_chunk_weighs_nothing():
    weights = jnp.where(jnp.arange(37) < 30, 0.0, 1.0)
    targets = jnp.where(weights[:, None] > 0, TRAIN.targets, jnp.nan)
    got = evaluate(LOSS, PARAMS, Batch(INPUTS, targets, weights), jax.random.key(0), chunk=10)
    want = LOSS(PARAMS, Batch(INPUTS[30:], targets[30:]), None)
    assert float(got) == pytest.approx(float(want), rel=1e-5)


def test_integer_targets_and_any_tree_of_parameters():
    def nearest(params, batch, key):
        scores = -jnp.abs(batch.inputs - params["prototypes"])
        losses = optax.softmax_cross_entropy_with_integer_labels(scores, batch.targets)
        return jnp.sum(losses * batch.weights) / jnp.sum(batch.weights)

    labels = (INPUTS[:, 0] > 0).astype(jnp.int32)
    params = {"prototypes": jnp.array([0.1, -0.1])}
    result = fit(nearest, params, optax.adam(0.05), Batch(INPUTS, labels), steps=20, progress=False)
    assert result.params["prototypes"][0] < 0 < result.params["prototypes"][1]


def test_float64_stays_float64(tmp_path):
    with jax.enable_x64(True):
        inputs = np.linspace(-1, 1, 20)[:, None]
        data = Batch(inputs, inputs**2)
        params = network.init(jax.random.key(0), (1, 4, 1), jnp.float64)
        go = functools.partial(
            fit, LOSS, params, ADAM, data, batch_size=6, checkpoint=tmp_path / "run", progress=False
        )
        result = go(steps=2)
        assert {x.dtype for x in jax.tree.leaves(result.params)} == {jnp.dtype("float64")}
        assert same_run(go(steps=4, resume=True), go(steps=4))
    with pytest.raises(ValueError, match="precision"):
        fit(
            LOSS,
            network.init(jax.random.key(0), (1, 4, 1)),
            ADAM,
            data,
            batch_size=6,
            steps=2,
            checkpoint=tmp_path / "run",
            resume=True,
            progress=False,
        )


def test_the_activation_is_part_of_the_loss():
    assert float(regression_loss(RELU)(PARAMS, TRAIN, None)) != float(LOSS(PARAMS, TRAIN, None))
    assert regression_loss(RELU) is regression_loss(RELU)


BAD = Batch(INPUTS, TRAIN.targets.at[5].set(jnp.nan))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "needs an end"),
        ({"steps": -1}, "steps must not be negative, got -1"),
        ({"seconds": -1.0}, "seconds must not be negative"),
        ({"seconds": math.nan}, "seconds must not be negative"),
        ({"patience": 0}, "patience must be at least 1, got 0"),
        ({"steps": 1, "tolerance": 1.0}, r"tolerance must lie in \[0, 1\), got 1.0"),
        ({"steps": 1, "batch_size": 0}, "initial=0"),
        ({"steps": 1, "evaluate_every": 0}, "evaluate_every must be at least 1"),
        ({"steps": 1, "checkpoint_every": 0}, "checkpoint_every must be at least 1"),
        ({"steps": 1, "resume": True}, "needs checkpoint=FILE"),
        ({"steps": 1, "params": {}}, "params holds no arrays"),
        ({"steps": 1, "train": BAD}, r"train.targets\[5\] is not finite"),
        ({"steps": 1, "validation": BAD}, r"validation.targets\[5\] is not finite"),
        ({"steps": 1, "train": Batch(INPUTS, INPUTS[1:])}, "as many targets and weights"),
        ({"steps": 1, "train": Batch(INPUTS[:0], INPUTS[:0])}, "as many targets and weights"),
        ({"steps": 1, "train": Batch(INPUTS, INPUTS, -INPUTS[:, 0])}, "weights must not be"),
        ({"steps": 1, "train": Batch(INPUTS, INPUTS, 0 * INPUTS[:, 0])}, "weights must not be"),
        ({"steps": 1, "train": Batch(INPUTS, INPUTS[:, 0])}, r"targets of shape \(37,\)"),
        ({"steps": 1, "train": (INPUTS[:, [0, 0]], INPUTS)}, r"\(37, 2\) do not fit .* 1 inputs"),
        ({"steps": 1, "train": (INPUTS[:, 0], INPUTS)}, r"inputs of shape \(37,\) do not fit"),
        ({"steps": 1, "train": INPUTS}, r"train must be \(inputs, targets\)"),
        ({"steps": 1, "checkpoint_seconds": -1}, "checkpoint_seconds must not be negative"),
    ],
)
def test_arguments_are_checked_before_any_work(arguments, message, tmp_path):
    given = {"params": PARAMS, "train": TRAIN, **arguments}
    checkpoint = None if "resume" in arguments else tmp_path / "run"
    with pytest.raises(ValueError, match=message):
        fit(LOSS, optimizer=ADAM, checkpoint=checkpoint, progress=False, **given)
    assert not list(tmp_path.iterdir())
