"""The line step: the global minimum of the loss along any direction inside a layer."""

from math import comb

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxmpd.curves import Curves, expand_curves
from jaxmpd.losses import SQUARED, AnyLoss, Softmax
from jaxmpd.minimum import Minimum, minimize
from jaxmpd.piecewise import PiecewisePolynomial, horner
from jaxmpd.steps.coordinate import Search
from jaxmpd.steps.coordinate import search as fastest
from jaxmpd.trace import Resolved


def truncate(
    f: PiecewisePolynomial, lo: Float[Array, ""], hi: Float[Array, ""]
) -> PiecewisePolynomial:
    """The function on [lo, hi], prolonged by constants: its minimum is that over the interval.

    Args:
        f: a function.
        lo: the left end, negative; minus infinity leaves the function there as it is.
        hi: the right end, positive.

    Returns:
        A function of two more knots.

    Example:
        >>> from jaxmpd.minimum import minimize
        >>> from jaxmpd.piecewise import polynomial
        >>> parabola = polynomial(jnp.array([0.0, -4.0, 1.0]))
        >>> float(minimize(truncate(parabola, jnp.array(-1.0), jnp.array(1.5))).argmin)
        1.5
    """
    inside = (f.knots > lo) & (f.knots < hi)
    knots = jnp.where(inside, f.knots, jnp.inf)
    jumps = jnp.where(inside, f.jumps, 0)
    ends = jnp.stack([lo, hi]).astype(knots.dtype)
    finite = jnp.isfinite(ends)
    at = jnp.where(finite, ends, 0)
    # The piece that ends there, about the end: what is taken away beyond hi and added before lo.
    x = jnp.where(jnp.isfinite(knots), at[:, None] - knots, 0)
    outwards = jnp.stack([-(knots <= 0).astype(x.dtype), (knots > 0).astype(x.dtype)])
    taylor = [jnp.zeros_like(at)]
    for q in range(1, f.degree + 1):
        powers = range(q, f.degree + 1)
        base = horner(jnp.stack([comb(p, q) * f.base[p] for p in powers]), at)
        jump = horner(jnp.stack([comb(p, q) * jumps[p][None] for p in powers]), x)
        taylor.append(base + jnp.sum(outwards * jump, axis=1))
    sides = jnp.stack([jnp.ones_like(lo), -jnp.ones_like(hi)])
    closing = jnp.where(finite, sides * jnp.stack(taylor), 0)
    return PiecewisePolynomial(
        f.base,
        jnp.concatenate([knots, jnp.where(finite, ends, jnp.inf)]),
        jnp.concatenate([jumps, closing], axis=1),
    )


def minimum_along(
    resolved: Resolved,
    targets: Float[Array, "S dN"],
    weights: Float[Array, " S"],
    loss: AnyLoss = SQUARED,
    *,
    penalty: PiecewisePolynomial | None = None,
    search: Search | None = None,
) -> Minimum:
    """The global minimum of the loss along a line, over the interval that all samples resolve.

    Args:
        resolved: the predictions along the line.
        targets: of the S samples.
        weights: of the samples, summing to 1; one of weight 0 bounds no interval.
        loss: what is minimised; of the softmax cross-entropy, its quadratic majorant at t = 0.
        penalty: a convex function of t that is added to the loss.
        search: finds the global minimum, by default in the way that suits the loss.

    Returns:
        The minimum; its value is up to a constant.
    """
    curves, targets = _elementwise(resolved.curves, targets, loss)
    loss = SQUARED if isinstance(loss, Softmax) else loss
    line = expand_curves(curves, targets, weights, loss)
    line = line if penalty is None else line + penalty
    used = weights > 0
    lo = jnp.max(jnp.where(used, resolved.lo, -jnp.inf))
    hi = jnp.min(jnp.where(used, resolved.hi, jnp.inf))
    find = search or (fastest if loss.convex_pieces and line.degree == 2 else minimize)
    found = find(truncate(line, lo, hi))
    # Beyond an end the truncated function is flat: as good as the end, up to rounding.
    return found._replace(argmin=jnp.clip(found.argmin, lo, hi))


def _elementwise(
    curves: Curves, targets: Float[Array, "S dN"], loss: AnyLoss
) -> tuple[Curves, Float[Array, "S dN"]]:
    """Curves and targets whose squared error bounds a loss that has no pieces."""
    if not isinstance(loss, Softmax):
        return curves, targets
    above = loss.quadratic_majorant(curves.start, targets)
    scale = jnp.sqrt(above.weights)
    start, rate, knots, bends = curves
    return Curves(scale * start, scale * rate, knots, scale[:, None] * bends), scale * above.targets
