"""Witnesses are verified, admissible, and as near as they can be made."""

import math

import numpy as np
import pytest

from jaxnpc.decisions import leaves
from jaxnpc.domains import Box, Unbounded
from jaxnpc.prototypes import prototype_classifier
from jaxnpc.witnesses import admissible, approach, gap, just_outside, pull_back


@pytest.mark.parametrize("q", [1, 2, math.inf])
def test_gap_is_never_short(q):
    from fractions import Fraction

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 50, 7)) * 10.0 ** rng.integers(-8, 8, (50, 1))
    sizes = gap(x, y, q)
    np.testing.assert_allclose(sizes, np.linalg.norm(x - y, ord=q, axis=1), rtol=1e-12)
    for a, b, size in zip(x, y, sizes, strict=True):
        steps = [abs(Fraction(float(s)) - Fraction(float(t))) for s, t in zip(a, b, strict=True)]
        size = Fraction(float(size))
        exact = {1: sum(steps), 2: sum(s * s for s in steps), math.inf: max(steps)}[q]
        assert exact <= (size * size if q == 2 else size)


def test_admissible_clips_in_float64():
    moved = admissible(np.array([[-1.0, 0.3, 2]], np.float32), Box(np.array([0, 0.5, 0]), 1))
    assert moved.dtype == np.float64
    assert moved.tolist() == [[0, 0.5, 1]]
    assert admissible(np.array([[5.0]]), Unbounded()).tolist() == [[5.0]]


@pytest.mark.parametrize("p", [1, 2, math.inf])
def test_just_outside_is_hardly_farther_than_the_boundary(p):
    rng = np.random.default_rng(1)
    classifier = prototype_classifier([[0.0, 0, 0], [1, 2, 3]], "ab", distance=p)
    points = rng.uniform(-0.3, 0.3, (20, 3))
    inside, outside = points.copy(), np.tile([1.0, 2, 3], (20, 1))
    for _ in range(80):
        middle = (inside + outside) / 2
        near = np.linalg.norm(middle, ord=p, axis=1)
        far = np.linalg.norm(middle - [1, 2, 3], ord=p, axis=1)
        inside = np.where((near < far)[:, None], middle, inside)
        outside = np.where((near < far)[:, None], outside, middle)
    labels, rivals = np.zeros(20, int), np.ones(20, int)
    witness, found = just_outside(
        classifier, points, inside, labels, rivals, q=2, domain=Unbounded()
    )
    assert found.all()
    assert leaves(classifier, witness, labels).all()
    np.testing.assert_allclose(gap(witness, points, 2), gap(inside, points, 2), rtol=1e-9)


def test_where_there_is_no_witness_there_is_none():
    classifier = prototype_classifier([[0.0], [10.0]], "ab")
    points = np.array([[0.5]])
    witness, found = just_outside(
        classifier, points, points, np.array([0]), np.array([1]), q=2, domain=Box(0, 1)
    )
    assert not found[0]
    assert witness.tolist() == [[0.5]]


def test_pull_back_stops_at_the_boundary():
    classifier = prototype_classifier([[0.0, 0], [2, 0]], "ab")
    points, far = np.array([[0.5, 0], [0, 0]]), np.array([[4.0, 0], [0, 8]])
    far[1] = [8, 8]
    near = pull_back(classifier, points, far, np.array([0, 0]), steps=40)
    assert leaves(classifier, near, np.array([0, 0])).all()
    np.testing.assert_allclose(near, [[1, 0], [1, 1]], rtol=1e-9)
    np.testing.assert_array_equal(
        pull_back(classifier, points, far, np.zeros(2, int), steps=0), far
    )


@pytest.mark.parametrize("domain", [Unbounded(), Box(0, 1)])
def test_approach_moves_only_what_is_far_from_the_rival(domain):
    rng = np.random.default_rng(2)
    w, points = rng.random((30, 40)), rng.random((12, 40))
    labels = np.arange(30) % 3
    classifier = prototype_classifier(w, labels, distance=math.inf)
    w = np.asarray(classifier.prototypes, float)
    far = np.abs(points[:, None] - w).max(axis=2)
    y = labels[far.argmin(axis=1)]
    rivals = np.where(labels != y[:, None], far, np.inf).argmin(axis=1)
    near, found = approach(classifier, points, y, rivals, domain=domain)
    assert found.all()
    assert leaves(classifier, near, y).all()
    straight = pull_back(classifier, points, w[rivals], y)
    assert (gap(near, points, 1) < gap(straight, points, 1) / 2).all()
    # Only coordinates farther than t from the rival moved, to where they are that far.
    moved, left = near != points, np.abs(near - w[rivals])
    t = left.max(axis=1)
    np.testing.assert_allclose(left[moved], np.repeat(t, moved.sum(axis=1)), rtol=1e-12)
    # A little less moved does not leave: at a greater t the class stays.
    t = (t * (1 + 1e-5))[:, None]
    assert not leaves(classifier, np.clip(points, w[rivals] - t, w[rivals] + t), y).any()


def test_approach_says_where_it_fails():
    classifier = prototype_classifier([[0.0], [10.0]], "ab", distance=math.inf)
    ones = np.array([1])
    x, found = approach(classifier, np.array([[0.5]]), ones - 1, ones, domain=Box(0, 1))
    assert (x.tolist(), found.tolist()) == ([[1.0]], [False])
