"""Tables of named columns, read from CSV and npz files."""

import csv
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Shaped

MISSING = frozenset(("", "nan", "na", "n/a", "null", "none", "?"))
"""What a cell without a value says, in lower case."""


@dataclass(frozen=True)
class Table:
    """Named columns of equal length.

    Attributes:
        columns: each column's cells: numbers, or strings as they stand in the file.
        rows: a name for each row, such as its line in the file, for messages.
        source: where it came from, for messages.
        remark: how it was read, where that may be why something is not found, for messages.
    """

    columns: dict[str, Shaped[np.ndarray, " n"]]
    rows: Int[np.ndarray, " n"]
    source: str
    remark: str = ""

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
                f"{self.remark}"
            )
        return self.columns[name]

    def place(self, index: int, name: str) -> str:
        """Where a cell stands, for messages."""
        return f"{self.source}, row {self.rows[index]}, column {name!r}"

    def numbers(self, name: str, way_out: str = "mend it") -> Float[np.ndarray, " n"]:
        """A column as finite numbers.

        Args:
            name: the column.
            way_out: what to do about a cell that is none, for the message.

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
        cell, place = str(cells[bad[0]]), self.place(bad[0], name)
        if _is_missing(cell):
            raise ValueError(f"{place}: a value is missing ({cell!r}); drop the row or fill it in")
        raise ValueError(f"{place}: {cell!r} is not a finite number; {way_out}{self.remark}")

    def strings(self, name: str) -> list[str]:
        """A column's cells as categories.

        Raises:
            ValueError: naming the first row whose cell is missing.
        """
        cells = [str(cell).strip() for cell in self.cells(name)]
        for index, cell in enumerate(cells):
            if _is_missing(cell):
                raise ValueError(
                    f"{self.place(index, name)}: a value is missing ({cell!r}); drop the row, or "
                    "write a word such as unknown"
                )
        return cells

    def is_category(self, name: str) -> bool:
        """Whether most cells of the column that are not missing are words, not numbers."""
        cells = self.cells(name)
        if cells.dtype.kind in "biuf":
            return False
        present = [cell for cell in cells if not _is_missing(cell)]
        numbers = sum(_number(cell) is not None for cell in present)
        return numbers < len(present) - numbers

    def first_number(self, name: str) -> int | None:
        """The index of a column's first cell that is a number; None: there is none."""
        cells = enumerate(self.cells(name))
        return next((index for index, cell in cells if _number(cell) is not None), None)


def _is_missing(cell: Any) -> bool:
    return str(cell).strip().lower() in MISSING


def _number(cell: Any) -> float | None:
    """The cell's number, or None."""
    try:
        number = float(cell)
    except ValueError:
        return None
    return None if np.isnan(number) else number


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
    numbers = [cell for cell in header if _number(cell) is not None]
    remark = ""
    if numbers:
        header = [f"c{k}" for k in range(1, len(header) + 1)]
        remark = (
            f" (its first line was taken for data, as {numbers[0]!r} in it is a number; column "
            "names must be words)"
        )
    else:
        lines = lines[1:]
    if "" in header:
        raise ValueError(
            f"{path}: column {header.index('') + 1} has no name (an index?); name it or drop it"
        )
    twice = [name for name in header if header.count(name) > 1]
    if twice:
        raise ValueError(f"{path}: column names must be given once each, got {twice[0]!r} twice")
    for row, cells in lines:
        if len(cells) != len(header):
            raise ValueError(f"{path}, row {row}: {len(cells)} cells for {len(header)} columns")
    columns = np.array([cells for _, cells in lines], dtype=object).reshape(-1, len(header)).T
    rows = np.array([row for row, _ in lines], dtype=int)
    return Table(dict(zip(header, columns, strict=True)), rows, str(path), remark)


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
        raise ValueError(
            f"{path} is not an npz file of plain arrays, of numbers or strings"
        ) from error


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
