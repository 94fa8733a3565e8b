"""A classifier behind affine maps and the folded one are the same function of the input."""

import math

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.decomposition import PCA, IncrementalPCA, TruncatedSVD
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.feature_selection import (
    SelectFromModel,
    SelectKBest,
    SelectPercentile,
    VarianceThreshold,
)
from sklearn.neighbors import NeighborhoodComponentsAnalysis
from sklearn.preprocessing import (
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    RobustScaler,
    StandardScaler,
)

from jaxnpc.certify import certify
from jaxnpc.decisions import predict
from jaxnpc.domains import Box, Unbounded
from jaxnpc.folding import AFFINE, Affine, affine_map, fold
from jaxnpc.prototypes import prototype_classifier, scores
from tests.jaxnpc.planar import minimal

pytestmark = pytest.mark.compiled_quickly

RNG = np.random.default_rng(0)
TABLE = RNG.normal([1e3, -2, 0.1, 5, 0], [10, 0.1, 3, 1, 1e-3], (40, 5))
LABELS = np.arange(40) % 3
TRANSFORMERS = [
    *(StandardScaler(with_mean=m, with_std=s) for m in (True, False) for s in (True, False)),
    *(RobustScaler(with_centering=m, with_scaling=s) for m in (True, False) for s in (True, False)),
    RobustScaler(unit_variance=True, quantile_range=(10.0, 90.0)),
    MaxAbsScaler(),
    MinMaxScaler(),
    MinMaxScaler((-1, 3)),
    PCA(3),
    PCA(5, whiten=True),
    IncrementalPCA(2, whiten=True),
    TruncatedSVD(3),
    NeighborhoodComponentsAnalysis(2, max_iter=3, random_state=0),
    VarianceThreshold(0.5),
    SelectKBest(k=2),
    SelectPercentile(percentile=50),
    SelectFromModel(ExtraTreesClassifier(5, random_state=0)),
]


def applied(maps, x):
    for a, b in maps:
        x = (x * a if np.ndim(a) == 1 else x @ np.asarray(a).T) + b
    return x


def test_every_transformer_is_tried():
    assert {type(t).__name__ for t in TRANSFORMERS} == set(AFFINE)


@pytest.mark.parametrize("transformer", TRANSFORMERS, ids=repr)
def test_the_map_is_what_transform_does(transformer):
    want = transformer.fit(TABLE, LABELS).transform(TABLE)
    got = applied([affine_map(transformer)], TABLE)
    assert np.allclose(got, want, rtol=1e-9, atol=1e-9 * np.abs(want).max())


@pytest.mark.parametrize(
    ("transformer", "message"),
    [
        (Normalizer(), "Normalizer is not known to be affine.*known are StandardScaler"),
        (MinMaxScaler(clip=True), r"MinMaxScaler\(clip=True\) is not affine"),
        (type("StandardScaler", (StandardScaler,), {})(), "StandardScaler is not known"),
    ],
)
def test_what_is_not_affine(transformer, message):
    with pytest.raises(TypeError, match=message):
        affine_map(transformer.fit(TABLE))


def test_nothing_to_fold():
    classifier = prototype_classifier([[0.0], [1.0]], "ab", distance=math.inf)
    assert fold(classifier, []) is classifier


CHAINS = {
    "wide": [Affine(RNG.normal(size=(3, 5)), RNG.normal(size=3))],
    "square": [Affine(RNG.normal(size=(3, 3)), 2.0)],
    "diagonal": [Affine(np.array([0.01, -3.0, 100.0]), np.array([1e4, 0, 1]))],
    "scaled, then projected": [
        Affine(1 / np.array([1e-3, 1.0, 30.0, 2.0]), 1e3 * RNG.normal(size=4)),
        Affine(RNG.normal(size=(3, 4))),
        Affine(np.full(3, -0.5), 1.0),
    ],
}


@pytest.mark.parametrize("metric", [None, RNG.normal(size=(2, 3))], ids=["l2", "metric"])
@pytest.mark.parametrize("name", CHAINS)
def test_distances_are_those_behind_the_maps(name, metric):
    maps, w = CHAINS[name], RNG.normal(size=(6, 3))
    x = RNG.normal(size=(20, np.shape(maps[0].linear)[-1]))
    with jax.enable_x64(True):
        behind = prototype_classifier(w, "abcabc", metric=metric)
        got = np.asarray(scores(fold(behind, maps), x))
        want = np.asarray(scores(behind, applied(maps, x)))
    # A last uniform scaling is not part of the distance, so that any norm can pass it.
    constant = 0.5 if name.startswith("scaled") and metric is None else 1.0
    assert np.allclose(got * constant, want, rtol=1e-9)


@pytest.mark.parametrize(
    ("q", "domain"),
    [(1, Unbounded()), (2, Unbounded()), (2, Box(0, 1)), (math.inf, Box(0, 1))],
    ids=repr,
)
def test_radii_behind_a_scaler_in_rational_arithmetic(q, domain):
    # Powers of 2: folding is exact, so that the radius must not exceed the exact one at all.
    scales, offset = np.array([0.25, 8.0]), np.array([-1.0, 3.0])
    w = np.floor(RNG.uniform(-20, 120, (8, 2))) / 128
    z = np.floor(RNG.uniform(0, 100, (12, 2))) / 100
    index = np.arange(8) % 3
    behind = prototype_classifier((w * scales + offset).astype(np.float32), index)
    certificate = certify(fold(behind, [Affine(scales, offset)]), z, q=q, domain=domain)
    boxed = isinstance(domain, Box)
    for k, radius in enumerate(certificate.radius):
        label = int(certificate.label[k])
        least = minimal(w, index, z[k], label, q, boxed, metric=np.diag(scales))
        exact = math.inf if least is None else float(least) ** (0.5 if q == 2 else 1)
        assert radius <= exact * (1 + 1e-15)
        assert radius >= exact * (1 - 1e-6)
    assert (certificate.radius > 0).sum() > 6


@pytest.mark.parametrize(("p", "q"), [(1, math.inf), (2, 1), (2, 2), (math.inf, 2)])
def test_a_uniform_scale_divides_radii_in_every_norm(p, q):
    w, z = RNG.normal(size=(9, 4)).astype(np.float32), RNG.normal(size=(8, 4))
    scale = 0.125  # exact in binary
    behind = prototype_classifier(w, [*"abc"] * 3, distance=p)
    folded = fold(behind, [Affine(np.full(4, scale), 0.5)])
    assert folded.metric is None
    assert folded.distance == p
    radius = certify(folded, (z - 0.5) / scale, q=q).radius
    want = certify(behind, z, q=q).radius / scale
    assert np.allclose(radius, want, rtol=1e-5, atol=1e-5)
    assert (want > 0).all()


def test_a_diagonal_matrix_is_a_scale():
    behind = prototype_classifier([[0.0, 1.0], [1.0, 0.0]], "ab", distance=1)
    assert fold(behind, [Affine(4 * np.eye(2))]).prototypes.tolist() == [[0.0, 0.25], [0.25, 0.0]]


@settings(max_examples=60, deadline=None)
@given(
    arrays(np.float64, 3, elements=st.floats(2**-20, 2**20)),
    arrays(np.float64, (5, 3), elements=st.floats(-1e3, 1e3)),
)
def test_predictions_agree_wherever_rounding_cannot_matter(scales, x):
    w = np.array([[0.0, 0, 0], [1, 2, 3], [0, 2, -3], [5, 5, 5]], np.float32)
    maps = [Affine(scales, np.array([1.0, 0.0, -1.0]))]
    with jax.enable_x64(True):
        predicted = predict(fold(prototype_classifier(w, "abab"), maps), x)
    behind = np.linalg.norm(applied(maps, x)[:, None] - w, axis=2)
    first, second = behind[:, ::2].min(axis=1), behind[:, 1::2].min(axis=1)
    clear = np.abs(first - second) > 1e-9 * (first + second)
    assert (np.array(predicted) == np.where(second < first, "b", "a"))[clear].all()


def test_a_large_mean_costs_little_in_float64():
    scales, mean = np.array([1e3, 1e-2]), np.array([1e6, -1e6])
    maps = [Affine(scales, -mean * scales)]
    w = np.array([[0.0, 0.0], [1.0, 0.0]], np.float32)
    with jax.enable_x64(True):
        certificate = certify(fold(prototype_classifier(w, "ab"), maps), mean[None], q=math.inf)
    # Half of the distance, times |v| / |A v|_1 for the direction v between the prototypes.
    assert certificate.radius[0] <= 0.5e-3
    assert math.isclose(certificate.radius[0], 0.5e-3, rel_tol=1e-4)


L1 = prototype_classifier([[0.0, 1.0], [1.0, 0.0]], "ab", distance=1)
L2 = prototype_classifier([[0.0, 1.0], [1.0, 0.0]], "ab")
CALLED = prototype_classifier([[0.0], [1.0]], "ab", distance=lambda x, w: abs(x - w.T))


@pytest.mark.parametrize(
    ("classifier", "maps", "message"),
    [
        (L1, [Affine(np.array([1.0, 2.0]))], r"maps\[0\] does not scale all.*distance=1.0"),
        (L1, [Affine(np.ones(2)), Affine(np.ones((2, 2)) - np.eye(2))], r"maps\[1\] does not"),
        (CALLED, [Affine(np.ones(1))], "the function <lambda>|the function 'lambda"),
        (L2, [Affine(np.ones((3, 2)))], r"maps\[0\] has a linear part of shape \(3, 2\)"),
        (L2, [Affine(np.ones(2), np.ones(3))], r"offset of shape \(3,\)"),
        (L2, [Affine(np.ones((2, 4)))], r"maps\[0\] maps to 2 coordinates but has rank 1"),
        (L2, [Affine(np.array([1.0, 0.0]))], "has rank 1"),
        (L2, [Affine(np.array([[1.0], [2.0]]))], "has rank 1"),
        (L2, [Affine(np.array([np.nan, 1.0]))], r"maps\[0\] holds numbers that are not finite"),
        (L2, [Affine(np.ones(2), np.inf)], "not finite"),
        (L2, [Affine(np.array([1e-300, 1.0]))], r"prototypes\[1, 0\] is .*beyond float32"),
    ],
)
def test_what_cannot_be_folded(classifier, maps, message):
    with pytest.raises(ValueError, match=message):
        fold(classifier, maps)
