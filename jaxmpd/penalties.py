r"""Ridge and lasso penalties: of all parameters but the output layer's bias.

$$\lambda_2 \sum_p w_p^2 + \lambda_1 \sum_p |w_p|$$

Along one parameter that is a piecewise quadratic with a knot where the parameter is 0.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxmpd.network import Layer
from jaxmpd.piecewise import PiecewisePolynomial


def check(l2: float, l1: float) -> None:
    """Raise a ValueError that names a penalty which is not a non-negative finite number."""
    for name, value in (("l2", l2), ("l1", l1)):
        if not 0 <= value < np.inf:
            raise ValueError(f"{name} must be a non-negative finite number, got {value}")


def penalty(layers: Sequence[Layer], l2: float = 0.0, l1: float = 0.0) -> Float[Array, ""]:
    """The penalty on all parameters but the bias of the last layer.

    Args:
        layers: the network's layers.
        l2: weight of the sum of squares.
        l1: weight of the sum of absolute values.

    Returns:
        The penalty.
    """
    biases = [layer.bias for layer in layers[:-1] if layer.bias is not None]
    parameters = [layer.kernel for layer in layers] + biases
    return sum((size(p, l2, l1) for p in parameters), start=jnp.zeros((), parameters[0].dtype))


def size(w: Float[Array, "*shape"], l2: float, l1: float) -> Float[Array, ""]:
    """The penalty on these parameters."""
    return l2 * jnp.sum(w**2) + l1 * jnp.sum(jnp.abs(w))


def penalty_along(
    w: Float[Array, "*shape"],
    l2: float,
    l1: float,
    direction: Float[Array, "*shape"] | None = None,
) -> PiecewisePolynomial:
    """The change of the penalty when parameters become w + t direction, as a function of t.

    Args:
        w: the parameters, one or many.
        l2: weight of their squares.
        l1: weight of their absolute values.
        direction: in which they move, by default ones.

    Returns:
        A piecewise quadratic, 0 at the origin; if l1 is not 0, with a knot a parameter where it
        passes 0.

    Example:
        >>> from jaxmpd.minimum import minimize
        >>> from jaxmpd.piecewise import polynomial
        >>> loss = polynomial(jnp.array([0.0, -1.0, 0.5]))     # least at t = 1
        >>> float(minimize(loss + penalty_along(jnp.array(0.0), 0.0, 0.25)).argmin)
        0.75
    """
    d = jnp.ones_like(w) if direction is None else direction
    w, d = w.reshape(-1), d.reshape(-1)
    slope, curvature = 2 * l2 * jnp.sum(w * d), l2 * jnp.sum(d**2)
    zero = jnp.zeros_like(slope)
    if l1 == 0:
        base = jnp.stack([zero, slope, curvature])
        return PiecewisePolynomial(base, jnp.zeros(0, w.dtype), jnp.zeros((3, 0), w.dtype))
    t = -w / jnp.where(d == 0, 1, d)
    met = (d != 0) & jnp.isfinite(t)
    # Just right of the origin, |w + t d| rises where its kink lies on or before the origin.
    rates = jnp.where(met, jnp.where(t <= 0, jnp.abs(d), -jnp.abs(d)), jnp.sign(w) * d)
    bends = jnp.where(met, 2 * l1 * jnp.abs(d), 0)
    return PiecewisePolynomial(
        jnp.stack([zero, slope + l1 * jnp.sum(rates), curvature]),
        jnp.where(met, t, jnp.inf),
        jnp.stack([jnp.zeros_like(t), bends, jnp.zeros_like(t)]),
    )
