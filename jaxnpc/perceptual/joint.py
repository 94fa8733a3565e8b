r"""What co-training minimises: a network and prototypes of its embedding, judged together.

$$\frac1n \sum_x \Bigl(R - \min_{j \in I_y^c} \max_{i \in I_y}
  \frac{|\phi(x) - w_j|^2 - |\phi(x) - w_i|^2}{2\,|w_i - w_j|}\Bigr)_+
  \;+\; \kappa \sum_T \bigl(|\ell_T| - \delta\bigr)_+^2$$

The first part is the capped half-space bound, in which $\phi$ is trained as well. Alone it could be
lowered by stretching the metric; so $\ell_T$ is how far the logarithms of the distances
$d(x, T x)$ of common changes T have drifted, on average, from those of the frozen metric.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxmpd.losses import Batch, weighted_mean
from jaxnpc.augmentation import Augment
from jaxnpc.distances import squared_l2
from jaxnpc.perceptual.calibration import DIFFERENTIABLE
from jaxnpc.perceptual.embedding import Embedding
from jaxnpc.selection import Members, members, visible

Params = dict[str, Any]
"""`network`, the convolutions; `prototypes` (K, D); `frozen`, the embedding that it started from,
which is not trained, but must be no constant of the program."""

Loss = Callable[[Params, Batch, PRNGKeyArray], Float[Array, ""]]

BLOCK = 256
"""Images that are embedded at a time where no gradient is taken."""

SMALL = 1e-9
"""Added to a squared distance before its logarithm, which is that of a change that changes nothing
else."""

PROGRAMS = 16
"""How many runs' functions are remembered: a run that finds its own is not compiled again."""


class Plan(NamedTuple):
    """The choices that make the loss.

    Attributes:
        labels: the class index of each prototype.
        cap: R.
        dropout: the probability that a prototype is hidden from an image of its class.
        keep: the weight of the penalty, kappa.
        slack: the drift that costs nothing, delta.
        anchors: the images of a minibatch whose distances are compared with the frozen metric's.
        augment: random changes of the images.
        dtype: what the network is computed in.
    """

    labels: tuple[int, ...]
    cap: float
    dropout: float
    keep: float
    slack: float
    anchors: int
    augment: Augment
    dtype: Any


class Programs(NamedTuple):
    """The functions of a run.

    Attributes:
        loss: what is minimised.
        missing: what a network is picked by: the area that is missing under the curve of certified
            accuracy up to the cap, as a share of the cap, by the half-space bound.
    """

    loss: Loss
    missing: Loss


@functools.lru_cache(PROGRAMS)
def programs(plan: Plan) -> Programs:
    """The functions of a run, the same ones for the same choices."""
    group = members(np.array(plan.labels))

    def loss(params: Params, batch: Batch, key: PRNGKeyArray) -> Float[Array, ""]:
        moved, hidden, drawn = jax.random.split(key, 3)
        images = plan.augment(moved, batch.inputs)
        n = len(images)
        some = min(plan.anchors, n) if plan.keep else 0
        extra = changed(drawn, images[:some])
        z = embedded(trained(params), jnp.concatenate([images, extra]), plan.dtype)
        shown = visible(hidden, group, batch.targets, plan.dropout)
        margin = margins(group, params["prototypes"], z[:n], batch.targets, shown)
        value = weighted_mean(jax.nn.relu(plan.cap - margin), batch.weights)
        if not some:
            return value
        frozen = jax.lax.stop_gradient(params["frozen"])
        then = embedded(frozen, jnp.concatenate([images[:some], extra]), plan.dtype)
        now = jnp.concatenate([z[:some], z[n:]])
        drift = log_distances(now, batch.targets[:some]) - log_distances(
            jax.lax.stop_gradient(then), batch.targets[:some]
        )
        return value + plan.keep * jnp.sum(jax.nn.relu(jnp.abs(drift) - plan.slack) ** 2)

    def missing(params: Params, batch: Batch, key: PRNGKeyArray) -> Float[Array, ""]:
        del key
        y, size = batch.targets, min(BLOCK, len(batch.targets))
        images, labels = (_in_blocks(a, size) for a in (batch.inputs, y))

        def block(rows: tuple[Array, Array]) -> Array:
            z = embedded(trained(params), rows[0], plan.dtype)
            shown = jnp.asarray(group.real)[rows[1]]
            return margins(group, params["prototypes"], z, rows[1], shown)

        margin = jax.lax.map(block, (images, labels)).reshape(-1)[: len(y)]
        return weighted_mean(1 - jnp.clip(margin, 0, plan.cap) / plan.cap, batch.weights)

    return Programs(loss, missing)


def trained(params: Params) -> Embedding:
    """The metric as it is now."""
    return replace(jax.lax.stop_gradient(params["frozen"]), params=params["network"])


def embedded(
    embedding: Embedding, images: Float[Array, "n h w 3"], dtype: Any
) -> Float[Array, "n D"]:
    """Embeddings for training, the network computed in that precision."""
    return embedding(images.astype(dtype), patches=True).astype(jnp.float32)


def margins(
    group: Members,
    w: Float[Array, "K D"],
    z: Float[Array, "n D"],
    y: Int[Array, " n"],
    shown: Bool[Array, "n m"],
) -> Float[Array, " n"]:
    r"""The signed half-space bound of Lemma 2.9, differentiable in points and prototypes.

    $$\min_j \max_i \frac{|z - w_j|^2 - |z - w_i|^2}{2\,|w_i - w_j|}$$

    All pairs from one matrix product: with few prototypes that is cheaper than to choose a pair
    first, and its rounding does not matter in training.

    Args:
        group: the prototypes of each class.
        w: the prototypes.
        z: the points.
        y: their class indices.
        shown: which prototypes of its class each point sees.

    Returns:
        The bounds.

    Example:
        >>> w = jnp.array([[0.0], [4.0]])
        >>> z, y = jnp.array([[1.0], [5.0]]), jnp.array([0, 0])
        >>> margins(members([0, 1]), w, z, y, jnp.ones((2, 1), bool)).tolist()
        [1.0, -3.0]
    """
    labels, index = jnp.asarray(group.label), jnp.asarray(group.table)[y]
    gram = jnp.matmul(w, w.T, precision=jax.lax.Precision.HIGHEST)
    half = jnp.diagonal(gram) / 2
    foreign = labels[:, None] != labels[None]
    square = jnp.where(foreign, 2 * (half[:, None] + half[None] - gram), 1)
    per_length = jax.lax.rsqrt(jnp.maximum(square, SMALL))
    score = jnp.matmul(z, w.T, precision=jax.lax.Precision.HIGHEST) - half
    own = jnp.take_along_axis(score, index, axis=1)
    bound = (own[:, :, None] - score[:, None, :]) * per_length[index]
    best = jnp.max(jnp.where(shown[:, :, None], bound, -jnp.inf), axis=1)
    return jnp.min(jnp.where(labels != y[:, None], best, jnp.inf), axis=1)


def changed(key: PRNGKeyArray, images: Float[Array, "a h w 3"]) -> Float[Array, "c h w 3"]:
    """All differentiable common changes of some images, one change after the other."""
    return jnp.concatenate(
        [change(jax.random.fold_in(key, k), images) for k, change in enumerate(_CHANGES)]
    )


def log_distances(z: Float[Array, "b D"], y: Int[Array, " a"]) -> Float[Array, " T"]:
    """The mean logarithm of the distance of each change, and of the nearest one of another class.

    Args:
        z: embeddings of a images, then those of what `changed` made of them.
        y: the classes of the images.

    Returns:
        One entry a change and one more, which is 0 if all images are of one class.
    """
    a = len(y)
    origin, moved = z[:a], z[a:].reshape(-1, a, z.shape[1])
    logs = [jnp.mean(_log_distance(origin, to)) for to in moved]
    away = jnp.where(
        y[:, None] != y[None], jax.lax.stop_gradient(squared_l2(origin, origin)), jnp.inf
    )
    nearest = jnp.argmin(away, axis=1)
    there = jnp.isfinite(jnp.min(away, axis=1))
    found = _log_distance(origin, origin[nearest])
    logs.append(jnp.sum(jnp.where(there, found, 0)) / jnp.maximum(jnp.sum(there), 1))
    return jnp.stack(logs)


def _log_distance(x: Float[Array, "a D"], y: Float[Array, "a D"]) -> Float[Array, " a"]:
    return jnp.log(jnp.sum(jnp.square(x - y), axis=1) + SMALL) / 2


def _in_blocks(x: Array, size: int) -> Array:
    x = jnp.pad(x, ((0, -len(x) % size), *[(0, 0)] * (x.ndim - 1)))
    return x.reshape(-1, size, *x.shape[1:])


_CHANGES = tuple(DIFFERENTIABLE.values())
