"""MNIST from a folder, and the checked download."""

import gzip
import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from jaxnpc import mnist, readers
from tests.jaxnpc import idx


@pytest.mark.parametrize("folder", ["", "mnist"])
def test_mnist_from_a_folder(tmp_path, monkeypatch, folder):
    home = tmp_path / folder
    home.mkdir(exist_ok=True)
    monkeypatch.setenv("JAXNPC_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="t10k-images"):
        mnist.mnist()
    (home / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx.idx_bytes(idx.images()[0])))
    (home / "t10k-labels-idx1-ubyte").write_bytes(idx.idx_bytes(idx.images()[1]))
    read = mnist.mnist()
    np.testing.assert_array_equal(read.points, idx.images()[0].reshape(5, 16) / np.float32(255))
    np.testing.assert_array_equal(read.labels, idx.images()[1])
    np.testing.assert_array_equal(mnist.mnist(folder=tmp_path).points, read.points)


def test_download_checks_and_keeps(tmp_path, monkeypatch):
    content = b"the real thing"
    good, bad = tmp_path / "good", tmp_path / "bad"
    for folder, text in ((good, content), (bad, b"something else")):
        folder.mkdir()
        (folder / "f.gz").write_bytes(gzip.compress(text))
    mirrors = [f"file://{folder}/" for folder in (tmp_path / "none", bad, good)]
    digest, target = hashlib.sha256(content).hexdigest(), tmp_path / "cache" / "f.gz"
    with pytest.raises(FileNotFoundError, match=r"SHA-256 is .*JAXNPC_DATA"):
        mnist.download("f.gz", mirrors[:2], digest, target)
    assert not target.exists()
    assert mnist.download("f.gz", mirrors, digest, target) == target
    assert gzip.decompress(target.read_bytes()) == content
    # What is in the cache is not fetched again.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("JAXNPC_DATA", raising=False)
    monkeypatch.setattr(mnist, "MIRRORS", (mirrors[2],))
    file = mnist.Idx("f", digest)
    first = mnist.locate(file)
    (good / "f.gz").unlink()
    assert mnist.locate(file) == first
    assert first.is_relative_to(tmp_path / "home")


def test_shipped_mnist_matches_its_hashes():
    folder = Path(os.environ.get("JAXNPC_DATA", Path(__file__).parents[2] / "../shared/data"))
    if not any((folder / place / "t10k-labels-idx1-ubyte.gz").exists() for place in ("", "mnist")):
        pytest.skip(f"MNIST is not in {folder}")
    for pair in mnist.MNIST.values():
        for file in pair:
            content = readers.read_bytes(mnist.locate(file, folder))
            assert hashlib.sha256(content).hexdigest() == file.sha256
    assert mnist.mnist("test", folder=folder).points.shape == (10000, 784)
