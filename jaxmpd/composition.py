r"""The prediction along a direction of one unit two layers before the output, in closed form.

The layer behind sees one moving number, $f(a_s(t))$ with $a_s(t) = z_s + t u_s$. In it the
pre-activations of that layer are affine, $g_{sk} = z_{sk} + w_k (f(a_s(t)) - f(z_s))$; on each of
the K + 1 pieces of f each meets its own kinks at most once. A crossing is told by comparing the
pre-activation at both ends of a piece with the kink, the same comparison for both pieces that share
an end: rounding can move a knot but not lose one.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxmpd.activations import PiecewiseLinear
from jaxmpd.curves import Curves
from jaxmpd.piecewise import crossings
from jaxmpd.primitives import argsort, dot


def unit_curves_through(
    prediction: Float[Array, "S dN"],
    z: Float[Array, " S"],
    u: Float[Array, " S"],
    inner: Float[Array, "S d"],
    weights: Float[Array, " d"],
    outgoing: Float[Array, "d dN"],
    activation: PiecewiseLinear,
) -> Curves:
    """One unit moves one layer further back: its own K knots and those of the layer behind it.

    On piece p of f the unit's value runs from one level to the next, and a pre-activation of the
    layer behind crosses those kinks that lie between its values at both.

    Args:
        prediction: of S samples.
        z: the unit's pre-activations.
        u: their rates of change.
        inner: the d pre-activations of the layer behind.
        weights: of that layer for the unit.
        outgoing: the last layer's kernel.
        activation: f, with K kinks.

    Returns:
        Curves with K + K d knots a sample if f is monotone, K + (K + 1) K d otherwise.
    """
    f = activation
    speed = jnp.abs(u)[:, None]
    met, passed = crossings(f, z, u)
    ends = _patterns(f, f(z)[:, None], inner, weights)

    # The unit's own kinks scale the slopes of all of the layer behind.
    knots, bends = [met.T], []
    for k in range(len(f.kinks)):
        slopes = slope_on(f, ends[k + 1], inner.shape, z.dtype) * weights
        rise = jnp.where(jnp.isfinite(met[k])[:, None], (f.slopes[k + 1] - f.slopes[k]) * speed, 0)
        bends.append((rise * dot(slopes, outgoing))[:, None])

    # The kinks behind, met on each piece, and which of them lie behind at the origin.
    piece = jnp.sum(passed, axis=0)
    jumps = jnp.diff(jnp.asarray(f.slopes, z.dtype))[:, None, None]
    now = ends[0]
    times: list[Array] = []
    sizes: list[Array] = []
    for p, slope in enumerate(f.slopes):
        t = _meetings(f, p, z, u, inner, weights)
        first, last = (
            jnp.where((u > 0)[:, None], *pair) for pair in (ends[p : p + 2], ends[p : p + 2][::-1])
        )
        crossed = (first != last) & (u != 0)[:, None]
        now = jnp.where((piece == p)[:, None], jnp.where(crossed & (t > 0), first, last), now)
        crossed = crossed & jnp.isfinite(t)
        times.append(jnp.where(crossed, t, jnp.inf))
        sizes.append(jnp.where(crossed, jumps * jnp.abs(slope * weights) * speed, 0))
    if f.monotone:  # met at most once on all pieces together
        times, sizes = [jnp.min(jnp.stack(times), axis=0)], [jnp.sum(jnp.stack(sizes), axis=0)]
    for time, size in zip(times, sizes, strict=True):
        knots += list(time)
        bends += [one[:, :, None] * outgoing for one in size]

    rate = slope_on(f, passed, z.shape, z.dtype) * u
    slopes = slope_on(f, now, inner.shape, z.dtype) * weights
    none = jnp.zeros((len(z), 0, outgoing.shape[1]), z.dtype)
    return sort_curves(
        Curves(
            prediction,
            rate[:, None] * dot(slopes, outgoing),
            jnp.concatenate(knots, axis=1),
            jnp.concatenate([none, *bends], axis=1),
        )
    )


def _patterns(
    f: PiecewiseLinear,
    now: Float[Array, "S 1"],
    inner: Float[Array, "S d"],
    weights: Float[Array, " d"],
) -> list[Bool[Array, "K S d"]]:
    """Which kinks the layer behind is beyond when f has its value at each of its kinks.

    Left and right of them stand the values at infinity. The ends of a flat piece are one value, so
    that nothing is met between them.
    """
    lines = zip(f.slopes, f.kinks, f.offsets, strict=False)
    levels = [slope * kink + offset for slope, kink, offset in lines]
    outer = [math.copysign(math.inf, side * f.slopes[end]) for side, end in ((-1, 0), (1, -1))]
    levels = [outer[0], *levels, outer[1]]
    for p, slope in enumerate(f.slopes):
        if slope == 0:
            level = levels[p] if p > 0 else levels[1] if f.kinks else f.offsets[0]
            levels[p] = levels[p + 1] = level
    kinks = jnp.asarray(f.kinks, inner.dtype)[:, None, None]
    still = weights == 0
    moves = (jnp.where(still, 0, jnp.where(still, 1, weights) * (v - now)) for v in levels)
    return [inner + move >= kinks for move in moves]


def _meetings(
    f: PiecewiseLinear,
    p: int,
    z: Float[Array, " S"],
    u: Float[Array, " S"],
    inner: Float[Array, "S d"],
    weights: Float[Array, " d"],
) -> Float[Array, "K S d"]:
    """Where on piece p of f the layer behind meets its kinks, if it does; within the piece."""
    kinks = jnp.asarray(f.kinks, z.dtype)[:, None, None]
    if f.slopes[p] == 0:
        return jnp.full((len(f.kinks), *inner.shape), jnp.inf, z.dtype)
    value = f(z)[:, None] + (kinks - inner) / jnp.where(weights == 0, 1, weights)
    lo, hi = [-math.inf, *f.kinks, math.inf][p : p + 2]
    a = jnp.clip((value - f.offsets[p]) / f.slopes[p], lo, hi)
    return (a - z[:, None]) / jnp.where(u == 0, 1, u)[:, None]


def slope_on(
    activation: PiecewiseLinear,
    beyond: Sequence[Array] | Array,
    shape: tuple[int, ...],
    dtype: Any,
) -> Array:
    """The activation's slope where these kinks lie behind."""
    slope = jnp.full(shape, activation.slopes[0], dtype)
    for k, passed in enumerate(beyond):
        slope = jnp.where(passed, activation.slopes[k + 1], slope)
    return slope


def sort_curves(curves: Curves) -> Curves:
    """The same curves with their knots in ascending order."""
    order = jax.vmap(argsort)(curves.knots)
    return curves._replace(
        knots=jnp.take_along_axis(curves.knots, order, axis=1),
        bends=jnp.take_along_axis(curves.bends, order[:, :, None], axis=1),
    )
