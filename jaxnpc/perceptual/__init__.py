"""Certificates in the LPIPS metric: within this perceptual distance the class does not change."""

from jaxnpc.perceptual.alexnet import CIFAR, IMAGENET, AlexNet, Architecture
from jaxnpc.perceptual.attack import attack
from jaxnpc.perceptual.certify import certify, certify_embedded
from jaxnpc.perceptual.embedding import Embedding, embed, lpips, random_embedding
from jaxnpc.perceptual.shipped import cifar_embedding
from jaxnpc.perceptual.training import train
from jaxnpc.perceptual.weights import load_embedding, save_embedding

__all__ = [
    "CIFAR",
    "IMAGENET",
    "AlexNet",
    "Architecture",
    "Embedding",
    "attack",
    "certify",
    "certify_embedded",
    "cifar_embedding",
    "embed",
    "load_embedding",
    "lpips",
    "random_embedding",
    "save_embedding",
    "train",
]
