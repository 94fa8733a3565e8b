"""Radii and distances proved on the host: float64 bounds that no rounding can have moved past."""

import numpy as np
from jaxtyping import Float, Int

from jaxnpc import rounding
from jaxnpc.distances import rounding as sum_error
from jaxnpc.domains import Domain
from jaxnpc.pairwise import proofs
from jaxnpc.pairwise.table import prove
from jaxnpc.rivals import Space
from jaxnpc.rounding import Interval

ROWS = 256  # triples worked on together: such arrays stay in a core's cache
TINY = 2.0**-1000  # more than underflow can lose in a sum of products


def prove_pairs(
    space: Space,
    z: Float[np.ndarray, "n d"],
    i: Int[np.ndarray, " n"],
    j: Int[np.ndarray, " n"],
    domain: Domain,
) -> Float[np.ndarray, " n"]:
    """Proved lower bounds of the pair radii of n triples.

    Args:
        space: the prepared classifier.
        z: n points.
        i: the prototype that keeps each point.
        j: the rival of each.
        domain: where adversarial points are sought.

    Returns:
        Radii that never exceed the exact ones.
    """
    parts = [slice(start, start + ROWS) for start in range(0, len(z), ROWS)]
    return np.concatenate(
        [np.zeros(0), *(_prove(space, z[part], i[part], j[part], domain) for part in parts)]
    )


def _prove(
    space: Space,
    z: Float[np.ndarray, "n d"],
    i: Int[np.ndarray, " n"],
    j: Int[np.ndarray, " n"],
    domain: Domain,
) -> Float[np.ndarray, " n"]:
    w_i, w_j = space.prototypes[i], space.prototypes[j]
    if space.metric is None:
        return prove(z, w_i, w_j, p=space.p, q=space.q, domain=domain)
    normal, need = plane(space.metric, z, w_i, w_j)
    with np.errstate(all="ignore"):
        return np.fmax(proofs.half_space(z, normal, need, q=space.q, domain=domain), 0.0)


def plane(
    metric: Float[np.ndarray, "m d"],
    z: Float[np.ndarray, "n d"],
    w_i: Float[np.ndarray, "n d"],
    w_j: Float[np.ndarray, "n d"],
) -> tuple[Interval, Interval]:
    r"""The boundary between two prototypes under a metric A, as $\langle v, x - z\rangle = c$.

    $$v = A^T A (w_j - w_i), \quad
      c = \tfrac12 \langle A (w_j - w_i),\; A (w_j - z) + A (w_i - z) \rangle$$

    Args:
        metric: the linear map A.
        z: n points.
        w_i: their own prototypes.
        w_j: the rivals.

    Returns:
        The normals v and the offsets c, enclosed.
    """
    across = mapped(rounding.difference(w_j, w_i), metric)
    middle = mapped(rounding.difference(w_j, z) + rounding.difference(w_i, z), metric)
    return mapped(across, metric.T), rounding.dot(across, middle) * 0.5


def mapped(x: Interval, metric: Float[np.ndarray, "m d"]) -> Interval:
    """The product A x for n vectors x, enclosed by the a-priori error of its sums."""
    size = np.maximum(np.abs(x.lower), np.abs(x.upper)) @ np.abs(metric).T
    wide = np.maximum(x.upper - x.lower, 0) @ np.abs(metric).T
    margin = sum_error(x.lower.shape[-1] + 4, np.float64) * size + 1.01 * wide + TINY
    middle = x.lower @ metric.T
    return Interval(rounding.down(middle - margin), rounding.up(middle + margin))


def distance_bounds(
    space: Space, z: Float[np.ndarray, "n d"], k: Int[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Bounds, from below and above, of the distance between each point and a prototype.

    Args:
        space: the prepared classifier.
        z: n points.
        k: the prototype whose distance from each is wanted.

    Returns:
        The lower and the upper bounds.
    """
    lower, upper = np.zeros((2, len(z)))
    for start in range(0, len(z), ROWS):
        part = slice(start, start + ROWS)
        gap = rounding.difference(z[part], space.prototypes[k[part]])
        if space.metric is not None:
            gap = mapped(gap, space.metric)
        size = rounding.norm(gap, space.p)
        lower[part], upper[part] = size.lower, size.upper
    return lower, upper
