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
from jaxtyping import Array, Float

from jaxmpd.choices import CHOICES, Affine, Params, Walk, rate_of

PyTree = Any


class Operation(NamedTuple):
    """One operation of a flat program; inputs and outputs are numbers of values."""

    primitive: Any
    params: dict[str, Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


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
    dx_leaves, dx_tree = jax.tree.flatten(dx, is_leaf=lambda leaf: leaf is None)
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
    (out,) = flatten(program, list(values), values, operations, itertools.count(len(values)))
    dtype = program.out_avals[0].dtype

    start = Walk(jnp.zeros((), dtype))
    rest: list[Operation] = []
    for op in operations:
        known = all(k in values for k in op.inputs)
        moving = known and any(values[k].rate is not None for k in op.inputs)
        if known and not (moving and op.primitive.name in FOLLOWED):
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
        return Affine(result.start, rate_of(result)), walk.end

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


def flatten(
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
            outs = flatten(inner, ins, values, operations, fresh)
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
        results = [Affine(value) for value in evaluate(op, *[arg.start for arg in args])]
    elif name in FOLLOWED:
        results = FOLLOWED[name](walk, op.params, *args)
    else:
        results = _linear(op, args)
    return dict(zip(op.outputs, results, strict=True))


def evaluate(op: Operation, *args: Array) -> list[Array]:
    """An operation's results for these values of its inputs."""
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
        return evaluate(op, *starts)

    starts, rates = [tuple(args[k][i] for k in moving) for i in (0, 1)]
    return [Affine(*pair) for pair in zip(*jax.jvp(value, starts, rates), strict=True)]


# Control flow -----------------------------------------------------------------------------------


def _inline(program: Any, args: Sequence[Affine], walk: Walk) -> list[Affine]:
    """A program's results for these arguments."""
    values = dict(enumerate(args))
    operations: list[Operation] = []
    outs = flatten(program, list(values), values, operations, itertools.count(len(values)))
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
        rates = None if still else jnp.stack([rate_of(v) for v in column])
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
        rate = None if still else jnp.stack([rate_of(v) for v in column])[number]
        chosen.append(Affine(jnp.stack([v.start for v in column])[number], rate))
    return chosen


LOOPS: dict[str, Callable[..., list[Affine]]] = {"scan": _scan, "cond": _cond}
"""Operations that hold programs of their own, followed where something in them moves."""

FOLLOWED = CHOICES | LOOPS
"""Operations whose result is affine piece by piece."""
