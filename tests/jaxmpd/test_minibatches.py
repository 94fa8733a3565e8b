import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxmpd.losses import Batch, squared_error, weighted_mean
from jaxmpd.minibatches import BatchSize, constant, partition, shape, take

SHAPES = [(1, 1), (1, 5), (7, 1), (10, 4), (12, 4), (13, 4), (2049, 2048), (300, 299), (5, 5)]


@pytest.mark.parametrize(("samples", "size"), SHAPES)
def test_every_sample_exactly_once_and_no_minibatch_short(samples, size):
    indices = np.asarray(partition(jax.random.key(1), samples, size))
    assert indices.shape[0] == -(-samples // size)
    assert indices.shape[1] <= size
    real = indices >= 0
    assert sorted(indices[real]) == list(range(samples))
    counts = real.sum(axis=1)
    assert counts.max() - counts.min() <= 1


@settings(deadline=None)
@given(st.integers(1, 10**7), st.integers(1, 10**7))
def test_shape_holds_all_samples_and_pads_each_minibatch_at_most_once(samples, size):
    number, width = shape(samples, size)
    assert number == -(-samples // size)
    assert width <= size
    assert 0 <= number * width - samples < number


def test_partitions_differ_by_key_and_repeat_by_key():
    draw = jax.jit(lambda seed: partition(jax.random.key(seed), 40, 7))
    assert not (draw(0) == draw(1)).all()
    assert (draw(3) == draw(3)).all()


def test_every_pair_of_samples_meets_equally_often():
    draws = jax.vmap(lambda key: partition(key, 6, 3))(jax.random.split(jax.random.key(0), 4000))
    first = (draws == 0).any(axis=-1)  # the minibatch that holds sample 0
    together = [
        float(jnp.mean(jnp.any(first & (draws == k).any(axis=-1), axis=-1))) for k in range(1, 6)
    ]
    # 2 of the 5 others share its minibatch; the standard deviation is 0.0077.
    assert np.allclose(together, 0.4, atol=0.04)


def test_take_pads_by_weight_zero():
    inputs = jnp.array([[jnp.nan], [1.0], [2.0]])
    data = Batch(inputs, 2 * inputs, jnp.array([1.0, 2.0, 3.0]))
    batch = take(data, jnp.array([2, -1, 1]))
    assert batch.weights.tolist() == [3.0, 0.0, 2.0]
    # The pad shows sample 0, whose NaN must not leak into a mean.
    error = squared_error(batch.inputs, batch.targets)
    assert weighted_mean(error, batch.weights) == (3 * 4 + 2 * 1) / 5


def test_take_without_weights_and_with_integer_samples():
    data = Batch(jnp.arange(6).reshape(3, 2), jnp.arange(3))
    batch = take(data, jnp.array([1, -1]))
    assert batch.weights.tolist() == [1.0, 0.0]
    assert batch.weights.dtype == jnp.float32
    assert batch.targets.shape == (2,)


def test_minibatch_losses_average_to_the_full_loss():
    inputs = jnp.linspace(-1, 1, 11)[:, None]
    data = Batch(inputs, inputs**2)
    batches = jax.vmap(lambda i: take(data, i))(partition(jax.random.key(2), 11, 4))
    losses = jax.vmap(lambda b: weighted_mean(squared_error(b.inputs, b.targets), b.weights))(
        batches
    )
    full = jnp.mean(squared_error(*data[:2]))
    counts = batches.weights.sum(axis=1)
    assert jnp.allclose(jnp.sum(losses * counts) / 11, full, rtol=1e-6)


@settings(max_examples=50, deadline=None)
@given(
    st.builds(
        BatchSize,
        initial=st.integers(1, 5000),
        hold=st.integers(0, 300),
        every=st.integers(1, 300),
        factor=st.floats(1, 4),
    ),
    st.integers(1, 10**6),
)
def test_size_holds_then_grows_to_all_samples(size, samples):
    sizes = [size(t, samples) for t in range(0, 5000, 7)]
    assert all(a <= b <= samples for a, b in itertools.pairwise(sizes))
    if size.hold:
        assert sizes[0] == size(size.hold - 1, samples) == min(size.initial, samples)
    if size.factor > 1.001:
        assert size(10**9, samples) == samples


def test_size_by_hand():
    size = BatchSize(initial=10, hold=3, every=2, factor=1.5)
    assert [size(t, 30) for t in range(9)] == [10, 10, 10, 15, 15, 22, 22, 30, 30]


def test_constant_never_grows():
    assert [constant(256)(t, 1000) for t in (0, 200, 10**9)] == [256] * 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"initial": 0}, "initial=0"),
        ({"hold": -1}, "hold=-1"),
        ({"every": 0}, "every=0"),
        ({"factor": 0.5}, "factor must be finite and at least 1"),
        ({"factor": float("inf")}, "factor must be finite and at least 1"),
        ({"factor": float("nan")}, "factor must be finite and at least 1"),
    ],
)
def test_size_out_of_range(arguments, message):
    with pytest.raises(ValueError, match=message):
        BatchSize(**arguments)


@pytest.mark.parametrize(("samples", "size"), [(0, 4), (4, 0)])
def test_nothing_to_partition(samples, size):
    with pytest.raises(ValueError, match=f"samples={samples} and size={size}"):
        partition(jax.random.key(0), samples, size)
