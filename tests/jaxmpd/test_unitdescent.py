import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxmpd
from jaxmpd import network
from jaxmpd.unitdescent import unit_descent

F = jaxmpd.LEAKY_HARD_TANH


def samples(count=150, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 2)).astype(np.float32)
    y = np.sin(2 * x[:, :1]) * x[:, 1:] + 0.1 * rng.normal(size=(count, 1))
    return x, y.astype(np.float32)


def mse(params, batch):
    return float(jnp.mean((network.apply(params, batch[0], F) - batch[1]) ** 2))


def test_the_loss_falls_never_rises_and_nothing_recompiles():
    layers = network.init(jax.random.key(0), (2, 6, 5, 1))
    params = {f"Dense_{k}": {"kernel": w, "bias": b} for k, (w, b) in enumerate(layers)}
    batch = samples()
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), unit_descent(F))
    state = first = optimizer.init(params)

    @jax.jit
    def step(params, state, batch):
        updates, state = optimizer.update(params, state, params, batch=batch, unknown=3)
        return optax.apply_updates(params, updates), state

    falls = [mse(params, batch)]
    for _ in range(4):
        params, state = step(params, state, batch)
        falls.append(mse(params, batch))
    assert np.all(np.diff(falls) <= 0)
    assert falls[-1] < 0.3 * falls[0]
    assert float(state[-1].loss) == pytest.approx(falls[-1], rel=1e-5)
    assert int(state[-1].steps) == 4
    step(params, state, samples(seed=1))
    assert step._cache_size() == 1
    chex.assert_trees_all_equal_shapes_and_dtypes(first, state)


def test_missing_and_unfit_arguments_are_named():
    params = network.init(jax.random.key(0), (2, 4, 3, 1))
    optimizer = unit_descent(F)
    state = optimizer.init(params)
    with pytest.raises(ValueError, match="not passing `params`"):
        optimizer.update(params, state, batch=samples())
    with pytest.raises(ValueError, match=r"batch must be \(inputs, targets\)"):
        optimizer.update(params, state, params)
    with pytest.raises(ValueError, match="l2=-1"):
        unit_descent(F, l2=-1)
    with pytest.raises(ValueError, match="do not chain"):
        optimizer.init((params[0], params[2]))
