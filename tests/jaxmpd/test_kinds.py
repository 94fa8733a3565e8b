import functools
from dataclasses import dataclass

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from networks import F, all_movable, assert_still, objective, problem, some_movable

import jaxmpd
from jaxmpd import activations, network
from jaxmpd.losses import HINGE, LOSSES, SQUARED, piecewise_loss
from jaxmpd.steps.kinds import (
    HYBRID,
    Blocks,
    Coordinates,
    During,
    Objective,
    Output,
    Polish,
    Replace,
    Task,
    Units,
)
from jaxmpd.transform import mpd

pytestmark = pytest.mark.compiled_quickly

L2 = 0.01
WIDTHS = (2, 16, 2)
SHORT = Polish(3, memory=2)
STEPS = (Coordinates(5), Blocks(4), Output(), SHORT, Replace(SHORT))


@functools.partial(jax.jit, static_argnames=("loss", "mask", "steps"))
def taken(layers, batch, key, loss, mask=False, steps=STEPS):
    """The network after each of the steps, one after the other."""
    movable = some_movable(layers, share=0.9) if mask else all_movable(layers)
    task = Task(Objective(F, loss, L2), batch, movable, key, jnp.zeros((), jnp.int32))
    after = []
    for step in steps:
        step.check(task.objective, len(layers))
        layers = step(layers, task)
        after.append(layers)
    return after


@pytest.mark.parametrize(
    ("name", "steps"),
    [("squared", STEPS), ("huber", STEPS[1:4]), ("logistic", STEPS[1:3]), ("softmax", STEPS[1:])],
)
def test_no_step_raises_the_objective_under_any_loss(name, steps):
    """Through the majorants of the losses that are no squared error.

    What a loss does to coordinates is tested where they are.
    """
    loss = LOSSES[name]
    with jax.enable_x64(True):
        for seed in range(3):
            layers, batch = problem(seed, WIDTHS, loss=loss)
            start = last = float(objective(layers, batch, loss, L2))
            for new in taken(layers, batch, jax.random.key(seed), loss, steps=steps):
                now = float(objective(new, batch, loss, L2))
                assert now <= last + 1e-12
                last = now
            assert last < 0.8 * start


def test_what_is_masked_stays_bit_for_bit_and_absent_biases_stay_absent():
    for bias in (True, False):
        layers, batch = problem(4, WIDTHS, bias=bias)
        movable, last = some_movable(layers, share=0.9), layers
        for new in taken(layers, batch, jax.random.key(0), SQUARED, mask=True):
            assert jax.tree.structure(new) == jax.tree.structure(layers)
            assert_still(layers, new, movable)
            value, before = (float(objective(p, batch, l2=L2)) for p in (new, last))
            assert value <= before * (1 + 1e-6)
            last = new


@pytest.mark.parametrize("step", [Output(), Blocks(8)])
def test_where_the_majorant_touches_nothing_is_lost(step):
    """A second step from where the first one led still falls: majorants are taken anew."""
    loss = LOSSES["logistic"]
    with jax.enable_x64(True):
        layers, batch = problem(5, WIDTHS, loss=loss)
        after = taken(layers, batch, jax.random.key(0), loss, steps=(step,) * 3)
        values = [float(objective(p, batch, loss, L2)) for p in (layers, *after)]
        assert np.all(np.diff(values) < -1e-6)


def optimised(optimizer, layers, batch, updates):
    """Layers and state after some updates, and the losses that the optimiser reports."""
    batch = tuple(batch)

    def step(carry, _):
        params, state = carry
        change, state = optimizer.update(params, state, params, batch=batch)
        return (optax.apply_updates(params, change), state), state.loss

    run = jax.jit(lambda carry: jax.lax.scan(step, carry, None, length=updates))
    (layers, state), losses = run((layers, optimizer.init(layers)))
    return layers, state, np.asarray(losses)


def test_the_optimiser_reports_the_objective_and_never_raises_it():
    loss = LOSSES["huber"]
    layers, batch = problem(6, WIDTHS, loss=loss)
    start = float(objective(layers, batch, loss, L2))
    optimizer = mpd(F, steps=(Blocks(8), SHORT), loss=loss, l2=L2)
    new, state, losses = optimised(optimizer, layers, batch, 5)
    assert np.all(np.diff([start, *losses]) <= 0)
    assert losses[-1] < 0.6 * start
    assert int(state.steps) == 5
    assert float(state.loss) == pytest.approx(float(objective(new, batch, loss, L2)), rel=1e-5)


def test_polishing_trains_two_hidden_layers():
    layers, batch = problem(7, (2, 8, 8, 1))
    new, _, losses = optimised(mpd(F, steps=[Polish(20)]), layers, batch, 4)
    assert np.all(np.diff(losses) <= 0)
    assert losses[-1] < 0.1 * float(objective(layers, batch))
    assert losses[-1] == pytest.approx(float(objective(new, batch)), rel=1e-4)


def test_units_train_two_hidden_layers():
    layers, batch = problem(8, (2, 4, 3, 1))
    _, _, losses = optimised(mpd(F, steps=[Units()], l2=L2), layers, batch, 3)
    assert np.all(np.diff(losses) <= 0)
    assert losses[-1] < 0.5 * float(objective(layers, batch, l2=L2))


FROZEN = {
    "first layer": (False, network.Layer(True, True), network.Layer(True, True)),
    "biases": tuple(network.Layer(True, False) for _ in range(3)),
    "output": (network.Layer(True, True), network.Layer(True, True), False),
    "nothing": True,
}


@pytest.mark.parametrize("frozen", FROZEN)
def test_two_hidden_layers_of_which_some_is_frozen(frozen):
    layers, batch = problem(8, (2, 4, 3, 1))
    optimizer = mpd(F, steps=(Units(), SHORT), l2=L2)
    masked = optax.chain(
        optax.masked(optimizer, FROZEN[frozen]),
        optax.masked(optax.set_to_zero(), jax.tree.map(lambda m: not m, FROZEN[frozen])),
    )
    start = last = float(objective(layers, batch, l2=L2))
    update = jax.jit(lambda p, s: masked.update(p, s, p, batch=tuple(batch), full_params=p))
    new, state = layers, masked.init(layers)
    for _ in range(2):
        change, state = update(new, state)
        new = optax.apply_updates(new, change)
        value = float(objective(new, batch, l2=L2))
        assert value <= last * (1 + 1e-6)
        assert float(state[0].inner_state.loss) == pytest.approx(value, rel=1e-5)
        last = value
    assert last < 0.9 * start
    moved = jax.tree.map(lambda a, b: bool(jnp.any(a != b)), new, layers)
    free = jax.tree.map(lambda m, part: jax.tree.map(lambda _: m, part), FROZEN[frozen], layers)
    assert jax.tree.all(jax.tree.map(lambda m, f: f or not m, moved, free))
    assert any(jax.tree.leaves(moved))
    if frozen == "nothing":
        plain, _, _ = optimised(optimizer, layers, batch, 2)
        chex.assert_trees_all_close(new, plain, rtol=1e-5, atol=1e-6)


@dataclass(frozen=True)
class Careless:
    """Solves for all of the output, whatever may move."""

    def check(self, objective, depth):
        pass

    def __call__(self, layers, task):
        return Output()(layers, task._replace(movable=all_movable(layers)))


def test_a_step_that_does_not_heed_the_mask_cannot_raise_the_loss():
    """It is judged by what becomes of the network, masked parameters where they were."""
    optimizer = optax.masked(mpd(F, steps=[Careless()]), (False, network.Layer(True, False)))
    rises = 0
    for seed in range(4):
        layers, batch = problem(seed, WIDTHS)
        state = optimizer.init(layers)
        change, _ = optimizer.update(
            jax.tree.map(jnp.zeros_like, layers),
            state,
            layers,
            batch=tuple(batch),
            full_params=layers,
        )
        new = optax.apply_updates(layers, change)
        assert float(objective(new, batch)) <= float(objective(layers, batch)) * (1 + 1e-6)
        chex.assert_trees_all_equal(new[0], layers[0])
        rises += float(new[1].kernel[0, 0]) == float(layers[1].kernel[0, 0])
    assert rises  # or the test would not be one


def test_the_hybrid_falls_faster_than_coordinates():
    layers, batch = problem(9, (2, 16, 1), samples=200)
    _, _, hybrid = optimised(mpd(F, steps=HYBRID, l2=1e-4), layers, batch, 3)
    _, _, plain = optimised(mpd(F, l2=1e-4), layers, batch, 20)
    assert np.all(np.diff(hybrid) <= 0)
    assert hybrid[-1] < 0.5 * plain[-1]


@dataclass(frozen=True)
class Nudge:
    """Adds 1 to the output's bias."""

    def check(self, objective, depth):
        if depth != 2:
            raise ValueError("Nudge is for depth 2")

    def __call__(self, layers, task):
        hidden, output = layers
        return hidden, output._replace(bias=output.bias + 1)


@pytest.mark.parametrize(
    ("start", "stop", "due"), [(0, None, 7), (2, 5, 3), (4, None, 3), (0, 1, 1), (9, 12, 0)]
)
def test_a_step_is_taken_during_its_updates_only(start, stop, due):
    """Far below the targets every nudge lowers the loss; the updates count them."""
    layers, batch = problem(10, (2, 3, 1))
    batch = batch._replace(targets=batch.targets + 100)
    optimizer = mpd(F, steps=[During(Nudge(), start, stop)])
    new, _, losses = optimised(optimizer, layers, batch, 7)
    assert float(new[1].bias[0] - layers[1].bias[0]) == pytest.approx(due)
    first = float(objective(layers, batch))
    falls = np.diff([first, *losses]) < -1
    assert np.flatnonzero(falls).tolist() == [*range(start, min(stop or 7, 7))]


def test_updates_in_and_out_of_season_share_one_program():
    layers, batch = problem(11, (2, 3, 1))
    batch = batch._replace(targets=batch.targets + 100)
    optimizer = mpd(F, steps=[During(Nudge(), 1, 2), During(Nudge(), 2)])

    @jax.jit
    @chex.assert_max_traces(n=1)
    def step(params, state):
        change, state = optimizer.update(params, state, params, batch=tuple(batch))
        return optax.apply_updates(params, change), state

    params, state, biases = layers, optimizer.init(layers), []
    for _ in range(4):
        params, state = step(params, state)
        biases.append(float(params[1].bias[0] - layers[1].bias[0]))
    np.testing.assert_allclose(biases, [0, 1, 2, 3], atol=1e-5)


QUARTIC = piecewise_loss([], [[0, 0, 0, 0, 1]])


@pytest.mark.parametrize(
    ("step", "settings", "depth", "message"),
    [
        (Coordinates(), {}, 3, "Coordinates needs one hidden layer.*3 layers: take Units or Pol"),
        (Blocks(), {}, 3, "Blocks needs one hidden layer"),
        (Output(), {}, 4, "Output needs one hidden layer.*4 layers"),
        (Replace(), {}, 3, "Replace needs one hidden layer"),
        (During(Blocks(), 5), {}, 3, "Blocks needs one hidden layer"),
        (Blocks(), {"l1": 0.5}, 2, "Blocks does not know l1=0.5: only Coordinates does"),
        (Polish(), {"l1": 0.5}, 2, "Polish does not know l1=0.5"),
        (Replace(), {"l1": 0.5}, 2, "Replace does not know l1"),
        (Units(), {"l1": 0.5}, 2, "Units does not know l1"),
        (Output(), {"loss": QUARTIC}, 2, "Output needs a loss with a quadratic majorant"),
        (Blocks(), {"loss": QUARTIC}, 2, "Blocks needs a loss with a quadratic majorant"),
        (Units(), {"loss": HINGE}, 3, "Units knows the squared error only: take Polish"),
    ],
)
def test_what_a_step_does_not_know_is_named(step, settings, depth, message):
    layers = network.init(jax.random.key(0), (2, *[3] * (depth - 1), 1))
    with pytest.raises(ValueError, match=message):
        mpd(F, steps=[Polish() if depth > 2 else Coordinates(), step], **settings).init(layers)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Coordinates(0), "count must be a positive integer, got 0"),
        (lambda: Blocks(0), "units must be a positive integer, got 0"),
        (lambda: Blocks(True), "units must be a positive integer, got True"),
        (lambda: Units(0), "budget must be a positive integer, got 0"),
        (lambda: Polish(0), "iterations must be a positive integer, got 0"),
        (lambda: Polish(5, 1.5), "memory must be a positive integer, got 1.5"),
        (lambda: During(Blocks(), -1), "start=-1 must not be negative"),
        (lambda: During(Blocks(), 3, 3), "stop=3 must lie beyond"),
        (lambda: mpd(steps=[]), "steps must hold at least one step"),
        (lambda: mpd(l2=-1.0), "l2 must be a non-negative finite number, got -1"),
        (lambda: mpd(l1=float("nan")), "l1 must be a non-negative finite number, got nan"),
    ],
)
def test_numbers_out_of_range_are_named_when_the_step_is_made(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_hybrid_and_its_steps_are_data():
    """Equal where their numbers are, and hashable: static arguments of `jax.jit`."""
    assert Blocks(8) == Blocks(8) != Blocks(9)
    assert len({Replace(), Replace(Polish()), Replace(Polish(1))}) == 2
    assert hash(HYBRID) == hash(tuple(HYBRID))
    assert jaxmpd.HYBRID is HYBRID
    assert activations.RELU != F
