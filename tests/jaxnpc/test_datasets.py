"""Readers, what they refuse, and the checked download."""

import gzip
import hashlib
import os
import re
from pathlib import Path

import numpy as np
import pytest

from jaxnpc import datasets, extras, files

CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def idx_bytes(array):
    """The idx encoding, written from the format's description."""
    array = np.asarray(array)
    head = bytes([0, 0, CODES[array.dtype.str[1:]], array.ndim])
    shape = b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    return head + shape + array.astype(array.dtype.newbyteorder(">")).tobytes()


@pytest.fixture
def images():
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (5, 4, 4), dtype=np.uint8), np.array([3, 1, 0, 9, 3], np.uint8)


@pytest.mark.parametrize("kind", sorted(CODES))
@pytest.mark.parametrize("end", ["", ".gz"])
def test_idx_round_trip(tmp_path, kind, end):
    array = np.arange(-6, 6).reshape(2, 3, 2).astype(kind)
    data = idx_bytes(array)
    path = tmp_path / f"a{end}"
    path.write_bytes(gzip.compress(data) if end else data)
    read = datasets.read_idx(path)
    assert read.dtype == array.dtype
    np.testing.assert_array_equal(read, array)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not an idx file"),
        (b"PK\x03\x04", "not an idx file"),
        (b"\0\0\x08\x03\0\0\0\1", "cut short"),
        (b"\0\0\x08\x01\0\0\0\5ab", "7|needs 13"),
    ],
)
def test_idx_refuses(tmp_path, data, message):
    path = tmp_path / "broken"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=message):
        datasets.read_idx(path)


def test_damaged_gzip(tmp_path, images):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(idx_bytes(images[0]))[:-9])
    with pytest.raises(ValueError, match="not a whole gzip"):
        datasets.read_idx(path)


def test_images_find_their_labels(tmp_path, images):
    (tmp_path / "t-images-idx3-ubyte").write_bytes(idx_bytes(images[0]))
    alone = datasets.load(tmp_path / "t-images-idx3-ubyte")
    assert alone.labels is None
    (tmp_path / "t-labels-idx1-ubyte").write_bytes(idx_bytes(images[1]))
    both = datasets.load(tmp_path / "t-images-idx3-ubyte")
    np.testing.assert_array_equal(both.labels, images[1])
    np.testing.assert_allclose(both.points, images[0].reshape(5, 16) / np.float32(255))
    assert both.shape == (4, 4)
    (tmp_path / "t-labels-idx1-ubyte").write_bytes(idx_bytes(images[1][:4]))
    with pytest.raises(ValueError, match=r"\(4,\)"):
        datasets.load(tmp_path / "t-images-idx3-ubyte")


def test_crop_drops_the_ring(images):
    dataset = datasets.crop(datasets.flatten(*images), 1)
    np.testing.assert_array_equal(dataset.points.reshape(5, 2, 2), images[0][:, 1:3, 1:3])
    np.testing.assert_array_equal(dataset.labels, images[1])
    assert dataset.shape == (2, 2)


@pytest.mark.parametrize("margin", [-1, 2, 3])
def test_crop_refuses(images, margin):
    with pytest.raises(ValueError, match=f"margin {margin}"):
        datasets.crop(datasets.flatten(*images), margin)


def test_crop_keeps_the_metric_of_the_pixels_that_stay(images):
    metric = np.random.default_rng(2).random((3, 16))
    dataset = datasets.crop(datasets.flatten(*images, metric), 1)
    np.testing.assert_array_equal(dataset.metric, metric[:, [5, 6, 9, 10]])
    with pytest.raises(ValueError, match=r"metric has shape \(3, 4\)"):
        datasets.crop(datasets.flatten(*images, dataset.metric), 1)


def test_integers_keep_their_values():
    large = np.array([[2**24 + 1, -(2**53) + 1]])
    assert datasets.flatten(large).points.tolist() == large.tolist()
    assert datasets.flatten(np.array([[2**24 - 1]])).points.dtype == np.float32


def test_npz(tmp_path):
    rng = np.random.default_rng(1)
    prototypes, metric = rng.random((3, 2, 2)), rng.random((2, 4))
    np.savez(tmp_path / "p.npz", prototypes=prototypes, labels=["a", "b", "a"], metric=metric)
    read = datasets.load(tmp_path / "p.npz")
    np.testing.assert_array_equal(read.points, prototypes.reshape(3, 4))
    assert read.labels.tolist() == ["a", "b", "a"]
    np.testing.assert_array_equal(read.metric, metric)
    assert read.shape == (2, 2)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "holds nothing"),
        ({"w": np.ones((2, 2))}, "named one of"),
        ({"x": np.ones(3)}, "two"),
        ({"x": np.ones((2, 2)), "y": np.ones(3)}, r"\(3,\)"),
        ({"x": np.ones((2, 2), complex)}, "complex128"),
        ({"x": np.array([["a"]])}, "<U1"),
        ({"x": np.array([[None]])}, "plain arrays"),
    ],
)
def test_npz_refuses(tmp_path, arrays, message):
    np.savez(tmp_path / "p.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        datasets.read_npz(tmp_path / "p.npz")


@pytest.mark.parametrize("keep", [0, 10, 150])
def test_damaged_npz(tmp_path, keep):
    path = tmp_path / "p.npz"
    np.savez(path, x=np.ones((2, 2)))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"p\.npz is not an npz"):
        datasets.read_npz(path)


def test_csv(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,Class,b\n1,3,2e-1\n\n-4,5,nan\n")
    read = datasets.load(path)
    np.testing.assert_array_equal(read.points, [[1, 0.2], [-4, np.nan]])
    assert read.labels.tolist() == [3, 5]
    assert datasets.read_csv(path, "b").labels.tolist() == ["2e-1", "nan"]
    path.write_text("a,b\n1,2\n")
    assert datasets.read_csv(path).labels is None


def test_csv_labels_are_kept_as_they_are(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes('x,class\r\n1,"a\nb"\r\n2,c\u2028d\r\n3,e'.encode())
    assert datasets.read_csv(path).labels.tolist() == ["a\nb", "c\u2028d", "e"]
    path.write_text("x,class\n1,99999999999999999999\n2,3\n")
    assert datasets.read_csv(path).labels.tolist() == ["99999999999999999999", "3"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"x,y\n1,\xe9\n", "t.csv is not text in UTF-8"),
        (b"x,y\n1,2\n1," + b"0" * 200_000, "t.csv, line 3: field larger"),
        (b'x,class\n1,"a\nb"\noops,c\n', "t.csv, line 4, column 'x': 'oops'"),
    ],
)
def test_csv_errors_name_the_file(tmp_path, content, message):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(message)):
        datasets.read_csv(tmp_path / "t.csv")


@pytest.mark.parametrize("shape", [(0, 2), (0, 4, 4), (2, 0)])
def test_no_points(tmp_path, shape):
    np.savez(tmp_path / "e.npz", points=np.zeros(shape))
    with pytest.raises(ValueError, match=rf"e\.npz holds points of shape {re.escape(str(shape))}"):
        datasets.load(tmp_path / "e.npz")


@pytest.mark.parametrize(
    ("text", "target", "message"),
    [
        ("", None, "no rows"),
        ("a,b\n", None, "no rows"),
        ("a,b\n1,2\n1\n", None, "line 3: 1 cells"),
        ("a,b\n1,2\n3,x\n", None, "line 3, column 'b': 'x'"),
        ("a,b\n1,\n", None, "line 2, column 'b': ''"),
        ("a,b\n1,2\n", "c", "no column 'c'; its columns are a, b"),
    ],
)
def test_csv_refuses(tmp_path, text, target, message):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)):
        datasets.read_csv(path, target)


def test_load_refuses(tmp_path):
    with pytest.raises(ValueError, match=r"cannot tell what 'x\.txt' is"):
        datasets.load("x.txt")
    with pytest.raises(FileNotFoundError, match=r"missing\.npz does not exist"):
        datasets.load(tmp_path / "missing.npz")
    with pytest.raises(ValueError, match="split must be one of"):
        datasets.mnist("validation")


@pytest.mark.parametrize("folder", ["", "mnist"])
def test_mnist_from_a_folder(tmp_path, monkeypatch, images, folder):
    home = tmp_path / folder
    home.mkdir(exist_ok=True)
    monkeypatch.setenv("JAXNPC_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="t10k-images"):
        datasets.mnist()
    (home / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(images[0])))
    (home / "t10k-labels-idx1-ubyte").write_bytes(idx_bytes(images[1]))
    read = datasets.mnist()
    np.testing.assert_array_equal(read.points, images[0].reshape(5, 16) / np.float32(255))
    np.testing.assert_array_equal(read.labels, images[1])
    np.testing.assert_array_equal(datasets.mnist(folder=tmp_path).points, read.points)


def test_download_checks_and_keeps(tmp_path, monkeypatch):
    content = b"the real thing"
    good, bad = tmp_path / "good", tmp_path / "bad"
    for folder, text in ((good, content), (bad, b"something else")):
        folder.mkdir()
        (folder / "f.gz").write_bytes(gzip.compress(text))
    mirrors = [f"file://{folder}/" for folder in (tmp_path / "none", bad, good)]
    digest, target = hashlib.sha256(content).hexdigest(), tmp_path / "cache" / "f.gz"
    with pytest.raises(FileNotFoundError, match=r"SHA-256 is .*JAXNPC_DATA"):
        datasets.download("f.gz", mirrors[:2], digest, target)
    assert not target.exists()
    assert datasets.download("f.gz", mirrors, digest, target) == target
    assert gzip.decompress(target.read_bytes()) == content
    # What is in the cache is not fetched again.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("JAXNPC_DATA", raising=False)
    monkeypatch.setattr(datasets, "MIRRORS", (mirrors[2],))
    idx = datasets.Idx("f", digest)
    first = datasets.locate(idx)
    (good / "f.gz").unlink()
    assert datasets.locate(idx) == first
    assert first.is_relative_to(tmp_path / "home")


def test_shipped_mnist_matches_its_hashes():
    folder = Path(os.environ.get("JAXNPC_DATA", Path(__file__).parents[2] / "../shared/data"))
    if not any((folder / place / "t10k-labels-idx1-ubyte.gz").exists() for place in ("", "mnist")):
        pytest.skip(f"MNIST is not in {folder}")
    for pair in datasets.MNIST.values():
        for file in pair:
            content = datasets.read_bytes(datasets.locate(file, folder))
            assert hashlib.sha256(content).hexdigest() == file.sha256
    assert datasets.crop(datasets.mnist("test", folder=folder), 1).points.shape == (10000, 676)


def test_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(extras.EXTRAS, "no_such_package", "data")
    with pytest.raises(ImportError, match=r'pip install "jaxmpd-npc\[data\]"'):
        extras.require("no_such_package.module")


def test_replacing_leaves_the_old_file_on_failure(tmp_path):
    path = tmp_path / "deep" / "a.txt"
    with files.replacing(path) as temporary:
        temporary.write_text("old")

    def fail():
        with files.replacing(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text() == "old"
    assert [p.name for p in path.parent.iterdir()] == ["a.txt"]
