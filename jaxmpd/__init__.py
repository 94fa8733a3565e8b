"""Message passing descent: exact global minimisation along parameters of PWL networks."""

from jaxmpd.activations import (
    ABS,
    ACTIVATIONS,
    HARD_SIGMOID,
    HARD_TANH,
    IDENTITY,
    LEAKY_HARD_TANH,
    LEAKY_RELU,
    RELU,
    PiecewiseLinear,
    leaky_hard_tanh,
    leaky_relu,
    piecewise_linear,
)
from jaxmpd.buckets import minimize_convex_pieces
from jaxmpd.expansion import Coordinate, expand
from jaxmpd.losses import Batch, squared_error
from jaxmpd.minimum import Minimum, minimize
from jaxmpd.network import Layer, apply, init
from jaxmpd.piecewise import PiecewisePolynomial, Segments, compose, compose_affine, segments
from jaxmpd.transform import MPDState, mpd

__all__ = [
    "ABS",
    "ACTIVATIONS",
    "HARD_SIGMOID",
    "HARD_TANH",
    "IDENTITY",
    "LEAKY_HARD_TANH",
    "LEAKY_RELU",
    "RELU",
    "Batch",
    "Coordinate",
    "Layer",
    "MPDState",
    "Minimum",
    "PiecewiseLinear",
    "PiecewisePolynomial",
    "Segments",
    "apply",
    "compose",
    "compose_affine",
    "expand",
    "init",
    "leaky_hard_tanh",
    "leaky_relu",
    "minimize",
    "minimize_convex_pieces",
    "mpd",
    "piecewise_linear",
    "segments",
    "squared_error",
]
