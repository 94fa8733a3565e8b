"""The page holds the tables, and exactly the pictures that it names."""

import json
import math
import re

import numpy as np
import pytest

from jaxnpc.domains import Box, Unbounded
from jaxnpc.prototypes import prototype_classifier
from jaxnpc.publish import publish
from jaxnpc.report import Threat, accuracy_table, compare, point_table, spread_points

pytestmark = pytest.mark.compiled_quickly

pytest.importorskip("matplotlib", reason="needs the extra plots")


def comparison(d, domain, threats, names=("ours", "1-NN / train")):
    rng = np.random.default_rng(0)
    points = rng.random((8, d))
    labels = ["a", "b"] * 4
    made = {name: prototype_classifier(rng.random((4, d)), ["a", "b", "a", "b"]) for name in names}
    # The method that compiles fastest: what is written does not depend on it.
    return compare(made, points, labels, threats, domain=domain, method="margin")


def check_page(folder, files):
    """All files named are there and nothing else; both pages show the pictures in one order."""
    assert sorted(path.name for path in folder.iterdir()) == sorted(files)
    pictures = [name for name in files if name.endswith(".png")]
    page, web = ((folder / f"report.{end}").read_text() for end in ("md", "html"))
    assert re.findall(r"!\[.*\]\((.*)\)", page) == pictures
    assert re.findall(r'<img src="(.*?)"', web) == pictures
    assert all((folder / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    return page, pictures


def cells(row):
    return f"| {' | '.join(row)} |"


def test_images(tmp_path):
    found = comparison(9, Box(0, 1), [Threat(2, (0.1,)), Threat(math.inf, (0.02,))])
    settings = {"ours": {"data": "digits", "box": ["0", "1"], "training": {"epochs": 40}}}
    files = publish(found, tmp_path / "out", shape=(3, 3), pictures=2, settings=settings)
    page, pictures = check_page(tmp_path / "out", files)
    assert pictures == ["curves.png"] + [
        f"{kind}_{who}{norm}.png"
        for who in ("1-ours", "2-1-NN-train")
        for kind, norm in (("prototypes", ""), ("nearest", "_l2"), ("nearest", "_linf"))
    ]
    assert all(cells(row) in page for row in accuracy_table(found))
    certificates = found.certificates["ours"]
    chosen = spread_points(certificates[2], 2)
    assert all(cells(row) in page for row in point_table(certificates, found.threats, chosen))
    assert "at l2 0.1, linf 0.02" in page
    for row in (["data", "digits"], ["box", "0 1"], ["training.epochs", "40"]):
        assert cells(row) in page
    document = json.loads((tmp_path / "out" / "report.json").read_text())
    assert document["settings"] == settings
    assert set(document["classifiers"]) == {"ours", "1-NN / train"}


def test_points_in_the_plane_are_drawn_with_their_balls(tmp_path):
    found = comparison(2, Unbounded(), [Threat(1), Threat(2)], names=("ours",))
    files = publish(found, tmp_path / "out")
    page, pictures = check_page(tmp_path / "out", files)
    assert pictures == ["curves.png", "balls_1-ours.png"]
    assert "union" not in page, "without radii there is none"
    assert "How" not in page


def test_other_points_are_told_in_a_table(tmp_path):
    found = comparison(3, Box(-np.inf, 1), [Threat(2)], names=("ours",))
    files = publish(found, tmp_path, title="Rows", pictures=3)
    page, pictures = check_page(tmp_path, files)
    assert page.startswith("# Rows\n")
    assert pictures == ["curves.png"]
    certificates = found.certificates["ours"]
    rows = point_table(certificates, found.threats, spread_points(certificates[2], 3))
    assert len(rows) > 2
    assert all(cells(row) in page for row in rows)


def test_nothing_to_show_one_by_one(tmp_path):
    """Where every point is missed, or no pictures are asked for, the page does without."""
    found = comparison(4, Unbounded(), [Threat(2)], names=("ours",))
    files = publish(found, tmp_path, shape=(2, 2), pictures=0)
    assert check_page(tmp_path, files)[1] == ["curves.png", "prototypes_1-ours.png"]
