import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from test_trace import Residual

import jaxmpd
from jaxmpd import losses, network
from jaxmpd.linesearch import scale_by_exact_linesearch

pytestmark = pytest.mark.compiled_quickly

F = jaxmpd.LEAKY_HARD_TANH


def samples(count=200, outputs=1, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 2)).astype(np.float32)
    y = np.sin(2 * x[:, :1]) * x[:, 1:] + 0.1 * rng.normal(size=(count, outputs))
    return x, y.astype(np.float32)


def mse(params, batch, f=F):
    return jnp.mean(jnp.sum((network.apply(params, batch[0], f) - batch[1]) ** 2, axis=1))


def chained(**options):
    return optax.chain(optax.scale_by_adam(), scale_by_exact_linesearch(F, **options))


def train(optimizer, params, batch, steps, value=mse):
    """Losses before and after every step."""
    state = optimizer.init(params)

    @jax.jit
    def step(params, state):
        updates, state = optimizer.update(
            jax.grad(value)(params, batch), state, params, batch=batch, unknown=3
        )
        return optax.apply_updates(params, updates), state

    falls = [float(value(params, batch))]
    for _ in range(steps):
        params, state = step(params, state)
        falls.append(float(value(params, batch)))
    assert step._cache_size() == 1  # nothing recompiles
    return params, state, falls


@pytest.mark.parametrize("hidden", [(12,), (5, 5, 4)])
def test_the_loss_falls_and_never_rises(hidden):
    params = network.init(jax.random.key(0), (2, *hidden, 1))
    batch = samples()
    _, state, falls = train(chained(), params, batch, 12)
    assert np.all(np.diff(falls) <= 0)
    assert falls[-1] < 0.8 * falls[0]
    assert float(state[-1].loss) == pytest.approx(falls[-1], rel=1e-5)
    assert int(state[-1].steps) == 12
    assert state[-1].sizes.shape == (len(hidden) + 1,)


def test_the_sign_and_the_length_of_the_updates_do_not_matter():
    params = network.init(jax.random.key(0), (2, 12, 1))
    batch = samples()
    _, _, up = train(chained(), params, batch, 5)
    optimizer = optax.chain(optax.scale_by_adam(), optax.scale(-1e-3), scale_by_exact_linesearch(F))
    _, _, scaled = train(optimizer, params, batch, 5)
    np.testing.assert_allclose(up, scaled, rtol=1e-3)


def test_perceptron_and_trace_agree():
    """Closed forms and the reading of the bare function take the same steps."""
    params = network.init(jax.random.key(1), (2, 6, 5, 1))
    batch = samples(100)
    closed, _, _ = train(chained(budget=100), params, batch, 2)
    optimizer = optax.chain(
        optax.scale_by_adam(),
        scale_by_exact_linesearch(lambda p, x: network.apply(p, x, F), budget=100, chunk=32),
    )
    traced, _, _ = train(optimizer, params, batch, 2)
    chex.assert_trees_all_close(closed, traced, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["softmax", "logistic"])
def test_other_losses(name):
    loss = losses.LOSSES[name]
    params = network.init(jax.random.key(1), (2, 6, 2))
    x, y = samples(outputs=2)
    y = np.eye(2, dtype=np.float32)[(y[:, 0] > 0).astype(int)]
    y = 2 * y - 1 if name == "logistic" else y
    value = lambda p, b: jnp.mean(loss(network.apply(p, b[0], F), b[1]))  # noqa: E731
    _, state, falls = train(chained(loss=loss), params, (x, y), 8, value)
    assert np.all(np.diff(falls) <= 1e-6)
    assert falls[-1] < 0.9 * falls[0]
    assert float(state[-1].loss) == pytest.approx(falls[-1], rel=1e-4)


def test_a_convolutional_network_with_pooling_and_a_residual_connection():
    rng = np.random.default_rng(0)
    images = jnp.asarray(rng.normal(size=(24, 6, 6, 1)), jnp.float32)
    labels = jax.nn.one_hot(jnp.asarray(rng.integers(0, 2, 24)), 2)
    model = Residual()
    params = model.init(jax.random.key(0), images)
    value = lambda p, b: jnp.mean(jnp.sum((model.apply(p, b[0]) - b[1]) ** 2, axis=1))  # noqa: E731
    optimizer = optax.chain(
        optax.scale_by_adam(), scale_by_exact_linesearch(model.apply, budget=12, chunk=16)
    )
    trained, state, falls = train(optimizer, params, (images, labels), 5, value)
    assert np.all(np.diff(falls) <= 0)
    assert falls[-1] < 0.8 * falls[0]
    assert jax.tree.structure(trained) == jax.tree.structure(params)
    assert state[-1].sizes.shape == (3,)


def test_nnx_optimizer_forwards_the_batch():
    model = nnx.Sequential(
        nnx.Linear(2, 8, rngs=nnx.Rngs(0)), nnx.relu, nnx.Linear(8, 1, rngs=nnx.Rngs(1))
    )
    graph, _ = nnx.split(model)
    predict = lambda state, x: nnx.merge(graph, state)(x)  # noqa: E731
    optimizer = nnx.Optimizer(
        model,
        optax.chain(optax.scale_by_adam(), scale_by_exact_linesearch(predict)),
        wrt=nnx.Param,
    )
    batch = samples(60)

    @nnx.jit
    def step(model, optimizer):
        loss = lambda m: jnp.mean((m(batch[0]) - batch[1]) ** 2)  # noqa: E731
        value, grads = nnx.value_and_grad(loss)(model)
        optimizer.update(model, grads, batch=batch)
        return value

    falls = [float(step(model, optimizer)) for _ in range(5)]
    assert np.all(np.diff(falls) <= 0)
    assert falls[-1] < falls[0]


def test_padding_counts_for_nothing_and_dtypes_are_kept():
    params = network.init(jax.random.key(0), (2, 6, 1))
    x, y = samples(40)
    padded = (
        np.concatenate([x, np.full((9, 2), np.nan, np.float32)]),
        np.concatenate([y, np.full((9, 1), np.inf, np.float32)]),
        np.concatenate([np.ones(40, np.float32), np.zeros(9, np.float32)]),
    )
    optimizer = scale_by_exact_linesearch(F, budget=3)
    update = jax.jit(lambda g, s, p, b: optimizer.update(g, s, p, batch=b))
    state = optimizer.init(params)
    grads = jax.grad(mse)(params, (x, y))
    plain, after = update(grads, state, params, (x, y))
    same, _ = update(grads, state, params, padded)
    chex.assert_trees_all_close(plain, same, rtol=1e-4, atol=1e-6)
    chex.assert_trees_all_equal_shapes_and_dtypes(state, after)
    with jax.enable_x64(True):
        updates, after = update(grads, state, params, (x, y))
        chex.assert_trees_all_equal_shapes_and_dtypes(updates, params)
        chex.assert_trees_all_equal_shapes_and_dtypes(state, after)


def test_loops_agree():
    params = network.init(jax.random.key(0), (2, 6, 1))
    batch = tuple(map(jnp.asarray, samples(60)))
    optimizer = chained()

    def step(carry, _):
        params, state = carry
        updates, state = optimizer.update(jax.grad(mse)(params, batch), state, params, batch=batch)
        return (optax.apply_updates(params, updates), state), None

    start = (params, optimizer.init(params))
    jitted = start
    for _ in range(3):
        jitted, _ = jax.jit(step)(jitted, None)
    scanned, _ = jax.jit(lambda c: jax.lax.scan(step, c, None, length=3))(start)
    chex.assert_trees_all_close(jitted[0], scanned[0], rtol=1e-4, atol=1e-5)


def test_missing_and_unfit_arguments_are_named():
    params = network.init(jax.random.key(0), (2, 6, 1))
    optimizer = scale_by_exact_linesearch(F)
    state = optimizer.init(params)
    x, y = samples(10)
    with pytest.raises(ValueError, match="not passing `params`"):
        optimizer.update(params, state, batch=(x, y))
    with pytest.raises(ValueError, match=r"update needs the samples"):
        optimizer.update(params, state, params)
    with pytest.raises(ValueError, match=r"shapes \[\(10, 2\), \(10,\)\]"):
        optimizer.update(params, state, params, batch=(x, y[:, 0]))
    with pytest.raises(ValueError, match="budget=0"):
        scale_by_exact_linesearch(F, budget=0)
    smooth = scale_by_exact_linesearch(lambda p, x: jnp.tanh(x @ p["w"]))
    weights = {"w": jnp.ones((2, 1))}
    with pytest.raises(ValueError, match="tanh of a value that moves"):
        smooth.update(weights, smooth.init(weights), weights, batch=(x, y))


def test_linen_trees_come_back_as_they_are():
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.relu(nn.Dense(6)(x))
            return nn.Dense(1)(x)

    model, batch = Model(), samples()
    params = model.init(jax.random.key(0), batch[0])
    optimizer = optax.chain(optax.scale_by_adam(), scale_by_exact_linesearch(jaxmpd.RELU))
    value = lambda p, b: jnp.mean((model.apply(p, b[0]) - b[1]) ** 2)  # noqa: E731
    trained, _, falls = train(optimizer, params, batch, 5, value)
    assert jax.tree.structure(trained) == jax.tree.structure(params)
    assert falls[-1] < falls[0]


MODELS = {"perceptron": F, "function": lambda p, x: network.apply(p, x, F)}
MASKS = {
    "first layer": (False, network.Layer(True, True), network.Layer(True, True)),
    "all but a kernel": (False, network.Layer(True, False), False),
    "some biases": (network.Layer(True, False), network.Layer(True, True), False),
    "nothing": (network.Layer(True, True),) * 3,
}


def by_mask(optimizer, mask):
    return optax.chain(
        optax.masked(optimizer, mask),
        optax.masked(optax.set_to_zero(), jax.tree.map(lambda m: not m, mask)),
    )


def by_labels(optimizer, mask):
    labels = jax.tree.map(lambda m: "trained" if m else "frozen", mask)
    return optax.multi_transform({"trained": optimizer, "frozen": optax.set_to_zero()}, labels)


def is_state(node):
    return isinstance(node, jaxmpd.LineSearchState)


@pytest.mark.parametrize(("model", "restrict"), [("perceptron", by_mask), ("function", by_labels)])
@pytest.mark.parametrize("frozen", MASKS)
def test_what_is_frozen_stays_and_enters_the_loss(frozen, model, restrict):
    params = network.init(jax.random.key(2), (2, 5, 4, 1))
    batch, mask = samples(60), MASKS[frozen]
    optimizer = optax.chain(
        optax.scale_by_adam(), scale_by_exact_linesearch(MODELS[model], budget=6)
    )
    restricted = restrict(optimizer, mask)

    @jax.jit
    def step(params, state):
        updates, state = restricted.update(
            jax.grad(mse)(params, batch), state, params, batch=batch, full_params=params
        )
        return optax.apply_updates(params, updates), state

    new, state, falls = params, restricted.init(params), [float(mse(params, batch))]
    for _ in range(4):
        new, state = step(new, state)
        falls.append(float(mse(new, batch)))
    assert np.all(np.diff(falls) <= 0)
    free = jax.tree.map(lambda m, part: jax.tree.map(lambda _: m, part), mask, params)
    assert jax.tree.map(lambda a, b: bool(jnp.any(a != b)), new, params) == free
    (reported,) = filter(is_state, jax.tree.leaves(state, is_leaf=is_state))
    assert float(reported.loss) == pytest.approx(falls[-1], rel=1e-5)
    assert len(reported.sizes) == sum(any(layer) for layer in free)
    if frozen == "nothing":
        plain, _, _ = train(optimizer, params, batch, 4)
        chex.assert_trees_all_close(new, plain, rtol=1e-3, atol=1e-4)


def test_masked_without_the_whole_says_what_is_missing():
    params = network.init(jax.random.key(0), (2, 6, 1))
    optimizer = optax.masked(scale_by_exact_linesearch(F), (False, network.Layer(True, True)))
    with pytest.raises(ValueError, match="pass them as full_params="):
        optimizer.update(params, optimizer.init(params), params, batch=samples(10))


@pytest.mark.parametrize("model", MODELS)
def test_where_all_is_frozen_nothing_happens(model):
    params = network.init(jax.random.key(0), (2, 6, 1))
    optimizer = optax.masked(scale_by_exact_linesearch(MODELS[model]), (False, False))
    batch = samples(10)
    updates, state = optimizer.update(
        jax.tree.map(jnp.zeros_like, params),
        optimizer.init(params),
        params,
        batch=batch,
        full_params=params,
    )
    assert not any(jnp.any(update) for update in jax.tree.leaves(updates))
    assert float(state.inner_state.loss) == pytest.approx(float(mse(params, batch)), rel=1e-5)
