r"""The nearest point in l2 of a few half-spaces in a box: Newton's method on the dual.

$$\min_\delta \tfrac12 |\delta|^2 \quad \text{s.t.}\quad V \delta \ge c,\ l \le \delta \le u$$

has the dual $\max_{\lambda \ge 0} \lambda^T c - \sum_l \max_{l_l \le x \le u_l} (v_l x - x^2 / 2)$,
$v = V^T \lambda$: concave, with the gradient $c - V \mathrm{clip}(v)$, itself piecewise linear. Its
dimension is the number of rows, one to a few, and each piece is solved by one Newton step.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

NEWTON_STEPS = 100
SEARCH_STEPS = 60


def nearest_l2(
    rows: Float[Array, "k d"],
    offsets: Float[Array, " k"],
    lower: Float[Array, " d"],
    upper: Float[Array, " d"],
) -> tuple[Float[Array, " k"], Float[Array, " d"]]:
    r"""The least step in l2 into half-spaces, inside a box, and its multipliers.

    Args:
        rows: the normals V; a row of zeros with a negative offset is as if absent.
        offsets: c in V delta >= c.
        lower: the least steps, at most 0; may be -inf.
        upper: the greatest steps, at least 0; may be inf.

    Returns:
        The multipliers lambda >= 0, and the step. Where no step is admissible, lambda is a
        direction in which the dual grows without end: it proves so by weak duality.

    Example:
        >>> V, c = jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.array([3.0, 4.0])
        >>> _, step = nearest_l2(V, c, jnp.full(2, -10.0), jnp.full(2, 10.0))
        >>> [round(x, 3) for x in step.tolist()]
        [3.0, 4.0]
    """
    # Unit rows and a unit distance to the farthest half-space make every tolerance relative.
    size = jnp.sqrt(jnp.sum(rows * rows, axis=1))
    size = jnp.where(size > 0, size, 1)
    v, c = rows / size[:, None], offsets / size
    reach = jnp.max(c)
    reach = jnp.where(reach > 0, reach, 1)
    c, low, high = c / reach, lower / reach, upper / reach
    tolerance = 64 * float(jnp.finfo(c.dtype).eps)

    def step_of(dual: Array) -> Array:
        return jnp.clip(dual @ v, low, high)

    def advance(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        dual, _, count = state
        direct = dual @ v
        step = jnp.clip(direct, low, high)
        gradient = c - v @ step
        free = (direct > low) & (direct < high)
        hessian = jnp.where(free, v, 0) @ v.T
        direction = _newton_direction(hessian, gradient, dual, tolerance)
        along = direction @ v
        ceiling = jnp.min(jnp.where(direction < 0, -dual / direction, jnp.inf))
        slope = direction @ gradient
        t, endless = _line_search(
            direct, along, direction @ c, low, high, slope, ceiling, tolerance
        )
        moved = jnp.maximum(dual + t * direction, 0)
        # The multiplier that stopped the step is 0, whatever rounding makes of it.
        moved = jnp.where((direction < 0) & (-dual / direction <= t), 0, moved)
        useful = (slope > 0) & jnp.any(moved != dual)
        wanted = jnp.where(dual > 0, jnp.abs(gradient), jnp.maximum(gradient, 0))
        done = (jnp.max(wanted) <= tolerance) | ~useful | endless
        dual = jnp.where(endless, direction, jnp.where(useful, moved, dual))
        return dual, done, count + 1

    start = (jnp.zeros_like(c), jnp.array(False), jnp.array(0))
    dual, _, _ = jax.lax.while_loop(
        lambda state: ~state[1] & (state[2] < NEWTON_STEPS), advance, start
    )
    return dual * reach / size, step_of(dual) * reach


class Search(NamedTuple):
    """A bracket of the maximum, a point in it, the slope there and what of it is accepted."""

    left: Float[Array, ""]
    right: Float[Array, ""]
    t: Float[Array, ""]
    value: Float[Array, ""]
    accepted: Float[Array, ""]
    tries: Int[Array, ""]


def _newton_direction(hessian: Array, gradient: Array, dual: Array, tolerance: float) -> Array:
    """Ascent on the multipliers that are positive or want to be; those at 0 do not fall."""
    # Large enough to keep the direction bounded where rows depend on each other.
    ridge = tolerance ** (2 / 3) * (1e-3 + jnp.trace(hessian))

    def solve(active: Array) -> Array:
        both = active[:, None] & active[None, :]
        matrix = jnp.where(both, hessian, 0) + jnp.diag(jnp.where(active, ridge, 1))
        return jnp.linalg.solve(matrix, jnp.where(active, gradient, 0))

    def drop(active: Array, _: None) -> tuple[Array, None]:
        direction = solve(active)
        return active & ~((dual <= 0) & (direction < 0)), None

    active = (dual > 0) | (gradient > tolerance)
    active, _ = jax.lax.scan(drop, active, None, length=2)
    direction = solve(active)
    return jnp.where((dual <= 0) & (direction < 0), 0, direction)


def _line_search(
    direct: Array,
    along: Array,
    gain: Array,
    low: Array,
    high: Array,
    slope: Array,
    ceiling: Array,
    tolerance: float,
) -> tuple[Array, Array]:
    """About the maximum along the direction, and whether there is none."""

    def derivative(t: Array) -> tuple[Array, Array]:
        terms = along * jnp.clip(direct + t * along, low, high)
        noise = tolerance * (jnp.abs(gain) + jnp.sum(jnp.abs(terms)))
        return gain - jnp.sum(terms), jnp.maximum(0.05 * slope, noise)

    def unfinished(state: Search) -> Array:
        rough = (jnp.abs(state.value) > state.accepted) & (state.left < state.right)
        blocked = (state.t >= ceiling) & (state.value >= 0)
        return rough & ~blocked & (state.tries < SEARCH_STEPS)

    def refine(state: Search) -> Search:
        ascending = state.value > 0
        left = jnp.where(ascending, state.t, state.left)
        right = jnp.where(ascending, state.right, state.t)
        t = jnp.where(jnp.isinf(right), 4 * state.t, (left + right) / 2)
        t = jnp.minimum(t, ceiling)
        return Search(left, right, t, *derivative(t), state.tries + 1)

    t = jnp.minimum(1.0, ceiling).astype(direct.dtype)
    start = Search(jnp.zeros_like(t), jnp.full_like(t, jnp.inf), t, *derivative(t), jnp.array(0))
    end = jax.lax.while_loop(unfinished, refine, start)
    endless = jnp.isinf(end.right) & (end.value > end.accepted) & jnp.isinf(ceiling) & (slope > 0)
    return end.t, endless
