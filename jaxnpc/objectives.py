r"""What certified training minimises: a loss of each point, from the pair that decides about it.

The pair is chosen without gradient ([`jaxnpc.selection`][jaxnpc.selection]); its radius is computed
anew as differences, so the gradient is exactly that of the chosen pair, and finite where a point
meets a prototype or two prototypes meet.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray

from jaxnpc.distances import length, named_norm
from jaxnpc.domains import Domain, Unbounded
from jaxnpc.pairwise.table import cell
from jaxnpc.prototypes import Distance
from jaxnpc.selection import Choose, Members, decisive, members, nearest, visible
from jaxnpc.signed import signed_radius

Objective = Callable[
    [Float[Array, "K d"], Float[Array, "n d"], Int[Array, " n"], PRNGKeyArray], Float[Array, " n"]
]
"""Prototypes, points, their class indices and a PRNG key to the loss of each point, at least 0."""

Margin = Objective
"""Likewise to a signed margin: positive where the point is right, how far from being so else."""


def signed_bound(
    labels: Int[ArrayLike, " K"],
    *,
    p: float = 2,
    q: float = 2,
    domain: Domain | None = None,
    rivals: int = 8,
    dropout: float = 0.0,
) -> Margin:
    r"""The signed lower bound of the minimal perturbation, $\min_j \max_i \sigma_{i,j}(z)$.

    Args:
        labels: the class index of each prototype.
        p: the norm of the distance: 1, 2 or infinity.
        q: the norm of the perturbation, likewise.
        domain: where adversarial points are sought; by default R^d, where p = 2 has a closed form.
        rivals: how many rivals are compared with all own prototypes
            ([`decisive`][jaxnpc.selection.decisive]).
        dropout: the probability with which each prototype of a point's class is hidden from it.
            Then more prototypes than the closest one learn the point, which is what keeps hundreds
            of prototypes a class from over-fitting.

    Returns:
        A function of prototypes, points, class indices and key. In the arithmetic of the points:
        an estimate for training and choosing models, [`certify`][jaxnpc.certify.certify] proves.

    Raises:
        ValueError: if an argument is out of its range.

    Example:
        >>> margin = signed_bound([0, 1])
        >>> w = jnp.array([[0.0], [4.0]])
        >>> margin(w, jnp.array([[1.0], [5.0]]), jnp.array([0, 0]), jax.random.key(0)).tolist()
        [1.0, -3.0]
    """
    domain = Unbounded() if domain is None else domain
    cell(p, q, domain)
    if rivals < 1:
        raise ValueError(f"rivals must be at least 1, got {rivals}")
    group = members(labels)
    choose = decisive(group, p=p, q=q, domain=domain, rivals=rivals)

    def radius(z: Array, w_i: Array, w_j: Array) -> Array:
        return signed_radius(z, w_i, w_j, p=p, q=q, domain=domain)

    return _of_pair(group, choose, dropout, radius)


def capped_margin(
    labels: Int[ArrayLike, " K"],
    *,
    p: float = 2,
    q: float = 2,
    domain: Domain | None = None,
    cap: float,
    rivals: int = 8,
    dropout: float = 0.0,
) -> Objective:
    r"""The paper's objective (eq. 7) as a loss: what is missing to the cap.

    $$R - \min\Bigl\{\min_{j \in I_y^c} \max_{i \in I_y} \sigma_{i,j}(z),\ R\Bigr\}$$

    Its mean is R minus the area under the curve of certified accuracy up to R, but for missed
    points, which count by how far they are missed.

    Args:
        labels: the class index of each prototype.
        p: the norm of the distance: 1, 2 or infinity.
        q: the norm of the perturbation, likewise.
        domain: where adversarial points are sought; by default R^d.
        cap: R, in the units of the points: beyond it nothing is gained.
        rivals: how many rivals are compared with all own prototypes.
        dropout: the probability with which each prototype of a point's class is hidden from it.

    Returns:
        The objective.

    Raises:
        ValueError: if an argument is out of its range.

    Example:
        >>> loss = capped_margin([0, 1], cap=1.5)
        >>> w = jnp.array([[0.0], [4.0]])
        >>> loss(w, jnp.array([[0.0], [1.0], [5.0]]), jnp.zeros(3, int), jax.random.key(0)).tolist()
        [0.0, 0.5, 4.5]
    """
    return _hinge(
        signed_bound(labels, p=p, q=q, domain=domain, rivals=rivals, dropout=dropout), cap
    )


def squared_hinge(
    labels: Int[ArrayLike, " K"],
    *,
    p: float = 2,
    q: float = 2,
    domain: Domain | None = None,
    cap: float,
    rivals: int = 8,
    dropout: float = 0.0,
) -> Objective:
    r"""The capped margin squared, $(R - \sigma)_+^2 / (2 R)$: points far from the cap weigh more.

    Of slope -1 at $\sigma = 0$, as the capped margin; the arguments are its too.

    Args:
        labels: the class index of each prototype.
        p: the norm of the distance: 1, 2 or infinity.
        q: the norm of the perturbation, likewise.
        domain: where adversarial points are sought; by default R^d.
        cap: R, in the units of the points.
        rivals: how many rivals are compared with all own prototypes.
        dropout: the probability with which each prototype of a point's class is hidden from it.

    Returns:
        The objective.

    Raises:
        ValueError: if an argument is out of its range.

    Example:
        >>> loss = squared_hinge([0, 1], cap=2.0)
        >>> w = jnp.array([[0.0], [4.0]])
        >>> loss(w, jnp.array([[0.0], [1.0], [2.0]]), jnp.zeros(3, int), jax.random.key(0)).tolist()
        [0.0, 0.25, 1.0]
    """
    missing = capped_margin(
        labels, p=p, q=q, domain=domain, cap=cap, rivals=rivals, dropout=dropout
    )

    def objective(w: Array, x: Array, y: Array, key: PRNGKeyArray) -> Float[Array, " n"]:
        return missing(w, x, y, key) ** 2 / (2 * cap)

    return objective


def glvq(labels: Int[ArrayLike, " K"], *, p: float = 2, dropout: float = 0.0) -> Objective:
    r"""Generalised learning vector quantisation: the relative hypothesis margin, from 0 to 1.

    $$\frac12\Bigl(1 + \frac{d_i - d_j}{d_i + d_j}\Bigr)$$

    with the distances of the closest own prototype and the closest rival; 1/2 at a tie.

    Args:
        labels: the class index of each prototype.
        p: the norm of the distance: 1, 2 or infinity.
        dropout: the probability with which each prototype of a point's class is hidden from it.

    Returns:
        The objective.

    Raises:
        ValueError: if an argument is out of its range.

    Example:
        >>> loss = glvq([0, 1])
        >>> w = jnp.array([[0.0], [4.0]])
        >>> loss(w, jnp.array([[0.0], [1.0], [2.0]]), jnp.zeros(3, int), jax.random.key(0)).tolist()
        [0.0, 0.25, 0.5]

    References:
        Sato, Yamada: Generalized learning vector quantization, 1995.
        Saralajew, Holdijk, Villmann: Fast adversarial robustness certification of nearest prototype
        classifiers for arbitrary seminorms, 2020.
    """
    named_norm(p, "p")
    group = members(labels)

    def ratio(z: Array, w_i: Array, w_j: Array) -> Array:
        own, rival = length(z - w_i, p), length(z - w_j, p)
        total = own + rival
        return jnp.where(total > 0, own / jnp.where(total > 0, total, 1), 0.5)

    return _of_pair(group, nearest(group, p), dropout, ratio)


def semi_metric(
    labels: Int[ArrayLike, " K"],
    distance: float | Distance,
    *,
    cap: float,
    dropout: float = 0.0,
    smoothing: float = 0.0,
    neighbours: int = 6,
) -> Objective:
    r"""The bound of Theorem 2.4 for any differentiable semi-metric, capped.

    $$R - \min\Bigl\{\tfrac12\bigl(\min_{j \in I_y^c} d(z, w_j) - \min_{i \in I_y} d(z, w_i)\bigr),\
      R\Bigr\}$$

    Smoothing leaves the values as they are and spreads the gradient. In the l-infinity distance a
    point teaches one coordinate of two prototypes; with a temperature T it teaches all coordinates
    that are far from it, by the weights of $T \log \sum_l e^{|z_l - w_l| / T}$, and, in any
    distance, all close prototypes, by those of $-T \log \sum_i e^{-d(z, w_i) / T}$.

    Args:
        labels: the class index of each prototype.
        distance: the norm, 1, 2 or infinity, or a function of points (n, ...) and prototypes
            (K, ...) that returns distances (n, K); jax.vmap has to work on it.
        cap: R, in the units of the distance.
        dropout: the probability with which each prototype of a point's class is hidden from it.
        smoothing: the temperature T, in the units of the distance; 0 for none.
        neighbours: over how many of the closest own prototypes and rivals the gradient is spread.

    Returns:
        The objective.

    Raises:
        ValueError: if an argument is out of its range.

    Example:
        >>> loss = semi_metric([0, 1], math.inf, cap=1.5, smoothing=0.1)
        >>> w = jnp.array([[0.0, 0.0], [4.0, 3.0]])
        >>> points = jnp.array([[0.0, 0.0], [1.0, 0.0]])
        >>> loss(w, points, jnp.zeros(2, int), jax.random.key(0)).tolist()
        [0.0, 0.5]
    """
    return _hinge(
        hypothesis_margin(
            labels, distance, dropout=dropout, smoothing=smoothing, neighbours=neighbours
        ),
        cap,
    )


def hypothesis_margin(
    labels: Int[ArrayLike, " K"],
    distance: float | Distance,
    *,
    dropout: float = 0.0,
    smoothing: float = 0.0,
    neighbours: int = 6,
) -> Margin:
    """Half the hypothesis margin, of which [`semi_metric`][jaxnpc.objectives.semi_metric] is made.

    Args:
        labels: the class index of each prototype.
        distance: the norm or a function.
        dropout: the probability with which each prototype of a point's class is hidden from it.
        smoothing: the temperature of the gradient's weights, 0 for none.
        neighbours: over how many prototypes the gradient is spread.

    Returns:
        A function of prototypes, points, class indices and key.

    Raises:
        ValueError: if an argument is out of its range.
    """
    if not callable(distance):
        named_norm(distance, "distance")
    if not 0 <= smoothing < math.inf:
        raise ValueError(f"smoothing must be at least 0 and finite, got {smoothing}")
    if neighbours < 1:
        raise ValueError(f"neighbours must be at least 1, got {neighbours}")
    group = members(labels)
    choose = nearest(group, distance, neighbours if smoothing else 1)
    hard, soft = _single(distance), _single(distance, smoothing)
    _check_dropout(dropout)

    def margin(
        w: Float[Array, "K *d"], x: Float[Array, "n *d"], y: Int[Array, " n"], key: PRNGKeyArray
    ) -> Float[Array, " n"]:
        w, x, y = jnp.asarray(w), jnp.asarray(x), jnp.asarray(y)
        pairs = choose(*jax.lax.stop_gradient((w, x)), y, visible(key, group, y, dropout))

        def half(single: Callable[[Array, Array], Array], closest: Callable[..., Array]) -> Array:
            to_all = jax.vmap(jax.vmap(single, (None, 0)))
            own, rival = to_all(x, w[pairs.own]), to_all(x, w[pairs.rival])
            return (closest(rival, pairs.rival_counts) - closest(own, pairs.own_counts)) / 2

        value = half(hard, lambda d, counts: d[:, 0])
        if not smoothing:
            return value
        smooth = half(soft, lambda d, counts: _soft_least(d, counts, smoothing))
        return jax.lax.stop_gradient(value - smooth) + smooth

    return margin


def _single(distance: float | Distance, smoothing: float = 0.0) -> Callable[[Array, Array], Array]:
    """The distance of one point from one prototype, of smoothed coordinates if it is a maximum."""
    if callable(distance):
        return lambda z, v: distance(z[None], v[None])[0, 0]
    if smoothing and distance == math.inf:
        return lambda z, v: smoothing * jax.nn.logsumexp(jnp.abs(z - v) / smoothing)
    return lambda z, v: length(z - v, distance)


def _soft_least(d: Float[Array, "n k"], counts: Array, temperature: float) -> Float[Array, " n"]:
    return -temperature * jax.nn.logsumexp(-d / temperature, axis=1, where=counts)


def _of_pair(
    group: Members, choose: Choose, dropout: float, value: Callable[[Array, Array, Array], Array]
) -> Objective:
    """A function of the pair that is chosen for each point."""
    _check_dropout(dropout)

    def objective(
        w: Float[Array, "K d"], x: Float[Array, "n d"], y: Int[Array, " n"], key: PRNGKeyArray
    ) -> Float[Array, " n"]:
        w, x, y = jnp.asarray(w), jnp.asarray(x), jnp.asarray(y)
        pairs = choose(*jax.lax.stop_gradient((w, x)), y, visible(key, group, y, dropout))
        return jax.vmap(value)(x, w[pairs.own[:, 0]], w[pairs.rival[:, 0]])

    return objective


def _hinge(margin: Margin, cap: float) -> Objective:
    if not 0 < cap < math.inf:
        raise ValueError(f"cap must be positive and finite, got {cap}")

    def objective(w: Any, x: Any, y: Any, key: PRNGKeyArray) -> Float[Array, " n"]:
        return jax.nn.relu(cap - margin(w, x, y, key))

    return objective


def _check_dropout(dropout: float) -> None:
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}")
