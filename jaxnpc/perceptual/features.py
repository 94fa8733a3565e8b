r"""Training of a feature network on class labels: the metric that P-PNPC takes as given.

AlexNet's convolutions with batch normalisation, and a linear head, by stochastic gradients of the
cross-entropy, the learning rate in one cycle. Afterwards the normalisation by the statistics of all
training images is folded into the convolutions: the metric has kernels and biases only.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from jaxmpd.losses import Batch, weighted_mean
from jaxmpd.runs import History, at_least_one
from jaxmpd.training import fit
from jaxnpc.augmentation import Augment, Shift
from jaxnpc.batching import blocks
from jaxnpc.perceptual.alexnet import CIFAR, NORM_EPS, AlexNet, Architecture
from jaxnpc.perceptual.embedding import Embedding, check_images
from jaxnpc.samples import Samples, hold_out, samples

CROPS = Shift(4, diagonal=True, flip=True, keep=0.0)
"""Mirrored or not, and cut out of the image with four pixels of black around it."""

BATCH = 500
"""Images that statistics and accuracies are taken of at a time."""

Params = dict[str, Any]


@dataclass(frozen=True)
class Features:
    """What [`train_features`][jaxnpc.perceptual.features.train_features] returns.

    Attributes:
        embedding: the metric.
        head: `kernel` and `bias` of the linear classifier of the last activations' means.
        classes: the names of its classes.
        accuracy: the share of the validation images that it assigns correctly; NaN without any.
        history: the share that is wrong in training and validation, by epoch, as the network
            with the batch's own statistics sees it.
        settings: everything needed to repeat the run.
    """

    embedding: Embedding
    head: dict[str, Float[Array, "..."]]
    classes: tuple[Hashable, ...]
    accuracy: float
    history: History
    settings: dict[str, float | str]

    def predict(self, images: ArrayLike) -> list[Hashable]:
        """The classes of images with values in [0, 1]."""
        checked = check_images(self.embedding, images)
        found: list[Hashable] = []
        for part in blocks(len(checked), BATCH):
            logits = _folded_logits(self.embedding, self.head, jnp.asarray(checked[part]))
            found += [self.classes[c] for c in np.asarray(logits).argmax(axis=1)]
        return found


def train_features(
    images: ArrayLike,
    labels: Iterable[Hashable],
    *,
    architecture: Architecture = CIFAR,
    augment: Augment = CROPS,
    smoothing: float = 0.1,
    dropout: float = 0.2,
    weight_decay: float = 1e-3,
    learning_rate: float = 0.2,
    epochs: int = 40,
    batch_size: int = 256,
    validation: float | tuple[Any, Any] | None = None,
    evaluate_every: int | None = None,
    dtype: Any = jnp.float32,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
) -> Features:
    """Train a feature network to tell classes apart.

    Args:
        images: n images (n, height, width, 3) with values in [0, 1].
        labels: their labels.
        architecture: the network.
        augment: random changes of the images.
        smoothing: how much of each label is spread over all classes.
        dropout: the probability that the head does not see an activation.
        weight_decay: of the kernels, per step and unit of learning rate.
        learning_rate: the largest of the cycle, for a batch of 256 (Nesterov, momentum 0.9).
        epochs: passes over the images.
        batch_size: images a minibatch.
        validation: images and labels whose accuracy is reported; or the share of the images, from
            the end, that is taken for that. The network of the last epoch is returned anyway.
        evaluate_every: epochs between entries of the history; by default an eighth of all.
        dtype: what the network is trained in. bfloat16 is for accelerators: XLA computes it in
            float32 on CPUs, in the same time.
        seed: of everything that is random.
        checkpoint: a file to save the run in.
        resume: go on from the checkpoint if it exists.
        progress: whether to show a progress bar.

    Returns:
        The metric, the head and how they were made.

    Raises:
        TypeError: if images or labels are of a wrong type.
        ValueError: if an argument is out of its range or does not fit.
    """
    at_least_one(epochs=epochs, batch_size=batch_size)
    for name, value in {"smoothing": smoothing, "dropout": dropout}.items():
        if not 0 <= value < 1:
            raise ValueError(f"{name} must lie in [0, 1), got {value}")
    every = max(1, epochs // 8) if evaluate_every is None else evaluate_every
    given = np.asarray(images)
    size = given.shape[1:3] if given.ndim == 4 else (architecture.side, architecture.side)
    architecture.locations(*size)
    empty = Embedding({}, None, architecture, (int(size[0]), int(size[1])))
    data, held_out = samples(check_images(empty, given), labels, 2), None
    if validation is not None:
        data, held_out = hold_out(data, validation, 2)
    trial = _Trial(architecture, dtype, augment, smoothing, dropout, len(data.names))
    shape = (*empty.size, 3)
    steps = epochs * -(-len(data.points) // batch_size)
    settings: dict[str, float | str] = {
        "kind": "features",
        "architecture": architecture.name,
        "images": len(data.points),
        "augment": str(augment),
        "smoothing": smoothing,
        "dropout": dropout,
        "weight_decay": weight_decay,
        "learning_rate": learning_rate,
        "epochs": epochs,
        "batch_size": batch_size,
        "evaluate_every": every,
        "dtype": jnp.dtype(dtype).name,
        "seed": seed,
    }
    result = fit(
        trial.loss,
        trial.init(jax.random.key(seed), shape),
        _optimizer(learning_rate * batch_size / 256, weight_decay, steps),
        _batch(data, shape),
        validation=None if held_out is None else _batch(held_out, shape),
        batch_size=batch_size,
        steps=epochs,
        seed=seed,
        metric=trial.wrong,
        evaluate_every=every,
        checkpoint=checkpoint,
        checkpoint_every=1,
        identity=settings,
        resume=resume,
        progress=progress,
    )
    if result.stopped == "not finite":
        raise ValueError(f"training ran off with learning_rate {learning_rate}: give a smaller one")
    net = AlexNet(architecture, jnp.float32, normalized=True)
    stats = _statistics(net, result.params["network"], data.points.reshape(-1, *shape))
    embedding = Embedding(_fold(result.params["network"], stats), None, architecture, empty.size)
    found = Features(
        embedding, result.params["head"], data.names, float("nan"), result.history, settings
    )
    if held_out is None:
        return found
    predicted = found.predict(held_out.points)
    right = [p == data.names[c] for p, c in zip(predicted, held_out.classes, strict=True)]
    return Features(
        embedding, found.head, data.names, float(np.mean(right)), result.history, settings
    )


class _Trial(NamedTuple):
    """The network in training, and its losses."""

    architecture: Architecture
    dtype: Any
    augment: Augment
    smoothing: float
    dropout: float
    classes: int

    def init(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Params:
        """Parameters to start from; the head starts at 0."""
        net = AlexNet(self.architecture, normalized=True)
        params = net.init(key, jnp.zeros((1, *shape)))["params"]
        channels = self.architecture.layers[-1].features
        head = {"kernel": jnp.zeros((channels, self.classes)), "bias": jnp.zeros(self.classes)}
        return {"network": params, "head": head}

    def logits(
        self, params: Params, images: Float[Array, "n h w 3"], key: PRNGKeyArray | None
    ) -> Float[Array, "n C"]:
        """The head's; with a key it does not see all activations."""
        net: Any = AlexNet(self.architecture, self.dtype, patches=True, normalized=True)
        found, _ = net.apply({"params": params["network"]}, images, mutable=["batch_stats"])
        seen = _pooled(net, found[-1])
        if key is not None and self.dropout:
            kept = jax.random.bernoulli(key, 1 - self.dropout, seen.shape)
            seen = jnp.where(kept, seen / (1 - self.dropout), 0)
        return seen @ params["head"]["kernel"] + params["head"]["bias"]

    def loss(self, params: Params, batch: Batch, key: PRNGKeyArray) -> Float[Array, ""]:
        """The cross-entropy of augmented images with smoothed labels."""
        moved, hidden = jax.random.split(key)
        logits = self.logits(params, self.augment(moved, batch.inputs), hidden)
        targets = optax.smooth_labels(jax.nn.one_hot(batch.targets, self.classes), self.smoothing)
        return weighted_mean(optax.softmax_cross_entropy(logits, targets), batch.weights)

    def wrong(self, params: Params, batch: Batch, key: PRNGKeyArray) -> Float[Array, ""]:
        """The share of images that is assigned to another class."""
        del key
        missed = self.logits(params, batch.inputs, None).argmax(axis=1) != batch.targets
        return weighted_mean(missed.astype(jnp.float32), batch.weights)


def _optimizer(peak: float, weight_decay: float, steps: int) -> optax.GradientTransformation:
    """Nesterov's gradient with decay of the kernels, in one cycle."""

    def kernels(params: Params) -> Params:
        return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", params)

    rate = optax.cosine_onecycle_schedule(steps, peak, pct_start=0.2)
    return optax.chain(
        optax.add_decayed_weights(weight_decay, mask=kernels),
        optax.sgd(rate, momentum=0.9, nesterov=True),
    )


def _batch(data: Samples, shape: tuple[int, ...]) -> Batch:
    return Batch(jnp.asarray(data.points.reshape(-1, *shape)), jnp.asarray(data.classes))


def _pooled(net: AlexNet, last: Float[Array, "n h w c"]) -> Float[Array, "n c"]:
    """What the head sees of the last layer: the mean over the image.

    Every location has to tell the class then, and it is every location that the metric compares.
    """
    pooled = net.max_pool(last, net.architecture.pool)
    return pooled.mean(axis=(1, 2), dtype=jnp.float32)


def _statistics(
    net: AlexNet, params: Params, images: Float[np.ndarray, "n h w 3"]
) -> dict[str, dict[str, Float[np.ndarray, " c"]]]:
    """Mean and variance of every channel before its ReLU: those of batches, averaged."""
    total: Any = None
    count = 0
    for part in blocks(len(images), BATCH):
        if part.stop - part.start < min(BATCH, len(images)):
            continue  # a rest would weigh as much as a whole batch
        found = jax.device_get(_observe(net, params, jnp.asarray(images[part])))
        total = found if total is None else jax.tree.map(np.add, total, found)
        count += 1
    return jax.tree.map(lambda sums: np.asarray(sums, np.float64) / count, total)


def _fold(params: Params, stats: Any) -> dict[str, dict[str, Float[Array, "..."]]]:
    """Convolutions with a bias that do what convolution and normalisation did."""
    folded: dict[str, dict[str, Array]] = {}
    for l in range(1, len(stats) + 1):
        norm, known = params[f"norm{l}"], stats[f"norm{l}"]
        factor = np.asarray(norm["scale"], np.float64) / np.sqrt(known["var"] + NORM_EPS)
        folded[f"conv{l}"] = {
            "kernel": jnp.asarray(np.asarray(params[f"conv{l}"]["kernel"]) * factor, jnp.float32),
            "bias": jnp.asarray(np.asarray(norm["bias"]) - known["mean"] * factor, jnp.float32),
        }
    return folded


@jax.jit(static_argnames="net")
def _observe(net: AlexNet, params: Params, images: Float[Array, "n h w 3"]) -> Any:
    return net.apply({"params": params}, images, mutable=["batch_stats"])[1]["batch_stats"]


@jax.jit
def _folded_logits(
    embedding: Embedding, head: Params, images: Float[Array, "n h w 3"]
) -> Float[Array, "n C"]:
    net: Any = AlexNet(embedding.architecture)
    last = net.apply({"params": embedding.params}, images)[-1]
    return _pooled(net, last) @ head["kernel"] + head["bias"]
