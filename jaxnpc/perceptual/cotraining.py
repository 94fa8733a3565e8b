r"""Training of a metric together with prototypes: labels and the certified margin shape it.

A *frozen* metric is given before any prototype is trained. A *co-trained* one is not: its
convolutions are fine-tuned so that prototypes have a large certified margin in it. What is
certified is then true of another metric, and comparable with the first one only as far as the
distances of common changes have stayed the same
([`jaxnpc.perceptual.calibration`][jaxnpc.perceptual.calibration]); the settings say all that.
"""

import functools
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, ArrayLike, Float, Int

from jaxmpd.losses import Batch
from jaxmpd.runs import History, at_least_one
from jaxmpd.training import fit
from jaxnpc.augmentation import Augment, Shift
from jaxnpc.certificate import robust_accuracy
from jaxnpc.perceptual.calibration import calibrate, compare, record
from jaxnpc.perceptual.certify import certify
from jaxnpc.perceptual.embedding import Embedding, check_images, embed
from jaxnpc.perceptual.joint import PROGRAMS, Params, Plan, programs
from jaxnpc.prototypes import PrototypeClassifier, prototype_classifier
from jaxnpc.samples import Samples, hold_out, samples
from jaxnpc.starts import start

CROPS = Shift(2, diagonal=True, flip=True, keep=0.0)
"""Mirrored or not, and moved by up to two pixels along both axes."""

STARTING = 2000
"""Images that prototypes start from: their embeddings are held at once."""

CALIBRATED = 400
"""Validation images that the two metrics are compared on."""

RADII = (0.1, 0.3, 0.5, 0.7, 1.0)
"""LPIPS distances at which the baseline's certified accuracy is recorded."""

WEIGHT_DECAY = 5e-4


@dataclass(frozen=True)
class CoTrained:
    """What [`cotrain`][jaxnpc.perceptual.cotraining.cotrain] returns.

    Attributes:
        embedding: the co-trained metric.
        classifier: the prototypes that it was trained with.
        history: the area missing under the curve of certified accuracy up to the cap, as a share of
            the cap and by the half-space bound, on training and validation images.
        settings: everything needed to repeat the run, and for a report `cotrained`, `frozen` (the
            digest of the metric that it started from), `calibration`, `deviation` (the largest
            relative one), `counts` (whether it allows the metric's figures to count), `baseline`.
    """

    embedding: Embedding
    classifier: PrototypeClassifier
    history: History
    settings: dict[str, Any]


def cotrain(
    embedding: Embedding,
    images: ArrayLike,
    labels: Iterable[Hashable],
    *,
    cap: float = 1.0,
    per_class: int = 1,
    dropout: float = 0.0,
    keep: float = 10.0,
    slack: float = 0.03,
    anchors: int = 8,
    augment: Augment = CROPS,
    learning_rate: float = 0.008,
    prototype_rate: float = 0.16,
    warmup: float = 0.1,
    epochs: int = 30,
    batch_size: int = 256,
    validation: float | tuple[Any, Any] = 0.1,
    evaluate_every: int | None = None,
    dtype: Any = jnp.float32,
    stored: str = "float32",
    radii: Sequence[float] = RADII,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
) -> CoTrained:
    """Train a metric's network together with prototypes, for certified margin.

    Args:
        embedding: the frozen metric to start from.
        images: n images (n, height, width, 3) with values in [0, 1].
        labels: their labels.
        cap: R, beyond which a margin gains nothing: somewhat above the radius of interest.
        per_class: prototypes a class.
        dropout: the probability that a prototype is hidden from an image of its class, if it has
            several.
        keep: the weight of the penalty that holds the distances of common changes; 0 for none.
        slack: how far their mean logarithms may drift at no cost.
        anchors: the images of a minibatch that this is judged by; each costs about six more.
        augment: random changes of the images.
        learning_rate: the largest of the convolutions' (Nesterov, momentum 0.9); it rises linearly,
            then falls linearly to 0.
        prototype_rate: the prototypes', likewise.
        warmup: the share of the steps in which the rates rise.
        epochs: passes over the images.
        batch_size: images a minibatch.
        validation: images and labels to pick the network by, and to measure it on; or the share of
            the images, from the end, that is taken for that.
        evaluate_every: epochs between evaluations; by default an eighth of all.
        dtype: what the network is trained in. bfloat16 is for accelerators.
        stored: "float32", or "float16" to round the weights, before anything is measured.
        radii: where the baseline's certified accuracy is recorded.
        seed: of everything that is random.
        checkpoint: a file to save the run in.
        resume: go on from the checkpoint if it exists.
        progress: whether to show progress bars.

    Returns:
        The metric, its prototypes, and how they were made.

    Raises:
        TypeError: if images or labels are of a wrong type.
        ValueError: if an argument is out of its range or does not fit, training runs off, or the
            checkpoint belongs to another run.
        ImportError: if Pillow is missing, for the calibration (extra `data`).
    """
    at_least_one(epochs=epochs, batch_size=batch_size, per_class=per_class, anchors=anchors)
    _check(
        positive={"cap": cap, "learning_rate": learning_rate, "prototype_rate": prototype_rate},
        at_least_0={"keep": keep, "slack": slack},
        below_1={"dropout": dropout, "warmup": warmup},
    )
    if stored not in ("float32", "float16"):
        raise ValueError(f'stored must be "float32" or "float16", got {stored!r}')
    every = max(1, epochs // 8) if evaluate_every is None else evaluate_every
    data, held_out = hold_out(
        samples(check_images(embedding, images), labels, 2), _checked(embedding, validation), 2
    )
    shape = (*embedding.size, 3)
    w, classes = _start(embedding, data, per_class, seed)
    plan = Plan(
        tuple(classes.tolist()), cap, dropout, keep, slack, anchors, augment, jnp.dtype(dtype)
    )
    settings: dict[str, Any] = {
        "kind": "co-trained",
        "cotrained": True,
        "frozen": embedding.digest,
        "architecture": embedding.architecture.name,
        "images": len(data.points),
        "validation_images": len(held_out.points),
        "classes": len(data.names),
        "cap": float(cap),
        "per_class": per_class,
        "dropout": float(dropout),
        "keep": float(keep),
        "slack": float(slack),
        "anchors": anchors,
        "augment": str(augment),
        "learning_rate": float(learning_rate),
        "prototype_rate": float(prototype_rate),
        "weight_decay": WEIGHT_DECAY,
        "warmup": float(warmup),
        "epochs": epochs,
        "batch_size": batch_size,
        "evaluate_every": every,
        "dtype": plan.dtype.name,
        "stored": stored,
        "seed": seed,
    }
    network = {layer: dict(values) for layer, values in embedding.params.items()}
    run = programs(plan)
    result = fit(
        run.loss,
        {"network": network, "prototypes": w, "frozen": embedding},
        _optimizer(
            learning_rate, prototype_rate, warmup, epochs * -(-len(data.points) // batch_size)
        ),
        _batch(data, shape),
        validation=_batch(held_out, shape),
        batch_size=batch_size,
        steps=epochs,
        seed=seed,
        metric=run.missing,
        evaluate_every=every,
        checkpoint=checkpoint,
        checkpoint_every=1,
        identity=settings,
        resume=resume,
        progress=progress,
    )
    if result.stopped == "not finite":
        raise ValueError(
            f"training ran off with learning_rate {learning_rate} and prototype_rate "
            f"{prototype_rate}: give smaller ones"
        )
    best: Params = result.best_params
    found = replace(embedding, params=_rounded(best["network"], stored))
    names = [data.names[c] for c in classes]
    classifier = prototype_classifier(best["prototypes"], names, classes=data.names)
    one = classifier
    if per_class > 1:
        means, single = _start(found, data, 1, seed)
        one = prototype_classifier(means, [data.names[c] for c in single], classes=data.names)
    chosen = int(result.history.batch_steps[np.argmin(result.history.validation_loss)])
    settings |= {"picked": chosen, **_measured(embedding, found, one, held_out, radii, progress)}
    return CoTrained(found, classifier, result.history, settings)


def _check(
    positive: dict[str, float], at_least_0: dict[str, float], below_1: dict[str, float]
) -> None:
    rules = (
        (positive, lambda v: 0 < v < math.inf, "positive and finite"),
        (at_least_0, lambda v: 0 <= v < math.inf, "at least 0 and finite"),
        (below_1, lambda v: 0 <= v < 1, "at least 0 and below 1"),
    )
    for given, holds, words in rules:
        for name, value in given.items():
            if not holds(value):
                raise ValueError(f"{name} must be {words}, got {value}")


def _checked(embedding: Embedding, validation: float | tuple[Any, Any]) -> Any:
    """Validation images in the range that the embedding asks for, flat."""
    if not isinstance(validation, tuple):
        return validation
    x = check_images(embedding, validation[0], "validation")
    return x.reshape(len(x), -1), validation[1]


def _batch(data: Samples, shape: tuple[int, ...]) -> Batch:
    return Batch(jnp.asarray(data.points.reshape(-1, *shape)), jnp.asarray(data.classes))


def _start(
    embedding: Embedding, data: Samples, per_class: int, seed: int
) -> tuple[Float[Array, "K D"], Int[np.ndarray, " K"]]:
    """The means of some images of each class, or the centres that k-means finds among them."""
    rng, most = np.random.default_rng(seed), -(-STARTING // len(data.names))
    rows = np.concatenate(
        [rng.permutation(np.flatnonzero(data.classes == c))[:most] for c in range(len(data.names))]
    )
    z = embed(embedding, data.points[rows])
    key = jax.random.split(jax.random.key(seed))[1]  # fit folds numbers into the key itself
    return start(z, data.classes[rows], per_class, key)


@functools.lru_cache(PROGRAMS)
def _optimizer(
    network: float, prototypes: float, warmup: float, steps: int
) -> optax.GradientTransformation:
    """Nesterov's gradient at two rates, which rise and fall together."""

    def rate(peak: float) -> optax.Schedule:
        rising = max(1, round(warmup * steps))
        parts = [
            optax.linear_schedule(peak / rising, peak, rising),
            optax.linear_schedule(peak, 0, steps - rising),
        ]
        return optax.join_schedules(parts, [rising])

    def kernels(params: Any) -> Any:
        return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", params)

    def nesterov(peak: float) -> optax.GradientTransformation:
        return optax.sgd(rate(peak), momentum=0.9, nesterov=True)

    return optax.multi_transform(
        {
            "network": optax.chain(
                optax.add_decayed_weights(WEIGHT_DECAY, mask=kernels), nesterov(network)
            ),
            "prototypes": nesterov(prototypes),
            "frozen": optax.set_to_zero(),
        },
        {name: name for name in ("network", "prototypes", "frozen")},
    )


def _rounded(network: Params, stored: str) -> Params:
    return jax.tree.map(lambda a: jnp.asarray(np.asarray(a).astype(stored), jnp.float32), network)


def _measured(
    frozen: Embedding,
    found: Embedding,
    classifier: PrototypeClassifier,
    held_out: Samples,
    radii: Sequence[float],
    progress: bool,
) -> dict[str, Any]:
    """What a report says of a co-trained metric, measured on validation images."""
    x, names = held_out.points, [held_out.names[c] for c in held_out.classes]
    some = np.unique(np.linspace(0, len(x) - 1, min(len(x), CALIBRATED)).astype(int))
    before, after = (
        calibrate(metric, x[some], [names[k] for k in some]) for metric in (frozen, found)
    )
    compared = compare(before, after)
    certificate = certify(found, classifier, x, names, progress=progress)
    shares = np.atleast_1d(robust_accuracy(certificate, list(radii)))
    return {
        "calibration": record(before, after),
        "deviation": compared.deviation,
        "counts": compared.within,
        "baseline": {
            "validation images": len(x),
            "clean": certificate.clean_accuracy,
            **{
                f"certified at {eps:g}": float(share)
                for eps, share in zip(radii, shares, strict=True)
            },
        },
    }
