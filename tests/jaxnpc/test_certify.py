"""Certificates are true, their witnesses real, and runs can be stopped and resumed."""

import dataclasses
import itertools
import math
import re
import sys
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest
from tqdm import tqdm

from jaxnpc import methods
from jaxnpc.certificate import robust_accuracy
from jaxnpc.certify import certify
from jaxnpc.decisions import predict
from jaxnpc.domains import Box, Unbounded
from jaxnpc.prototypes import prototype_classifier

NORMS = (1, 2, math.inf)
POWER = {1: sum, 2: lambda v: sum(x * x for x in v), math.inf: max}
ARRAYS = ("radius", "upper", "exact", "witness", "label", "predicted", "pair", "subproblems")


def rational(values):
    return [Fraction(float(v)) for v in values]


def size(x, y, p):
    """|x - y|_p, squared for p = 2, in rational arithmetic."""
    return POWER[p]([abs(a - b) for a, b in zip(rational(x), rational(y), strict=True)])


def problem(distance, n=12):
    """Prototypes in the plane, some outside the unit box, and points in it, some misclassified."""
    rng = np.random.default_rng(0)
    prototypes = rng.uniform(-0.2, 1.2, (9, 2)).astype(np.float32)
    classifier = prototype_classifier(prototypes, [*"abc"] * 3, distance=distance)
    points = np.clip(prototypes[rng.integers(9, size=n)], 0, 1)
    points = np.clip(points + rng.uniform(-0.5, 0.5, (n, 2)), 0, 1).astype(np.float32)
    names = np.where(rng.random(n) < 0.8, predict(classifier, points), rng.choice([*"abc"], n))
    return classifier, points, names


def check_witnesses(classifier, points, c, domain):
    """In rational arithmetic: of another class, admissible, and no farther than `upper`."""
    labels = np.asarray(classifier.labels)
    for k in np.flatnonzero(np.isfinite(c.upper)):
        far = [size(c.witness[k], w, classifier.distance) for w in classifier.prototypes]
        own = min(f for f, label in zip(far, labels, strict=True) if label == c.label[k])
        assert min(far) < own
        moved = size(c.witness[k], points[k], c.q)
        assert moved <= Fraction(float(c.upper[k])) ** (2 if c.q == 2 else 1)
        if isinstance(domain, Box):
            assert (c.witness[k] >= 0).all()
            assert (c.witness[k] <= 1).all()


def check_balls(classifier, points, c, domain):
    """In the plane the whole ball can be searched for a point of another class."""
    angle = np.linspace(0, 2 * np.pi, 400, endpoint=False)
    circle = np.stack([np.cos(angle), np.sin(angle)], -1)
    circle /= np.linalg.norm(circle, ord=c.q, axis=1, keepdims=True)
    reach = np.concatenate([np.linspace(0, 1, 20, endpoint=False), [0.99999]])
    ball = (reach[:, None, None] * circle).reshape(-1, 2)
    prototypes, labels = np.asarray(classifier.prototypes, float), np.asarray(classifier.labels)
    for k in np.flatnonzero(c.radius):
        inside = points[k] + min(c.radius[k], 3.0) * ball
        if isinstance(domain, Box):
            inside = inside[((inside >= 0) & (inside <= 1)).all(axis=1)]
        far = np.linalg.norm(inside[:, None] - prototypes, ord=classifier.distance, axis=2)
        assert (labels[far.argmin(axis=1)] == c.label[k]).all()


@pytest.mark.parametrize("domain", [Unbounded(), Box(0, 1)])
@pytest.mark.parametrize(("p", "q"), list(itertools.product(NORMS, NORMS)))
def test_every_method_in_every_cell(p, q, domain):
    classifier, points, names = problem(p, n=32)
    by = {
        method: certify(classifier, points, names, q=q, domain=domain, method=method)
        for method in methods.METHODS
    }
    exact = (p, q) in methods.EXACT
    assert by["exact"].settings["method"] == ("exact" if exact else "bound")
    assert by["exact"].exact.all() or not exact
    # The weaker the method the smaller the radius, and no radius exceeds any witness.
    assert (by["margin"].radius <= by["bound"].radius * (1 + 1e-6) + 1e-12).all()
    assert (by["bound"].radius <= by["exact"].radius * (1 + 1e-6) + 1e-12).all()
    least = np.min([c.upper for c in by.values()], axis=0)
    for c in by.values():
        assert (c.radius <= least).all()
        missed = c.predicted != c.label
        assert 0 < missed.sum() < 16
        assert (c.radius[missed] == 0).all()
        assert (c.upper[missed] == 0).all()
        assert c.exact[missed].all()
        assert c.clean_accuracy == np.mean(~missed)
        check_witnesses(classifier, points, c, domain)
    check_balls(classifier, points, by["exact"], domain)


@pytest.mark.parametrize(("p", "q"), [(2, 2), (2, 1), (1, math.inf)])
@pytest.mark.parametrize("scale", [2.0**-70, 2.0**60])
def test_units_do_not_matter(p, q, scale):
    """At scales whose squares float32 hardly holds."""
    classifier, points, names = problem(p)
    plain = certify(classifier, points, names, q=q, domain=Box(0, 1))
    prototypes = np.asarray(classifier.prototypes) * np.float32(scale)
    other = prototype_classifier(prototypes, [*"abc"] * 3, distance=p)
    scaled = certify(other, points * np.float32(scale), names, q=q, domain=Box(0, scale))
    np.testing.assert_allclose(scaled.radius / scale, plain.radius, rtol=1e-6)
    assert scaled.exact.all()


def test_ties_nans_and_misses():
    classifier = prototype_classifier([[0.0, 0], [2, 0]], ["a", "b"])
    points = np.array([[1.0, 5], [np.nan, 0], [np.inf, 0], [0, 0], [2, 1]])
    c = certify(classifier, points, ["a", "a", "b", "a", "a"])
    np.testing.assert_allclose(c.radius, [0, 0, 0, 1, 0], rtol=1e-9)
    np.testing.assert_allclose(c.upper, [0, 0, 0, 1, 0], rtol=1e-6, atol=1e-9)
    assert c.exact.all()
    assert c.predicted.tolist() == [0, -1, -1, 0, 1]
    assert c.clean_accuracy == 0.4
    assert robust_accuracy(c, 0) == 0.2, "a tie is not robust even at 0"
    # Without labels it is the prediction that is certified; a NaN has none.
    free = certify(classifier, points)
    np.testing.assert_allclose(free.radius, [0, 0, 0, 1, 1], rtol=1e-9)
    assert free.name(free.label[1]) is None


def test_a_point_that_nothing_flips():
    classifier = prototype_classifier([[0.0], [10.0]], ["a", "b"])
    c = certify(classifier, np.array([[0.5]]), domain=Box(0, 1))
    assert c.radius[0] == math.inf
    assert c.upper[0] == math.inf
    assert c.exact[0]
    assert robust_accuracy(c, 1e300) == 1


def test_a_learned_metric():
    metric = np.array([[2.0, 0], [0, 0.5]], np.float32)
    classifier = prototype_classifier([[0.0, 0], [1, 1]], ["a", "b"], metric=metric)
    v = metric.T @ metric @ np.array([1.0, 1])
    c = (metric @ np.array([1.0, 1])) @ (metric @ np.array([1.0, 1])) / 2
    for q, dual in ((1, math.inf), (2, 2), (math.inf, 1)):
        truth = c / np.linalg.norm(v, ord=dual)
        exact = certify(classifier, np.zeros((1, 2)), q=q)
        margin = certify(classifier, np.zeros((1, 2)), q=q, method="margin")
        assert exact.radius[0] == pytest.approx(truth, rel=1e-9)
        assert exact.exact[0]
        assert 0 < margin.radius[0] <= exact.radius[0]
    assert exact.settings["metric"] == "linear"


def test_a_semi_metric_gets_its_margin():
    def root(x, w):
        return jnp.sqrt(jnp.abs(x[:, None] - w[None]).sum(-1))

    classifier = prototype_classifier([[0.0], [16.0]], ["a", "b"], distance=root)
    c = certify(classifier, np.array([[0.0]]))
    assert c.settings["method"] == "margin"
    assert c.radius[0] == pytest.approx(2)
    assert not c.exact[0]


def test_strict_says_what_is_possible():
    classifier, points, _ = problem(1)
    with pytest.raises(ValueError, match=r"method 'exact' is not available for distance 1.* q=2"):
        certify(classifier, points, q=2, strict=True)
    assert certify(classifier, points, q=math.inf, strict=True).exact.all()


def test_the_point_given_is_the_point_certified():
    """A float64 point is not moved to the nearest float32 one."""
    classifier = prototype_classifier([[0.0], [2.0]], ["a", "b"])
    point = np.array([[1 - 1e-12]])
    c = certify(classifier, point)
    assert 0 < c.radius[0] <= 1e-12
    assert Fraction(float(c.radius[0])) <= 1 - Fraction(float(point[0, 0]))


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32, np.uint8, bool])
def test_dtypes(dtype):
    classifier = prototype_classifier([[0.0, 0], [4, 0]], [3, 5])
    points = np.array([[1, 0], [0, 1]]).astype(dtype)
    if dtype is bool:
        with pytest.raises(TypeError, match="x must hold real numbers, got dtype bool"):
            certify(classifier, points)
    else:
        c = certify(classifier, points, np.array([3, 3], np.uint8))
        np.testing.assert_allclose(c.radius, [1, 2], rtol=1e-9)


def test_images_and_shapes():
    rng = np.random.default_rng(3)
    prototypes = rng.random((4, 3, 3)).astype(np.float32)
    classifier = prototype_classifier(prototypes, [0, 1, 0, 1])
    images = rng.random((5, 3, 3)).astype(np.float32)
    a, b = certify(classifier, images), certify(classifier, images.reshape(5, 9))
    np.testing.assert_array_equal(a.radius, b.radius)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": np.zeros((0, 2))}, ValueError, "at least one point"),
        ({"x": np.zeros((2, 4))}, ValueError, "x has shape (2, 4)"),
        ({"x": np.zeros(3)}, ValueError, "x has shape (3,)"),
        ({"x": np.zeros((2, 3), complex)}, TypeError, "complex128"),
        ({"x": np.array([["a", "b", "c"]])}, TypeError, "dtype <U1"),
        ({"x": np.array([[0, 0], [0, 1.5]])}, ValueError, "x[1, 1] is 1.5"),
        ({"labels": ["a"]}, ValueError, "labels has 1 entries for 12"),
        ({"labels": ["a"] * 11 + ["d"]}, ValueError, "label 'd' of point 11"),
        ({"q": 3}, ValueError, "q must be 1, 2 or float('inf'), got 3"),
        ({"method": "guess"}, ValueError, "one of exact, bound, margin, got 'guess'"),
        ({"domain": "box"}, TypeError, "domain is 'box'"),
        ({"domain": Box(1, 0)}, ValueError, "domain is empty"),
        ({"domain": Box(np.zeros(3), 1)}, ValueError, "domain.lower has shape (3,)"),
        ({"tolerance": -1}, ValueError, "tolerance must be at least 0 and below 1, got -1"),
        ({"chunk": 0}, ValueError, "chunk must be at least 1, got 0"),
    ],
)
def test_arguments_that_do_not_fit(change, error, message):
    classifier, points, names = problem(2)
    arguments = {"x": points, "labels": names, "domain": Box(0, 1), **change}
    with pytest.raises(error, match=re.escape(message)):
        certify(classifier, **arguments)


class Killed(BaseException):
    """What ends a run in the middle; no handler for errors catches it."""


@pytest.fixture
def counted(monkeypatch):
    """Count the chunks that are computed, and kill the run at one of them if asked to."""
    calls = []
    original = methods.METHODS["exact"]

    def counting(*choices):
        method = original(*choices)

        def compute(points, label, progress):
            calls.append(len(points))
            if len(calls) == counting.fatal:
                raise Killed
            return method(points, label, progress)

        return compute

    counting.fatal = None
    monkeypatch.setitem(methods.METHODS, "exact", counting)
    return calls, counting


def test_resume_is_as_if_never_interrupted(tmp_path, counted):
    calls, counting = counted
    classifier, points, _ = problem(2, n=20)
    options = {"q": math.inf, "domain": Box(0, 1), "chunk": 6}
    names = predict(classifier, points)  # so that every chunk has something to compute
    whole = certify(classifier, points, names, **options)
    assert len(calls) == 4
    calls.clear()
    counting.fatal = 3
    with pytest.raises(Killed):
        certify(classifier, points, names, checkpoint=tmp_path, **options)
    assert len(list(tmp_path.iterdir())) == 2, "two finished chunks and nothing half-written"
    calls.clear()
    counting.fatal = None
    resumed = certify(classifier, points, names, checkpoint=tmp_path, **options)
    assert len(calls) == 2, "only what was missing is computed"
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(resumed, name), getattr(whole, name))
    assert (resumed.classes, resumed.settings) == (whole.classes, whole.settings)
    calls.clear()
    certify(classifier, points, names, checkpoint=tmp_path, **options)
    assert not calls


@pytest.mark.parametrize("what", ["points", "labels", "prototypes", "domain", "q", "method"])
def test_a_checkpoint_of_another_run_is_refused(tmp_path, what):
    classifier, points, names = problem(2, n=4)
    options = {"q": 2, "domain": Box(0, 1), "method": "exact"}
    certify(classifier, points, names, checkpoint=tmp_path, **options)
    if what == "points":
        points = points * np.float32(0.5)
    elif what == "labels":
        names = np.roll(names, 1) if len(set(names)) > 1 else ["b"] * 4
    elif what == "prototypes":
        classifier = dataclasses.replace(classifier, prototypes=classifier.prototypes * 2)
    else:
        options[what] = {"domain": Box(0, 2), "q": 1, "method": "bound"}[what]
    with pytest.raises(ValueError, match="belongs to a run with another classifier"):
        certify(classifier, points, names, checkpoint=tmp_path, **options)


def test_chunks_do_not_change_radii():
    classifier, points, names = problem(math.inf, n=11)
    whole = certify(classifier, points, names, q=2)
    parts = certify(classifier, points, names, q=2, chunk=4)
    np.testing.assert_allclose(parts.radius, whole.radius, rtol=1e-6)


def test_progress_is_shown_on_request(capsys):
    classifier, points, names = problem(2, n=3)
    certify(classifier, points, names)
    assert capsys.readouterr().err == ""
    certify(classifier, points, names, progress=True)
    assert "3/3" in capsys.readouterr().err


@pytest.mark.parametrize("method", ["exact", "bound"])
def test_progress_moves_within_a_chunk(method, monkeypatch):
    classifier, points, names = problem(2, n=40)
    points[0], moves = np.nan, []

    class Bar(tqdm):
        def update(self, n=1):
            moves.append(n)
            return super().update(n)

    monkeypatch.setattr(sys.modules["jaxnpc.certify"], "tqdm", Bar)
    monkeypatch.setattr("jaxnpc.exact.generate.CHUNK", 8)
    monkeypatch.setattr("jaxnpc.bounds.ROWS", 8)
    done = certify(classifier, points, names, method=method, progress=True, chunk=20)
    assert sum(moves) == 40
    assert max(moves) <= 8
    assert done.settings["method"] == method


@pytest.mark.parametrize("dtype", [">f8", np.longdouble, ">f4"])
def test_no_radius_of_a_foreign_type_exceeds_the_true_one(dtype):
    points = np.linspace(0.1, 0.49, 400)[:, None].astype(dtype)
    radius = certify(prototype_classifier([[0.0], [1.0]], [0, 1]), points).radius
    for r, z in zip(radius, points[:, 0], strict=True):
        assert Fraction(float(r)) <= Fraction(1, 2) - Fraction(float(z))


def test_what_is_far_away_makes_no_bound_exact():
    classifier = prototype_classifier([[0.0, 0.0], [0.01, 0.0], [1e9, 1e9]], [0, 1, 1])
    x = [[0, 0.004]]
    margin = certify(classifier, x, [0], method="margin", q=math.inf)
    assert margin.upper[0] > 2 * margin.radius[0]
    assert not margin.exact[0]
    assert certify(classifier, x, [0], q=math.inf).exact[0]
    # A second point far away changes nothing either.
    both = certify(classifier, [*x, [1e9, 0.0]], [0, 0], method="margin", q=math.inf)
    assert not both.exact[0]


@pytest.mark.parametrize("method", ["exact", "bound", "margin"])
@pytest.mark.parametrize("p", NORMS)
def test_distances_that_overflow_prove_nothing(p, method):
    classifier = prototype_classifier([[0.0, 0], [1, 0], [0, 1]], [0, 1, 1], distance=p)
    c = certify(classifier, np.array([[1e308, -1e308], [0.125, 0.25]]), [0, 0], method=method, q=1)
    assert c.radius[0] == 0
    assert c.upper[0] >= 1e308, "no witness but perhaps one as far away"
    assert not c.exact[0]
    assert c.predicted[0] >= 0
    assert c.radius[1] > 0


def test_no_margin_is_negative_or_none():
    classifier = prototype_classifier([[0.0, 0], [1, 0], [0, 1]], [0, 1, 1])
    tie = certify(classifier, [[0.5, 0.0]], [0], method="margin")
    assert not np.signbit(tie.radius[0])
    flat = prototype_classifier([[0.0, 0], [1, 0]], [0, 1], metric=np.zeros((2, 2)))
    assert certify(flat, [[0.25, 0.0]], [0], method="margin").radius[0] == 0


def test_a_witness_of_a_point_rounded_out_of_the_box_is_inside():
    classifier = prototype_classifier([[0.1, 0.4], [0.2, 0.9]], [0, 1])
    points = np.array([[0.1, 0.5]], np.float32)
    assert float(points[0, 0]) > 0.1
    box = Box(np.zeros(2), np.array([0.1, 1.0]))
    for q in NORMS:
        c = certify(classifier, points, [0], domain=box, method="margin", q=q)
        assert np.isfinite(c.upper[0])
        assert np.all(c.witness <= box.upper)


def test_a_box_has_a_bound_for_every_coordinate_of_an_image():
    def far(x, w):
        return jnp.abs(x[:, None] - w).max(axis=(2, 3))

    images = np.zeros((2, 2, 2)) + np.arange(2)[:, None, None]
    classifier = prototype_classifier(images, [0, 1], distance=far)
    points = np.full((3, 2, 2), 0.25)
    c = certify(classifier, points, domain=Box(np.zeros(4), np.ones(4)))
    np.testing.assert_allclose(c.radius, 0.25)
    with pytest.raises(ValueError, match=r"shape \(2,\).*4 coordinates"):
        certify(classifier, points, domain=Box(np.zeros(2), np.ones(2)))


def test_a_checkpoint_of_another_callable_is_refused(tmp_path):
    def run(factor):
        def scaled(x, w):
            return factor * jnp.abs(x[:, None] - w).sum(-1)

        classifier = prototype_classifier([[0.0], [1.0]], [0, 1], distance=scaled)
        return certify(classifier, [[0.25]], checkpoint=tmp_path).radius

    assert run(1).tolist() == run(1).tolist()
    with pytest.raises(ValueError, match="belongs to a run with another classifier"):
        run(2)


@pytest.mark.parametrize("content", [b"", b"garbage"])
def test_a_damaged_chunk_is_computed_anew(tmp_path, content):
    classifier, points, names = problem(2, n=4)
    whole = certify(classifier, points, names, checkpoint=tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(content)
    again = certify(classifier, points, names, checkpoint=tmp_path)
    np.testing.assert_array_equal(again.radius, whole.radius)
    assert file.read_bytes() != content
