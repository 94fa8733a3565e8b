r"""Whether a ball inside the box can reach a half-space: no, proved in the device's precision.

The largest $\langle v, \delta \rangle$ over $|\delta|_q \le t$ and the box is bounded, with a = |v|
and u the room to the wall, by

$$q = \infty: \sum_l a_l \min(t, u_l), \qquad
  q = 2: \sum_l \max_{0 \le e \le u_l} \Bigl(a_l e - \frac{e^2}{2 \mu}\Bigr) + \frac{t^2}{2 \mu},
  \qquad q = 1: \tau t + \sum_l (a_l - \tau)^+ u_l$$

for any positive multiplier (weak duality). Sums of non-negative terms round little, and where even
the bound enlarged by that falls short of c, the radius of the pair exceeds t: one pass over the
coordinates that saves computing, and proving, the radius itself.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxnpc.distances import rounding
from jaxnpc.domains import Box


def beyond(
    z: Float[Array, "n d"],
    normal: Float[Array, "n d"],
    need: Float[Array, " n"],
    t: Float[Array, " n"],
    domain: Box,
    error: Float[Array, "2"],
    *,
    q: float,
) -> Bool[Array, " n"]:
    r"""Whether a half-space of the box is certainly farther than t from a point.

    Args:
        z: n points.
        normal: v of the half-spaces $\langle v, x - z \rangle \ge c$.
        need: lower bounds of c.
        t: radii.
        domain: the box.
        error: by how much a coordinate of v, and of a room to a wall, may be off.
        q: the norm of the ball: 1, 2 or infinity.

    Returns:
        True only where it is proved.
    """
    eps = float(jnp.finfo(z.dtype).eps)
    speed = jnp.abs(normal) * (1 + 2 * eps) + error[0]
    up, down = domain.room(z, jnp.ones_like(z)), domain.room(z, -jnp.ones_like(z))
    room = jnp.where(normal > 0, up, down)
    room = jnp.where(jnp.abs(normal) <= error[0], jnp.maximum(up, down), room)
    room = room * (1 + 2 * eps) + error[1]
    gain = jax.vmap(_GAINS[q])(speed, room, t)
    # Compared so that NaN proves nothing.
    return (t > 0) & (gain * (1 + rounding(z.shape[1] + 16, z.dtype)) < need)


def _gain_inf(a: Float[Array, " d"], u: Float[Array, " d"], t: Float[Array, ""]) -> Array:
    return jnp.sum(a * jnp.minimum(t, u))


def _gain_2(a: Float[Array, " d"], u: Float[Array, " d"], t: Float[Array, ""]) -> Array:
    def enlarge(_: int, mu: Array) -> Array:
        # mu such that the steps min(mu a, u) have length t, if the same ones reach the wall.
        wall = mu * a >= u
        rest = t * t - jnp.sum(jnp.where(wall, u * u, 0))
        free = jnp.sum(jnp.where(wall, 0, a * a))
        good = (rest > 0) & (free > 0)
        return jnp.where(good, jnp.sqrt(jnp.where(good, rest / free, 1)), mu)

    mu = jax.lax.fori_loop(0, 4, enlarge, t / jnp.sqrt(jnp.sum(a * a)))
    step = jnp.minimum(mu * a, u)
    return jnp.sum(step * (a - step / (2 * mu))) + t * t / (2 * mu)


def _gain_1(a: Float[Array, " d"], u: Float[Array, " d"], t: Float[Array, ""]) -> Array:
    def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) / 2
        wide = jnp.sum(jnp.where(a > middle, u, 0)) > t
        return jnp.where(wide, middle, low), jnp.where(wide, high, middle)

    _, tau = jax.lax.fori_loop(0, 12, halve, (jnp.zeros_like(t), jnp.max(a)))
    rest = jnp.where(a > tau, (a - tau) * u, 0)
    return tau * t + jnp.sum(rest)


_GAINS = {1: _gain_1, 2: _gain_2, math.inf: _gain_inf}


@partial(jax.jit, static_argnames="q")
def pairs_beyond(
    z: Float[Array, "B d"],
    normals: Float[Array, "K d"],
    low: Float[Array, "B K"],
    high: Float[Array, "B own"],
    members: Array,
    row: Array,
    j: Array,
    i: Array,
    t: Float[Array, " P"],
    domain: Box,
    error: Float[Array, "2"],
    *,
    q: float,
) -> Bool[Array, " P"]:
    """`beyond` for P pairs: points `row`, rivals j, own prototypes by their position i."""
    need = (low[row, j] - high[row, i]) / 2
    return beyond(z[row], normals[j] - normals[members[i]], need, t, domain, error, q=q)
