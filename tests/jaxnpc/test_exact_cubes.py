"""The l-infinity classifier under linf perturbations, against rational arithmetic."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxnpc.bounds import lower_bounds
from jaxnpc.certify import certify
from jaxnpc.decisions import predict
from jaxnpc.domains import Box, Unbounded
from jaxnpc.exact import cubes
from jaxnpc.exact.cubes import Effort, GivenUp, escapes, outside
from jaxnpc.prototypes import prototype_classifier

LABELS = np.array([0, 0, 0, 1, 1, 2])
DOMAINS = {"unbounded": Unbounded(), "box": Box(0.0, 1.0)}
D = 2


def ties(z, own, w, boxed, eps):
    """Whether some x within eps is as close to w as to all own: a linear programme a way to be so.

    With t for the distance to w every bound of a coordinate is c + a t, and no lower bound may
    exceed an upper one, which bounds t.
    """
    for ways in itertools.product(range(len(z)), (1, -1), repeat=len(own)):
        least, most = Fraction(0), None
        for k, at in enumerate(z):
            lows, highs = [(w[k], -1), (at - eps, 0)], [(w[k], 1), (at + eps, 0)]
            if boxed:
                lows, highs = [*lows, (Fraction(0), 0)], [*highs, (Fraction(1), 0)]
            for i, coordinate, sign in zip(own, ways[::2], ways[1::2], strict=True):
                if coordinate == k:
                    (lows if sign > 0 else highs).append((i[k], sign))
            for (c, a), (e, b) in itertools.product(lows, highs):
                if a == b:
                    least = least if c <= e else math.inf
                elif a > b:
                    most = (e - c) / (a - b) if most is None else min(most, (e - c) / (a - b))
                else:
                    least = max(least, (c - e) / (b - a))
        if least < math.inf and (most is None or least <= most):
            return True
    return False


def flips(w, labels, z, label, boxed, eps):
    own = [row for row, other in zip(w, labels, strict=True) if other == label]
    rivals = [row for row, other in zip(w, labels, strict=True) if other != label]
    return any(ties(z, own, rival, boxed, eps) for rival in rivals)


def rational(rows):
    return [[Fraction(float(x)) for x in row] for row in rows]


def closest(w, z):
    return LABELS[np.abs(z[:, None] - w).max(axis=-1).argmin(axis=1)]


def search(w, labels, z, y, domain):
    """Bounds, what the search makes of them, and whether its witnesses are what they should be."""
    classifier = prototype_classifier(w, labels, distance=math.inf)
    bounds = lower_bounds(classifier, z, y, q=math.inf, domain=domain)
    found = escapes(classifier, z, y, bounds, domain)
    assert (found.radius >= bounds.radius).all()
    w = rational(classifier.prototypes)
    sizes = np.full(len(z), np.inf)
    for n in np.flatnonzero(found.searches):
        x = rational(found.witness[[n]])[0]
        far = [max(abs(a - b) for a, b in zip(x, row, strict=True)) for row in w]
        own = min(f for f, label in zip(far, labels, strict=True) if label == y[n])
        if far[found.rival[n]] < own:
            sizes[n] = np.abs(found.witness[n] - z[n]).max()
            assert labels[found.rival[n]] != y[n]
            assert isinstance(domain, Unbounded) or (min(x) >= 0 and max(x) <= 1)
    return bounds, found, sizes


quarters = st.integers(-2, 6).map(lambda k: k / 4)
vectors = st.tuples(*D * [st.one_of(quarters, st.floats(-0.5, 1.5, width=32))])
inside = st.tuples(*D * [st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1, width=32))])


@pytest.mark.parametrize("domain", DOMAINS)
@settings(max_examples=40, deadline=None)
@given(
    prototypes=st.lists(vectors, min_size=6, max_size=6),
    points=st.lists(inside, min_size=4, max_size=4),
)
def test_both_bounds_against_rational_arithmetic(domain, prototypes, points):
    """On a grid, where prototypes coincide and ties abound, and off it."""
    w, z = np.array(prototypes, np.float32), np.array(points, np.float32)
    y, boxed = closest(w, z), domain == "box"
    _, found, sizes = search(w, LABELS, z, y, DOMAINS[domain])
    for n, (at, radius) in enumerate(zip(rational(z), found.radius, strict=True)):
        if math.isinf(radius):
            assert not flips(rational(w), LABELS, at, y[n], boxed, Fraction(1000))
            continue
        # The open ball of the radius holds no tie.
        within = Fraction(float(radius)) * (1 - Fraction(1, 2**60))
        assert radius == 0 or not flips(rational(w), LABELS, at, y[n], boxed, within)
        if math.isfinite(sizes[n]):
            assert radius <= sizes[n]
            assert flips(rational(w), LABELS, at, y[n], boxed, Fraction(float(sizes[n])))


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("scale", [1.0, 2.0**-70, 2.0**60])
def test_the_minimum_is_found_and_proved(domain, scale):
    """In general position bound and witness meet, though pairs alone often fall short."""
    rng = np.random.default_rng(1)
    w = rng.uniform(-0.3, 1.3, (6, D)).astype(np.float32)
    z = rng.random((60, D)).astype(np.float32)
    y, boxed = closest(w, z), domain == "box"
    classifier = prototype_classifier(w * np.float32(scale), LABELS, distance=math.inf)
    settings = {"q": math.inf, "domain": Box(0.0, scale) if boxed else Unbounded()}
    c, bound = (
        certify(classifier, z * np.float32(scale), y, method=method, **settings)
        for method in ("exact", "bound")
    )
    assert c.exact.all()
    assert c.settings["method"] == "exact"
    assert (c.radius >= bound.radius).all()
    raised = np.flatnonzero(c.radius > bound.radius * 1.01)
    assert len(raised) > 3
    own, rival = np.abs(c.witness[:, None] / scale - w[c.pair]).max(axis=2)[raised].T
    np.testing.assert_allclose(own, rival, rtol=1e-6)
    assert (LABELS[c.pair[raised]] == y[raised, None]).tolist() == [[True, False]] * len(raised)
    w = rational(w)
    for n in {*raised, *range(20)}:
        at, radius = rational(z[[n]])[0], Fraction(float(c.radius[n])) / Fraction(scale)
        assert not flips(w, LABELS, at, y[n], boxed, radius * (1 - Fraction(1, 2**60)))
        assert flips(w, LABELS, at, y[n], boxed, radius * (1 + Fraction(1, 10**6)))


def test_many_coordinates_hardly_oppose_each_other():
    rng = np.random.default_rng(0)
    w, z, labels = rng.random((300, 60)), rng.random((40, 60)), np.arange(300) % 3
    classifier = prototype_classifier(w, labels, distance=math.inf)
    y = np.array(predict(classifier, z))
    for domain in DOMAINS.values():
        bounds = lower_bounds(classifier, z, y, q=math.inf, domain=domain)
        found = escapes(classifier, z, y, bounds, domain)
        assert (found.searches == 1).all(), "the bound's own rival, at the bound"
        np.testing.assert_array_equal(found.radius, bounds.radius)
        np.testing.assert_allclose(np.abs(found.witness - z).max(axis=1), bounds.radius, rtol=1e-8)


def test_what_no_pair_proves_to_be_out_of_reach():
    """Each own prototype can be left behind, by the one coordinate, in opposite directions."""
    w, z = np.array([[-1.0, 0], [1, 0], [0, 3]]), np.zeros((1, 2))
    box = Box(np.array([-1.5, -0.5]), np.array([1.5, 0.5]))
    classifier = prototype_classifier(w, [0, 0, 1], distance=math.inf)
    bounds = lower_bounds(classifier, z, np.array([0]), q=math.inf, domain=box)
    assert bounds.radius.round(6).tolist() == [1.5]
    c = certify(classifier, z, [0], q=math.inf, domain=box)
    assert (c.radius[0], c.upper[0], c.exact[0]) == (math.inf, math.inf, True)
    assert c.pair.tolist() == [[-1, -1]]


def test_the_witness_may_lie_farther_away_than_its_rival():
    """Outside of the box the rival stays 2 away: one own prototype can be left at x = 3 only."""
    w, z = np.array([[1, 1, -1.5], [1, 1, 1.5], [1.5, 3, 0]]), np.array([[0.0, 1.0, 0.0]])
    box = Box(np.array([-5.0, 0, -5]), np.array([5.0, 1, 5]))
    classifier = prototype_classifier(w, [0, 0, 1], distance=math.inf)
    bounds = lower_bounds(classifier, z, np.array([0]), q=math.inf, domain=box)
    assert bounds.radius.round(6).tolist() == [0.5], "each is left along the last coordinate"
    c = certify(classifier, z, [0], q=math.inf, domain=box)
    assert c.exact[0]
    assert c.radius.round(6).tolist() == [3.0]


def test_a_point_beside_the_wall_by_rounding():
    z = np.array([[0.1, 0.5]], np.float32)
    assert float(z[0, 0]) > 0.1
    w = np.array([[0.1, 0.4], [0.2, 0.9]], np.float32)
    classifier = prototype_classifier(w, [0, 1], distance=math.inf)
    box = Box(np.zeros(2), np.array([0.1, 1.0]))
    c = certify(classifier, z, [0], q=math.inf, domain=box)
    assert c.exact[0]
    assert (c.witness <= box.upper).all()


def test_ties_that_nothing_breaks():
    """A prototype of both classes: the tie is at the point itself, and no rival is ever closer."""
    w = np.array([[0.0, 0.0], [0.0, 0.0]])
    bounds, found, sizes = search(w, np.array([0, 1]), np.array([[1.0, 2.0]]), [0], Unbounded())
    assert found.radius.tolist() == bounds.radius.tolist() == [0.0]
    assert sizes.tolist() == [math.inf]
    # A coordinate that two prototypes share takes x as far from one as from the other.
    w = np.array([[0.0, 0.0], [0.0, 1.0]])
    bounds, found, sizes = search(w, np.array([0, 1]), np.array([[0.0, 0.0]]), [0], Box(-1.0, 0.25))
    assert found.radius.tolist() == bounds.radius.tolist()
    assert 0.4 < found.radius[0] <= 1
    assert sizes.tolist() == [math.inf]


def test_without_effort_the_bounds_stay(monkeypatch):
    monkeypatch.setattr(cubes, "EFFORT", 0)
    rng = np.random.default_rng(1)
    w, z = rng.uniform(-0.3, 1.3, (6, D)), rng.random((20, D))
    bounds, found, _ = search(w, LABELS, z, closest(w, z), Unbounded())
    np.testing.assert_array_equal(found.radius, bounds.radius)
    np.testing.assert_array_equal(found.witness, bounds.witness)
    np.testing.assert_array_equal(found.pair, bounds.pair)


integers = st.integers(0, 4)
open_boxes = st.lists(st.tuples(*3 * [st.tuples(integers, integers)]), max_size=8)


@settings(max_examples=200, deadline=None)
@given(box=st.tuples(*3 * [st.tuples(integers, integers)]), boxes=open_boxes)
def test_outside_against_all_points(box, boxes):
    """If edges are integers, so are the coordinates of some point outside, if there is any."""
    low, high = np.sort(np.array(box), axis=1).T.astype(float)
    edge = np.zeros((len(boxes), 6))
    for k, ends in enumerate(boxes):
        edge[k, 3:], edge[k, :3] = (
            -np.array(ends, float).T.min(axis=0),
            np.array(ends).T.max(axis=0),
        )

    def free(x):
        return ((x >= edge[:, :3]) | (-x >= edge[:, 3:])).any(axis=1).all()

    grid = itertools.product(*(np.arange(a, b + 1) for a, b in zip(low, high, strict=True)))
    possible = any(free(np.array(x)) for x in grid)
    found = outside(np.concatenate([high, -low]), edge, Effort(1 << 30))
    assert (found is not None) == possible
    if found is not None:
        assert (found <= np.concatenate([high, -low])).all()
        for corner in itertools.product(*zip(-found[3:], found[:3], strict=True)):
            assert free(np.array(corner))


def pigeons(n, holes):
    """Each in a hole, none with another: coordinate (pigeon, hole) is 1 where it sits, else 0."""
    seat = np.arange(n * holes).reshape(n, holes)
    edge = np.full((n + holes * math.comb(n, 2), 2 * n * holes), 9.0)
    edge[np.arange(n)[:, None], seat] = 1.0
    pairs = itertools.product(range(holes), itertools.combinations(range(n), 2))
    for row, (hole, pair) in enumerate(pairs, start=n):
        edge[row, n * holes + seat[list(pair), hole]] = 0.0
    return np.repeat([1.0, 0.0], n * holes), edge


def test_ways_are_tried_one_after_the_other_until_given_up():
    top = outside(*pigeons(5, 5), Effort(1 << 24))
    assert top is not None
    assert (top[:25].reshape(5, 5).sum(axis=1) >= 1).all()
    assert ((top[:25] == 1) & (top[25:] == -1)).reshape(5, 5).sum(axis=0).tolist() == [1] * 5
    assert outside(*pigeons(5, 4), Effort(1 << 24)) is None
    with pytest.raises(GivenUp):
        outside(*pigeons(9, 8), Effort(1 << 24))
