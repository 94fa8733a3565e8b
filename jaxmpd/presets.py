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
        make: gives the optimiser for an activation, a learning rate (a number or a schedule) and a
            seed, in this order; it uses of them what it needs.
        batch_size: the size of its minibatches.
        learning_rate: None for one that has none.
    """

    label: str
    make: Callable[..., optax.GradientTransformationExtraArgs]
    batch_size: BatchSize
    learning_rate: float | None


def _mpd(
    activation: PiecewiseLinear, learning_rate: optax.ScalarOrSchedule, seed: int
) -> optax.GradientTransformationExtraArgs:
    del learning_rate
    return mpd(activation, seed=seed)


def _adam(
    activation: PiecewiseLinear, learning_rate: optax.ScalarOrSchedule, seed: int
) -> optax.GradientTransformationExtraArgs:
    del activation, seed
    return optax.with_extra_args_support(optax.adam(learning_rate))


def _nag(
    activation: PiecewiseLinear, learning_rate: optax.ScalarOrSchedule, seed: int
) -> optax.GradientTransformationExtraArgs:
    del activation, seed
    return optax.with_extra_args_support(optax.sgd(learning_rate, momentum=0.9, nesterov=True))


# Cached: one optimiser for equal arguments, so that a second run finds the first one's program.
PRESETS: dict[str, Preset] = {
    "mpd": Preset("MPD", functools.cache(_mpd), BatchSize(), None),
    "adam": Preset("Adam", functools.cache(_adam), constant(256), 1e-3),
    "nag": Preset("NAG", functools.cache(_nag), constant(256), 1e-3),
}
"""MPD, Adam and Nesterov's accelerated gradient, as in the paper's section 4."""
