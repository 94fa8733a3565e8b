"""The metric that comes with the package, trained by `benchmarks.perceptual_features`."""

import functools
from pathlib import Path

from jaxnpc.perceptual.embedding import Embedding
from jaxnpc.perceptual.weights import load_embedding

CIFAR_FILE = Path(__file__).parent / "metrics" / "alexnet_cifar.npz"
"""Float16 weights of the convolutions, and in `settings` how they were trained."""

CIFAR_DIGEST = "6658c9614c6965abb000ddffe257fd06b35897aa0f6741b6d09546d352b5fd05"
"""The SHA-256 that [`Embedding.digest`][jaxnpc.perceptual.embedding.Embedding] gives."""


@functools.cache
def cifar_embedding() -> Embedding:
    """The metric for CIFAR-10's images: unweighted LPIPS of an AlexNet for 32 x 32 pixels.

    Trained on the class labels of 45,000 training images, re-encoded as JPEG; the last 500 of each
    class are left for the validation of what is built on it.

    Returns:
        The embedding, float32.

    Raises:
        OSError: if the file is missing.
        ValueError: if it is not the file that the package was released with.

    Example:
        >>> cifar_embedding().dimension
        43008
    """
    embedding = load_embedding(CIFAR_FILE)
    if embedding.digest != CIFAR_DIGEST:
        raise ValueError(
            f"{CIFAR_FILE} is not what the package came with: its metric has SHA-256 "
            f"{embedding.digest}, not {CIFAR_DIGEST}; install the package again"
        )
    return embedding
