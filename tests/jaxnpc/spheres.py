"""Points and triples on products of spheres, and what the tests know of F without the package."""

from decimal import Decimal, getcontext

import numpy as np

from jaxnpc.domains import SphereProduct

getcontext().prec = 60

BLOCKS = ((2, 2), (1, 3))
RADII = np.array([0.7, 1.0])


def domain(kind="sphere", blocks=BLOCKS, radii=RADII):
    """Spheres, balls, or shells between them."""
    radii = np.asarray(radii, np.float64)
    return SphereProduct(blocks, {"sphere": 1.0, "ball": 0.0, "shell": 0.6}[kind] * radii, radii)


def members(rng, n, space, zero=0.2):
    """Points of the domain: random directions and norms, and groups that vanish."""
    parts = []
    for (count, size), inner, outer in zip(space.blocks, space.inner, space.outer, strict=True):
        g = np.maximum(rng.normal(size=(n, count, size)) + rng.choice([0.0, 0.4, 1.0]), 0)
        norm = np.linalg.norm(g, axis=-1, keepdims=True)
        g = g / np.where(norm > 0, norm, 1) * rng.uniform(inner, outer, (n, count, 1))
        g[rng.random((n, count)) < zero] = 0
        parts.append(g.reshape(n, -1))
    return np.concatenate(parts, axis=1)


def triples(seed, n, space, spread=0.3):
    """Points of the domain with prototypes near it, the own one closer."""
    rng = np.random.default_rng(seed)
    z = members(rng, n, space)
    w_i, w_j = (x + spread * rng.normal(size=z.shape) for x in (z, members(rng, n, space)))
    swap = (np.linalg.norm(z - w_i, axis=1) > np.linalg.norm(z - w_j, axis=1))[:, None]
    return z, np.where(swap, w_j, w_i), np.where(swap, w_i, w_j)


def naive(z, w_i, w_j, multiplier, space):
    """F by its definition, in 60 digits, for one triple."""
    exact = [[Decimal(float(x)) for x in v] for v in (z, w_i, w_j)]
    lam = Decimal(float(multiplier))
    total = lam * sum(j * j - i * i for i, j in zip(exact[1], exact[2], strict=True))
    start = 0
    for (count, size), inner, outer in zip(space.blocks, space.inner, space.outer, strict=True):
        low, high = Decimal(float(inner)), Decimal(float(outer))
        for _ in range(count):
            rows = [v[start : start + size] for v in exact]
            start += size
            ahead = [max(a + lam * (j - i), Decimal(0)) for a, i, j in zip(*rows, strict=True)]
            h = sum(x * x for x in ahead).sqrt()
            t = min(max(h, low), high)
            total += sum(a * a for a in rows[0]) + min(Decimal(0), t * t - 2 * t * h)
    return total
