"""The pruned search over all prototypes against all pairs, samples and rational arithmetic."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxnpc.bounds import lower_bounds
from jaxnpc.domains import SphereProduct, Unbounded
from jaxnpc.pairwise.table import prove
from jaxnpc.perceptual import bounds
from jaxnpc.perceptual.bounds import lower_bounds as embedded_bounds
from jaxnpc.perceptual.bounds import plane_bound
from jaxnpc.perceptual.prepared import certainly, prepare, scores
from jaxnpc.prototypes import prototype_classifier
from tests.jaxnpc import spheres

BLOCKS = ((4, 3), (2, 5), (1, 8))
RADII = np.array([0.5, 0.7, 1.0])
SLACK = 1e-5


def domain(kind="sphere"):
    """With room for the rounding of float32."""
    space = spheres.domain(kind, BLOCKS, RADII)
    return SphereProduct(BLOCKS, space.inner * (1 - SLACK), space.outer * (1 + SLACK))


def problem(seed, n=60, k=12, kind="sphere", spread=0.15, sizes=(4, 4, 4)):
    """Points of three classes around centres, and prototypes near points."""
    rng, space = np.random.default_rng(seed), spheres.domain(kind, BLOCKS, RADII)
    centres = spheres.members(rng, 3, space, 0.1)

    def near(classes):
        # Half-way between a centre and a random point, then back to the domain.
        x = 0.6 * centres[classes] + 0.4 * spheres.members(rng, len(classes), space)
        return np.asarray(space.clip(x.astype(np.float32)))

    labels = np.repeat(np.arange(3), sizes)
    w = near(labels) + (spread * rng.normal(size=(len(labels), 30))).astype(np.float32)
    y = rng.integers(0, 3, n)
    return near(y), y, prototype_classifier(w.astype(np.float32), labels), domain(kind)


def run(z, y, classifier, space, spheres=True):
    prepared = prepare(classifier, space)
    return embedded_bounds(prepared, z, y, scores(prepared, z), spheres=spheres)


def every_pair(z, y, classifier, space):
    """The proved radius of each point, own prototype and rival; -1 for pairs that are none."""
    w, labels = np.asarray(classifier.prototypes), np.asarray(classifier.labels)
    n, k = len(z), len(w)
    a, i, j = (v.ravel() for v in np.meshgrid(range(n), range(k), range(k), indexing="ij"))
    radius = prove(z[a], w[i], w[j], p=2, q=2, domain=space).reshape(n, k, k)
    own = labels == y[:, None]
    return np.where(own[:, :, None] & ~own[:, None, :], radius, -1.0), own


def min_max(radius, own):
    return np.where(own, np.inf, radius.max(axis=1)).min(axis=1)


def at_most(radius, best):
    """Whether radii are no larger: both are proved, and squares of some 10 cancel in either."""
    return bool((radius <= np.sqrt(best**2 + 1e-12)).all())


@pytest.mark.parametrize("kind", ["sphere", "shell", "ball"])
def test_the_search_finds_the_minimum_over_rivals_of_the_best_of_a_few_own(kind):
    z, y, classifier, space = problem(0, 80, kind=kind)
    found = run(z, y, classifier, space)
    radius, own = every_pair(z, y, classifier, space)
    best = min_max(radius, own)
    some = best > 0
    assert some.sum() > 30
    np.testing.assert_array_equal(found.radius[~some], 0)
    assert at_most(found.radius, best)
    assert (found.radius > 0)[some].mean() > 0.97
    plane = run(z, y, classifier, space, spheres=False).radius
    assert (found.radius >= plane - 1e-6).all()
    # All own prototypes may be better than the two of the best half-space bound, by little.
    assert (found.radius >= 0.97 * best)[some].mean() > 0.9
    assert found.radius[some].mean() > 1.02 * plane[some].mean()
    rows = np.flatnonzero(np.isfinite(found.radius) & (found.radius > 0))
    i, j = found.pair[rows].T
    assert (radius[rows, i, j] >= found.radius[rows] * (1 - 1e-3)).all()
    assert (np.asarray(classifier.labels)[i] == y[rows]).all()
    assert found.evaluated[rows].mean() < 8


def test_half_spaces_are_those_of_the_other_pipeline():
    z, y, classifier, space = problem(1, 100)
    found = run(z, y, classifier, space, spheres=False)
    want = lower_bounds(classifier, z, y, q=2)
    np.testing.assert_allclose(found.radius, want.radius, rtol=1e-5, atol=1e-9)
    assert (found.radius > 0.02).sum() > 40
    assert not found.evaluated.any()
    assert found.proved.max() >= 1


@pytest.mark.parametrize("kind", ["sphere", "ball"])
@pytest.mark.parametrize("seed", range(3))
def test_no_sampled_point_within_the_radius_is_of_another_class(kind, seed):
    z, y, classifier, space = problem(10 + seed, 40, kind=kind)
    found = run(z, y, classifier, space)
    w, labels = np.asarray(classifier.prototypes, np.float64), np.asarray(classifier.labels)
    rng, inner = np.random.default_rng(seed), spheres.domain(kind, BLOCKS, RADII)
    checked = 0
    for point, label, radius in zip(z.astype(np.float64), y, found.radius, strict=True):
        if radius == 0:
            continue
        # Mixtures of the point with others, projected, and groups set to 0: near ones too.
        share = rng.random((3000, 1)) ** 2
        x = (1 - share) * point + share * spheres.members(rng, 3000, inner)
        x = np.asarray(inner.clip(x.astype(np.float32)), np.float64)
        parts = list(inner.split(x))
        for part in parts:
            part[rng.random(part.shape[:2]) < 0.1] = 0
        distance = np.linalg.norm(x[:, None] - w, axis=2)
        own = distance[:, labels == label].min(axis=1)
        left = distance[:, labels != label].min(axis=1) <= own - 1e-7
        near = np.linalg.norm(x - point, axis=1) < radius
        checked += near.sum()
        assert not (left & near).any()
    assert checked > 3000


def test_float32_bounds_of_scores_enclose_the_truth():
    rng = np.random.default_rng(2)
    blocks = ((30, 64),)
    space = SphereProduct(blocks, np.array([0.18]), np.array([0.19]))
    z = spheres.members(rng, 5, space).astype(np.float32)
    w = (spheres.members(rng, 8, space) + rng.normal(size=(8, 1920)) * 1e-2).astype(np.float32)
    prepared = prepare(prototype_classifier(w, np.arange(8) % 2), space)
    found = scores(prepared, z)
    for a, k in np.ndindex(5, 8):
        true = sum(Fraction(float(x)) * Fraction(float(y)) for x, y in zip(z[a], w[k], strict=True))
        true -= sum(Fraction(float(y)) ** 2 for y in w[k]) / 2
        assert Fraction(float(found.lower[a, k])) <= true <= Fraction(float(found.upper[a, k]))
    assert (found.upper - found.lower).max() < 1e-3
    size = [sum(Fraction(float(y)) ** 2 for y in row) for row in w]
    assert all(
        Fraction(low) <= s <= Fraction(high)
        for s, low, high in zip(
            size, prepared.squares.lower.tolist(), prepared.squares.upper.tolist(), strict=True
        )
    )
    apart = np.linalg.norm(w[:, None].astype(np.float64) - w, axis=2)
    assert (prepared.apart >= apart).all()
    np.testing.assert_allclose(prepared.apart, apart, atol=1e-5)


def test_what_the_device_calls_a_bound_of_f_is_one():
    z, y, classifier, space = problem(3, 40)
    prepared = prepare(classifier, space)
    found = scores(prepared, z)
    search = bounds._Search(prepared, z, found, y, slice(0, 40), True)
    search.run()
    w = np.asarray(classifier.prototypes)
    row, j = np.nonzero(search.multiplier > 0)
    assert len(row) > 40
    for a, b in zip(row, j, strict=True):
        i = search.own[a, b]
        true = spheres.naive(z[a], w[i], w[b], search.multiplier[a, b], space)
        assert float(search.value[a, b]) <= true
        assert float(true) - search.value[a, b] < 1e-3
        assert search.key[a, b] ** 2 * (1 - 1e-12) <= true or not search.settled[a, b]


def test_the_plane_s_bound_is_never_overstated():
    rng = np.random.default_rng(4)
    z, w_i, w_j = (rng.normal(size=(60, 9)).astype(np.float32) for _ in range(3))
    w_j[:20] = w_i[:20] + 1e-6 * rng.normal(size=(20, 9)).astype(np.float32)
    bound = plane_bound(*(v.astype(np.float64) for v in (z, w_i, w_j)))
    for b, *rows in zip(bound, z, w_i, w_j, strict=True):
        a, u, v = ([Fraction(float(x)) for x in row] for row in rows)
        need = sum((q - x) ** 2 - (p - x) ** 2 for x, p, q in zip(a, u, v, strict=True)) / 2
        size = sum((q - p) ** 2 for p, q in zip(u, v, strict=True))
        if need <= 0:
            assert b == 0
        else:
            assert Fraction(float(b)) ** 2 * size <= need**2
            true = float(need) / float(size) ** 0.5
            np.testing.assert_allclose(b, true, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(
        bound, prove(z, w_i, w_j, p=2, q=2, domain=Unbounded()), rtol=1e-7, atol=1e-9
    )


def test_classes_of_different_sizes_and_points_in_any_number():
    z, y, classifier, space = problem(5, 37, sizes=(1, 5, 2))
    found = run(z, y, classifier, space)
    best = min_max(*every_pair(z, y, classifier, space))
    assert at_most(found.radius, best)
    assert ((found.radius > 0) == (best > 0)).mean() > 0.97
    for rows in ([0], [3, 4, 5], list(range(36))):
        some = run(z[rows], y[rows], classifier, space)
        np.testing.assert_allclose(some.radius, found.radius[rows], rtol=1e-3, atol=1e-6)
    nothing = run(z[:0], y[:0], classifier, space)
    assert nothing.radius.shape == (0,)


def test_equal_prototypes_of_two_classes_leave_nothing():
    z, _, _, space = problem(6, 20)
    w = np.concatenate([z[:3], z[:3]])
    classifier = prototype_classifier(w, [0, 0, 0, 1, 1, 1])
    for curved in (True, False):
        found = run(z, np.zeros(20, int), classifier, space, curved)
        np.testing.assert_array_equal(found.radius, 0)


def test_a_class_that_no_point_of_the_domain_leaves_is_certain():
    z, _, _, space = problem(7, 10)
    w = np.zeros((2, 30), np.float32)
    w[1] = 9.0
    found = run(z, np.zeros(10, int), prototype_classifier(w, [0, 1]), space)
    assert np.isinf(found.radius).all()
    np.testing.assert_array_equal(found.pair, -1)
    missed = run(z, np.ones(10, int), prototype_classifier(w, [0, 1]), space)
    np.testing.assert_array_equal(missed.radius, 0)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([1.0, 0.0, 1e-3, 1e-20, 50.0, 1e4]),
    copies=st.integers(0, 6),
    silent=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_ties_repeated_prototypes_zeros_and_scales(seed, scale, copies, silent):
    rng, inner = np.random.default_rng(seed), spheres.domain("sphere", BLOCKS, RADII)
    z = spheres.members(rng, 8, inner, silent).astype(np.float32)
    w = spheres.members(rng, 9, inner, silent) * scale + scale * 0.1 * rng.normal(size=(9, 30))
    w = w.astype(np.float32)
    for _ in range(copies):
        w[rng.integers(9)] = w[rng.integers(9)] if rng.random() < 0.5 else z[rng.integers(8)]
    labels, y = np.repeat([0, 1, 2], 3), rng.integers(0, 3, 8)
    classifier, space = prototype_classifier(w, labels), domain()
    found = run(z, y, classifier, space)
    best = min_max(*every_pair(z, y, classifier, space))
    far = np.isinf(best) | (best > 4)
    assert at_most(found.radius[~far], best[~far])
    assert (found.radius >= 0).all()
    prepared = prepare(classifier, space)
    predicted, certain = certainly(scores(prepared, z), labels, 3)
    wide = w.astype(np.float64)
    true = labels[np.argmax(z @ wide.T - (wide**2).sum(axis=1) / 2, axis=1)]
    assert (predicted == true)[certain].all()
    assert (found.radius[certain & (true != y)] == 0).all()


def test_what_does_not_fit_is_named():
    _, _, classifier, space = problem(8, 3)
    w, labels = np.asarray(classifier.prototypes), np.asarray(classifier.labels)
    with pytest.raises(ValueError, match="distance 2 and no metric"):
        prepare(prototype_classifier(w, labels, distance=1), space)
    with pytest.raises(ValueError, match="no metric"):
        prepare(prototype_classifier(w, labels, metric=np.eye(30)), space)
    with pytest.raises(TypeError, match="give a SphereProduct"):
        prepare(classifier, Unbounded())
    with pytest.raises(ValueError, match="add up to 30"):
        prepare(classifier, spheres.domain())
