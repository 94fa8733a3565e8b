"""Decisions agree with rational arithmetic, and say so only where they are sure."""

import dataclasses
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxnpc.decisions import crosses, decide, leaves
from jaxnpc.prototypes import prototype_classifier

NORMS = (1, 2, np.inf)
POWER = {1: sum, 2: lambda v: sum(x * x for x in v), np.inf: max}


def exact_distances(classifier, point):
    """Least distance to each class, squared for p = 2, in rational arithmetic."""
    point = [Fraction(float(v)) for v in point]
    labels = np.asarray(classifier.labels)
    rows = [[Fraction(float(v)) for v in w] for w in np.asarray(classifier.prototypes)]
    if classifier.metric is None:
        images = [[abs(a - b) for a, b in zip(point, w, strict=True)] for w in rows]
    else:
        matrix = [[Fraction(float(v)) for v in r] for r in np.asarray(classifier.metric)]
        images = [
            [abs(sum(m * (a - b) for m, a, b in zip(r, point, w, strict=True))) for r in matrix]
            for w in rows
        ]
    far = [POWER[classifier.distance](v) for v in images]
    return [
        min(f for f, label in zip(far, labels, strict=True) if label == c)
        for c in range(len(classifier.classes))
    ]


def check(classifier, points):
    decision = decide(classifier, points)
    for k, point in enumerate(points):
        far = exact_distances(classifier, point)
        least = min(far)
        if decision.certain[k]:
            assert [c for c, f in enumerate(far) if f == least] == [decision.predicted[k]]
        for label in range(len(far)):
            if leaves(classifier, points[k : k + 1], np.array([label]))[0]:
                assert least < far[label]
    check_crossings(classifier, points, decision)
    return decision


def check_crossings(classifier, points, decision):
    """`crosses` never claims more than rationals, and sees what `leaves` sees."""
    labels = np.asarray(classifier.labels)
    own = (decision.predicted + 1) % len(classifier.classes)  # a class that all have left
    per_prototype = dataclasses.replace(
        classifier,
        labels=jnp.arange(len(labels)),
        classes=tuple(range(len(labels))),
    )
    far = [exact_distances(per_prototype, point) for point in points]
    rivals = np.array(
        [min(np.flatnonzero(labels != y), key=f.__getitem__) for y, f in zip(own, far, strict=True)]
    )
    crossed = crosses(classifier, points, own, rivals)
    for k, (y, j) in enumerate(zip(own, rivals, strict=True)):
        if crossed[k]:
            assert far[k][j] < min(far[k][i] for i in np.flatnonzero(labels == y))
        elif far[k][j] < (1 - Fraction(1, 10**12)) * min(
            far[k][i] for i in np.flatnonzero(labels == y)
        ):
            assert classifier.metric is not None, "only a map may leave clear cases open"


@pytest.mark.parametrize(("p", "mapped"), [(1, False), (2, False), (2, True), (np.inf, False)])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_against_rationals(p, mapped, scale):
    rng = np.random.default_rng(0)
    prototypes = (scale * rng.integers(-3, 4, (9, 4)) / 7).astype(np.float32)
    metric = rng.normal(size=(3, 4)).astype(np.float32) if mapped else None
    classifier = prototype_classifier(prototypes, list("abcabcabc"), distance=p, metric=metric)
    middles = (prototypes[:-1].astype(float) + prototypes[1:]) / 2
    points = np.concatenate([prototypes, middles, scale * rng.normal(size=(8, 4))])
    decision = check(classifier, points)
    for k in range(len(points) - 8, len(points)):  # far from a boundary, or on it for l1 and linf
        far = exact_distances(classifier, points[k])
        assert decision.certain[k] == (far.count(min(far)) == 1)


def test_ties_and_duplicates_are_uncertain():
    classifier = prototype_classifier([[0.0, 0], [0, 0], [2, 0]], ["b", "a", "a"])
    decision = decide(classifier, np.array([[0.0, 0], [1, 5], [1.5, 0]]))
    assert decision.predicted.tolist() == [0, 0, 0]
    assert decision.certain.tolist() == [False, False, True]


@pytest.mark.parametrize("p", NORMS)
def test_points_that_are_none(p):
    classifier = prototype_classifier([[0.0, 0], [2, 0]], "ab", distance=p)
    points = np.array([[np.nan, 0], [0, np.inf], [-np.inf, np.nan], [0, 0]])
    decision = decide(classifier, points)
    assert decision.predicted.tolist() == [-1, -1, -1, 0]
    assert decision.certain.tolist() == [False, False, False, True]
    assert not leaves(classifier, points[:3], np.array([0, 1, 0])).any()


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(NORMS),
    st.sampled_from([np.float32, np.float64]),
)
@settings(max_examples=25, deadline=None)
def test_never_sure_and_wrong_next_to_a_boundary(seed, p, dtype):
    rng = np.random.default_rng(seed)
    prototypes = rng.normal(size=(6, 3)).astype(np.float32)
    classifier = prototype_classifier(prototypes, [0, 1, 0, 1, 0, 1], distance=p)
    inside, outside = prototypes[0].astype(float), prototypes[1].astype(float)
    for _ in range(60):  # bisect down to neighbouring floats
        middle = (inside + outside) / 2
        far = exact_distances(classifier, middle)
        inside, outside = (middle, outside) if far[0] <= far[1] else (inside, middle)
    steps = np.spacing(np.abs(outside)) * np.arange(-2, 3)[:, None]
    check(classifier, (outside + steps).astype(dtype))


def test_many_blocks_are_as_one(monkeypatch):
    rng = np.random.default_rng(1)
    classifier = prototype_classifier(rng.normal(size=(30, 5)), [*"abc"] * 10)
    points = rng.normal(size=(37, 5))
    points[5] = np.asarray(classifier.prototypes[:2], float).mean(axis=0)  # for float64 to decide
    whole = decide(classifier, points)
    monkeypatch.setattr("jaxnpc.decisions.BLOCK", 8 * 30)
    parts = decide(classifier, points)
    np.testing.assert_array_equal(parts.predicted, whole.predicted)
    np.testing.assert_array_equal(parts.certain, whole.certain)
    for a, b in ((parts.lower, whole.lower), (parts.upper, whole.upper)):
        np.testing.assert_allclose(a, b, rtol=1e-4)


@pytest.mark.parametrize("p", NORMS)
def test_what_float32_leaves_open_is_settled_in_float64(p):
    rng = np.random.default_rng(2)
    w = (1e3 + rng.normal(size=(20, 4))).astype(np.float32)
    classifier = prototype_classifier(w, np.arange(20) % 2, distance=p)
    points = np.concatenate([1e3 + rng.normal(size=(40, 4)), np.full((1, 4), -500.0)])
    decision = decide(classifier, points)
    true = [exact_distances(classifier, point) for point in points]
    assert decision.predicted.tolist() == [int(b < a) for a, b in true]
    assert decision.certain.all()
    check(classifier, points)


def test_a_semi_metric_of_points_of_any_shape():
    def distance(x, w):
        return jnp.abs(x[:, None] - w[None]).sum((2, 3)) ** 0.5

    classifier = prototype_classifier(np.arange(8.0).reshape(2, 2, 2), "ab", distance=distance)
    decision = decide(classifier, np.array([[[0.0, 1], [2, 3]], [[4, 5], [6, 6]]]))
    assert decision.predicted.tolist() == [0, 1]


def test_leaves_the_default_precision_alone():
    classifier = prototype_classifier([[0.0], [1.0]], "ab")
    decide(classifier, np.array([[0.3]]))
    assert not jax.config.jax_enable_x64
    assert jnp.ones(1).dtype == jnp.float32


@pytest.mark.parametrize("p", NORMS)
def test_a_finite_point_beyond_float64s_distances_is_one(p):
    classifier = prototype_classifier([[0.0, 0], [2, 0]], "ab", distance=p)
    points = np.array([[1e308, -1e308], [1e308, np.inf]])
    decision = decide(classifier, points)
    assert decision.predicted[0] >= 0
    assert decision.predicted[1] == -1
    assert not decision.certain.any()
    assert not any(leaves(classifier, points, np.array([c, c])).any() for c in (0, 1))


def test_a_prototype_beyond_float64s_distances_does_not_hide_the_others():
    with jax.enable_x64(True):
        classifier = prototype_classifier([[0.0], [2.0], [1e200]], "abc")
        decision = decide(classifier, np.array([[1.5]]))
    assert decision.predicted.tolist() == [1]
