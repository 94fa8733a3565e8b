import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx
from flax.core import FrozenDict

import jaxmpd
from jaxmpd import network
from jaxmpd.steps import coordinate
from jaxmpd.transform import mpd

pytestmark = pytest.mark.compiled_quickly

WIDTH = 12


def samples(count=300, outputs=1, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 2)).astype(np.float32)
    y = np.sin(2 * x[:, :1]) * x[:, 1:] + 0.1 * rng.normal(size=(count, outputs))
    return x, y.astype(np.float32)


@pytest.fixture
def params():
    return network.init(jax.random.key(0), (2, WIDTH, 1))


def mse(params, batch, f=jaxmpd.LEAKY_HARD_TANH):
    return float(jnp.mean(jnp.sum((network.apply(params, batch[0], f) - batch[1]) ** 2, axis=1)))


def run(optimizer, params, batch, steps, **extra):
    state = optimizer.init(params)

    @jax.jit
    def step(params, state):
        updates, state = optimizer.update(params, state, params, batch=batch, **extra)
        return optax.apply_updates(params, updates), state

    losses = [mse(params, batch)]
    for _ in range(steps):
        params, state = step(params, state)
        losses.append(mse(params, batch))
    return params, state, losses


@pytest.mark.parametrize("f", [jaxmpd.LEAKY_HARD_TANH, jaxmpd.RELU, jaxmpd.ABS])
@pytest.mark.parametrize("outputs", [1, 2])
def test_the_loss_falls_and_never_rises(f, outputs):
    params = network.init(jax.random.key(1), (2, WIDTH, outputs))
    batch = samples(outputs=outputs)
    state = (optimizer := mpd(f)).init(params)
    step = jax.jit(lambda p, s: optimizer.update(p, s, p, batch=batch))
    previous = start = mse(params, batch, f)
    for _ in range(8):
        updates, state = step(params, state)
        params = optax.apply_updates(params, updates)
        assert float(state.loss) <= previous
        assert float(state.loss) == pytest.approx(mse(params, batch, f), rel=1e-5)
        previous = float(state.loss)
    assert previous < 0.4 * start


def test_a_sweep_is_the_textbook_algorithm():
    """Parameter by parameter, expanded from scratch and minimised, in the same order."""
    batch = samples(60)
    with jax.enable_x64(True):
        x, y = (jnp.asarray(a, jnp.float64) for a in batch)
        layers = network.init(jax.random.key(3), (2, 4, 1), jnp.float64)
        order = coordinate.random_order(jax.random.key(1), np.arange(4 * 3 + 4 + 1), 17)
        swept = jax.jit(lambda l: coordinate.sweep(l, jaxmpd.Batch(x, y), order, jaxmpd.HARD_TANH))(
            layers
        )
        plain = [[np.array(a) for a in layer] for layer in layers]
        expand = jax.jit(
            lambda layers, row, column, layer: (
                jaxmpd.minimize(
                    jaxmpd.expand(
                        layers,
                        jaxmpd.Batch(x, y),
                        jaxmpd.Coordinate(layer, row, column),
                        jaxmpd.HARD_TANH,
                    )
                ).argmin
            ),
            static_argnums=3,
        )
        for number in map(int, order):
            layer, row, column = (
                (0, number % 3, number // 3) if number < 12 else (1, number - 12, 0)
            )
            now = [network.Layer(*map(jnp.asarray, p)) for p in plain]
            t = float(expand(now, row, column, layer))
            if row == plain[layer][0].shape[0]:
                plain[layer][1][column] += t
            else:
                plain[layer][0][row, column] += t
        for got, expected in zip(swept, plain, strict=True):
            np.testing.assert_allclose(got.kernel, expected[0], rtol=1e-7, atol=1e-9)
            np.testing.assert_allclose(got.bias, expected[1], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("count", [1, 5])
def test_a_step_visits_as_many_parameters_as_asked(params, count):
    batch = samples()
    optimizer = mpd(steps=[jaxmpd.Coordinates(count)])
    updates, _ = optimizer.update(params, optimizer.init(params), params, batch=batch)
    moved = sum(int(jnp.sum(leaf != 0)) for leaf in jax.tree.leaves(updates))
    assert 1 <= moved <= count


def test_the_second_update_does_not_recompile(params):
    batch = samples()
    optimizer = mpd()

    @jax.jit
    @chex.assert_max_traces(n=1)
    def step(params, state, batch):
        updates, state = optimizer.update(params, state, params, batch=batch)
        return optax.apply_updates(params, updates), state

    state = optimizer.init(params)
    for seed in range(3):
        params, state = step(params, state, samples(seed=seed))
    chex.assert_tree_all_finite(params)
    del batch


@pytest.mark.compiled_quickly(False)
def test_plain_jitted_and_scanned_loops_agree(params):
    batch = tuple(map(jnp.asarray, samples(100)))
    optimizer = mpd(seed=4)

    def step(carry, _):
        params, state = carry
        updates, state = optimizer.update(params, state, params, batch=batch)
        return (optax.apply_updates(params, updates), state), state.loss

    jitted = plain = (params, optimizer.init(params))
    for _ in range(3):
        plain, _ = step(plain, None)
        jitted, _ = jax.jit(step)(jitted, None)
    scanned, losses = jax.jit(lambda c: jax.lax.scan(step, c, None, length=3))(
        (params, optimizer.init(params))
    )
    chex.assert_trees_all_close(plain[0], jitted[0], rtol=1e-5, atol=1e-6)
    chex.assert_trees_all_close(scanned[0], jitted[0], rtol=1e-5, atol=1e-6)
    chex.assert_shape(losses, (3,))


@pytest.mark.parametrize(
    ("x64", "dtype"), [(False, "float32"), (True, "float32"), (True, "float64")]
)
def test_state_and_updates_keep_their_dtypes(x64, dtype):
    with jax.enable_x64(x64):
        params = network.init(jax.random.key(0), (2, 4, 1), dtype)
        optimizer = mpd()
        before = optimizer.init(params)
        x, y = samples(50)
        updates, after = jax.jit(lambda p, s: optimizer.update(p, s, p, batch=(x, y)))(
            params, before
        )
        chex.assert_trees_all_equal_shapes_and_dtypes(before, after)
        chex.assert_trees_all_equal_shapes_and_dtypes(updates, params)
        assert before.steps.dtype == jnp.int32
        assert before.loss.dtype == dtype


def test_unknown_extra_arguments_are_ignored(params):
    optimizer = mpd()
    x, y = samples(50)
    state = optimizer.init(params)
    plain, _ = optimizer.update(params, state, params, batch=(x, y))
    extra, _ = optimizer.update(params, state, params, batch=(x, y), value=3.0, grad=None, who="me")
    chex.assert_trees_all_equal(plain, extra)


def test_incoming_updates_do_not_matter(params):
    optimizer = mpd()
    x, y = samples(50)
    state = optimizer.init(params)
    wild = jax.tree.map(lambda p: jnp.full_like(p, jnp.nan), params)
    chex.assert_trees_all_equal(
        optimizer.update(wild, state, params, batch=(x, y)),
        optimizer.update(params, state, params, batch=(x, y)),
    )


def test_padding_counts_for_nothing(params):
    x, y = samples(50)
    optimizer = mpd()
    state = optimizer.init(params)
    padded = (
        np.concatenate([x, np.full((14, 2), np.nan, np.float32)]),
        np.concatenate([y, np.full((14, 1), np.inf, np.float32)]),
        np.concatenate([np.ones(50, np.float32), np.zeros(14, np.float32)]),
    )
    plain, after = optimizer.update(params, state, params, batch=(x, y))
    same, after_padded = optimizer.update(params, state, params, batch=padded)
    chex.assert_trees_all_close(plain, same, rtol=1e-4, atol=1e-5)
    assert float(after.loss) == pytest.approx(float(after_padded.loss), rel=1e-5)


def test_last_in_a_chain(params):
    batch = samples()
    chained = optax.chain(optax.clip_by_global_norm(1.0), mpd())
    _, _, losses = run(chained, params, batch, 4)
    _, _, alone = run(mpd(), params, batch, 4)
    np.testing.assert_allclose(losses, alone, rtol=1e-5)


def test_masked_moves_only_what_the_mask_names(params):
    batch = samples()
    mask = (network.Layer(True, False), network.Layer(False, True))
    optimizer = optax.chain(
        optax.masked(mpd(), mask),
        optax.masked(optax.set_to_zero(), jax.tree.map(lambda m: not m, mask)),
    )
    state = optimizer.init(params)
    updates, _ = optimizer.update(params, state, params, batch=batch, full_params=params)
    moved = jax.tree.map(lambda u: bool(jnp.any(u != 0)), updates)
    assert moved == mask
    assert mse(optax.apply_updates(params, updates), batch) < mse(params, batch)


def test_multi_transform_shares_the_parameters_with_another_optimiser(params):
    batch = samples()
    labels = (network.Layer("mpd", "mpd"), network.Layer("adam", "adam"))
    optimizer = optax.multi_transform({"mpd": mpd(), "adam": optax.adam(1e-2)}, labels)
    state = optimizer.init(params)

    @jax.jit
    def step(params, state):
        grads = jax.grad(
            lambda p: jnp.mean((network.apply(p, batch[0], jaxmpd.LEAKY_HARD_TANH) - batch[1]) ** 2)
        )(params)
        updates, state = optimizer.update(grads, state, params, batch=batch, full_params=params)
        return optax.apply_updates(params, updates), state

    start = mse(params, batch)
    for _ in range(10):
        params, state = step(params, state)
    assert mse(params, batch) < 0.7 * start


def test_masked_without_the_whole_says_what_is_missing(params):
    mask = (network.Layer(True, False), network.Layer(True, True))
    optimizer = optax.masked(mpd(), mask)
    state = optimizer.init(params)
    with pytest.raises(ValueError, match="pass them as full_params="):
        optimizer.update(params, state, params, batch=samples(20))


def test_missing_and_unfit_arguments_are_named(params):
    optimizer = mpd()
    state = optimizer.init(params)
    x, y = samples(20)
    with pytest.raises(ValueError, match="not passing `params`"):
        optimizer.update(params, state, batch=(x, y))
    with pytest.raises(ValueError, match=r"batch=\(inputs, targets\)"):
        optimizer.update(params, state, params)
    with pytest.raises(
        ValueError, match=r"shapes \[\(20, 2\), \(20,\)\].*targets of shape \(S, 1\)"
    ):
        optimizer.update(params, state, params, batch=(x, y[:, 0]))
    with pytest.raises(ValueError, match="no samples"):
        optimizer.update(params, state, params, batch=(x[:0], y[:0]))
    with pytest.raises(ValueError, match="must be \\(inputs, targets\\)"):
        optimizer.update(params, state, params, batch=x)
    with pytest.raises(ValueError, match="count must be a positive integer, got 0"):
        mpd(steps=[jaxmpd.Coordinates(0)])
    with pytest.raises(ValueError, match="needs one hidden layer"):
        optimizer.init(network.init(jax.random.key(0), (2, 3, 3, 1)))
    with pytest.raises(ValueError, match="one floating-point dtype"):
        optimizer.init(jax.tree.map(lambda p: p.astype(int), params))


class LinenModel(nn.Module):
    @nn.compact
    def __call__(self, x):
        hidden = jax.nn.relu(nn.Dense(WIDTH)(x))
        return nn.Dense(1)(hidden)


def test_linen_and_nnx_trees_train_like_the_bare_parameters(params):
    batch = samples()
    optimizer = mpd(jaxmpd.RELU)
    bare, _, _ = run(optimizer, params, batch, 2)
    named = {"params": {f"Dense_{k}": {"kernel": w, "bias": b} for k, (w, b) in enumerate(params)}}
    for tree in (named, FrozenDict(named)):
        trained, _, _ = run(optimizer, tree, batch, 2)
        assert jax.tree.structure(trained) == jax.tree.structure(tree)
        layers, _ = network.as_layers(trained)
        chex.assert_trees_all_equal(layers, bare)
    LinenModel().apply(trained.unfreeze(), batch[0])  # the tree is the model's own

    class NnxModel(nnx.Module):
        def __init__(self, rngs):
            self.hidden, self.output = (
                nnx.Linear(2, WIDTH, rngs=rngs),
                nnx.Linear(WIDTH, 1, rngs=rngs),
            )

    model = NnxModel(nnx.Rngs(0))
    state = nnx.state(model, nnx.Param)
    _, rebuild = network.as_layers(state)
    nnx.update(model, rebuild(params))
    trainer = nnx.Optimizer(model, optimizer, wrt=nnx.Param)

    @nnx.jit
    def step(model, trainer):
        trainer.update(model, nnx.state(model, nnx.Param), batch=batch)

    for _ in range(2):
        step(model, trainer)
    layers, _ = network.as_layers(nnx.state(model, nnx.Param))
    chex.assert_trees_all_close(layers, bare, rtol=1e-5, atol=1e-6)
