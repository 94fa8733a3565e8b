import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks import F, all_movable, assert_still, objective, problem, some_movable

from jaxmpd import activations
from jaxmpd.network import apply
from jaxmpd.rows import from_rows, movable_rows, to_rows, with_ones
from jaxmpd.steps import block

L2 = 0.01
ORDER = jnp.array([[0, 1, 2], [3, 4, 5]])


@functools.partial(jax.jit, static_argnames="f")
def sweep(layers, batch, order, l2=L2, free=None, outputs=None, f=F):
    """The sweep on layers; `outputs` weighs each of them, by a row of its own."""
    weights = (batch.weights / jnp.sum(batch.weights))[None]
    weights = weights if outputs is None else weights * outputs[:, None]
    x, targets = with_ones(batch.inputs), batch.targets.T
    rows = block.sweep(to_rows(layers), x, targets, weights, order, f, l2, free)
    return from_rows(rows, layers)


def masked(layers, batch, movable, order=ORDER, outputs=(1.0, 1.0)):
    return sweep(layers, batch, order, L2, movable_rows(movable), jnp.array(outputs))


def only(layers, units, outgoing):
    """Flags of these units' parameters."""
    hidden, output = jax.tree.map(np.zeros_like, all_movable(layers))
    for unit in units:
        hidden.kernel[:, unit] = hidden.bias[unit] = True
        output.kernel[unit] = outgoing
    return hidden, output


def test_deal_gives_every_unit_to_at_most_one_block():
    key = jax.random.key(0)
    for units, size, shape in [(12, 4, (3, 4)), (13, 4, (3, 4)), (3, 8, (1, 3))]:
        dealt = np.asarray(block.deal(key, units, size))
        assert dealt.shape == shape
        assert len(set(dealt.ravel().tolist())) == dealt.size
        assert set(dealt.ravel().tolist()) <= set(range(units))


@pytest.mark.parametrize("x64", [True, False])
def test_a_sweep_never_raises_the_penalised_loss(x64):
    """Weights of 0 among them, two outputs; what may not move stays bit for bit."""
    with jax.enable_x64(x64):
        for seed in range(3):
            layers, batch = problem(seed)
            movable = some_movable(layers)
            last = start = float(objective(layers, batch, l2=L2))
            for turn in range(4):
                order = block.deal(jax.random.key(turn), 6, 3)
                new = (
                    masked(layers, batch, movable, order)
                    if x64
                    else sweep(layers, batch, order, L2)
                )
                now = float(objective(new, batch, l2=L2))
                assert now <= last * (1 + (1e-12 if x64 else 1e-6))
                if x64:
                    assert_still(layers, new, movable)
                layers, last = new, now
            assert last < 0.5 * start


@pytest.mark.parametrize("inputs", [2, block.WIDE])
def test_a_unit_moves_to_the_global_minimum_along_the_gauss_newton_direction(inputs):
    """Dense: the direction from the Jacobian, the minimum from a fine grid."""
    t = np.concatenate([np.linspace(-4, 4, 3001), np.geomspace(4, 400, 100)])
    t = np.concatenate([t, -t[3001:]])
    with jax.enable_x64(True):
        layers, batch = problem(3, (inputs, 6, 2))
        weights = batch.weights / jnp.sum(batch.weights)
        x, rows = with_ones(batch.inputs), to_rows(layers)

        def at(w, unit):
            return from_rows(rows._replace(incoming=rows.incoming.at[unit].set(w)), layers)

        def residuals(w, unit):
            errors = apply(at(w, unit), batch.inputs, F) - batch.targets
            return (jnp.sqrt(weights)[:, None] * errors).ravel()

        jacobian = jax.jit(jax.jacobian(residuals))
        along = jax.jit(
            jax.vmap(
                lambda t, w, d, unit: objective(at(w + t * d, unit), batch, l2=L2), (0, *[None] * 3)
            )
        )
        for unit in (0, 4):
            movable = only(layers, [unit], False)
            new = masked(layers, batch, movable)
            assert_still(layers, new, movable)
            w = rows.incoming[unit]
            shift = np.asarray(to_rows(new).incoming[unit] - w)

            j = np.asarray(jacobian(w, unit))
            matrix = j.T @ j
            if inputs >= block.WIDE:  # the inputs' matrix, and how much the unit counts
                matrix = np.asarray((weights * x) @ x.T) * np.sum(j[:, -1] ** 2)
            damping = L2 + block.RIDGE * np.trace(matrix)
            gradient = j.T @ residuals(w, unit) + L2 * w
            direction = -np.linalg.solve(matrix + damping * np.eye(len(w)), gradient)
            cosine = shift @ direction / np.linalg.norm(shift) / np.linalg.norm(direction)
            assert abs(cosine) == pytest.approx(1, abs=1e-9)

            now = float(objective(new, batch, l2=L2))
            assert now <= float(np.min(along(t, w, shift, unit))) + 1e-12
            assert now < float(objective(layers, batch, l2=L2))


def test_only_the_units_named_and_the_biases_of_the_output_move():
    with jax.enable_x64(True):
        layers, batch = problem(4)
        movable = only(layers, [1, 3, 4], True)
        movable[1].bias[:] = True
        new = masked(layers, batch, all_movable(layers), jnp.array([[1, 3, 4], [4, 1, 3]]))
        assert_still(layers, new, movable)
        for a, b, there in zip(*map(jax.tree.leaves, (layers, new, movable)), strict=True):
            assert np.all(np.asarray(a != b)[there])


@pytest.mark.parametrize("l2", [0.0, L2])
def test_dead_units_and_empty_outputs_do_no_harm(l2):
    """A unit without any slope or signal has no direction; the others move all the same."""
    f = activations.RELU
    (hidden, output), batch = problem(5)
    hidden = hidden._replace(bias=hidden.bias.at[:2].set(-100.0))
    layers = hidden, output._replace(kernel=output.kernel.at[2].set(0.0))
    new = sweep(layers, batch, ORDER, l2, f=f)
    assert all(np.all(np.isfinite(a)) for a in jax.tree.leaves(new))
    assert float(objective(new, batch, l2=l2, f=f)) < 0.9 * float(
        objective(layers, batch, l2=l2, f=f)
    )


def test_at_a_perfect_fit_nothing_rises():
    layers, batch = problem(6)
    batch = batch._replace(targets=apply(layers, batch.inputs, F))
    new = sweep(layers, batch, ORDER, 0.0)
    assert float(objective(new, batch)) <= float(objective(layers, batch)) + 1e-12


def test_an_output_of_twice_the_weight_counts_like_one_of_larger_errors():
    with jax.enable_x64(True):
        layers, batch = problem(8)
        movable, scale = all_movable(layers), np.array([1.0, 2.0])
        root = np.sqrt(scale)
        stretch = lambda output: jax.tree.map(lambda a: a * root, output)  # noqa: E731
        # The ridge sees the output's weights: it must not move them, nor they the others.
        movable[1].kernel[:] = False
        weighted = masked(layers, batch, movable, outputs=scale)
        plain = masked(
            (layers[0], stretch(layers[1])), batch._replace(targets=batch.targets * root), movable
        )
        expected = (plain[0], jax.tree.map(lambda a: a / root, plain[1]))
        for a, b in zip(*map(jax.tree.leaves, (weighted, expected)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)
