import itertools

import jax
import numpy as np
import pytest
from networks import F, problem, some_movable

from jaxmpd import network
from jaxmpd.network import Layer
from jaxmpd.rows import from_rows, movable_rows, predict, to_rows, with_ones


@pytest.mark.parametrize("biases", [*itertools.product([True, False], repeat=2)])
def test_rows_are_the_layers_again(biases):
    layers, batch = problem(0, (3, 5, 2), samples=7)
    layers = tuple(
        Layer(layer.kernel, layer.bias if there else None)
        for layer, there in zip(layers, biases, strict=True)
    )
    rows = to_rows(layers)
    assert (rows.incoming.shape, rows.outgoing.shape) == ((5, 4), (6, 2))
    back = from_rows(rows, layers)
    assert jax.tree.structure(back) == jax.tree.structure(layers)
    for a, b in zip(*map(jax.tree.leaves, (back, layers)), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(
        predict(rows, with_ones(batch.inputs), F).T,
        network.apply(layers, batch.inputs, F),
        rtol=1e-5,
        atol=1e-6,
    )


@pytest.mark.parametrize("bias", [True, False])
def test_flags_stand_where_the_parameters_do(bias):
    """An absent bias may not move; marks in the flags' places come back where they were."""
    layers, _ = problem(1, (3, 5, 2), samples=2, bias=bias)
    movable = some_movable(layers)
    flags = movable_rows(movable)
    assert all(isinstance(a, np.ndarray) and a.dtype == bool for a in flags)
    for a, b in zip(*map(jax.tree.leaves, (from_rows(flags, movable), movable)), strict=True):
        np.testing.assert_array_equal(a, b)
    if not bias:
        assert not flags.incoming[:, -1].any()
        assert not flags.outgoing[-1].any()
