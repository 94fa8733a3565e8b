"""The network that is shipped is the one that was measured."""

import json
from pathlib import Path

import jax
import pytest

from jaxnpc.perceptual import shipped
from jaxnpc.perceptual.embedding import random_embedding
from jaxnpc.perceptual.shipped import CIFAR_DIGEST, CIFAR_FILE, cifar_embedding
from jaxnpc.perceptual.weights import load_settings, save_embedding

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results" / "perceptual_features.json"


def test_the_metric_is_the_one_of_the_benchmark():
    [row] = json.loads(RESULTS.read_text())["rows"]
    assert cifar_embedding().digest == CIFAR_DIGEST == row["sha256"]
    assert load_settings(CIFAR_FILE)["epochs"] == row["epochs"]
    assert cifar_embedding().linear is None


def test_another_file_is_refused(tmp_path, monkeypatch):
    phi = cifar_embedding()
    other = tmp_path / "other.npz"
    digest = save_embedding(other, random_embedding(phi.architecture, jax.random.key(0)))
    monkeypatch.setattr(shipped, "CIFAR_FILE", other)
    cifar_embedding.cache_clear()
    with pytest.raises(ValueError, match=f"SHA-256 {digest}, not {CIFAR_DIGEST}"):
        cifar_embedding()
