"""The optimisers to compare, by name: the hybrid, and the paper's with the paper's settings."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import optax

from jaxmpd.activations import PiecewiseLinear
from jaxmpd.minibatches import BatchSize, constant
from jaxmpd.steps.kinds import HYBRID
from jaxmpd.transform import mpd


class Preset(NamedTuple):
    """An optimiser of the comparison.

    Attributes:
        label: its name in a figure.
        make: gives the optimiser for an activation, a learning rate (a number or a schedule), a
            seed and the number of training samples, in this order; it uses of them what it needs.
        batch_size: the size of its minibatches.
        learning_rate: None for one that has none.
    """

    label: str
    make: Callable[..., optax.GradientTransformationExtraArgs]
    batch_size: BatchSize
    learning_rate: float | None


def _mpd(
    activation: PiecewiseLinear, learning_rate: optax.ScalarOrSchedule, seed: int, samples: int
) -> optax.GradientTransformationExtraArgs:
    del learning_rate
    return mpd(activation, steps=HYBRID, l2=HYBRID_RIDGE / samples, seed=seed)


def _coordinates(
    activation: PiecewiseLinear, learning_rate: optax.ScalarOrSchedule, seed: int, samples: int
) -> optax.GradientTransformationExtraArgs:
    del learning_rate, samples
    return mpd(activation, seed=seed)


def _adam(
    activation: PiecewiseLinear, learning_rate: optax.ScalarOrSchedule, seed: int, samples: int
) -> optax.GradientTransformationExtraArgs:
    del activation, seed, samples
    return optax.with_extra_args_support(optax.adam(learning_rate))


def _nag(
    activation: PiecewiseLinear, learning_rate: optax.ScalarOrSchedule, seed: int, samples: int
) -> optax.GradientTransformationExtraArgs:
    del activation, seed, samples
    return optax.with_extra_args_support(optax.sgd(learning_rate, momentum=0.9, nesterov=True))


ALL = constant(2**62)
"""All samples at once."""

HYBRID_RIDGE = 4e-3
"""The hybrid's ridge times the number of samples, for standardised inputs and targets.

That is, of the *sum* of the squared errors: it stands for what is known of the parameters before
any sample is seen, and weighs less the more samples there are."""

# Cached: one optimiser for equal arguments, so that a second run finds the first one's program.
PRESETS: dict[str, Preset] = {
    "mpd": Preset("MPD", functools.cache(_mpd), ALL, None),
    "coordinates": Preset("MPD by coordinates", functools.cache(_coordinates), BatchSize(), None),
    "adam": Preset("Adam", functools.cache(_adam), constant(256), 1e-3),
    "nag": Preset("NAG", functools.cache(_nag), constant(256), 1e-3),
}
"""MPD by hybrid steps; MPD by coordinates, Adam and Nesterov's gradient, as in section 4."""
