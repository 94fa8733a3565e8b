import functools
import math
from fractions import Fraction

import daqp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from jaxnpc.certify import certify
from jaxnpc.domains import Box, Unbounded
from jaxnpc.exact.generate import minimal_perturbation, prepare
from jaxnpc.exact.screening import single_multipliers, unbounded_bounds
from jaxnpc.prototypes import prototype_classifier
from tests.jaxnpc.planar import minimal

NORMS = (1, 2, math.inf)
BOX = Box(0.0, 1.0)
DOMAINS = {"unbounded": Unbounded(), "box": BOX}


def least_step(v, c, low, high, q):
    """The norm of the nearest point of half-spaces in a box, by a generic solver."""
    k, d = v.shape
    if q == 2:
        high, low = np.minimum(high, 1e6), np.maximum(low, -1e6)
        sense = np.zeros(d + k, np.int32)
        upper, lower = np.concatenate([high, np.full(k, 1e30)]), np.concatenate([low, c])
        x, _, status, _ = daqp.solve(np.eye(d), np.zeros(d), v, upper, lower, sense)
        return np.linalg.norm(x) if status > 0 else math.inf
    if q == 1:
        cost, a = np.ones(2 * d), np.hstack([-v, v])
        bounds = np.c_[np.zeros(2 * d), np.concatenate([high, -low])]
        result = linprog(cost, a, -c, bounds=bounds, method="highs")
    else:
        eye, one = np.eye(d), np.ones((d, 1))
        a = np.block([[-v, np.zeros((k, 1))], [eye, -one], [-eye, -one]])
        bounds = np.c_[np.append(low, 0), np.append(high, np.inf)]
        cost, b = np.append(np.zeros(d), 1), np.concatenate([-c, np.zeros(2 * d)])
        result = linprog(cost, a, b, bounds=bounds, method="highs")
    return result.fun if result.status == 0 else math.inf


def reference(classifier, z, label, q, domain):
    """The minimal perturbation with all constraints at once."""
    w, labels = np.asarray(classifier.prototypes, float), np.asarray(classifier.labels)
    a = np.eye(w.shape[1]) if classifier.metric is None else np.asarray(classifier.metric, float)
    u, own = w @ a.T @ a, labels == label
    boxed = isinstance(domain, Box)
    low, high = (domain.lower - z, domain.upper - z) if boxed else 2 * [np.full(z.shape, np.inf)]
    low = low if boxed else -high
    least = math.inf
    for j in np.flatnonzero(~own):
        v = u[j] - u[own]
        c = -(v * ((z - w[own]) + (z - w[j]))).sum(axis=1) / 2
        least = min(least, 0 if c.max() <= 0 else least_step(v, c, low, high, q))
    return least


def instance(seed, grid, metric=False, k=14, d=5, classes=3, n=24):
    """Prototypes in and out of the box, equal ones, and points in corners and on prototypes."""
    rng = np.random.default_rng(seed)
    w = rng.normal(0.5, 0.5, size=(k, d))
    z = rng.uniform(size=(n, d))
    labels = np.arange(k) % classes
    if grid:
        w, z = np.round(4 * w) / 4, np.round(4 * z) / 4
        w[1], labels[1] = w[0], labels[0]  # equal prototypes of one class, and of two
        w[3] = w[2]
        w[:, 4] = w[0, 4]  # a shared coordinate
    z[:4] = np.round(z[:4])
    z[4:8] = np.clip(w[:4], 0, 1)
    a = rng.normal(size=(d + 1, d)) if metric else None
    classifier = prototype_classifier(w.astype(np.float32), labels, metric=a)
    z = z.astype(np.float32)
    image = np.eye(d) if a is None else np.asarray(a, np.float32)
    distance = np.linalg.norm((z[:, None] - w.astype(np.float32)) @ image.T, axis=-1)
    return classifier, z, labels[distance.argmin(axis=1)]


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("q", NORMS)
@pytest.mark.parametrize(("grid", "metric"), [(True, False), (False, False), (False, True)])
def test_agrees_with_generic_solvers(q, domain, grid, metric):
    classifier, z, labels = instance(0, grid, metric)
    domain = DOMAINS[domain]
    found = minimal_perturbation(classifier, z, labels, q=q, domain=domain)
    truth = np.array(
        [
            reference(classifier, x, y, q, domain)
            for x, y in zip(z.astype(float), labels, strict=True)
        ]
    )
    assert np.sum(truth > 0) > 0
    assert np.all(found.exact)
    np.testing.assert_allclose(found.lower, truth, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(found.upper, truth, rtol=1e-7, atol=1e-9)
    step = found.witness - z
    np.testing.assert_allclose(np.linalg.norm(step, ord=q, axis=1), found.upper, rtol=1e-12)
    if domain is BOX:
        assert np.all((found.witness >= 0) & (found.witness <= 1))


@pytest.mark.parametrize("q", NORMS)
def test_the_witness_is_tied_and_the_multipliers_are_the_pairs(q):
    classifier, z, labels = instance(1, grid=False)
    found = minimal_perturbation(classifier, z, labels, q=q, domain=BOX)
    w, classes = np.asarray(classifier.prototypes, float), np.asarray(classifier.labels)
    for n in range(len(z)):
        distance = np.linalg.norm(found.witness[n] - w, axis=1)
        own, rival = found.pair[n]
        assert classes[own] == labels[n] != classes[rival]
        assert distance[rival] <= distance[classes == labels[n]].min() + 1e-9
        assert all(classes[i] == labels[n] and x > 0 for i, x in found.multipliers[n].items())


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("q", NORMS)
@settings(max_examples=20, deadline=None)
@given(
    quarters=st.lists(st.tuples(st.integers(-3, 7), st.integers(-3, 7)), min_size=7, max_size=7),
    places=st.lists(
        st.tuples(st.floats(0, 1, width=32), st.sampled_from([0.0, 0.5, 1.0])),
        min_size=4,
        max_size=4,
    ),
    jitter=st.sampled_from([0.0, 1e-7, 1e-3]),
)
def test_never_above_the_exact_rational_radius(q, domain, quarters, places, jitter):
    w = np.array(quarters, np.float32) / 4
    w += np.float32(jitter) * np.sin(np.arange(14, dtype=np.float32)).reshape(7, 2)
    z = np.array(places, np.float32)
    labels = np.array([0, 0, 1, 1, 2, 0, 1])
    classifier = prototype_classifier(w, labels)
    y = labels[((z[:, None] - w) ** 2).sum(axis=-1).argmin(axis=1)]
    found = minimal_perturbation(classifier, z, y, q=q, domain=DOMAINS[domain])
    certificate = certify(classifier, z, y, q=q, domain=DOMAINS[domain])
    for n in range(len(z)):
        truth = minimal(w, labels, z[n], y[n], q, domain == "box")
        radius = math.inf if truth is None else math.sqrt(truth) if q == 2 else float(truth)
        # What is proved holds whatever the instance; what is called exact is.
        for bound in (found.lower[n], certificate.radius[n]):
            lower = Fraction(float(bound)) if bound < math.inf else None
            assert truth is None or (lower * lower if q == 2 else lower) <= truth
        assert certificate.upper[n] >= radius * (1 - 1e-12)
        if certificate.exact[n]:
            assert certificate.radius[n] >= radius * (1 - 1e-6) - 1e-9
        if jitter == 1e-7:
            continue  # half-spaces that differ by a rounding of float64: only `certify` can tell
        if truth is None:
            assert found.upper[n] == math.inf
            continue
        assert found.lower[n] >= radius * (1 - 1e-8) - 1e-9
        if found.exact[n]:
            assert abs(found.upper[n] - radius) <= 1e-8 * radius + 1e-9


@pytest.mark.parametrize("q", NORMS)
@pytest.mark.parametrize(("scale", "shift"), [(1e-6, 0), (1e6, 0), (1, 4096), (1e-3, -64)])
def test_scale_and_shift(q, scale, shift):
    classifier, z, labels = instance(2, grid=True)
    # Powers of two and integers keep the numbers exact.
    scale = 2.0 ** round(math.log2(scale))
    w = (np.asarray(classifier.prototypes) + shift) * np.float32(scale)
    moved = prototype_classifier(w, np.asarray(classifier.labels))
    before = minimal_perturbation(classifier, z, labels, q=q, domain=BOX)
    box = Box(shift * scale, (1 + shift) * scale)
    after = minimal_perturbation(
        moved, (z + np.float32(shift)) * np.float32(scale), labels, q=q, domain=box
    )
    np.testing.assert_allclose(after.upper, before.upper * scale, rtol=1e-9, atol=1e-9 * scale)
    np.testing.assert_allclose(after.lower, before.lower * scale, rtol=1e-7, atol=1e-7 * scale)
    assert np.all(after.exact)


@pytest.mark.parametrize("q", NORMS)
def test_an_interrupted_search_still_proves_a_bound(q, monkeypatch):
    classifier, z, labels = instance(3, grid=False)
    full = minimal_perturbation(classifier, z, labels, q=q, domain=BOX)
    problem = prepare(classifier, q)
    ticks = [0.0]
    monkeypatch.setattr("jaxnpc.exact.generate.time.monotonic", lambda: ticks[0])
    seen = []
    for calls in range(4):  # stop after so many solutions
        ticks[0] = 0.0
        solve, left = type(problem).solve, [calls]

        def counted(self, *args, solve=solve, left=left):
            left[0] -= 1
            ticks[0] = 2.0 if left[0] <= 0 else 0.0
            return solve(self, *args)

        with monkeypatch.context() as patch:
            patch.setattr(type(problem), "solve", counted)
            ticks[0] = 2.0 if calls == 0 else 0.0
            limited = minimal_perturbation(
                classifier, z, labels, q=q, domain=BOX, problem=problem, seconds=1.0 - ticks[0]
            )
        assert np.all(limited.lower <= full.upper * (1 + 1e-12))
        assert np.all(limited.upper >= full.upper * (1 - 1e-12))
        seen.append(limited.lower.mean())
    assert seen[0] < seen[-1] <= full.lower.mean() + 1e-12
    assert seen == sorted(seen)


def test_given_upper_radii_end_the_search_early():
    classifier, z, labels = instance(4, grid=False)
    full = minimal_perturbation(classifier, z, labels, q=2, domain=BOX)
    far = full.upper > np.median(full.upper)
    cap = np.where(far, full.upper / 2, np.inf)
    capped = minimal_perturbation(classifier, z, labels, q=2, domain=BOX, upper=cap)
    assert np.all(capped.lower[far] >= cap[far])
    assert np.all(capped.lower <= full.upper)
    np.testing.assert_array_equal(capped.lower[~far], full.lower[~far])
    assert capped.subproblems[far].sum() < full.subproblems[far].sum()


def test_misclassified_tied_and_invalid_points_have_radius_zero():
    classifier = prototype_classifier([[0.0, 0.0], [1.0, 0.0]], ["a", "b"])
    z = [[0.9, 0.0], [0.5, 0.5], [math.nan, 0.0], [math.inf, 0.0], [0.25, 0.0]]
    for q in NORMS:
        found = minimal_perturbation(classifier, z, [0] * 5, q=q, domain=Unbounded())
        np.testing.assert_array_equal(found.upper[:4], 0)
        np.testing.assert_array_equal(found.lower[:4], 0)
        assert found.exact.all()
        assert abs(found.lower[4] - 0.25) < 1e-12


def test_infinite_where_no_admissible_point_flips():
    # The plane x + y = 3 lies outside the unit box, the plane x + y = 2 touches its corner.
    far = prototype_classifier([[0.0, 0.0], [3.0, 3.0]], ["a", "b"])
    corner = prototype_classifier([[0.0, 0.0], [2.0, 2.0]], ["a", "b"])
    for q, radius in ((1, 1.0), (2, math.sqrt(0.5)), (math.inf, 0.5)):
        found = minimal_perturbation(far, [[0.5, 0.5]], [0], q=q, domain=BOX)
        assert found.lower[0] == found.upper[0] == math.inf
        assert found.exact[0]
        assert tuple(found.pair[0]) == (-1, -1)
        found = minimal_perturbation(corner, [[0.5, 0.5]], [0], q=q, domain=BOX)
        np.testing.assert_allclose([found.lower[0], found.upper[0]], radius, rtol=1e-6)


def test_chunks_give_the_same_and_report_progress(monkeypatch):
    classifier, z, labels = instance(5, grid=True)
    whole = minimal_perturbation(classifier, z, labels, q=1, domain=BOX)
    monkeypatch.setattr("jaxnpc.exact.generate.CHUNK", 7)
    done = []
    parts = minimal_perturbation(classifier, z, labels, q=1, domain=BOX, progress=done.append)
    np.testing.assert_allclose(parts.upper, whole.upper, rtol=1e-12)
    assert sum(done) == len(z)
    assert len(done) == math.ceil(len(z) / 7)


@functools.cache
def two():
    return prototype_classifier([[0.0, 0.0], [1.0, 0.0]], ["a", "b"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"q": 3}, "q must be .* got 3"),
        ({"points": [[0.0]]}, r"\(1, 1\)"),
        ({"labels": [2]}, "contains 2"),
        ({"labels": [0, 1]}, r"shape \(2,\)"),
        ({"labels": [0.0]}, "float64"),
        ({"domain": Box(1.0, 2.0)}, "outside the domain"),
    ],
)
def test_errors_name_the_argument_and_its_value(arguments, message):
    defaults = {"points": [[0.0, 0.0]], "labels": [0], "q": 2, "domain": Unbounded()}
    with pytest.raises(ValueError, match=message):
        minimal_perturbation(two(), **{**defaults, **arguments})


def test_distances_without_an_exact_method_say_so():
    classifier = prototype_classifier([[0.0], [1.0]], ["a", "b"], distance=math.inf)
    with pytest.raises(ValueError, match="distance = inf and q = 2"):
        minimal_perturbation(classifier, [[0.0]], [0], q=2, domain=Unbounded())


def test_other_numbers_of_points_do_not_recompile():
    classifier, z, labels = instance(6, grid=False)
    problem = prepare(classifier, 2)
    run = functools.partial(
        minimal_perturbation, classifier, q=2, domain=BOX, problem=problem, tolerance=1e-6
    )
    run(z[:20], labels[:20])
    programs = (unbounded_bounds, single_multipliers)
    before = [program._cache_size() for program in programs]
    for n in (17, 24, 18):
        run(z[:n], labels[:n])
    assert [program._cache_size() for program in programs] == before


@pytest.mark.parametrize("q", NORMS)
def test_the_range_of_float32_and_beyond(q):
    rng = np.random.default_rng(7)
    w, z, labels = rng.normal(size=(9, 4)), rng.normal(size=(6, 4)), np.arange(9) % 3
    w, z = w.astype(np.float32), z.astype(np.float32)
    y = labels[np.linalg.norm(z[:, None] - w, axis=-1).argmin(axis=1)]
    once = minimal_perturbation(prototype_classifier(w, labels), z, y, q=q, domain=Unbounded())
    for scale in (np.float32(2.0**-100), np.float32(2.0**120)):
        classifier = prototype_classifier(w * scale, labels)
        found = minimal_perturbation(classifier, z * scale, y, q=q, domain=Unbounded())
        assert found.exact.all()
        np.testing.assert_allclose(found.lower / scale, once.lower, rtol=1e-8)
    # Squares overflow: nothing is proved, and nothing breaks.
    far = minimal_perturbation(classifier, 1e300 * z.astype(float), y, q=q, domain=Unbounded())
    np.testing.assert_array_equal(far.lower, 0)


def test_no_points_one_limit_for_all_and_a_norm_in_an_array():
    classifier = prototype_classifier([[0.0, 0.0], [1.0, 0.0]], [0, 1])
    none = minimal_perturbation(
        classifier, np.zeros((0, 2)), np.zeros(0, int), q=2, domain=Unbounded()
    )
    assert none.lower.shape == (0,)
    assert none.witness.shape == (0, 2)
    points, labels = np.array([[0.25, 0.0], [0.125, 0.0]]), np.zeros(2, int)
    limited = minimal_perturbation(classifier, points, labels, q=2, domain=Unbounded(), upper=0.125)
    assert np.all(limited.lower >= 0.125)
    with pytest.raises(ValueError, match="q must be 1, 2 or float"):
        minimal_perturbation(classifier, points, labels, q=np.array([2]), domain=Unbounded())
