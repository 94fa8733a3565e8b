r"""The pair radius for the l2 distance: the way to a half-space, in R^d or inside the box.

$|x - w_i|_2 \ge |x - w_j|_2$ is linear in x: $\langle v, x - z\rangle \ge c$ with $v = w_j - w_i$
and $c = (|z - w_j|^2 - |z - w_i|^2) / 2$ (eq. 12). In the box only steps towards the half-space
help, each coordinate until its wall: a concave piecewise-linear equation in one multiplier for
q = 2 and infinity, a fractional knapsack for q = 1.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxnpc.domains import Domain, Unbounded
from jaxnpc.pairwise import knapsack
from jaxnpc.pairwise.frame import PairRadius, Scalar, Vector, moved
from jaxnpc.pairwise.search import crossing, newton_step

INF = float("inf")


def rho(z: Vector, w_i: Vector, w_j: Vector, *, q: float, domain: Domain) -> PairRadius:
    r"""The exact radius $\rho_2^q$ of one triple (eq. 13, and its extension to the box).

    Args:
        z: the point.
        w_i: the prototype that z is closer to.
        w_j: the other one.
        q: the norm of the perturbation: 1, 2 or infinity.
        domain: where adversarial points are sought.

    Returns:
        The radius and a nearest point of the half-space.

    Example:
        >>> import jax.numpy as jnp
        >>> rho(jnp.zeros(2), jnp.zeros(2), jnp.array([0.0, 2.0]), q=2, domain=Unbounded()).radius
        Array(1., dtype=float32)
    """
    normal = w_j - w_i
    terms = normal * ((w_i - z) + (w_j - z)) / 2
    slack = 8 * jnp.finfo(z.dtype).eps * jnp.sum(jnp.abs(terms))
    return half_space(z, normal, jnp.sum(terms), q=q, domain=domain, slack=slack)


def half_space(
    z: Vector, normal: Vector, need: Scalar, *, q: float, domain: Domain, slack: Scalar | float = 0
) -> PairRadius:
    r"""The q-distance of z from the half-space $\langle v, x - z\rangle \ge c$ in the domain.

    Args:
        z: the point.
        normal: v, zero in directions that do not matter.
        need: c; the distance is 0 where it is not positive.
        q: 1, 2 or infinity.
        domain: where x is sought.
        slack: the rounding error of `need`. The half-space is out of reach only if the reach of the
            domain falls short by more.

    Returns:
        The distance and a nearest point.
    """
    if isinstance(domain, Unbounded):
        radius, step = _FREE[q](jnp.abs(normal), jnp.maximum(need, 0))
        reached = radius < jnp.inf
    else:
        speed = jnp.abs(normal)
        room = domain.room(z, normal)
        # One coordinate alone never needs to go further than need / speed.
        alone = jnp.where(speed > 0, jnp.maximum(need, 0) / jnp.where(speed > 0, speed, 1), 0)
        room = jnp.minimum(room, alone)
        reach = jnp.sum(speed * room)
        reached = reach >= need * (1 - 8 * jnp.finfo(z.dtype).eps) - slack
        radius, step = _BOXED[q](speed, room, jnp.where(need > 0, need, 1))
    radius = jnp.where(need > 0, jnp.where(reached, radius, jnp.inf), 0)
    return PairRadius(radius, moved(z, jnp.sign(normal), step, radius, domain))


def _free_1(speed: Vector, need: Scalar) -> tuple[Scalar, Vector]:
    best = jnp.argmax(speed)
    radius = _divide(need, speed[best])
    return radius, jnp.where(jnp.arange(speed.size) == best, radius, 0)


def _free_2(speed: Vector, need: Scalar) -> tuple[Scalar, Vector]:
    # Scaled, so that no square under- or overflows.
    scale = lax.stop_gradient(jnp.max(speed))
    unit = speed / jnp.where(scale > 0, scale, 1)
    size = _safe_sqrt(jnp.sum(unit**2))
    radius = _divide(_divide(need, scale), size)
    return radius, radius * unit / jnp.where(size > 0, size, 1)


def _free_inf(speed: Vector, need: Scalar) -> tuple[Scalar, Vector]:
    radius = _divide(need, jnp.sum(speed))
    return radius, jnp.where(speed > 0, radius, 0)


def _boxed_1(speed: Vector, room: Vector, need: Scalar) -> tuple[Scalar, Vector]:
    step = room * knapsack.cover(room, speed * room, need)
    return jnp.sum(step), step


def _boxed_2(speed: Vector, room: Vector, need: Scalar) -> tuple[Scalar, Vector]:
    # In units of the largest speed the multiplier is a length.
    scale = lax.stop_gradient(jnp.max(speed))
    scale = jnp.where(scale > 0, scale, 1)
    unit, need = speed / scale, need / scale
    start = need / jnp.maximum(jnp.sum(unit**2), 1)
    walls = jnp.where(unit > 0, room / jnp.where(unit > 0, unit, 1), 0)
    stop = jnp.minimum(jnp.max(walls), jnp.finfo(unit.dtype).max)

    def gain(multiplier: Scalar, unit: Vector, room: Vector, need: Scalar):
        free = unit * multiplier < room
        step = jnp.where(free, unit * multiplier, room)
        return jnp.sum(unit * step) - need, jnp.sum(jnp.where(free, unit**2, 0))

    multiplier = _root(gain, start, stop, unit, room, need)
    step = jnp.minimum(unit * multiplier, room)
    return _safe_sqrt(jnp.sum(step**2)), step


def _boxed_inf(speed: Vector, room: Vector, need: Scalar) -> tuple[Scalar, Vector]:
    def gain(radius: Scalar, speed: Vector, room: Vector, need: Scalar):
        free = radius < room
        step = jnp.where(free, radius, room)
        return jnp.sum(speed * step) - need, jnp.sum(jnp.where(free, speed, 0))

    total = jnp.sum(speed)
    start = need / jnp.where(total > 0, total, 1)
    radius = _root(gain, start, jnp.max(room), speed, room, need)
    return radius, jnp.minimum(radius, room)


def _root(function: Callable[..., Any], start: Scalar, stop: Scalar, *data: Array) -> Scalar:
    """The crossing of function(t, *data) from `start` on, with its gradient."""
    frozen = lax.stop_gradient((start, stop, data))
    start, stop, fixed = frozen
    start = jnp.maximum(start * (1 - 4 * jnp.finfo(start.dtype).eps), jnp.finfo(start.dtype).tiny)
    t = crossing(lambda t: function(t, *fixed), start, stop)
    return newton_step(lambda t: function(t, *data), t)


def _divide(x: Scalar, y: Scalar) -> Scalar:
    return jnp.where(y > 0, x / jnp.where(y > 0, y, 1), jnp.where(x > 0, jnp.inf, 0))


def _safe_sqrt(x: Scalar) -> Scalar:
    # The select before the root keeps its infinite derivative at 0 out of the gradient.
    return jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1)), 0)


_FREE = {1: _free_1, 2: _free_2, INF: _free_inf}
_BOXED = {1: _boxed_1, 2: _boxed_2, INF: _boxed_inf}
