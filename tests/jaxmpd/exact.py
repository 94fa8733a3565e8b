"""Piecewise polynomials in exact rational arithmetic: the truth that floats are held against."""

import itertools
from fractions import Fraction

import numpy as np


def value(base, knots, jumps, t):
    """The jump form at t by its definition; knots at infinity are padding."""
    t = Fraction(float(t))
    total = sum(Fraction(float(c)) * t**q for q, c in enumerate(base))
    for knot, jump in zip(knots, np.transpose(jumps), strict=True):
        if not np.isfinite(knot):
            continue
        tau = Fraction(float(knot))
        side = 1 if 0 < tau <= t else -1 if t < tau <= 0 else 0
        total += side * sum(Fraction(float(c)) * (t - tau) ** q for q, c in enumerate(jump))
    return total


def pieces(base, knots, jumps):
    """(left end, right end, monomial coefficients) of every piece; None for an infinite end."""
    ends = sorted({Fraction(float(k)) for k in knots if np.isfinite(k)})
    bounds = [None, *ends, None]
    for lo, hi in itertools.pairwise(bounds):
        inside = hi - 1 if lo is None and hi is not None else Fraction(0) if lo is None else lo
        if lo is not None:
            inside = lo + 1 if hi is None else (lo + hi) / 2
        total = [Fraction(float(c)) for c in base]
        for knot, jump in zip(knots, np.transpose(jumps), strict=True):
            if not np.isfinite(knot):
                continue
            tau = Fraction(float(knot))
            side = 1 if 0 < tau <= inside else -1 if inside < tau <= 0 else 0
            if side:
                for p, c in enumerate(jump):
                    for q in range(p + 1):
                        total[q] += side * Fraction(float(c)) * _binomial(p, q) * (-tau) ** (p - q)
        yield lo, hi, total


def least(base, knots, jumps):
    """The infimum of a piecewise polynomial of degree at most 2; -inf where it falls for ever."""
    best = None
    for lo, hi, c in pieces(base, knots, jumps):
        c0, c1, c2 = (*c, Fraction(0), Fraction(0))[:3]
        lead = c2 or c1
        if lead and ((hi is None and lead < 0) or (lo is None and (c2 or -c1) < 0)):
            return -np.inf
        candidates = [t for t in (lo, hi) if t is not None]
        if c2 > 0:
            turn = -c1 / (2 * c2)
            if (lo is None or turn >= lo) and (hi is None or turn <= hi):
                candidates.append(turn)
        if not candidates:
            candidates.append(Fraction(0))
        for t in candidates:
            v = c0 + c1 * t + c2 * t * t
            best = v if best is None else min(best, v)
    return best


def _binomial(n, k):
    result = 1
    for i in range(k):
        result = result * (n - i) // (i + 1)
    return result
