"""Objectives and optimisers by name."""

import math

import jax
import numpy as np
import optax
import pytest

from jaxmpd.losses import Batch
from jaxnpc.augmentation import Shift
from jaxnpc.domains import Unbounded
from jaxnpc.plans import OBJECTIVES, OPTIMIZERS, Plan, is_finite, optimizer_of, training_loss
from jaxnpc.subspace import principal

pytestmark = pytest.mark.compiled_quickly

LABELS = np.array([0, 0, 1, 1])
PLAN = Plan(2, 2, Unbounded(), "margin", 0.5, 8, 0.5, 0.0)


def data(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.random((20, 4)).astype(np.float32)
    return rng.random((4, 4)).astype(np.float32), x, rng.integers(0, 2, 20)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_what_is_measured_is_the_objective_without_dropout(name):
    w, x, y = data()
    key = jax.random.key(0)
    plan = PLAN._replace(objective=name).check()
    radius = jax.jit(plan.margin(LABELS))(w, x, y, key)
    plain = jax.jit(plan._replace(dropout=0.0).build(LABELS))(w, x, y, key)
    np.testing.assert_allclose(plan.measured(LABELS)(w, x, y, radius), plain, atol=1e-6)
    hidden = jax.jit(plan.build(LABELS))(w, x, y, key)
    assert (np.asarray(hidden) >= np.asarray(plain) - 1e-6).all() or name == "margin"
    assert (np.asarray(hidden) != np.asarray(plain)).any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": "hinge"}, "'hinge'"),
        ({"distance": 3}, "distance"),
        ({"q": 0.5}, "q must be"),
        ({"distance": lambda x, w: x}, "semi_metric"),
        ({"smoothing": 0.1}, "smoothing"),
    ],
)
def test_choices_that_do_not_fit_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        PLAN._replace(**changes).check()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_named_optimisers_decay_to_a_hundredth(name):
    tx, rate = optimizer_of(name, 0.5, PLAN, 4, points=90, batch_size=40, epochs=10)
    assert rate == 0.5
    params = {"w": np.zeros(3, np.float32)}
    gradient = {"w": np.ones(3, np.float32)}
    state, sizes = tx.init(params), []
    for _ in range(31):  # three minibatches an epoch
        updates, state = tx.update(gradient, state, params)
        sizes.append(-float(updates["w"][0]))
    settled = sizes[-1] / (10 if name == "nesterov" else 1)  # 1 / (1 - momentum)
    assert settled == pytest.approx(0.005, rel=0.25)
    assert max(sizes) > 0.45


def test_transformations_bring_their_own_rate():
    tx = optax.sgd(0.1)
    assert optimizer_of(tx, None, PLAN, 4, 90, 40, 10) == (tx, 0.0)
    with pytest.raises(ValueError, match="learning_rate"):
        optimizer_of(tx, 0.1, PLAN, 4, 90, 40, 10)


@pytest.mark.parametrize(
    ("given", "rate", "size", "message"),
    [
        ("sgd", None, 1, "'sgd'"),
        (None, 0.0, 1, "learning_rate"),
        (None, math.inf, 1, "learning_rate"),
        (None, None, 0, "batch_size"),
    ],
)
def test_optimisers_that_do_not_fit_are_named(given, rate, size, message):
    with pytest.raises(ValueError, match=message):
        optimizer_of(given, rate, PLAN, 4, 90, size, 10)


def test_the_loss_augments_then_projects_and_heeds_weights():
    w, x, y = data(1)
    key, space = jax.random.key(3), principal(x, 2)
    objective = PLAN.build(LABELS)
    drawn, hidden = jax.random.split(key)
    shift = Shift(keep=0.0)
    moved = space.coefficients(shift(drawn, x.reshape(-1, 2, 2)).reshape(-1, 4))
    c = space.coefficients(w)
    expected = np.asarray(objective(c, moved, y, hidden))
    weights = (np.arange(20) % 3).astype(np.float32)
    loss = training_loss(objective, shift, (2, 2), space)(c, Batch(x, y, weights), key)
    assert float(loss) == pytest.approx((weights * expected).sum() / weights.sum(), rel=1e-5)
    # Without augmentation points come projected.
    plain = training_loss(objective, None, (), space)(c, Batch(space.coefficients(x), y), key)
    expected = objective(c, space.coefficients(x), y, hidden)
    assert float(plain) == pytest.approx(float(expected.mean()), rel=1e-5)


def test_one_number_that_is_none_ends_the_run():
    w, x, y = data()
    assert float(is_finite(w, Batch(x, y), jax.random.key(0))) == 0
    w[1, 2] = np.inf
    assert math.isnan(float(is_finite(w, Batch(x, y), jax.random.key(0))))
