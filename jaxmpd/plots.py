"""Figures: the loss against batch steps and against seconds."""

import importlib.util
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxmpd.files import write_whole
from jaxmpd.runs import History


def histories_figure(histories: Mapping[str, History], title: str = "") -> Any:
    """Training and validation loss against batch steps and seconds (the paper's Fig. 2).

    Args:
        histories: of each optimiser, by the name to show.
        title: above the panels.

    Returns:
        A matplotlib figure, bound to no window.

    Raises:
        ImportError: if matplotlib is not installed.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, field, name in zip(
        axes, ("batch_steps", "seconds"), ("batch steps", "seconds"), strict=True
    ):
        for k, (label, history) in enumerate(histories.items()):
            # From the first step on: there is no 0 on a logarithmic axis, and no other axis shows
            # both a gradient's batch step and MPD's, which may take a hundred times as long.
            x = getattr(history, field)[1:]
            style = {"color": f"C{k}", "marker": "." if len(x) < 30 else ""}
            for part, losses, line in (
                ("training", history.train_loss, "-"),
                ("validation", history.validation_loss, "--"),
            ):
                axis.plot(x, losses[1:], line, label=f"{label}, {part}", **style)
        axis.set_xlabel(name)
        for scale, points in ((axis.set_xscale, field), (axis.set_yscale, "train_loss")):
            # matplotlib warns of a logarithmic axis with nothing on it, as after divergence.
            values = np.concatenate([getattr(h, points)[1:] for h in histories.values()])
            if np.any(np.isfinite(values) & (values > 0)):
                scale("log")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("mean squared error")
    axes[1].legend(fontsize="small")
    figure.suptitle(title)
    return figure


def require_matplotlib() -> None:
    """Check that figures can be drawn.

    Raises:
        ImportError: naming the extra to install.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError(
            "figures need matplotlib: pip install matplotlib, or the extra 'jaxmpd-npc[plots]'"
        )


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure as PNG, whole or not at all."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=150)
    write_whole(path, content.getvalue())
