"""Certificates of images and of embedded points: what they say, and what they refuse."""

import dataclasses

import jax
import numpy as np
import pytest

import jaxnpc.perceptual as perceptual
from jaxnpc.certificate import load_npz, robust_accuracy, save_npz
from jaxnpc.domains import Unbounded
from jaxnpc.perceptual.alexnet import CIFAR
from jaxnpc.perceptual.certify import certify_embedded
from jaxnpc.perceptual.embedding import embed, random_embedding
from jaxnpc.prototypes import prototype_classifier
from tests.jaxnpc.perceptual.test_bounds import at_most, every_pair, min_max, problem


@pytest.fixture(scope="module")
def pictures():
    """A narrow network, images of three kinds, and prototypes that are embeddings of some."""
    layers = tuple(layer._replace(features=6) for layer in CIFAR.layers)
    phi = random_embedding(dataclasses.replace(CIFAR, layers=layers), jax.random.key(0))
    rng = np.random.default_rng(0)
    kinds = rng.random((3, 4, 4, 3)).repeat(8, axis=1).repeat(8, axis=2)
    y = np.arange(24) % 3
    images = (0.8 * kinds[y] + 0.2 * rng.random((24, 32, 32, 3))).astype(np.float32)
    names = np.array(["cat", "dog", "eel"])
    classifier = prototype_classifier(embed(phi, images[:9]), names[y[:9]])
    return phi, images, names[y], classifier


def test_images_are_certified_through_their_embeddings(pictures):
    phi, images, labels, classifier = pictures
    found = perceptual.certify(phi, classifier, images, labels, chunk=10)
    assert len(found) == 24
    assert found.clean_accuracy == 1.0
    assert (found.radius > 0.05).all()
    assert np.isinf(found.upper).all()
    assert found.settings["embedding"] == phi.digest
    assert found.witness.shape == (24, 0)
    z = embed(phi, images)
    points = certify_embedded(classifier, z, labels, domain=phi.domain())
    np.testing.assert_allclose(found.radius, points.radius, rtol=1e-6)
    plane = perceptual.certify(phi, classifier, images, labels, method="half-space")
    assert (plane.radius <= found.radius).all()
    assert plane.settings["method"] == "half-space"
    assert found.radius.mean() > 1.05 * plane.radius.mean()
    # No image of another kind lies within the radius.
    apart = np.linalg.norm(z[:, None].astype(np.float64) - z, axis=2)
    assert (np.where(labels[:, None] == labels, np.inf, apart).min(axis=1) >= found.radius).all()


def test_labels_misses_and_nan(pictures):
    phi, images, labels, classifier = pictures
    some, wrong = images[:6].copy(), labels[:6].copy()
    some[2, 0, 0, 0] = np.nan
    wrong[4] = "eel" if labels[4] != "eel" else "cat"
    found = perceptual.certify(phi, classifier, some, wrong)
    np.testing.assert_array_equal(found.radius[[2, 4]], 0)
    np.testing.assert_array_equal(found.upper[[2, 4]], 0)
    assert found.exact.tolist() == [False, False, True, False, True, False]
    assert found.predicted[2] == -1
    np.testing.assert_allclose(robust_accuracy(found, 0.0), 4 / 6)
    free = perceptual.certify(phi, classifier, some)
    assert (free.radius > 0).tolist() == [True, True, False, True, True, True]


def test_certificates_are_kept_in_files(pictures, tmp_path):
    phi, images, labels, classifier = pictures
    found = perceptual.certify(phi, classifier, images, labels)
    save_npz(found, tmp_path / "c.npz")
    again = load_npz(tmp_path / "c.npz")
    np.testing.assert_array_equal(again.radius, found.radius)
    assert again.settings == found.settings
    assert again.classes == ("cat", "dog", "eel")


def test_a_tie_has_radius_0_and_the_class_that_comes_first():
    z, _, _, space = problem(0, 5)
    w = np.repeat(z[:2], 2, axis=0)
    found = certify_embedded(prototype_classifier(w, [1, 0, 0, 1]), z[:2], domain=space)
    assert found.predicted.tolist() == [0, 0]
    np.testing.assert_array_equal(found.radius, 0)


def test_embedded_points_meet_the_bound_over_all_pairs():
    z, y, classifier, space = problem(1, 50)
    found = certify_embedded(classifier, z, y, domain=space, chunk=16)
    best = min_max(*every_pair(z, y, classifier, space))
    assert at_most(found.radius, best)
    assert found.radius.sum() > 0.95 * best.sum()


def test_x64_changes_nothing(pictures):
    phi, images, labels, classifier = pictures
    found = perceptual.certify(phi, classifier, images, labels)
    with jax.enable_x64(True):
        wide = perceptual.certify(phi, classifier, images, labels)
    np.testing.assert_array_equal(wide.predicted, found.predicted)
    np.testing.assert_allclose(wide.radius, found.radius, rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"z": np.zeros((2, 30))}, TypeError, "dtype float64: embedded images are float32"),
        ({"z": np.zeros((2, 29), np.float32)}, ValueError, r"shape \(2, 29\)"),
        ({"z": np.zeros((0, 30), np.float32)}, ValueError, "at least one point"),
        ({"z": np.full((1, 30), 0.5, np.float32)}, ValueError, r"group 0 of z\[0\] has norm 0\.86"),
        ({"z": np.full((1, 30), -0.1, np.float32)}, ValueError, r"z\[0, 0\] is -0\.1"),
        ({"method": "exact"}, ValueError, "method must be one of spheres, half-space"),
        ({"domain": Unbounded()}, TypeError, "give a SphereProduct"),
        ({"labels": [0]}, ValueError, "1 entries for 4 points"),
        ({"labels": [0, 1, 2, 7]}, ValueError, "label 7"),
        ({"chunk": 0}, ValueError, "chunk must be at least 1"),
    ],
)
def test_what_does_not_fit_is_named(change, error, message):
    z, _, classifier, space = problem(2, 4)
    arguments = {"z": z, "domain": space, **change}
    with pytest.raises(error, match=message):
        certify_embedded(classifier, arguments.pop("z"), **arguments)


def test_images_that_do_not_fit_are_named(pictures):
    phi, images, labels, classifier = pictures
    with pytest.raises(ValueError, match="outside"):
        perceptual.certify(phi, classifier, 2 * images)
    with pytest.raises(ValueError, match="give at least one"):
        perceptual.certify(phi, classifier, images[:0])
    with pytest.raises(ValueError, match="23 entries for 24"):
        perceptual.certify(phi, classifier, images, labels[1:])
    wide = dataclasses.replace(phi, size=(48, 48))
    with pytest.raises(ValueError, match="add up to"):
        perceptual.certify(wide, classifier, images)
