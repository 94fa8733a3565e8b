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


def penalty_along(w: Float[Array, ""], l2: float, l1: float) -> PiecewisePolynomial:
    """The change of the penalty when a parameter becomes w + t, as a function of t.

    Args:
        w: the parameter.
        l2: weight of its square.
        l1: weight of its absolute value.

    Returns:
        A piecewise quadratic, 0 at the origin, with a knot at -w if l1 is not 0.

    Example:
        >>> from jaxmpd.minimum import minimize
        >>> from jaxmpd.piecewise import polynomial
        >>> loss = polynomial(jnp.array([0.0, -1.0, 0.5]))     # least at t = 1
        >>> float(minimize(loss + penalty_along(jnp.array(0.0), 0.0, 0.25)).argmin)
        0.75
    """
    slope = 2 * l2 * w
    zero = jnp.zeros_like(w)
    if l1 == 0:
        return PiecewisePolynomial(
            jnp.stack([zero, slope, zero + l2]), jnp.zeros(0, w.dtype), jnp.zeros((3, 0), w.dtype)
        )
    # |w + t| just right of the origin rises where w is 0.
    slope = slope + l1 * jnp.where(w >= 0, 1, -1)
    jump = jnp.stack([zero, zero + 2 * l1, zero])
    return PiecewisePolynomial(jnp.stack([zero, slope, zero + l2]), -w[None], jump[:, None])
