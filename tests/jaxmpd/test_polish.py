import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks import F, all_movable, assert_still, objective, problem, some_movable

from jaxmpd import activations
from jaxmpd.losses import LOSSES, SQUARED, Batch
from jaxmpd.network import Layer, apply
from jaxmpd.steps import polish as module
from jaxmpd.steps.polish import polish, precondition, whitening

L2 = 0.01


def unit_blocks(layers, batch, loss):
    """For every layer, the Gauss-Newton matrix of each unit's weights and bias, densely."""
    weights = batch.weights / jnp.sum(batch.weights)
    predictions = apply(layers, batch.inputs, F)
    bend = jnp.maximum(loss.gauss_newton(predictions, batch.targets).weights, module.STRAIGHT)
    jacobian = jax.jacobian(lambda p: apply(p, batch.inputs, F))(layers)
    result = []
    for kernel, bias in jacobian:
        j = jnp.concatenate([kernel, bias[:, :, None]], axis=2)  # samples, outputs, inputs, units
        result.append(jnp.einsum("s,sk,skiu,skju->uij", weights, bend, j, j))
    return result


@pytest.mark.parametrize(
    ("widths", "name"), [((2, 6, 2), "huber"), ((3, 5, 4, 2), "squared"), ((30, 5, 2), "squared")]
)
def test_the_whitening_is_the_gauss_newton_matrix_of_every_unit(widths, name):
    """Its blocks, damped, where the layer has few inputs; the common matrix and the size if not."""
    loss = LOSSES[name]
    with jax.enable_x64(True):
        layers, batch = problem(0, widths)
        both = lambda p: (whitening(p, batch, F, loss, L2), unit_blocks(p, batch, loss))  # noqa: E731
        factors, dense = jax.tree.map(np.asarray, jax.jit(both)(layers))
        assert len(factors) == len(layers)
        for k, (factor, scale) in enumerate(factors):
            matrix = factor @ factor.swapaxes(-1, -2)
            d, eye = len(layers[k].kernel) + 1, np.eye(len(layers[k].kernel) + 1)
            size = np.trace(dense[k], axis1=1, axis2=2)
            if factor.ndim == 3:
                assert d < module.FEW
                assert k < len(layers) - 1
                damping = module.DAMPING_OWN * size + module.DAMPING_COMMON * size.mean() + L2
                expected = dense[k] + damping[:, None, None] * eye
                np.testing.assert_array_equal(scale, np.ones(len(size)))
            else:
                # The block's corner, where the bias meets itself, is the units' mean square.
                corner = dense[k][:, -1, -1]
                np.testing.assert_allclose(
                    scale, corner + module.DAMPING_COMMON * corner.mean(), rtol=1e-9
                )
                below = jnp.concatenate(
                    [inputs_of(layers, batch, k), jnp.ones((len(batch.inputs), 1))], axis=1
                )
                common = (batch.weights[:, None] * below).T @ below / jnp.sum(batch.weights)
                if k == len(layers) - 1 and loss == SQUARED:  # no approximation
                    np.testing.assert_allclose(common, dense[k][0], rtol=1e-9)
                expected = common + (module.DAMPING_SHARED * np.trace(common) / d + L2) * eye
            np.testing.assert_allclose(matrix, expected, rtol=1e-9, atol=1e-12)


def inputs_of(layers, batch, k):
    return F(apply(layers[:k], batch.inputs, F)) if k else batch.inputs


@pytest.mark.parametrize("bias", [True, False])
def test_preconditioning_solves_with_every_block(bias):
    with jax.enable_x64(True):
        layers, batch = problem(1, (3, 5, 2), bias=bias)
        gradient = jax.grad(objective)(layers, batch)
        factors = jax.jit(lambda p: whitening(p, batch, F, SQUARED, L2))(layers)
        solved = jax.jit(precondition)(factors, gradient)
        for (factor, scale), g, s in zip(factors, gradient, solved, strict=True):
            rows = [np.asarray(g.kernel), np.zeros((1, g.kernel.shape[1]))]
            rows[1] = np.asarray(g.bias)[None] if bias else rows[1]
            matrix = np.broadcast_to(
                factor @ jnp.swapaxes(factor, -1, -2), (g.kernel.shape[1], *factor.shape[-2:])
            )
            expected = np.linalg.solve(matrix, np.concatenate(rows).T[..., None])[..., 0].T / scale
            np.testing.assert_allclose(s.kernel, expected[:-1], rtol=1e-8)
            assert (s.bias is not None) == bias
            if bias:
                np.testing.assert_allclose(s.bias, expected[-1], rtol=1e-8)


@functools.partial(jax.jit, static_argnames=("loss", "f"))
def run(layers, batch, movable, l2=L2, loss=SQUARED, f=F):
    return polish(layers, batch, f, loss, l2=l2, movable=movable, iterations=5)


@pytest.mark.parametrize(("widths", "x64"), [((2, 6, 2), True), ((2, 5, 4, 1), False)])
def test_polishing_descends_and_what_may_not_move_stays(widths, x64):
    with jax.enable_x64(x64):
        for seed in range(2):
            layers, batch = problem(seed, widths)
            movable = some_movable(layers) if seed else all_movable(layers)
            last = start = float(objective(layers, batch, l2=L2))
            for _ in range(4):
                new = run(layers, batch, movable)
                now = float(objective(new, batch, l2=L2))
                assert now <= last * (1 + (0 if x64 else 1e-6))
                assert_still(layers, new, movable)
                layers, last = new, now
            assert last < 0.5 * start


def test_kinks_of_the_loss_do_not_make_it_rise():
    loss = LOSSES["absolute"]
    layers, batch = problem(2, loss=loss)
    new = run(layers, batch, all_movable(layers), loss=loss)
    assert float(objective(new, batch, loss, L2)) < 0.8 * float(objective(layers, batch, loss, L2))


def test_a_convex_problem_is_solved():
    """Only the output may move: the ridge regression on the features, to float64's digits."""
    with jax.enable_x64(True):
        layers, batch = problem(3)
        movable = jax.tree.map(np.zeros_like, all_movable(layers))
        movable = (movable[0], all_movable(layers)[1])
        new = layers
        for _ in range(6):
            new = run(new, batch, movable)
        features = np.asarray(F(apply(layers[:1], batch.inputs, F)))
        features = np.concatenate([features, np.ones((len(features), 1))], axis=1)
        w = np.asarray(batch.weights / jnp.sum(batch.weights))[:, None]
        ridge = L2 * np.diag([1.0] * (features.shape[1] - 1) + [0.0])
        v = np.linalg.solve(features.T @ (w * features) + ridge, features.T @ (w * batch.targets))
        np.testing.assert_allclose(np.vstack([new[1].kernel, new[1].bias]), v, rtol=1e-6, atol=1e-8)


def test_neither_chunks_nor_padding_count(monkeypatch):
    with jax.enable_x64(True):
        layers, batch = problem(4)
        movable = all_movable(layers)
        whole = run(layers, batch, movable)
        unused = batch.weights[:, None] == 0
        other = Batch(
            jnp.where(unused, 9.0, batch.inputs),
            jnp.where(unused, -9.0, batch.targets),
            batch.weights,
        )
        padded = run(layers, other, movable)
        monkeypatch.setattr(module, "CHUNK", 100)
        assert len(batch.weights) > module.CHUNK // 6
        chunked = jax.jit(lambda p: run.__wrapped__(p, batch, movable))(layers)
        for a, b, c in zip(*map(jax.tree.leaves, (whole, padded, chunked)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)
            np.testing.assert_allclose(a, c, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("l2", [0.0, L2])
def test_units_that_nothing_reaches_do_not_stop_the_others(l2):
    """All outgoing weights 0, or every unit dead: the blocks are 0, and the output learns."""
    f = activations.RELU
    (hidden, output), batch = problem(5, (2, 6, 1))
    silent = (hidden, Layer(0 * output.kernel, output.bias))
    dead = (Layer(hidden.kernel, hidden.bias - 1000), output)
    for layers in (silent, dead):
        new = run(layers, batch, all_movable(layers), l2=l2, f=f)
        assert all(np.all(np.isfinite(a)) for a in jax.tree.leaves(new))
        before, after = (float(objective(p, batch, l2=l2, f=f)) for p in (layers, new))
        assert after < before
