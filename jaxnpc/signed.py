r"""The signed radius of one pair: positive where the point is on its own side, negative beyond.

$$\sigma_{i,j}(z) = \begin{cases} \rho(z)_{i,j} & d(z, w_i) < d(z, w_j) \\
  -\rho(z)_{j,i} & \text{otherwise} \end{cases}$$

(paper, section 4). It is what training maximises: it has a gradient at every point, missed ones
included.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxnpc.distances import DUAL, length
from jaxnpc.domains import Domain, Unbounded
from jaxnpc.pairwise.table import rho

Vector = Float[Array, " d"]


def signed_radius(
    z: Vector, w_i: Vector, w_j: Vector, *, p: float, q: float, domain: Domain
) -> Float[Array, ""]:
    r"""How far z is from where $w_i$ and $w_j$ are equally close.

    How far a missed point is from being right is measured on R^d: in a box it may be out of reach,
    and an infinite loss teaches nothing.

    Args:
        z: the point.
        w_i: the prototype of its class.
        w_j: the rival.
        p: the norm of the distance: 1, 2 or infinity; static.
        q: the norm of the perturbation, likewise.
        domain: where adversarial points are sought.

    Returns:
        The signed radius: exact where [`is_exact`][jaxnpc.pairwise.table.is_exact] says so, else a
        bound of its size. 0 at a tie and between equal prototypes, infinite where no admissible
        point flips the pair. Its gradient is that of the pair, finite everywhere.

    Example:
        >>> z, w_i, w_j = jnp.array([0.0, 3.0]), jnp.array([1.0, 0.0]), jnp.array([-3.0, 0.0])
        >>> float(signed_radius(z, w_i, w_j, p=2, q=2, domain=Unbounded()))
        1.0
        >>> float(signed_radius(z, w_j, w_i, p=2, q=2, domain=Unbounded()))
        -1.0
    """
    if p == 2 and isinstance(domain, Unbounded):
        return half_space(z, w_i, w_j, q)
    own = length(z - w_i, p) < length(z - w_j, p)
    inside = rho(z, w_i, w_j, p=p, q=q, domain=domain).radius
    if p == 2:
        return jnp.where(own, inside, half_space(z, w_i, w_j, q))
    missed = rho(z, w_j, w_i, p=p, q=q, domain=Unbounded()).radius
    return jnp.where(own, inside, -missed)


def half_space(z: Vector, w_i: Vector, w_j: Vector, q: float) -> Float[Array, ""]:
    r"""The signed radius of the l2 distance on R^d, in one formula (eq. 13).

    $$\frac{|z - w_j|_2^2 - |z - w_i|_2^2}{2\,|w_j - w_i|_{q^*}}, \qquad
      \frac1q + \frac1{q^*} = 1$$
    """
    normal = w_j - w_i
    # A sum of products of differences: nothing of the size of the squares cancels.
    excess = jnp.sum(normal * ((w_i - z) + (w_j - z))) / 2
    size = length(normal, DUAL[q])
    return jnp.where(size > 0, excess / jnp.where(size > 0, size, 1), 0)
