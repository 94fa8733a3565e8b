"""The command line: what it writes, and how it says what is wrong."""

import csv
import gzip
import json

import numpy as np
import pytest

from jaxnpc import cli, methods
from jaxnpc.certificate import load_npz
from jaxnpc.certify import certify
from jaxnpc.commands.inputs import NORMS
from jaxnpc.domains import Box
from jaxnpc.models import save_model
from jaxnpc.prototypes import prototype_classifier

pytestmark = pytest.mark.compiled_quickly

pytest.importorskip("matplotlib", reason="needs the extra plots")

PROTOTYPES = np.array([[0.1, 0.2], [0.9, 0.7], [0.4, 0.9], [0.8, 0.1]], np.float32)
LABELS = ["cat", "dog", "cat", "dog"]
POINTS = np.array([[0.2, 0.3], [0.7, 0.6], [0.9, 0.9]], np.float32)
NAMES = ["cat", "dog", "cat"]


@pytest.fixture
def files(tmp_path):
    """The same prototypes and points as npz and as CSV."""
    np.savez(tmp_path / "p.npz", prototypes=PROTOTYPES, labels=LABELS)
    np.savez(tmp_path / "x.npz", points=POINTS, labels=NAMES)
    for name, points, labels in (("p.csv", PROTOTYPES, LABELS), ("x.csv", POINTS, NAMES)):
        rows = [f"{x},{y},{label}" for (x, y), label in zip(points, labels, strict=True)]
        (tmp_path / name).write_text("x,y,class\n" + "\n".join(rows) + "\n")
    return tmp_path


def run(*words):
    return cli.main([str(word) for word in words])


@pytest.mark.parametrize("end", ["npz", "csv"])
def test_certify_writes_what_certify_returns(files, capsys, end):
    out = files / "out"
    data = ("--prototypes", files / f"p.{end}", "--data", files / f"x.{end}")
    how = ("--norms", 1, 2, "inf", "--box", 0, 1, "--radii", 0.1, 0.1, 0.1, "--output", out)
    assert run("certify", *data, *how, "--quiet") == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "union of l1 0.1, l2 0.1, linf 0.1" in shown.out
    classifier = prototype_classifier(PROTOTYPES, LABELS)
    summary = json.loads((out / "summary.json").read_text())
    for norm, q in NORMS.items():
        direct = certify(classifier, POINTS, NAMES, q=q, domain=Box(0, 1))
        saved = load_npz(out / f"certificate_l{norm}.npz")
        np.testing.assert_allclose(saved.radius, direct.radius, rtol=1e-6)
        assert saved.classes == ("cat", "dog")
        with (out / f"certificate_l{norm}.csv").open(newline="") as stream:
            radii = [float(row["radius"]) for row in csv.DictReader(stream)]
        np.testing.assert_array_equal(radii, saved.radius)
        accuracy = summary["norms"][norm]["robust_accuracy"][0]
        assert accuracy["certified"] == pytest.approx(np.mean(saved.radius > 0.1))
        assert summary["norms"][norm]["clean_accuracy"] == pytest.approx(2 / 3)
    assert 0 <= summary["union"]["certified"] <= summary["union"]["upper"] <= 1
    assert (out / "robustness_curves.png").stat().st_size > 1000
    assert len(list(out.iterdir())) == 8, "and nothing else"


def test_options_reach_certify(files, capsys):
    arguments = ("--prototypes", files / "p.npz", "--data", files / "x.npz", "--quiet")
    out = files / "out"
    assert (
        run("certify", *arguments, "--distance", "inf", "--method", "margin", "--limit", 2,
            "--output", out) == 0
    )  # fmt: skip
    saved = load_npz(out / "certificate_l2.npz")
    assert len(saved) == 2
    assert saved.settings["method"] == "margin"
    assert saved.settings["distance"] == "inf"
    assert saved.settings["domain"] == "unbounded"
    assert "margin" in capsys.readouterr().out


def test_a_target_column(files, capsys):
    text = (files / "x.csv").read_text().replace("class", "animal")
    (files / "x.csv").write_text(text)
    arguments = ("--prototypes", files / "p.csv", "--data", files / "x.csv")
    assert run("predict", *arguments, "--target", "animal", "--output", files / "y.csv") == 0
    assert "accuracy 66.67 %" in capsys.readouterr().out


def test_predict(files, capsys):
    points = np.concatenate([POINTS, [[np.nan, 0]], [PROTOTYPES[:2].mean(0)]])
    np.savez(files / "x.npz", points=points)
    arguments = ("--prototypes", files / "p.npz", "--data", files / "x.npz")
    assert run("predict", *arguments, "--output", files / "deep" / "y.csv") == 0
    with (files / "deep" / "y.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["predicted"] for row in rows[:4]] == ["cat", "dog", "dog", ""]
    assert [row["tied"] for row in rows[:3]] == ["0", "0", "0"]
    assert "accuracy" not in capsys.readouterr().out, "there are no labels to compare with"


def idx(array):
    head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return head + array.astype(np.uint8).tobytes()


def test_idx_images_cropped(tmp_path, capsys):
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (6, 4, 4)), np.array([0, 1, 0, 1, 0, 1])
    (tmp_path / "t-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
    (tmp_path / "t-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    inner = images[:, 1:3, 1:3].reshape(6, 4).astype(np.float32) / 255
    np.savez(tmp_path / "p.npz", prototypes=inner[:4], labels=labels[:4])
    arguments = (
        "certify", "--data", tmp_path / "t-images-idx3-ubyte.gz", "--crop", 1, "--box", 0, 1,
        "--output", tmp_path / "out", "--quiet",
    )  # fmt: skip
    assert run(*arguments, "--prototypes", tmp_path / "p.npz") == 0
    saved = load_npz(tmp_path / "out" / "certificate_l2.npz")
    assert saved.witness.shape == (6, 4)
    assert (saved.radius[:4] > 0).all(), "prototypes are of their own class"
    # Prototypes that are images themselves are cropped too: 1-NN from an idx file.
    assert run(*arguments, "--prototypes", tmp_path / "t-images-idx3-ubyte.gz") == 0
    again = load_npz(tmp_path / "out" / "certificate_l2.npz")
    assert again.clean_accuracy == 1


def test_crop_keeps_a_learned_metric(tmp_path):
    rng = np.random.default_rng(1)
    prototypes, points, metric = rng.random((4, 4, 4)), rng.random((3, 4, 4)), rng.random((2, 16))
    labels = np.array([0, 1, 0, 1])
    np.savez(tmp_path / "p.npz", prototypes=prototypes, labels=labels, metric=metric)
    np.savez(tmp_path / "x.npz", points=points, labels=labels[:3])
    out = tmp_path / "out"
    assert (
        run("certify", "--prototypes", tmp_path / "p.npz", "--data", tmp_path / "x.npz",
            "--crop", 1, "--output", out, "--quiet") == 0
    )  # fmt: skip
    inner = [5, 6, 9, 10]
    classifier = prototype_classifier(
        prototypes.reshape(4, 16)[:, inner], labels, metric=metric[:, inner]
    )
    direct = certify(classifier, points.reshape(3, 16)[:, inner], labels[:3])
    saved = load_npz(out / "certificate_l2.npz")
    np.testing.assert_allclose(saved.radius, direct.radius, rtol=1e-6)


@pytest.mark.parametrize(
    ("box", "domain"), [(("-1e3", "1e3"), Box(-1e3, 1e3)), (("-inf", "1"), Box(-np.inf, 1))]
)
def test_all_negative_numbers_are_values(files, box, domain):
    arguments = ("--prototypes", files / "p.npz", "--data", files / "x.npz", "--quiet")
    assert run("certify", *arguments, "--box", *box, "--output", files / "out") == 0
    saved = load_npz(files / "out" / "certificate_l2.npz")
    direct = certify(prototype_classifier(PROTOTYPES, LABELS), POINTS, NAMES, domain=domain)
    assert saved.settings == direct.settings
    np.testing.assert_allclose(saved.radius, direct.radius, rtol=1e-6)


def test_a_models_file_says_how_to_certify_it(tmp_path):
    rng = np.random.default_rng(2)
    inner, images = rng.random((4, 4)), rng.random((3, 4, 4))
    labels = np.array([0, 1, 0, 1])
    classifier = prototype_classifier(inner, labels, distance=1)
    settings = {"crop": 1, "box": ["0", "1"]}
    save_model(tmp_path / "p.npz", classifier, shape=(2, 2), settings=settings)
    np.savez(tmp_path / "x.npz", images=images, labels=labels[:3])
    arguments = ("--prototypes", tmp_path / "p.npz", "--data", tmp_path / "x.npz", "--quiet")
    assert run("certify", *arguments, "--norms", "inf", "--output", tmp_path / "out") == 0
    saved = load_npz(tmp_path / "out" / "certificate_linf.npz")
    points = images[:, 1:3, 1:3].reshape(3, 4)
    direct = certify(classifier, points, labels[:3], q=np.inf, domain=Box(0, 1))
    assert saved.settings == direct.settings
    np.testing.assert_allclose(saved.radius, direct.radius, rtol=1e-6)


def test_infinite_radii_are_strings_in_the_summary(files, capsys):
    arguments = ("--prototypes", files / "p.npz", "--data", files / "x.npz", "--quiet")
    how = ("--norms", 1, 2, "--radii", "inf", 0.1, "--output", files / "out")
    assert run("certify", *arguments, *how) == 0
    assert "union of l1 inf, l2 0.1" in capsys.readouterr().out

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    text = (files / "out" / "summary.json").read_text()
    summary = json.loads(text, parse_constant=refuse)
    assert summary["union"]["radii"] == {"1": "inf", "2": 0.1}
    assert summary["norms"]["1"]["robust_accuracy"][0]["radius"] == "inf"


@pytest.mark.parametrize(
    ("prototypes", "data"), [(["1", "a"], [1, 1, 1]), ([1, 2], ["1", "1", "1"])]
)
def test_labels_compare_as_text_where_one_side_has_names(files, capsys, prototypes, data):
    np.savez(files / "p.npz", prototypes=PROTOTYPES[:2], labels=prototypes)
    np.savez(files / "x.npz", points=POINTS, labels=data)
    arguments = ("--prototypes", files / "p.npz", "--data", files / "x.npz")
    assert run("predict", *arguments, "--output", files / "y.csv") == 0
    assert "accuracy 33.33 %" in capsys.readouterr().out
    assert run("certify", *arguments, "--output", files / "out", "--quiet") == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--limit", "0"], "--limit: must be a whole number of at least 1, got '0'"),
        (["--limit", "-1"], "--limit: must be a whole number of at least 1, got '-1'"),
        (["--data", "wide.npz"], "x has shape (2, 3), but the prototypes have 2 coordinates"),
        (["--output", "."], "--output . is a folder"),
    ],
)
def test_predict_refuses(files, monkeypatch, capsys, options, message):
    monkeypatch.chdir(files)
    np.savez("wide.npz", points=np.zeros((2, 3)))
    before = sorted(files.iterdir())
    assert run("predict", "--prototypes", "p.npz", "--data", "x.npz", *options) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1
    assert sorted(files.iterdir()) == before


def test_resume(files, monkeypatch, capsys):
    arguments = (
        "certify", "--prototypes", files / "p.npz", "--data", files / "x.npz", "--chunk", 1,
        "--resume", files / "parts", "--output", files / "out", "--quiet",
    )  # fmt: skip
    original, calls = methods.METHODS["exact"], []

    def failing(*choices):
        method = original(*choices)

        def compute(*arguments):
            calls.append(1)
            if len(calls) == 2:
                raise OSError("no space left")
            return method(*arguments)

        return compute

    monkeypatch.setitem(methods.METHODS, "exact", failing)
    assert run(*arguments) == 2
    assert not (files / "out").exists()
    assert run(*arguments) == 0
    assert len(calls) == 3, "the first point was not computed again, the third is missed"
    saved = load_npz(files / "out" / "certificate_l2.npz")
    direct = certify(prototype_classifier(PROTOTYPES, LABELS), POINTS, NAMES)
    np.testing.assert_allclose(saved.radius, direct.radius, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "none.npz"], "none.npz does not exist"),
        (["--data", "x.txt"], "cannot tell what"),
        (["--prototypes", "x.npz", "--data", "p.csv", "--crop", "1"], "margin 1 cannot be cropped"),
        (["--target", "z"], "target 'z' names a column"),
        (["--data", "x.csv", "--target", "z"], "no column 'z'"),
        (["--norms", "3"], "invalid choice: '3'"),
        (["--norms", "1", "1"], "--norms names one twice: 1 1"),
        (["--box", "0"], "--box takes LOW HIGH or none, got 0"),
        (["--box", "0", "x"], "--box takes LOW HIGH or none, got 0 x"),
        (["--box", "1", "0"], "domain is empty"),
        (["--box", "0", "0.5"], "x[1, 0] is 0.69"),
        (["--limit", "0"], "--limit: must be a whole number of at least 1, got '0'"),
        (["--chunk", "0"], "--chunk: must be a whole number of at least 1, got '0'"),
        (["--crop", "-1"], "--crop: must be a whole number of at least 0, got '-1'"),
        (["--radii", "-1"], "--radii: must be a number of at least 0, got '-1'"),
        (["--distance", "2", "--prototypes", "l1.npz"], "distance 2 is not that of l1.npz"),
        (["--prototypes", "l3.npz"], "l3.npz: distance must be 1, 2 or inf, got 3.0"),
        (["--prototypes", "torn.json.npz"], "torn.json.npz: settings must be JSON"),
        (["--method", "guess"], "invalid choice: 'guess'"),
        (["--output", "p.npz"], "exists and is no folder"),
        (["--frobnicate"], "unrecognized arguments: --frobnicate"),
        (["--data", "wide.npz"], "x has shape (2, 3)"),
        (["--data", "birds.npz"], "label 'bird' of point 1"),
        (["--prototypes", "same.npz"], "at least two classes"),
        (["--prototypes", "bare.npz"], "bare.npz has no labels"),
        (["--data", "torn.npz"], "torn.npz is not an npz"),
        (["--data", "cell.csv"], "line 3, column 'y': 'oops' is not a number"),
    ],
)
def test_errors_are_one_line_and_leave_nothing(files, monkeypatch, capsys, options, message):
    monkeypatch.chdir(files)
    np.savez("wide.npz", points=np.zeros((2, 3)))
    np.savez("birds.npz", points=POINTS[:2], labels=["cat", "bird"])
    np.savez("same.npz", prototypes=PROTOTYPES, labels=["cat"] * 4)
    np.savez("bare.npz", prototypes=PROTOTYPES)
    np.savez("l1.npz", prototypes=PROTOTYPES, labels=LABELS, distance=1)
    np.savez("l3.npz", prototypes=PROTOTYPES, labels=LABELS, distance=3)
    np.savez("torn.json.npz", prototypes=PROTOTYPES, labels=LABELS, settings="{")
    (files / "torn.npz").write_bytes((files / "x.npz").read_bytes()[:100])
    (files / "cell.csv").write_text("x,y\n1,2\n3,oops\n")
    before = {path.name: path.read_bytes() for path in files.iterdir()}
    base = {"--prototypes": "p.npz", "--data": "x.npz"}
    given = [word for name, file in base.items() if name not in options for word in (name, file)]
    assert run("certify", *given, "--quiet", *options) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("jaxnpc: error: ")
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert {path.name: path.read_bytes() for path in files.iterdir()} == before


def test_an_interrupt_says_how_to_go_on(files, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("jaxnpc.commands.certify.certify", interrupted)
    arguments = ("certify", "--prototypes", files / "p.npz", "--data", files / "x.npz")
    assert run(*arguments) == 130
    assert capsys.readouterr().err.strip() == "jaxnpc: stopped"
    assert run(*arguments, "--resume", files / "parts") == 130
    assert capsys.readouterr().err.strip() == "jaxnpc: stopped; continue with --resume"


@pytest.mark.parametrize(
    "words", [[], ["train"], ["report", "x.npz"], ["predict"], ["certify", "--data", "x.npz"]]
)
def test_incomplete_commands(words, capsys):
    assert run(*words) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "words", [["--help"], *([name, "--help"] for name in ("train", "certify", "report", "predict"))]
)
def test_help(words, capsys):
    with pytest.raises(SystemExit) as left:
        run(*words)
    assert left.value.code == 0
    assert "prototypes" in capsys.readouterr().out.lower()


def test_a_missing_package_is_said_before_the_work(files, monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    assert run("certify", "--prototypes", files / "p.npz", "--data", files / "x.npz") == 2
    assert "jaxmpd-npc[plots]" in capsys.readouterr().err
