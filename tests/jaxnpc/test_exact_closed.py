"""The l1 classifier under linf perturbations."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxnpc.domains import Box, Unbounded
from jaxnpc.exact.generate import minimal_perturbation
from jaxnpc.prototypes import prototype_classifier

LABELS = np.array([0, 0, 0, 1, 1, 2, 0, 1])
DOMAINS = {"unbounded": Unbounded(), "box": Box(0.0, 1.0)}
D = 3


def wins(w, z, label, boxed, e):
    """Whether some rival at least ties within e, by the best step, in rational arithmetic."""
    for j in np.flatnonzero(label != LABELS):
        x = []
        for at, goal in zip(z, w[j], strict=True):
            step = max(-e, min(e, goal - at))
            x.append(max(Fraction(0), min(Fraction(1), at + step)) if boxed else at + step)
        distance = [sum(abs(a - b) for a, b in zip(x, row, strict=True)) for row in w]
        if all(distance[j] <= distance[i] for i in np.flatnonzero(label == LABELS)):
            return True
    return False


def resolved(w):
    """Whether no two prototypes differ by so little that float64's distances cannot tell.

    Where they do the lower bound still holds, but the solver may take a tie for granted: it is for
    `certify` to verify witnesses.
    """
    gaps = np.abs(w[:, None].astype(float) - w[None])
    return np.all((gaps == 0) | (gaps > 1e-12))


eighths = st.integers(-4, 12).map(lambda k: k / 8)
vectors = st.tuples(*D * [st.one_of(eighths, st.floats(-0.5, 1.5, width=32))])
inside = st.tuples(*D * [st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1, width=32))])


@pytest.mark.parametrize("domain", DOMAINS)
@settings(max_examples=30, deadline=None)
@given(
    prototypes=st.lists(vectors, min_size=8, max_size=8),
    points=st.lists(inside, min_size=4, max_size=4),
)
def test_both_bounds_against_rational_arithmetic(domain, prototypes, points):
    w, z = np.array(prototypes, np.float32), np.array(points, np.float32)
    y = LABELS[np.abs(z[:, None] - w).sum(axis=-1).argmin(axis=1)]
    classifier = prototype_classifier(w, LABELS, distance=1)
    found = minimal_perturbation(classifier, z, y, q=math.inf, domain=DOMAINS[domain])
    exact = [[Fraction(float(x)) for x in row] for row in w]
    for n, point in enumerate(z):
        at, boxed = [Fraction(float(x)) for x in point], domain == "box"
        if math.isinf(found.lower[n]):
            assert not wins(exact, at, y[n], boxed, Fraction(1000))
            continue
        # The open ball of the lower bound holds no flip, the closed one a little larger does.
        lower = Fraction(float(found.lower[n]))
        assert lower == 0 or not wins(exact, at, y[n], boxed, lower * (1 - Fraction(1, 2**60)))
        if math.isfinite(found.upper[n]) and resolved(w):
            assert wins(
                exact, at, y[n], boxed, Fraction(float(found.upper[n])) + Fraction(1, 10**9)
            )
            assert found.upper[n] - found.lower[n] <= 1e-9
            step = np.abs(found.witness[n] - point).max()
            assert abs(step - found.upper[n]) <= 1e-12


def test_the_classes_tie_at_the_witness():
    rng = np.random.default_rng(0)
    w, z = rng.uniform(size=(40, 12)), rng.uniform(size=(20, 12))
    labels = np.arange(40) % 4
    y = labels[np.abs(z[:, None] - w).sum(axis=-1).argmin(axis=1)]
    classifier = prototype_classifier(w, labels, distance=1)
    found = minimal_perturbation(classifier, z, y, q=math.inf, domain=Box(0.0, 1.0))
    w = np.asarray(classifier.prototypes, float)
    assert found.exact.all()
    for n in range(20):
        distance = np.abs(found.witness[n] - w).sum(axis=1)
        own = distance[labels == y[n]].min()
        assert abs(own - distance[found.pair[n, 1]]) < 1e-8
        # No random step within the radius does better.
        near = z[n] + rng.uniform(-1, 1, size=(200, 12)) * found.lower[n]
        d = np.abs(np.clip(near, 0, 1)[:, None] - w).sum(axis=2)
        assert np.all(d[:, labels == y[n]].min(axis=1) < d[:, labels != y[n]].min(axis=1))
