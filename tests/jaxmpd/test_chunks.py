import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmpd.chunks import in_chunks, summed
from jaxmpd.losses import Batch


def samples(count, seed=0):
    rng = np.random.default_rng(seed)
    return Batch(*(jnp.asarray(rng.normal(size=s)) for s in [(count, 3), (count, 2), count]))


@pytest.mark.parametrize(("count", "chunk"), [(7, 3), (8, 4), (1, 5), (10, 100), (9, 1), (13, 6)])
def test_chunks_hold_every_sample_once_and_padding_of_weight_0(count, chunk):
    batch = samples(count)
    chunks = in_chunks(batch, chunk)
    number, width = chunks.weights.shape
    assert number == -(-count // chunk)
    assert width <= chunk
    assert number * width - count < number  # no row is much shorter than the others
    for whole, parts in zip(batch, chunks, strict=True):
        flat = np.asarray(parts).reshape(number * width, *whole.shape[1:])
        np.testing.assert_array_equal(flat[:count], whole)
        assert not np.any(flat[count:])


def share(params, chunk):
    predictions = jnp.cos(chunk.inputs @ params["w"] + params["b"])
    return jnp.sum(chunk.weights * jnp.sum((predictions - chunk.targets) ** 2, axis=1))


@pytest.mark.parametrize("chunk", [1, 4, 11, 64])
def test_value_and_gradient_are_those_of_the_plain_sum(chunk):
    with jax.enable_x64(True):
        batch = samples(11, seed=1)
        rng = np.random.default_rng(2)
        params = {"w": jnp.asarray(rng.normal(size=(3, 2))), "b": jnp.asarray(rng.normal(size=2))}
        # Within another function, so that the cotangent is not 1, and used twice.
        outer = lambda total, params: jnp.sin(total(params)) + 3 * total(params)  # noqa: E731
        chunked = summed(share, in_chunks(batch, chunk))
        both = jax.jit(jax.value_and_grad(lambda p: outer(chunked, p)))(params)
        plain = jax.value_and_grad(lambda p: outer(lambda p: share(p, batch), p))(params)
        for a, b in zip(*map(jax.tree.leaves, (both, plain)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)


def test_value_and_gradient_come_from_one_pass():
    """The function is traced once, and the backward pass runs no loop of its own."""
    calls = []

    def counted(params, chunk):
        calls.append(1)
        return share(params, chunk)

    params = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}
    total = summed(counted, in_chunks(samples(8), 4))
    program = jax.make_jaxpr(jax.value_and_grad(total))(params)
    assert len(calls) == 1
    assert sum(equation.primitive.name == "scan" for equation in program.eqns) == 1
