import os
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jaxmpd.datasets import Column, Region, Standardizer, inputs_of, load, road, split, terrain
from jaxmpd.tables import Table

REPOSITORY = Path(__file__).parents[2]
DATA = Path(os.environ.get("JAXMPD_DATA", REPOSITORY.parent / "shared" / "data"))


def table(**columns):
    columns = {name: np.array(column) for name, column in columns.items()}
    return Table(columns, np.arange(len(next(iter(columns.values())))), "mine")


def test_terrain_is_a_sample_without_repetition_of_the_grid():
    some = terrain(500, seed=1)
    assert len(some) == 500
    places = np.stack([some.columns["longitude"], some.columns["latitude"]])
    assert len(np.unique(places, axis=1).T) == 500
    assert (some.columns["elevation"] == terrain(500, seed=1).columns["elevation"]).all()
    assert (some.columns["elevation"] != terrain(500, seed=2).columns["elevation"]).any()
    whole = terrain(344 * 403)
    order = np.lexsort((whole.columns["longitude"], -whole.columns["latitude"]))
    grid = whole.columns["elevation"][order].reshape(344, 403)
    assert grid[0, :3].tolist() == [483, 487, 491]
    assert grid[-1, -3:].tolist() == [268, 270, 272]
    assert whole.columns["longitude"].max() == pytest.approx(-84.0779, abs=2e-3)
    assert whole.columns["latitude"].min() == pytest.approx(36.4463, abs=2e-3)


def test_terrain_has_so_many_points_and_no_more():
    assert len(terrain()) == 50_929
    with pytest.raises(ValueError, match="samples=138633"):
        terrain(344 * 403 + 1)
    with pytest.raises(ValueError, match="samples=0"):
        terrain(0)


def test_terrain_without_matplotlib_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.cbook", None)
    with pytest.raises(ImportError, match=r"pip install 'jaxmpd-npc\[data\]'"):
        terrain(10)


ROADS = "144552912,9.3498486,56.7408757,17.05\n144552912,9.3501884,56.7406785,17.61\n"


def test_road_in_three_and_four_columns(tmp_path):
    four, three = tmp_path / "3D_spatial_network.txt", tmp_path / "three.csv"
    four.write_text(ROADS)
    three.write_text(ROADS.replace("144552912,", ""))
    for found in (road(four), road(three), load(four)):
        assert list(found.columns) == ["longitude", "latitude", "altitude"]
        assert found.columns["altitude"].tolist() == [17.05, 17.61]
        assert found.columns["longitude"][0] == 9.3498486


def test_road_in_a_region(tmp_path):
    path = tmp_path / "roads.csv"
    path.write_text(ROADS)
    inside = road(path, Region(9.35, 9.36, 56.0, 57.0))
    assert inside.columns["altitude"].tolist() == [17.61]
    assert inside.rows.tolist() == [2]
    assert len(road(path, Region(9.3498486, 9.3501884, 56.7406785, 56.7408757))) == 2
    with pytest.raises(ValueError, match=r"no point of .* lies in Region\(west=0"):
        road(path, Region(0, 1, 0, 1))


def test_road_is_found_by_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXMPD_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="set JAXMPD_DATA"):
        load("road")
    (tmp_path / "3droad").mkdir()
    (tmp_path / "3droad" / "3D_spatial_network.txt").write_text(ROADS)
    assert len(load("road")) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [("1,2\n3,4\n", "has 2 columns, not 3 or 4"), ("1,2,3\n1,x,3\n", "row 2, column 'c2'")],
)
def test_road_that_is_none(tmp_path, text, message):
    path = tmp_path / "roads.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        road(path)


def test_the_first_5000_roads():
    path = DATA / "3droad" / "3d_spatial_network_first5000.csv"
    if not path.exists():
        pytest.skip("the road data is not there; set JAXMPD_DATA to its folder")
    roads = road(path)
    assert len(roads) == 5000
    assert roads.columns["altitude"].min() == pytest.approx(-1.00602063)


def test_columns_of_words_become_one_input_a_level():
    some = table(colour=["red", "blue", "red"], size=[1.0, 2.0, 3.0])
    colour = Column.of(some, "colour")
    assert colour.levels == ("blue", "red")
    assert colour.encode(some).tolist() == [[0, 1], [1, 0], [0, 1]]
    size = Column.of(some, "size")
    assert size.encode(some).tolist() == [[1], [2], [3]]
    assert Column.of(some, "size", category=True).levels == ("1.0", "2.0", "3.0")
    with pytest.raises(ValueError, match=r"mine, row 1, column 'colour': unknown category 'green'"):
        colour.encode(table(colour=["red", "green"]))


@pytest.mark.parametrize("cells", [[2.0, 2.0, 2.0], ["a", "a", "a"]])
def test_constant_column(cells):
    with pytest.raises(ValueError, match=r"mine: column 'x' is constant \((2.0|a)\)"):
        Column.of(table(x=cells), "x")


def test_numbers_with_a_word_among_them_are_not_taken_for_categories():
    with pytest.raises(ValueError, match=r"row 2, column 'x': 'three' is not a finite number"):
        Column.of(table(x=["1", "2", "three"]), "x")
    assert Column.of(table(x=["1", "2", "three"]), "x", category=True).levels == ("1", "2", "three")


def test_words_with_a_number_among_them_are_told_apart():
    cells = ["red", "blue", "3", "red"]
    with pytest.raises(
        ValueError, match=r"row 2, column 'x': '3' is a number among words; .*--cat"
    ):
        Column.of(table(x=cells), "x")
    assert Column.of(table(x=cells), "x", category=True).levels == ("3", "blue", "red")


@pytest.mark.parametrize(
    "write", ["{},5".format, "${}.5".format, "id{}".format], ids=["comma", "currency", "id"]
)
def test_a_new_word_in_most_rows_is_no_category(write):
    cells = [write(k) for k in range(30)] + [write(0)] * 29
    message = r"mine: column 'x' has 30 different words in 59 rows, such as .*: drop it, .*as 1.5"
    with pytest.raises(ValueError, match=message):
        Column.of(table(x=cells), "x")
    assert len(Column.of(table(x=cells), "x", category=True).levels) == 30
    assert len(Column.of(table(x=[*cells, cells[0]]), "x").levels) == 30  # half the rows
    assert len(Column.of(table(x=cells[:20]), "x").levels) == 20  # few enough in any case
    with pytest.raises(ValueError, match="21 different words in 21 rows"):
        Column.of(table(x=cells[:21]), "x")


def test_of_many_categories_an_error_shows_some():
    some = table(x=[f"{k:02}" for k in range(30)])
    with pytest.raises(ValueError, match=r"unknown category 'a'; known are 00, .*19, \.\.\.$"):
        Column.of(some, "x", category=True).encode(table(x=["a"]))


values = hnp.arrays(
    np.float64,
    st.tuples(st.integers(2, 8), st.integers(1, 3)),
    elements=st.floats(-1e300, 1e300, allow_nan=False) | st.floats(-1, 1) | st.just(3.0),
)


@given(values)
def test_standardizer_has_zero_mean_unit_variance_and_an_inverse(x):
    scaler = Standardizer.of(x)
    z = scaler(x)
    assert np.isfinite(z).all()
    assert (scaler.scale > 0).all()
    spread = np.ptp(x, axis=0)
    size = np.abs(x).max(axis=0)
    varying = spread > 1e-6 * size
    assert np.allclose(z.mean(axis=0)[varying], 0, atol=1e-6)
    assert np.allclose(z.std(axis=0)[varying], 1, rtol=1e-6)
    assert np.allclose(scaler.inverse(z), x, rtol=1e-12, atol=1e-12 * size.max())


def test_standardizer_of_a_constant_column_leaves_its_scale():
    assert Standardizer.of(np.full((3, 1), 7.0)).scale.tolist() == [1.0]


@given(st.integers(10, 500), st.integers(0, 99))
def test_split_is_a_partition_that_the_seed_decides(samples, seed):
    first, second = split(samples, seed=seed)
    assert sorted([*first, *second]) == list(range(samples))
    assert len(first) == round(0.8 * samples)
    assert (first == split(samples, seed=seed)[0]).all()


def test_split_refuses_an_empty_part():
    with pytest.raises(ValueError, match=r"2 samples split at 0.8"):
        split(2)


def test_inputs_are_all_but_the_targets():
    some = table(a=[1, 2], b=[1, 2], c=[1, 2])
    assert inputs_of(some, ["b"]) == ["a", "c"]
    with pytest.raises(ValueError, match="mine has no column 'd'"):
        inputs_of(some, ["d"])
    with pytest.raises(ValueError, match="no column besides the target"):
        inputs_of(some, ["a", "b", "c"])
