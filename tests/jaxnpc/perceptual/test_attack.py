"""The attack finds what a search without gradients finds, and nothing inside a certificate."""

import dataclasses
import re

import numpy as np
import pytest

from jaxnpc.perceptual import certify
from jaxnpc.perceptual.attack import attack
from jaxnpc.perceptual.attacked import check_soundness
from jaxnpc.perceptual.embedding import embed, lpips
from tests.jaxnpc.perceptual.pictures import classes, small

STEPS = 100


@pytest.fixture(scope="module")
def found():
    phi, images, names, classifier = small()
    attacked = attack(phi, classifier, images, names, steps=STEPS, starts=3)
    return phi, images, names, classifier, attacked


def gradient_free(phi, classifier, image, label, pool, tries=1500):
    """The least distance by bisection towards other images, then by a random walk from there."""
    z = embed(phi, image[None])[0].astype(np.float64)
    rng = np.random.default_rng(0)

    def distance(candidates):
        far = np.linalg.norm(embed(phi, candidates) - z, axis=1)
        return np.where(classes(phi, classifier, candidates) != label, far, np.inf)

    best, least = None, np.inf
    for other in pool:
        shares = np.linspace(0, 1, 40)[1:, None, None, None]
        segment = (image + shares * (other - image)).astype(np.float32)
        far = distance(segment)
        if far.min() < least:
            best, least = segment[np.argmin(far)], far.min()
    size = 0.05
    for _ in range(tries // 50):
        noise = rng.normal(size=(50, *image.shape)) * size
        pulled = best + rng.uniform(0, 0.05, (50, 1, 1, 1)) * (image - best)
        candidates = np.clip(pulled + noise * rng.random((50, 1, 1, 1)), 0, 1).astype(np.float32)
        far = distance(candidates)
        if far.min() < least:
            best, least = candidates[np.argmin(far)], far.min()
        else:
            size *= 0.8
    return least


def test_what_is_found_is_what_it_says(found):
    phi, images, names, classifier, attacked = found
    assert attacked.success.all()
    assert attacked.images.dtype == np.float32
    assert ((attacked.images >= 0) & (attacked.images <= 1)).all()
    np.testing.assert_array_equal(attacked.distance, lpips(phi, images, attacked.images))
    reached = classes(phi, classifier, attacked.images)
    np.testing.assert_array_equal(reached, attacked.found)
    assert (reached != attacked.label).all()
    assert [classifier.classes[k] for k in attacked.label] == names.tolist()
    assert attacked.settings["embedding"] == phi.digest


def test_a_search_without_gradients_finds_little_nearer(found):
    phi, images, _, classifier, attacked = found
    for k in range(3):
        pool = images[attacked.label != attacked.label[k]]
        least = gradient_free(phi, classifier, images[k], attacked.label[k], pool)
        assert attacked.distance[k] <= 1.05 * least


def test_no_image_is_broken_inside_its_certificate(found):
    phi, images, names, classifier, attacked = found
    for method in ("spheres", "half-space"):
        certificate = certify(phi, classifier, images, names, method=method)
        sound = check_soundness(certificate, attacked)
        assert not len(sound.broken)
        assert (attacked.distance > certificate.radius).all()
        np.testing.assert_allclose(sound.ratio, (attacked.distance / certificate.radius).min())


def test_within_a_radius(found):
    phi, images, names, classifier, attacked = found
    radius = float(np.median(attacked.distance))
    within = attack(phi, classifier, images, names, radius=radius, steps=STEPS)
    assert (within.distance[within.success] <= radius).all()
    np.testing.assert_array_equal(within.images[~within.success], images[~within.success])
    assert (within.found[~within.success] == -1).all()
    # The search for the smallest distance and that within a radius agree but for close calls.
    easy, hard = attacked.distance < 0.9 * radius, attacked.distance > 1.1 * radius
    assert within.success[easy].all()
    assert not within.success[hard].any()
    assert within.settings["radius"] == f"{radius:g}"


def test_images_that_need_no_attack(found):
    phi, images, names, classifier, _ = found
    some, wrong = images[:4].copy(), names[:4].copy()
    some[1, 0, 0, 0] = np.nan
    wrong[2] = "cat"
    attacked = attack(phi, classifier, some, wrong, steps=STEPS)
    assert (attacked.distance == 0).tolist() == [False, True, True, False]
    assert attacked.found[1] == -1
    assert attacked.found[2] == classifier.classes.index("eel")
    np.testing.assert_array_equal(attacked.images[1:3], some[1:3])
    alone = attack(phi, classifier, some[1:3], wrong[1:3])
    np.testing.assert_array_equal(alone.distance, 0)


def test_an_interrupted_attack_goes_on(found, tmp_path, monkeypatch):
    phi, images, names, classifier, _ = found
    how = {"steps": 10, "batch": 4, "starts": 2}
    whole = attack(phi, classifier, images, names, **how)
    module = __import__("sys").modules["jaxnpc.perceptual.attack"]
    original, calls = module._attack_batch, []

    def stops(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(module, "_attack_batch", stops)
    with pytest.raises(KeyboardInterrupt):
        attack(phi, classifier, images, names, checkpoint=tmp_path / "a", **how)
    assert len(list((tmp_path / "a").iterdir())) == 2
    (tmp_path / "a" / "images-000000000.npz").write_bytes(b"damaged")
    calls.append(1)
    again = attack(phi, classifier, images, names, checkpoint=tmp_path / "a", **how)
    assert len(calls) == 6, "the damaged part and the missing one"
    np.testing.assert_array_equal(again.images, whole.images)
    np.testing.assert_array_equal(again.distance, whole.distance)
    assert again.settings == whole.settings
    assert again.classes == whole.classes
    with pytest.raises(ValueError, match="belongs to an attack on other images"):
        attack(phi, classifier, images, names, checkpoint=tmp_path / "a", **{**how, "seed": 1})


def test_the_same_seed_gives_the_same(found):
    phi, images, names, classifier, _ = found
    first, second = (attack(phi, classifier, images[:4], names[:4], steps=5) for _ in range(2))
    np.testing.assert_array_equal(first.images, second.images)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"radius": 0.0}, ValueError, "radius must be above 0, got 0.0"),
        ({"steps": 0}, ValueError, "steps must be at least 1, got 0"),
        ({"starts": 0}, ValueError, "starts must be at least 1, got 0"),
        ({"batch": 0}, ValueError, "batch must be at least 1, got 0"),
        ({"images": np.zeros((0, 16, 16, 3), np.float32)}, ValueError, "give at least one"),
        ({"images": np.full((12, 16, 16, 3), 2.0)}, ValueError, "outside [0, 1]"),
        ({"labels": ["cat"]}, ValueError, "labels has 1 entries for 12"),
        ({"labels": ["fox"] * 12}, ValueError, "label 'fox'"),
    ],
)
def test_what_does_not_fit_is_named(found, change, error, message):
    phi, images, names, classifier, _ = found
    arguments = {"images": images, "labels": names, **change}
    with pytest.raises(error, match=re.escape(message)):
        attack(phi, classifier, **arguments)


def test_a_classifier_of_something_else_is_refused(found):
    phi, images, names, classifier, _ = found
    other = dataclasses.replace(classifier, distance=1.0)
    with pytest.raises(ValueError, match="distance 2 and no metric"):
        attack(phi, other, images, names)
