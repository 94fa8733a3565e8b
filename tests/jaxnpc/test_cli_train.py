"""`jaxnpc train`: what it writes is what `train` returns, and the other commands read it."""

import csv

import numpy as np
import pytest

from jaxnpc import cli
from jaxnpc.certificate import load_npz
from jaxnpc.commands import train as command
from jaxnpc.domains import Box
from jaxnpc.models import build, load_model, save_model
from jaxnpc.monitor import History
from jaxnpc.prototypes import prototype_classifier
from jaxnpc.training import Trained, train

pytestmark = pytest.mark.compiled_quickly

pytest.importorskip("matplotlib", reason="needs the extra plots")

RECIPE = {"per_class": 2, "epochs": 3, "batch_size": 16, "dropout": 0.2}
WORDS = [w for k, v in RECIPE.items() for w in (f"--{k.replace('_', '-')}", v)]


@pytest.fixture
def table(tmp_path):
    """Two classes of points of two by two pixels, in an npz file."""
    rng = np.random.default_rng(0)
    points = rng.uniform(0, 0.6, (60, 2, 2)).astype(np.float32)
    points[30:, 0] += 0.4
    labels = np.repeat(["dark", "light"], 30)
    order = rng.permutation(60)
    np.savez(tmp_path / "x.npz", images=points[order], labels=labels[order])
    return tmp_path / "x.npz", points[order].reshape(60, 4), labels[order].tolist()


def run(*words):
    return cli.main([str(word) for word in words])


def test_the_model_is_what_train_returns(table, tmp_path, capsys):
    path, points, labels = table
    out, history = tmp_path / "model.npz", tmp_path / "history.csv"
    how = ("--radii", 0.1, 0.2, "--cap", 0.4, "--box", 0, 1, "--norm", "inf", "--seed", 3)
    assert run("train", path, *WORDS, *how, "--output", out, "--history", history, "--quiet") == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "% at 0.1" in shown.out
    assert "4 prototypes in" in shown.out
    direct = train(
        points, labels, **RECIPE, q=np.inf, cap=0.4, eps=(0.1, 0.2), validation=0.1, seed=3,
        shape=(2, 2), progress=False,
    )  # fmt: skip
    model = load_model(out)
    again = build(model)
    np.testing.assert_array_equal(again.prototypes, direct.classifier.prototypes)
    assert again.classes == ("dark", "light")
    assert model.prototypes.shape == (2, 2)
    assert model.settings == {
        "data": "x.npz", "crop": 0, "box": ["0", "1"], "norm": "inf", "radii": [0.1, 0.2],
        "training": direct.settings,
    }  # fmt: skip
    with history.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [int(row["epoch"]) for row in rows] == direct.history.epoch.tolist()
    for k, eps in enumerate((0.1, 0.2)):
        column = [float(row[f"validation_certified_{eps}"]) for row in rows]
        assert column == direct.history.validation_certified[:, k].tolist()
    names = {"model.npz", "history.csv", "x.npz"}
    assert {path.name for path in tmp_path.iterdir()} == names, "no checkpoint is left"


def test_the_other_commands_take_the_model_as_it_is(table, tmp_path, capsys):
    """Crop, box, norm and radii are those of training."""
    path, points, labels = table
    images = np.pad(points.reshape(60, 2, 2), ((0, 0), (1, 1), (1, 1)))
    np.savez(path, images=images, labels=labels)
    out = tmp_path / "model.npz"
    how = ("--crop", 1, "--box", 0, 1, "--radii", 0.1, "--validation", 0)
    assert run("train", path, *WORDS, *how, "--output", out, "--quiet") == 0
    capsys.readouterr()
    arguments = ("--prototypes", out, "--data", path)
    assert run("predict", *arguments, "--output", tmp_path / "y.csv") == 0
    accuracy = capsys.readouterr().out.splitlines()[-1]
    assert run("certify", *arguments, "--output", tmp_path / "certified", "--quiet") == 0
    c = load_npz(tmp_path / "certified" / "certificate_l2.npz")
    assert c.settings["domain"] == "box 0 1"
    assert c.witness.shape == (60, 4)
    assert accuracy == f"accuracy {100 * c.clean_accuracy:.2f} %"
    assert c.clean_accuracy > 0.8
    capsys.readouterr()
    assert run("report", out, path, "--output", tmp_path / "report", "--quiet") == 0
    head, row = (line.split() for line in capsys.readouterr().out.splitlines()[:2])
    assert "CRA" in head
    assert f"{100 * np.mean(c.radius > 0.1):.2f}" == row[3]


@pytest.fixture
def asked(monkeypatch):
    """What the command asks of `train`, without the work."""
    calls = []

    def remember(*arguments, **how):
        calls.append(how)
        raise ValueError("enough")

    monkeypatch.setattr(command, "train", remember)
    return calls


def test_goes_on_from_a_file_of_prototypes(table, tmp_path, asked):
    path, points, labels = table
    begin = prototype_classifier(points[:5], labels[:5])
    assert len(set(labels[:5])) == 2
    save_model(tmp_path / "start.npz", begin, shape=(2, 2))
    how = ("--start", tmp_path / "start.npz", "--validation", path)
    run("train", path, *how, "--output", tmp_path / "m.npz")
    np.testing.assert_array_equal(asked[0]["start"].prototypes, begin.prototypes)
    np.testing.assert_array_equal(asked[0]["start"].labels, begin.labels)
    held_out, names = asked[0]["validation"]
    np.testing.assert_array_equal(held_out, points)
    assert names == labels


def test_what_to_be_robust_against(table, tmp_path, asked):
    path, *_ = table
    for words in (("--box", 0, 1), ("--box", 0, 1, "--train-in-box"), ("--distance", "inf")):
        run("train", path, *words, "--output", tmp_path / "m.npz")
    assert [how["domain"] for how in asked] == [None, Box(0, 1), None]
    assert [how["distance"] for how in asked] == [2, 2, np.inf]
    assert [how["q"] for how in asked] == [2, 2, np.inf]
    assert [how["validation"] for how in asked] == [0.1] * 3


def test_an_interrupted_run_goes_on(table, tmp_path, monkeypatch, capsys):
    path, *_ = table
    words = ("train", path, *WORDS, "--validation", 0, "--output", tmp_path / "model.npz")
    save, learn, trained, resumed = command.save_model, command.train, [], []

    def watched(*arguments, **how):
        resumed.append(how["resume"] and how["checkpoint"].is_file())
        return learn(*arguments, **how)

    def interrupted(_, classifier, **__):
        trained.append(classifier)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "train", watched)
    monkeypatch.setattr(command, "save_model", interrupted)
    assert run(*words, "--quiet") == 130
    assert "continue with --resume" in capsys.readouterr().err
    monkeypatch.setattr(command, "save_model", save)
    assert run(*words, "--quiet", "--resume") == 0
    assert resumed == [False, True]
    again = build(load_model(tmp_path / "model.npz"))
    np.testing.assert_array_equal(again.prototypes, trained[0].prototypes)
    assert not list(tmp_path.glob("*checkpoint*"))


def test_minutes_are_turned_into_epochs():
    nothing = [np.zeros(3)] * 7
    history = History(np.arange(3), np.array([0.0, 50.0, 52.0]), *nothing)

    def start(**how):
        assert how == {"epochs": 2, "evaluate_every": 1, "progress": False}
        return Trained(None, history, {}, 60.0, 26.0)

    assert command.epochs_within(1.0, start) == 30
    assert command.epochs_within(0.001, start) == 1


def test_the_table_shows_some_evaluations():
    count = 50
    column = np.arange(count) / count
    nothing = np.full(count, np.nan)
    history = History(
        np.arange(count), column, column, column, column[:, None], nothing, nothing, nothing,
        nothing[:, None],
    )  # fmt: skip
    head, *rows = command.history_table(history, [0.5])
    assert head == ["epoch", "seconds", "train objective", "clean %", "% at 0.5"]
    assert len(rows) == command.SHOWN
    assert rows[0][0] == "0"
    assert rows[-1] == ["49", "1.0", "0.98", "98.00", "98.00"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--output", "m.txt"], "--output m.txt does not end in .npz"),
        (["--output", "folder.npz"], "--output folder.npz is a folder"),
        (["--history", "folder.npz"], "--output folder.npz is a folder"),
        (["--minutes", "1", "--resume"], "name the --epochs that it printed"),
        (["--minutes", "1", "--epochs", "2"], "not allowed with argument"),
        (["--epochs", "0"], "--epochs: must be a whole number of at least 1, got '0'"),
        (["--per-class", "0"], "--per-class: must be a whole number of at least 1, got '0'"),
        (["--cap", "0"], "--cap: must be a number above 0, got '0'"),
        (["--radii", "0"], "--radii: must be a number above 0, got '0'"),
        (["--objective", "guess"], "invalid choice: 'guess'"),
        (["--criterion", "guess"], "invalid choice: 'guess'"),
        (["--start", "guess"], "--start guess is none of kmeans, sample, and no file"),
        (["--validation", "1"], "--validation must be at least 0 and below 1, got 1"),
        (["--validation", "guess"], "cannot tell what 'guess' is"),
        (["--validation", "bare.npz"], "--validation bare.npz has no labels"),
        (["--box", "0", "0.5"], "outside the domain's [0.0, 0.5]"),
        (["--box", "0"], "--box takes LOW HIGH or none, got 0"),
        (["--dropout", "1"], "dropout must be at least 0 and below 1, got 1.0"),
        (["--components", "5"], "components"),
    ],
)
def test_errors_are_one_line_and_leave_nothing(table, monkeypatch, capsys, options, message):
    monkeypatch.chdir(table[0].parent)
    np.savez("bare.npz", points=np.zeros((4, 4)))
    (table[0].parent / "folder.npz").mkdir()
    before = sorted(table[0].parent.iterdir())
    given = [] if "--output" in options else ["--output", "model.npz"]
    assert run("train", "x.npz", *given, "--quiet", *options) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert sorted(table[0].parent.iterdir()) == before
