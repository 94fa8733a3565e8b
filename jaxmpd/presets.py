"""The optimisers the paper compares, by name, each with the settings the paper gives it."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import optax

from jaxmpd.activations import PiecewiseLinear
from jaxmpd.minibatches import BatchSize, constant
from jaxmpd.transform import mpd


class Preset(NamedTuple):
    """An optimiser of the comparison.

    Attributes:
        label: its name in a figure.
        make: gives the optimiser for an activation, a learning rate and a seed, of which it uses
            what it needs.
        batch_size: the size of its minibatches.
        learning_rate: None for one that has none.
    """

    label: str
    make: Callable[
        [PiecewiseLinear, optax.ScalarOrSchedule, int], optax.GradientTransformationExtraArgs
    ]
    batch_size: BatchSize
    learning_rate: float | None


# One optimiser for equal arguments, so that a second run finds the first one's program.
@functools.cache
def _mpd(
    activation: PiecewiseLinear, learning_rate: optax.ScalarOrSchedule, seed: int
) -> optax.GradientTransformationExtraArgs:
    del learning_rate
    return mpd(activation, seed=seed)


@functools.cache
def _adam(
    activation: PiecewiseLinear, learning_rate: optax.ScalarOrSchedule, seed: int
) -> optax.GradientTransformationExtraArgs:
    del activation, seed
    return optax.with_extra_args_support(optax.adam(learning_rate))


@functools.cache
def _nag(
    activation: PiecewiseLinear, learning_rate: optax.ScalarOrSchedule, seed: int
) -> optax.GradientTransformationExtraArgs:
    del activation, seed
    return optax.with_extra_args_support(optax.sgd(learning_rate, momentum=0.9, nesterov=True))


PRESETS: dict[str, Preset] = {
    "mpd": Preset("MPD", _mpd, BatchSize(), None),
    "adam": Preset("Adam", _adam, constant(256), 1e-3),
    "nag": Preset("NAG", _nag, constant(256), 1e-3),
}
"""MPD, Adam and Nesterov's accelerated gradient, as in the paper's section 4."""
