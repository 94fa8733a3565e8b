r"""The pair radius for the l1 distance: exact for q = infinity, lower bounds for q = 1 and 2.

In the frame of the pair a coordinate's share of $|x - w_i|_1 - |x - w_j|_1$ is
$2\,\mathrm{clip}(x, 0, D) - D$: moving up by e gains
$g(e) = 2(\mathrm{clip}(a + e, 0, D) - \mathrm{clip}(a, 0, D))$, nothing up to 0, then twice the
step up to D and no more after. With one budget for all coordinates (q = infinity) the sum of gains
is a monotone piecewise-linear equation. For q = 1 and 2 the problem is NP-hard (theorem 2.7); the
concave envelopes of the gains make it a fractional knapsack and a one-dimensional concave dual.
What makes those tight is to let no coordinate go further than it would have to if it moved alone.
"""

import jax.numpy as jnp
from jax import lax

from jaxnpc.domains import Domain
from jaxnpc.pairwise import knapsack
from jaxnpc.pairwise.frame import PairRadius, Scalar, Vector, frame, moved
from jaxnpc.pairwise.search import crossing, newton_step

INF = float("inf")


def rho(z: Vector, w_i: Vector, w_j: Vector, *, q: float, domain: Domain) -> PairRadius:
    r"""The radius $\rho_1^q$ of one triple: exact for q = infinity (eq. 19), else a lower bound.

    Args:
        z: the point.
        w_i: the prototype that z is closer to.
        w_j: the other one.
        q: the norm of the perturbation: 1, 2 or infinity.
        domain: where adversarial points are sought.

    Returns:
        The radius, and a nearest tie (q = infinity) or an admissible point that flips the pair.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from jaxnpc.domains import Unbounded
        >>> z, w_i, w_j = jnp.zeros(2), jnp.zeros(2), jnp.array([1.0, 3.0])
        >>> jitted = jax.jit(rho, static_argnames="q")
        >>> [float(jitted(z, w_i, w_j, q=q, domain=Unbounded()).radius) for q in (1, float("inf"))]
        [2.0, 1.0]
    """
    sign, at, gap, room = frame(z, w_i, w_j, domain)
    # Beyond w_j nothing is gained.
    room = jnp.minimum(room, jnp.maximum(gap - at, 0))
    dead = jnp.minimum(jnp.maximum(-at, 0), room)
    start = jnp.clip(at, 0, gap)
    terms = gap - 2 * start
    need = jnp.sum(terms)
    gain = jnp.where(room > dead, 2 * (room - dead), 0)
    error = 8 * jnp.finfo(z.dtype).eps * jnp.sum(jnp.abs(terms) + gain)
    reached = jnp.sum(gain) >= need - error
    radius, step = _STEP[q](dead, room, gain, jnp.where(need > 0, need, 1))
    radius = jnp.where(need > 0, jnp.where(reached, radius, jnp.inf), 0)
    return PairRadius(radius, moved(z, sign, step, radius, domain))


def _step_inf(dead: Vector, room: Vector, gain: Vector, need: Scalar) -> tuple[Scalar, Vector]:
    def excess(radius: Scalar, dead: Vector, room: Vector, need: Scalar):
        moving = (radius >= dead) & (radius < room)
        gained = jnp.where(radius >= room, room - dead, jnp.maximum(radius - dead, 0))
        return jnp.sum(2 * gained) - need, jnp.sum(jnp.where(moving, 2.0, 0))

    info = jnp.finfo(need.dtype)
    fixed = lax.stop_gradient((dead, room, need))
    # Were all coordinates moving from the start, they would still need this much.
    start = jnp.maximum(fixed[2] / (2 * dead.size) * (1 - 4 * info.eps), info.tiny)
    radius = crossing(lambda t: excess(t, *fixed), start, jnp.max(fixed[1], initial=0))
    radius = newton_step(lambda t: excess(t, dead, room, need), radius)
    return radius, jnp.minimum(radius, room)


def _step_1(dead: Vector, room: Vector, gain: Vector, need: Scalar) -> tuple[Scalar, Vector]:
    # Coordinates without a dead stretch are as cheap as can be: all others share what they leave.
    rest = jnp.maximum(need - jnp.sum(jnp.where(dead > 0, 0, gain)), 0)
    gain = jnp.where(dead > 0, jnp.minimum(gain, rest), gain)
    room = jnp.where(dead > 0, jnp.minimum(room, dead + rest / 2), room)
    share = knapsack.cover(room, gain, need)
    # The true gain of a part lies below the envelope: it takes the dead stretch first.
    step = jnp.where(share > 0, dead + share * (room - dead), 0)
    return jnp.sum(share * room), step


def _step_2(dead: Vector, room: Vector, gain: Vector, need: Scalar) -> tuple[Scalar, Vector]:
    r"""The square root of $\max_\lambda [\lambda c + \sum_l \min_e (e^2 - \lambda g_l(e))]$."""

    def best(price: Scalar, dead: Vector, room: Vector) -> tuple[Vector, Vector]:
        step = jnp.clip(price, dead, room)
        return step, 2 * price * (step - dead) - step**2

    info = jnp.finfo(need.dtype)
    room = jnp.minimum(room, dead + need / 2)
    useful = lax.stop_gradient(room > dead)
    fixed = lax.stop_gradient((dead, room))
    still = lax.stop_gradient(need)

    def excess(price: Scalar) -> tuple[Scalar, Scalar]:
        step, worth = best(price, *fixed)
        taken = useful & (worth > 0)
        gained = jnp.sum(jnp.where(taken, 2 * (step - fixed[0]), 0))
        return gained - still, jnp.sum(jnp.where(taken & (step < fixed[1]), 2.0, 0))

    start = jnp.maximum(still / (2 * dead.size) * (1 - 4 * info.eps), info.tiny)
    # At this price every coordinate that can gain goes all the way.
    all_the_way = jnp.where(useful, fixed[1] ** 2 / jnp.where(useful, fixed[1] - fixed[0], 1), 0)
    stop = jnp.minimum(jnp.max(jnp.maximum(all_the_way, fixed[1])) * (1 + 8 * info.eps), info.max)
    price = crossing(excess, start, stop)

    # Coordinates on the verge of moving are worth nothing, but the fraction of them that meets the
    # need counts in the derivative; the witness needs them to move.
    step, worth = best(price, dead, room)
    verge = useful & (jnp.abs(worth) <= 32 * info.eps * step**2)
    taken = useful & ~verge & (worth > 0)
    gain = lax.stop_gradient(2 * (step - dead))
    rest = still - jnp.sum(jnp.where(taken, gain, 0))
    at_verge = jnp.sum(jnp.where(verge, gain, 0))
    fraction = jnp.clip(rest / jnp.where(at_verge > 0, at_verge, 1), 0, 1)
    share = jnp.where(taken, 1, jnp.where(verge, fraction, 0))
    value = price * need - jnp.sum(share * worth)
    radius = jnp.where(value > 0, jnp.sqrt(jnp.where(value > 0, value, 1)), 0)
    return radius, jnp.where(taken | verge, step, 0)


_STEP = {1: _step_1, 2: _step_2, INF: _step_inf}
