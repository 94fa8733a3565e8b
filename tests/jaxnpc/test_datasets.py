"""Data sets by name and from files."""

import re

import numpy as np
import pytest

from jaxnpc import datasets, extras
from jaxnpc.readers import flatten
from tests.jaxnpc import idx


@pytest.fixture
def images():
    return idx.images()


def test_images_find_their_labels(tmp_path, images):
    (tmp_path / "t-images-idx3-ubyte").write_bytes(idx.idx_bytes(images[0]))
    alone = datasets.load(tmp_path / "t-images-idx3-ubyte")
    assert alone.labels is None
    (tmp_path / "t-labels-idx1-ubyte").write_bytes(idx.idx_bytes(images[1]))
    both = datasets.load(tmp_path / "t-images-idx3-ubyte")
    np.testing.assert_array_equal(both.labels, images[1])
    np.testing.assert_allclose(both.points, images[0].reshape(5, 16) / np.float32(255))
    assert both.shape == (4, 4)
    (tmp_path / "t-labels-idx1-ubyte").write_bytes(idx.idx_bytes(images[1][:4]))
    with pytest.raises(ValueError, match=r"\(4,\)"):
        datasets.load(tmp_path / "t-images-idx3-ubyte")


def test_crop_drops_the_ring(images):
    dataset = datasets.crop(flatten(*images), 1)
    np.testing.assert_array_equal(dataset.points.reshape(5, 2, 2), images[0][:, 1:3, 1:3])
    np.testing.assert_array_equal(dataset.labels, images[1])
    assert dataset.shape == (2, 2)


@pytest.mark.parametrize("margin", [-1, 2, 3])
def test_crop_refuses(images, margin):
    with pytest.raises(ValueError, match=f"margin {margin}"):
        datasets.crop(flatten(*images), margin)


def test_crop_keeps_the_metric_of_the_pixels_that_stay(images):
    metric = np.random.default_rng(2).random((3, 16))
    dataset = datasets.crop(flatten(*images, metric), 1)
    np.testing.assert_array_equal(dataset.metric, metric[:, [5, 6, 9, 10]])
    with pytest.raises(ValueError, match=r"metric has shape \(3, 4\)"):
        datasets.crop(flatten(*images, dataset.metric), 1)


@pytest.mark.parametrize("shape", [(0, 2), (0, 4, 4), (2, 0)])
def test_no_points(tmp_path, shape):
    np.savez(tmp_path / "e.npz", points=np.zeros(shape))
    with pytest.raises(ValueError, match=rf"e\.npz holds points of shape {re.escape(str(shape))}"):
        datasets.load(tmp_path / "e.npz")


def test_load_refuses(tmp_path):
    with pytest.raises(ValueError, match=r"cannot tell what 'x\.txt' is"):
        datasets.load("x.txt")
    with pytest.raises(FileNotFoundError, match=r"missing\.npz does not exist"):
        datasets.load(tmp_path / "missing.npz")
    with pytest.raises(ValueError, match="split must be one of"):
        datasets.mnist("validation")


def test_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(extras.EXTRAS, "no_such_package", "data")
    with pytest.raises(ImportError, match=r'pip install "jaxmpd-npc\[data\]"'):
        extras.require("no_such_package.module")
