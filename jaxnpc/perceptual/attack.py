r"""The Lagrangian perceptual attack: images close in LPIPS that are of another class.

Laidlaw, Singla and Feizi (2021) look for an image x' that maximises

$$m(\phi(x')) - \lambda \max(0, d(x, x') - \epsilon), \qquad x' \in [0, 1]^d$$

by normalised gradient steps whose length is measured in LPIPS, with a multiplier that grows while
the distance exceeds $\epsilon$. Here m is the signed LPIPS distance from the nearest half-space of
another class, $m(z) = \max_j \, (s_j - \max_i s_i) / |w_j - w_i|$ with $s_k = \langle z, w_k
\rangle - |w_k|^2 / 2$; and $\epsilon$ may be a radius of each image's own that shrinks below the
least distance found: one run then gives an upper bound of the robust accuracy at all radii.
"""

import math
import os
from collections.abc import Hashable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PRNGKeyArray
from tqdm import tqdm

from jaxmpd.runs import at_least_one
from jaxnpc.batching import blocks, padded
from jaxnpc.certificate import checksums
from jaxnpc.certify import check_labels
from jaxnpc.checkpoints import fingerprint
from jaxnpc.distances import squared_l2
from jaxnpc.perceptual.attacked import Attacked, Parts, concatenate
from jaxnpc.perceptual.embedding import Embedding, check_images, embed
from jaxnpc.perceptual.judge import distances_from, judge, judge_embedded
from jaxnpc.perceptual.prepared import check_classifier
from jaxnpc.prototypes import PrototypeClassifier
from jaxnpc.witnesses import nearest_outside

NOISE = 0.01
"""The standard deviation of the noise that a search begins with."""

SLACK = 1e-5
"""How far beyond the border, in LPIPS, float32 has to see a point for a success of the search."""

HALVINGS = 12
"""How often the segment from an image to the one found is halved."""

LENGTHS = 0.4, 0.01
"""LPIPS lengths of the first and of the last step, with geometric ones between them."""

PROBE = 1e-3
"""The root mean square change of a pixel by which a direction's LPIPS length is measured."""

SHRINK = 0.98
"""What the radius is of the least distance found."""

MOMENTUM = 0.75
"""The share of the last direction in the next one: less zigzag along the border."""

GROWTH = 1.05
"""The factor by which the multiplier grows outside of the radius, and falls inside of it."""

MULTIPLIERS = 0.1, 100.0
"""Its limits; a step changes m by no more than d, so that 1 turns it back."""


class Rivals(NamedTuple):
    """The classifier as a search sees it.

    Attributes:
        prototypes: w.
        labels: their class indices.
        half: |w|^2 / 2.
        apart: |w_j - w_i|; 1 within a class.
    """

    prototypes: Float[Array, "K D"]
    labels: Int[Array, " K"]
    half: Float[Array, " K"]
    apart: Float[Array, "K K"]


class Search(NamedTuple):
    """A search of b images on its way.

    Attributes:
        images: where it is, x'.
        best: the nearest images of another class so far.
        distance: how far they are; infinite where there is none.
        multiplier: lambda.
        velocity: the sum of the directions so far, the older the less.
    """

    images: Float[Array, "b h w 3"]
    best: Float[Array, "b h w 3"]
    distance: Float[Array, " b"]
    multiplier: Float[Array, " b"]
    velocity: Float[Array, "b h w 3"]


class How(NamedTuple):
    """How the attack is run: `attack`'s arguments."""

    radius: float
    steps: int
    starts: int
    batch: int


def attack(
    embedding: Embedding,
    classifier: PrototypeClassifier,
    images: ArrayLike,
    labels: Iterable[Hashable],
    *,
    radius: float | None = None,
    steps: int = 80,
    starts: int = 2,
    batch: int = 64,
    seed: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> Attacked:
    """Look for the closest image of another class, by LPIPS distance.

    What is found is judged in float64 on its own float32 embedding, as certificates are, and pulled
    back towards the image by bisection.

    Args:
        embedding: the metric.
        classifier: of embedded images, with float32 prototypes, distance 2 and no metric.
        images: n images with values in [0, 1].
        labels: their n class names.
        radius: look within this LPIPS distance only; None for the least distance whatever it is.
        steps: gradient steps of a search.
        starts: searches an image: the first begins at the image, the others at the best found, all
            with some noise.
        batch: how many images are attacked at a time.
        seed: of the noise.
        checkpoint: a folder where finished batches are kept, to resume a run that was interrupted.
        progress: whether to show a progress bar.

    Returns:
        The closest images of another class that were found.

    Raises:
        TypeError: if the images are no floating-point numbers or the prototypes are not float32.
        ValueError: if a shape, a label or a number does not fit, there are no images, or the
            checkpoint is another run's.
    """
    check_classifier(classifier)
    at_least_one(steps=steps, starts=starts, batch=batch)
    if radius is not None and not radius > 0:
        raise ValueError(f"radius must be above 0, got {radius}: None looks at any distance")
    checked = check_images(embedding, images)
    if not len(checked):
        raise ValueError("images has none: give at least one")
    label = check_labels(classifier, labels, len(checked))
    if embedding.dimension != classifier.prototypes.shape[1]:
        raise ValueError(
            f"prototypes have {classifier.prototypes.shape[1]} dimensions, embedded images "
            f"{embedding.dimension}: use the classifier with the metric it was trained in"
        )
    how = How(math.inf if radius is None else radius, steps, starts, batch)
    settings = {
        "embedding": embedding.digest,
        "attack": "Lagrangian perceptual",
        "radius": f"{how.radius:g}",
        "steps": str(steps),
        "starts": str(starts),
        "batch": str(batch),
        "seed": str(seed),
    }
    run = fingerprint(
        classifier.prototypes, classifier.labels, classifier.classes, checked, label, settings
    )
    done, rivals, found = Parts(Path(checkpoint) if checkpoint else None, run), None, []
    with tqdm(total=len(checked), desc="attack", unit="image", disable=not progress) as bar:
        for part in blocks(len(checked), batch):
            some = done.load(part.start)
            if some is None:
                rivals = rivals or _rivals(classifier)
                key = jax.random.fold_in(jax.random.key(seed), part.start)
                some = _attack_batch(
                    embedding, classifier, rivals, checked[part], label[part], how, key
                )
                done.save(part.start, some)
            found.append(some)
            bar.update(len(some))
    return replace(concatenate(found), classes=classifier.classes, settings=settings)


def _rivals(classifier: PrototypeClassifier) -> Rivals:
    w, labels = classifier.prototypes, jnp.asarray(classifier.labels)
    foreign = labels[:, None] != labels
    apart = jnp.where(foreign, jnp.sqrt(squared_l2(w, w)), 1)
    return Rivals(w, labels, jnp.sum(jnp.square(w), axis=1) / 2, jnp.maximum(apart, SLACK))


def _attack_batch(
    embedding: Embedding,
    classifier: PrototypeClassifier,
    rivals: Rivals,
    images: Float[np.ndarray, "b h w 3"],
    label: Int[np.ndarray, " b"],
    how: How,
    key: PRNGKeyArray,
) -> Attacked:
    """The attack on at most `how.batch` images."""
    before = judge(embedding, classifier, images, label)
    best, found = images.copy(), np.where(before.changed, before.predicted, -1)
    tried = ~before.changed & (before.predicted >= 0)
    distance = np.where(tried, np.inf, 0.0)
    if len(rows := np.flatnonzero(tried)):
        candidates = _search(
            embedding, rivals, images[rows], before.embedded[rows], label[rows], how, key
        )
        reached, far, predicted = _pulled_back(
            embedding, classifier, images[rows], before.embedded[rows], candidates, label[rows]
        )
        hit = np.isfinite(far) & (far <= how.radius)
        best[rows[hit]], distance[rows[hit]] = reached[hit], far[hit]
        found[rows[hit]] = predicted[hit]
    return Attacked(best, distance, label, found, checksums(images), classifier.classes)


def _search(
    embedding: Embedding,
    rivals: Rivals,
    images: Float[np.ndarray, "r h w 3"],
    z: Float[np.ndarray, "r D"],
    label: Int[np.ndarray, " r"],
    how: How,
    key: PRNGKeyArray,
) -> Float[np.ndarray, "r h w 3"]:
    """Where the search sees another class; the images themselves where it does not."""
    # Always as many rows, so that there is one program.
    origin, at, of = (jnp.asarray(padded(a, how.batch)) for a in (images, z, label))
    best, distance = origin, jnp.full(how.batch, jnp.inf)
    lengths = np.geomspace(*LENGTHS, how.steps)
    for start in range(how.starts):
        noise = NOISE * jax.random.normal(jax.random.fold_in(key, start), origin.shape)
        begin = jnp.clip(best + noise, 0, 1)
        state = Search(begin, best, distance, jnp.ones(how.batch), jnp.zeros_like(origin))
        for length in lengths:
            state = _step(embedding, rivals, at, of, how.radius, float(length), state)
        best, distance = state.best, state.distance
    return np.asarray(best)[: len(images)]


@partial(jax.jit, donate_argnames="state")
def _step(
    embedding: Embedding,
    rivals: Rivals,
    z: Float[Array, "b D"],
    y: Int[Array, " b"],
    radius: Float[ArrayLike, ""],
    length: Float[ArrayLike, ""],
    state: Search,
) -> Search:
    """One step of all images: note where they are, then go on."""
    reached, back = jax.vjp(embedding, state.images)
    away = reached - z
    d = jnp.sqrt(jnp.sum(jnp.square(away), axis=1))
    margin, towards = _margin(rivals, reached, y)
    better = (margin > SLACK) & (d < state.distance) & (d <= radius)
    best = jnp.where(better[:, None, None, None], state.images, state.best)
    distance = jnp.where(better, d, state.distance)

    eps = jnp.minimum(SHRINK * distance, radius)
    outside = d > eps
    # The gradient of d has norm 1, and is none at the image itself.
    pull = jnp.where(outside, state.multiplier / jnp.maximum(d, SLACK), 0)
    [gradient] = back(towards - pull[:, None] * away)
    # A direction that leaves [0, 1] is none.
    held = ((state.images <= 0) & (gradient < 0)) | ((state.images >= 1) & (gradient > 0))
    gradient = jnp.where(held, 0, gradient)
    velocity = MOMENTUM * state.velocity + _normalized(gradient)
    direction = _normalized(velocity)
    probe = embedding(jnp.clip(state.images + PROBE * direction, 0, 1)) - reached
    moved = jnp.sqrt(jnp.sum(jnp.square(probe), axis=1))
    size = PROBE * length / jnp.maximum(moved, SLACK)
    images = jnp.clip(state.images + size[:, None, None, None] * direction, 0, 1)
    factor = jnp.where(outside, GROWTH, 1 / GROWTH)
    multiplier = jnp.clip(state.multiplier * factor, *MULTIPLIERS)
    return Search(images, best, distance, multiplier, velocity)


def _normalized(x: Float[Array, "b h w 3"]) -> Float[Array, "b h w 3"]:
    """Images over their root mean square; 0 stays 0."""
    square = jnp.mean(jnp.square(x), axis=(1, 2, 3), keepdims=True)
    return x * jax.lax.rsqrt(jnp.where(square > 0, square, 1))


def _margin(
    rivals: Rivals, z: Float[Array, "b D"], y: Int[Array, " b"]
) -> tuple[Float[Array, " b"], Float[Array, "b D"]]:
    """How far points are beyond the border of their class, and in which direction that grows."""
    w, labels, half, apart = rivals
    score = jnp.matmul(z, w.T, precision=jax.lax.Precision.HIGHEST) - half
    own = labels == y[:, None]
    i = jnp.argmax(jnp.where(own, score, -jnp.inf), axis=1)
    gain = (score - jnp.take_along_axis(score, i[:, None], axis=1)) / apart[i]
    j = jnp.argmax(jnp.where(own, -jnp.inf, gain), axis=1)
    margin = jnp.take_along_axis(gain, j[:, None], axis=1)[:, 0]
    return margin, (w[j] - w[i]) / apart[i, j][:, None]


def _pulled_back(
    embedding: Embedding,
    classifier: PrototypeClassifier,
    images: Float[np.ndarray, "r h w 3"],
    z: Float[np.ndarray, "r D"],
    candidates: Float[np.ndarray, "r h w 3"],
    label: Int[np.ndarray, " r"],
) -> tuple[Float[np.ndarray, "r h w 3"], Float[np.ndarray, " r"], Int[np.ndarray, " r"]]:
    """Images of another class, judged in float64, their distances and classes.

    The distance is infinite where the candidate is not of another class. On the segment it need not
    grow with the share: of both ends of the bisection the nearer one is taken.
    """
    shape, flat = images.shape[1:], images.reshape(len(images), -1)

    def outside(x: Float[np.ndarray, "r d"]) -> Bool[np.ndarray, " r"]:
        return judge(embedding, classifier, _narrow(x, shape), label).changed

    # Where a candidate is no success the bisection is of no use, and its end not believed.
    halved = nearest_outside(flat, candidates.reshape(flat.shape), outside, steps=HALVINGS)
    best, least = images, np.full(len(images), np.inf)
    found = np.full(len(images), -1)
    for some in (candidates, _narrow(halved, shape)):
        embedded = embed(embedding, some)
        changed, predicted = judge_embedded(classifier, embedded, label)
        far = np.where(changed, distances_from(z.astype(np.float64), embedded), np.inf)
        nearer = far < least
        best = np.where(nearer[:, None, None, None], some, best)
        least, found = np.where(nearer, far, least), np.where(nearer, predicted, found)
    return best, least, found


def _narrow(x: Float[np.ndarray, "r d"], shape: tuple[int, ...]) -> Float[np.ndarray, "r h w 3"]:
    return x.astype(np.float32).reshape(len(x), *shape)
