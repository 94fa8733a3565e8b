"""Prototypes to start from: fixed points of Lloyd's algorithm, no centre lost."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxnpc.starts import STARTS, allotted, kmeans, start


def cost(points, centres):
    return ((points[:, None] - centres) ** 2).sum(-1).min(axis=1).sum()


def test_the_end_is_a_fixed_point_and_better_than_a_sample():
    points = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
    centres = np.asarray(kmeans(points, 12, jax.random.key(1), iterations=300))
    closest = ((points[:, None] - centres) ** 2).sum(-1).argmin(axis=1)
    means = np.stack([points[closest == c].mean(axis=0) for c in range(12)])
    np.testing.assert_allclose(centres, means, atol=1e-5)
    drawn = np.asarray(STARTS["sample"](points, 12, jax.random.key(1), 300))
    assert cost(points, centres) < 0.9 * cost(points, drawn)


def test_well_separated_clusters_are_all_found():
    rng = np.random.default_rng(2)
    middles = 100 * np.stack(np.meshgrid(range(4), range(4)), -1).reshape(-1, 2)
    points = (middles[:, None] + rng.normal(size=(16, 30, 2))).reshape(-1, 2).astype(np.float32)
    # Drawn by squared distance, the seeds miss none; drawn evenly they miss a third.
    for seed in range(5):
        centres = np.asarray(kmeans(points, 16, jax.random.key(seed)))
        assert cost(points, centres) < 2.2 * len(points)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1.0, 1e-6, 1e6]))
def test_no_centre_is_lost_while_points_are_distinct(seed, scale):
    rng = np.random.default_rng(seed)
    distinct = rng.permutation(64)[:8]
    # Each several times, so that draws and means may coincide.
    points = np.float32(scale) * rng.permutation(np.repeat(distinct, 5)).astype(np.float32)[:, None]
    centres = np.asarray(kmeans(points, 8, jax.random.key(seed), iterations=50))
    np.testing.assert_allclose(
        np.sort(centres[:, 0]), np.sort(distinct) * scale, rtol=1e-4, atol=1e-5 * scale
    )


def test_fewer_distinct_points_than_centres_are_no_trouble():
    centres = np.asarray(kmeans(np.ones((6, 2), np.float32), 4, jax.random.key(0)))
    np.testing.assert_array_equal(centres, np.ones((4, 2)))


def test_fillings_count_for_nothing():
    rng = np.random.default_rng(3)
    points = rng.normal(size=(40, 2)).astype(np.float32)
    filled = np.concatenate([points, np.full((24, 2), 1e3, np.float32)])
    weights = np.repeat([1.0, 0.0], [40, 24]).astype(np.float32)
    centres = np.asarray(kmeans(filled, 5, jax.random.key(0), weights=weights, iterations=100))
    closest = ((points[:, None] - centres) ** 2).sum(-1).argmin(axis=1)
    means = np.stack([points[closest == c].mean(axis=0) for c in range(5)])
    np.testing.assert_allclose(centres, means, atol=1e-4)


def test_more_points_than_a_block_make_no_difference(monkeypatch):
    points = np.random.default_rng(4).normal(size=(100, 2)).astype(np.float32)
    whole = kmeans(points, 7, jax.random.key(0), iterations=9)
    monkeypatch.setattr("jaxnpc.starts.ROWS", 32)
    jax.clear_caches()
    parts = kmeans(points, 7, jax.random.key(0), iterations=9)
    np.testing.assert_allclose(whole, parts, atol=1e-5)


@pytest.mark.parametrize("method", STARTS)
def test_every_class_gets_its_own_and_small_ones_what_they_have(method):
    rng = np.random.default_rng(5)
    classes = rng.permutation(np.repeat([0, 1, 2], [30, 2, 10]))
    points = (10.0 * classes[:, None] + rng.random((42, 3))).astype(np.float32)
    w, labels = start(points, classes, 4, jax.random.key(0), method)
    assert np.bincount(labels).tolist() == [4, 2, 4]
    np.testing.assert_array_equal(labels, allotted(classes, 4, method))
    np.testing.assert_array_equal(np.asarray(w).mean(axis=1) // 10, labels)
    again, _ = start(points, classes, 4, jax.random.key(0), method)
    other, _ = start(points, classes, 4, jax.random.key(1), method)
    np.testing.assert_array_equal(w, again)
    assert (np.asarray(w) != np.asarray(other)).any()


def test_samples_are_different_points_of_the_class():
    points = np.arange(20, dtype=np.float32)[:, None]
    w, labels = start(points, np.repeat([0, 1], 10), 9, jax.random.key(0), "sample")
    values = np.asarray(w)[:, 0]
    assert len(set(values)) == 18
    np.testing.assert_array_equal(values >= 10, labels == 1)


def test_what_does_not_fit_is_named():
    points, classes = np.zeros((4, 1), np.float32), np.array([0, 0, 1, 1])
    with pytest.raises(ValueError, match="'spread'"):
        start(points, classes, 1, jax.random.key(0), "spread")
    with pytest.raises(ValueError, match="per_class"):
        start(points, classes, 0, jax.random.key(0))
    for k in (0, 5):
        with pytest.raises(ValueError, match=f"got {k}"):
            kmeans(jnp.zeros((4, 1)), k, jax.random.key(0))
