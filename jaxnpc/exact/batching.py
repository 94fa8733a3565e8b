"""Work in pieces of one shape: every new shape is a new program."""

import contextlib
from collections.abc import Generator, Iterator

import jax
import numpy as np


@contextlib.contextmanager
def float64_on_cpu() -> Generator[None]:
    """Where the last digits are found: every machine has float64 on its CPU, some only there."""
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        yield


def blocks(n: int, size: int) -> Iterator[slice]:
    """Slices that cover 0 to n, of that size but for the last."""
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


def padded(x: np.ndarray, size: int) -> np.ndarray:
    """The rows of x, then zeros."""
    return np.concatenate([x, np.zeros((size - len(x), *x.shape[1:]), x.dtype)])
