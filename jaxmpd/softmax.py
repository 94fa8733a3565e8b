"""The softmax cross-entropy and its quadratic majorant."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxmpd.majorants import Quadratic, quadratic_from


def majorise_softmax(logits: Float[Array, "S C"], targets: Float[Array, "S C"]) -> Quadratic:
    r"""Böhning's majorant of the softmax cross-entropy.

    The Hessian in the logits, $\operatorname{diag}(\pi) - \pi\pi^\top$, lies below
    $\tfrac12 (I - \tfrac1C 11^\top)$ and hence below $\tfrac12 I$ (Böhning 1992), so with
    $g = \pi - y$ the cross-entropy grows by at most $g \cdot D + \tfrac14 |D|^2$. The two bounds
    differ only along the vector of ones, which the loss does not see.

    Args:
        logits: S predictions of C classes.
        targets: rows of class probabilities, one-hot for labels.

    Returns:
        Pseudo-targets and the weight a quarter (times the sum of a row of targets).

    Example:
        >>> majorant = majorise_softmax(jnp.zeros((1, 2)), jnp.array([[1.0, 0.0]]))
        >>> majorant.targets.tolist(), majorant.weights.tolist()
        ([[1.0, -1.0]], [[0.25, 0.25]])

    References:
        D. Böhning, Multinomial logistic regression algorithm, Ann. Inst. Stat. Math. 44, 1992.
    """
    mass = jnp.sum(targets, axis=-1, keepdims=True)
    gradient = mass * jax.nn.softmax(logits, axis=-1) - targets
    return quadratic_from(logits, gradient, jnp.broadcast_to(mass / 4, logits.shape))


@dataclass(frozen=True)
class Softmax:
    """The softmax cross-entropy, minus the logarithm of the target class's probability.

    Targets are one-hot rows or class probabilities. It is no sum over functions of one output, so
    it has no pieces: its majorant stands in where a line is searched, and steps are accepted on the
    loss itself.
    """

    def __call__(
        self, predictions: Float[Array, "S C"], targets: Float[Array, "S C"]
    ) -> Float[Array, " S"]:
        """The loss of each sample."""
        return -jnp.sum(targets * jax.nn.log_softmax(predictions, axis=-1), axis=-1)

    def gradient(
        self, predictions: Float[Array, "S C"], targets: Float[Array, "S C"]
    ) -> Float[Array, "S C"]:
        """The derivative of each sample's loss in its predictions."""
        mass = jnp.sum(targets, axis=-1, keepdims=True)
        return mass * jax.nn.softmax(predictions, axis=-1) - targets

    def gauss_newton(
        self, predictions: Float[Array, "S C"], targets: Float[Array, "S C"]
    ) -> Quadratic:
        """The quadratic of the slope and the diagonal of the Hessian; no bound."""
        pi = jax.nn.softmax(predictions, axis=-1)
        weights = jnp.sum(targets, axis=-1, keepdims=True) * pi * (1 - pi) / 2
        return quadratic_from(predictions, self.gradient(predictions, targets), weights)

    def quadratic_majorant(
        self, predictions: Float[Array, "S C"], targets: Float[Array, "S C"]
    ) -> Quadratic:
        """[`majorise_softmax`][jaxmpd.majorants.majorise_softmax]: never below the loss."""
        return majorise_softmax(predictions, targets)
