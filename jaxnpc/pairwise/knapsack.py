"""The fractional knapsack, covered as cheaply as can be."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxnpc.pairwise.search import crossing


def cover(
    cost: Float[Array, " d"], gain: Float[Array, " d"], need: Float[Array, ""]
) -> Float[Array, " d"]:
    r"""The cheapest fractions of d items whose gains reach the need.

    $$\min_{0 \le y \le 1} \sum_l y_l\, \mathrm{cost}_l
      \quad\text{s.t.}\quad \sum_l y_l\, \mathrm{gain}_l \ge \mathrm{need}$$

    Items are taken whole by falling gain per cost, the last in part, in O(d) a step of the search
    for its ratio. Of the items that tie there, to rounding, the earlier ones are taken first.

    Args:
        cost: non-negative finite numbers.
        gain: non-negative finite numbers.
        need: a positive number; all items are taken where they do not reach it.

    Returns:
        The fractions.
    """
    info = jnp.finfo(cost.dtype)
    useful = gain > 0
    ratio = jnp.where(useful, gain / jnp.maximum(cost, info.tiny), 0)
    ratio = lax.stop_gradient(jnp.minimum(ratio, info.max))
    gain_, need_ = lax.stop_gradient((gain, need))

    def short(threshold: Float[Array, ""]) -> tuple[Array, Array]:
        covered = jnp.sum(jnp.where(ratio >= threshold, gain_, 0))
        return jnp.where(covered < need_, 1, -1), jnp.zeros_like(covered)

    # Above the critical ratio the items fall short of the need, at it they reach it.
    least = jnp.min(jnp.where(useful, ratio, info.max))
    low = jnp.maximum(least * (1 - 4 * info.eps), info.tiny)
    above = crossing(short, low, jnp.max(ratio) * (1 + 4 * info.eps))
    whole = ratio >= above
    # The critical ratio is the largest one below; ratios within rounding of it tie with it.
    critical = jnp.max(jnp.where(whole, 0, ratio))
    partly = useful & ~whole & (ratio >= critical * (1 - 4 * info.eps))
    rest = need - jnp.sum(jnp.where(whole, gain, 0))
    part = jnp.where(partly, gain, 0)
    before = jnp.cumsum(part) - part
    fraction = jnp.clip((rest - before) / jnp.where(partly, gain, 1), 0, 1)
    return jnp.where(whole, 1, jnp.where(partly, fraction, 0)).astype(cost.dtype)
