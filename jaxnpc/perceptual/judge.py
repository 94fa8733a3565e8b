r"""Whether images are of another class than they should be, judged as certificates speak of it.

A certificate is about the numbers that [`embed`][jaxnpc.perceptual.embedding.embed] returns, taken
as exact. So is the judge: classes are compared in float64 with bounds of the rounding, and where
these leave a tie open, exactly. A tie counts as a change of class.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import ArrayLike, Bool, Float, Int

from jaxnpc.decisions import Decision, decide, left
from jaxnpc.perceptual.embedding import Embedding, embed
from jaxnpc.prototypes import PrototypeClassifier

CLOSE = 1e-6
"""Prototypes whose squared distance exceeds the least by more than that, relatively, are not."""


class Verdict(NamedTuple):
    """What is known of n images.

    Attributes:
        changed: whether the image is of another class than its label's, or tied; False for images
            that are not finite.
        predicted: the class it is assigned to; -1 for those.
        embedded: its embedding, float32.
    """

    changed: Bool[np.ndarray, " n"]
    predicted: Int[np.ndarray, " n"]
    embedded: Float[np.ndarray, "n D"]


def judge(
    embedding: Embedding,
    classifier: PrototypeClassifier,
    images: ArrayLike,
    labels: Int[np.ndarray, " n"],
) -> Verdict:
    """Which images have left their class.

    Args:
        embedding: the metric.
        classifier: of embedded images, with float32 prototypes, distance 2 and no metric.
        images: n images with values in [0, 1].
        labels: their class indices.

    Returns:
        The verdict, which depends on float32 in nothing but the embeddings.

    Example:
        >>> import jax
        >>> from jaxnpc.perceptual.alexnet import CIFAR
        >>> from jaxnpc.perceptual.embedding import random_embedding
        >>> from jaxnpc.prototypes import prototype_classifier
        >>> phi = random_embedding(CIFAR, jax.random.key(0))
        >>> images = np.linspace(0, 1, 2 * 3072, dtype=np.float32).reshape(2, 32, 32, 3)
        >>> names = ["dark", "bright"]
        >>> both = prototype_classifier(embed(phi, images), names, classes=names)
        >>> judge(phi, both, images, np.array([0, 0])).changed.tolist()
        [False, True]
    """
    z = embed(embedding, images)
    return Verdict(*judge_embedded(classifier, z, labels), z)


def judge_embedded(
    classifier: PrototypeClassifier, z: Float[np.ndarray, "n D"], labels: Int[np.ndarray, " n"]
) -> tuple[Bool[np.ndarray, " n"], Int[np.ndarray, " n"]]:
    """The same of embedded images: whether they changed, and their classes."""
    decision: Decision = decide(classifier, z)
    changed = left(decision, labels)
    kept = decision.certain & (decision.predicted == labels)
    for row in np.flatnonzero(~changed & ~kept & (decision.predicted >= 0)):
        changed[row] = reaches_a_tie(classifier, z[row], int(labels[row]))
    return changed, decision.predicted


def reaches_a_tie(classifier: PrototypeClassifier, z: Float[np.ndarray, " D"], label: int) -> bool:
    """Whether some other class is at least as close, in exact arithmetic.

    Products of float32 numbers are exact in float64, and `math.fsum` adds without error, so that
    the sign of a difference of squared distances is right.

    Args:
        classifier: with float32 prototypes.
        z: an embedded image, float32.
        label: a class index.
    """
    x = z.astype(np.float64)
    w, of = np.asarray(classifier.prototypes, np.float64), np.asarray(classifier.labels)
    squares = np.square(w - x).sum(axis=1)
    near = squares <= squares.min() * (1 + CLOSE)
    own, rivals = (np.flatnonzero(near & side) for side in (of == label, of != label))

    def no_farther(j: int, i: int) -> bool:
        terms = (w[j] * w[j], -w[i] * w[i], -2 * x * w[j], 2 * x * w[i])
        return math.fsum(np.concatenate(terms)) <= 0

    return any(all(no_farther(int(j), int(i)) for i in own) for j in rivals)


def distances_from(
    origins: Float[np.ndarray, "n D"], z: Float[np.ndarray, "n D"]
) -> Float[np.ndarray, " n"]:
    """LPIPS distances of embedded images, in float64."""
    gap = z.astype(np.float64) - origins
    return np.sqrt(np.einsum("nd,nd->n", gap, gap))
