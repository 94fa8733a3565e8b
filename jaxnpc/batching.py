"""Work in pieces of few shapes: every new shape is a new program."""

import contextlib
from collections.abc import Generator, Iterator

import jax
import numpy as np
from jaxtyping import Int

QUEUE = (8, 64, 512)
"""The sizes of a batch of pairs: the smallest that fits is taken, so that few programs do."""


@contextlib.contextmanager
def float64_on_cpu() -> Generator[None]:
    """Where the last digits are found: every machine has float64 on its CPU, some only there."""
    with jax.enable_x64(True), jax.default_device(jax.local_devices(backend="cpu")[0]):
        yield


def blocks(n: int, size: int) -> Iterator[slice]:
    """Slices that cover 0 to n, of that size but for the last."""
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


def padded(x: np.ndarray, size: int) -> np.ndarray:
    """The rows of x, then zeros."""
    return np.concatenate([x, np.zeros((size - len(x), *x.shape[1:]), x.dtype)])


def queued(
    *columns: Int[np.ndarray, " P"],
) -> Iterator[tuple[Int[np.ndarray, " p"], tuple[Int[np.ndarray, " Q"], ...]]]:
    """Pairs in batches of few sizes: which they are, and their columns, the first one repeated."""
    start, total = 0, len(columns[0])
    while start < total:
        size = next((s for s in QUEUE if s >= total - start), QUEUE[-1])
        part = np.arange(start, min(start + size, total))
        index = np.concatenate([part, np.full(size - len(part), start)])
        yield part, tuple(column[index] for column in columns)
        start += size
