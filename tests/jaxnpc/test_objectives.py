"""Objectives: values by hand, gradients by differences, and finite where geometry degenerates."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxnpc.bounds import lower_bounds, margin_bounds
from jaxnpc.domains import Box, Unbounded
from jaxnpc.objectives import (
    capped_margin,
    glvq,
    hypothesis_margin,
    semi_metric,
    signed_bound,
    squared_hinge,
)
from jaxnpc.prototypes import prototype_classifier

pytestmark = pytest.mark.compiled_quickly

INF = math.inf
KEY = jax.random.key(0)
LABELS = np.array([0, 1, 2, 0, 1, 2, 0, 1])
K, D, N = len(LABELS), 4, 30
CELLS = [
    *[(2, q, domain) for q in (1, 2, INF) for domain in (Unbounded(), Box())],
    *[(p, INF, domain) for p in (1, INF) for domain in (Unbounded(), Box())],
]


def sample(seed, dtype=np.float32):
    rng = np.random.default_rng(seed)
    w, x = rng.random((K, D)), rng.random((N, D))
    return w.astype(dtype), x.astype(dtype), rng.integers(0, 3, N)


OBJECTIVES = {
    **{
        f"margin {p} {q} {type(domain).__name__}": capped_margin(
            LABELS, p=p, q=q, domain=domain, cap=0.3
        )
        # The gradients of all radii are tested where these are.
        for p, q, domain in CELLS[::3]
    },
    "squared hinge": squared_hinge(LABELS, cap=0.3, dropout=0.3),
    **{f"glvq {p}": glvq(LABELS, p=p) for p in (1, 2, INF)},
    **{f"semi-metric {p}": semi_metric(LABELS, p, cap=0.3) for p in (1, 2, INF)},
}
SMOOTHED = {
    f"smoothed {p} by {t}": semi_metric(LABELS, p, cap=0.3, smoothing=t, dropout=0.5)
    for p in (1, 2, INF)
    for t in (0.05, 1e-3)
}


@pytest.mark.parametrize(("p", "q", "domain"), CELLS)
def test_signed_bounds_are_the_bounds_of_points_that_are_right(p, q, domain):
    w, x, y = sample(1)
    margin = np.asarray(
        jax.jit(signed_bound(LABELS, p=p, q=q, domain=domain, rivals=K))(w, x, y, KEY)
    )
    classifier = prototype_classifier(w, LABELS, distance=p)
    radius = lower_bounds(classifier, x, y, q=q, domain=domain).radius
    np.testing.assert_array_equal(margin > 1e-5, radius > 1e-5)
    np.testing.assert_allclose(np.maximum(margin, 0), radius, atol=1e-5)
    assert (margin < 0).any()
    assert (margin > 0).any()


@pytest.mark.parametrize("p", [1, 2, INF])
def test_a_missed_point_is_as_far_beyond_as_it_would_be_before(p):
    labels, w = [0, 1], np.array([[0.0, 0.0], [1.0, 0.5]], np.float32)
    x = np.random.default_rng(2).random((20, 2)).astype(np.float32)
    margin = jax.jit(signed_bound(labels, p=p, q=INF if p != 2 else 2))
    mine = margin(w, x, np.zeros(20, int), KEY)
    theirs = margin(w, x, np.ones(20, int), KEY)
    np.testing.assert_allclose(mine, -theirs, atol=1e-6)


def test_hypothesis_margins_are_the_bounds_of_theorem_2_4():
    w, x, y = sample(3)
    for p in (1, 2, INF):
        margin = np.asarray(jax.jit(hypothesis_margin(LABELS, p))(w, x, y, KEY))
        radius = margin_bounds(prototype_classifier(w, LABELS, distance=p), x, y).radius
        np.testing.assert_allclose(np.maximum(margin, 0), radius, atol=1e-6)
        smooth = jax.jit(hypothesis_margin(LABELS, p, smoothing=0.1))(w, x, y, KEY)
        np.testing.assert_allclose(smooth, margin, atol=1e-6)  # in the gradient only


def test_losses_are_what_is_missing_to_the_cap():
    w, x, y = sample(4)
    margin = np.asarray(signed_bound(LABELS)(w, x, y, KEY))
    missing = np.maximum(0.2 - margin, 0)
    np.testing.assert_allclose(capped_margin(LABELS, cap=0.2)(w, x, y, KEY), missing, atol=1e-6)
    np.testing.assert_allclose(
        squared_hinge(LABELS, cap=0.2)(w, x, y, KEY), missing**2 / 0.4, atol=1e-6
    )


def test_glvq_is_a_share_of_two_distances():
    w, x, y = sample(5)
    for p in (1, 2, INF):
        d = np.linalg.norm(x[:, None] - w, ord=p, axis=-1)
        own = np.where(y[:, None] == LABELS, d, INF).min(axis=1)
        rival = np.where(y[:, None] != LABELS, d, INF).min(axis=1)
        np.testing.assert_allclose(glvq(LABELS, p=p)(w, x, y, KEY), own / (own + rival), rtol=1e-5)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradients_are_those_of_the_values(name):
    with jax.enable_x64(True):
        w, x, y = sample(6, np.float64)
        direction = np.random.default_rng(7).normal(size=w.shape)
        value = jax.jit(lambda w: OBJECTIVES[name](w, x, y, jax.random.key(1)))
        slope, step = jax.jvp(value, (w,), (direction,))[1], 1e-7
        difference = (value(w + step * direction) - value(w - step * direction)) / (2 * step)
        assert np.abs(slope).max() > 0.01
        # Searches end within rounding of their answer, and a point may lie on a kink.
        close = np.isclose(slope, difference, rtol=1e-3, atol=1e-4)
        assert close.mean() > 0.95


@pytest.mark.parametrize("p", [1, 2, INF])
def test_a_small_temperature_gives_the_plain_gradient(p):
    w, x, y = sample(8)
    # No two coordinates and no two prototypes of a point are within a few temperatures.
    plain, smooth = (
        jax.jit(
            jax.grad(lambda w, t=t: hypothesis_margin(LABELS, p, smoothing=t)(w, x, y, KEY).sum())
        )(w)
        for t in (0.0, 1e-6)
    )
    np.testing.assert_allclose(smooth, plain, atol=1e-3)


def test_smoothing_spreads_the_gradient_over_coordinates_and_prototypes():
    w, x, y = sample(9)
    touched = []
    for t in (0.0, 0.1):
        margin = hypothesis_margin(LABELS, INF, smoothing=t)
        gradient = jax.jit(jax.grad(lambda w, m=margin: m(w, x[:1], y[:1], KEY)[0]))(w)
        touched.append(int(jnp.sum(gradient != 0)))
    assert touched[0] == 2
    assert touched[1] > K


@pytest.mark.parametrize("name", [*OBJECTIVES, *SMOOTHED])
def test_gradients_are_finite_where_geometry_degenerates(name):
    objective = {**OBJECTIVES, **SMOOTHED}[name]
    w, x, y = sample(10)
    grad = jax.jit(jax.value_and_grad(lambda w, x: objective(w, x, y, KEY).sum(), argnums=(0, 1)))
    met = x.copy()
    met[:K], met[K : 2 * K] = w, w  # on an own prototype, or on a rival
    equal = w.copy()
    equal[1], equal[3] = w[0], w[0]  # across classes, and within one
    corner = np.round(x)
    for w_, x_ in (
        (w, met),
        (equal, x),
        (equal, np.repeat(equal, 4, axis=0)[:N]),
        (np.full_like(w, 0.5), x),
        (np.full_like(w, 0.5), np.full_like(x, 0.5)),
        (w, corner),
        (np.round(w), corner),
        (2 * w - 0.5, corner),  # prototypes outside the box
    ):
        value, gradients = grad(w_, x_)
        assert np.isfinite(value)
        assert value >= 0
        assert all(np.isfinite(g).all() for g in gradients)


def test_a_semi_metric_may_be_any_function_of_images():
    def distance(x, w):
        return jnp.abs(x[:, None] - w).max(axis=(2, 3))

    w, x, y = sample(11)
    image = lambda a: a.reshape(-1, 2, 2)  # noqa: E731
    mine = semi_metric(LABELS, distance, cap=0.3)
    plain = semi_metric(LABELS, INF, cap=0.3)
    np.testing.assert_allclose(mine(image(w), image(x), y, KEY), plain(w, x, y, KEY), atol=1e-6)
    gradients = [
        jax.grad(lambda w, f=f, g=g: f(w, g(x), y, KEY).sum())(g(w))
        for f, g in ((mine, image), (plain, lambda a: a))
    ]
    np.testing.assert_allclose(gradients[0].reshape(K, D), gradients[1], atol=1e-6)


def test_dropout_lets_other_own_prototypes_learn():
    w, x, y = sample(12)
    touched = []
    for dropout in (0.0, 0.6):
        loss = capped_margin(LABELS, cap=9.0, dropout=dropout)
        grad = jax.jit(jax.grad(lambda w, key, loss=loss: loss(w, x[:1], y[:1], key).sum()))
        own = np.flatnonzero(y[0] == LABELS)
        moved = [np.asarray(grad(w, jax.random.key(k)))[own].any(axis=1) for k in range(30)]
        touched.append(np.any(moved, axis=0).sum())
    assert touched[0] == 1
    assert touched[1] == np.sum(y[0] == LABELS)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: capped_margin(LABELS, cap=0.0), "cap"),
        (lambda: capped_margin(LABELS, cap=INF), "cap"),
        (lambda: capped_margin(LABELS, cap=1.0, dropout=1.0), "dropout"),
        (lambda: capped_margin(LABELS, cap=1.0, rivals=0), "rivals"),
        (lambda: capped_margin(LABELS, cap=1.0, p=3), "p = 3"),
        (lambda: glvq(LABELS, p=3), "p must be"),
        (lambda: glvq(LABELS, dropout=-0.1), "dropout"),
        (lambda: semi_metric(LABELS, 2, cap=1.0, smoothing=-1.0), "smoothing"),
        (lambda: semi_metric(LABELS, 2, cap=1.0, neighbours=0), "neighbours"),
        (lambda: semi_metric(LABELS, "l2", cap=1.0), "distance"),
    ],
)
def test_what_does_not_fit_is_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()
