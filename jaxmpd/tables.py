"""Tables of named columns, read from CSV and npz files."""

import csv
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Shaped


@dataclass(frozen=True)
class Table:
    """Named columns of equal length.

    Attributes:
        columns: each column's cells: numbers, or strings as they stand in the file.
        rows: a name for each row, such as its line in the file, for messages.
        source: where it came from, for messages.
    """

    columns: dict[str, Shaped[np.ndarray, " n"]]
    rows: Int[np.ndarray, " n"]
    source: str

    def __len__(self) -> int:
        return len(self.rows)

    def cells(self, name: str) -> Shaped[np.ndarray, " n"]:
        """A column.

        Raises:
            ValueError: if there is none of this name.
        """
        if name not in self.columns:
            raise ValueError(
                f"{self.source} has no column {name!r}; it has {', '.join(self.columns)}"
            )
        return self.columns[name]

    def numbers(self, name: str) -> Float[np.ndarray, " n"]:
        """A column as finite numbers.

        Raises:
            ValueError: naming the first row whose cell is none.
        """
        cells = self.cells(name)
        try:
            values = cells.astype(np.float64)
        except ValueError:
            values = np.array([_number(cell) for cell in cells], dtype=np.float64)  # None: nan
        bad = np.flatnonzero(~np.isfinite(values))
        if not bad.size:
            return values
        cell, place = str(cells[bad[0]]), f"{self.source}, row {self.rows[bad[0]]}, column {name!r}"
        if not cell.strip() or cell.strip().lower() in ("nan", "na"):
            raise ValueError(f"{place}: a value is missing ({cell!r}); drop the row or fill it in")
        raise ValueError(f"{place}: {cell!r} is not a finite number; mend it or use --category")

    def strings(self, name: str) -> list[str]:
        """A column's cells as categories.

        Raises:
            ValueError: naming the first row whose cell is empty.
        """
        cells = [str(cell).strip() for cell in self.cells(name)]
        if "" in cells:
            row = self.rows[cells.index("")]
            raise ValueError(f"{self.source}, row {row}, column {name!r}: a value is missing ('')")
        return cells

    def is_category(self, name: str) -> bool:
        """Whether no cell of the column is a number; one that has both is taken for numbers."""
        cells = self.cells(name)
        if cells.dtype.kind in "biuf":
            return False
        return not any(str(cell).strip() and _number(cell) is not None for cell in cells)


def _number(cell: Any) -> float | None:
    """The cell's number, or None; a cell that says nan is a number."""
    try:
        return float(cell)
    except ValueError:
        return None


def read(path: str | Path) -> Table:
    """Read a table from a CSV or npz file.

    CSV: comma, semicolon or tab between cells, the first line names the columns unless one of its
    cells is a number (they are then called c1, c2, ...). npz: every array is a column, a matrix
    `x` is the columns x_0, x_1, ...

    Args:
        path: the file.

    Returns:
        The table.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it holds no table.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    table = _read_npz(path) if path.suffix == ".npz" else _read_csv(path)
    if not len(table):
        raise ValueError(f"{path} has no rows")
    return table


def _read_csv(path: Path) -> Table:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            file.seek(0)
            delimiter = max(",;\t", key=first.count)
            reader = csv.reader(file, delimiter=delimiter, skipinitialspace=True)
            lines = [(reader.line_num, cells) for cells in reader if cells]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not a CSV file in UTF-8: {error}") from error
    if not lines:
        raise ValueError(f"{path} is empty")
    header = [cell.strip() for cell in lines[0][1]]
    if any(_number(cell) is not None for cell in header):
        header = [f"c{k}" for k in range(1, len(header) + 1)]
    else:
        lines = lines[1:]
    twice = [name for name in header if header.count(name) > 1 or not name]
    if twice:
        raise ValueError(f"{path}: column names must be given once each, got {twice[0]!r} twice")
    for row, cells in lines:
        if len(cells) != len(header):
            raise ValueError(f"{path}, row {row}: {len(cells)} cells for {len(header)} columns")
    columns = np.array([cells for _, cells in lines], dtype=object).reshape(-1, len(header)).T
    rows = np.array([row for row, _ in lines], dtype=int)
    return Table(dict(zip(header, columns, strict=True)), rows, str(path))


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an npz file.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is no npz file, or holds Python objects, which are never unpickled.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    try:
        # From memory: given a path, NumPy leaves a broken file open.
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (AttributeError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not an npz file of plain arrays: {error}") from error


def _read_npz(path: Path) -> Table:
    arrays = read_arrays(path)
    columns: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        if array.ndim not in (1, 2):
            raise ValueError(f"{path}: {name} has shape {array.shape}; a column is one-dimensional")
        parts = {name: array} if array.ndim == 1 else _parts(name, array)
        columns |= parts
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"{path}: columns must be equally long, got {lengths}")
    rows = np.arange(next(iter(lengths.values())))
    return Table(columns, rows, str(path))


def _parts(name: str, matrix: Shaped[np.ndarray, "n m"]) -> dict[str, np.ndarray]:
    return {f"{name}_{k}": column for k, column in enumerate(matrix.T)}
