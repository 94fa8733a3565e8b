r"""The pair radius on a product of spheres: Prop. 3.1, corrected, as a search for one multiplier.

With $v = w_j - w_i$ and $\beta = |w_j|_2^2 - |w_i|_2^2$ a point x is as close to $w_j$ as to $w_i$
if and only if $2 \langle v, x \rangle \ge \beta$. Weak duality: for every $\lambda \ge 0$

$$\rho(z)_{i,j}^2 \ge F(\lambda) = \sum_g \bigl[ |z_g|^2 + \varphi_g(|(z + \lambda v)_g^+|) \bigr]
  + \lambda \beta, \qquad
  \varphi_g(h) = \min\Bigl(0,\ \min_{r_g^- \le t \le r_g^+} t^2 - 2 t h\Bigr)$$

where 0 stands for a group that vanishes (paper, eq. 6 and Prop. 3.1, whose proof overlooks those,
and whose sign of $\lambda v$ is reversed). F is concave.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxnpc.domains import SphereProduct
from jaxnpc.pairwise.frame import PairRadius, Vector

STEPS = 200
"""More evaluations than a search to the last digit takes."""

START = 1.3
"""How many times the half-space's multiplier the search begins at: spheres bend away."""

GROWTH = 4.0
"""How fast the search moves outwards while F still rises."""


class Dual(NamedTuple):
    r"""F at one multiplier; of any batch shape.

    Attributes:
        value: $F(\lambda)$.
        slope: $F'(\lambda) = \beta - 2 \langle v, x \rangle$ for the minimiser x of the Lagrangian,
            which is as close to $w_j$ as to $w_i$ where this is not positive.
        curvature: $F''(\lambda)$, at most 0, where it exists.
        size: the sum of the absolute values of the terms, to bound their rounding by.
    """

    value: Any
    slope: Any
    curvature: Any
    size: Any


def dual(z: Any, v: Any, square: Any, beta: Any, multiplier: Any, domain: SphereProduct) -> Dual:
    """F and its derivatives, on arrays of JAX or NumPy.

    Args:
        z: (..., d) points.
        v: (..., d) differences of the rival and the own prototype.
        square: (...) the points' squared norms.
        beta: (...) differences of the prototypes' squared norms.
        multiplier: (...) numbers, at least 0.
        domain: the product of spheres.

    Returns:
        The values, (...).
    """
    xp = z.__array_namespace__()
    value, slope, curvature = square + beta * multiplier, beta, xp.zeros_like(beta)
    size = square + abs(beta * multiplier)
    scale = multiplier[..., None, None]
    blocks = zip(domain.split(z), domain.split(v), domain.inner, domain.outer, strict=True)
    for at, way, inner, outer in blocks:
        ahead = xp.maximum(at + scale * way, 0)
        norm = _root(xp, xp.sum(ahead * ahead, axis=-1))
        pull = xp.sum(ahead * way, axis=-1)
        speed = xp.sum(xp.where(ahead > 0, way * way, 0), axis=-1)
        t = xp.clip(norm, inner, outer)
        active = 2 * norm > t
        per = xp.where(active, t / xp.where(norm > 0, norm, 1), 0)
        # Where the norm is free |x_g| follows it; on a sphere only the direction turns.
        across = pull * pull / xp.where(norm > 0, norm * norm, 1)
        free = (norm > inner) & (norm < outer)
        turn = xp.where(free, speed, per * xp.maximum(speed - across, 0))
        value = value + xp.sum(xp.where(active, t * (t - 2 * norm), 0), axis=-1)
        slope = slope - 2 * xp.sum(per * pull, axis=-1)
        curvature = curvature - 2 * xp.sum(xp.where(active, turn, 0), axis=-1)
        size = size + xp.sum(t * (t + 2 * norm), axis=-1)
    return Dual(value, slope, curvature, size)


class Ascent(NamedTuple):
    """What the search for the maximum of F found.

    Attributes:
        multiplier: the best one seen.
        value: F there.
        size: the size of its terms.
        below: the largest multiplier seen at which F still rises, 0 if there is none.
        beyond: the least multiplier seen at which F no longer rises, infinite if there is none.
        steps: how many evaluations it took.
    """

    multiplier: Any
    value: Any
    size: Any
    below: Any
    beyond: Any
    steps: Any


class _State(NamedTuple):
    best: Ascent
    ends: tuple[Any, Any]  # F at the ends of the bracket, and its slopes there
    slopes: tuple[Any, Any]
    trial: Any
    turn: Any
    done: Any


def ascend(
    function: Callable[[Any], Dual],
    start: Any,
    *,
    target: Any = float("inf"),
    tolerance: float,
    steps: int = STEPS,
) -> Ascent:
    """The maximum of a concave function on the positive numbers, to rounding or less.

    Newton's steps inside a bracket, whose middle is taken where they leave it or do not come to an
    end. That comes when concavity leaves no more to be gained.

    Args:
        function: a multiplier to F there, a batch; it must not capture values with gradients.
        start: where to begin; positive.
        target: a value of F at which no more is wanted.
        tolerance: the relative gain of F below which the search ends.
        steps: the most evaluations.

    Returns:
        The best multiplier; any one gives a lower bound.
    """
    xp = start.__array_namespace__()
    limits = xp.finfo(start.dtype)

    def advance(state: _State) -> _State:
        best, ends, slopes, trial, turn, done = state
        f = function(trial)
        better = (f.value > best.value) & ~done
        up, down = (f.slope > 0) & ~done, (f.slope <= 0) & ~done
        low, high = xp.where(up, trial, best.below), xp.where(down, trial, best.beyond)
        ends = xp.where(up, f.value, ends[0]), xp.where(down, f.value, ends[1])
        slopes = xp.where(up, f.slope, slopes[0]), xp.where(down, f.slope, slopes[1])
        best = Ascent(
            xp.where(better, trial, best.multiplier),
            xp.where(better, f.value, best.value),
            xp.where(better, f.size, best.size),
            low,
            high,
            best.steps + ~done,
        )
        bounded = high < xp.inf
        width = xp.where(bounded, high, low) - low
        # A concave function lies below its tangents: no more can be gained than they allow.
        most = xp.minimum(ends[0] + slopes[0] * width, ends[1] - slopes[1] * width)
        enough = tolerance * abs(best.value)
        stop = bounded & ((most - best.value <= enough) | (width <= 2 * limits.eps * high))
        bent = f.curvature < 0
        step = -f.slope / xp.where(bent, f.curvature, -1)
        # Where a parabola gains little more, pass its top: then the other tangent says so too.
        small = f.slope * f.slope <= -2 * enough * f.curvature
        newton = trial + xp.where(small, 1.5, 1.0) * step
        inside = bent & (newton > low) & (newton < xp.minimum(high, 2 * GROWTH * trial))
        middle = xp.where(bounded, low + width / 2, GROWTH * trial)
        halve = bounded & (turn % 3 == 2) & (turn > 4)
        following = xp.where(inside & ~halve, newton, middle)
        stop |= ~((following > low) & (following < high)) | (following > limits.max / 64)
        stop |= (best.value >= target) | (f.slope == 0)
        trial = xp.where(done, trial, following)
        return _State(best, ends, slopes, trial, turn + 1, done | stop)

    zero, most = xp.zeros_like(start), xp.full_like(start, xp.inf)
    nothing = Ascent(zero, -most, zero, zero, most, zero)
    state = _State(nothing, (most, most), (zero, zero), start, 0, ~(start > 0))
    if isinstance(start, jax.Array):
        return lax.while_loop(lambda s: ~xp.all(s.done) & (s.turn < steps), advance, state).best
    while not xp.all(state.done) and state.turn < steps:
        state = advance(state)
    return state.best


def first_multiplier(need: Any, square: Any) -> Any:
    """Where a search may begin: a little beyond the half-space's own multiplier; 0 for none."""
    xp = need.__array_namespace__()
    wanted = (need > 0) & (square > 0)
    return xp.where(wanted, START * xp.where(wanted, need, 0) / xp.where(wanted, square, 1), 0)


def rho(z: Vector, w_i: Vector, w_j: Vector, *, q: float, domain: SphereProduct) -> PairRadius:
    r"""A lower bound of the radius of one triple on a product of spheres (Prop. 3.1, corrected).

    Args:
        z: the point.
        w_i: the prototype that z is closer to.
        w_j: the other one.
        q: the norm of the perturbation: 2.
        domain: where adversarial points are sought.

    Returns:
        The bound, no less than that of the half-space on all of R^d, and an admissible point that
        is as close to $w_j$.

    Example:
        >>> circle = SphereProduct(((1, 2),), jnp.ones(1), jnp.ones(1))
        >>> pair = jnp.array([0.0, 0.2]), jnp.array([0.2, 0.0])
        >>> found = rho(jnp.array([0.0, 1.0]), *pair, q=2, domain=circle)
        >>> found.witness.round(3).tolist(), bool(0.75 < found.radius < 0.77)
        ([0.7070000171661377, 0.7070000171661377], True)
    """
    del q
    v = w_j - w_i
    terms = v * (w_i + w_j)
    beta, square, total = jnp.sum(terms), jnp.sum(v * v), jnp.sum(z * z)
    need = jnp.sum(v * ((w_i - z) + (w_j - z))) / 2
    points = lax.stop_gradient((z, v, total, beta))
    start = lax.stop_gradient(first_multiplier(need, square))
    eps = float(jnp.finfo(z.dtype).eps)
    found = ascend(lambda t: dual(*points, t, domain), start, tolerance=eps)
    value = _with_gradient(lambda t: dual(z, v, total, beta, t, domain), found)
    plane = jnp.where(square > 0, need / jnp.sqrt(jnp.where(square > 0, square, 1)), 0)
    radius = jnp.maximum(_root(jnp, value), plane)
    reached = 2 * reach(v, domain) >= beta - 8 * eps * jnp.sum(jnp.abs(terms))
    radius = jnp.where(need > 0, jnp.where(reached, radius, jnp.inf), 0)
    # Where the search ended while F still rose by a little, a little farther it does not.
    beyond = jnp.minimum(found.beyond, found.multiplier * (1 + eps**0.4))
    shown = (radius > 0) & (radius < jnp.inf)
    return PairRadius(radius, jnp.where(shown, domain.clip(z + beyond * v), z))


def _with_gradient(function: Callable[[Any], Dual], found: Ascent) -> Any:
    """F at its maximum, with the derivatives of the maximum.

    Where F is smooth there they are those at a fixed multiplier. At a kink they are the mean of
    those on both sides, weighted so that the slopes cancel.
    """
    low, high = found.below, found.beyond
    near = high - low <= 8 * float(jnp.finfo(low.dtype).eps) ** 0.5 * low
    left = function(jnp.where(near, low, found.multiplier))
    right = function(jnp.where(near, high, found.multiplier))
    slopes = lax.stop_gradient((left.slope, right.slope))
    drop = slopes[0] - slopes[1]
    share = jnp.where(drop > 0, -slopes[1] / jnp.where(drop > 0, drop, 1), 0.5)
    share = jnp.clip(share, 0, 1)
    mean = share * left.value + (1 - share) * right.value
    return jnp.where(found.value > 0, found.value, 0) + mean - lax.stop_gradient(mean)


def reach(v: Any, domain: SphereProduct) -> Any:
    r"""The largest $\langle v, x \rangle$ of the domain, (...)."""
    xp = v.__array_namespace__()
    total = xp.zeros_like(v[..., 0])
    for way, outer in zip(domain.split(v), domain.outer, strict=True):
        positive = xp.maximum(way, 0)
        norm = _root(xp, xp.sum(positive * positive, axis=-1))
        total = total + outer * xp.sum(norm, axis=-1)
    return total


def _root(xp: Any, x: Any) -> Any:
    # The select before the root keeps its infinite derivative at 0 out of the gradient.
    return xp.where(x > 0, xp.sqrt(xp.where(x > 0, x, 1)), 0)
