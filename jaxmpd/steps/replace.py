r"""The replacement step: units that hardly count move to where the residual is.

Descent, exact or not, leaves some units where they do little: in a local minimum nothing pulls them
away. What a unit is worth is known in closed form: without it, the output layer solved anew, the
squared error plus ridge would be greater by

$$c_d = |v_d|^2 / (G^{-1})_{dd}, \qquad G = \sum_s \omega_s a_s a_s^\top + \Lambda ,$$

a the features and 1, $\Lambda$ the ridge on its diagonal, 0 for the biases. The least worth ones
are taken out, and as many put in from a crowd of random ones, one after the other the one that
lowers the squared error most with its best outgoing weight and all others' (orthogonal matching
pursuit): a search over the whole space where steps along lines see only what lies on them. The new
units then move to the exact minimum along their own directions.

The network that comes out is often worse at first, and better once polished: compare it then.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxmpd.activations import PiecewiseLinear
from jaxmpd.primitives import cholesky, dot
from jaxmpd.rows import Rows
from jaxmpd.steps import block
from jaxmpd.steps.output import solve_output

CANDIDATES = 1024
"""Random units to choose from."""

SAMPLES = 4096
"""Samples that the choice looks at."""

SHARE = 16
"""One in so many units is replaced."""

TOGETHER = 8
"""New units that move together to the minimum along their own directions."""

SPREAD = 0.5
"""The deviation of the logarithm of a candidate's length from that of a unit in use."""

NEW = 1e-3
"""The least share of a candidate's features that those in use must leave unexplained."""


def replace(
    rows: Rows,
    x: Float[Array, "d0+1 S"],
    targets: Float[Array, "d2 S"],
    weights: Float[Array, "#d2 S"],
    key: PRNGKeyArray,
    activation: PiecewiseLinear,
    l2: float = 0.0,
    free: Rows | None = None,
) -> Rows:
    """Replace the units of least worth, under the squared error plus ridge.

    Args:
        rows: the network.
        x: S inputs, see [`with_ones`][jaxmpd.rows.with_ones].
        targets: a column a sample.
        weights: of the squared residuals, one row for all outputs or one each.
        key: of the sample looked at and the candidates.
        activation: of the hidden layer.
        l2: weight of the sum of the squares of all parameters but the outputs' biases.
        free: the parameters that may move, flags known at compile time; None: all may.

    Returns:
        The network with new units, its output solved for.
    """
    units = len(rows.incoming)
    whole = np.ones(units, bool)  # a unit with a parameter that must stay is not replaced
    if free is not None:
        whole = np.asarray(free.incoming).all(axis=1) & np.asarray(free.outgoing)[:-1].all(axis=1)
    count = min(units // SHARE, int(whole.sum()))
    if count == 0:
        return rows
    choice, order = jax.random.split(key)
    some = jax.random.permutation(order, x.shape[1])[:SAMPLES]
    old, new = choose(
        rows,
        x[:, some],
        targets[:, some],
        jnp.mean(weights, axis=0)[some],
        choice,
        activation,
        count,
        l2,
        jnp.asarray(whole),
    )
    placed = Rows(rows.incoming.at[old].set(new), rows.outgoing.at[old].set(0))
    placed = solve_output(placed, x, targets, weights, activation, l2, free)
    together = min(TOGETHER, count)
    blocks = old[: count // together * together].reshape(-1, together)
    return block.sweep(placed, x, targets, weights, blocks, activation, l2, free)


def choose(
    rows: Rows,
    x: Float[Array, "d0+1 n"],
    targets: Float[Array, "d2 n"],
    weights: Float[Array, " n"],
    key: PRNGKeyArray,
    activation: PiecewiseLinear,
    count: int,
    l2: float,
    whole: Bool[Array, " d1"],
) -> tuple[Int[Array, " k"], Float[Array, "k d0+1"]]:
    """Which units to take out, and which ones to put in.

    Args:
        rows: the network, its output solved for.
        x: n inputs and 1, by columns.
        targets: a column a sample.
        weights: of the samples.
        key: of the candidates.
        activation: of the hidden layer.
        count: how many units to replace, k.
        l2: weight of the squares of the outgoing weights.
        whole: the units that may be taken out.

    Returns:
        The numbers of the k units of least worth, and the incoming weights of the k new ones.
    """
    root = jnp.sqrt(weights / jnp.sum(weights))
    features = activation(dot(rows.incoming, x))
    features = jnp.concatenate([features, jnp.ones_like(features[:1])]) * root
    old = jnp.argsort(jnp.where(whole, worth(rows, features, l2), jnp.inf))[:count]

    # Everything from here on is orthogonal to the features that stay.
    basis = features.at[old].set(0)
    for _ in range(2):  # the second time mends what rounding left of the first
        factor = cholesky(dot(basis, basis.T))
        basis = jax.scipy.linalg.solve_triangular(factor, basis, lower=True)

    def outside(a: Float[Array, "k n"]) -> Float[Array, "k n"]:
        return a - dot(dot(a, basis.T), basis)

    residual = outside(outside(targets * root))
    new = candidates(key, rows, x, jnp.sum(residual**2, axis=0), activation)
    pool = activation(dot(new, x)) * root
    size = jnp.sum(pool**2, axis=1)
    pool = outside(pool)

    def pick(state: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], Array]:
        pool, residual = state
        left = jnp.sum(pool**2, axis=1)
        gain = jnp.sum(dot(pool, residual.T) ** 2, axis=1) / jnp.where(left > 0, left, 1)
        best = jnp.argmax(jnp.where(left > NEW * size, gain, 0))
        unit = pool[best] / jnp.sqrt(jnp.where(left[best] > 0, left[best], 1))
        pool = pool - dot(pool, unit[:, None]) * unit
        return (pool, residual - dot(residual, unit[:, None]) * unit), best

    _, chosen = jax.lax.scan(pick, (pool, residual), length=count)
    return old, new[chosen]


def worth(rows: Rows, features: Float[Array, "d1+1 n"], l2: float) -> Float[Array, " d1"]:
    """By how much the squared error plus ridge would rise without each of the units.

    Args:
        rows: the network, its output solved for.
        features: of the units and ones, times the roots of the samples' weights.
        l2: weight of the squares of the outgoing weights.

    Returns:
        The rise, all others' outgoing weights and the outputs' biases solved for anew.
    """
    gram = dot(features, features.T)
    eye = jnp.eye(len(gram), dtype=gram.dtype)
    ridge = l2 * eye.at[-1, -1].set(0)  # not on the biases
    inverse = jax.scipy.linalg.cho_solve((cholesky(gram + ridge), True), eye)
    return (jnp.sum(rows.outgoing**2, axis=1) / jnp.diag(inverse))[:-1]


def candidates(
    key: PRNGKeyArray,
    rows: Rows,
    x: Float[Array, "d0+1 n"],
    density: Float[Array, " n"],
    activation: PiecewiseLinear,
) -> Float[Array, "c d0+1"]:
    """Units of random directions, of about the lengths in use, bending near chosen samples.

    Args:
        key: a PRNG key.
        rows: the network.
        x: samples.
        density: how probable each sample is to be chosen.
        activation: of the units.

    Returns:
        A row of incoming weights each.
    """
    sample, way, length, jitter, bend = jax.random.split(key, 5)
    shape = (CANDIDATES,)
    at = jax.random.categorical(sample, jnp.log(density), shape=shape)
    lengths = jnp.linalg.norm(rows.incoming[:, :-1], axis=1)
    lengths = lengths[jax.random.randint(length, shape, 0, len(lengths))]
    lengths = lengths * jnp.exp(SPREAD * jax.random.normal(jitter, shape, x.dtype))
    w = jax.random.normal(way, (CANDIDATES, len(x) - 1), x.dtype)
    w = w * (lengths / jnp.linalg.norm(w, axis=1))[:, None]
    low, high = min(activation.kinks, default=0) - 0.5, max(activation.kinks, default=0) + 0.5
    z = jax.random.uniform(bend, shape, x.dtype, low, high)
    bias = z - jnp.sum(w * x[:-1, at].T, axis=1)
    return jnp.concatenate([w, bias[:, None]], axis=1)
