"""What the device does for an l2 classifier: bounds on R^d for all rivals, multipliers of rows."""

import math
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxnpc.distances import DUAL, pairwise, rounding
from jaxnpc.exact.halfspace import multiplier


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Device:
    """The classifier on the device: centred, of size one, in float32.

    Attributes:
        u: U' of the prototypes, divided by `scale` and a bound of the norm of A^T A.
        w: the centred prototypes, divided by `scale`.
        b: half their inner products.
        labels: their classes.
        size: upper bounds of the l2 norms of u.
        b_size: of the absolute values of b.
        w_size: of the l2 norms of w.
        scale: the largest centred coordinate.
    """

    u: Float[Array, "K d"]
    w: Float[Array, "K d"]
    b: Float[Array, " K"]
    labels: Int[Array, " K"]
    size: Float[Array, " K"]
    b_size: Float[Array, " K"]
    w_size: Float[Array, " K"]
    scale: float


@partial(jax.jit, static_argnames="q")
def unbounded_bounds(
    device: Device,
    z: Float[Array, "n d"],
    z_size: Float[Array, " n"],
    labels: Int[Array, " n"],
    shift: Float[Array, ""],
    product: Float[Array, ""],
    q: float,
) -> tuple[Float[Array, "n K"], Int[Array, " n"]]:
    r"""Bounds $c_{ij} / |v_{ij}|_{q^*}$ by the closest own i, less all that may be rounded.

    Args:
        device: the classifier.
        z: n points, centred and divided by the scale.
        z_size: upper bounds of their l2 norms.
        labels: their classes.
        shift: a bound of what centring and scaling in float64 moved any point or prototype by.
        product: the relative error of products with the metric.
        q: the norm of the perturbation.

    Returns:
        The bounds in units of the scale, infinite for the own class; and i.
    """
    d = z.shape[1]
    gamma = rounding(d + 8)
    exactly = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
    score = exactly(z, device.u.T) - device.b
    reach = z_size[:, None] + device.w_size
    error = gamma * (z_size[:, None] * device.size + device.b_size)
    error += shift * (2 * device.size + reach + shift) + product * device.w_size * reach + 1e-35

    own = labels[:, None] == device.labels
    closest = jnp.argmax(jnp.where(own, score, -jnp.inf), axis=1)
    rows = jnp.arange(len(z))
    lead = (score - error)[rows, closest][:, None] - (score + error)

    u, size = device.u[closest], device.size[closest][:, None] + device.size
    wrong = (2.0**-22 + product + shift) * math.sqrt(d) * size + shift
    if q == 2:
        squares = jnp.sum(device.u**2, axis=1)
        square = squares[closest][:, None] + squares - 2 * exactly(u, device.u.T)
        norm = jnp.sqrt(jnp.maximum(square, 0) + 2 * gamma * size**2)
    else:
        norm = pairwise(u, device.u, DUAL[q]) * (1 + gamma)
    bound = lead / (norm + wrong) * (1 - 2.0**-20)
    bound = jnp.where(jnp.isfinite(bound) & (bound > 1e-30), bound, 0)
    return jnp.where(own, jnp.inf, bound), closest


@partial(jax.jit, static_argnames="q")
def single_multipliers(
    device: Device,
    points: tuple[Float[Array, "n d"], Float[Array, "n d"], Float[Array, "n d"]],
    index: Int[Array, "3 m"],
    q: float,
) -> Float[Array, " m"]:
    """The multipliers of single rows, in the units of the device.

    Args:
        device: the classifier.
        points: n points and how far they can move down and up, in units of the scale.
        index: for each of m rows its point, its own prototype and its rival.
        q: the norm of the perturbation.

    Returns:
        As `halfspace.multiplier`.
    """
    (z, low, high), (point, own, rival) = points, index
    v = device.u[rival] - device.u[own]
    z = z[point]
    c = -jnp.sum(v * ((z - device.w[own]) + (z - device.w[rival])), axis=1) / 2
    return multiplier(v, c, jnp.where(v > 0, high[point], -low[point]), q)


def up32(x: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
    """Upper bounds of non-negative numbers in float32."""
    return (x * (1 + 1e-6)).astype(np.float32)
