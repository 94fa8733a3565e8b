import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_losses import CASES, CLOSED_FORMS

from jaxmpd import activations, losses
from jaxmpd.buckets import minimize_convex_pieces
from jaxmpd.curves import Curves, expand_curves, unit_curves
from jaxmpd.losses import piecewise_loss
from jaxmpd.minimum import minimize


def pieces_at(loss, e):
    piece = np.searchsorted(loss.kinks, e)
    x, rows = e - np.take(loss.anchors, piece), np.take(loss.coefficients, piece, axis=0)
    return np.sum(rows * x[..., None] ** np.arange(loss.degree + 1), axis=-1)


S, OUT, M = 5, 2, 6  # more knots than are spelt out one by one
FLAT_CUBIC = piecewise_loss([0, 1], [[0], [0, 0, 0, 1], [1, 3, 3, 1]], [0, 0, 1])
LOSSES = {**CASES, "flat_cubic": FLAT_CUBIC}
VALUES = {
    **CLOSED_FORMS,
    "logistic": lambda m: pieces_at(losses.LOGISTIC, m),  # what is expanded
    "flat_cubic": lambda e: np.maximum(e, 0) ** 3,
}


def quarters(*shape):
    return st.lists(st.integers(-8, 8), min_size=(n := int(np.prod(shape))), max_size=n).map(
        lambda v: np.reshape(v, shape) / 4
    )


@st.composite
def problems(draw):
    """Curves on a grid of quarters: ties, knots at 0, kinks hit exactly, flat pieces, padding."""
    knots = np.sort(draw(quarters(S, M)), axis=1)
    bends = draw(quarters(S, M, OUT))
    for sample, count in enumerate(draw(st.lists(st.integers(0, M), min_size=S, max_size=S))):
        knots[sample, count:], bends[sample, count:] = np.inf, 0
    weights = np.array(draw(st.lists(st.integers(0, 3), min_size=S, max_size=S)), float)
    start, rate = draw(quarters(S, OUT)), draw(quarters(S, OUT))
    return Curves(start, rate, knots, bends), draw(quarters(S, OUT)), weights


def predictions_at(curves, t):
    """By the definition of the jump form."""
    start, rate, knots, bends = curves
    p = start + rate * t
    side = np.where((knots > 0) & (knots <= t), 1, np.where((knots <= 0) & (t < knots), -1, 0))
    ahead = np.where(side != 0, t - np.where(np.isfinite(knots), knots, 0), 0)
    return p + np.einsum("sm,smk->sk", side * ahead, bends)


def loss_at(curves, targets, weights, name, t):
    p = predictions_at(curves, t)
    e = targets * p if LOSSES[name].margin else p - targets
    values = VALUES[name](e).sum(axis=1)
    return np.sum(weights * values) / max(weights.sum(), 1)


@functools.partial(jax.jit, static_argnames="loss")
def solve(curves, targets, weights, t, loss):
    f = expand_curves(curves, targets, weights, loss)
    return f, f(t), minimize(f)


def least(f, knots):
    """Of a function of degree at most 2 between the knots, by three points a piece."""
    knots = np.unique(knots)
    ends = np.concatenate([[knots[0] - 50], knots, [knots[-1] + 50]])
    best = np.inf
    for lo, hi in itertools.pairwise(ends):
        a, m, b = (f(t) for t in (lo, (lo + hi) / 2, hi))
        best = min(best, a, m, b)
        second, first = 2 * (a - 2 * m + b), b - a
        if second > 1e-12:
            best = min(
                best, f((lo + hi) / 2 + np.clip(-first / (2 * second), -0.5, 0.5) * (hi - lo))
            )
    return best


@pytest.mark.parametrize("name", LOSSES)
@given(problem=problems())
@settings(max_examples=20, deadline=None)
def test_the_expansion_is_the_loss_and_its_minimum_is_global(name, problem):
    curves, targets, weights = problem
    loss = LOSSES[name]
    if loss.margin:
        targets = np.where(targets > 0, 1.0, -1.0)
    t = np.concatenate([np.linspace(-3, 3, 25), [-40.0, 40], np.linspace(-2.9, 3.1, 23)])
    with jax.enable_x64(True):
        f, values, found = solve(*jax.tree.map(jnp.asarray, (curves, targets, weights, t)), loss)
        knots = np.asarray(f.knots)
        assert knots.shape == (S * (M + OUT * len(loss.kinks) * (M + 1)),)
        assert np.all(np.asarray(f.jumps)[0] == 0)
        truth = np.array([loss_at(curves, targets, weights, name, x) for x in t])
        np.testing.assert_allclose(values, truth, rtol=1e-9, atol=1e-9)
        finite = knots[np.isfinite(knots)]
        if name == "flat_cubic" or not len(finite):
            return
        best = least(lambda x: loss_at(curves, targets, weights, name, x), finite)
        if not found.attained:  # the bumpy loss of flat curves aside, nothing falls for ever
            assert not loss.bounded_below
            return
        assert float(found.value) <= best + 1e-9 * (1 + abs(best))
        reached = loss_at(curves, targets, weights, name, float(found.argmin))
        assert float(found.value) == pytest.approx(reached, abs=1e-8 * (1 + abs(best)))


@pytest.mark.parametrize("name", ["absolute", "huber", "hinge", "logistic"])
def test_float32_finds_the_minimum_with_and_without_sorting(name):
    """Hundreds of units' lines; residuals of 0, weights of 0 with NaN in them."""
    loss, rng = CASES[name], np.random.default_rng(1)
    both = jax.jit(
        lambda *a: [
            search(
                expand_curves(
                    unit_curves(*a[:4], activations.LEAKY_HARD_TANH), *a[4:], loss, monotone=once
                )
            )
            for search, once in ((minimize_convex_pieces, True), (minimize, False))
        ]
    )
    for _ in range(5):
        z, u = rng.normal(size=(2, 300)).astype(np.float32)
        p = rng.normal(size=(300, 3)).astype(np.float32)
        y = np.where(rng.random(p.shape) < 0.3, p, rng.normal(size=p.shape)).astype(np.float32)
        y = np.sign(y) if loss.margin else y
        v = rng.normal(size=3).astype(np.float32)
        w = rng.integers(0, 3, 300).astype(np.float32)

        def change(t, z=z, u=u, p=p, y=y, v=v, w=w):
            z, u, p, y, v, t = (np.asarray(a, np.float64) for a in (z, u, p, y, v, t))
            moved = p + (leaky_hard_tanh(z + t * u) - leaky_hard_tanh(z))[:, None] * v
            new, old = (
                VALUES[name](y * q if loss.margin else q - y).sum(axis=1) for q in (moved, p)
            )
            return np.sum(w * (new - old)) / np.sum(w)

        hidden = [np.where((w > 0).reshape(-1, *[1] * (a.ndim - 1)), a, np.nan) for a in (p, z, y)]
        grid = min(change(t) for t in np.linspace(-4, 4, 81))
        for found in both(*hidden[:2], u, v, hidden[2], w):
            noise = 2e-5 + 1e-6 * abs(float(found.argmin))
            assert change(found.argmin) <= grid + noise
            assert -float(found.gain) == pytest.approx(change(found.argmin), abs=noise)


def leaky_hard_tanh(x):
    return np.clip(x, -1, 1) + 0.01 * (x - np.clip(x, -1, 1))


def test_knots_on_the_origin_and_a_rate_of_0():
    """A curve that stands on the loss's kink, moves off it one way only, or does not move."""
    curves = Curves(
        jnp.zeros((3, 1)),
        jnp.array([[2.0], [0.0], [0.0]]),
        jnp.array([[0.0], [0.0], [jnp.inf]]),
        jnp.array([[[2.0]], [[1.0]], [[0.0]]]),
    )
    f = jax.jit(lambda c: expand_curves(c, jnp.zeros((3, 1)), None, losses.ABSOLUTE))(curves)
    t = jnp.array([-2.0, -1e-30, 0.0, 1e-30, 1.0])
    np.testing.assert_allclose(f(t), [2 / 3, 1e-30 / 3, 0, 2e-30 / 3, 2 / 3], rtol=1e-6)


@pytest.mark.parametrize("f", [*activations.ACTIVATIONS.values(), activations.ABS])
def test_a_units_curves_are_its_predictions(f):
    rng = np.random.default_rng(0)
    z, u = rng.integers(-4, 5, (2, 40)) / 2.0
    z[0], u[0] = 3.0, 1e-310  # a knot beyond the largest number
    p, v = rng.normal(size=(40, 2)), rng.normal(size=2)
    with jax.enable_x64(True):
        curves = jax.jit(lambda *a: unit_curves(*a, f))(*map(jnp.asarray, (p, z, u, v)))
        knots = np.asarray(curves.knots)
        assert np.all(knots[:, :-1] <= knots[:, 1:])
        for t in (-7.0, -0.5, 0.0, 0.25, 6.0):
            moved = np.asarray(f(jnp.asarray(z + t * u)) - f(jnp.asarray(z)))
            truth = p + moved[:, None] * v
            np.testing.assert_allclose(
                predictions_at(map(np.asarray, curves), t), truth, rtol=1e-12, atol=1e-12
            )
