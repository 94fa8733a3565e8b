"""Classifiers come back from files as they were."""

import math

import numpy as np
import pytest

from jaxnpc.models import build, load_model, save_model
from jaxnpc.prototypes import prototype_classifier

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("names", "classes", "distance", "metric"),
    [
        ([3, 1, 3, 7], None, 2, RNG.normal(size=(2, 4))),
        ([0.5, -1.0, 0.5, -1.0], None, 1, None),
        (["dog", "cat", "dog", "cat"], ["dog", "cat"], math.inf, None),
    ],
)
def test_what_is_saved_is_loaded(tmp_path, names, classes, distance, metric):
    classifier = prototype_classifier(
        RNG.normal(size=(4, 4)), names, distance=distance, metric=metric, classes=classes
    )
    settings = {"crop": 1, "training": {"epochs": 40, "objective": "margin"}}
    save_model(tmp_path / "model.npz", classifier, shape=(2, 2), settings=settings)
    model = load_model(tmp_path / "model.npz")
    again = build(model)
    np.testing.assert_array_equal(again.prototypes, classifier.prototypes)
    np.testing.assert_array_equal(again.labels, classifier.labels)
    assert again.classes == classifier.classes, "in the order that decides ties"
    assert again.distance == distance
    assert (again.metric is None) == (metric is None)
    if metric is not None:
        np.testing.assert_array_equal(again.metric, classifier.metric)
    assert model.settings == settings
    assert model.prototypes.shape == (2, 2)


def test_mixed_names_become_strings(tmp_path):
    classifier = prototype_classifier([[0.0], [1.0]], ["dog", 1])
    save_model(tmp_path / "model.npz", classifier)
    assert set(build(load_model(tmp_path / "model.npz")).classes) == {"dog", "1"}


def test_other_programs_arrays(tmp_path):
    """Without a record the distance is the caller's, and arrays of other meanings do not count."""
    path = tmp_path / "other.npz"
    prototypes = RNG.normal(size=(4, 3))
    np.savez(
        path,
        prototypes=prototypes,
        labels=[0, 0, 1, 1],
        distance=np.zeros(4),  # of something else
        classes=["cat", "dog"],  # names of the indices
    )
    model = load_model(path)
    assert (model.distance, model.classes, model.settings) == (None, None, {})
    assert build(model).distance == 2
    assert build(model, math.inf).distance == math.inf
    assert build(model).classes == (0, 1)


def test_a_data_set_is_its_own_classifier():
    model = load_model("digits")
    assert len(build(model).prototypes) == 1797
    assert model.prototypes.shape == (8, 8)


def test_refusals(tmp_path):
    path = tmp_path / "model.npz"
    classifier = prototype_classifier([[0.0, 1.0], [1.0, 0.0]], [0, 1], distance=1)
    with pytest.raises(ValueError, match=r"shape \(3,\) is not that of prototypes with 2"):
        save_model(path, classifier, shape=(3,))
    with pytest.raises(ValueError, match="holds the norms 1, 2 and inf only"):
        save_model(path, prototype_classifier([[0.0], [1.0]], [0, 1], distance=lambda x, w: x))
    with pytest.raises(TypeError):
        save_model(path, classifier, settings={"no JSON": object()})
    assert not list(tmp_path.iterdir()), "nothing is left behind"
    save_model(path, classifier)
    with pytest.raises(ValueError, match=r"distance 2 is not that of .*model.npz.*made for 1"):
        build(load_model(path), 2)
    np.savez(path, prototypes=np.eye(2), labels=[0, 1], settings="[1]")
    with pytest.raises(ValueError, match="settings must be a JSON object"):
        load_model(path)
    np.savez(path, prototypes=np.eye(2), labels=[0, 1], distance="l2")
    with pytest.raises(ValueError, match="distance must be 1, 2 or inf, got 'l2'"):
        load_model(path)
    np.savez(path, prototypes=np.eye(2))
    with pytest.raises(ValueError, match="has no labels"):
        load_model(path)
