"""Classes are judged as the certificate speaks of them; ties exactly."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxnpc.perceptual.embedding import embed, lpips
from jaxnpc.perceptual.judge import distances_from, judge, judge_embedded, reaches_a_tie
from jaxnpc.prototypes import prototype_classifier
from tests.jaxnpc.perceptual.pictures import classes, small


def exactly(point, classifier, label):
    """Whether another class is at least as close, in rational arithmetic."""

    def square(w):
        pairs = zip(point.tolist(), w.tolist(), strict=True)
        return sum((Fraction(a) - Fraction(b)) ** 2 for a, b in pairs)

    far = [square(w) for w in np.asarray(classifier.prototypes)]
    own = [f for f, k in zip(far, classifier.labels.tolist(), strict=True) if k == label]
    rest = [f for f, k in zip(far, classifier.labels.tolist(), strict=True) if k != label]
    return min(rest) <= min(own)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(-2, 2))
def test_points_next_to_a_tie_are_told_exactly(seed, step):
    rng = np.random.default_rng(seed)
    z = rng.integers(-8, 8, 5).astype(np.float32) / 8
    away = rng.integers(1, 8, 5).astype(np.float32) / 8
    w = np.stack([z + away, z - away, z + 2 * away, z - 3 * away])
    # One unit in the last place of one coordinate decides.
    w[1, 2] = np.nextafter(w[1, 2], np.float32(np.sign(step) * 100)) if step else w[1, 2]
    classifier = prototype_classifier(w, [0, 1, 0, 1])
    for label in (0, 1):
        expected = exactly(z, classifier, label)
        assert reaches_a_tie(classifier, z, label) == expected
        changed, _ = judge_embedded(classifier, z[None], np.array([label]))
        assert changed.tolist() == [expected]


def test_images_are_judged_through_their_embeddings():
    phi, images, names, classifier = small()
    label = np.array([classifier.classes.index(name) for name in names])
    found = judge(phi, classifier, images, label)
    truth = classes(phi, classifier, images)
    np.testing.assert_array_equal(found.predicted, truth)
    np.testing.assert_array_equal(found.changed, truth != label)
    np.testing.assert_array_equal(judge(phi, classifier, images, (label + 1) % 3).changed, True)
    np.testing.assert_array_equal(found.embedded, embed(phi, images))
    away = distances_from(found.embedded, embed(phi, images[::-1]))
    np.testing.assert_array_equal(away, lpips(phi, images, images[::-1]))


def test_an_image_that_is_not_finite_has_no_class():
    phi, images, _, classifier = small(3)
    images[1, 0, 0, 0] = np.nan
    found = judge(phi, classifier, images, np.zeros(3, int))
    assert found.predicted[1] == -1
    assert not found.changed[1]


@pytest.mark.parametrize("label", [0, 1])
def test_the_middle_is_of_no_class(label):
    w = np.array([[0.0, 1.0], [1.0, 0.0]], np.float32)
    classifier = prototype_classifier(w, [0, 1])
    middle = np.full((1, 2), 0.5, np.float32)
    changed, predicted = judge_embedded(classifier, middle, np.array([label]))
    assert changed.tolist() == [True]
    assert predicted.tolist() == [0]
