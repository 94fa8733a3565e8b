"""What the data say about the sizes that training needs: radii and learning rates."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxnpc.distances import pairwise
from jaxnpc.domains import Unbounded
from jaxnpc.pairwise.table import rho
from jaxnpc.prototypes import Distance

POINTS, OTHERS = 256, 8192
CAP = 2 / 3


def typical_radius(
    points: Float[np.ndarray, "n *d"],
    classes: Int[np.ndarray, " n"],
    distance: float | Distance,
    q: float,
) -> float:
    """The median over points of the radius against the closest point of another class.

    That of a classifier whose prototypes are the points themselves, so that no classifier that is
    right everywhere has much larger ones. Estimated from a part of the points, evenly spread.

    Args:
        points: n points.
        classes: their class indices, of at least two kinds.
        distance: the norm, or a function of points and prototypes that returns all distances.
        q: the norm of the perturbation; not used with a function.

    Returns:
        A radius; the largest distance from 0, or 1, where half of the points coincide with ones of
        another class.

    Example:
        >>> points = np.array([[0.0], [1.0], [5.0], [6.0]], np.float32)
        >>> typical_radius(points, np.array([0, 0, 1, 1]), 2, 2)
        2.25
    """
    some, others = _spread(len(points), POINTS), _spread(len(points), OTHERS)
    z, w = jnp.asarray(points[some]), jnp.asarray(points[others])
    d = distance(z, w) if callable(distance) else pairwise(z, w, distance)
    foreign = classes[some][:, None] != classes[others]
    d = np.where(foreign, np.asarray(d), math.inf)
    found = foreign.any(axis=1)
    closest = d.argmin(axis=1)
    if callable(distance):
        radii = d[np.arange(len(d)), closest] / 2
    else:
        radii = np.asarray(_radii(z, w[closest], float(distance), float(q)))
    typical = float(np.median(radii[found])) if found.any() else 0.0
    return typical or float(np.abs(points).max()) or 1.0


def default_cap(radius: float) -> float:
    """Up to which radius training gains by enlarging a margin: two thirds of the typical one.

    With l2 distances on MNIST that is 2.2, which was best on validation images.
    """
    return float(f"{CAP * radius:.3g}")


RATES: dict[tuple[str, str], Callable[[float, int], float]] = {
    ("nesterov", "margin"): lambda cap, k: 0.0045 * cap * k,
    ("nesterov", "squared_hinge"): lambda cap, k: 0.0045 * cap * k,
    ("nesterov", "semi_metric"): lambda cap, k: 0.0045 * cap * k,
    ("nesterov", "glvq"): lambda cap, k: 0.05 * cap**2 * k,
}
"""Learning rates by optimiser and objective, from the cap and the number of prototypes.

A prototype meets one point in K, and the gradients of radii have no unit: the rate has that of a
prototype. The relative margin's gradient has one, and is as small as radii are large.
"""

ADAM = 0.003

STEPS, MOST = 4800, 10.0
"""For how many minibatches these rates are, and how much larger they may be for fewer."""


def default_rate(
    optimizer: str,
    objective: str,
    cap: float,
    prototypes: int,
    steps: int,
) -> float:
    """A learning rate that suits the objective and the data's scale; one to start tuning from.

    Args:
        optimizer: "nesterov" or "adam".
        objective: its name.
        cap: the cap, in the units of the data.
        prototypes: how many there are.
        steps: how many minibatches the training has. With fewer the steps are larger, by the
            square root, so that it gets anywhere.

    Returns:
        The rate: Nesterov's is 40 for 40 epochs with 4000 prototypes of MNIST in l2.

    Example:
        >>> default_rate("nesterov", "margin", cap=2.2, prototypes=4000, steps=4800)
        39.6
    """
    scaled = RATES.get((optimizer, objective))
    rate = ADAM * cap if scaled is None else scaled(cap, prototypes)
    rate *= min(math.sqrt(STEPS / steps), MOST)
    return float(f"{rate:.3g}")


@functools.partial(jax.jit, static_argnums=(2, 3))
def _radii(
    z: Float[Array, "n d"], w: Float[Array, "n d"], p: float, q: float
) -> Float[Array, " n"]:
    def radius(z: Array, w: Array) -> Array:
        return rho(z, z, w, p=p, q=q, domain=Unbounded()).radius

    return jax.vmap(radius)(z, w)


def _spread(n: int, count: int) -> Int[np.ndarray, " m"]:
    """At most so many indices below n, evenly spread."""
    return np.unique(np.linspace(0, n - 1, min(n, count)).astype(int))
