r"""Piecewise-linear functions along a line, knot by knot, whatever computes them.

No structure is declared: the function's own program is read (`jaxmpd.kinks`), so convolutions,
max-pooling and residual connections will do. Along $x + t\,\dot x$ the function must be piecewise
linear: a direction inside one layer of a piecewise-linear network is such a line, one that moves
two layers at once is not.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxmpd.activations import PiecewiseLinear, piecewise_linear
from jaxmpd.curves import Curves
from jaxmpd.kinks import Affine, restrict

PyTree = Any

MOST_KINKS = 1000
"""An activation with more is taken for one that has no end of them."""

_SAMPLES, _SIDES = "samples", "sides"


class Resolved(NamedTuple):
    """Curves along a line, and where they are known.

    Attributes:
        curves: the predictions.
        lo: for each sample the left end of the interval that its knots cover, minus infinity where
            they are all there. Beyond it the curve stands prolonged, whatever the truth.
        hi: the right end.
    """

    curves: Curves
    lo: Float[Array, " S"]
    hi: Float[Array, " S"]


def next_kink(
    fun: Callable[[PyTree], Float[Array, "*out"]],
    x: PyTree,
    dx: PyTree,
    t: Float[Array, ""] | float = 0.0,
) -> tuple[Float[Array, "*out"], Float[Array, "*out"], Float[Array, ""]]:
    r"""Value and slope of $t \mapsto f(x + t \dot x)$ right of t, and the way to the next knot.

    A knot is a point where any choice that the program makes (a maximum, a comparison) changes,
    whether or not the function bends there. Pure: under `jit`, `vmap` and `scan` alike.

    Args:
        fun: piecewise linear along the line, giving one array.
        x: where the line starts, a tree of floating-point arrays.
        dx: its direction, of the same structure, None in place of a leaf that stands still.
        t: the point on the line.

    Returns:
        The value at t, the slope on the right of it, and the distance from t to the next knot:
        positive, infinite if there is none.

    Raises:
        ValueError: if the function is not piecewise linear along the line, or has operations that
            are not followed; the message names the operation and the way out.
        TypeError: if dx does not have the structure of x.

    Example:
        >>> x, dx = jnp.array([-2.0, 1.0]), jnp.array([1.0, 3.0])
        >>> value, slope, step = next_kink(jax.nn.relu, x, dx)
        >>> value.tolist(), slope.tolist(), float(step)
        ([0.0, 1.0], [0.0, 3.0], 2.0)
    """
    piece, end = restrict(fun, x, dx)(jnp.asarray(t))
    slope = jnp.asarray(piece.rate)
    return piece.start + t * slope, slope, end - t


def trace(
    fun: Callable[[PyTree, Any], Float[Array, " dN"]],
    x: PyTree,
    dx: PyTree,
    samples: PyTree,
    *,
    budget: int = 64,
    chunk: int = 1024,
) -> Resolved:
    r"""The curves $t \mapsto f(x + t \dot x, s)$ of many samples s, walked from knot to knot.

    Every sample walks from t = 0 to both sides until it has no more knots or the budget is spent;
    a chunk of samples stops when all have ended. A piece costs about two evaluations of the part
    of f that is behind what moves.

    Args:
        fun: of x and one sample, piecewise linear along the line, giving a vector.
        x: where the line starts, a tree of floating-point arrays.
        dx: its direction, of the same structure, None in place of a leaf that stands still.
        samples: a tree of arrays with a row a sample.
        budget: knots a sample and side.
        chunk: samples at a time, which bounds the memory.

    Returns:
        The curves, with 2 budget + 1 knots, and the interval of t in which each is exact.

    Raises:
        ValueError: if the budget or the chunk is not positive, or the function is not piecewise
            linear along the line; see [`next_kink`][jaxmpd.trace.next_kink].
        TypeError: if dx does not have the structure of x.

    Example:
        >>> def net(kernel, x):
        ...     return jax.nn.relu(x @ kernel).sum(keepdims=True)
        >>> kernel, inputs = jnp.array([[1.0, -1.0]]), jnp.array([[1.0], [2.0], [-1.0]])
        >>> curves, lo, hi = trace(net, kernel, jnp.array([[-2.0, 1.0]]), inputs, budget=2)
        >>> curves.knots[0].tolist(), curves.bends[0, :, 0].tolist(), float(hi[0])
        ([0.0, 0.5, 1.0, inf, inf], [0.0, 2.0, 1.0, 0.0, 0.0], inf)
    """
    if budget < 1 or chunk < 1:
        raise ValueError(f"budget={budget} and chunk={chunk} must be positive")
    count = len(jax.tree.leaves(samples)[0])

    def walks(sample: PyTree) -> tuple[Curves, Array, Array]:
        return _both_sides(lambda x: fun(x, sample), x, dx, budget)

    together = jax.vmap(walks, axis_name=_SAMPLES)
    if count <= chunk:
        curves, lo, hi = together(samples)
        return Resolved(curves, lo, hi)
    number = -(-count // chunk)
    width = -(-count // number)
    rows = jnp.minimum(jnp.arange(number * width), count - 1).reshape(number, width)
    taken = jax.tree.map(lambda a: jnp.asarray(a)[rows], samples)
    chunks = jax.lax.map(together, taken)
    curves, lo, hi = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[:count], chunks)
    return Resolved(curves, lo, hi)


def _both_sides(
    fun: Callable[[PyTree], Array], x: PyTree, dx: PyTree, budget: int
) -> tuple[Curves, Float[Array, ""], Float[Array, ""]]:
    """One sample's curve, and the ends of what the budget covers."""
    piece = restrict(fun, x, dx)
    walk = jax.vmap(lambda side: _walk(lambda t: piece(t, side), budget), axis_name=_SIDES)
    starts, slopes, events, (hi, lo) = walk(jnp.array([1.0, -1.0]))
    right, left = events[:, 1:]
    bends = jnp.diff(slopes, axis=1)
    # In the mirror t -> -t a bend stays what it is. A kink at the origin itself bends one side's
    # slope into the other's.
    knots = jnp.concatenate([-left[::-1], jnp.zeros_like(left[:1]), right])
    bends = jnp.concatenate([bends[1, ::-1], jnp.sum(slopes[:, 0], axis=0)[None], bends[0]])
    # The padding on the left goes to the end.
    order = jnp.arange(len(knots)) + jnp.sum(jnp.isinf(left))
    knots = knots.at[order].get(mode="fill", fill_value=jnp.inf)
    bends = bends.at[order].get(mode="fill", fill_value=0)
    return Curves(starts[0], slopes[0, 0], knots, bends), -lo, hi


def _walk(
    piece: Callable[[Array], tuple[Affine, Array]], budget: int
) -> tuple[Array, Array, Array, Array]:
    """Start, slopes behind 0 and each knot, 0 and the knots, and the first knot not listed.

    The first piece is read in the loop like the others: compiled apart, it might be rounded
    otherwise, and a knot found there would not be recognised when it is reached.
    """
    like = jax.eval_shape(lambda: piece(jnp.zeros(())))
    shape, dtype = like[0].start.shape, like[0].start.dtype
    events = jnp.full(budget + 1, jnp.inf, dtype)
    slopes = jnp.zeros((budget + 1, *shape), dtype)

    def under_way(state: Any) -> Bool[Array, ""]:
        k, *_, walking = state
        return (k <= budget) & walking

    def advance(state: Any) -> Any:
        k, t, start, events, slopes, _ = state
        now, end = piece(t)
        start = jnp.where(k == 0, now.start, start)
        # A sample that has ended waits at infinity, on its last piece.
        return k + 1, end, start, events.at[k].set(t), slopes.at[k].set(now.rate), _any(end)

    zero = jnp.zeros((), dtype)
    state = (0, zero, jnp.zeros(shape, dtype), events, slopes, _any(zero))
    k, end, start, events, slopes, _ = jax.lax.while_loop(under_way, advance, state)
    # What was not written is padding: no bends there.
    written = (jnp.arange(budget + 1) < k).reshape(-1, *[1] * len(shape))
    return start, jnp.where(written, slopes, slopes[k - 1]), events, end


def _any(t: Float[Array, ""]) -> Bool[Array, ""]:
    """Whether any sample of the chunk is on its way: one answer for all keeps the loop cheap."""
    return jax.lax.pmax((t < jnp.inf).astype(jnp.int32), (_SAMPLES, _SIDES)) > 0


def piecewise_linear_of(fun: Callable[[Float[Array, ""]], Float[Array, ""]]) -> PiecewiseLinear:
    """A scalar piecewise-linear function as data: its kinks, slopes and offsets, exactly.

    Args:
        fun: an activation such as `jax.nn.relu`, or any function made of maxima, comparisons and
            linear operations; elementwise ones will do.

    Returns:
        The same function as data, up to the rounding of double precision.

    Raises:
        ValueError: if the function is not piecewise linear, does not map a number to a number,
            jumps, or has no end of kinks.

    Example:
        >>> piecewise_linear_of(jax.nn.hard_tanh)
        PiecewiseLinear(kinks=(-1.0, 1.0), slopes=(0.0, 1.0, 0.0), offsets=(-1.0, 0.0, 1.0))
    """
    if isinstance(fun, PiecewiseLinear):
        return fun
    with jax.ensure_compile_time_eval(), jax.enable_x64(True):
        x = np.zeros((), np.float64)
        sides = [restrict(fun, jnp.asarray(x), jnp.asarray(x + side)) for side in (1, -1)]
        right, left = ([*_pieces(piece)] for piece in sides)
    # Mirrored back: the last on the left comes first.
    knots = [-end for end, *_ in left[-2::-1]] + [0.0] + [end for end, *_ in right[:-1]]
    # Plus 0.0: a slope of minus zero is zero.
    lines = [(0.0 - slope, value + 0.0) for _, value, slope in left[::-1]]
    lines += [(slope + 0.0, value + 0.0) for _, value, slope in right]
    kinks: list[float] = []
    slopes = [lines[0][0]]
    for knot, (left_line, right_line) in zip(knots, itertools.pairwise(lines), strict=True):
        before, after = (slope * knot + offset for slope, offset in (left_line, right_line))
        if not math.isclose(before, after, rel_tol=1e-6, abs_tol=1e-6):
            raise ValueError(
                f"{_name(fun)} jumps at {knot:g} from {before:g} to {after:g}: an activation must "
                "be continuous"
            )
        # A choice between equals, such as max(x, x), bends nothing.
        if not math.isclose(right_line[0], slopes[-1], rel_tol=1e-12):
            kinks.append(knot)
            slopes.append(right_line[0])
    return piecewise_linear(kinks, slopes, anchor=(0.0, right[0][1]))


def _pieces(piece: Callable[..., Any]) -> list[tuple[float, float, float]]:
    """End, intercept and slope of the pieces towards the right."""
    found: list[tuple[float, float, float]] = []
    t = 0.0
    while np.isfinite(t):
        line, end = piece(jnp.asarray(t, jnp.float64))
        if jnp.shape(line.start):
            raise ValueError(
                f"an activation maps a number to a number; this one returned shape "
                f"{jnp.shape(line.start)}"
            )
        t = float(end)
        found.append((t, float(line.start), float(line.rate)))
        if len(found) > MOST_KINKS:
            raise ValueError(
                f"the activation has more than {MOST_KINKS} kinks on one side of 0 (the last at "
                f"{t:g}): it must have a finite number of them"
            )
    return found


def _name(fun: Any) -> str:
    return getattr(fun, "__name__", repr(fun))
