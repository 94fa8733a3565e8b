"""Distances of common changes against each change made by hand, and the rule for two metrics."""

import dataclasses
import io

import jax
import numpy as np
import pytest
from PIL import Image

from jaxnpc.perceptual.alexnet import Architecture, Convolution
from jaxnpc.perceptual.calibration import (
    CHANGES,
    DIFFERENTIABLE,
    OTHER_CLASS,
    TOLERANCE,
    Jpeg,
    Noise,
    calibrate,
    compare,
    mirror,
    record,
)
from jaxnpc.perceptual.embedding import embed, lpips, random_embedding

KEY = jax.random.key(3)
SMALL = Architecture("small", (Convolution(6, 3, 2, 1, 0), Convolution(8, 3, 1, 1, 2)), 2, 16)


@pytest.fixture(scope="module")
def phi():
    return random_embedding(SMALL, jax.random.key(0))


def images(n, seed=0):
    return np.random.default_rng(seed).random((n, 16, 16, 3), dtype=np.float32)


def test_each_distance_is_the_median_over_the_images(phi):
    x, labels = images(7), ["a", "b", "a", "c", "b", "a", "c"]
    found = calibrate(phi, x, labels)
    assert list(found) == [*CHANGES, OTHER_CLASS]
    assert found["mirror"] == pytest.approx(np.median(lpips(phi, x, x[:, :, ::-1])))
    z = embed(phi, x).astype(np.float64)
    gaps = np.linalg.norm(z[:, None] - z[None], axis=2)
    least = [min(gaps[a, b] for b in range(7) if labels[a] != labels[b]) for a in range(7)]
    assert found[OTHER_CLASS] == pytest.approx(np.median(least))
    assert 0 < found["noise 0.5"] < found["noise 1"]
    assert calibrate(phi, x, labels) == found
    assert calibrate(phi, x, labels, seed=1)["noise 1"] != found["noise 1"]
    assert list(calibrate(phi, x, labels, changes={"flip": mirror})) == ["flip", OTHER_CLASS]


def test_noise_has_its_size_and_stays_within_the_image():
    x = 0.5 + 0.001 * images(3)
    moved = np.asarray(Noise(1.0)(KEY, x))
    np.testing.assert_allclose(np.linalg.norm((moved - x).reshape(3, -1), axis=1), 1, rtol=1e-5)
    edge = np.asarray(Noise(30.0)(KEY, x))
    assert edge.min() == 0
    assert edge.max() == 1


def test_a_shift_moves_by_one_pixel_and_repeats_the_edge():
    x = images(9)
    around = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="edge")
    moved = np.asarray(DIFFERENTIABLE["shift 1"](KEY, x))
    sides = [around[:, a : a + 16, b : b + 16] for a, b in ((0, 1), (2, 1), (1, 0), (1, 2))]
    for k in range(9):
        assert sum((side[k] == moved[k]).all() for side in sides) == 1


def test_jpeg_is_what_pillow_reads_back():
    x = images(2)
    coded = np.asarray(Jpeg(50)(KEY, x))
    for image, found in zip(x, coded, strict=True):
        stream = io.BytesIO()
        Image.fromarray((255 * image).round().astype(np.uint8)).save(stream, "JPEG", quality=50)
        np.testing.assert_allclose(255 * found, np.asarray(Image.open(stream)), atol=1e-4)


def test_a_scaled_metric_is_told_from_the_frozen_one(phi):
    x, labels = images(6), [0, 1] * 3
    frozen = calibrate(phi, x, labels)
    # Weighted LPIPS with one weight for all channels is a multiple of the unweighted one.
    scaled = dataclasses.replace(phi, linear=tuple(np.full(c, 1.44, np.float32) for c in (6, 8)))
    found = compare(frozen, calibrate(scaled, x, labels))
    assert list(found.ratio.values()) == pytest.approx([1.2] * 6, rel=1e-5)
    assert found.deviation == pytest.approx(0.2, rel=1e-4)
    assert not found.within
    same = compare(frozen, frozen)
    assert (same.deviation, same.within) == (0, True)
    assert compare({"x": 1.0}, {"x": 1 - 0.99 * TOLERANCE}).within
    assert not compare({"x": 1.0, "y": 1.0}, {"x": 1 + 1.01 * TOLERANCE, "y": 1.0}).within
    assert not compare({"x": 0.0}, {"x": 0.1}).within
    assert compare({"x": 0.0}, {"x": 0.0}).within
    assert record(frozen, frozen)["mirror"] == {
        "frozen": frozen["mirror"],
        "cotrained": frozen["mirror"],
    }


def test_what_does_not_fit_is_named(phi):
    x = images(3)
    with pytest.raises(ValueError, match="3 images and 2 labels"):
        calibrate(phi, x, [0, 1])
    with pytest.raises(ValueError, match="two at least"):
        calibrate(phi, x, [0, 0, 0])
    with pytest.raises(ValueError, match="same changes"):
        compare({"mirror": 1.0}, {"noise": 1.0})
