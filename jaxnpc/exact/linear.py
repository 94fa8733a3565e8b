r"""The nearest point in l1 or linf of a few half-spaces in a box: a dual simplex with long steps.

The duals are concave and piecewise linear in the multipliers, one to a few, with $v = V^T \lambda$:

$$q = 1: \max_{\lambda \ge 0} \lambda^T c - \sum_l \left[(v_l - 1)^+ u_l - (-v_l - 1)^+ l_l\right]
  \qquad
  q = \infty: \min e:\ \max_{\lambda \ge 0, \sum \lambda = 1}
  \lambda^T c - \sum_l \max(v_l \min(e, u_l), v_l \max(-e, l_l)) \le 0$$

Their kinks lie at v_l = +1 and -1, or at v_l = 0: the bounds of the d coordinates never become
rows. At a vertex as many kinks (or multipliers at 0) meet as there are multipliers; the primal
values of their coordinates follow from a small linear system and say which one to leave. A step
passes all the kinks at which the dual still ascends. For q = inf the radius e is raised along, by
Newton's method: the largest one at which the present multipliers still prove infeasibility.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

RADIUS_STEPS = 3
SELECTIONS = 10


class Vertex(NamedTuple):
    """Where the simplex stands.

    Attributes:
        dual: the multipliers.
        active: the k kinks or constraints that meet there: l or d + l for a kink of coordinate l,
            then one for each multiplier at 0, then one for the sum of the multipliers (q = inf).
        right: on which side of each kink v lies; what it says of active ones is of no account.
        radius: the radius proved so far (q = inf).
        step: the primal values.
        seen: the number of vertices so far.
        done: whether to stop.
    """

    dual: Float[Array, " k"]
    active: Int[Array, " k"]
    right: Bool[Array, " m"]
    radius: Float[Array, ""]
    step: Float[Array, " d"]
    seen: Int[Array, ""]
    done: Bool[Array, ""]


class Kinks(NamedTuple):
    """All that may be active, kinks first, then multipliers, then their sum.

    Attributes:
        gradients: of each with respect to the multipliers.
        places: the value that each is active at.
        left: the least primal value that is optimal when active; for a kink the value on its left.
        right: the greatest one.
    """

    gradients: Float[Array, "m+k+1 k"]
    places: Float[Array, " m+k+1"]
    left: Float[Array, " m+k+1"]
    right: Float[Array, " m+k+1"]


@partial(jax.jit, static_argnames=("maximum", "limit"))
def nearest_linear(
    rows: Float[Array, "k d"],
    offsets: Float[Array, " k"],
    lower: Float[Array, " d"],
    upper: Float[Array, " d"],
    maximum: bool,
    limit: int = 1000,
) -> tuple[Float[Array, " k"], Float[Array, " d"]]:
    r"""The least step into half-spaces, inside a box, and its multipliers.

    Args:
        rows: the normals V; a row of zeros with a negative offset is as if absent, but the first
            row is a proper one.
        offsets: c in V delta >= c.
        lower: the least steps, at most 0; may be -inf.
        upper: the greatest steps, at least 0; may be inf.
        maximum: whether the norm is linf, else l1.
        limit: the greatest number of vertices.

    Returns:
        The multipliers lambda >= 0, and the step. Where no step is admissible, or the limit is
        reached, the multipliers still prove something by weak duality.

    Example:
        >>> V, c = jnp.array([[1.0, 2.0], [1.0, -0.5]]), jnp.array([2.0, 0.0])
        >>> _, step = nearest_linear(V, c, jnp.full(2, -10.0), jnp.full(2, 10.0), maximum=False)
        >>> [round(x, 3) for x in step.tolist()]
        [0.4, 0.8]
    """
    # Unit rows, and a step of about one where the first half-spaces are met, make every tolerance
    # relative. The room of an unbounded coordinate need only be larger than any step.
    size = jnp.max(jnp.abs(rows), axis=1)
    size = jnp.where(size > 0, size, 1)
    v, c = rows / size[:, None], offsets / size
    dual_norm = jnp.sum(jnp.abs(v), axis=1) if maximum else jnp.ones_like(c)
    reach = jnp.max(c / jnp.where(dual_norm > 0, dual_norm, 1))
    reach = jnp.where(reach > 0, reach, 1)
    huge = 1 / jnp.finfo(v.dtype).eps
    c = c / reach
    low, high = jnp.maximum(lower / reach, -huge), jnp.minimum(upper / reach, huge)
    start = _start(v, c, low, high, maximum)
    advance = partial(_advance, v, c, low, high, maximum)
    end = jax.lax.while_loop(lambda s: ~s.done & (s.seen < limit), advance, start)
    return end.dual / size, end.step * reach


def _start(v: Array, c: Array, low: Array, high: Array, maximum: bool) -> Vertex:
    k, d = v.shape
    kinks = d if maximum else 2 * d
    at_zero = kinks + jnp.arange(k)
    dual = jnp.zeros_like(c)
    if maximum:
        # The first multiplier is 1, all the others 0.
        dual = dual.at[0].set(1)
        radius = _raise(jnp.zeros_like(c[0]), v[0], c[0], low, high, steps=40)
        active, right = at_zero.at[0].set(kinks + k), v[0] > 0
    else:
        radius = jnp.zeros_like(c[0])
        active, right = at_zero, jnp.arange(kinks) >= d
    step = jnp.zeros_like(low)
    return Vertex(dual, active, right, radius, step, jnp.array(0), jnp.array(False))


def _raise(e: Array, v: Array, c: Array, low: Array, high: Array, steps: int) -> Array:
    # The gain is concave in e, so that Newton from the left stays left of the root.
    room = jnp.where(v > 0, high, -low)
    a = jnp.abs(v)

    def newton(_: int, e: Array) -> Array:
        short = c - jnp.sum(a * jnp.minimum(e, room))
        slope = jnp.sum(jnp.where(room > e, a, 0))
        move = short / slope
        return jnp.where((short > 0) & jnp.isfinite(move), e + move, e)

    return jax.lax.fori_loop(0, steps, newton, e)


def _kinks(v: Array, low: Array, high: Array, radius: Array, maximum: bool) -> Kinks:
    k = len(v)
    eye, one, none = jnp.eye(k, dtype=v.dtype), jnp.ones(k, v.dtype), jnp.zeros(k, v.dtype)
    end = jnp.full(1, jnp.inf, v.dtype)
    if maximum:
        gradients = [v.T]
        places = jnp.zeros_like(low)
        left, right = jnp.maximum(low, -radius), jnp.minimum(high, radius)
    else:
        gradients = [v.T, v.T]
        places = jnp.concatenate([jnp.ones_like(low), -jnp.ones_like(low)])
        zero = jnp.zeros_like(low)
        left, right = jnp.concatenate([zero, low]), jnp.concatenate([high, zero])
    return Kinks(
        jnp.concatenate([*gradients, eye, one[None]]),
        jnp.concatenate([places, none, one[:1]]),
        jnp.concatenate([left, jnp.full(k, -jnp.inf, v.dtype), -end]),
        jnp.concatenate([right, none, end]),
    )


def _advance(v: Array, c: Array, low: Array, high: Array, maximum: bool, at: Vertex) -> Vertex:
    k, d = v.shape
    tolerance = 1e4 * jnp.finfo(v.dtype).eps
    radius = at.radius
    if maximum:
        radius = _raise(radius, at.dual @ v, at.dual @ c, low, high, RADIUS_STEPS)
    kinks = _kinks(v, low, high, radius, maximum)
    count = len(kinks.places) - k - 1

    # The primal values: those of the other kinks from their sides, the rest from the rows.
    chosen = jnp.where(at.right, kinks.right[:count], kinks.left[:count])
    chosen = chosen.at[at.active].set(0, mode="drop")
    fixed = chosen.reshape(-1, d).sum(axis=0)
    inverse = jnp.linalg.inv(kinks.gradients[at.active])
    primal = (c - v @ fixed) @ inverse
    coordinate = jnp.where(at.active < count, at.active % d, d)
    step = fixed.at[coordinate].add(primal, mode="drop")

    # Which one to leave: the steepest ascent.
    over, under = primal - kinks.right[at.active], kinks.left[at.active] - primal
    length = jnp.sqrt(jnp.sum(inverse * inverse, axis=0))
    excess = jnp.maximum(over, under)
    excess = jnp.where(excess > tolerance, excess / length, -1)
    leaving = jnp.argmax(excess)
    rising = over[leaving] >= under[leaving]
    direction = jnp.where(rising, 1, -1) * inverse[:, leaving] / length[leaving]
    optimal = excess[leaving] <= 0

    # How far: past all kinks at which the slope remains positive.
    along = kinks.gradients[: count + k] @ direction
    distance = kinks.places[: count + k] - kinks.gradients[: count + k] @ at.dual
    basic = jnp.zeros(len(kinks.places), bool).at[at.active].set(True)[: count + k]
    right = jnp.concatenate([at.right, jnp.ones(k, bool)])
    small = 64 * jnp.finfo(v.dtype).eps
    ahead = jnp.where(right, along < -small, along > small) & ~basic
    times = jnp.where(ahead, jnp.maximum(distance / along, 0), jnp.inf)
    jump = jnp.abs(along) * (kinks.right - kinks.left)[: count + k]
    passed = _select(times, jump, excess[leaving])
    next_time = jnp.where(passed, jnp.inf, times)
    entering = jnp.argmin(next_time)
    t = next_time[entering]
    endless = jnp.isinf(t)

    side = jnp.where(passed[:count], ~at.right, at.right)
    side = side.at[at.active[leaving]].set(rising, mode="drop")
    dual = at.dual + jnp.where(endless, 0, t) * direction
    active = at.active.at[leaving].set(entering)
    moved = Vertex(dual, active, side, radius, step, at.seen + 1, jnp.array(False))
    settled = radius <= at.radius * (1 + 4 * jnp.finfo(v.dtype).eps)
    stop = optimal & (settled if maximum else True) | (endless & ~optimal)
    stay = at._replace(
        dual=jnp.where(endless & ~optimal & (not maximum), jnp.maximum(direction, 0), at.dual),
        radius=radius,
        step=step,
        seen=at.seen + 1,
        done=stop,
    )
    return jax.tree.map(lambda a, b: jnp.where(optimal | endless, a, b), stay, moved)


def _select(times: Array, jump: Array, slope: Array) -> Array:
    """Which kinks to pass: all up to a time after which the slope is still positive.

    A weighted quickselect: sorting the kinks would cost more than all the rest.
    """
    finite = jnp.isfinite(jump) & jnp.isfinite(times)
    stop = jnp.min(jnp.where(jnp.isfinite(jump), jnp.inf, times))

    def narrow(_: int, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        inside = finite & (times > low) & (times < high)
        weight = jnp.where(inside, jump, 0)
        total = jnp.sum(weight)
        middle = jnp.sum(jnp.where(inside, weight * times, 0)) / total
        left = slope - jnp.sum(jnp.where(finite & (times <= middle), jump, 0))
        good = total > 0
        low = jnp.where(good & (left > 0), middle, low)
        return low, jnp.where(good & (left <= 0), middle, high)

    low, _ = jax.lax.fori_loop(0, SELECTIONS, narrow, (-jnp.ones_like(slope), stop))
    return times <= low
