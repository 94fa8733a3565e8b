"""Certified training of prototypes of embedded images (P-PNPC; paper, appendix G)."""

import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxmpd.files import replacing
from jaxmpd.runs import at_least_one
from jaxnpc.augmentation import Augment
from jaxnpc.batching import blocks, padded
from jaxnpc.checkpoints import fingerprint
from jaxnpc.domains import Unbounded
from jaxnpc.monitor import check_criterion
from jaxnpc.perceptual.cotraining import CROPS
from jaxnpc.perceptual.embedding import Embedding, check_images
from jaxnpc.perceptual.subspace import COMPONENTS, LayerSubspace, layer_subspace, project
from jaxnpc.plans import Plan, optimizer_of
from jaxnpc.prototypes import prototype_classifier
from jaxnpc.samples import Samples, hold_out, samples
from jaxnpc.starts import allotted
from jaxnpc.subspace import Subspace
from jaxnpc.training import Trained
from jaxnpc.training import train as train_points

BATCH = 500
"""Images that are changed at random at a time: always as many, so that there is one program."""


def train(
    embedding: Embedding,
    images: ArrayLike,
    labels: Iterable[Hashable],
    *,
    per_class: int = 45,
    cap: float = 1.0,
    rivals: int = 8,
    dropout: float = 0.4,
    views: int = 4,
    augment: Augment = CROPS,
    components: Sequence[int] = COMPONENTS,
    fitted: int = 3000,
    learning_rate: float | None = None,
    epochs: int = 12,
    batch_size: int = 500,
    validation: float | tuple[Any, Any] | None = 0.1,
    criterion: str = "area",
    eps: Sequence[float] = (0.5,),
    seed: int = 0,
    cache: str | Path | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
) -> Trained:
    r"""Train prototypes of embedded images for certified robustness in LPIPS.

    What [`jaxnpc.training.train`][jaxnpc.training.train] does with points: the mean over the images
    of the capped half-space bound is maximised (eq. 7), here over prototypes
    in a subspace of the embedding of few dimensions, so that an epoch costs seconds. The images are
    embedded once, in several views: as they are, and changed at random. Prototypes are lifted back
    to the embedding, and rounded to float32, before anything is certified.

    Args:
        embedding: the metric.
        images: n images (n, height, width, 3) with values in [0, 1].
        labels: their labels.
        per_class: prototypes a class.
        cap: R, the LPIPS distance beyond which a radius gains nothing.
        rivals: how many rivals are compared with all own prototypes.
        dropout: the probability with which each prototype of its class is hidden from an image.
        views: how often each image is embedded: once as it is, else changed by `augment`.
        augment: random changes of images; by default they are mirrored, and moved by two pixels or
            fewer.
        components: the dimension of the subspace of each layer.
        fitted: how many images the subspace is fitted to; their embeddings are held at once.
        learning_rate: the largest; by default one for the data's scale.
        epochs: passes over all views.
        batch_size: views a minibatch.
        validation: images and labels to choose the best prototypes by; or the share of the images,
            from the end, or the end of each class, that is taken for that; or None.
        criterion: what is best there: "clean", "cra" (at the first of `eps`) or "area" (under the
            curve of certified accuracy up to the cap), by the half-space bound.
        eps: LPIPS distances at which certified accuracy is recorded.
        seed: of everything that is random.
        cache: a folder where coefficients are kept, some hundred bytes a coordinate and image: a
            run that was interrupted, or one with other settings, does not embed again.
        checkpoint: a file to save the run in, and beside it the history in another one.
        resume: go on from the checkpoint if it exists.
        progress: whether to show progress bars.

    Returns:
        The classifier of embedded images, with float32 prototypes; its history; and `settings` with
        `embedding`, the SHA-256 of the metric.

    Raises:
        TypeError: if an argument is of a wrong type.
        ValueError: if an argument is out of its range or does not fit, or the checkpoint belongs to
            another run.
        FileNotFoundError: if the checkpoint's history is missing.
    """
    began = time.perf_counter()
    at_least_one(views=views, fitted=fitted, per_class=per_class)
    data, held_out = samples(check_images(embedding, images), labels, 2), None
    if validation is not None:
        if isinstance(validation, tuple):
            x = check_images(embedding, validation[0], "validation")
            validation = x.reshape(len(x), -1), validation[1]
        data, held_out = hold_out(data, validation, 2)
    check_criterion(criterion, eps)
    plan = Plan(2.0, 2.0, Unbounded(), "margin", cap, rivals, dropout, 0.0).check()
    owners = allotted(np.tile(data.classes, views), per_class, "kmeans")
    plan.build(owners)  # raises before any work is done, as the next line
    optimizer_of(
        None, learning_rate, plan, len(owners), views * len(data.points), batch_size, epochs
    )

    shape = (*embedding.size, 3)
    run = fingerprint(
        embedding.digest,
        data.points,
        *components,
        fitted,
        shape,
        str(augment),
        seed,
        jax.__version__,
    )
    folder = None if cache is None else Path(cache)
    bar = "embedding {}" if progress else None

    def fit() -> list[np.ndarray]:
        some = np.unique(np.linspace(0, len(data.points) - 1, min(len(data.points), fitted)))
        chosen = data.points[some.astype(int)]
        return [np.asarray(a.basis) for a in layer_subspace(embedding, chosen, components).layers]

    bases = _cached(folder, "subspace", run, fit)
    space = LayerSubspace(tuple(Subspace(jnp.zeros(b.shape[1]), jnp.asarray(b)) for b in bases))

    def coefficients(name: str, points: Float[np.ndarray, "n d"], view: int) -> np.ndarray:
        def compute() -> list[np.ndarray]:
            x = points.reshape(-1, *shape)
            if view:
                x = _changed(augment, jax.random.fold_in(jax.random.key(seed), view), x)
            title = None if bar is None else bar.format(name)
            return [project(embedding, space, x, progress=title)]

        return _cached(folder, name, fingerprint(run, points), compute)[0]

    seen = [coefficients(f"view {v}", data.points, v) for v in range(views)]
    names = [data.names[c] for c in data.classes]
    result = train_points(
        np.concatenate(seen),
        names * views,
        per_class=per_class,
        start="kmeans",
        cap=cap,
        rivals=rivals,
        dropout=dropout,
        learning_rate=learning_rate,
        epochs=epochs,
        batch_size=batch_size,
        validation=None if held_out is None else _projected(held_out, coefficients),
        criterion=criterion,
        eps=eps,
        seed=seed,
        checkpoint=checkpoint,
        resume=resume,
        progress=progress,
    )
    return replace(
        result,
        classifier=prototype_classifier(
            np.asarray(space.points(result.classifier.prototypes)),
            [result.classifier.classes[c] for c in np.asarray(result.classifier.labels)],
            classes=result.classifier.classes,
        ),
        settings={
            **result.settings,
            "embedding": embedding.digest,
            "images": len(data.points),
            "views": views,
            "augment": str(augment),
            "components": " ".join(str(len(basis)) for basis in bases),
            "fitted": fitted,
        },
        seconds=time.perf_counter() - began,
    )


def _projected(
    held_out: Samples, coefficients: Callable[[str, np.ndarray, int], np.ndarray]
) -> tuple[np.ndarray, list[Hashable]]:
    """Validation images as they are."""
    found = coefficients("validation", held_out.points, 0)
    return found, [held_out.names[c] for c in held_out.classes]


def _changed(
    augment: Augment, key: Array, images: Float[np.ndarray, "n h w 3"]
) -> Float[np.ndarray, "n h w 3"]:
    """Images changed at random, by one compiled program."""
    change, found = jax.jit(augment), np.empty_like(images)
    for k, part in enumerate(blocks(len(images), BATCH)):
        some = change(jax.random.fold_in(key, k), padded(images[part], BATCH))
        found[part] = np.asarray(some)[: part.stop - part.start]
    return np.clip(found, 0, 1)


def _cached(
    folder: Path | None, name: str, run: str, compute: Callable[[], list[np.ndarray]]
) -> list[np.ndarray]:
    """Arrays from their file in the folder, if that is of this run; else computed, and kept."""
    if folder is None:
        return compute()
    file = folder / f"{name.replace(' ', '_')}-{run[:16]}.npz"
    if file.is_file():
        with np.load(file, allow_pickle=False) as archive:
            return [archive[key] for key in archive.files]
    found = compute()
    with replacing(file) as temporary:
        np.savez(temporary, *found, allow_pickle=False)
    return found
