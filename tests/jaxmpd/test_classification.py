"""Real digits, classified by a piecewise-linear network that only message passing descent trains.

Width and ridge were chosen on training data alone (`python -m benchmarks.mpd_classification`).
"""

import doctest
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxmpd
from jaxmpd.losses import SOFTMAX

FOLDS, CLASSES = 5, 10
DOCS = Path(__file__).parents[2] / "docs" / "where.md"


@pytest.mark.parametrize(
    "steps",
    [(jaxmpd.Polish(40),), (jaxmpd.Blocks(), jaxmpd.Polish(30))],
    ids=["polish", "blocks and polish"],
)
def test_digits_to_97_percent(steps):
    """Every digit is classified by a network that has not seen it: five-fold cross-validation."""
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    folds = order[: len(order) // FOLDS * FOLDS].reshape(FOLDS, -1)
    optimizer = jaxmpd.mpd(jaxmpd.RELU, steps=steps, loss=SOFTMAX, l2=1e-3)

    @jax.jit
    def train(key, x, y):
        params = jaxmpd.init(key, (x.shape[1], 128, CLASSES))
        updates, state = optimizer.update(params, optimizer.init(params), params, batch=(x, y))
        return optax.apply_updates(params, updates), state.loss

    right = 0
    for k, test in enumerate(folds):
        rest = np.concatenate([*folds[:k], *folds[k + 1 :]])
        mean, scale = digits.data[rest].mean(axis=0), digits.data[rest].std()
        x = ((digits.data - mean) / scale).astype(np.float32)
        y = np.eye(CLASSES, dtype=np.float32)[digits.target]
        params, loss = train(jax.random.key(k), x[rest], y[rest])
        assert loss < 0.1 * np.log(CLASSES)
        predicted = jnp.argmax(jaxmpd.apply(params, x[test], jaxmpd.RELU), axis=1)
        right += int(np.sum(np.asarray(predicted) == digits.target[test]))
    assert right / folds.size >= 0.97


def test_the_page_runs():
    pytest.importorskip("sklearn.datasets")
    failed, run = doctest.testfile(
        str(DOCS), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert not failed
    assert run > 10
