"""Files of points, and what is refused."""

import gzip
import re

import numpy as np
import pytest

from jaxnpc import readers
from tests.jaxnpc import idx


@pytest.mark.parametrize("kind", sorted(idx.CODES))
@pytest.mark.parametrize("end", ["", ".gz"])
def test_idx_round_trip(tmp_path, kind, end):
    array = np.arange(-6, 6).reshape(2, 3, 2).astype(kind)
    data = idx.idx_bytes(array)
    path = tmp_path / f"a{end}"
    path.write_bytes(gzip.compress(data) if end else data)
    read = readers.read_idx(path)
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
        readers.read_idx(path)


def test_damaged_gzip(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(idx.idx_bytes(idx.images()[0]))[:-9])
    with pytest.raises(ValueError, match="not a whole gzip"):
        readers.read_idx(path)


def test_integers_keep_their_values():
    large = np.array([[2**24 + 1, -(2**53) + 1]])
    assert readers.flatten(large).points.tolist() == large.tolist()
    assert readers.flatten(np.array([[2**24 - 1]])).points.dtype == np.float32


def test_npz(tmp_path):
    rng = np.random.default_rng(1)
    prototypes, metric = rng.random((3, 2, 2)), rng.random((2, 4))
    np.savez(tmp_path / "p.npz", prototypes=prototypes, labels=["a", "b", "a"], metric=metric)
    read = readers.read_npz(tmp_path / "p.npz")
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
        readers.read_npz(tmp_path / "p.npz")


@pytest.mark.parametrize("keep", [0, 10, 150])
def test_damaged_npz(tmp_path, keep):
    path = tmp_path / "p.npz"
    np.savez(path, x=np.ones((2, 2)))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"p\.npz is not an npz"):
        readers.read_npz(path)


def test_csv(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,Class,b\n1,3,2e-1\n\n-4,5,nan\n")
    read = readers.read_csv(path)
    np.testing.assert_array_equal(read.points, [[1, 0.2], [-4, np.nan]])
    assert read.labels.tolist() == [3, 5]
    assert readers.read_csv(path, "b").labels.tolist() == ["2e-1", "nan"]
    path.write_text("a,b\n1,2\n")
    assert readers.read_csv(path).labels is None


def test_csv_labels_are_kept_as_they_are(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes('x,class\r\n1,"a\nb"\r\n2,c\u2028d\r\n3,e'.encode())
    assert readers.read_csv(path).labels.tolist() == ["a\nb", "c\u2028d", "e"]
    path.write_text("x,class\n1,99999999999999999999\n2,3\n")
    assert readers.read_csv(path).labels.tolist() == ["99999999999999999999", "3"]


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
        readers.read_csv(tmp_path / "t.csv")


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
        readers.read_csv(path, target)
