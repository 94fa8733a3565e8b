"""Minimal perturbations in the plane by exhaustive search, in exact rational arithmetic."""

from fractions import Fraction
from itertools import combinations

import numpy as np

Point = tuple[Fraction, Fraction]
Line = tuple[Fraction, Fraction, Fraction]  # a x + b y = c


def least_norm(rows: list[Line], walls: list[Line], q: float) -> Fraction | None:
    """The least norm (squared for q = 2) of a point with a x + b y >= c for all; None if none is.

    The minimum lies at the origin, at its foot on a line, or where two lines meet, of the
    constraints and of those along which the norm has kinks.
    """
    one, zero = Fraction(1), Fraction(0)
    kinks = [(one, zero, zero), (zero, one, zero), (one, one, zero), (one, -one, zero)]
    constraints = rows + walls
    lines = [line for line in constraints + kinks if line[0] or line[1]]
    candidates = [(zero, zero)]
    for a, b, c in lines:
        size = a * a + b * b
        candidates.append((a * c / size, b * c / size))
    for (a, b, c), (e, f, g) in combinations(lines, 2):
        if (det := a * f - b * e) != 0:
            candidates.append(((c * f - b * g) / det, (a * g - c * e) / det))
    feasible = [(x, y) for x, y in candidates if all(a * x + b * y >= c for a, b, c in constraints)]
    norms = {
        1: lambda x, y: abs(x) + abs(y),
        2: lambda x, y: x * x + y * y,
        np.inf: lambda x, y: max(abs(x), abs(y)),
    }
    return min((norms[q](*point) for point in feasible), default=None)


def minimal(
    w: np.ndarray, labels: np.ndarray, z: np.ndarray, label: int, q: float, box: bool, metric=None
) -> Fraction | None:
    """The minimal perturbation (squared for q = 2) of z in R^2 or in the unit box."""
    exact = [tuple(Fraction(float(x)) for x in row) for row in w]
    at = tuple(Fraction(float(x)) for x in z)
    a = [[Fraction(int(i == j)) for j in range(2)] for i in range(2)]
    if metric is not None:
        rows = [[Fraction(float(x)) for x in row] for row in metric]
        a = [[sum(r[i] * r[j] for r in rows) for j in range(2)] for i in range(2)]

    def apply(v: Point) -> Point:
        return (a[0][0] * v[0] + a[0][1] * v[1], a[1][0] * v[0] + a[1][1] * v[1])

    def minus(u: Point, v: Point) -> Point:
        return (u[0] - v[0], u[1] - v[1])

    def squared(v: Point) -> Fraction:
        m = apply(v)
        return v[0] * m[0] + v[1] * m[1]

    one, zero = Fraction(1), Fraction(0)
    walls = []
    if box:
        walls = [(one, zero, -at[0]), (-one, zero, at[0] - 1)]
        walls += [(zero, one, -at[1]), (zero, -one, at[1] - 1)]
    found = []
    for j in np.flatnonzero(labels != label):
        rows = []
        for i in np.flatnonzero(labels == label):
            v = apply(minus(exact[j], exact[i]))
            c = (squared(minus(at, exact[j])) - squared(minus(at, exact[i]))) / 2
            rows.append((v[0], v[1], c))
        least = least_norm(rows, walls, q)
        if least is not None:
            found.append(least)
    return min(found, default=None)
