"""CIFAR-10 from both kinds of files."""

import io

import numpy as np
import pytest

from jaxnpc.cifar import BATCHES, JPEG, cifar10

Image = pytest.importorskip("PIL.Image")


def pictures(n, seed=0):
    """Smooth ones, which JPEG hardly changes."""
    rng = np.random.default_rng(seed)
    ramps = rng.uniform(-3, 3, (n, 1, 1, 3)) * np.arange(32)[:, None, None]
    ramps = ramps + rng.uniform(-2, 2, (n, 1, 1, 3)) * np.arange(32)[:, None]
    return np.clip(ramps + 128, 0, 255).astype(np.uint8)


def write_binary(folder, split, images, labels):
    files = BATCHES[split]
    for name, part, y in zip(
        files, np.array_split(images, len(files)), np.array_split(labels, len(files)), strict=True
    ):
        planes = part.transpose(0, 3, 1, 2).reshape(len(part), -1)
        (folder / name).write_bytes(
            np.concatenate([y[:, None], planes], axis=1).astype("u1").tobytes()
        )


def write_jpeg(folder, split, images, labels):
    parts = []
    for picture in images:
        stream = io.BytesIO()
        Image.fromarray(picture).save(stream, "JPEG", quality=95)
        parts.append(np.frombuffer(stream.getvalue(), np.uint8))
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
    arrays = {"jpeg": np.concatenate(parts), "offsets": offsets, "labels": labels}
    np.savez(folder / JPEG, **{f"{split}_{name}": array for name, array in arrays.items()})


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("inside", ["", "cifar10"])
def test_the_original_batches_are_read_as_they_are(tmp_path, split, inside):
    images, labels = pictures(11), np.arange(11) % 10
    (tmp_path / inside).mkdir(exist_ok=True)
    write_binary(tmp_path / inside, split, images, labels)
    data = cifar10(split, folder=tmp_path)
    assert data.shape == (32, 32, 3)
    np.testing.assert_array_equal(data.labels, labels)
    expected = images.reshape(11, -1).astype(np.float32) / 255
    np.testing.assert_array_equal(data.points, expected)


def test_jpegs_are_nearly_so_and_found_by_the_variable(tmp_path, monkeypatch):
    images, labels = pictures(4), np.array([3, 1, 9, 0])
    write_jpeg(tmp_path, "test", images, labels)
    monkeypatch.setenv("JAXNPC_DATA", str(tmp_path))
    data = cifar10()
    assert data.labels.tolist() == labels.tolist()
    assert np.abs(data.points - images.reshape(4, -1) / 255).max() < 0.05
    write_binary(tmp_path, "test", images[:2], labels[:2])  # preferred
    assert len(cifar10().points) == 2


def test_what_is_missing_or_damaged_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"test_batch\.bin"):
        cifar10(folder=tmp_path)
    with pytest.raises(ValueError, match="'all'"):
        cifar10("all", folder=tmp_path)
    (tmp_path / "test_batch.bin").write_bytes(b"\0" * 100)
    with pytest.raises(ValueError, match="100 bytes"):
        cifar10(folder=tmp_path)
