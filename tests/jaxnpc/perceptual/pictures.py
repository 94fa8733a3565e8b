"""A narrow network for small images, images of three kinds, and prototypes of them."""

import dataclasses

import jax
import numpy as np

from jaxnpc.perceptual.alexnet import CIFAR
from jaxnpc.perceptual.embedding import embed, random_embedding
from jaxnpc.prototypes import prototype_classifier

NAMES = np.array(["cat", "dog", "eel"])


def small(count=12, features=6, side=16, seed=0):
    """The metric, images, their names, and a classifier that has two prototypes a class."""
    layers = tuple(layer._replace(features=features) for layer in CIFAR.layers)
    narrow = dataclasses.replace(CIFAR, layers=layers)
    phi = random_embedding(narrow, jax.random.key(seed), size=(side, side))
    rng = np.random.default_rng(seed)
    kinds = rng.random((3, 4, 4, 3)).repeat(side // 4, axis=1).repeat(side // 4, axis=2)
    y = np.arange(count) % 3
    noise = rng.random((count, side, side, 3))
    images = (0.8 * kinds[y] + 0.2 * noise).astype(np.float32)
    classifier = prototype_classifier(embed(phi, images[:6]), NAMES[y[:6]])
    return phi, images, NAMES[y], classifier


def classes(phi, classifier, images):
    """The nearest prototypes' classes, in plain float64."""
    z = embed(phi, images).astype(np.float64)
    w = np.asarray(classifier.prototypes, np.float64)
    squares = np.square(z[:, None] - w).sum(axis=2)
    return np.asarray(classifier.labels)[np.argmin(squares, axis=1)]
