import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks import F, all_movable, objective, problem, some_movable

from jaxmpd.network import Layer, apply
from jaxmpd.rows import from_rows, movable_rows, to_rows, with_ones
from jaxmpd.steps import replace as module
from jaxmpd.steps.output import solve_output

pytestmark = pytest.mark.compiled_quickly

WIDTHS, UNITS = (2, 6, 2), 6
ALL = np.ones(UNITS, bool)


def by_rows(layers, batch, l2=0.0):
    """What the step works on, the output solved for."""
    x, targets = with_ones(batch.inputs), batch.targets.T
    weights = batch.weights / jnp.sum(batch.weights)
    rows = to_rows(layers)
    for _ in range(2):
        rows = solve_output(rows, x, targets, weights[None], F, l2)
    return rows, x, targets, weights


def least_error(features, targets, weights, l2=0.0):
    """The least weighted squared error plus ridge on these features; the bias's is free."""
    root, count = np.sqrt(weights), len(features)
    ridge = np.sqrt(l2) * np.eye(count)[:-1]
    matrix = np.concatenate([(root * features).T, ridge])
    right = np.concatenate([(root * targets).T, np.zeros((count - 1, len(targets)))])
    solution = np.linalg.lstsq(matrix, right, rcond=None)[0]
    return np.sum((matrix @ solution - right) ** 2)


def features_of(incoming, x):
    features = F(jnp.asarray(incoming) @ x)
    return np.concatenate([features, np.ones((1, x.shape[1]))])


@functools.partial(jax.jit, static_argnames="count")
def choose(rows, x, targets, weights, whole, count, l2=0.0):
    return module.choose(rows, x, targets, weights, jax.random.key(0), F, count, l2, whole)


@pytest.mark.parametrize("l2", [0.0, 0.02])
def test_the_units_taken_out_are_those_whose_loss_raises_the_error_least(l2):
    """True rises, by fitting the output anew without each unit; two units at once, in order."""
    with jax.enable_x64(True):
        for seed in range(4):
            rows, x, targets, weights = by_rows(*problem(seed, WIDTHS), l2)
            every = features_of(rows.incoming, x)
            best = least_error(every, targets, weights, l2)
            rises = [
                least_error(np.delete(every, unit, 0), targets, weights, l2) - best
                for unit in range(UNITS)
            ]
            old, new = choose(rows, x, targets, weights, ALL, 2, l2)
            assert old.tolist() == np.argsort(rises)[:2].tolist()
            assert new.shape == (2, 3)
            worth = module.worth(rows, every * np.sqrt(weights), l2)
            np.testing.assert_allclose(worth, rises, rtol=5e-3)


def test_what_must_stay_is_not_chosen_whatever_it_is_worth():
    with jax.enable_x64(True):
        rows, x, targets, weights = by_rows(*problem(1, WIDTHS))
        first, _ = choose(rows, x, targets, weights, ALL, 2, 0.0)
        whole = ALL.copy()
        whole[first] = False
        second, _ = choose(rows, x, targets, weights, whole, 2, 0.0)
        assert not set(second.tolist()) & set(first.tolist())


def test_the_candidates_chosen_lower_the_error_most(monkeypatch):
    """Least squares on the units that stay and each candidate; then on those, the first, ..."""
    pool = np.random.default_rng(0).normal(size=(100, 3)) * 2
    monkeypatch.setattr(module, "candidates", lambda *_: jnp.asarray(pool))
    with jax.enable_x64(True):
        rows, x, targets, weights = by_rows(*problem(2, WIDTHS))
        run = jax.jit(lambda rows: choose.__wrapped__(rows, x, targets, weights, ALL, 3))
        old, new = run(rows)
        kept = np.delete(np.asarray(rows.incoming), old, 0)
        for unit in np.asarray(new):
            errors = [
                least_error(features_of(np.vstack([kept, w]), x), targets, weights) for w in pool
            ]
            np.testing.assert_array_equal(pool[np.argmin(errors)], unit)
            kept = np.vstack([kept, unit])


def test_candidates_bend_near_the_samples_asked_for():
    """At the only sample of any density the pre-activations lie within half of the kinks' range."""
    layers, batch = problem(3, WIDTHS)
    rows, x = to_rows(layers), with_ones(batch.inputs)
    density = jnp.zeros(x.shape[1]).at[5].set(2.0)
    new = jax.jit(lambda key: module.candidates(key, rows, x, density, F))(jax.random.key(0))
    assert new.shape == (module.CANDIDATES, 3)
    z = np.asarray(new @ x[:, 5])
    assert np.all(np.abs(z) <= max(F.kinks) + 0.5 + 1e-3)
    assert np.std(z) > 0.5
    used = np.linalg.norm(rows.incoming[:, :-1], axis=1)
    lengths = np.linalg.norm(new[:, :-1], axis=1)
    assert abs(np.mean(np.log(lengths)) - np.mean(np.log(used))) < 0.1
    angles = np.arctan2(new[:, 1], new[:, 0])
    assert np.all(np.histogram(angles, 8, (-np.pi, np.pi))[0] > module.CANDIDATES // 16)


def planted(seed, units=40):
    """A teacher of 40 units, and a network that knows all of them but three, which are flat."""
    (hidden, output), batch = problem(seed, (2, units, 1), samples=400)
    targets = apply((hidden, output), batch.inputs, F)
    flat = Layer(hidden.kernel.at[:, :3].set(0.0), hidden.bias.at[:3].set(0.3))
    student = flat, Layer(output.kernel.at[:3].set(1e-3), output.bias)
    return student, batch._replace(targets=targets, weights=jnp.ones(400))


def by_layers(function):
    """A step on rows as one on layers, of equal weights."""

    def step(layers, batch, *arguments):
        weights = jnp.full((1, len(batch.inputs)), 1 / len(batch.inputs))
        x, targets = with_ones(batch.inputs), batch.targets.T
        return from_rows(function(to_rows(layers), x, targets, weights, *arguments), layers)

    return jax.jit(step)


def test_flat_units_move_to_where_the_residual_is_unless_a_parameter_must_stay():
    """One in 16 of 40 units: of the three that count for nothing, the two that are free."""
    layers, batch = planted(0)
    movable = all_movable(layers)
    movable[0].kernel[1, 0] = False
    free, l2 = movable_rows(movable), 1e-6
    step = by_layers(lambda *a: module.replace(*a, F, l2, free))
    output = by_layers(lambda *a: solve_output(*a, F, l2))
    new, same_units = step(layers, batch, jax.random.key(1)), output(layers, batch)
    changed = np.any(np.asarray(new[0].kernel != layers[0].kernel), axis=0)
    assert np.flatnonzero(changed).tolist() == [1, 2]
    assert float(objective(new, batch, l2=l2)) < 0.8 * float(objective(same_units, batch, l2=l2))


def test_without_a_unit_to_spare_nothing_happens():
    """Fewer units than one is replaced in, or none that is free to move as a whole."""
    few, batch = problem(4, (2, module.SHARE - 1, 1))
    many, more = planted(0)
    for layers, data, share in [(few, batch, 1), (many, more, 0.3)]:
        free = movable_rows(some_movable(layers, share=share))
        step = by_layers(lambda *a, free=free: module.replace(*a, F, 0.0, free))
        same = step(layers, data, jax.random.key(0))
        for a, b in zip(*map(jax.tree.leaves, (same, layers)), strict=True):
            np.testing.assert_array_equal(a, b)


def test_padding_is_not_looked_at():
    with jax.enable_x64(True):
        rows, x, targets, weights = by_rows(*problem(5, WIDTHS))
        other = jnp.where(weights == 0, 7.0, targets)
        elsewhere = x.at[:-1].set(jnp.where(weights == 0, -3.0, x[:-1]))
        old, new = choose(rows, x, targets, weights, ALL, 2, 0.0)
        same, also = choose(rows, elsewhere, other, weights, ALL, 2, 0.0)
        assert old.tolist() == same.tolist()
        np.testing.assert_allclose(new, also, rtol=1e-6)
