"""The loss along a coordinate, against the loss itself, and its minimum against brute force."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmpd.minimum import minimize
from jaxnpc.distances import squared_l2
from jaxnpc.lines import expand
from jaxnpc.objectives import semi_metric

pytestmark = pytest.mark.compiled_quickly

INF = math.inf
NORMS = (1, 2, INF)
N, D, CASES = 14, 3, 40


def several(rng):
    """Three classes, of one to three prototypes."""
    return np.array([0, 0, 1, 2, 1, 0]), rng.random((6, D)), rng.random((N, D))


def single(rng):
    """A prototype a class: no other own one to fall back on, no other rival either."""
    return np.array([0, 1]), rng.random((2, D)), rng.random((N, D))


def coarse(rng):
    """Coordinates on a grid of three: ties, points on prototypes, equal prototypes."""
    labels = np.array([0, 0, 1, 1])
    return labels, rng.integers(0, 3, (4, D)) / 2, rng.integers(0, 3, (N, D)) / 2


def coinciding(rng):
    """All prototypes and half of the points at one place."""
    x = rng.random((N, D))
    x[::2] = 0.5
    return np.array([0, 1, 1]), np.full((3, D), 0.5), x


KINDS = (several, single, coarse, coinciding)


def cases(kind, dtype=np.float64, scale=1.0):
    """Prototypes, points, classes, weights, number and coordinate, stacked."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(CASES):
        labels, w, x = kind(rng)
        weights = rng.integers(0, 3, N) + np.eye(N)[0]
        y = rng.integers(0, labels.max() + 1, N)
        rows.append((w * scale, x * scale, y, weights, rng.integers(len(w)), rng.integers(D)))
    w, x, y, weights, number, coordinate = (np.stack(a) for a in zip(*rows, strict=True))
    return labels, (w.astype(dtype), x.astype(dtype), y, weights.astype(dtype), number, coordinate)


def loss(p, w, x, y, labels, cap):
    """The loss of each point by its definition, in any arithmetic that NumPy has."""
    gap = np.abs(x[:, None] - w)
    d = (gap**2).sum(-1) if p == 2 else gap.sum(-1) if p == 1 else gap.max(-1)
    own = y[:, None] == labels
    far = np.full_like(d, d.max() + 1)
    margin = np.where(own, far, d).min(1) - np.where(own, d, far).min(1)
    return np.maximum(cap - margin / 2, 0 * d[:, 0])


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_line_is_the_loss_and_its_minimum_the_least(p, kind):
    cap = 0.2
    with jax.enable_x64(True):
        labels, arrays = cases(kind)

        def along(w, x, y, weights, number, coordinate, t):
            line = expand(
                w, labels, x, y,
                number=number, coordinate=coordinate, distance=p, cap=cap, weights=weights,
            )  # fmt: skip
            return line(t), minimize(line)

        grid = np.linspace(-3, 3, 601)
        values, minimum = jax.jit(jax.vmap(along, (0,) * 6 + (None,)))(*arrays, grid)
        values, argmin, least, gain = (np.asarray(a) for a in (values, *minimum[:3]))
    assert np.asarray(minimum.attained).all()
    for c, (w, x, y, weights, number, coordinate) in enumerate(zip(*arrays, strict=True)):

        def true(t, w=w, x=x, y=y, weights=weights, at=(number, coordinate)):
            moved = w.copy()
            moved[at] += t
            return weights @ loss(p, moved, x, y, labels, cap) / weights.sum()

        expected = np.array([true(t) for t in grid])
        np.testing.assert_allclose(values[c], expected, atol=1e-12)
        np.testing.assert_allclose(least[c], true(argmin[c]), atol=1e-12)
        np.testing.assert_allclose(gain[c], true(0) - least[c], atol=1e-12)
        # Around the best point of the grid a finer one finds nothing less either.
        fine = grid[expected.argmin()] + np.linspace(-0.01, 0.01, 101)
        assert least[c] <= min(expected.min(), *(true(t) for t in fine)) + 1e-12


@pytest.mark.parametrize("p", [1, INF])
@pytest.mark.parametrize("kind", [single, coarse])
def test_the_minimum_of_linear_pieces_is_that_of_rational_arithmetic(p, kind):
    """At one of the knots, each listed from the definition: where two distances or a hinge meet."""
    cap, count = Fraction(1, 4), 8
    with jax.enable_x64(True):
        labels, (w, x, y, weights, number, coordinate) = cases(kind)
        w, x = (np.round(a * 16) / 16 for a in (w, x))

        def least(w, x, y, weights, number, coordinate):
            line = expand(
                w, labels, x, y,
                number=number, coordinate=coordinate, distance=p, cap=float(cap), weights=weights,
            )  # fmt: skip
            return minimize(line)[:2]

        found = jax.jit(jax.vmap(least))(w, x, y, weights, number, coordinate)
        argmin, value = (np.asarray(a) for a in found)
    exact = np.vectorize(Fraction, otypes=[object])
    for c in range(count):
        w_c, x_c, share = exact(w[c]), exact(x[c]), exact(weights[c])
        at = number[c], coordinate[c]

        def true(t, w_c=w_c, x_c=x_c, share=share, at=at, y_c=y[c]):
            moved = w_c.copy()
            moved[at] += t
            return (share * loss(p, moved, x_c, y_c, labels, cap)).sum() / share.sum()

        others = np.delete(np.arange(len(labels)), number[c])
        knots = {Fraction(0)}
        for z in x_c:
            gap = np.abs(z - w_c)
            combine = np.sum if p == 1 else np.max
            rest = combine(np.delete(gap[at[0]], at[1]))
            there = [combine(gap[k]) for k in others]
            levels = [d + shift for d in there for shift in (0, 2 * cap, -2 * cap)] + [rest]
            widths = [level - rest if p == 1 else level for level in levels] + [Fraction(0)]
            knots |= {z[at[1]] - w_c[at] + s * h for h in widths for s in (-1, 1)}
        least_value = min(true(t) for t in knots)
        assert abs(float(least_value) - value[c]) <= 1e-14
        assert abs(float(true(Fraction(float(argmin[c]))) - least_value)) <= 1e-14


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_float32_never_promises_what_it_does_not_keep(p, scale):
    cap = 0.2 * scale ** (2 if p == 2 else 1)
    labels, arrays = cases(several, np.float32, scale)

    def along(w, x, y, weights, number, coordinate):
        line = expand(
            w, labels, x, y,
            number=number, coordinate=coordinate, distance=p, cap=cap, weights=weights,
        )  # fmt: skip
        return minimize(line)

    argmin, _, gain, _ = (np.asarray(a) for a in jax.jit(jax.vmap(along))(*arrays))
    for c, (w, x, y, weights, number, coordinate) in enumerate(zip(*arrays, strict=True)):
        moved = w.astype(float)
        before = weights @ loss(p, moved, x.astype(float), y, labels, cap) / weights.sum()
        moved[number, coordinate] += argmin[c]
        after = weights @ loss(p, moved, x.astype(float), y, labels, cap) / weights.sum()
        assert abs(before - after - gain[c]) <= 1e-5 * cap


def test_the_loss_is_that_of_the_semi_metric():
    for p, distance in ((1, 1), (2, squared_l2), (INF, INF)):
        labels, (w, x, y, *_) = cases(several, np.float32)
        objective = semi_metric(labels, distance, cap=0.2)
        expected = [
            float(jnp.mean(objective(*(jnp.asarray(a[c]) for a in (w, x, y)), jax.random.key(0))))
            for c in range(3)
        ]
        lines = [
            expand(w[c], labels, x[c], y[c], number=0, coordinate=0, distance=p, cap=0.2)
            for c in range(3)
        ]
        np.testing.assert_allclose([float(line(0.0)) for line in lines], expected, rtol=1e-5)


def test_arguments_are_checked():
    w, x = jnp.zeros((2, 1)), jnp.zeros((1, 1))
    for labels, p, word in (([0, 1], 3, "distance"), ([0, 0], 2, "labels")):
        with pytest.raises(ValueError, match=word):
            expand(w, labels, x, [0], number=0, coordinate=0, distance=p, cap=1.0)
