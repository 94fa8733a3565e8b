"""Minibatches: random partitions of the samples, and the schedule of their size."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxmpd.losses import Batch


@dataclass(frozen=True)
class BatchSize:
    """The number of samples of a minibatch, as a function of the minibatch steps taken.

    It is `initial` for the first `hold` minibatch steps and then grows by `factor` every `every`
    minibatch steps, until it is all samples. The defaults are the paper's for MPD, S' = 2048 until
    t = 200; how it grows from there the paper leaves open. Without growth: `factor=1`.

    Args:
        initial: the first size, S'.
        hold: minibatch steps at the first size.
        every: minibatch steps between one growth and the next.
        factor: the ratio of neighbouring sizes, at least 1.

    Raises:
        ValueError: if an argument is out of its range.

    Example:
        >>> size = BatchSize(initial=2048, hold=200, every=100, factor=2)
        >>> [size(t, samples=50_000) for t in (0, 199, 200, 299, 300, 700)]
        [2048, 2048, 4096, 4096, 8192, 50000]
    """

    initial: int = 2048
    hold: int = 200
    every: int = 100
    factor: float = 2.0

    def __post_init__(self):
        if self.initial < 1:
            raise ValueError(f"a minibatch needs at least one sample, got initial={self.initial}")
        if self.hold < 0 or self.every < 1:
            raise ValueError(
                f"hold={self.hold} must not be negative and every={self.every} must be positive: "
                "both count minibatch steps"
            )
        if not 1 <= self.factor < math.inf:
            raise ValueError(
                f"factor must be finite and at least 1 (1: no growth), got {self.factor}"
            )

    def __call__(self, minibatch_steps: int, samples: int) -> int:
        """The size after so many minibatch steps, for a data set of so many samples."""
        growths = max(0, (minibatch_steps - self.hold) // self.every + 1)
        # In logarithms, since the power itself overflows after a thousand growths.
        if math.log(self.initial) + growths * math.log(self.factor) >= math.log(samples):
            return samples
        return min(samples, int(self.initial * self.factor**growths))


def constant(size: int) -> BatchSize:
    """Minibatches of one size throughout."""
    return BatchSize(initial=size, factor=1)


def shape(samples: int, size: int) -> tuple[int, int]:
    """The number and the width of the minibatches that `size` asks for.

    Their number is ceil(S/S') (eq. 34). Their width is the least that holds all samples, not S':
    with S = S' + 1 the second of two minibatches would otherwise hold a single sample, and an
    exact minimum over one sample is worth nothing.
    """
    number = -(-samples // size)
    return number, -(-samples // number)


def partition(key: PRNGKeyArray, samples: int, size: int) -> Int[Array, "number width"]:
    r"""A random partition of the samples into minibatches: one batch step (eq. 34).

    $$\bigcup_{t = t' n}^{(t' + 1) n - 1} \mathcal F'_t = \mathcal F,
    \qquad n = \lceil S/S' \rceil$$

    Args:
        key: a PRNG key.
        samples: their number, S.
        size: the most samples of a minibatch, S'.

    Returns:
        The indices of each minibatch's samples, every sample exactly once; -1 pads a minibatch
        that has one sample fewer than the others.

    Raises:
        ValueError: if there are no samples or the size is not positive.

    Example:
        >>> indices = partition(jax.random.key(0), samples=10, size=4)
        >>> indices.shape, sorted(indices.ravel().tolist())
        ((3, 4), [-1, -1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """
    if samples < 1 or size < 1:
        raise ValueError(f"samples={samples} and size={size} must be positive")
    number, width = shape(samples, size)
    if number == 1:  # the order within a minibatch is immaterial
        return jnp.arange(samples, dtype=jnp.int32)[None]
    order = jax.random.permutation(key, jnp.arange(samples, dtype=jnp.int32))
    padded = jnp.concatenate([order, jnp.full(number * width - samples, -1, jnp.int32)])
    # Dealt out like cards, so that the fewer than `number` pads fall to different minibatches.
    return padded.reshape(width, number).T


def take(data: Batch, indices: Int[Array, " width"]) -> Batch:
    """The samples at these indices, with weight 0 where the index is -1.

    Args:
        data: all samples; `inputs` and `targets` may have any trailing shape.
        indices: which to take.

    Returns:
        A minibatch of the samples, with weights.
    """
    here = indices >= 0
    places = jnp.maximum(indices, 0)
    inputs, targets = data.inputs[places], data.targets[places]
    return Batch(inputs, targets, here * sample_weights(data)[places])


def sample_weights(data: Batch) -> Float[Array, " S"]:
    """The samples' weights, ones if they have none."""
    if data.weights is not None:
        return data.weights
    # Counts of samples must not be rounded to a half-precision input's 11 bits.
    dtype = jnp.promote_types(jnp.result_type(data.inputs), jnp.float32)
    return jnp.ones(len(data.inputs), dtype)
