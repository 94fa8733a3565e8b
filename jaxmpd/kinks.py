r"""A function's program along a line: the affine piece that holds just right of any point.

Along $x + t\,\dot x$ every value that a piecewise-linear program computes is, piece by piece,
$v(t) = a + b t$. Operations that are linear in what moves map a and b alike. One that chooses (a
maximum, a comparison) compares $d(t) = d_0 + d_1 t$ with 0: right of t the sign is that of $d_1$ if
$\tau = -d_0 / d_1 \le t$ and its opposite otherwise, and $\tau > t$ is where the choice changes.
Because $\tau$ and not a value rounded at t decides, a choice made at $t = \tau$ has fallen, and
walking from knot to knot makes progress whatever the rounding.

What does not move carries no b at all, so a product of two moving factors shows when the program
is read. Everything before the first choice is the same on all pieces and is computed once.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend as jex
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

PyTree = Any


class Affine(NamedTuple):
    """A value along the line, start + rate t on the current piece.

    Attributes:
        start: the value that the piece has, prolonged, at t = 0.
        rate: its slope, or None for a value that stands still.
    """

    start: Array
    rate: Array | None = None


class Operation(NamedTuple):
    """One operation of a flat program; inputs and outputs are numbers of values."""

    primitive: Any
    params: dict[str, Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


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


def restrict(
    fun: Callable[[PyTree], Array], x: PyTree, dx: PyTree
) -> Callable[..., tuple[Affine, Float[Array, ""]]]:
    """The function along x + t dx, as a map from t to the affine piece just right of it.

    Args:
        fun: piecewise linear along the line; of one argument, a tree of arrays; gives one array.
        x: where the line starts, a tree of floating-point arrays.
        dx: its direction, of the same structure, or None in place of a leaf that stands still.

    Returns:
        A pure function that gives, for a scalar t, the piece (its start and its rate, never None)
        and where it ends, infinite if it does not; with a second argument -1 the same along
        x - t dx.

    Raises:
        ValueError: from the returned function or from here, if the program is not piecewise linear
            along such a line or has operations that cannot be followed; the message names the
            operation and the way out.
        TypeError: if dx does not have the structure of x.
    """
    x_leaves, tree = jax.tree.flatten(x)
    at_rest = lambda leaf: leaf is None  # noqa: E731
    dx_leaves, dx_tree = jax.tree.flatten(dx, is_leaf=at_rest)
    if jax.tree.structure(jax.tree.unflatten(dx_tree, [0] * len(dx_leaves))) != tree:
        raise TypeError(f"dx has the structure {dx_tree}, but x has {tree}: they must agree")
    program = jax.make_jaxpr(fun)(x)
    if len(program.out_avals) != 1:
        raise ValueError(f"fun must return one array, got {len(program.out_avals)}")
    values = {
        k: Affine(jnp.asarray(v), None if dv is None else jnp.asarray(dv, jnp.result_type(v)))
        for k, (v, dv) in enumerate(zip(x_leaves, dx_leaves, strict=True))
    }
    operations: list[Operation] = []
    (out,) = _flatten(program, list(values), values, operations, itertools.count(len(values)))
    dtype = program.out_avals[0].dtype

    start = Walk(jnp.zeros((), dtype))
    rest: list[Operation] = []
    for op in operations:
        known = all(k in values for k in op.inputs)
        moving = known and any(values[k].rate is not None for k in op.inputs)
        if known and not (moving and op.primitive.name in CHOICES):
            values |= _run(op, values, start)
        else:
            rest.append(op)

    def piece(
        t: Float[Array, ""], side: Float[Array, ""] | float = 1.0
    ) -> tuple[Affine, Float[Array, ""]]:
        walk = Walk(jnp.asarray(t, dtype))
        now = {
            k: Affine(v.start, None if v.rate is None else v.rate * jnp.asarray(side, v.rate.dtype))
            for k, v in values.items()
        }
        for op in rest:
            now |= _run(op, now, walk)
        result = now[out]
        return Affine(result.start, _rate(result)), walk.end

    return piece


# Flattening -------------------------------------------------------------------------------------

CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
}
"""Operations that are a program of their own, and the parameter that holds it."""


def _flatten(
    program: Any,
    inputs: Sequence[int],
    values: dict[int, Affine],
    operations: list[Operation],
    fresh: Iterator[int],
) -> list[int]:
    """Append a program's operations, calls written out; the numbers of its results."""

    def constant(value: Any, dtype: Any = None) -> int:
        number = next(fresh)
        values[number] = Affine(jnp.asarray(value, dtype))
        return number

    jaxpr, consts = getattr(program, "jaxpr", program), getattr(program, "consts", ())
    names = dict(zip(jaxpr.invars, inputs, strict=True))
    names |= {var: constant(c) for var, c in zip(jaxpr.constvars, consts, strict=True)}

    def read(atom: Any) -> int:
        if isinstance(atom, jex.core.Literal):
            return constant(atom.val, getattr(atom.aval, "dtype", None))
        return names[atom]

    for eqn in jaxpr.eqns:
        ins = [read(atom) for atom in eqn.invars]
        if eqn.primitive.name in CALLS:
            inner = eqn.params[CALLS[eqn.primitive.name]]
            outs = _flatten(inner, ins, values, operations, fresh)
        else:
            outs = [next(fresh) for _ in eqn.outvars]
            operations.append(Operation(eqn.primitive, eqn.params, tuple(ins), tuple(outs)))
        names |= dict(zip(eqn.outvars, outs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _run(op: Operation, values: dict[int, Affine], walk: Walk) -> dict[int, Affine]:
    """An operation's results by number."""
    args = [values[k] for k in op.inputs]
    name = op.primitive.name
    if all(arg.rate is None for arg in args):
        results = [Affine(value) for value in _bind(op, *[arg.start for arg in args])]
    elif name in CHOICES:
        results = CHOICES[name](walk, op.params, *args)
    else:
        results = _linear(op, args)
    return dict(zip(op.outputs, results, strict=True))


def _bind(op: Operation, *args: Array) -> list[Array]:
    results = op.primitive.bind(*args, **op.params)
    return list(results) if op.primitive.multiple_results else [results]


# Linear operations ------------------------------------------------------------------------------

LINEAR = frozenset(
    {
        "add",
        "add_any",
        "broadcast_in_dim",
        "concatenate",
        "convert_element_type",
        "copy",
        "copy_p",
        "cumsum",
        "dynamic_slice",
        "dynamic_update_slice",
        "expand_dims",
        "gather",
        "neg",
        "optimization_barrier",
        "pad",
        "reduce_sum",
        "reduce_window_sum",
        "reshape",
        "rev",
        "scatter",
        "scatter-add",
        "select_n",
        "slice",
        "split",
        "squeeze",
        "stack",
        "stop_gradient",
        "sub",
        "tile",
        "transpose",
        "unstack",
    }
)
"""Operations linear in all that can move of theirs."""

PRODUCTS = frozenset({"mul", "dot_general", "conv_general_dilated"})
"""Operations linear in each factor: one of them may move."""


def _linear(op: Operation, args: list[Affine]) -> list[Affine]:
    name = op.primitive.name
    moving = [k for k, arg in enumerate(args) if arg.rate is not None]
    if name in PRODUCTS and len(moving) > 1:
        raise ValueError(
            f"{name} multiplies two values that both move along the line, of shapes "
            f"{[args[k].start.shape for k in moving]}: the function is no longer piecewise linear; "
            "move fewer layers at once, for example one after the other"
        )
    fine = (
        name in LINEAR
        or name in PRODUCTS
        or (name == "div" and moving == [0])
        or (name == "integer_pow" and op.params["y"] == 1)
    )
    if name == "convert_element_type" and not jnp.issubdtype(op.params["new_dtype"], jnp.floating):
        fine = False
    if not fine:
        raise ValueError(
            f"{name} of a value that moves along the line, of shape "
            f"{args[moving[0]].start.shape}, is not piecewise linear (or not followed): use a "
            "piecewise-linear function in its place, such as an interpolant of the activation, or "
            "move only parameters behind it"
        )
    if name in ("stop_gradient", "optimization_barrier"):  # values as they are
        return args

    def value(*moved: Array) -> list[Array]:
        starts = [arg.start for arg in args]
        for k, start in zip(moving, moved, strict=True):
            starts[k] = start
        return _bind(op, *starts)

    starts, rates = [tuple(args[k][i] for k in moving) for i in (0, 1)]
    return [Affine(*pair) for pair in zip(*jax.jvp(value, starts, rates), strict=True)]


def _rate(value: Affine) -> Array:
    return jnp.zeros_like(value.start) if value.rate is None else value.rate


def _subtract(a: Affine, b: Affine) -> Affine:
    if a.rate is None and b.rate is None:
        return Affine(a.start - b.start)
    return Affine(a.start - b.start, _rate(a) - _rate(b))


def _negate(a: Affine) -> Affine:
    return Affine(-a.start, None if a.rate is None else -a.rate)


def _where(condition: Bool[Array, "*shape"], a: Affine, b: Affine) -> Affine:
    rate = None
    if a.rate is not None or b.rate is not None:
        rate = jnp.where(condition, _rate(a), _rate(b))
    return Affine(jnp.where(condition, a.start, b.start), rate)


# Choices ----------------------------------------------------------------------------------------

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
        same = (d.start == 0) & (_rate(d) == 0)
        return [Affine(same if equal else ~same)]

    return compare


def _is_finite(walk: Walk, params: Params, x: Affine) -> list[Affine]:
    return [Affine(jnp.isfinite(x.start) & jnp.isfinite(_rate(x)))]


def _winner(walk: Walk, x: Affine) -> Int[Array, "*shape"]:
    """Which entry along the last axis is largest just right of t."""
    rate = _rate(x)

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
        *(jnp.take_along_axis(a, index[..., None], axis=-1)[..., 0] for a in (x.start, _rate(x)))
    )


def _to_end(x: Affine, axes: Sequence[int]) -> Affine:
    """The axes joined into one at the end."""
    kept = [k for k in range(x.start.ndim) if k not in axes]

    def move(a: Array) -> Array:
        a = jnp.transpose(a, (*kept, *axes))
        return a.reshape(*a.shape[: len(kept)], -1)

    return Affine(move(x.start), move(_rate(x)))


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

        rows = Affine(windows(x.start, -np.inf), windows(_rate(x), 0.0))
        best = _take(rows, _winner(walk, rows))
        return [best if sign > 0 else _negate(best)]

    return reduce


# Control flow -----------------------------------------------------------------------------------


def _inline(program: Any, args: Sequence[Affine], walk: Walk) -> list[Affine]:
    """A program's results for these arguments."""
    values = dict(enumerate(args))
    operations: list[Operation] = []
    outs = _flatten(program, list(values), values, operations, itertools.count(len(values)))
    for op in operations:
        values |= _run(op, values, walk)
    return [values[k] for k in outs]


def _scan(walk: Walk, params: Params, *args: Affine) -> list[Affine]:
    """A loop with a static number of turns, written out."""
    consts = list(args[: params["num_consts"]])
    carry = list(args[params["num_consts"] : params["num_consts"] + params["num_carry"]])
    xs = args[params["num_consts"] + params["num_carry"] :]
    length = params["length"]
    turns: list[list[Affine]] = [[] for _ in range(length)]
    for k in reversed(range(length)) if params["reverse"] else range(length):
        x = [Affine(v.start[k], None if v.rate is None else v.rate[k]) for v in xs]
        results = _inline(params["jaxpr"], [*consts, *carry, *x], walk)
        carry, turns[k] = results[: len(carry)], results[len(carry) :]
    stacked: list[Affine] = []
    for column in zip(*turns, strict=True):
        still = all(v.rate is None for v in column)
        rates = None if still else jnp.stack([_rate(v) for v in column])
        stacked.append(Affine(jnp.stack([v.start for v in column]), rates))
    return [*carry, *stacked]


def _cond(walk: Walk, params: Params, index: Affine, *args: Affine) -> list[Affine]:
    """Every branch is followed; the kinks of the one taken count."""
    branches, ends = params["branches"], []
    number = jnp.clip(index.start.astype(jnp.int32), 0, len(branches) - 1)
    results: list[list[Affine]] = []
    for branch in branches:
        inner = Walk(walk.t)
        results.append(_inline(branch, args, inner))
        ends.append(inner.end)
    walk.meets(jnp.stack(ends)[number])
    chosen: list[Affine] = []
    for column in zip(*results, strict=True):
        still = all(v.rate is None for v in column)
        rate = None if still else jnp.stack([_rate(v) for v in column])[number]
        chosen.append(Affine(jnp.stack([v.start for v in column])[number], rate))
    return chosen


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
    "scan": _scan,
    "cond": _cond,
}
"""Operations whose result is affine piece by piece: each chooses among what it is given."""
