"""The output step: the output layer in closed form, a ridge regression on the hidden features."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxmpd.activations import PiecewiseLinear
from jaxmpd.primitives import cholesky, dot
from jaxmpd.rows import Rows


def solve(
    features: Float[Array, "m S"],
    residual: Float[Array, "d2 S"],
    weights: Float[Array, "#d2 S"],
    penalty: Float[Array, " m"],
    old: Float[Array, "m d2"],
    free: Bool[Array, "m d2"] | None = None,
) -> Float[Array, "m d2"]:
    r"""The change of outgoing weights that minimises the squared error plus a penalty.

    $$\min_\Delta \sum_{ks} \omega_{ks} (r_{ks} + \Delta_k \cdot a_s)^2
    + \sum_{mk} p_m (v_{mk} + \Delta_{mk})^2$$

    Args:
        features: a, by rows.
        residual: r, a column a sample.
        weights: of the residuals, one row for all outputs or one each.
        penalty: p.
        old: v.
        free: the weights that may change; None: all may.

    Returns:
        The change; up to rounding, so compare losses before it is taken.
    """
    weights = jnp.atleast_2d(weights)
    gram = jax.lax.map(lambda w: dot(w * features, features.T), weights)
    right = -dot(features, (weights * residual).T) - penalty[:, None] * old
    if free is None and len(weights) == 1:
        return _solved(gram[0] + jnp.diag(penalty), right)
    if free is None:
        free = jnp.ones(old.shape, bool)
    gram = jnp.broadcast_to(gram, (old.shape[1], *gram.shape[1:]))

    def restricted(item: tuple[Array, Array, Array]) -> Float[Array, " m"]:
        gram, free, right = item
        both = free[:, None] & free
        kept = jnp.where(both, gram + jnp.diag(penalty), 0)
        size = jnp.trace(kept) / jnp.maximum(jnp.sum(free), 1)
        kept = kept + jnp.diag(jnp.where(free, 0, jnp.where(size > 0, size, 1)))
        return _solved(kept, jnp.where(free, right, 0)[:, None])[:, 0]

    return jax.lax.map(restricted, (gram, free.T, right.T)).T


def _solved(gram: Float[Array, "m m"], right: Float[Array, "m k"]) -> Float[Array, "m k"]:
    return jax.scipy.linalg.cho_solve((cholesky(gram), True), right)


def solve_output(
    rows: Rows,
    x: Float[Array, "d0+1 S"],
    targets: Float[Array, "d2 S"],
    weights: Float[Array, "#d2 S"],
    activation: PiecewiseLinear,
    l2: float = 0.0,
    free: Rows | None = None,
) -> Rows:
    """The network with its output at the minimum of the squared error plus ridge.

    Args:
        rows: the network.
        x: S inputs, see [`with_ones`][jaxmpd.rows.with_ones].
        targets: a column a sample.
        weights: of the squared residuals, one row for all outputs or one each.
        activation: of the hidden layer.
        l2: weight of the sum of the squares of all parameters but the outputs' biases.
        free: the parameters that may change; None: all may.

    Returns:
        The network; the old one where rounding has kept the loss from falling.
    """
    features = activation(dot(rows.incoming, x))
    features = jnp.concatenate([features, jnp.ones_like(features[:1])])
    residual = dot(rows.outgoing.T, features) - targets
    penalty = jnp.full(len(features), l2, features.dtype).at[-1].set(0)
    allowed = None if free is None else jnp.asarray(free.outgoing)
    change = solve(features, residual, weights, penalty, rows.outgoing, allowed)
    new = rows.outgoing + change

    def loss(outgoing: Float[Array, "d1+1 d2"], residual: Float[Array, "d2 S"]) -> Array:
        return jnp.sum(weights * residual**2) + jnp.sum(penalty[:, None] * outgoing**2)

    falls = loss(new, residual + dot(change.T, features)) < loss(rows.outgoing, residual)
    return rows._replace(outgoing=jnp.where(falls, new, rows.outgoing))
