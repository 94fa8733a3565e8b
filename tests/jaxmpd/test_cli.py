import csv
import json
import os
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from jaxmpd import cli, reports
from jaxmpd.cli import main

ROWS = 40
X = np.linspace(-2, 3, ROWS)
COLOURS = ["red", "blue"]
ADAM = ("--optimizer", "adam")  # compiles fastest, where it does not matter which


def line(k):
    return f"{X[k]},{COLOURS[k % 2]},{100 + X[k] ** 2 + 10 * (k % 2)}"


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("\n".join(["x,colour,y", *map(line, range(ROWS))]) + "\n")
    return path


def small(*arguments):
    """The arguments of a run that takes no time."""
    return [*map(str, arguments), "--width", "6", "--quiet"]


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_fit_writes_model_history_and_figure(table, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(small("fit", table, "--steps", 6, "--output", out)) == 0
    shown = capsys.readouterr().out
    assert "40 rows; 3 inputs: x, colour (2 categories); target: y\n" in shown
    assert f"written to {out}: model.npz, result.json, history.csv, history.png\n" in shown
    expected = ["checkpoint_mpd.msgpack", "history.csv", "history.png", "model.npz", "result.json"]
    assert files(out) == expected
    assert (out / "history.png").read_bytes().startswith(b"\x89PNG")
    with (out / "history.csv").open() as file:
        history = list(csv.DictReader(file))
    assert [row["batch_steps"] for row in history] == [str(k) for k in range(7)]
    result = json.loads((out / "result.json").read_text())
    losses = [float(row["validation_loss"]) for row in history]
    assert result["history"]["validation_loss"] == losses
    assert result["best_validation_mse"] == min(losses)
    assert result["settings"]["width"] == 6
    train = result["history"]["train_loss"]
    assert train[-1] < 0.2 * train[0]
    error = result["best_validation_rmse_in_units"]["y"]
    assert f"in original units on the validation rows: y {error:.4g}\n" in shown
    assert f"of batch step {int(np.argmin(losses))}\n" in shown


def test_predict_answers_in_original_units(table, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(small("fit", table, "--target", "y", "--steps", 30, "--output", out)) == 0
    result = json.loads((out / "result.json").read_text())
    new = tmp_path / "new.csv"
    new.write_text("colour,x,note\n" + "".join(f"{COLOURS[k % 2]},{X[k]},-\n" for k in range(ROWS)))
    capsys.readouterr()
    assert main(["predict", str(out / "model.npz"), str(new)]) == 0
    printed = capsys.readouterr().out
    predictions = tmp_path / "predictions.csv"
    assert main(["predict", str(out / "model.npz"), str(new), "--output", str(predictions)]) == 0
    assert predictions.read_text() == printed
    assert main(["predict", str(out), str(new)]) == 0  # the folder will do
    assert capsys.readouterr().out.endswith(printed)
    header, *cells = printed.split()
    assert header == "y"
    truth = 100 + X**2 + 10 * (np.arange(ROWS) % 2)
    error = np.array(cells, float) - truth
    assert np.sqrt(np.mean(error**2)) < 2 * result["best_validation_rmse_in_units"]["y"] < 6


def test_compare_runs_all_from_one_start(table, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(small("compare", table, "--steps", 3, "--output", out)) == 0
    document = json.loads((out / "compare.json").read_text())
    runs = document["optimizers"]
    assert list(runs) == ["mpd", "coordinates", "adam", "nag"]
    assert len({run["history"]["train_loss"][0] for run in runs.values()}) == 1
    assert all(run["history"]["batch_steps"] == [0, 1, 2, 3] for run in runs.values())
    assert (out / "compare.png").read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr().out
    assert all(label in shown for label in ("MPD", "Adam", "NAG"))


def test_several_targets_and_categories_that_look_like_numbers(tmp_path):
    table = tmp_path / "table.csv"
    cells = "".join(f"{k % 3},{X[k]},{X[k] ** 2},{k % 3}\n" for k in range(ROWS))
    table.write_text("kind,x,y,z\n" + cells)
    arguments = small("fit", table, *ADAM, "--target", "y", "--target", "z", "--category", "kind")
    assert main([*arguments, "--steps", "1", "--output", str(tmp_path / "out")]) == 0
    with np.load(tmp_path / "out" / "model.npz") as model:
        assert model["kernel_0"].shape == (4, 6)
        assert model["kernel_1"].shape == (6, 2)


def test_the_same_seed_gives_the_same_model(table, tmp_path):
    kernels = {}
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        arguments = small(
            "fit", table, *ADAM, "--seed", seed, "--steps", 2, "--output", tmp_path / name
        )
        assert main(arguments) == 0
        with np.load(tmp_path / name / "model.npz") as model:
            kernels[name] = model["kernel_0"]
    assert (kernels["a"] == kernels["b"]).all()
    assert (kernels["a"] != kernels["c"]).any()


def test_a_killed_run_resumes_to_the_same_bits(table, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    steps = 1000
    arguments = small("fit", table, "--optimizer", "adam", "--steps", steps)
    command = [sys.executable, "-m", "jaxmpd", *arguments, "--output", str(killed)]
    process = subprocess.Popen(command)
    checkpoint = killed / "checkpoint_adam.msgpack"
    while not checkpoint.exists():
        assert process.poll() is None, "ended before its first checkpoint"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert "model.npz" not in files(killed)
    assert main([*arguments, "--output", str(killed), "--resume"]) == 0
    assert main([*arguments, "--output", str(whole)]) == 0
    with np.load(whole / "model.npz") as a, np.load(killed / "model.npz") as b:
        assert a.files == b.files
        assert all((a[name] == b[name]).all() for name in a.files)
    histories = [json.loads((p / "result.json").read_text())["history"] for p in (whole, killed)]
    for history in histories:
        assert len(history["batch_steps"]) == steps + 1
        del history["seconds"]
    assert histories[0] == histories[1]


def with_cell(k, old, new):
    """Replaces text in the row of sample k, which is line k + 2 of the file."""
    return lambda text: "\n".join(
        row.replace(old, new) if number == k + 1 else row
        for number, row in enumerate(text.split("\n"))
    )


def commas(text):
    """Writes the first column's numbers as 1,5."""
    head, *rows = text.strip().split("\n")
    numbers = (row.replace(",", ";").replace(".", ",", 1) for row in rows)
    return "\n".join([head.replace(",", ";"), *numbers])


ERRORS = {
    "missing file": (["nothing.csv"], None, "no file nothing.csv"),
    "unknown target": (["--target", "z"], None, "has no column 'z'; it has x, colour, y"),
    "unknown category": (["--category", "z"], None, "has no column 'z'"),
    "word": ([], with_cell(6, ",1", ",l"), "row 8, column 'y': 'l"),
    "word input": ([], with_cell(3, "-1.6", "many"), "mend it; --category x takes all"),
    "number among words": (
        [],
        with_cell(3, "blue", "7"),
        "row 5, column 'colour': '7' is a number",
    ),
    "decimal commas": ([], commas, "column 'x' has 40 different words in 40 rows, such as '-0,"),
    "no header": (["--target", "y"], lambda text: text.split("\n", 1)[1], "was taken for data"),
    "index": ([], lambda text: text.replace("x,", ",", 1), "column 1 has no name (an index?)"),
    "nan": ([], with_cell(3, "-1.6", "nan"), "row 5, column 'x': "),
    "empty": ([], with_cell(4, "red", ""), "row 6, column 'colour': a value is missing"),
    "ragged": ([], with_cell(4, ",", ",,"), "row 6: 5 cells for 3 columns"),
    "constant": ([], lambda text: text.replace("blue", "red"), "'colour' is constant (red)"),
    "few rows": (
        [],
        lambda text: "\n".join(text.split("\n")[:9]),
        "has 8 rows; training and validation need at least 10",
    ),
    "word target": (["--target", "colour"], None, "target 'colour' holds categories"),
    "empty file": ([], lambda text: "", "is empty"),
    "region": (["--region", "0", "1", "0", "1"], None, "--region is only for the road network"),
    "width": (["--width", "0"], None, "--width: must be a whole number of at least 1, got '0'"),
    "spread": (["--spread", "0"], None, "--spread: must be a number above 0, got '0'"),
    "activation": (["--activation", "tanh"], None, "invalid choice: 'tanh'"),
    "optimizer": (["--optimizer", "lbfgs"], None, "invalid choice: 'lbfgs'"),
    "steps": (["--steps", "-1"], None, "--steps: must be a whole number of at least 0, got '-1'"),
    "no number": (["--steps", "ten"], None, "--steps: must be a whole number"),
    "seconds": (["--seconds", "nan"], None, "--seconds: must be a number of at least 0, got 'nan'"),
    "patience": (["--patience", "0"], None, "--patience: must be a whole number of at least 1"),
    "batch size": (["--batch-size", "0"], None, "--batch-size: must be a whole number of at least"),
    "seed": (["--seed", "4294967296"], None, "at least 0 and at most 4294967295"),
    "rate of mpd": (["--learning-rate", "1"], None, "mpd has no learning rate"),
    "rate": (
        ["--optimizer", "adam", "--learning-rate", "-1"],
        None,
        "must be a number above 0, got '-1'",
    ),
    "unknown option": (["--colour"], None, "unrecognized arguments: --colour"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_one_line_and_leave_nothing(name, table, tmp_path, capsys, monkeypatch):
    arguments, edit, message = ERRORS[name]
    if edit is not None:
        table.write_text(edit(table.read_text()))
    monkeypatch.chdir(tmp_path)
    data = [] if arguments and arguments[0].endswith(".csv") else [table.name]
    code = main([*small("fit", *data, "--steps", 1, "--output", "out"), *arguments])
    shown = capsys.readouterr()
    assert code == 2
    assert shown.out == ""
    assert shown.err.startswith("jaxmpd: error: ")
    assert shown.err.count("\n") == 1
    assert message in shown.err
    assert files(tmp_path) == ["table.csv"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["fit"], "the following arguments are required: data, --output"),
        (["predict", "nothing.npz", "table.csv"], "no file nothing.npz"),
        (["predict", "table.csv", "table.csv"], "table.csv is not an npz file"),
        (["compare", "nothing.csv", "--output", "out"], "no file nothing.csv"),
        (["compare", "table.csv", "--output", "out", "--optimizers", "x"], "invalid choice: 'x'"),
        (["fit", "table.csv", "--output", "table.csv"], "table.csv is a file, not a folder"),
        (["predict", "x.npz", "table.csv", "--output", "."], "--output . is a folder; name a file"),
        (["predict", ".", "table.csv"], "no file model.npz"),
    ],
)
def test_errors_of_other_commands(arguments, message, table, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert files(tmp_path) == ["table.csv"]


def test_predict_errors_leave_the_old_file(table, tmp_path, capsys):
    out, new, target = tmp_path / "out", tmp_path / "new.csv", tmp_path / "predictions.csv"
    assert main(small("fit", table, *ADAM, "--steps", 1, "--output", out)) == 0
    target.write_text("old")
    new.write_text("x,colour\n1,green\n2,red\n")
    assert main(["predict", str(out / "model.npz"), str(new), "--output", str(target)]) == 2
    assert "row 2, column 'colour': unknown category 'green'" in capsys.readouterr().err
    assert target.read_text() == "old"


def test_resume_of_another_run_is_an_error(table, tmp_path, capsys):
    arguments = small("fit", table, *ADAM, "--output", tmp_path / "out")
    assert main([*arguments, "--steps", "1"]) == 0
    before = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    assert main([*arguments, "--steps", "2", "--resume", "--seed", "1"]) == 2
    assert "seed 0, this one has 1" in capsys.readouterr().err
    for option, value, message in [
        ("--activation", "relu", "--activation leaky_hard_tanh, this one has relu"),
        ("--spread", "2", "--spread 14.0, this one has 2.0"),
        ("--learning-rate", "0.01", "--learning-rate 0.001, this one has 0.01"),
        ("--width", "7", "--width 6, this one has 7"),
        ("--category", "colour", "--category none, this one has colour"),
        ("--target", "x", "--target y, this one has x"),
        ("--batch-size", "8", "batch_size BatchSize(initial=256"),
    ]:
        assert main([*arguments, "--steps", "2", "--resume", option, value]) == 2
        assert message in capsys.readouterr().err
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == before
    # What only says how long to go on may change.
    assert main([*arguments, "--steps", "2", "--resume", "--patience", "9"]) == 0


def test_compare_resumes_with_what_had_finished(table, tmp_path):
    arguments = small("compare", table, "--steps", 2, "--output", tmp_path / "out")
    assert main([*arguments, "--optimizers", "adam"]) == 0
    finished = (tmp_path / "out" / "checkpoint_adam.msgpack").read_bytes()
    assert main([*arguments, "--optimizers", "adam", "nag", "--resume"]) == 0
    # Its seconds too: no step was taken again.
    assert (tmp_path / "out" / "checkpoint_adam.msgpack").read_bytes() == finished
    runs = json.loads((tmp_path / "out" / "compare.json").read_text())["optimizers"]
    assert list(runs) == ["adam", "nag"]


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "jaxmpd: stopped; continue with --resume"),
        (MemoryError("cannot allocate"), 2, "out of memory: try a smaller --width"),
        (
            jax.errors.JaxRuntimeError("INTERNAL: Out of memory allocating"),
            2,
            "out of memory: try a small",
        ),
        (jax.errors.JaxRuntimeError("INTERNAL: a\nb"), 2, "error: (INTERNAL: a b)"),
    ],
)
def test_what_ends_a_run_is_one_line(error, code, message, table, tmp_path, capsys, monkeypatch):
    def fail(*arguments, **settings):
        raise error

    monkeypatch.setattr(cli, "fit", fail)
    assert main(small("fit", table, "--steps", 1, "--output", tmp_path / "out")) == code
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.strip().count("\n") == 0


def test_a_full_disk_is_one_line(table, tmp_path, capsys, monkeypatch):
    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    assert main(small("fit", table, *ADAM, "--steps", 1, "--output", tmp_path / "out")) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert files(tmp_path / "out") == []


def test_without_matplotlib_there_are_all_files_but_the_figure(
    table, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("jaxmpd.plots.importlib.util.find_spec", lambda name: None)
    out = tmp_path / "out"
    assert main(small("fit", table, *ADAM, "--steps", 1, "--output", out)) == 0
    shown = capsys.readouterr().out
    assert "no history.png: figures need matplotlib: pip install matplotlib" in shown
    assert f"written to {out}: model.npz, result.json, history.csv\n" in shown
    assert files(out) == ["checkpoint_adam.msgpack", "history.csv", "model.npz", "result.json"]
    other = tmp_path / "other"
    arguments = small("compare", table, "--optimizers", "adam", "--steps", 1, "--output", other)
    assert main(arguments) == 0
    assert "no compare.png: " in capsys.readouterr().out
    assert files(other) == ["checkpoint_adam.msgpack", "compare.json"]


@pytest.mark.parametrize(("ratio", "told"), [(0.0, True), (1e9, False)])
def test_a_network_too_wide_is_told_so(ratio, told, table, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(reports, "OVERFIT", ratio)
    assert main(small("fit", table, *ADAM, "--steps", 1, "--output", tmp_path / "out")) == 0
    assert ("a smaller --width may do better" in capsys.readouterr().out) == told


def test_a_diverging_run_says_so(table, tmp_path, capsys):
    arguments = small("fit", table, "--optimizer", "nag", "--learning-rate", "1e30")
    assert main([*arguments, "--steps", "30", "--output", str(tmp_path / "out")]) == 0
    assert "NAG diverged: try a smaller learning rate" in capsys.readouterr().out
    # Strict JSON: no bare NaN.
    text = (tmp_path / "out" / "result.json").read_text()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))


@pytest.mark.parametrize("command", [[], ["fit"], ["predict"], ["compare"]])
def test_help_names_every_option(command, capsys):
    with pytest.raises(SystemExit) as end:
        main([*command, "--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: jaxmpd")
    if command in (["fit"], ["compare"]):
        for option in ("--target", "--width", "--activation", "--steps", "--seconds", "--resume"):
            assert option in shown


def test_without_a_budget_it_runs_a_minute(table, tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "DEFAULT_SECONDS", 1e-9)
    assert main(small("fit", table, *ADAM, "--output", tmp_path / "out")) == 0
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["stopped"] == "seconds"


def test_module_and_command_are_one(tmp_path):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "jaxmpd", "predict", "nothing.npz", "x.csv"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 2
    assert done.stderr == "jaxmpd: error: no file nothing.npz\n"
