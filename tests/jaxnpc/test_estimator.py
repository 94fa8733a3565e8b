"""The estimator keeps scikit-learn's contract, and radii behind a scaler are the input's."""

import dataclasses
import doctest
import functools
import importlib
import math
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, Normalizer, StandardScaler

from jaxnpc.certificate import robust_accuracy
from jaxnpc.certify import certify
from jaxnpc.domains import Box, Unbounded
from jaxnpc.estimator import (
    PrototypeEstimator,
    certified_accuracy,
    certify_pipeline,
    input_space,
)

pytestmark = pytest.mark.compiled_quickly

PAGE = Path(__file__).parents[2] / "docs" / "estimator.md"
RNG = np.random.default_rng(0)
# Three clusters in the plane, in coordinates of very different size.
INDEX = np.arange(60) % 3
PLANE = np.array([[0.0, 0.0], [300.0, 0.1], [100.0, 0.4]])[INDEX] + RNG.normal(
    0, [60.0, 0.05], (60, 2)
)
NAMES = np.array(["ash", "birch", "cedar"])[INDEX]
CLOSE = PLANE * [1e-2, 10]
QUICK = {"per_class": 3, "epochs": 3}


@functools.cache
def fitted():
    return make_pipeline(StandardScaler(), PrototypeEstimator(**QUICK)).fit(PLANE, NAMES)


def test_the_contract_of_scikit_learn():
    code = (
        "from sklearn.utils.estimator_checks import check_estimator as check\n"
        "from jaxnpc.estimator import PrototypeEstimator\n"
        "results = check(PrototypeEstimator(), on_skip=None, on_fail=None)\n"
        "for r in results:\n"
        "    if r['status'] != 'passed':\n"
        '        raise SystemExit(f\'{r["check_name"]} {r["status"]}: {r["exception"]!r}\')\n'
        "print(len(results))\n"
    )
    # One check is skipped unless SciPy is told, before it is imported, to take arrays of any kind.
    # Dozens of programs are compiled, each to run once.
    environment = {**os.environ, "SCIPY_ARRAY_API": "1", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50


def test_data_frames_name_their_columns():
    frame = pd.DataFrame({"width": CLOSE[:, 0], "height": CLOSE[:, 1]})
    estimator = PrototypeEstimator(**QUICK).fit(frame, pd.Series(NAMES))
    assert estimator.feature_names_in_.tolist() == ["width", "height"]
    with pytest.raises(ValueError, match="feature names should match"):
        estimator.certify(frame[["height", "width"]])
    model = make_pipeline(StandardScaler(), PrototypeEstimator(**QUICK)).fit(frame, NAMES)
    got, want = (
        certify_pipeline(model, frame, pd.Series(NAMES)),
        certify_pipeline(model, CLOSE, NAMES),
    )
    assert (got.radius == want.radius).all()


def test_defaults_learn_the_digits():
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.3, random_state=0, stratify=y)
    assert PrototypeEstimator().fit(X, y).score(X_test, y_test) >= 0.97


@pytest.mark.parametrize(
    "names",
    [
        np.array(["no", "yes", "maybe"]),
        np.array(["no", "yes", "maybe"], object),
        np.array([3, -7, 40]),
        np.array([2.0, 1.0, 5.0]),
        np.array([True, False, True]),
    ],
    ids=lambda names: names.dtype.kind,
)
def test_labels_of_any_type(names):
    y = names[INDEX]
    estimator = PrototypeEstimator(**QUICK).fit(CLOSE, y)
    predicted = estimator.predict(CLOSE)
    assert predicted.dtype == y.dtype
    assert estimator.classes_.tolist() == sorted(set(y.tolist()))
    assert (predicted == y).mean() > 0.9
    certificate = estimator.certify(CLOSE, y)
    assert (certificate.radius > 0)[predicted == y].mean() > 0.9
    assert (certificate.radius[predicted != y] == 0).all()


def test_a_small_class_gets_a_prototype_a_sample():
    rows = np.concatenate([np.flatnonzero(INDEX == 0), [1, 4, 2]])
    estimator = PrototypeEstimator(per_class=5, epochs=2).fit(CLOSE[rows], NAMES[rows])
    assert np.bincount(np.asarray(estimator.classifier_.labels)).tolist() == [5, 2, 1]


@pytest.mark.parametrize("classes", [2, 3])
def test_the_decision_function_decides(classes):
    rows = np.isin(INDEX, range(classes))
    estimator = PrototypeEstimator(**QUICK).fit(CLOSE[rows], NAMES[rows])
    points = RNG.uniform([-1, -1], [4, 5], (1500, 2))
    values = estimator.decision_function(points)
    w, labels = (
        np.asarray(v) for v in (estimator.classifier_.prototypes, estimator.classifier_.labels)
    )
    far = np.linalg.norm(points[:, None] - w.astype(float), axis=2)
    want = -np.stack([far[:, labels == c].min(axis=1) for c in range(classes)], axis=1)
    if classes == 2:
        want = want[:, 1] - want[:, 0]
        index = (values > 0).astype(int)
    else:
        index = values.argmax(axis=1)
    assert values.dtype == np.float64
    assert np.allclose(values, want, rtol=1e-12, atol=1e-12)
    assert (estimator.predict(points) == estimator.classes_[index]).all()


def test_the_random_state_decides_the_fit():
    def prototypes(state):
        estimator = PrototypeEstimator(**QUICK, random_state=state).fit(CLOSE, NAMES)
        return np.asarray(estimator.classifier_.prototypes)

    assert (prototypes(3) == prototypes(3)).all()
    assert (prototypes(np.int64(3)) == prototypes(3)).all()
    assert (prototypes(3) != prototypes(4)).any()
    assert (prototypes(np.random.RandomState(5)) == prototypes(np.random.RandomState(5))).all()
    state = np.random.RandomState(5)
    assert (prototypes(state) != prototypes(state)).any()


def test_pickled_and_cloned():
    estimator = PrototypeEstimator(**QUICK).fit(CLOSE, NAMES)
    again = pickle.loads(pickle.dumps(estimator))
    assert (again.decision_function(CLOSE) == estimator.decision_function(CLOSE)).all()
    assert (again.certify(CLOSE).radius == estimator.certify(CLOSE).radius).all()
    fresh = clone(estimator)
    assert not hasattr(fresh, "classifier_")
    assert (fresh.fit(CLOSE, NAMES).predict(CLOSE) == estimator.predict(CLOSE)).all()
    boxed = PrototypeEstimator(domain=Box(0, 1))
    assert clone(boxed).domain == boxed.domain


def test_certify_takes_the_threat_model_of_the_training():
    domain = Box(CLOSE.min(), CLOSE.max())
    estimator = PrototypeEstimator(**QUICK).fit(CLOSE, NAMES).set_params(q=math.inf, domain=domain)
    certificate = estimator.certify(CLOSE, NAMES)
    want = certify(estimator.classifier_, CLOSE, NAMES, q=math.inf, domain=domain)
    assert (certificate.radius == want.radius).all()
    assert (certificate.radius != estimator.certify(CLOSE, NAMES, domain=Unbounded()).radius).any()
    other = estimator.certify(CLOSE, NAMES, q=1, method="margin")
    assert (other.q, other.settings["method"]) == (1.0, "margin")


def test_a_point_that_is_not_finite_has_radius_0_but_no_prediction():
    estimator = fitted()[-1]
    points = np.array([[0.0, 0.0], [np.nan, 0.0]])
    assert estimator.certify(points).radius[1] == 0
    assert estimator.certify(points).radius[0] > 0
    with pytest.raises(ValueError, match="Input X contains NaN"):
        estimator.predict(points)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (["ash"] * 60, "only one class, 'ash'"),
        (RNG.normal(size=60), "Unknown label type"),
        (NAMES[:59], "inconsistent numbers of samples"),
        (None, "requires y"),
    ],
)
def test_what_cannot_be_fitted(y, message):
    with pytest.raises(ValueError, match=message):
        PrototypeEstimator(**QUICK).fit(PLANE, y)


@pytest.mark.parametrize("q", [1, 2, math.inf])
def test_radii_of_a_pipeline_hold_for_the_pipeline_itself(q):
    model = fitted()
    certificate = certify_pipeline(model, PLANE, NAMES, q=q)
    assert (certificate.predicted == model[-1].classes_.searchsorted(model.predict(PLANE))).all()
    angle = np.linspace(0, 2 * np.pi, 720, endpoint=False)
    circle = np.stack([np.cos(angle), np.sin(angle)], -1)
    circle[::2, 1] *= 1e-3  # along the wide coordinate, too
    circle /= np.linalg.norm(circle, ord=q, axis=1, keepdims=True)
    ball = (np.linspace(0, 0.999999, 12)[:, None, None] * circle).reshape(-1, 2)
    certain = np.flatnonzero(certificate.radius > 0)
    inside = PLANE[certain, None] + certificate.radius[certain, None, None] * ball
    predicted = model.predict(inside.reshape(-1, 2)).reshape(len(certain), -1)
    assert (predicted == NAMES[certain, None]).all()
    # The witnesses are nearest points of another class, in the units of the input.
    moved = np.linalg.norm(certificate.witness - PLANE, ord=q, axis=1)
    assert certificate.exact.all()
    assert np.allclose(moved, certificate.radius, rtol=2e-6)
    assert (model.predict(certificate.witness) != NAMES)[certain].all()


def test_a_uniform_scale_divides_radii():
    X = np.array([[0.0, 255.0], [255.0, 0.0], [100.0, 200.0], [200.0, 50.0]])
    y = [0, 1, 0, 1]
    scaler = MinMaxScaler((0, 1)).fit(X)
    model = make_pipeline(scaler, PrototypeEstimator(**QUICK, distance=1, q=math.inf)).fit(X, y)
    radius = certify_pipeline(model, X, y).radius
    assert np.allclose(radius, 255 * model[-1].certify(scaler.transform(X), y).radius, rtol=1e-6)
    assert (radius > 0).all()


def test_pipelines_in_pipelines_and_steps_that_do_nothing():
    model = fitted()
    nested = make_pipeline("passthrough", make_pipeline(model[0], None), model[-1])
    got, want = certify_pipeline(nested, PLANE), certify_pipeline(model, PLANE)
    assert (got.radius == want.radius).all()
    alone = make_pipeline("passthrough", model[-1])
    assert (certify_pipeline(alone, PLANE).radius == model[-1].certify(PLANE).radius).all()


def test_the_domain_of_a_pipeline_is_that_of_its_input():
    # Below a wall that keeps the highest cluster out of reach.
    low, domain = PLANE[PLANE[:, 1] < 0.2], Box([-1e3, -1.0], [1e3, 0.2])
    wide, box = (certify_pipeline(fitted(), low, domain=d) for d in (None, domain))
    assert (box.radius >= wide.radius * (1 - 1e-12)).all()
    assert (box.radius > wide.radius * 1.01).any()


def test_a_search_over_scalers_by_certified_accuracy():
    pipeline = make_pipeline(StandardScaler(), PrototypeEstimator(**QUICK))
    scoring = functools.partial(certified_accuracy, eps=0.02, q=2)
    grid = {"standardscaler": [StandardScaler(), "passthrough"]}
    split = [(np.arange(0, 60, 2), np.arange(1, 60, 2))]
    search = GridSearchCV(pipeline, grid, scoring=scoring, cv=split, error_score="raise")
    search.fit(PLANE, NAMES)
    # Without the scaler the second coordinate, by which two classes are told, hardly counts.
    scaled, plain = search.cv_results_["mean_test_score"]
    assert scaled > plain
    certificate = certify_pipeline(search, PLANE, NAMES)
    assert scoring(search, PLANE, NAMES) == robust_accuracy(certificate, 0.02) > 0.7


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (PrototypeEstimator(), NotFittedError, "not fitted"),
        (make_pipeline(StandardScaler(), PrototypeEstimator()), NotFittedError, "not fitted"),
        (make_pipeline(StandardScaler()), TypeError, "must be or end with a PrototypeEstimator"),
        (make_pipeline("passthrough"), TypeError, "must be or end with a PrototypeEstimator"),
        (3, TypeError, "must be or end with a PrototypeEstimator, got 3"),
    ],
)
def test_what_is_no_fitted_pipeline(model, error, message):
    with pytest.raises(error, match=message):
        input_space(model)


def test_a_step_that_is_not_affine():
    model = make_pipeline(Normalizer().fit(PLANE), fitted()[-1])
    with pytest.raises(TypeError, match="Normalizer is not known to be affine"):
        certify_pipeline(model, PLANE)


def test_scales_that_differ_need_the_l2_distance():
    scaler, estimator = fitted()[0], PrototypeEstimator(distance=1)
    estimator.classifier_ = dataclasses.replace(fitted()[-1].classifier_, distance=1.0)
    with pytest.raises(ValueError, match="does not scale all coordinates alike"):
        certify_pipeline(make_pipeline(scaler, estimator), PLANE)


def test_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "jaxnpc.estimator")
    with pytest.raises(ImportError, match=r"sklearn is not installed.*jaxmpd-npc\[data\]"):
        importlib.import_module("jaxnpc.estimator")


def test_the_page_runs():
    failed, run = doctest.testfile(str(PAGE), module_relative=False)
    assert not failed
    assert run > 9
