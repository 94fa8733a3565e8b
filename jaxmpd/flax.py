"""Flax models in, their own parameters back: perceptrons written in linen or nnx.

Nothing is declared and no name is interpreted: the model's own program is read
([`jaxmpd.kinks`][jaxmpd.kinks]), which tells the layers in the order they are called, their
activation, and whether there is anything else.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx
from flax.training.train_state import TrainState
from jaxtyping import Array, Float

from jaxmpd import kinks
from jaxmpd.activations import IDENTITY, PiecewiseLinear
from jaxmpd.arguments import fill_in, is_masked_out, leave_out
from jaxmpd.linesearch import Predict
from jaxmpd.network import Layer, PyTree, apply
from jaxmpd.trace import piecewise_linear_of
from jaxmpd.transform import mpd

OTHERWISE = "for a model that is no perceptron take jaxmpd.scale_by_exact_linesearch(predict)"

PASSING = frozenset({"broadcast_in_dim", "convert_element_type", "copy", "reshape"})
"""Operations that hand on what they are given."""

SAMPLES = 16
"""Random inputs that a perceptron and its model are compared on."""


@dataclass(frozen=True)
class Perceptron:
    """Where a model keeps the layers of a multi-layer perceptron.

    Attributes:
        activation: after every layer but the last.
        places: of each layer, in the order of their calls, the positions of its kernel and of its
            bias (or None) among the leaves of the model's parameters.
    """

    activation: PiecewiseLinear
    places: tuple[tuple[int, int | None], ...]

    def layers(self, params: PyTree) -> tuple[Layer, ...]:
        """The layers of parameters, or of anything of their structure, in the order of calls.

        Raises:
            ValueError: if there are not as many leaves as the model has.
        """
        leaves = jax.tree.leaves(params, is_leaf=is_masked_out)
        count = sum(1 if bias is None else 2 for _, bias in self.places)
        if len(leaves) != count:
            raise ValueError(f"the model has {count} parameters, but this tree has {len(leaves)}")
        return tuple(Layer(leaves[k], None if b is None else leaves[b]) for k, b in self.places)

    def rebuild(self, params: PyTree, layers: Sequence[Layer]) -> PyTree:
        """The parameters with these layers in place of their own."""
        leaves, tree = jax.tree.flatten(params, is_leaf=is_masked_out)
        for (kernel, bias), layer in zip(self.places, layers, strict=True):
            leaves[kernel] = layer.kernel
            if bias is not None:
                leaves[bias] = layer.bias
        return jax.tree.unflatten(tree, leaves)


def as_function(model: Any, params: PyTree | None = None) -> tuple[Predict, PyTree]:
    """A model as a function of parameters and inputs, and its parameters.

    Args:
        model: an nnx module; a linen module; or a function of parameters and inputs.
        params: for a linen module its variables, `{"params": ...}`, or what stands in them; for a
            function its parameters; None for an nnx module, which holds them.

    Returns:
        The function and the parameters. Those of an nnx module are its `nnx.Param`s; whatever else
        it holds stays as it is.

    Raises:
        TypeError: if params are missing or not wanted.

    Example:
        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> predict, params = as_function(model)
        >>> predict(params, jnp.ones((5, 2))).shape
        (5, 3)
    """
    if isinstance(model, nnx.Module):
        if params is not None:
            raise TypeError("params must be None: an nnx module holds its own")
        graph, state, rest = nnx.split(model, nnx.Param, ...)
        return lambda params, inputs: nnx.merge(graph, params, rest)(inputs), state
    if params is None:
        raise TypeError(f"params are missing: {type(model).__name__} does not hold its own")
    if not isinstance(model, linen.Module):
        return model, params
    run: Any = model.apply  # may return a changed state too, but is not asked to
    if isinstance(params, Mapping) and "params" in params:
        return run, params
    return lambda params, inputs: run({"params": params}, inputs), params


def bind(
    model: Any,
    inputs: Float[Array, "S d0"],
    params: PyTree | None = None,
    *,
    optimizer: Callable[[PiecewiseLinear], optax.GradientTransformation] = mpd,
) -> optax.GradientTransformationExtraArgs:
    """An optimiser of perceptrons for this model: it takes and gives parameters of its tree.

    Args:
        model: a multi-layer perceptron as [`as_function`][jaxmpd.flax.as_function] takes it, of
            one piecewise-linear activation; see [`perceptron`][jaxmpd.flax.perceptron].
        inputs: any, of the shape that the model takes.
        params: None for an nnx module.
        optimizer: makes the optimiser from the activation that the model turns out to have, such as
            `lambda f: jaxmpd.mpd(f, steps=jaxmpd.HYBRID, l2=1e-6)`. It works on the tuple of
            [`Layer`][jaxmpd.network.Layer]s in the order of calls.

    Returns:
        The transformation. `nnx.Optimizer.update` hands it the samples with `batch=`, a linen
        `TrainState` does with [`train_step`][jaxmpd.flax.train_step].

    Raises:
        ValueError: if the model is no multi-layer perceptron; the message says what is in the way.

    Example:
        >>> model = nnx.Sequential(
        ...     nnx.Linear(2, 16, rngs=(rngs := nnx.Rngs(0))), nnx.relu,
        ...     nnx.Linear(16, 1, rngs=rngs),
        ... )
        >>> x = jax.random.normal(jax.random.key(0), (500, 2))
        >>> y = jnp.sin(2 * x[:, :1]) * x[:, 1:]
        >>> optimizer = nnx.Optimizer(model, bind(model, x), wrt=nnx.Param)
        >>> @nnx.jit
        ... def step(model, optimizer, x, y):
        ...     optimizer.update(model, nnx.state(model, nnx.Param), batch=(x, y))
        >>> for _ in range(10):
        ...     step(model, optimizer, x, y)
        >>> bool(jnp.mean((model(x) - y) ** 2) < 0.3 * jnp.var(y))
        True
    """
    predict, whole = as_function(model, params)
    found = perceptron(predict, whole, inputs)
    # Typed as trees of arrays only; a tuple of layers is one as good as any.
    inner: Any = optax.with_extra_args_support(optimizer(found.activation))

    def one_by_one(tree: PyTree) -> PyTree:
        """What is masked out as a subtree, masked out parameter by parameter."""
        return fill_in(tree, jax.tree.map(lambda _: optax.MaskedNode(), whole))

    def init(params: PyTree) -> optax.OptState:
        return inner.init(found.layers(one_by_one(params)))

    def update(
        updates: PyTree, state: Any, params: PyTree | None = None, **extra: Any
    ) -> tuple[PyTree, Any]:
        layers = None if params is None else found.layers(one_by_one(params))
        if extra.get("full_params") is not None:
            extra["full_params"] = found.layers(extra["full_params"])
        given = one_by_one(updates)
        changes, state = inner.update(found.layers(given), state, layers, **extra)
        return leave_out(found.rebuild(given, changes), updates), state

    return optax.GradientTransformationExtraArgs(init, update)


def train_step(state: TrainState, batch: Any, grads: PyTree | None = None) -> TrainState:
    """What `TrainState.apply_gradients` does, for an optimiser that needs the samples.

    Args:
        state: parameters and optimiser.
        batch: `(inputs, targets)` or `(inputs, targets, weights)`.
        grads: for an optimiser that needs them too; message passing descent does not.

    Returns:
        The state after one update.

    Example:
        >>> model = linen.Sequential([linen.Dense(16), linen.relu, linen.Dense(1)])
        >>> x = jax.random.normal(jax.random.key(0), (500, 2))
        >>> y = jnp.sin(2 * x[:, :1]) * x[:, 1:]
        >>> params = model.init(jax.random.key(1), x)
        >>> optimizer = bind(model, x, params)
        >>> state = TrainState.create(apply_fn=model.apply, params=params, tx=optimizer)
        >>> for _ in range(10):
        ...     state = jax.jit(train_step)(state, (x, y))
        >>> bool(jnp.mean((model.apply(state.params, x) - y) ** 2) < 0.2 * jnp.var(y))
        True
    """
    update: Any = optax.with_extra_args_support(state.tx).update
    grads = state.params if grads is None else grads
    updates, opt_state = update(
        grads, state.opt_state, state.params, batch=batch, full_params=state.params
    )
    params = optax.apply_updates(state.params, updates)
    return state.replace(step=state.step + 1, params=params, opt_state=opt_state)


# Reading a model --------------------------------------------------------------------------------


@dataclass
class _Dense:
    """A layer found in a program: its leaves, and the numbers of what goes in and comes out."""

    kernel: int
    source: int
    result: int
    bias: int | None = None


def perceptron(predict: Predict, params: PyTree, inputs: Float[Array, "S d0"]) -> Perceptron:
    """The multi-layer perceptron that a function of parameters and inputs computes.

    The function is run on random parameters and inputs, operation by operation: what the result is
    told from does not depend on the parameters' values. What was found is then compared with the
    function itself.

    Args:
        predict: a function of parameters and S inputs.
        params: its parameters; only structure and shapes count.
        inputs: any, of the shape that it takes.

    Returns:
        Activation and layers.

    Raises:
        ValueError: if it is anything but a perceptron: products with kernels of two dimensions,
            with or without a bias, one piecewise-linear activation between them, every parameter
            used once. The message says what is in the way.

    Example:
        >>> params = {"w": jnp.ones((2, 4)), "b": jnp.ones(4), "a": jnp.ones((4, 1))}
        >>> predict = lambda p, x: jax.nn.relu(x @ p["w"] + p["b"]) @ p["a"]
        >>> found = perceptron(predict, params, jnp.ones((1, 2)))
        >>> [layer.kernel.shape for layer in found.layers(params)]
        [(2, 4), (4, 1)]
        >>> found.activation == piecewise_linear_of(jax.nn.relu)
        True
    """
    paths, tree = jax.tree_util.tree_flatten_with_path(params)
    names = ["params" + jax.tree_util.keystr(path).removesuffix(".value") for path, _ in paths]
    shape = jnp.shape(inputs)
    if len(shape) != 2:
        raise ValueError(f"inputs has shape {shape}: give the model rows, one a sample")
    rng = np.random.default_rng(0)
    leaves: list[np.ndarray] = []
    for name, (_, leaf) in zip(names, paths, strict=True):
        size = jnp.shape(leaf)
        if len(size) not in (1, 2) or not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise ValueError(
                f"{name}, {jnp.result_type(leaf)} of shape {size}, is neither the kernel nor the "
                f"bias of a layer: {OTHERWISE}"
            )
        leaves.append(3 * rng.normal(size=size) / (size[0] ** 0.5 if len(size) == 2 else 3))
    x = rng.normal(size=(SAMPLES, shape[1])) * np.logspace(-2, 2, SAMPLES)[:, None]

    with jax.enable_x64(True):
        run = _run(lambda leaves, x: predict(jax.tree.unflatten(tree, leaves), x), leaves, x)
        _check_use(run, names)
        activation = _activation(run, names)
        found = Perceptron(activation, tuple((dense.kernel, dense.bias) for dense in run.layers))
        layers = found.layers([jnp.asarray(leaf) for leaf in leaves])
        ours, theirs = apply(layers, jnp.asarray(x), activation), run.values[run.output]
        rounding = float(jnp.finfo(theirs.dtype).eps) ** 0.5
        gap = jnp.abs(ours - theirs) if ours.shape == theirs.shape else jnp.full((1, 1), jnp.inf)
        gap = float(jnp.max(gap / (1 + jnp.max(jnp.abs(ours), axis=1, keepdims=True))))
    if not gap <= rounding:
        raise ValueError(
            f"on random inputs the model (outputs of shape {theirs.shape}) and the perceptron read "
            f"off it (of shape {ours.shape}) differ by {gap:.2g} of their size: something besides "
            f"an elementwise activation stands between layers or behind the last; {OTHERWISE}"
        )
    return found


@dataclass
class _Run:
    """A program's operations, the values of everything in it, and the layers met."""

    operations: list[kinks.Operation]
    constants: dict[int, Array]
    values: dict[int, Array]
    alias: dict[int, int]
    layers: list[_Dense]
    inputs: int
    output: int


def _run(fun: Callable[..., Array], leaves: list[np.ndarray], x: np.ndarray) -> _Run:
    """Evaluate a function, and note every product of what comes in with a leaf."""
    program = jax.make_jaxpr(fun)(leaves, x)
    if len(program.out_avals) != 1:
        raise ValueError(f"the model must return one array, got {len(program.out_avals)}")
    count = len(leaves)
    affine: dict[int, Any] = {}
    operations: list[kinks.Operation] = []
    (output,) = kinks.flatten(
        program, range(count + 1), affine, operations, itertools.count(count + 1)
    )
    constants = {number: jnp.asarray(value.start) for number, value in affine.items()}
    values = constants | {k: jnp.asarray(a) for k, a in enumerate((*leaves, x))}
    run = _Run(operations, constants, values, {}, [], count, output)

    def origin(number: int) -> int:
        return run.alias.get(number, number)

    for op in operations:
        results = kinks.evaluate(op, *(values[k] for k in op.inputs))
        values |= zip(op.outputs, results, strict=True)
        name, (first, *others) = op.primitive.name, (*op.inputs, -1)
        second, result = others[0], op.outputs[0]
        if name in PASSING:
            run.alias[result] = origin(first)
        elif name == "dot_general" and origin(second) < count <= origin(first):
            kernel = values[second]
            plain = op.params["dimension_numbers"] == (((values[first].ndim - 1,), (0,)), ((), ()))
            if plain and kernel.shape == values[origin(second)].shape and kernel.ndim == 2:
                run.layers.append(_Dense(origin(second), first, result))
        elif name in ("add", "add_any"):
            for z, b in ((first, second), (second, first)):
                met = [dense for dense in run.layers if dense.result == z and dense.bias is None]
                if met and origin(b) < count and values[origin(b)].ndim == 1:
                    met[0].bias, met[0].result = origin(b), result
    return run


def _check_use(run: _Run, names: Sequence[str]) -> None:
    """That every parameter is used once, as kernel or bias, and the ends are where they belong."""
    used = [k for dense in run.layers for k in (dense.kernel, dense.bias) if k is not None]
    for k, name in enumerate(names):
        if used.count(k) != 1:
            raise ValueError(
                f"{name} of shape {run.values[k].shape} is used {used.count(k)} times as kernel or "
                f"bias of a layer `inputs @ kernel + bias`, not once: {OTHERWISE}"
            )
    if not run.layers:
        raise ValueError(f"params holds no arrays: {OTHERWISE}")
    first, last = run.layers[0], run.layers[-1]
    if run.alias.get(first.source, first.source) != run.inputs:
        raise ValueError(
            f"{names[first.kernel]} is the first kernel, but does not multiply the inputs "
            f"themselves: let the model take what it multiplies; {OTHERWISE}"
        )
    if run.alias.get(run.output, run.output) != last.result:
        raise ValueError(
            f"something follows the last layer, {names[last.kernel]}: let the model return what "
            f"that layer does, such as logits, and choose the loss to match; {OTHERWISE}"
        )


def _activation(run: _Run, names: Sequence[str]) -> PiecewiseLinear:
    """The one function between the layers."""
    found: dict[PiecewiseLinear, str] = {}
    for before, after in itertools.pairwise(run.layers):
        place = f"between {names[before.kernel]} and {names[after.kernel]}"
        z = run.values[before.result]

        def between(
            t: Array, before: _Dense = before, after: _Dense = after, z: Array = z
        ) -> Array:
            known = run.constants | {before.result: jnp.full(z.shape, t.astype(z.dtype))}
            for op in run.operations:
                if all(k in known for k in op.inputs):
                    results = kinks.evaluate(op, *(known[k] for k in op.inputs))
                    known |= zip(op.outputs, results, strict=True)
            if after.source not in known:
                raise ValueError(
                    "it depends on more than the layer before, such as a connection "
                    "from further back"
                )
            return known[after.source].ravel()[0]

        try:
            found.setdefault(piecewise_linear_of(between), place)
        except ValueError as error:
            raise ValueError(f"{place} stands no activation: {error}; {OTHERWISE}") from error
    if len(found) > 1:
        raise ValueError(f"the activations differ, {found}: a perceptron has one; {OTHERWISE}")
    return next(iter(found), IDENTITY)
