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
from jaxmpd.steps.kinds import (
    HYBRID,
    Blocks,
    Coordinates,
    During,
    Objective,
    Output,
    Polish,
    Replace,
    Step,
    Task,
    Units,
)
from jaxmpd.trace import Resolved, next_kink, piecewise_linear_of
from jaxmpd.training import fit, regression_loss
from jaxmpd.transform import MPDState, mpd
from jaxmpd.unitdescent import UnitDescentState, unit_descent

__all__ = [
    "ABS",
    "ACTIVATIONS",
    "HARD_SIGMOID",
    "HARD_TANH",
    "HYBRID",
    "IDENTITY",
    "LEAKY_HARD_TANH",
    "LEAKY_RELU",
    "RELU",
    "Batch",
    "BatchSize",
    "Blocks",
    "Coordinate",
    "Coordinates",
    "During",
    "Fit",
    "History",
    "Layer",
    "LayerDirection",
    "LineSearchState",
    "MPDState",
    "Minimum",
    "Objective",
    "Output",
    "PiecewiseLinear",
    "PiecewisePolynomial",
    "Polish",
    "Replace",
    "Resolved",
    "Segments",
    "Step",
    "Task",
    "UnitDescentState",
    "UnitDirection",
    "Units",
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
    "unit_descent",
]
