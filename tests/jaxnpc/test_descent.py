"""The descent: coordinates end at their minima, the loss never rises, optax's contract holds."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxmpd.losses import Batch
from jaxnpc.descent import prototype_descent
from jaxnpc.lines import distances, hinge
from jaxnpc.training import train

# Compiling takes longer than running here, but where a step is repeated.
pytestmark = pytest.mark.compiled_quickly

INF = math.inf
NORMS = (1, 2, INF)
LABELS = np.array([0, 0, 1, 1, 2])


def blobs(n=300, d=3, seed=0, scale=1.0):
    """Prototypes, two of them equal, one on a point; points, some of them equal; classes."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    x = rng.normal(size=(n, d)) + 2 * np.eye(3)[y][:, np.arange(d) % 3]
    x[: n // 10] = x[0]
    w = rng.normal(size=(len(LABELS), d))
    w[1], w[2] = w[0], x[0]
    return (jnp.asarray(a, jnp.float32) for a in (w * scale, x * scale)), jnp.asarray(y)


def true(w, x, y, p, cap, weights=None):
    with jax.enable_x64(True):
        d = distances(jnp.asarray(x, float), jnp.asarray(w, float), p)
        values = np.asarray(hinge(d, jnp.asarray(LABELS), jnp.asarray(y), cap))
    return float(np.average(values, weights=weights))


def stepping(optimizer):
    def step(w, state, *batch):
        updates, state = optimizer.update(jnp.full_like(w, jnp.nan), state, w, batch=batch)
        return optax.apply_updates(w, updates), state

    return step


@pytest.mark.parametrize(("p", "scale"), [(1, 1e-3), (2, 1e-3), (2, 1e4), (INF, 1.0), (INF, 1e4)])
def test_the_loss_falls_until_no_coordinate_gains(p, scale):
    (w, x), y = blobs(scale=scale)
    cap = 0.5 * scale ** (2 if p == 2 else 1)
    optimizer = prototype_descent(LABELS, p, cap=cap, rounds=2)
    step, state = jax.jit(stepping(optimizer)), optimizer.init(w)
    losses = [true(w, x, y, p, cap)]
    for _ in range(25):
        w, state = step(w, state, x, y)
        losses.append(true(w, x, y, p, cap))
        np.testing.assert_allclose(state.loss, losses[-1], rtol=1e-5)
    assert max(np.diff(losses)) <= 1e-6 * losses[0]
    assert losses[-1] < 0.6 * losses[0]
    for k in range(len(LABELS)):
        for l in range(x.shape[1]):
            for t in scale * np.concatenate([np.linspace(-4, 4, 41), np.linspace(-0.1, 0.1, 20)]):
                moved = np.array(w, float)
                moved[k, l] += t
                assert true(moved, x, y, p, cap) >= losses[-1] - 2e-3 * losses[0]


@pytest.mark.parametrize("p", NORMS)
def test_a_step_is_exact_and_takes_account_of_weights_and_damping(p):
    """Two prototypes on a line: the result is one of two sequences of searches by brute force."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(40, 1)).astype(np.float32), rng.integers(0, 2, 40)
    weights = rng.integers(0, 3, 40).astype(np.float32)
    w, labels, cap, damping = np.array([[0.3], [-0.2]], np.float32), [0, 1], 0.7, 0.02
    optimizer = prototype_descent(labels, p, cap=cap, damping=lambda step: damping / (step + 1))
    padded = (
        np.vstack([x, np.full((2, 1), np.nan)]),
        np.append(y, [0, 1]),
        np.append(weights, [0, 0]),
    )
    step = jax.jit(stepping(optimizer))
    found, state = step(jnp.asarray(w), optimizer.init(w), *padded)
    assert state.steps == 1

    grid = np.linspace(-5, 5, 100_001)

    def search(w, k):
        gap = np.abs(x[:, 0] - np.broadcast_to(w, (len(grid), 2, 1)))
        gap[:, k] = np.abs(x[:, 0] - grid[:, None])
        d = gap ** (2 if p == 2 else 1)
        own, rival = np.where(y == 0, d[:, 0], d[:, 1]), np.where(y == 0, d[:, 1], d[:, 0])
        values = np.maximum(cap - (rival - own) / 2, 0) @ weights / weights.sum()
        moved = w.copy()
        moved[k] = grid[np.argmin(values + damping * (grid - w[k, 0]) ** 2)]
        return moved

    results = [search(search(w, a), b) for a, b in ((0, 1), (1, 0))]
    assert min(np.abs(found - r).max() for r in results) <= 5e-4  # the grid's step is 1e-4


def test_jit_scan_and_plain_agree_and_the_seed_decides():
    (w, x), y = blobs(n=60)
    optimizer = prototype_descent(LABELS, cap=0.5, rounds=3, seed=jax.random.key(3))
    step, state = stepping(optimizer), optimizer.init(w)
    compiled = jax.jit(step)
    plain, jitted = step(w, state, x, y)[0], compiled(w, state, x, y)
    np.testing.assert_allclose(plain, jitted[0], rtol=1e-5, atol=1e-6)
    again = compiled(*jitted, x, y)
    assert compiled._cache_size() == 1
    assert jax.tree.map(lambda a: (a.shape, a.dtype), again[1]) == jax.tree.map(
        lambda a: (a.shape, a.dtype), state
    )
    scanned = jax.lax.scan(lambda c, _: (step(*c, x, y), None), (w, state), None, length=2)[0]
    np.testing.assert_allclose(scanned[0], again[0], rtol=1e-5, atol=1e-6)
    other = prototype_descent(LABELS, cap=0.5, rounds=3, seed=4)
    assert np.any(np.asarray(stepping(other)(w, other.init(w), x, y)[0] != plain))


def test_optax_wrappers_and_trees():
    (w, x), y = blobs(n=60)
    bare = prototype_descent(LABELS, cap=0.5)
    expected = bare.update(w, bare.init(w), w, batch=Batch(x, y), value=1.0)[0]
    params = {"prototypes": w, "other": jnp.ones(3)}
    chosen = optax.masked(optax.chain(optax.clip(1.0), bare), {"prototypes": True, "other": False})
    updates = chosen.update(params, chosen.init(params), params, batch=(x, y))[0]
    np.testing.assert_array_equal(updates["prototypes"], expected)
    np.testing.assert_array_equal(updates["other"], params["other"])


def test_train_takes_it_and_ends_at_a_lower_loss_than_it_began():
    (_, x), y = blobs()
    optimizer = prototype_descent([0, 0, 1, 1, 2, 2], 1, cap=0.5)
    trained = train(
        np.asarray(x), np.asarray(y), per_class=2, distance=1, objective="semi_metric", cap=0.5,
        dropout=0.0, optimizer=optimizer, epochs=2, batch_size=300, progress=False,
    )  # fmt: skip
    assert trained.history.train_objective[-1] < 0.9 * trained.history.train_objective[0]


def test_arguments_are_checked():
    for arguments, word in (
        ({"labels": [0, 0], "cap": 1.0}, "labels"),
        ({"labels": [0, 1], "distance": 3, "cap": 1.0}, "distance"),
        ({"labels": [0, 1], "cap": 0.0}, "cap"),
        ({"labels": [0, 1], "cap": 1.0, "damping": -1.0}, "damping"),
        ({"labels": [0, 1], "cap": 1.0, "rounds": 0}, "rounds"),
    ):
        with pytest.raises(ValueError, match=word):
            prototype_descent(**arguments)
    with pytest.raises(TypeError):
        prototype_descent([0, 1], cap=1.0, seed="one")
    optimizer = prototype_descent([0, 1], cap=1.0)
    w, x, y = jnp.zeros((2, 1)), jnp.zeros((3, 1)), jnp.zeros(3, int)
    for params in (
        jnp.zeros((3, 1)),
        jnp.zeros(2),
        jnp.zeros((2, 0)),
        (w, w),
        jnp.zeros((2, 1), int),
    ):
        with pytest.raises(ValueError, match="params"):
            optimizer.init(params)
    state = optimizer.init(w)
    with pytest.raises(ValueError, match="not passing `params`"):
        optimizer.update(w, state, batch=(x, y))
    for batch in (
        None,
        x,
        (x,),
        (x[:, 0], y),
        (x, y[:2]),
        (x, y * 1.0),
        (x, y, y[:1]),
        (x[:0], y[:0]),
    ):
        with pytest.raises(ValueError, match="batch"):
            optimizer.update(w, state, w, batch=batch)
