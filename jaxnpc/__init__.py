"""Nearest-prototype classifiers with proved robustness."""

from jaxnpc.bounds import lower_bounds, margin_bounds
from jaxnpc.certificate import Certificate, curve, robust_accuracy, union
from jaxnpc.certify import certify
from jaxnpc.decisions import predict
from jaxnpc.domains import Box, Unbounded
from jaxnpc.pairwise.table import PairRadius, is_exact, prove, rho
from jaxnpc.prototypes import PrototypeClassifier, prototype_classifier, scores
from jaxnpc.training import Trained, train

__all__ = [
    "Box",
    "Certificate",
    "PairRadius",
    "PrototypeClassifier",
    "Trained",
    "Unbounded",
    "certify",
    "curve",
    "is_exact",
    "lower_bounds",
    "margin_bounds",
    "predict",
    "prototype_classifier",
    "prove",
    "rho",
    "robust_accuracy",
    "scores",
    "train",
    "union",
]
