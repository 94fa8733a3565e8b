"""Labelled points, checked, and those held out."""

import numpy as np
import pytest

from jaxnpc.samples import hold_out, samples

POINTS = np.arange(24.0).reshape(6, 2, 2)
LABELS = ["b", "a", "b", "a", "b", "c"]


def test_points_are_flattened_for_norms_only():
    flat = samples(POINTS, LABELS, 2)
    assert (flat.points.shape, flat.shape, flat.points.dtype) == ((6, 4), (2, 2), np.float32)
    assert flat.names == ("a", "b", "c")
    assert flat.classes.tolist() == [1, 0, 1, 0, 1, 2]
    whole = samples(POINTS, LABELS, lambda x, w: x)
    assert whole.points.shape == (6, 2, 2)


def test_a_share_is_taken_from_the_end():
    data = samples(np.arange(10.0)[:, None], [0, 1] * 5, 2)
    train, held_out = hold_out(data, 0.3, 2)
    assert train.points[:, 0].tolist() == list(range(7))
    assert held_out.points[:, 0].tolist() == [7, 8, 9]
    assert held_out.classes.tolist() == [1, 0, 1]


def test_a_share_that_would_take_all_of_a_class_is_taken_of_each():
    data = samples(np.arange(11.0)[:, None], [0] * 6 + [1] * 4 + [2], 2)
    train, held_out = hold_out(data, 0.5, 2)
    assert train.points[:, 0].tolist() == [0, 1, 2, 6, 7, 10]
    assert held_out.points[:, 0].tolist() == [3, 4, 5, 8, 9]


def test_points_of_ones_own_are_held_out_as_they_are():
    data = samples(POINTS, LABELS, 2)
    train, held_out = hold_out(data, (POINTS[:2], ["c", "a"]), 2)
    assert train is data
    assert held_out.classes.tolist() == [2, 0]
    np.testing.assert_array_equal(held_out.points, POINTS[:2].reshape(2, 4))


@pytest.mark.parametrize(
    ("points", "labels", "message"),
    [
        (np.full((2, 3), np.nan), [0, 1], r"points\[0\] is not finite"),
        (np.array([[0.0], [1e300]]), [0, 1], r"points\[1\] is not finite in float32"),
        (np.zeros((3, 1)), [0, 1], "labels has 2"),
        (np.zeros((2, 1)), [0, 0], "at least two classes"),
        (np.zeros(3), [0, 1, 1], "shape"),
    ],
)
def test_bad_points_are_named(points, labels, message):
    with pytest.raises(ValueError, match=message):
        samples(points, labels, 2)


@pytest.mark.parametrize(
    ("validation", "message"),
    [
        (1.0, "share"),
        (0, "share"),
        ((POINTS[:2], ["a"]), "2 points and 1 labels"),
        ((POINTS[:0], []), "at least one"),
        ((POINTS[:1, :, :1], ["a"]), "shape"),
        ((POINTS[:1], ["z"]), "'z'"),
        ((POINTS[:1] * np.nan, ["a"]), r"validation\[0\]"),
    ],
)
def test_bad_validation_is_named(validation, message):
    with pytest.raises(ValueError, match=message):
        hold_out(samples(POINTS, LABELS, 2), validation, 2)


def test_no_class_may_be_validated_without_being_trained():
    with pytest.raises(ValueError, match="one only"):
        hold_out(samples(np.eye(2), [0, 1], 2), 0.5, 2)
