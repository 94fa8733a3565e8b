r"""One half-space in a box: the multiplier, found on the device, and the bound, proved on the host.

The nearest point of $\{\delta : \langle v, \delta \rangle \ge c,\ -u^- \le \delta \le u^+\}$ is a
one-dimensional problem in every norm. By weak duality it bounds the problem with many rows too,
through any non-negative combination v, c of them: all that is ever proved goes through `prove`.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Numbers = np.ndarray[Any, np.dtype[np.float64]]

# One rounding in float64, generously; sums of d terms take d of them.
ROUNDING = 2.0**-52
# Below this, products may lose digits to underflow: nothing is claimed there.
SMALLEST = 1e-270
NEWTON_STEPS, BISECTIONS = 40, 26
# Bytes of a float64 temporary that should stay in cache.
CACHE = 2**18


@partial(jax.jit, static_argnames="q")
def multiplier(
    v: Float[Array, "n d"], c: Float[Array, " n"], room: Float[Array, "n d"], q: float
) -> Float[Array, " n"]:
    r"""The parameter t of the nearest point of a half-space in a box, in the arithmetic of v.

    The coordinates move in the direction of v, by $\min(t |v_l|, u_l)$ for q = 2, by
    $\min(t, u_l)$ for q = inf, and by $u_l$ where $|v_l| > t$ for q = 1, until
    $\langle v, \delta \rangle = c$.

    Args:
        v: the normals of n half-spaces.
        c: how far z is from satisfying <v, delta> >= c.
        room: how far each coordinate can move in the direction of v; may be infinite.
        q: 1, 2 or infinity.

    Returns:
        t for each; infinite (q = 2, inf) or 0 (q = 1) where the whole room does not suffice.
    """
    a = jnp.abs(v)
    return _threshold(a, c, room) if q == 1 else _newton(a, c, room, a if q == 2 else 1.0)


def _newton(a: Array, c: Array, room: Array, rate: Array | float) -> Array:
    # phi(t) = sum a min(rate t, room) is concave and increasing, so that Newton from the left
    # never passes the root.
    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        t, _, count = state
        reach = rate * t[:, None]
        short = c - jnp.sum(a * jnp.minimum(reach, room), axis=1)
        slope = jnp.sum(jnp.where(reach < room, a * rate, 0), axis=1)
        move = jnp.where(short > 0, short / slope, 0)
        t_new = jnp.where(jnp.isfinite(move), t + move, t)
        return t_new, jnp.where((slope == 0) & (short > 0), jnp.inf, t_new), count + 1

    def unfinished(state: tuple[Array, Array, Array]) -> Array:
        return state[2] < NEWTON_STEPS

    def advance(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        t, found, count = step(state)
        return t, found, jnp.where(jnp.any(t > state[0]), count, NEWTON_STEPS)

    start = jnp.zeros_like(c)
    return jax.lax.while_loop(unfinished, advance, (start, start, jnp.array(0)))[1]


def _threshold(a: Array, c: Array, room: Array) -> Array:
    def halve(_: Array, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        middle = (low + high) / 2
        gain = jnp.sum(jnp.where(a > middle[:, None], a * room, 0), axis=1)
        return jnp.where(gain >= c, middle, low), jnp.where(gain >= c, high, middle)

    most = jnp.max(a, axis=1)
    return jax.lax.fori_loop(0, BISECTIONS, halve, (jnp.zeros_like(most), most))[1]


def prove(
    v: Float[np.ndarray, "n d"],
    error: Float[np.ndarray, "n d"],
    c: Float[np.ndarray, " n"],
    lower: Float[np.ndarray, "n d"],
    upper: Float[np.ndarray, "n d"],
    t: Float[np.ndarray, " n"],
    q: float,
) -> Float[np.ndarray, " n"]:
    r"""Lower bounds of the q-norm of every step into a half-space that stays in the box.

    For every admissible $\delta$ and t (weak duality), with $a = |v|$ and B any set of coordinates

    $$q = \infty: |\delta| \ge \frac{c - \sum_B a_l u_l}{\sum_{\bar B} a_l}, \quad
      q = 2: \tfrac12 |\delta|^2 \ge t c - \sum_l \max_{0 \le x \le u_l} (t a_l x - x^2 / 2), \quad
      q = 1: |\delta| \ge \frac1t \Bigl[c - \sum_l (a_l - t)^+ u_l\Bigr]$$

    The quality depends on t, the truth does not: it may come from float32. Every sum is taken in
    float64 and moved outwards by its a-priori error.

    Args:
        v: the normals.
        error: bounds of the error of each coordinate of v.
        c: lower bounds of the offsets.
        lower: the least steps that stay in the box, at most 0, exact to one rounding.
        upper: the greatest steps, at least 0, likewise.
        t: the parameters, as from `multiplier`.
        q: 1, 2 or infinity.

    Returns:
        The bounds; infinite where the box and the half-space are proved disjoint, 0 where nothing
        is proved.
    """
    slack = (v.shape[1] + 8) * ROUNDING
    a = (np.abs(v) + error) * (1 + ROUNDING)
    room = np.where(v > 0, upper, -lower)
    if np.any(unsure := (np.abs(v) <= error) & (error > 0)):
        room = np.where(unsure, np.maximum(upper, -lower), room)
    room = room * (1 + ROUNDING)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        bound = _BOUNDS[q](a, c, room, t, slack) * (1 - 8 * ROUNDING)
        # 0 times an infinite room is 0: such a coordinate helps nobody.
        whole = np.sum(np.where(a > 0, a * room, 0), axis=1) * (1 + slack)
    bound = np.where(whole < c, np.inf, np.fmax(bound, 0))
    return np.where(c > SMALLEST, bound, 0)


def _bound_max(a: Numbers, c: Numbers, room: Numbers, t: Numbers, slack: float) -> Numbers:
    full = room <= t[:, None]
    walls = np.sum(np.where(full, a * room, 0), axis=1) * (1 + slack)
    free = np.sum(np.where(full, 0, a), axis=1) * (1 + slack)
    return np.where(c > walls, (c - walls) / free, 0)


def _bound_euclid(a: Numbers, c: Numbers, room: Numbers, t: Numbers, slack: float) -> Numbers:
    x = a * t[:, None]
    loss = np.where(x > room, room * (x - room / 2), x * x / 2).sum(axis=1)
    # The two terms may nearly cancel: the error is that of the larger one.
    value = t * c * (1 - slack) - loss * (1 + slack)
    return np.sqrt(np.maximum(2 * value, 0))


def _bound_sum(a: Numbers, c: Numbers, room: Numbers, t: Numbers, slack: float) -> Numbers:
    # The bound is piecewise linear in 1/t: best at a coordinate, and a little above it, so that
    # rounding does not pay the coordinate's room. An infinite room may not be paid at all.
    nearest = np.take_along_axis(a, np.abs(a - t[:, None]).argmin(axis=1)[:, None], axis=1)[:, 0]
    forced = np.where(np.isinf(room), a, 0).max(axis=1)
    t = np.maximum(nearest, forced) * (1 + 4 * ROUNDING)
    excess = np.maximum(a * (1 + ROUNDING) - t[:, None], 0)
    paid = np.sum(np.where(excess > 0, excess * room, 0), axis=1) * (1 + slack)
    return np.where(c > paid, (c - paid) / t, 0)


_BOUNDS = {1: _bound_sum, 2: _bound_euclid, math.inf: _bound_max}
