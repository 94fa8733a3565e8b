import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks import F, objective, problem, some_movable

from jaxmpd.rows import from_rows, movable_rows, to_rows, with_ones
from jaxmpd.steps.output import solve, solve_output

ROWS, SAMPLES, OUTPUTS = 5, 40, 2


def regression(seed):
    rng = np.random.default_rng(seed)
    features, old = rng.normal(size=(ROWS, SAMPLES)), rng.normal(size=(ROWS, OUTPUTS))
    residual = rng.normal(size=(OUTPUTS, SAMPLES))
    weights = rng.random((OUTPUTS, SAMPLES)) * (rng.random((OUTPUTS, SAMPLES)) < 0.7)
    return features, residual, weights, old, rng.random((ROWS, OUTPUTS)) < 0.6


def least_squares(features, residual, weights, penalty, old, free):
    """Output by output, over the weights that may change, by the singular values."""
    change = np.zeros_like(old)
    for k, w in enumerate(np.broadcast_to(weights, residual.shape)):
        here = free[:, k]
        matrix = np.concatenate([(np.sqrt(w) * features).T, np.diag(np.sqrt(penalty))])
        right = np.concatenate([np.sqrt(w) * residual[k], np.sqrt(penalty) * old[:, k]])
        change[here, k] = np.linalg.lstsq(matrix[:, here], -right, rcond=None)[0]
    return change


def error(change, features, residual, weights, penalty, old):
    return np.sum(weights * (residual + change.T @ features) ** 2) + np.sum(
        penalty[:, None] * (old + change) ** 2
    )


@pytest.mark.parametrize("rows", [1, OUTPUTS])
@pytest.mark.parametrize("masked", [False, True])
def test_the_solution_is_that_of_least_squares(rows, masked):
    """With and without a ridge; restricted, it is the solution of the restricted problem."""
    with jax.enable_x64(True):
        step = jax.jit(lambda *a: solve(*a[:-1], free=a[-1] if masked else None))
        for seed in range(4):
            features, residual, weights, old, free = regression(seed)
            free = free if masked else np.ones_like(free)
            weights = weights[:rows]
            for penalty in (np.zeros(ROWS), np.array([0.3, 2, 0, 1e3, 1e-3])):
                arguments = features, residual, weights, penalty, old
                change = np.asarray(step(*arguments, free))
                expected = least_squares(*arguments, free)
                assert not np.any(change[~free])
                np.testing.assert_allclose(change, expected, rtol=1e-4, atol=1e-5)
                assert error(change, *arguments) <= error(expected, *arguments) * (1 + 1e-10)


def test_features_that_depend_on_each_other_reach_the_same_error():
    features, residual, weights, old, free = regression(9)
    features[3], features[4], penalty = 2 * features[0] - features[1], 0, np.zeros(ROWS)
    for dtype, rel in [("float64", 1e-9), ("float32", 1e-4)]:
        with jax.enable_x64(dtype == "float64"):
            arguments = [a.astype(dtype) for a in (features, residual, weights, penalty, old)]
            change = np.asarray(jax.jit(solve)(*arguments))
            expected = least_squares(features, residual, weights, penalty, old, free | True)
            least = error(expected, features, residual, weights, penalty, old)
            got = error(change, features, residual, weights, penalty, old)
            assert got == pytest.approx(least, rel=rel)


@functools.partial(jax.jit, static_argnames="masked")
def step(layers, batch, masked, l2):
    weights = (batch.weights / jnp.sum(batch.weights))[None]
    free = movable_rows(some_movable(layers)) if masked else None
    rows = solve_output(
        to_rows(layers), with_ones(batch.inputs), batch.targets.T, weights, F, l2, free
    )
    return from_rows(rows, layers)


@pytest.mark.parametrize("l2", [0.0, 0.05])
def test_the_output_is_at_the_minimum_of_the_penalised_loss(l2):
    """Its gradient there is 0, so the convex problem is solved, and nothing else has moved."""
    with jax.enable_x64(True):
        layers, batch = problem(0)
        solved = step(layers, batch, False, l2)
        gradient = jax.grad(objective)(solved, batch, l2=l2)
        np.testing.assert_array_equal(solved[0].kernel, layers[0].kernel)
        np.testing.assert_array_equal(solved[0].bias, layers[0].bias)
        for g in gradient[1]:
            np.testing.assert_allclose(g, 0, atol=1e-6)
        assert float(objective(solved, batch, l2=l2)) < 0.7 * float(objective(layers, batch, l2=l2))


def test_masked_weights_stay_put_and_the_others_are_at_their_minimum():
    with jax.enable_x64(True):
        layers, batch = problem(1)
        movable = some_movable(layers)
        solved = step(layers, batch, True, 0.01)
        gradient = jax.grad(objective)(solved, batch, l2=0.01)
        for old, new, g, free in zip(layers[1], solved[1], gradient[1], movable[1], strict=True):
            np.testing.assert_array_equal(np.asarray(new)[~free], np.asarray(old)[~free])
            np.testing.assert_allclose(np.asarray(g)[free], 0, atol=1e-6)
            assert np.all(np.asarray(new)[free] != np.asarray(old)[free])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_output_that_would_not_improve_stays(bad):
    """At the minimum already, up to rounding; and where a feature is not finite."""
    layers, batch = problem(2)
    value = lambda layers: float(objective(layers, batch, l2=0.05))  # noqa: E731
    solved = step(layers, batch, False, 0.05)
    again = step(solved, batch, False, 0.05)
    assert value(again) <= value(solved) * (1 + 1e-6)
    spoilt = (layers[0]._replace(bias=layers[0].bias.at[0].set(bad)), layers[1])
    kept = step(spoilt, batch, False, 0.05)
    np.testing.assert_array_equal(kept[1].kernel, layers[1].kernel)
