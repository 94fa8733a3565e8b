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
from jaxmpd.deep import LayerDirection, UnitDirection, curves_along
from jaxmpd.expansion import Coordinate, expand
from jaxmpd.linesearch import LineSearchState, scale_by_exact_linesearch
from jaxmpd.losses import Batch, squared_error
from jaxmpd.minibatches import BatchSize
from jaxmpd.minimum import Minimum, minimize
from jaxmpd.network import Layer, apply, init
from jaxmpd.piecewise import PiecewisePolynomial, Segments, compose, compose_affine, segments
from jaxmpd.runs import Fit, History
from jaxmpd.starts import spread
from jaxmpd.trace import Resolved, next_kink, piecewise_linear_of
from jaxmpd.training import fit, regression_loss
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
    "BatchSize",
    "Coordinate",
    "Fit",
    "History",
    "Layer",
    "LayerDirection",
    "LineSearchState",
    "MPDState",
    "Minimum",
    "PiecewiseLinear",
    "PiecewisePolynomial",
    "Resolved",
    "Segments",
    "UnitDirection",
    "apply",
    "compose",
    "compose_affine",
    "curves_along",
    "expand",
    "fit",
    "init",
    "leaky_hard_tanh",
    "leaky_relu",
    "minimize",
    "minimize_convex_pieces",
    "mpd",
    "next_kink",
    "piecewise_linear",
    "piecewise_linear_of",
    "regression_loss",
    "scale_by_exact_linesearch",
    "segments",
    "spread",
    "squared_error",
]
