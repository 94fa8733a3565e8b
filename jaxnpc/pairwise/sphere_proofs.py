r"""Bounds on a product of spheres that rounding cannot overstate, on the host in float64.

[`jaxnpc.pairwise.spheres`][jaxnpc.pairwise.spheres] gives for every multiplier a lower bound
$F(\lambda)$ of the squared radius. Here F is evaluated from below. What runs over all d coordinates
is plain float64 with its a-priori error; what runs over the groups is interval arithmetic.
"""

import numpy as np
from jaxtyping import Float

from jaxnpc import rounding
from jaxnpc.distances import rounding as sum_error
from jaxnpc.domains import SphereProduct, Unbounded
from jaxnpc.pairwise import proofs
from jaxnpc.pairwise.spheres import ascend, dual, first_multiplier
from jaxnpc.rounding import Interval, down, exact, total, up

INF = float("inf")
Rows = Float[np.ndarray, "n d"]
Groups = Float[np.ndarray, "n G"]
Radii = Float[np.ndarray, " n"]

# One rounding of v, one of its multiple and one of the sum: three half units, and some more.
STEP = 2.0**-51
# More than any of d squares can lose to underflow, together with all others of its group.
TINY = 2.0**-1000


@np.errstate(all="ignore")
def group_squares(x: Rows, domain: SphereProduct) -> Interval:
    """The squared norms of the groups, (n, G), of numbers that are taken as exact."""
    sums = [np.einsum("...gc,...gc->...g", part, part) for part in domain.split(x)]
    error = domain.spread(np.array([sum_error(c + 2, np.float64) for _, c in domain.blocks]))
    squares = np.concatenate(sums, axis=-1)
    return Interval(
        np.fmax(down(squares - up(squares * error + TINY)), 0.0),
        up(squares + up(squares * error + TINY)),
    )


def as_float64(domain: SphereProduct) -> SphereProduct:
    """The domain with NumPy's bounds, for work on the host."""
    inner, outer = (np.asarray(bound, np.float64) for bound in (domain.inner, domain.outer))
    return SphereProduct(domain.blocks, inner, outer)


@np.errstate(all="ignore")
def dual_bound(
    ahead: Interval,
    squares: Interval,
    normal: Groups,
    beta: Interval,
    multiplier: Radii,
    domain: SphereProduct,
) -> Radii:
    r"""Lower bounds of $F(\lambda)$ in exact arithmetic.

    Args:
        ahead: (n, G) the squared norms of the groups of $(z + \lambda v)^+$, as computed in
            float64 by one product and two sums.
        squares: (n, G) the squared norms of the groups of z.
        normal: (n, G) upper bounds of the norms of the groups of v.
        beta: (n,) the differences of the prototypes' squared norms.
        multiplier: $\lambda$, at least 0.
        domain: with NumPy's bounds.

    Returns:
        The bounds; minus infinity where nothing is known.
    """
    moved = up(np.sqrt(squares.upper)) + up(multiplier[:, None] * normal)
    h = up(up(np.sqrt(ahead.upper)) + up(STEP * moved + TINY))
    t = np.clip(h, domain.spread(domain.inner), domain.spread(domain.outer))
    phi = np.minimum((exact(t) * (exact(t) - exact(h) * 2.0)).lower, 0.0)
    value = (total(squares + phi) + exact(multiplier) * beta).lower
    return np.where(np.isnan(value), -INF, value)


@np.errstate(all="ignore")
def spheres(z: Rows, w_i: Rows, w_j: Rows, *, q: float, domain: SphereProduct) -> Radii:
    """Lower bounds of the radius on a product of spheres: the better of that and the half-space."""
    domain = as_float64(domain)
    v = w_j - w_i
    normal = exact(w_j) - w_i
    beta = total(normal * (exact(w_i) + w_j))
    need = np.sum(v * ((w_i - z) + (w_j - z)), axis=-1) / 2
    start = first_multiplier(need, np.sum(v * v, axis=-1))
    start = np.where(np.isfinite(start), start, 0.0)
    middle = (beta.lower + beta.upper) / 2
    size = np.sum(z * z, axis=-1)
    eps = float(np.finfo(np.float64).eps)
    found = ascend(lambda t: dual(z, v, size, middle, t, domain), start, tolerance=eps)
    largest = np.maximum(abs(normal).upper, 0.0)
    length = up(np.sqrt(group_squares(largest, domain).upper))
    ahead = group_squares(np.maximum(z + found.multiplier[:, None] * v, 0.0), domain)
    squares = group_squares(z, domain)
    value = dual_bound(ahead, squares, length, beta, found.multiplier, domain)
    plane = proofs.l2(z, w_i, w_j, q=q, domain=Unbounded())
    radius = np.fmax(rounding.sqrt(exact(np.fmax(value, 0.0))).lower, plane)
    positive = up(np.sqrt(group_squares(np.maximum(normal.upper, 0.0), domain).upper))
    farthest = total(exact(positive) * domain.spread(domain.outer)).upper
    radius = np.where(2.0 * farthest < beta.lower, INF, radius)
    # A point off the domain may be far from all of it, and yet have changed its class.
    return np.where(plane > 0, radius, plane)
