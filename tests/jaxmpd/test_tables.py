import numpy as np
import pytest

from jaxmpd.tables import Table, read


def csv(tmp_path, text, name="table.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    "text",
    [
        "x,y\n1,2\n3,4\n",
        "x;y\r\n1;2\r\n3;4\r\n",
        "x\ty\n1\t2\n3\t4",
        "\ufeffx, y\n1, 2\n\n3, 4\n\n",
        '"x","y"\n"1","2"\n3e0,4.0\n',
    ],
)
def test_csv_dialects(tmp_path, text):
    table = read(csv(tmp_path, text))
    assert list(table.columns) == ["x", "y"]
    assert table.numbers("x").tolist() == [1, 3]
    assert table.numbers("y").tolist() == [2, 4]


def test_csv_without_header(tmp_path):
    table = read(csv(tmp_path, "1,2\n3,4\n"))
    assert table.numbers("c2").tolist() == [2, 4]
    assert table.rows.tolist() == [1, 2]
    with pytest.raises(ValueError, match=r"it has c1, c2 \(its first line .* as '1' in it is a nu"):
        table.cells("y")
    table = read(csv(tmp_path, "x,2019\n1,2\n"))
    with pytest.raises(ValueError, match=r"row 1, column 'c1': 'x' is .*'2019' in it is a number"):
        table.numbers("c1")


def test_npz_of_vectors_and_matrices(tmp_path):
    path = tmp_path / "table.npz"
    np.savez(path, x=np.arange(6).reshape(3, 2), y=np.array(["a", "b", "a"]))
    table = read(path)
    assert table.numbers("x_1").tolist() == [1, 3, 5]
    assert table.is_category("y")
    assert not table.is_category("x_0")


def test_rows_are_named_by_the_line_of_the_file(tmp_path):
    path = csv(tmp_path, 'x,y\n1,"two\nlines"\n\n3,b\noops,c\n')
    with pytest.raises(ValueError, match=r"table.csv, row 6, column 'x': 'oops' is not a finite"):
        read(path).numbers("x")


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("abc", "'abc' is not a finite number"),
        ("inf", "'inf' is not a finite number"),
        ("-1e999", "'-1e999' is not a finite number"),
        ("nan", "a value is missing \\('nan'\\)"),
        ("NA", "a value is missing \\('NA'\\)"),
        ("", "a value is missing \\(''\\)"),
        (" n/a", "a value is missing \\('n/a'\\); drop the row or fill it in"),
        ("None", "a value is missing \\('None'\\)"),
        ("NULL", "a value is missing \\('NULL'\\)"),
        ("?", "a value is missing \\('\\?'\\)"),
    ],
)
def test_cells_that_are_no_number(tmp_path, cell, message):
    table = read(csv(tmp_path, f"x,y\n1,2\n3,{cell}\n"))
    assert not table.is_category("y")
    with pytest.raises(ValueError, match=f"row 3, column 'y': {message}"):
        table.numbers("y")


def test_nan_in_npz(tmp_path):
    path = tmp_path / "table.npz"
    np.savez(path, x=np.array([1.0, np.nan]))
    with pytest.raises(ValueError, match=r"row 1, column 'x': a value is missing \('nan'\)"):
        read(path).numbers("x")


@pytest.mark.parametrize("cell", ["", "nan", "NA", "n/a", "null", "none", "?"])
def test_missing_category(tmp_path, cell):
    table = read(csv(tmp_path, f"x,y\n1,a\n2,{cell}\n"))
    assert table.is_category("y")
    with pytest.raises(ValueError, match=r"row 3, column 'y': a value is missing .*unknown"):
        table.strings("y")


def test_unknown_column():
    table = Table({"a": np.arange(2), "b": np.arange(2)}, np.arange(2), "mine")
    with pytest.raises(ValueError, match="mine has no column 'c'; it has a, b"):
        table.cells("c")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("x,y\n", "has no rows"),
        ("x,y\n1,2\n3\n", "row 3: 1 cells for 2 columns"),
        ("x,y\n1,2\n3,4,5\n", "row 3: 3 cells for 2 columns"),
        ("x,x\n1,2\n", "got 'x' twice"),
        (",x\n0,1\n", r"column 1 has no name \(an index\?\)"),
        (b"x,y\n\xff\xfe,1\n", "not a CSV file in UTF-8"),
        ('x,y\n"1,2\n', "cells for 2 columns"),
    ],
)
def test_broken_csv(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        read(csv(tmp_path, text))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((2, 2, 2))}, r"x has shape \(2, 2, 2\)"),
        ({"x": np.float64(1)}, r"x has shape \(\)"),
        ({"x": np.zeros(2), "y": np.zeros(3)}, "equally long"),
        ({"x": np.array([None, "a"], dtype=object)}, "plain arrays"),
        ({"x": np.zeros(0)}, "has no rows"),
    ],
)
def test_broken_npz(tmp_path, arrays, message):
    np.savez(tmp_path / "table.npz", **arrays)
    with pytest.raises(ValueError, match=message) as error:
        read(tmp_path / "table.npz")
    assert "pickle" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"not a zip file", b"PK\x03\x04broken"])
def test_no_npz_at_all(tmp_path, content):
    with pytest.raises(ValueError, match="not an npz file"):
        read(csv(tmp_path, content, "table.npz"))


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file .*nothing\.csv"):
        read(tmp_path / "nothing.csv")
    with pytest.raises(FileNotFoundError):
        read(tmp_path)
