"""Flax models trained by the bare function's steps, and models that are no perceptrons."""

import doctest
from pathlib import Path
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from flax.core import FrozenDict
from flax.training.train_state import TrainState
from scipy.optimize import minimize_scalar

import jaxmpd
from jaxmpd.flax import as_function, bind, perceptron, train_step
from jaxmpd.network import Layer

pytestmark = pytest.mark.compiled_quickly

WIDTH = 7
DOCS = Path(__file__).parents[2] / "docs" / "flax.md"


def samples(count=80, outputs=1, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 2)).astype(np.float32)
    y = np.sin(2 * x[:, :1]) * x[:, 1:] + 0.1 * rng.normal(size=(count, outputs))
    return x, y.astype(np.float32)


X, Y = samples()


class Named(linen.Module):
    """Names that sort against the order of the calls, and a kernel that is nobody's layer."""

    @linen.compact
    def __call__(self, x):
        x = jnp.abs(linen.Dense(WIDTH, name="z")(x))
        x = jnp.abs(linen.Dense(WIDTH, name="y", use_bias=False)(x))
        return linen.Dense(1, name="a")(x)


class Raw(nnx.Module):
    """Attributes in the wrong order; the kernel and bias of the output bare."""

    def __init__(self, rngs):
        self.second = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.a_last = nnx.Param(jax.random.normal(rngs.params(), (WIDTH, 1)))
        self.shift = nnx.Param(jnp.zeros(1))
        self.third = nnx.Linear(2, WIDTH, use_bias=False, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, deterministic=True, rngs=rngs)

    def __call__(self, x):
        x = jax.nn.leaky_relu(self.third(x))
        x = self.dropout(nnx.leaky_relu(self.second(x)))
        return self.shift + x @ self.a_last


def linen_sequential():
    return linen.Sequential([linen.Dense(WIDTH), jax.nn.hard_tanh, linen.Dense(1)])


def nnx_sequential():
    rngs = nnx.Rngs(0)
    return nnx.Sequential(
        nnx.Linear(2, WIDTH, rngs=rngs), nnx.relu, nnx.Linear(WIDTH, 1, rngs=rngs)
    )


class Case(NamedTuple):
    """How to make a model; its activation; its layers' names in the order of calls; a step."""

    make: Any
    activation: jaxmpd.PiecewiseLinear
    layers: tuple[str, ...]
    step: jaxmpd.Step


MODELS = {
    "linen Sequential": Case(
        linen_sequential, jaxmpd.HARD_TANH, ("layers_0", "layers_2"), jaxmpd.Coordinates()
    ),
    "linen names": Case(Named, jaxmpd.ABS, ("z", "y", "a"), jaxmpd.Polish(5)),
    "nnx Sequential": Case(nnx_sequential, jaxmpd.RELU, ("0", "2"), jaxmpd.Coordinates()),
    "nnx attributes": Case(
        lambda: Raw(nnx.Rngs(0)), jaxmpd.LEAKY_RELU, ("third", "second", "a_last"), jaxmpd.Units()
    ),
}


def made(name):
    model = MODELS[name].make()
    if isinstance(model, nnx.Module):
        return model, None
    return model, model.init(jax.random.key(1), X)


def by_hand(name, params):
    """The layers, picked by name."""
    flat = {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }

    def pick(*ends):
        found = [v for k, v in flat.items() if any(f"{end}." in f"{k}." for end in ends)]
        return found[0] if found else None

    layers = []
    for layer in MODELS[name].layers:
        bare = layer == "a_last"
        kernel, bias = ("a_last", "shift") if bare else (f"{layer}.kernel", f"{layer}.bias")
        layers.append(Layer(pick(kernel), pick(bias)))
    return tuple(layers)


def train_bare(layers, activation, step, count=3):
    optimizer = jaxmpd.mpd(activation, steps=[step], seed=3)
    state = optimizer.init(layers)

    @jax.jit
    def update(layers, state):
        updates, state = optimizer.update(layers, state, layers, batch=(X, Y))
        return optax.apply_updates(layers, updates), state

    for _ in range(count):
        layers, state = update(layers, state)
    return layers, state


@pytest.mark.compiled_quickly(False)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains_parameter_for_parameter_like_the_bare_function(name):
    _, activation, _, kind = MODELS[name]
    model, variables = made(name)
    predict, params = as_function(model, variables)
    found = perceptron(predict, params, X)
    assert found.activation == activation
    start = found.layers(params)
    chex.assert_trees_all_equal(start, by_hand(name, params))
    chex.assert_trees_all_equal(found.rebuild(params, start), params)
    # The start's biases are zero: a bias in the wrong place would not show.
    rng = np.random.default_rng(0)
    start = jax.tree.map(lambda p: p + jnp.asarray(rng.normal(size=p.shape), p.dtype), start)
    params = found.rebuild(params, start)

    optimizer = bind(model, X, variables, optimizer=lambda f: jaxmpd.mpd(f, steps=[kind], seed=3))
    bare, bare_state = train_bare(start, activation, kind)
    if isinstance(model, nnx.Module):
        nnx.update(model, params)
        trainer = nnx.Optimizer(model, optimizer, wrt=nnx.Param)
        step = nnx.jit(lambda m, t: t.update(m, nnx.state(m, nnx.Param), batch=(X, Y)) and None)
        for _ in range(3):
            step(model, trainer)
        trained, output = nnx.state(model, nnx.Param), model(X)
        loss, count = trainer.opt_state.loss[...], trainer.step[...]
    else:
        state = TrainState.create(apply_fn=model.apply, params=params, tx=optimizer)
        traces = []
        step = jax.jit(lambda state, batch: (traces.append(1), train_step(state, batch))[1])
        for _ in range(3):
            state = step(state, (X, Y))
        assert len(traces) == 1
        trained, output = state.params, model.apply(state.params, X)
        loss, count = state.opt_state.loss, state.step
    assert jax.tree.structure(trained) == jax.tree.structure(params)
    assert count == 3
    chex.assert_trees_all_equal(found.layers(trained), bare)
    chex.assert_trees_all_equal(loss, bare_state.loss)
    # The loss the optimiser claims is the model's own, and it fell.
    assert float(jnp.mean((output - Y) ** 2)) == pytest.approx(float(loss), rel=1e-5)
    assert loss < 0.7 * np.mean((predict(params, X) - Y) ** 2)


def test_frozen_variables_and_the_collection_alone():
    model = Named()
    variables = model.init(jax.random.key(1), X)
    bare, _ = train_bare(by_hand("linen names", variables), jaxmpd.ABS, jaxmpd.Polish(5), 1)
    for tree in (FrozenDict(variables), variables["params"], FrozenDict(variables["params"])):
        optimizer = bind(
            model, X, tree, optimizer=lambda f: jaxmpd.mpd(f, steps=[jaxmpd.Polish(5)], seed=3)
        )
        update = jax.jit(lambda p, s, o=optimizer: o.update(p, s, p, batch=(X, Y)))
        updates, _ = update(tree, optimizer.init(tree))
        trained = optax.apply_updates(tree, updates)
        assert jax.tree.structure(trained) == jax.tree.structure(tree)
        chex.assert_trees_all_close(by_hand("linen names", trained), bare, rtol=1e-5, atol=1e-6)


def test_masks_name_the_models_own_parameters():
    """The optimiser inside `optax.masked`: what the mask leaves out stands still."""
    model = linen_sequential()
    params = model.init(jax.random.key(1), X)
    mask = jax.tree_util.tree_map_with_path(lambda path, _: "layers_0" in str(path), params)
    optimizer = optax.chain(
        optax.masked(bind(model, X, params), mask),
        optax.masked(optax.set_to_zero(), jax.tree.map(lambda m: not m, mask)),
    )
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optimizer)
    trained = jax.jit(train_step)(state, (X, Y)).params
    assert jax.tree.map(lambda a, b: bool(jnp.any(a != b)), trained, params) == mask


def test_gradients_and_any_optimiser_of_layers():
    """A gradient method behind the binding gets the gradient in its own layers."""
    model = nnx_sequential()
    optimizer = bind(
        model,
        X,
        optimizer=lambda f: optax.chain(
            optax.scale_by_adam(), jaxmpd.scale_by_exact_linesearch(f, budget=20)
        ),
    )
    predict, params = as_function(model)
    value = lambda p: jnp.mean((predict(p, X) - Y) ** 2)  # noqa: E731
    before, grads = jax.value_and_grad(value)(params)
    update = jax.jit(lambda g, s, p: optimizer.update(g, s, p, batch=(X, Y)))
    updates, state = update(grads, optimizer.init(params), params)
    after = value(optax.apply_updates(params, updates))
    assert float(after) == pytest.approx(float(state[-1].loss), rel=1e-5)
    assert after < 0.9 * before


class Refused(linen.Module):
    """One module a reason."""

    kind: str

    @linen.compact
    def __call__(self, x):
        hidden = linen.Dense(WIDTH, name="first")(x / 2 if self.kind == "scaled" else x)
        act = jnp.tanh if self.kind == "tanh" else jax.nn.relu
        y = act(hidden)
        if self.kind == "norm":
            y = linen.LayerNorm()(y)
        if self.kind == "roll":
            y = jnp.roll(y, 1, axis=1)
        if self.kind == "twice":
            y = act(linen.Dense(WIDTH, name="square")(y))
            y = y @ self.variables["params"]["square"]["kernel"]
        else:
            y = linen.Dense(WIDTH, name="second")(y)
        if self.kind == "residual":
            y = y + hidden
        y = jnp.abs(y) if self.kind == "differ" else act(y)
        y = linen.Dense(2, name="last")(y)
        return jax.nn.softmax(y) if self.kind == "softmax" else y


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("scaled", r"\['first'\]\['kernel'\] is the first kernel, but does not multiply"),
        ("tanh", r"between .*'first'.* and .*'second'.* stands no activation: .*tanh of a value"),
        ("norm", r"\['LayerNorm_0'\]\['bias'\].* is used 0 times"),
        ("roll", "on random inputs the model .* differ by"),
        ("twice", r"\['square'\]\['kernel'\].* is used 2 times"),
        ("residual", "'second'.* and .*'last'.* depends on more than the layer before"),
        ("differ", "the activations differ"),
        ("softmax", r"something follows the last layer, .*\['last'\]\['kernel'\]"),
    ],
)
def test_what_is_no_perceptron_is_told_why(kind, message):
    model = Refused(kind)
    params = model.init(jax.random.key(0), X)
    with pytest.raises(ValueError, match=message) as error:
        bind(model, X, params)
    assert "scale_by_exact_linesearch" in str(error.value)


def test_other_unfit_arguments():
    model = nnx_sequential()
    predict, params = as_function(model)
    with pytest.raises(ValueError, match=r"inputs has shape \(2,\)"):
        bind(model, X[0])
    with pytest.raises(TypeError, match="params must be None"):
        bind(model, X, params)
    with pytest.raises(TypeError, match="params are missing: Sequential"):
        bind(linen_sequential(), X)
    with pytest.raises(ValueError, match="params holds no arrays"):
        bind(lambda p, x: x, X, {})
    with pytest.raises(ValueError, match=r"\['n'\], int32 of shape \(\), is neither"):
        bind(lambda p, x: x @ p["w"], X, {"w": jnp.ones((2, 1)), "n": 3})
    conv = linen.Conv(2, (2,))
    with pytest.raises(ValueError, match=r"\['kernel'\], float32 of shape \(2, 2, 2\), is neither"):
        bind(conv, X, conv.init(jax.random.key(0), X))
    with pytest.raises(ValueError, match="the model has 4 parameters, but this tree has 1"):
        bind(predict, X, params).init({"w": jnp.ones(2)})


class Convolutional(nnx.Module):
    """Convolution, max-pooling, a residual connection."""

    def __init__(self, rngs):
        self.conv = nnx.Conv(1, 3, (3, 3), rngs=rngs)
        self.mix = nnx.Conv(3, 3, (1, 1), rngs=rngs)
        self.out = nnx.Linear(3, 2, rngs=rngs)

    def __call__(self, x):
        x = nnx.max_pool(nnx.relu(self.conv(x)), (2, 2), strides=(2, 2))
        x = x + nnx.leaky_relu(self.mix(x), 0.1)
        return self.out(jnp.max(x, axis=(1, 2)))


def test_a_convolutional_model_steps_to_the_brute_force_minimum_along_each_layers_line():
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        images = jnp.asarray(rng.normal(size=(9, 4, 4, 1)))
        targets = jnp.asarray(rng.normal(size=(9, 2)))
        model = Convolutional(nnx.Rngs(0))
        predict, params = as_function(model)
        params = jax.tree.map(lambda p: p.astype(np.float64), params)
        params = jax.tree.map(lambda p: p + 0.3 * jnp.asarray(rng.normal(size=p.shape)), params)
        value = jax.jit(lambda p: jnp.mean(jnp.sum((predict(p, images) - targets) ** 2, axis=1)))
        optimizer = jaxmpd.scale_by_exact_linesearch(predict, budget=160)
        grads = jax.grad(value)(params)
        update = jax.jit(lambda g, s, p: optimizer.update(g, s, p, batch=(images, targets)))
        updates, state = update(grads, optimizer.init(params), params)
        stepped = optax.apply_updates(params, updates)
        assert float(value(stepped)) < 0.95 * float(value(params))

        # One layer after the other, the last first, as the update says.
        layers = ["conv", "mix", "out"]
        now = params
        for k, name in reversed([*enumerate(layers)]):
            along = jax.tree_util.tree_map_with_path(
                lambda path, g, name=name: g if f"'{name}'" in str(path) else 0 * g, grads
            )
            move = lambda t, now=now, along=along: jax.tree.map(  # noqa: E731
                lambda p, d: p + t * d, now, along
            )
            line = jax.jit(lambda t, move=move: value(move(t)))
            grid = jnp.concatenate([-jnp.logspace(4, -6, 4000), jnp.logspace(-6, 4, 4000)])
            values = jax.jit(jax.vmap(line))(grid)
            best = int(jnp.argmin(values))
            lo, hi = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
            brute = minimize_scalar(
                lambda t, line=line: float(line(t)),
                bounds=(float(lo), float(hi)),
                method="bounded",
                options={"xatol": 1e-13},
            )
            reached = float(line(state.sizes[k]))
            assert reached == pytest.approx(min(brute.fun, float(values[best])), rel=1e-9)
            now = move(state.sizes[k])
        assert float(value(stepped)) == pytest.approx(float(value(now)), rel=1e-12)
        assert float(state.loss) == pytest.approx(float(value(now)), rel=1e-12)


def test_the_page_runs():
    failed, run = doctest.testfile(
        str(DOCS), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert not failed
    assert run > 10
