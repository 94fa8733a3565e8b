"""Data sets for regression: terrain, roads, any table; encoded, split and standardised."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from jaxmpd.tables import Table, read

PAPER_SAMPLES = 50_929
ROAD_FILES = (
    "3D_spatial_network.txt",
    "3droad/3D_spatial_network.txt",
    "3droad/3d_spatial_network_first5000.csv",
)


class Region(NamedTuple):
    """A rectangle of longitude and latitude, in degrees, its border included."""

    west: float
    east: float
    south: float
    north: float


def road(path: str | Path | None = None, region: Region | None = None) -> Table:
    """UCI's 3D Road Network of North Jutland: longitude, latitude, altitude.

    Args:
        path: the original file of four columns (the first an OSM id) or one of three; None: found
            in the folder that the environment variable JAXMPD_DATA names, else in the current one.
        region: keep only the points inside. The paper takes one of about 10 x 7 km^2 with 50,929
            points but does not say which.

    Returns:
        The points.

    Raises:
        FileNotFoundError: if the file is not found.
        ValueError: if it is not such a file or no point lies in the region.
    """
    if path is None:
        folder = Path(os.environ.get("JAXMPD_DATA", "."))
        path = next((folder / name for name in ROAD_FILES if (folder / name).is_file()), None)
    if path is None:
        raise FileNotFoundError(
            f"no {ROAD_FILES[0]}: get it from UCI's data set 246 and set JAXMPD_DATA to its folder"
        )
    raw = read(path)
    names = list(raw.columns)
    if len(names) not in (3, 4):
        raise ValueError(f"{path} has {len(names)} columns, not 3 or 4 as the road network")
    columns = {
        name: raw.numbers(old)
        for name, old in zip(("longitude", "latitude", "altitude"), names[-3:], strict=True)
    }
    if region is None:
        return Table(columns, raw.rows, raw.source)
    x, y = columns["longitude"], columns["latitude"]
    inside = (region.west <= x) & (x <= region.east) & (region.south <= y) & (y <= region.north)
    if not inside.any():
        raise ValueError(f"no point of {path} lies in {region}")
    return Table({n: c[inside] for n, c in columns.items()}, raw.rows[inside], raw.source)


def terrain(samples: int = PAPER_SAMPLES, seed: int = 0) -> Table:
    """Points of the elevation grid that matplotlib ships: longitude, latitude, elevation.

    344 x 403 points of the Jacksboro fault, Tennessee: rougher than roads and in every
    installation, hence what the demonstration runs on.

    Args:
        samples: how many points, drawn without repetition.
        seed: of the draw.

    Returns:
        The points.

    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: if there are not so many points.
    """
    try:
        from matplotlib.cbook import get_sample_data
    except ImportError as error:
        raise ImportError(
            "terrain comes with matplotlib: pip install 'jaxmpd-npc[data]'"
        ) from error
    # Typed as a file or an array; it is the npz file's dictionary.
    grid: Any = get_sample_data("jacksboro_fault_dem.npz")
    with grid:
        elevation = grid["elevation"].astype(np.float64)
        west, north = float(grid["xmin"]), float(grid["ymin"])
        dx, dy = float(grid["dx"]), float(grid["dy"])
    if not 1 <= samples <= elevation.size:
        raise ValueError(f"the grid has {elevation.size} points, cannot draw samples={samples}")
    draw = np.random.default_rng(seed).choice(elevation.size, samples, replace=False)
    row, column = np.divmod(draw, elevation.shape[1])
    columns = {
        "longitude": west + dx * column,
        "latitude": north - dy * row,  # the grid's first row is the northernmost
        "elevation": elevation.ravel()[draw],
    }
    return Table(columns, draw, "terrain")


NAMED = {"terrain": terrain, "road": road}
"""Tables that can be asked for by name."""


def is_road(name: str | Path) -> bool:
    """Whether this is the road network: by name, or a file that has UCI's name for it."""
    path = Path(name)
    asked = str(name) == "road" and not path.is_file()
    return asked or path.name.lower().startswith("3d_spatial_network")


def load(name: str | Path) -> Table:
    """A table by name or from a file.

    Args:
        name: `terrain`, `road`, or a file; a file that has UCI's name for the road network is read
            as [`road`][jaxmpd.datasets.road] reads it, others as [`read`][jaxmpd.tables.read] does.

    Returns:
        The table.
    """
    path = Path(name)
    if str(name) in NAMED and not path.is_file():
        return NAMED[str(name)]()
    return road(path) if is_road(path) else read(path)


MANY_LEVELS = 20


def varied(table: Table, name: str, cells: Iterable[Any]) -> list[Any]:
    """A column's different cells, sorted.

    Raises:
        ValueError: if all are the same.
    """
    different = sorted(set(cells))
    if len(different) == 1:
        raise ValueError(
            f"{table.source}: column {name!r} is constant ({different[0]}), so nothing can be "
            "learned from it; drop it"
        )
    return different


@dataclass(frozen=True)
class Column:
    """A table's column as the network sees it.

    Attributes:
        name: its name.
        levels: the categories, each of which becomes an input that is 1 where the cell is this
            category and else 0; empty for a column of numbers, which is one input.
    """

    name: str
    levels: tuple[str, ...] = ()

    @classmethod
    def of(cls, table: Table, name: str, category: bool = False) -> "Column":
        """The column of a table that has to be learned from.

        Args:
            table: the table.
            name: the column.
            category: whether to take even numbers, or a new word in most rows, for categories.

        Raises:
            ValueError: if all its cells are the same, one is missing, there are both numbers and
                words, or more than 20 different words in fewer than twice as many rows.
        """
        as_words = f"--category {name} takes all its cells for categories"
        if not category and not table.is_category(name):
            varied(table, name, table.numbers(name, f"mend it; {as_words}").tolist())
            return cls(name)
        index = None if category else table.first_number(name)
        if index is not None:
            raise ValueError(
                f"{table.place(index, name)}: {str(table.cells(name)[index])!r} is a number among "
                f"words; mend it; {as_words}{table.remark}"
            )
        levels = varied(table, name, table.strings(name))
        if not category and len(levels) > max(MANY_LEVELS, len(table) / 2):
            raise ValueError(
                f"{table.source}: column {name!r} has {len(levels)} different words in "
                f"{len(table)} rows, such as {levels[0]!r}: drop it, write numbers as 1.5, or make "
                f"each word an input by --category {name}"
            )
        return cls(name, tuple(levels))

    def encode(self, table: Table) -> Float[np.ndarray, "n k"]:
        """The column's cells as inputs.

        Raises:
            ValueError: naming the row of a missing cell, one that is no number or an unknown
                category.
        """
        if not self.levels:
            return table.numbers(self.name)[:, None]
        place = {level: k for k, level in enumerate(self.levels)}
        cells = table.strings(self.name)
        for index, cell in enumerate(cells):
            if cell not in place:
                more = ", ..." if len(place) > MANY_LEVELS else ""
                raise ValueError(
                    f"{table.place(index, self.name)}: unknown category {cell!r}; known are "
                    f"{', '.join(self.levels[:MANY_LEVELS])}{more}"
                )
        return np.eye(len(place))[[place[cell] for cell in cells]]


@dataclass(frozen=True)
class Standardizer:
    """Moves each column to zero mean and unit variance, and back.

    Attributes:
        mean: of each column.
        scale: the standard deviation of each column; 1 for one that does not vary.
    """

    mean: Float[np.ndarray, " d"]
    scale: Float[np.ndarray, " d"]

    @classmethod
    def of(cls, values: Float[np.ndarray, "n d"]) -> "Standardizer":
        """The standardizer of these values.

        Example:
            >>> values = np.array([[1.0, 5.0], [3.0, 5.0]])
            >>> Standardizer.of(values)(values).tolist()
            [[-1.0, 0.0], [1.0, 0.0]]
        """
        mean = values.mean(axis=0)
        peak = np.abs(values - mean).max(axis=0)
        peak = np.where(peak > 0, peak, 1.0)
        # Relative to the peak, so that squares neither overflow nor vanish.
        scale = peak * np.sqrt((((values - mean) / peak) ** 2).mean(axis=0))
        return cls(mean, np.where(scale > 0, scale, 1.0))

    def __call__(self, values: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """Standardised values."""
        return (values - self.mean) / self.scale

    def inverse(self, values: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """Standardised values in their original units."""
        return values * self.scale + self.mean


def split(
    samples: int, fraction: float = 0.8, seed: int = 0
) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " m"]]:
    """A random split of the samples in two, for training and validation.

    Args:
        samples: their number.
        fraction: how much of them is for training.
        seed: of the split.

    Returns:
        The indices of either part.

    Raises:
        ValueError: if a part would be empty.

    Example:
        >>> train, validation = split(10)
        >>> len(train), len(validation), sorted([*train.tolist(), *validation.tolist()])
        (8, 2, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """
    first = round(fraction * samples)
    if not 0 < first < samples:
        raise ValueError(f"{samples} samples split at {fraction} leave one part empty")
    order = np.random.default_rng(seed).permutation(samples)
    return order[:first], order[first:]


def inputs_of(table: Table, targets: Sequence[str]) -> list[str]:
    """The columns that are not targets.

    Raises:
        ValueError: if a target is not there, or nothing else is.
    """
    for name in targets:
        table.cells(name)
    rest = [name for name in table.columns if name not in targets]
    if not rest:
        raise ValueError(f"{table.source} has no column besides the target {', '.join(targets)}")
    return rest
