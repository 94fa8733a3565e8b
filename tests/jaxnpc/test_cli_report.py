"""`jaxnpc report`: options reach the comparison, errors come before the work."""

import json
import math

import numpy as np
import pytest

from jaxnpc import cli
from jaxnpc.certify import certify
from jaxnpc.commands.report import parse_beside, parse_threats
from jaxnpc.domains import Box
from jaxnpc.models import save_model
from jaxnpc.prototypes import prototype_classifier
from jaxnpc.report import Threat

pytestmark = pytest.mark.compiled_quickly

pytest.importorskip("matplotlib", reason="needs the extra plots")

RNG = np.random.default_rng(0)
POINTS = RNG.random((6, 2)).astype(np.float32)
LABELS = [0, 1, 0, 1, 0, 1]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A model, prototypes of another program with names for labels, and points."""
    monkeypatch.chdir(tmp_path)
    ours = prototype_classifier(RNG.random((4, 2)), [0, 1, 0, 1])
    settings = {"box": ["0", "1"], "norm": "2", "radii": [0.1], "training": {"epochs": 4}}
    save_model("ours.npz", ours, settings=settings)
    np.savez("theirs.npz", prototypes=RNG.random((2, 2)), labels=["0", "1"])
    np.savez("x.npz", points=POINTS, labels=LABELS)
    return tmp_path, ours


def run(*words):
    return cli.main([str(word) for word in words])


def test_several_classifiers_side_by_side(folder, capsys):
    path, ours = folder
    assert (
        run("report", "ours.npz", "x.npz", "--beside", "GLVQ", "theirs.npz", "inf", "--beside",
            "1-NN", "x.npz", "--threat", 2, 0.1, 0.2, "--threat", "inf", 0.05, "--pictures", 2,
            "--method", "margin", "--output", "out", "--quiet") == 0
    )  # fmt: skip
    shown = capsys.readouterr()
    assert shown.err == ""
    lines = shown.out.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["ours", "GLVQ", "1-NN"]
    document = json.loads((path / "out" / "report.json").read_text())
    found = document["classifiers"]
    assert list(found) == ["ours", "GLVQ", "1-NN"]
    assert [model["prototypes"] for model in found.values()] == [4, 2, 6]
    assert [model["norms"]["2"]["distance"] for model in found.values()] == ["2.0", "inf", "2.0"]
    assert found["1-NN"]["norms"]["2"]["clean_accuracy"] == 1
    for norm, radii in (("2", (0.1, 0.2)), ("inf", (0.05,))):
        direct = certify(ours, POINTS, LABELS, q=float(norm), domain=Box(0, 1), method="margin")
        entries = found["ours"]["norms"][norm]["robust_accuracy"]
        assert [entry["radius"] for entry in entries] == list(radii)
        for entry in entries:
            assert entry["certified"] == pytest.approx(np.mean(direct.radius > entry["radius"]))
    assert found["ours"]["union"]["radii"] == {"2": 0.1, "inf": 0.05}
    assert document["settings"]["ours"]["training"] == {"epochs": 4}
    named = lines[-1].removeprefix("written to out: ").split(", ")
    assert sorted(named) == sorted(path.name for path in (path / "out").iterdir())
    assert "balls_1-ours.png" in named
    assert (path / "out" / "report.md").read_text().startswith("# Certified robustness of ours")


def test_the_models_file_says_what_to_report(folder, capsys):
    path, _ = folder
    assert run("report", "ours.npz", "x.npz", "--output", "out", "--quiet") == 0
    head = capsys.readouterr().out.splitlines()[0]
    assert "l2 0.1 CRA" in head
    document = json.loads((path / "out" / "report.json").read_text())
    assert document["classifiers"]["ours"]["norms"]["2"]["domain"] == "box 0 1"


def test_parsing():
    assert parse_threats([["2", "0.5", "1"], ["inf"]], {}) == [
        Threat(2, (0.5, 1.0)),
        Threat(math.inf, ()),
    ]
    assert parse_threats(None, {}) == [Threat(2, ())]
    assert parse_threats(None, {"norm": "inf", "radii": [0.1]}) == [Threat(math.inf, (0.1,))]
    assert parse_beside([["a", "x.npz"], ["b", "y.npz", "1"]]) == {
        "a": ("x.npz", None),
        "b": ("y.npz", "1"),
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--threat", "3"], "--threat begins with a norm, 1, 2 or inf, got 3"),
        (["--threat", "2", "x"], "--threat 2 x: a radius must be a number of at least 0, got 'x'"),
        (["--threat", "2", "-1"], "a radius must be a number of at least 0, got '-1'"),
        (["--threat", "2", "--threat", "2", "1"], "--threat names the norm 2 twice"),
        (["--beside", "1-NN"], "--beside takes NAME SOURCE and perhaps 1, 2 or inf, got 1-NN"),
        (["--beside", "a", "x.npz", "3"], "--beside takes NAME SOURCE"),
        (["--beside", "a", "x.npz", "--beside", "a", "x.npz"], "--beside names a twice"),
        (["--beside", "ours", "x.npz"], "--beside ours has the name of MODEL"),
        (["--beside", "a", "none.npz"], "none.npz does not exist"),
        (["--beside", "a", "wide.npz"], "a: x has shape (6, 2), but the prototypes have 3"),
        (["--beside", "a", "ours.npz", "1"], "distance 1 is not that of ours.npz"),
        (["--beside", "a", "cats.npz"], "a: label '0' of point 0 is none of the classes"),
        (["--attacks", "-1"], "--attacks: must be a whole number of at least 0, got '-1'"),
        (["--pictures", "x"], "--pictures: must be a whole number of at least 0, got 'x'"),
        (["--output", "x.npz"], "--output x.npz exists and is no folder"),
        (["--box", "0", "0.5"], "ours: x[0, 0] is 0.63"),
    ],
)
def test_errors_are_one_line_and_leave_nothing(folder, capsys, options, message):
    path, _ = folder
    np.savez("wide.npz", prototypes=RNG.random((2, 3)), labels=[0, 1])
    np.savez("cats.npz", prototypes=RNG.random((2, 2)), labels=["cat", "dog"])
    before = sorted(path.iterdir())
    given = [] if "--output" in options else ["--output", "out"]
    assert run("report", "ours.npz", "x.npz", *given, "--quiet", *options) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert sorted(path.iterdir()) == before


def test_points_need_labels(folder, capsys):
    np.savez("bare.npz", points=POINTS)
    assert run("report", "ours.npz", "bare.npz", "--output", "out") == 2
    assert "bare.npz has no labels: a report needs them" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "options", "extra"),
    [("matplotlib.figure", (), "plots"), ("foolbox", ("--attacks", 2), "attacks")],
)
def test_a_missing_package_is_said_before_the_work(
    folder, monkeypatch, capsys, module, options, extra
):
    monkeypatch.setitem(__import__("sys").modules, module, None)
    assert run("report", "ours.npz", "x.npz", "--output", "out", *options) == 2
    assert f"jaxmpd-npc[{extra}]" in capsys.readouterr().err
