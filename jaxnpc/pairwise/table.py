"""Which function answers for a distance p, a threat model q and a domain: one line a cell."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from jaxnpc.distances import is_norm
from jaxnpc.domains import Box, Domain, SphereProduct, Unbounded, check, check_spheres
from jaxnpc.pairwise import l1, l2, linf, proofs, sphere_proofs, spheres
from jaxnpc.pairwise.frame import PairRadius, Vector

INF = float("inf")
CHUNK = 2**15


class Cell(NamedTuple):
    """What is known of one (p, q, domain).

    Attributes:
        rho: the kernel, called with (z, w_i, w_j, q=q, domain=domain).
        proof: its lower bound under rounding, for n triples on the host, with the same arguments.
        exact: whether its radius is the minimum itself rather than a lower bound.
        complexity: its time for d coordinates. The steps of a search are a handful, and bounded by
            the precision instead of d, which saves the sort behind the O(d log d) of Table 1.
    """

    rho: Callable[..., PairRadius]
    proof: Callable[..., np.ndarray]
    exact: bool
    complexity: str


TABLE: dict[tuple[float, float, type], Cell] = {
    (1, 1, Unbounded): Cell(l1.rho, proofs.l1, False, "O(d) a step"),
    (1, 1, Box): Cell(l1.rho, proofs.l1, False, "O(d) a step"),
    (1, 2, Unbounded): Cell(l1.rho, proofs.l1, False, "O(d) a step"),
    (1, 2, Box): Cell(l1.rho, proofs.l1, False, "O(d) a step"),
    (1, INF, Unbounded): Cell(l1.rho, proofs.l1, True, "O(d) a step"),
    (1, INF, Box): Cell(l1.rho, proofs.l1, True, "O(d) a step"),
    (2, 1, Unbounded): Cell(l2.rho, proofs.l2, True, "O(d)"),
    (2, 1, Box): Cell(l2.rho, proofs.l2, True, "O(d) a step"),
    (2, 2, Unbounded): Cell(l2.rho, proofs.l2, True, "O(d)"),
    (2, 2, Box): Cell(l2.rho, proofs.l2, True, "O(d) a step"),
    (2, 2, SphereProduct): Cell(spheres.rho, sphere_proofs.spheres, False, "O(d) a step"),
    (2, INF, Unbounded): Cell(l2.rho, proofs.l2, True, "O(d)"),
    (2, INF, Box): Cell(l2.rho, proofs.l2, True, "O(d) a step"),
    (INF, 1, Unbounded): Cell(linf.rho, proofs.linf, True, "O(d log d)"),
    (INF, 1, Box): Cell(linf.rho, proofs.linf, True, "O(d log d)"),
    (INF, 2, Unbounded): Cell(linf.rho, proofs.linf, True, "O(d log d)"),
    (INF, 2, Box): Cell(linf.rho, proofs.linf, True, "O(d log d)"),
    (INF, INF, Unbounded): Cell(linf.rho, proofs.linf, True, "O(d)"),
    (INF, INF, Box): Cell(linf.rho, proofs.linf, True, "O(d)"),
}


def cell(p: float, q: float, domain: Domain | SphereProduct | type) -> Cell:
    """The entry of the table.

    Args:
        p: the norm of the classifier's distance.
        q: the norm of the perturbation.
        domain: a domain or its type.

    Returns:
        The cell.

    Raises:
        ValueError: if there is none, naming p, q and the domain.
    """
    kind = domain if isinstance(domain, type) else type(domain)
    if not (is_norm(p) and is_norm(q)) or (p, q, kind) not in TABLE:
        known = sorted({(p, q) for p, q, _ in TABLE})
        raise ValueError(
            f"no pair radius for p = {p!r}, q = {q!r} on {kind.__name__}: known are (p, q) in "
            f"{known} on Unbounded and Box, and (2, 2) on SphereProduct"
        )
    return TABLE[p, q, kind]


def is_exact(p: float, q: float, domain: Domain | SphereProduct | type) -> bool:
    """Whether `rho` is the minimal perturbation of a pair itself; else it is a lower bound."""
    return cell(p, q, domain).exact


def rho(
    z: Vector, w_i: Vector, w_j: Vector, *, p: float, q: float, domain: Domain | SphereProduct
) -> PairRadius:
    r"""How far z can be moved before it is as close to $w_j$ as to $w_i$ (eq. 2).

    $$\rho_p^q(z)_{i,j} = \min_{x \in X} |x - z|_q \quad\text{s.t.}\quad
      |x - w_i|_p \ge |x - w_j|_p$$

    Pure, for one triple: `jax.vmap` over whatever is batched. Computed in the precision of z, whose
    rounding may overstate it: [`prove`][jaxnpc.pairwise.table.prove] does not.

    Args:
        z: the point, in the domain.
        w_i: the prototype that keeps it, anywhere.
        w_j: the rival prototype, anywhere.
        p: the norm of the distance: 1, 2 or infinity; static.
        q: the norm of the perturbation: 1, 2 or infinity; static.
        domain: where x is sought; its type is static, its bounds are data.

    Returns:
        The radius with its witness: exact, or where `is_exact` says so a lower bound.

    Raises:
        ValueError: if the table has no such cell.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> points = jnp.array([[0.0, 0.0], [0.25, 0.5], [1.0, 1.0]])
        >>> pair = jnp.array([0.0, 0.0]), jnp.array([1.0, 0.0])
        >>> radius = lambda z: rho(z, *pair, p=2, q=2, domain=Box()).radius
        >>> jax.jit(jax.vmap(radius))(points).tolist()
        [0.5, 0.25, 0.0]
    """
    return cell(p, q, domain).rho(z, w_i, w_j, q=q, domain=domain)


def prove(
    z: Float[np.ndarray, "n d"],
    w_i: Float[np.ndarray, "n d"],
    w_j: Float[np.ndarray, "n d"],
    *,
    p: float,
    q: float,
    domain: Domain | SphereProduct,
) -> Float[np.ndarray, " n"]:
    r"""Radii of n triples that never exceed the minimal perturbation in exact arithmetic.

    The inputs are taken as the real numbers that they are, float32 or float64, and the result is a
    rigorous lower bound of their $\rho_p^q$: within about 1e-14 of it where the prototypes'
    distances do not cancel, and in any case no larger. Runs in NumPy on the host, needs no flag.

    Args:
        z: the points. One outside the domain may also stay where it is.
        w_i: the prototypes that keep them.
        w_j: their rivals.
        p: the norm of the distance: 1, 2 or infinity.
        q: the norm of the perturbation: 1, 2 or infinity.
        domain: where adversarial points are sought.

    Returns:
        Float64 radii: 0 for a triple with a NaN or an infinity, infinite where it is proved that no
        admissible point flips the pair.

    Raises:
        TypeError: if the domain is none.
        ValueError: if the table has no such cell, the shapes differ, or the domain is empty, holds
            a NaN or is of another dimension.

    Example:
        >>> z, w_i, w_j = (np.array([[x, 0.0]], np.float32) for x in (0.1, 0.2, 0.7))
        >>> radius = prove(z, w_i, w_j, p=2, q=2, domain=Box())[0]
        >>> bool(0.35 - 1e-7 < radius <= (0.7 + 0.2) / 2 - 0.1)
        True
    """
    proof = cell(p, q, domain).proof
    points = [np.asarray(x, np.float64) for x in (z, w_i, w_j)]
    shapes = [x.shape for x in points]
    if len(set(shapes)) > 1 or points[0].ndim != 2:
        raise ValueError(f"z, w_i and w_j have shapes {shapes}: give three arrays of one (n, d)")
    n, d = shapes[0]
    domain = (check_spheres if isinstance(domain, SphereProduct) else check)(domain, d)
    radii = np.zeros(n)
    finite = np.flatnonzero(np.isfinite(np.concatenate(points, axis=-1)).all(axis=-1))
    # Chunks whose temporaries stay in the cache are several times faster.
    chunk = max(1, CHUNK // max(d, 1))
    for start in range(0, len(finite) if d else 0, chunk):
        rows = finite[start : start + chunk]
        radii[rows] = np.fmax(proof(*(x[rows] for x in points), q=q, domain=domain), 0.0)
    return radii
