"""Where a nondecreasing piecewise-linear function turns non-negative, on JAX and NumPy arrays."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import lax

ValueAndSlope = Callable[[Any], tuple[Any, Any]]


class _Bracket(NamedTuple):
    lower: Any  # the function is negative here
    upper: Any  # and not here, or nothing is known
    trial: Any
    turn: Any
    done: Any


def crossing(function: ValueAndSlope, lower: Any, upper: Any) -> Any:
    r"""The least t in [lower, upper] with $h(t) \ge 0$, to rounding.

    Newton's step from the last trial wherever it stays inside the bracket, else, and every third
    time, the geometric mean of its ends: a handful of evaluations where h is concave, and never
    more than three times those of a bisection of floating-point numbers.

    Args:
        function: t to (h(t), a slope of h at t); h nondecreasing, of any batch shape. It must not
            capture values with gradients: apply `lax.stop_gradient` before.
        lower: positive numbers at which h is negative; a batch.
        upper: numbers at which it is not; `upper` itself is returned where it is negative still.

    Returns:
        The crossings, an array of the same kind.
    """
    xp = upper.__array_namespace__()
    upper = xp.maximum(upper, lower)
    tolerance = 2 * xp.finfo(upper.dtype).eps

    def advance(bracket: _Bracket) -> _Bracket:
        low, high, trial, turn, done = bracket
        value, slope = function(trial)
        below = value < 0
        low = xp.where(below & ~done, trial, low)
        high = xp.where(below | done, high, trial)
        newton = trial - value / xp.where(slope > 0, slope, 1)
        middle = xp.sqrt(low) * xp.sqrt(high)
        settled = (slope > 0) & (abs(newton - trial) <= tolerance * trial)
        use_newton = (slope > 0) & (newton > low) & (newton < high) & (turn % 3 != 2)
        following = xp.where(use_newton, newton, middle)
        closed = ~((following > low) & (following < high))
        # Once closed the answer is the upper end, where the function is non-negative.
        following = xp.where(settled, xp.clip(newton, low, high), xp.where(closed, high, following))
        return _Bracket(
            low, high, xp.where(done, trial, following), turn + 1, done | settled | closed
        )

    start = _Bracket(lower, upper, lower, 0, lower >= upper)
    if isinstance(upper, jax.Array):
        return lax.while_loop(lambda b: ~xp.all(b.done), advance, start).trial
    while not xp.all(start.done):
        start = advance(start)
    return start.trial


def newton_step(function: ValueAndSlope, t: Any) -> Any:
    """One Newton step of a function that may have gradients, from its crossing.

    What it adds is rounding; what it brings is the crossing's derivative, by the implicit function
    theorem, though t comes out of a loop.
    """
    xp = t.__array_namespace__()
    value, slope = function(t)
    return t - xp.where(slope > 0, value / xp.where(slope > 0, slope, 1), 0)
