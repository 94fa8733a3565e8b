r"""Operations that choose among affine values: which piece holds just right of a point.

A choice compares $d(t) = d_0 + d_1 t$ with 0: right of t the sign is that of $d_1$ if
$\tau = -d_0 / d_1 \le t$ and its opposite otherwise, and $\tau > t$ is where the choice changes.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int


class Affine(NamedTuple):
    """A value along the line, start + rate t on the current piece.

    Attributes:
        start: the value that the piece has, prolonged, at t = 0.
        rate: its slope, or None for a value that stands still.
    """

    start: Array
    rate: Array | None = None


class Walk:
    """What a reading of the program at one point collects.

    Args:
        t: the point.
    """

    def __init__(self, t: Float[Array, ""]):
        self.t = t
        self.end = jnp.full_like(t, jnp.inf)

    def meets(self, knots: Float[Array, "*shape"]) -> None:
        """Take note of points where a choice changes; those not beyond t do not count."""
        if knots.size:
            self.end = jnp.minimum(self.end, jnp.min(jnp.where(knots > self.t, knots, jnp.inf)))

    def beyond(self, d: Affine, tie: bool) -> Bool[Array, "*shape"]:
        """Whether d is above 0 just right of t; `tie` answers where it is 0 for good."""
        resting = d.start >= 0 if tie else d.start > 0
        if d.rate is None:
            return resting
        moving = d.rate != 0
        knots = -d.start / jnp.where(moving, d.rate, 1)
        met = moving & jnp.isfinite(knots)
        knots = jnp.where(met, knots, jnp.inf).astype(self.t.dtype)
        self.meets(knots)
        return jnp.where(met, (d.rate > 0) == (knots <= self.t), resting)


def rate_of(value: Affine) -> Array:
    """The rate, zeros where the value stands still."""
    return jnp.zeros_like(value.start) if value.rate is None else value.rate


def _subtract(a: Affine, b: Affine) -> Affine:
    if a.rate is None and b.rate is None:
        return Affine(a.start - b.start)
    return Affine(a.start - b.start, rate_of(a) - rate_of(b))


def _negate(a: Affine) -> Affine:
    return Affine(-a.start, None if a.rate is None else -a.rate)


def _where(condition: Bool[Array, "*shape"], a: Affine, b: Affine) -> Affine:
    rate = None
    if a.rate is not None or b.rate is not None:
        rate = jnp.where(condition, rate_of(a), rate_of(b))
    return Affine(jnp.where(condition, a.start, b.start), rate)


Params = dict[str, Any]


def _max(walk: Walk, params: Params, a: Affine, b: Affine) -> list[Affine]:
    return [_where(walk.beyond(_subtract(a, b), tie=True), a, b)]


def _min(walk: Walk, params: Params, a: Affine, b: Affine) -> list[Affine]:
    return [_where(walk.beyond(_subtract(a, b), tie=True), b, a)]


def _clamp(walk: Walk, params: Params, lo: Affine, x: Affine, hi: Affine) -> list[Affine]:
    return _min(walk, params, _max(walk, params, x, lo)[0], hi)


def _abs(walk: Walk, params: Params, x: Affine) -> list[Affine]:
    return [_where(walk.beyond(x, tie=True), x, _negate(x))]


def _sign(walk: Walk, params: Params, x: Affine) -> list[Affine]:
    above, not_below = walk.beyond(x, tie=False), walk.beyond(x, tie=True)
    sign = above.astype(x.start.dtype) - (~not_below).astype(x.start.dtype)
    return [Affine(sign)]


def _comparison(less: bool, tie: bool) -> Callable[..., list[Affine]]:
    """Whether a > b, or a < b if `less`; `tie` answers where the two stay equal."""

    def compare(walk: Walk, params: Params, a: Affine, b: Affine) -> list[Affine]:
        difference = _subtract(b, a) if less else _subtract(a, b)
        return [Affine(walk.beyond(difference, tie))]

    return compare


def _equality(equal: bool) -> Callable[..., list[Affine]]:
    """Values that move apart are equal at single points only, which no piece is."""

    def compare(walk: Walk, params: Params, a: Affine, b: Affine) -> list[Affine]:
        d = _subtract(a, b)
        same = (d.start == 0) & (rate_of(d) == 0)
        return [Affine(same if equal else ~same)]

    return compare


def _is_finite(walk: Walk, params: Params, x: Affine) -> list[Affine]:
    return [Affine(jnp.isfinite(x.start) & jnp.isfinite(rate_of(x)))]


def _winner(walk: Walk, x: Affine) -> Int[Array, "*shape"]:
    """Which entry along the last axis is largest just right of t."""
    rate = rate_of(x)

    def against(index: Int[Array, "*shape"]) -> tuple[Array, Array]:
        """Where the others overtake the entry, and whether they are above it right of t."""
        d0 = x.start - jnp.take_along_axis(x.start, index[..., None], axis=-1)
        d1 = rate - jnp.take_along_axis(rate, index[..., None], axis=-1)
        knots = -d0 / jnp.where(d1 != 0, d1, 1)
        met = (d1 != 0) & jnp.isfinite(knots)
        above = jnp.where(met, (d1 > 0) == (knots <= walk.t), d0 > 0)
        return jnp.where(met & (d1 > 0), knots, jnp.inf), above

    # The largest value at t up to rounding; of those that the knots put above it the steepest.
    t = jnp.where(jnp.isfinite(walk.t), walk.t, jnp.finfo(walk.t.dtype).max ** 0.5)
    index = jnp.argmax(x.start + rate * t, axis=-1)
    for _ in range(2):
        _, above = against(index)
        steepest = jnp.argmax(jnp.where(above, rate, -jnp.inf), axis=-1)
        index = jnp.where(jnp.any(above, axis=-1), steepest, index)
    walk.meets(against(index)[0].astype(walk.t.dtype))
    return index


def _take(x: Affine, index: Int[Array, "*shape"]) -> Affine:
    return Affine(
        *(jnp.take_along_axis(a, index[..., None], axis=-1)[..., 0] for a in (x.start, rate_of(x)))
    )


def _to_end(x: Affine, axes: Sequence[int]) -> Affine:
    """The axes joined into one at the end."""
    kept = [k for k in range(x.start.ndim) if k not in axes]

    def move(a: Array) -> Array:
        a = jnp.transpose(a, (*kept, *axes))
        return a.reshape(*a.shape[: len(kept)], -1)

    return Affine(move(x.start), move(rate_of(x)))


def _reduction(sign: int) -> Callable[..., list[Affine]]:
    """The maximum (1) or minimum (-1) along axes."""

    def reduce(walk: Walk, params: Params, x: Affine) -> list[Affine]:
        rows = _to_end(x if sign > 0 else _negate(x), params["axes"])
        best = _take(rows, _winner(walk, rows))
        return [best if sign > 0 else _negate(best)]

    return reduce


def _argument(sign: int) -> Callable[..., list[Affine]]:
    """The index of the maximum (1) or minimum (-1)."""

    def reduce(walk: Walk, params: Params, x: Affine) -> list[Affine]:
        rows = _to_end(x if sign > 0 else _negate(x), params["axes"])
        return [Affine(_winner(walk, rows).astype(params["index_dtype"]))]

    return reduce


def _window(sign: int) -> Callable[..., list[Affine]]:
    """The maximum (1) or minimum (-1) over windows, as in pooling."""

    def reduce(walk: Walk, params: Params, x: Affine) -> list[Affine]:
        if any(d != 1 for d in params["base_dilation"]):
            raise ValueError(
                f"base_dilation={params['base_dilation']} of a pooling window is not followed: "
                "use 1 in all dimensions"
            )
        x = x if sign > 0 else _negate(x)
        sizes, steps = params["window_dimensions"], params["window_strides"]
        spread, padding = params["window_dilation"], params["padding"]

        def windows(a: Array, fill: float) -> Array:
            a = jnp.pad(a, padding, constant_values=fill)
            spans = [(size - 1) * gap for size, gap in zip(sizes, spread, strict=True)]
            cuts: list[Array] = []
            for offset in np.ndindex(*sizes):
                first = [o * gap for o, gap in zip(offset, spread, strict=True)]
                last = [n - s + f for n, s, f in zip(a.shape, spans, first, strict=True)]
                cuts.append(jax.lax.slice(a, first, last, steps))
            return jnp.stack(cuts, axis=-1)

        rows = Affine(windows(x.start, -np.inf), windows(rate_of(x), 0.0))
        best = _take(rows, _winner(walk, rows))
        return [best if sign > 0 else _negate(best)]

    return reduce


CHOICES: dict[str, Callable[..., list[Affine]]] = {
    "max": _max,
    "min": _min,
    "clamp": _clamp,
    "abs": _abs,
    "sign": _sign,
    "gt": _comparison(less=False, tie=False),
    "ge": _comparison(less=False, tie=True),
    "lt": _comparison(less=True, tie=False),
    "le": _comparison(less=True, tie=True),
    "eq": _equality(equal=True),
    "ne": _equality(equal=False),
    "is_finite": _is_finite,
    "reduce_max": _reduction(1),
    "reduce_min": _reduction(-1),
    "argmax": _argument(1),
    "argmin": _argument(-1),
    "reduce_window_max": _window(1),
    "reduce_window_min": _window(-1),
}
"""Operations whose result is affine piece by piece: each chooses among what it is given."""
