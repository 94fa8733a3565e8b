"""The command `jaxmpd`: fit a table, predict with a saved model, compare optimisers."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from jaxmpd import datasets, network, reports
from jaxmpd.activations import ACTIVATIONS
from jaxmpd.files import write_whole
from jaxmpd.minibatches import constant
from jaxmpd.options import Parser, real, whole
from jaxmpd.presets import PRESETS
from jaxmpd.regressor import Regressor, Task, prepare
from jaxmpd.runs import Fit
from jaxmpd.starts import spread
from jaxmpd.tables import Table
from jaxmpd.training import fit, regression_loss

DEFAULT_SECONDS = 60.0
MODEL = "model.npz"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: its arguments; None: those of the process.

    Returns:
        The exit code: 0, or after one line on standard error 2 for what was wrong and 130 for an
        interrupt from the keyboard.
    """
    options = argparse.Namespace()
    try:
        options = _parser().parse_args(argv)
        options.command(options)
    except KeyboardInterrupt:
        resumable = "; continue with --resume" if hasattr(options, "resume") else ""
        print(f"\njaxmpd: stopped{resumable}", file=sys.stderr)
        return 130
    except (ValueError, OSError, ImportError) as error:
        return _failed(str(error))
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        full = isinstance(error, MemoryError) or "out of memory" in str(error).lower()
        advice = "out of memory: try a smaller --width or --batch-size " if full else ""
        return _failed(f"{advice}({error})")
    return 0


def _failed(message: str) -> int:
    print(f"jaxmpd: error: {' '.join(message.split())}", file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="jaxmpd",
        description="Train one-hidden-layer regression networks by message passing descent: exact "
        "global minimisation along every parameter.",
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    shared = Parser(add_help=False)
    shared.add_argument(
        "data",
        help="a CSV or npz file, or the name of a data set: terrain (comes with matplotlib) or "
        "road (UCI's 3D Road Network, found in the folder JAXMPD_DATA)",
    )
    shared.add_argument(
        "--target",
        action="append",
        metavar="COLUMN",
        help="the column to predict; repeat for several (default: the last column)",
    )
    shared.add_argument(
        "--category",
        action="append",
        default=[],
        metavar="COLUMN",
        help="take this column's cells for categories, each of which becomes an input (columns of "
        "words are anyway, unless most rows have a word of their own)",
    )
    shared.add_argument(
        "--region",
        type=float,
        nargs=4,
        metavar=("WEST", "EAST", "SOUTH", "NORTH"),
        help="of the road network, keep only the points inside",
    )
    shared.add_argument(
        "--width",
        type=whole(1),
        default=500,
        help="hidden units: fewer where there are few rows or validation errs far more than "
        "training, more where both err (default: %(default)s)",
    )
    shared.add_argument(
        "--activation",
        choices=ACTIVATIONS,
        default="leaky_hard_tanh",
        help="of the hidden units (default: %(default)s)",
    )
    shared.add_argument(
        "--spread",
        type=real(positive=True),
        default=14.0,
        help="standard deviation of the hidden units' input at the start (default: %(default)s)",
    )
    shared.add_argument(
        "--steps",
        type=whole(0),
        help="stop after so many batch steps (passes), counted from the very start even with "
        "--resume",
    )
    shared.add_argument(
        "--seconds",
        type=real(positive=False),
        help="stop after the batch step in which the optimiser's own time exceeds this, counted "
        "from the very start even with --resume; compilation, evaluation and checkpoints come on "
        f"top (default without --steps and --patience: {DEFAULT_SECONDS:.0f})",
    )
    shared.add_argument(
        "--patience",
        type=whole(1),
        help="stop when the training loss has not fallen by 0.01 %% in so many batch steps",
    )
    shared.add_argument(
        "--seed",
        type=whole(0, 2**32 - 1),
        default=0,
        help="of all that is random (default: %(default)s)",
    )
    shared.add_argument(
        "--output", type=Path, required=True, metavar="FOLDER", help="where the results go"
    )
    shared.add_argument(
        "--resume",
        action="store_true",
        help="continue from the checkpoints in the output folder, which are written every ten "
        "seconds or so; an optimiser of compare that had finished is not run again",
    )
    shared.add_argument("--quiet", action="store_true", help="no progress bar")

    one = commands.add_parser(
        "fit",
        parents=[shared],
        help="train with one optimiser",
        description="Train with one optimiser. Writes model.npz (with all that predict needs), "
        "result.json, history.csv and history.png.",
    )
    one.add_argument("--optimizer", choices=PRESETS, default="mpd", help="default: %(default)s")
    one.add_argument(
        "--batch-size",
        type=whole(1),
        help="samples a minibatch, fixed (default: all for mpd; the paper's for the others: 2048, "
        f"growing, for coordinates, {PRESETS['adam'].batch_size.initial} for adam and nag)",
    )
    one.add_argument(
        "--learning-rate",
        type=real(positive=True),
        help="of adam and nag (default: the paper's 0.001)",
    )
    one.set_defaults(command=_fit)

    several = commands.add_parser(
        "compare",
        parents=[shared],
        help="train with MPD in its two forms, Adam and NAG side by side",
        description="Train with several optimisers from the same start, each within the same "
        "budget. Writes compare.json and compare.png (the paper's Fig. 2, against batch steps and "
        "against seconds).",
    )
    several.add_argument(
        "--optimizers",
        nargs="+",
        choices=PRESETS,
        default=list(PRESETS),
        metavar="NAME",
        help=f"one or more of {', '.join(PRESETS)} (default: all)",
    )
    several.set_defaults(command=_compare)

    later = commands.add_parser(
        "predict",
        help="predict with a saved model",
        description="Predict the target for the rows of a table, in original units, as CSV.",
    )
    later.add_argument("model", type=Path, help=f"fit's output folder, or the {MODEL} in it")
    later.add_argument("data", help="a CSV or npz file with the model's input columns")
    later.add_argument(
        "--output", type=Path, metavar="FILE", help="the CSV file (default: standard output)"
    )
    later.set_defaults(command=_predict)
    return parser


def _table(options: argparse.Namespace) -> Table:
    if options.region is None:
        return datasets.load(options.data)
    if not datasets.is_road(options.data):
        raise ValueError(f"--region is only for the road network, not for {options.data}")
    path = None if options.data == "road" else options.data
    return datasets.road(path, datasets.Region(*options.region))


def _prepare(options: argparse.Namespace) -> Task:
    """The data to train on, after all that can be checked beforehand."""
    if options.output.exists() and not options.output.is_dir():
        raise ValueError(f"--output {options.output} is a file, not a folder")
    table = _table(options)
    targets = options.target or [list(table.columns)[-1]]
    task = prepare(table, targets, options.category, seed=options.seed)
    named = [
        f"{column.name} ({len(column.levels)} categories)" if column.levels else column.name
        for column in task.inputs
    ]
    print(
        f"{len(table)} rows; {task.train.inputs.shape[1]} inputs: {', '.join(named)}; "
        f"target: {', '.join(targets)}{table.remark}"
    )
    return task


def _train(
    options: argparse.Namespace,
    task: Task,
    name: str,
    batch_size: int | None = None,
    learning_rate: float | None = None,
) -> Fit:
    """Train with the named optimiser, from a start that depends on the seed alone."""
    preset = PRESETS[name]
    activation = ACTIVATIONS[options.activation]
    budget = {key: getattr(options, key) for key in ("steps", "seconds", "patience")}
    if all(value is None for value in budget.values()):
        budget["seconds"] = DEFAULT_SECONDS
    rate = learning_rate or preset.learning_rate
    settings = {
        "--target": ", ".join(task.targets),
        "--category": ", ".join(sorted(options.category)) or "none",
        "--region": str(options.region or "none"),
        "--width": options.width,
        "--activation": options.activation,
        "--spread": options.spread,
        "--learning-rate": rate or "none",
    }
    widths = (task.train.inputs.shape[1], options.width, len(task.targets))
    return fit(
        regression_loss(activation),
        spread(jax.random.key(options.seed), widths, options.spread),
        preset.make(activation, rate or 0.0, options.seed, len(task.train.inputs)),
        task.train,
        validation=task.validation,
        batch_size=preset.batch_size if batch_size is None else constant(batch_size),
        seed=options.seed,
        checkpoint=options.output / f"checkpoint_{name}.msgpack",
        checkpoint_every=1,
        identity=settings,
        resume=options.resume,
        progress=not options.quiet,
        **budget,
    )


def _fit(options: argparse.Namespace) -> None:
    rate = options.learning_rate
    if rate is not None and PRESETS[options.optimizer].learning_rate is None:
        raise ValueError(f"--learning-rate {rate}: {options.optimizer} has no learning rate")
    task = _prepare(options)
    result = _train(options, task, options.optimizer, options.batch_size, rate)

    model = Regressor(
        network.as_layers(result.best_params)[0],
        ACTIVATIONS[options.activation],
        task.inputs,
        task.targets,
        task.input_scaler,
        task.target_scaler,
    )
    out: Path = options.output
    label = PRESETS[options.optimizer].label
    model.save(out / MODEL)
    write_whole(out / "history.csv", reports.history_csv(result.history).encode())
    summary = reports.summary(result, task, model.activation)
    reports.write_json(out / "result.json", {"settings": _settings(options), **summary})
    print(reports.loss_table({label: result}, task))
    print(reports.verdict(result, summary["best_validation_rmse_in_units"]))
    figure = reports.write_figure({label: result}, out / "history.png")
    print(f"written to {out}: {', '.join([MODEL, 'result.json', 'history.csv', *figure])}")


def _compare(options: argparse.Namespace) -> None:
    task = _prepare(options)
    results = {name: _train(options, task, name) for name in dict.fromkeys(options.optimizers)}
    named = {PRESETS[name].label: result for name, result in results.items()}
    out: Path = options.output
    activation = ACTIVATIONS[options.activation]
    summaries = {
        name: reports.summary(result, task, activation) for name, result in results.items()
    }
    reports.write_json(
        out / "compare.json", {"settings": _settings(options), "optimizers": summaries}
    )
    print(reports.loss_table(named, task))
    figure = reports.write_figure(named, out / "compare.png")
    print(f"written to {out}: {', '.join(['compare.json', *figure])}")


def _predict(options: argparse.Namespace) -> None:
    if options.output is not None and options.output.is_dir():
        raise ValueError(f"--output {options.output} is a folder; name a file to write")
    folder: bool = options.model.is_dir()
    model = Regressor.load(options.model / MODEL if folder else options.model)
    predictions = model.predict(datasets.load(options.data))
    text = reports.csv_text(model.targets, predictions)
    if options.output is None:
        print(text, end="")
        return
    write_whole(options.output, text.encode())
    print(f"{len(predictions)} predictions written to {options.output}")


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """What was asked for, without what only says where and how to show it."""
    hidden = ("command", "output", "quiet", "resume")
    return {key: value for key, value in vars(options).items() if key not in hidden}


if __name__ == "__main__":
    sys.exit(main())
