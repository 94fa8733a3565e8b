"""Piecewise-linear activations as data: kinks and slopes."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float


@dataclass(frozen=True)
class PiecewiseLinear:
    r"""A continuous piecewise-linear function of one variable.

    $$f(x) = m_k x + o_k \quad\text{for}\quad \kappa_{k} \le x \le \kappa_{k+1},\ k = 0 \dots K$$

    with $\kappa_0 = -\infty$, $\kappa_{K+1} = \infty$. Hashable, so that it can be a static
    argument of `jax.jit`; build one with [`piecewise_linear`][jaxmpd.activations.piecewise_linear].

    Attributes:
        kinks: the K abscissae where the slope changes, strictly increasing.
        slopes: the K + 1 slopes, left to right.
        offsets: the K + 1 intercepts, left to right.
    """

    kinks: tuple[float, ...]
    slopes: tuple[float, ...]
    offsets: tuple[float, ...]

    def __call__(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The value at x, elementwise (eq. 37)."""
        y = self.slopes[0] * x + self.offsets[0]
        for kink, slope, offset in zip(self.kinks, self.slopes[1:], self.offsets[1:], strict=True):
            y = jnp.where(x > kink, slope * x + offset, y)
        return y

    def slope(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The slope at x, elementwise; at a kink the one on its left."""
        m = jnp.full(jnp.shape(x), self.slopes[0], jnp.result_type(x, float))
        for kink, slope in zip(self.kinks, self.slopes[1:], strict=True):
            m = jnp.where(x > kink, slope, m)
        return m

    @property
    def monotone(self) -> bool:
        """Whether no two slopes have opposite signs."""
        return min(self.slopes) >= 0 or max(self.slopes) <= 0


def piecewise_linear(
    kinks: Sequence[float], slopes: Sequence[float], anchor: tuple[float, float] = (0.0, 0.0)
) -> PiecewiseLinear:
    """The continuous piecewise-linear function with these kinks and slopes through `anchor`.

    Args:
        kinks: K abscissae, strictly increasing, finite; may be empty.
        slopes: K + 1 finite slopes, left to right.
        anchor: a point (x, f(x)) of the graph, which fixes the offsets.

    Returns:
        The function, as data.

    Raises:
        ValueError: if the lengths do not fit, a number is not finite, or the kinks do not increase.

    Example:
        >>> soft_threshold = piecewise_linear(kinks=[-1, 1], slopes=[1, 0, 1])
        >>> soft_threshold(jnp.array([-3.0, 0.5, 2.0])).tolist()
        [-2.0, 0.0, 1.0]
    """
    kinks, slopes = tuple(map(float, kinks)), tuple(map(float, slopes))
    if len(slopes) != len(kinks) + 1:
        raise ValueError(
            f"slopes has {len(slopes)} entries, but {len(kinks)} kinks separate {len(kinks) + 1} "
            "pieces: give one slope a piece"
        )
    if not all(map(math.isfinite, (*kinks, *slopes, *anchor))):
        raise ValueError(
            f"kinks {kinks}, slopes {slopes} and anchor {anchor} must all be finite numbers"
        )
    if any(a >= b for a, b in itertools.pairwise(kinks)):
        raise ValueError(f"kinks must strictly increase, got {kinks}")
    x, y = anchor
    home = sum(kink < x for kink in kinks)
    offsets = [0.0] * len(slopes)
    offsets[home] = y - slopes[home] * x
    for k in range(home, len(kinks)):
        offsets[k + 1] = offsets[k] + (slopes[k] - slopes[k + 1]) * kinks[k]
    for k in range(home - 1, -1, -1):
        offsets[k] = offsets[k + 1] + (slopes[k + 1] - slopes[k]) * kinks[k]
    return PiecewiseLinear(kinks, slopes, tuple(offsets))


def leaky_hard_tanh(alpha: float = 0.01) -> PiecewiseLinear:
    """The identity on [-1, 1], slope alpha outside (eq. 41); the paper uses alpha = 0.01."""
    return piecewise_linear([-1, 1], [alpha, 1, alpha])


def leaky_relu(alpha: float = 0.01) -> PiecewiseLinear:
    """The maximum of x and alpha x for alpha below 1."""
    return piecewise_linear([0], [alpha, 1])


LEAKY_HARD_TANH = leaky_hard_tanh()
HARD_TANH = piecewise_linear([-1, 1], [0, 1, 0])
RELU = piecewise_linear([0], [0, 1])
LEAKY_RELU = leaky_relu()
ABS = piecewise_linear([0], [-1, 1])
HARD_SIGMOID = piecewise_linear([-3, 3], [0, 1 / 6, 0], anchor=(0.0, 0.5))
IDENTITY = piecewise_linear([], [1])

ACTIVATIONS: dict[str, PiecewiseLinear] = {
    "leaky_hard_tanh": LEAKY_HARD_TANH,
    "hard_tanh": HARD_TANH,
    "relu": RELU,
    "leaky_relu": LEAKY_RELU,
    "abs": ABS,
    "hard_sigmoid": HARD_SIGMOID,
    "identity": IDENTITY,
}
"""Named activations, for command lines and configuration files."""
