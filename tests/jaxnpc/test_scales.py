"""Sizes read off the data."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from jaxnpc.scales import default_cap, default_rate, typical_radius

INF = math.inf


@pytest.mark.parametrize(("p", "q"), [(2, 2), (2, 1), (2, INF), (1, INF), (INF, INF)])
def test_the_typical_radius_is_that_of_1_nn_and_scales_with_the_data(p, q):
    rng = np.random.default_rng(0)
    points, classes = rng.random((61, 3)).astype(np.float32), rng.integers(0, 3, 61)
    d = np.linalg.norm(points[:, None].astype(float) - points, ord=p, axis=-1)
    d[classes[:, None] == classes] = INF
    gap = points[d.argmin(axis=1)].astype(float) - points
    # From one prototype to the other: half the way, in l2 along the steepest axis, in l1 by all.
    radius = {
        (2, 2): lambda v: np.linalg.norm(v) / 2,
        (2, 1): lambda v: (v @ v) / (2 * np.abs(v).max()),
        (2, INF): lambda v: (v @ v) / (2 * np.abs(v).sum()),
        (1, INF): None,
        (INF, INF): lambda v: np.abs(v).max() / 2,
    }[p, q]
    found = typical_radius(points, classes, p, q)
    if radius is not None:
        assert found == pytest.approx(np.median([radius(v) for v in gap]), rel=1e-5)
    assert typical_radius(1000 * points, classes, p, q) == pytest.approx(1000 * found, rel=1e-4)


def test_a_function_is_asked_for_distances():
    points = np.array([[0.0], [1.0], [5.0], [6.0]], np.float32)
    twice = lambda x, w: 2 * jnp.abs(x - w[:, 0])  # noqa: E731
    assert typical_radius(points, np.array([0, 0, 1, 1]), twice, 2) == 4.5


def test_classes_that_coincide_have_some_radius_all_the_same():
    points = np.array([[2.0], [2.0]], np.float32)
    assert typical_radius(points, np.array([0, 1]), 2, 2) == 2.0
    assert typical_radius(0 * points, np.array([0, 1]), 2, 2) == 1.0


def test_defaults_have_the_unit_of_the_data():
    assert default_cap(30.0) == pytest.approx(10 * default_cap(3.0))
    for optimizer in ("nesterov", "adam"):
        rates = [default_rate(optimizer, "margin", cap, 100, 4800) for cap in (0.1, 10.0)]
        assert rates[1] == pytest.approx(100 * rates[0])
    # The gradient of a ratio has the inverse unit.
    rates = [default_rate("nesterov", "glvq", cap, 100, 4800) for cap in (0.1, 10.0)]
    assert rates[1] == pytest.approx(1e4 * rates[0])


def test_few_steps_are_larger_ones_within_reason():
    rates = [default_rate("nesterov", "margin", 1.0, 100, steps) for steps in (4800, 1200, 1)]
    assert rates == pytest.approx([rates[0], 2 * rates[0], 10 * rates[0]])
