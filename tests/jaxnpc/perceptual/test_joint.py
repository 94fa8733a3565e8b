"""What co-training minimises, against plain NumPy in float64."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxmpd.losses import Batch
from jaxnpc.augmentation import Shift
from jaxnpc.perceptual.alexnet import Architecture, Convolution
from jaxnpc.perceptual.embedding import embed, lpips, random_embedding
from jaxnpc.perceptual.joint import (
    Plan,
    Programs,
    changed,
    log_distances,
    margins,
    programs,
    trained,
)
from jaxnpc.selection import members

KEY = jax.random.key(0)
SMALL = Architecture("small", (Convolution(6, 3, 2, 1, 0), Convolution(8, 3, 1, 1, 2)), 2, 16)
STAY = Shift(0, keep=1.0)
LABELS = (0, 0, 1, 2, 2)


def plan(**changes):
    usual = Plan(LABELS, 0.4, 0.0, 0.0, 0.0, 4, STAY, jnp.dtype("float32"))
    return usual._replace(**changes)


@functools.cache
def jitted(plan):
    return Programs(*map(jax.jit, programs(plan)))


def by_hand(z, w, y, labels, shown):
    """min over rivals of max over own prototypes, as the formula stands."""
    z, w = np.float64(z), np.float64(w)
    found = []
    for point, c, seen in zip(z, y, shown, strict=True):
        own = [k for slot, k in enumerate(np.flatnonzero(labels == c)) if seen[slot]]
        bounds = [
            max(
                (np.sum((point - w[j]) ** 2) - np.sum((point - w[i]) ** 2))
                / (2 * np.linalg.norm(w[i] - w[j]))
                for i in own
            )
            for j in np.flatnonzero(labels != c)
        ]
        found.append(min(bounds))
    return np.array(found)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_margins_and_their_gradients_are_those_of_the_formula(seed):
    rng = np.random.default_rng(seed)
    labels, n, d = np.array(LABELS), 6, 4
    group = members(labels)
    w, z = rng.normal(size=(5, d)).astype(np.float32), rng.normal(size=(n, d)).astype(np.float32)
    y = rng.integers(0, 3, n)
    shown = group.real[y] & (rng.random((n, 2)) < 0.7)
    shown[:, 0] |= ~shown.any(axis=1)
    want = by_hand(z, w, y, labels, shown)
    np.testing.assert_allclose(margins(group, w, z, y, shown), want, rtol=1e-4, atol=1e-4)

    def value(w, z):
        return jnp.sum(margins(group, w, z, y, shown))

    grads, step = jax.grad(value, argnums=(0, 1))(w, z), 1e-6
    directions = [rng.normal(size=a.shape) for a in (w, z)]
    slope = sum(np.sum(g * u) for g, u in zip(grads, directions, strict=True))
    ahead, behind = (
        by_hand(z + s * directions[1], w + s * directions[0], y, labels, shown).sum()
        for s in (step, -step)
    )
    assert slope == pytest.approx((ahead - behind) / (2 * step), rel=2e-3, abs=2e-3)


def test_equal_prototypes_of_two_classes_have_a_finite_gradient():
    group, w = members([0, 1]), jnp.ones((2, 3))
    grad = jax.grad(
        lambda w: jnp.sum(margins(group, w, jnp.zeros((1, 3)), jnp.array([0]), jnp.array([[True]])))
    )(w)
    assert jnp.isfinite(grad).all()


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(1)
    phi = random_embedding(SMALL, jax.random.key(1))
    images = rng.random((9, 16, 16, 3), dtype=np.float32)
    y = np.array([0, 0, 1, 2, 2, 1, 0, 2, 1])
    w = embed(phi, rng.random((5, 16, 16, 3), dtype=np.float32))
    moved = jax.tree.map(
        lambda a: a + 0.05 * rng.normal(size=a.shape).astype(np.float32), phi.params
    )
    params = {"network": moved, "prototypes": jnp.asarray(w), "frozen": phi}
    return params, Batch(jnp.asarray(images), jnp.asarray(y))


def test_the_loss_is_what_margins_lack_to_the_cap(problem):
    params, batch = problem
    z = embed(trained(params), batch.inputs)
    shown = members(LABELS).real[batch.targets]
    want = by_hand(z, params["prototypes"], batch.targets, np.array(LABELS), shown)
    run = jitted(plan())
    assert run.loss(params, batch, KEY) == pytest.approx(np.maximum(0.4 - want, 0).mean(), rel=1e-4)
    share = 1 - np.clip(want, 0, 0.4).mean() / 0.4
    assert run.missing(params, batch, KEY) == pytest.approx(share, rel=1e-4)
    assert 0 < share < 1
    # A sample of weight 0 only fills up.
    weights = jnp.array([1.0] * 8 + [0.0])
    assert run.loss(params, batch._replace(weights=weights), KEY) == pytest.approx(
        np.maximum(0.4 - want[:8], 0).mean(), rel=1e-4
    )


def test_the_penalty_is_that_of_drifted_logarithms_of_distances(problem):
    params, batch = problem
    free, held, loose = (
        float(jitted(plan(keep=keep, slack=slack)).loss(params, batch, KEY))
        for keep, slack in ((0.0, 0.0), (3.0, 0.0), (3.0, 0.01))
    )
    a, y = np.asarray(batch.inputs[:4]), np.asarray(batch.targets[:4])
    moved = np.asarray(changed(jax.random.split(KEY, 3)[2], batch.inputs[:4]))

    def logs(phi):
        parts = [np.log(lpips(phi, a, part)).mean() for part in np.split(moved, len(moved) // 4)]
        z = embed(phi, a)
        gaps = np.linalg.norm(z[:, None] - z[None], axis=2)
        gaps[y[:, None] == y] = np.inf
        return np.array([*parts, np.log(gaps.min(axis=1)).mean()])

    drift = logs(trained(params)) - logs(params["frozen"])
    assert held - free == pytest.approx(3 * np.sum(drift**2), rel=1e-2)
    assert loose - free == pytest.approx(
        3 * np.sum(np.maximum(np.abs(drift) - 0.01, 0) ** 2), rel=1e-2
    )
    assert 0 < loose - free < held - free


def test_the_frozen_network_pays_no_penalty_and_is_not_trained(problem):
    params, batch = problem
    params = {**params, "network": params["frozen"].params}
    free, held = (float(jitted(plan(keep=keep)).loss(params, batch, KEY)) for keep in (0.0, 1e4))
    assert held == pytest.approx(free, rel=1e-5)
    grads = jax.grad(jitted(plan(keep=1e4)).loss, allow_int=True)(params, batch, KEY)
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(grads["frozen"]))
    assert all((leaf != 0).any() for leaf in jax.tree.leaves(grads["network"]))


def test_images_without_a_change_or_another_class_cost_nothing():
    z = jnp.tile(jnp.arange(3.0), (10, 1))  # two images and their four changes, all the same
    value, grad = jax.value_and_grad(lambda z: jnp.sum(log_distances(z, jnp.zeros(2, int))))(z)
    assert jnp.isfinite(value)
    assert jnp.isfinite(grad).all()
    assert log_distances(z, jnp.zeros(2, int))[-1] == 0


def test_weights_of_channels_stay(problem):
    params, batch = problem
    linear = tuple(np.full(c, 4.0, np.float32) for c in (6, 8))
    weighted = {**params, "frozen": dataclasses.replace(params["frozen"], linear=linear)}
    twice = {**weighted, "prototypes": 2 * params["prototypes"]}
    one, two = (
        float(jitted(plan(cap=cap)).loss(p, batch, KEY)) for p, cap in ((params, 0.4), (twice, 0.8))
    )
    assert two == pytest.approx(2 * one, rel=1e-4)
