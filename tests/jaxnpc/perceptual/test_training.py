"""Training of prototypes of embedded images, in a subspace of each layer."""

import jax
import numpy as np
import pytest

from jaxnpc import monitor
from jaxnpc.perceptual import training
from jaxnpc.perceptual.alexnet import CIFAR
from jaxnpc.perceptual.certify import certify
from jaxnpc.perceptual.embedding import embed, random_embedding
from jaxnpc.perceptual.subspace import layer_subspace, project
from jaxnpc.perceptual.training import train

PHI = random_embedding(CIFAR, jax.random.key(0))
PLAN = {
    "per_class": 2,
    "cap": 0.5,
    "views": 2,
    "components": (4, 6, 6, 6, 6),
    "fitted": 20,
    "epochs": 2,
    "batch_size": 20,
    "validation": 0.25,
    "progress": False,
}


def pictures(n, seed=0):
    """Noise around a grey level for each of two classes."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    x = 0.3 + 0.4 * labels[:, None, None, None] + 0.3 * (rng.random((n, 32, 32, 3)) - 0.5)
    return x.astype(np.float32), labels


def test_half_space_bounds_of_coefficients_are_those_of_embeddings():
    x, _ = pictures(16)
    space = layer_subspace(PHI, x[:8], (2, 3, 3, 3, 3))
    w = np.random.default_rng(1).normal(size=(3, 14)).astype(np.float32)
    z, c = np.asarray(embed(PHI, x), np.float64), np.asarray(project(PHI, space, x), np.float64)
    lifted = np.asarray(space.points(w), np.float64)

    def bound(points, to):
        square = ((points[:, None] - to) ** 2).sum(axis=2)
        return (square[:, 1] - square[:, 0]) / (2 * np.linalg.norm(to[1] - to[0]))

    np.testing.assert_allclose(bound(c, w.astype(float)), bound(z, lifted), atol=1e-5)


def test_the_subspace_of_a_layer_loses_no_more_than_any_other_of_its_dimension():
    x, _ = pictures(12)
    z = np.asarray(embed(PHI, x), np.float64)
    space = layer_subspace(PHI, x, (2, 3, 4, 5, 6))
    c = np.asarray(space.coefficients(z.astype(np.float32)), np.float64)
    end = start = 0
    for (count, channels), r in zip(PHI.blocks, (2, 3, 4, 5, 6), strict=True):
        part = z[:, end : end + count * channels]
        best = (np.linalg.svd(part, compute_uv=False)[:r] ** 2).sum()
        np.testing.assert_allclose((c[:, start : start + r] ** 2).sum(), best, rtol=1e-4)
        end, start = end + count * channels, start + r


def test_prototypes_are_lifted_to_the_embedding_and_certify_images_unseen():
    x, y = pictures(48)
    found = train(PHI, x, y, **PLAN)
    assert found.classifier.prototypes.shape == (4, PHI.dimension)
    assert found.classifier.prototypes.dtype == np.float32
    assert found.settings["embedding"] == PHI.digest
    unseen, labels = pictures(10, seed=5)
    assert certify(PHI, found.classifier, unseen, labels, progress=False).clean_accuracy == 1.0


def test_a_run_from_a_cache_and_one_that_was_cut_off_give_the_same_bits(tmp_path, monkeypatch):
    x, y = pictures(40)
    whole = train(PHI, x, y, **PLAN)
    first = train(PHI, x, y, **PLAN, cache=tmp_path)
    names = sorted(file.name.split("-")[0] for file in tmp_path.iterdir())
    assert names == ["subspace", "validation", "view_0", "view_1"]
    again = train(PHI, x, y, **PLAN, cache=tmp_path)
    for other in (first, again):
        np.testing.assert_array_equal(whole.classifier.prototypes, other.classifier.prototypes)

    checkpoint = tmp_path / "run.checkpoint"
    watch = monitor.Monitor.__call__

    def killed(self, progress):
        watch(self, progress)
        if progress.batch_steps == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(monitor.Monitor, "__call__", killed)
    with pytest.raises(KeyboardInterrupt):
        train(PHI, x, y, **PLAN, cache=tmp_path, checkpoint=checkpoint)
    monkeypatch.undo()
    resumed = train(PHI, x, y, **PLAN, cache=tmp_path, checkpoint=checkpoint, resume=True)
    np.testing.assert_array_equal(whole.classifier.prototypes, resumed.classifier.prototypes)


def test_another_metric_or_other_images_are_not_read_from_the_cache(tmp_path):
    x, y = pictures(40)
    train(PHI, x, y, **PLAN, cache=tmp_path)
    count = len(list(tmp_path.iterdir()))
    train(PHI, x[::-1].copy(), y[::-1], **PLAN, cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2 * count


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"views": 0}, "views must be at least 1, got 0"),
        ({"fitted": 0}, "fitted must be at least 1, got 0"),
        ({"components": (4, 4)}, r"components must be 5 numbers of at least 1, one a layer, got"),
        ({"components": (4, 4, 4, 4, 0)}, "components must be 5 numbers of at least 1"),
        ({"criterion": "loss"}, "criterion must be one of"),
        ({"dropout": 1.0}, "dropout must"),
        ({"learning_rate": -1.0}, "learning_rate must be positive"),
        ({"eps": ()}, "eps must hold radii"),
        ({"cap": 0.0}, "cap must be positive"),
    ],
)
def test_bad_arguments_are_named_before_any_image_is_embedded(change, words, monkeypatch):
    def embedded(*args, **kwargs):
        raise AssertionError("embedded images first")

    x, y = pictures(24)
    monkeypatch.setattr(training, "project", embedded)
    with pytest.raises(ValueError, match=words):
        train(PHI, x, y, **(PLAN | change))
