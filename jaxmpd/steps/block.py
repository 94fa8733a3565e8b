r"""The block step: several hidden units at once, each along its own Gauss-Newton direction.

For each unit of a block the squared error along the Gauss-Newton direction of its incoming weights,

$$d = -(J^\top J + \lambda)^{-1} (J^\top r + \lambda w),
\qquad J_s = |v|\, f'(z_s)\, (x_s, 1),$$

is a piecewise quadratic with K knots a sample, and the unit's own step ends at its global minimum.
The units of a block do not see each other's steps, so one damping for all, the best of a small
grid, scales them; then the block's outgoing weights and the outputs' biases are solved for jointly.
Both parts are kept only if the loss falls, the penalty included. A block of one unit is the unit
step.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxmpd.activations import PiecewiseLinear
from jaxmpd.expansion import expand_unit
from jaxmpd.piecewise import polynomial
from jaxmpd.primitives import dot
from jaxmpd.rows import Rows, predict
from jaxmpd.steps.coordinate import Search, search
from jaxmpd.steps.output import solve

DAMPINGS = (1.0, 0.7, 0.5, 0.25, 0.125, 0.05, 0.01)
"""The fractions of the units' own steps that a block tries."""

RIDGE = 1e-6
"""Added to a unit's curvature matrix, relative to its trace: float32 has to solve with it."""

WIDE = 24
"""From this many inputs on, the units' curvature matrices are multiples of one matrix."""


class _State(NamedTuple):
    rows: Rows
    residual: Float[Array, "d2 S"]
    loss: Float[Array, ""]


def deal(key: PRNGKeyArray, units: int, size: int) -> Int[Array, "n m"]:
    """Units dealt to blocks of equal size at random; those left over wait for another sweep."""
    size = min(size, units)
    number = units // size
    return jax.random.permutation(key, units)[: number * size].reshape(number, size)


def sweep(
    rows: Rows,
    x: Float[Array, "d0+1 S"],
    targets: Float[Array, "d2 S"],
    weights: Float[Array, "#d2 S"],
    order: Int[Array, "n m"],
    activation: PiecewiseLinear,
    l2: float = 0.0,
    free: Rows | None = None,
    search: Search = search,
) -> Rows:
    """Move the units, block after block, under the squared error plus ridge.

    Args:
        rows: the network.
        x: S inputs, see [`with_ones`][jaxmpd.rows.with_ones].
        targets: a column a sample.
        weights: of the squared residuals, one row for all outputs or one each.
        order: the units of each block.
        activation: of the hidden layer.
        l2: weight of the sum of the squares of all parameters but the outputs' biases.
        free: the parameters that may move; None: all may.
        search: finds the global minimum along a unit's direction.

    Returns:
        The network after the sweep.
    """
    free = None if free is None else jax.tree.map(jnp.asarray, free)
    # Where a direction has many entries, one matrix serves all units.
    mean = jnp.mean(weights, axis=0)
    shared = dot(mean * x, x.T) / jnp.sum(mean) if len(x) >= WIDE else None

    def loss(rows: Rows, residual: Float[Array, "d2 S"]) -> Float[Array, ""]:
        squares = jnp.sum(rows.incoming**2) + jnp.sum(rows.outgoing[:-1] ** 2)
        return jnp.sum(weights * residual**2) + l2 * squares

    def move(state: _State, units: Int[Array, " m"]) -> tuple[_State, None]:
        return move_outgoing(move_incoming(state, units), units), None

    def move_incoming(state: _State, units: Int[Array, " m"]) -> _State:
        rows, residual, _ = state
        w, v = rows.incoming[units], rows.outgoing[units]
        z = dot(w, x)
        features, slope = activation(z), activation.slope(z)
        signal, energy = (
            dot(v, weights * residual),
            dot(v**2, jnp.broadcast_to(weights, residual.shape)),
        )
        gradient = dot(slope * signal, x.T) + l2 * w
        bent = slope**2 * energy
        if shared is None:
            products = (x[:, None] * x).reshape(-1, x.shape[1])
            curvature = dot(bent, products.T).reshape(-1, len(x), len(x))
        else:
            curvature = shared * jnp.sum(bent, axis=1)[:, None, None]
        direction = _newton(curvature, gradient, l2, None if free is None else free.incoming[units])
        u = dot(direction, x)

        def own_step(unit: tuple[Array, ...]) -> Float[Array, ""]:
            z, u, signal, energy, w, d = unit
            slope, bend = 2 * l2 * jnp.sum(w * d), l2 * jnp.sum(d**2)
            ridge = polynomial(jnp.stack([jnp.zeros_like(slope), slope, bend]))
            return search(expand_unit(z, u, signal, energy, activation) + ridge).argmin

        t = jax.lax.map(own_step, (z, u, signal, energy, w, direction))
        t = jnp.where(jnp.isfinite(t), t, 0)[:, None]

        def damped(fraction: Float[Array, ""]) -> _State:
            new = rows.incoming.at[units].set(w + fraction * t * direction)
            change = activation(z + fraction * t * u) - features
            tried = residual + dot(v.T, change)
            moved = rows._replace(incoming=new)
            return _State(moved, tried, loss(moved, tried))

        fractions = jnp.asarray(DAMPINGS, x.dtype)
        losses = jax.lax.map(lambda fraction: damped(fraction).loss, fractions)
        best = jnp.argmin(jnp.where(jnp.isnan(losses), jnp.inf, losses))
        return _better(state, damped(fractions[best]))

    def move_outgoing(state: _State, units: Int[Array, " m"]) -> _State:
        rows, residual, _ = state
        places = jnp.append(units, len(rows.incoming))  # and the outputs' biases
        features = activation(dot(rows.incoming[units], x))
        features = jnp.concatenate([features, jnp.ones_like(features[:1])])
        penalty = jnp.full(len(places), l2, x.dtype).at[-1].set(0)
        allowed = None if free is None else free.outgoing[places]
        change = solve(features, residual, weights, penalty, rows.outgoing[places], allowed)
        new = rows._replace(outgoing=rows.outgoing.at[places].add(change))
        tried = residual + dot(change.T, features)
        return _better(state, _State(new, tried, loss(new, tried)))

    residual = predict(rows, x, activation) - targets
    state = _State(rows, residual, loss(rows, residual))
    return jax.lax.scan(move, state, order)[0].rows


def _better(old: _State, new: _State) -> _State:
    return jax.tree.map(lambda a, b: jnp.where(new.loss < old.loss, b, a), old, new)


def _newton(
    curvature: Float[Array, "m d d"],
    gradient: Float[Array, "m d"],
    l2: float,
    free: Bool[Array, "m d"] | None,
) -> Float[Array, "m d"]:
    """The Gauss-Newton direction of each unit."""
    eye = jnp.eye(gradient.shape[1], dtype=gradient.dtype)
    if free is not None:
        gradient = jnp.where(free, gradient, 0)
        curvature = jnp.where(free[:, :, None] & free[:, None], curvature, 0)
    size = jnp.trace(curvature, axis1=1, axis2=2)[:, None]
    added = jnp.where(size > 0, RIDGE * size + l2, 1)
    if free is not None:
        added = jnp.where(free, added, jnp.where(size > 0, size, 1))
    factor = jnp.linalg.cholesky(curvature + added[:, :, None] * eye)
    direction = -jax.vmap(lambda c, g: jax.scipy.linalg.cho_solve((c, True), g))(factor, gradient)
    return jnp.where(jnp.isfinite(direction), direction, -gradient)
