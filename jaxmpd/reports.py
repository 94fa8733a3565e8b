"""What the command says of a run: tables, figures, files."""

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxmpd import network
from jaxmpd.activations import PiecewiseLinear
from jaxmpd.files import write_whole
from jaxmpd.plots import histories_figure, save_figure
from jaxmpd.regressor import Task
from jaxmpd.runs import Fit, History

OVERFIT = 4.0
"""A validation error so many times the training error is worth a word."""


def summary(result: Fit, task: Task, activation: PiecewiseLinear) -> dict[str, Any]:
    """A run's figures; losses are of standardised targets, the errors in original units.

    Args:
        result: the run.
        task: what the network was trained on.
        activation: of its hidden units.

    Returns:
        The figures by name, as [`write_json`][jaxmpd.reports.write_json] takes them.
    """
    predictions = network.apply(result.best_params, task.validation.inputs, activation)
    square = np.mean((predictions - task.validation.targets) ** 2, axis=0)
    error = task.target_scaler.scale * np.sqrt(square)
    return {
        "stopped": result.stopped,
        "best_validation_mse": result.best_loss,
        "best_validation_rmse_in_units": dict(zip(task.targets, error.tolist(), strict=True)),
        "compile_seconds": result.compile_seconds,
        "evaluation_seconds": result.evaluation_seconds,
        "history": {key: column.tolist() for key, column in result.history._asdict().items()},
    }


def loss_table(results: Mapping[str, Fit], task: Task) -> str:
    """A table of where each run stands at its end.

    Args:
        results: the runs, by the optimiser's name.
        task: what they were trained on.

    Returns:
        The lines to print, one a run and one that explains them.
    """
    lines = [
        f"{'':6}{'batch steps':>12}{'seconds':>10}{'training':>12}{'validation':>12}{'best':>12}"
    ]
    for label, result in results.items():
        last = [column[-1] for column in result.history]
        lines.append(
            f"{label:6}{last[0]:12.0f}{last[2]:10.1f}{last[3]:12.4g}{last[4]:12.4g}"
            f"{result.best_loss:12.4g}"
        )
    lines.append(
        f"mean squared errors of standardised {', '.join(task.targets)}; "
        f"{len(task.train.inputs)} training and {len(task.validation.inputs)} validation rows"
    )
    diverged = [label for label, result in results.items() if result.stopped == "not finite"]
    if diverged:
        lines.append(f"{', '.join(diverged)} diverged: try a smaller learning rate")
    return "\n".join(lines)


def verdict(result: Fit, errors: Mapping[str, float]) -> str:
    """What the saved model is worth, in the targets' units.

    Args:
        result: the run that led to it.
        errors: its root mean squared error on the validation samples, by target.

    Returns:
        A few lines to print.
    """
    history, validation = result.history, result.history.validation_loss
    best = int(np.nanargmin(validation)) if np.isfinite(validation).any() else 0
    named = ", ".join(f"{name} {error:.4g}" for name, error in errors.items())
    lines = [
        f"root mean squared error in original units on the validation rows: {named}",
        f"the saved model is the best on these, of batch step {history.batch_steps[best]}",
    ]
    if validation[best] > OVERFIT * history.train_loss[best]:
        lines.append("it errs far less on the training rows: a smaller --width may do better")
    return "\n".join(lines)


def write_figure(results: Mapping[str, Fit], path: Path) -> list[str]:
    """Draw the runs' histories, or print a note where matplotlib is missing.

    Args:
        results: the runs, by the optimiser's name.
        path: the PNG file.

    Returns:
        The file's name if it was written, for the list of what was.
    """
    try:
        save_figure(histories_figure({k: result.history for k, result in results.items()}), path)
    except ImportError as error:
        print(f"no {path.name}: {error}")
        return []
    return [path.name]


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write strict JSON, in which a number that is not finite is null."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    write_whole(path, (json.dumps(plain(document), indent=1) + "\n").encode())


def csv_text(header: Sequence[str], rows: Iterable[Any]) -> str:
    r"""A table as CSV, its numbers to the last bit.

    Args:
        header: the columns' names.
        rows: of NumPy's scalars.

    Example:
        >>> csv_text(["x", "y"], np.array([[1.5, 2.0]]))
        'x,y\n1.5,2.0\n'
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([cell.item() for cell in row] for row in rows)
    return file.getvalue()


def history_csv(history: History) -> str:
    """A history as CSV, one row an evaluation."""
    return csv_text(History._fields, zip(*history, strict=True))
