"""What attacks found, held against certificates, and its files."""

import dataclasses

import numpy as np
import pytest

from jaxnpc.certificate import Certificate, robust_accuracy
from jaxnpc.perceptual.attacked import (
    Attacked,
    check_soundness,
    concatenate,
    load_attacked,
    save_attacked,
    tighten,
    upper_accuracy,
)

DISTANCE = np.array([0.4, 0.0, np.inf, 0.8])
RADIUS = np.array([0.3, 0.0, 0.5, 0.7, 0.1])


@pytest.fixture
def attacked():
    rng = np.random.default_rng(0)
    images = rng.random((4, 2, 2, 3)).astype(np.float32)
    label, found = np.array([0, 1, 0, 1]), np.array([1, 0, -1, 0])
    settings = {"embedding": "abc"}
    return Attacked(images, DISTANCE, label, found, np.arange(4), ("cat", "dog"), settings)


@pytest.fixture
def certificate():
    n = len(RADIUS)
    return Certificate(
        radius=RADIUS,
        upper=np.where(RADIUS > 0, np.inf, 0),
        exact=RADIUS == 0,
        witness=np.zeros((n, 0)),
        label=np.array([0, 1, 0, 1, 0]),
        predicted=np.array([0, 0, 0, 1, 0]),
        pair=np.full((n, 2), -1),
        subproblems=np.zeros(n, int),
        seconds=np.zeros(n),
        checksum=np.arange(n),
        classes=("cat", "dog"),
        q=2.0,
        settings={"embedding": "abc"},
    )


def test_upper_accuracy_counts_what_is_not_broken(attacked):
    radii = np.array([0, 0.4, 0.79, 0.8, 5, np.inf])
    # What was never broken is not broken at any radius.
    expected = [0.75, 0.5, 0.5, 0.25, 0.25, 0.25]
    np.testing.assert_array_equal(upper_accuracy(attacked, radii), expected)
    assert upper_accuracy(attacked, 0.1).shape == ()
    for bad in (-0.1, np.nan):
        with pytest.raises(ValueError, match="radii must be at least 0"):
            upper_accuracy(attacked, bad)
    with pytest.raises(ValueError, match="no images"):
        upper_accuracy(attacked.take(np.arange(0)), 0.1)


def test_soundness_counts_what_lies_inside(attacked, certificate):
    sound = check_soundness(certificate, attacked)
    assert sound.broken.tolist() == []
    assert sound.ratio == pytest.approx(0.8 / 0.7)
    wrong = dataclasses.replace(certificate, radius=RADIUS + 0.2 * (RADIUS > 0))
    broken = check_soundness(wrong, attacked)
    assert broken.broken.tolist() == [0, 3]
    assert broken.ratio == pytest.approx(0.8)


def test_other_images_labels_and_metrics_are_told(attacked, certificate):
    moved = dataclasses.replace(attacked, checksum=np.array([0, 1, 7, 3]))
    with pytest.raises(ValueError, match="row 2 has another checksum"):
        check_soundness(certificate, moved)
    with pytest.raises(ValueError, match="row 0 has another label"):
        check_soundness(certificate, dataclasses.replace(attacked, label=1 - attacked.label))
    with pytest.raises(ValueError, match="in the metric def, the certificate in abc"):
        check_soundness(certificate, dataclasses.replace(attacked, settings={"embedding": "def"}))
    with pytest.raises(ValueError, match="attacked has 4 images, the certificate 3"):
        check_soundness(certificate.take(np.arange(3)), attacked)


def test_tighten_lowers_the_upper_bound_of_what_was_attacked(attacked, certificate):
    tight = tighten(certificate, attacked)
    np.testing.assert_array_equal(tight.upper, DISTANCE)
    np.testing.assert_array_equal(tight.radius, RADIUS[:4])
    for eps in (0.0, 0.4, 0.6, 0.8):
        assert robust_accuracy(tight, eps, upper=True) == upper_accuracy(attacked, eps)


def test_files(attacked, tmp_path):
    save_attacked(attacked, tmp_path / "a.npz")
    again = load_attacked(tmp_path / "a.npz")
    for name in ("images", "distance", "label", "found", "checksum"):
        np.testing.assert_array_equal(getattr(again, name), getattr(attacked, name))
    assert (again.classes, again.settings) == (attacked.classes, attacked.settings)
    (tmp_path / "b.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:100])
    with pytest.raises(ValueError, match=r"b\.npz holds no attacked images"):
        load_attacked(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", images=np.zeros(3))
    with pytest.raises(ValueError, match=r"c\.npz holds no attacked images"):
        load_attacked(tmp_path / "c.npz")


def test_parts_and_rows(attacked):
    halves = [attacked.take(np.arange(2)), attacked.take(np.arange(2, 4))]
    whole = concatenate(halves)
    np.testing.assert_array_equal(whole.distance, attacked.distance)
    assert whole.success.tolist() == [True, True, False, True]
    assert [whole.name(int(k)) for k in whole.found] == ["dog", "cat", None, "cat"]
