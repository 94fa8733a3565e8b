"""What every benchmark shares: arguments, fair timing, the table and its JSON, optional data.

from benchmarks import harness

def main() -> None:
    args = harness.parser(__doc__).parse_args()
    report = harness.Report("mpd_speed")
    seconds = harness.alternate({"ours": ours, "numpy": theirs}, fresh=lambda r: (data(r),))
    report.row(size=2048, **harness.medians(seconds), ratio=harness.ratio(seconds, "numpy"))
    report.summarise("speedup_numpy_2048", harness.ratio(seconds, "numpy"), target="> 1")
    report.finish(args)
"""

import argparse
import importlib.metadata
import json
import math
import operator
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("jax", "jaxlib", "optax", "flax", "numpy", "scipy", "daqp", "piqp", "scikit-learn")
COMPARISONS = {
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
    "==": operator.eq,
}


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options every benchmark takes, `--quick` and `--json FILE`; add your own to it."""
    options = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--quick", action="store_true", help="smaller, within 60 s on two cores")
    options.add_argument("--json", type=Path, metavar="FILE", help="write the results here as JSON")
    return options


def data(relative: str, variable: str = "JAXMPD_DATA") -> Path | None:
    """The path of an optional data file, or None and one printed line if it is not there.

    Args:
        relative: the file below the data folder, such as "3droad/3d_spatial_network_first5000.csv".
        variable: the environment variable that names the folder, `JAXMPD_DATA` or `JAXNPC_DATA`;
            without it the folder is `../shared/data` beside the repository.
    """
    path = Path(os.environ.get(variable, ROOT.parent / "shared" / "data")) / relative
    if path.exists():
        return path
    print(f"skipped: {relative} is not there; set {variable} to the folder that holds it")
    return None


def alternate(
    peers: Mapping[str, Callable[..., Any]],
    fresh: Callable[[int], Sequence[Any]] = lambda repeat: (),
    repeats: int = 5,
) -> dict[str, list[float]]:
    """Time peers fairly: one process, alternating order, fresh data each repeat.

    Every peer first runs once untimed, which compiles it. A JAX result is waited for.

    Args:
        peers: what to time, by name.
        fresh: the peers' arguments in a repeat; -1 is the untimed one. Made outside the clock, and
            the same for all peers of a repeat.
        repeats: how often each is timed.

    Returns:
        The seconds of every repeat, by name.
    """
    seconds: dict[str, list[float]] = {name: [] for name in peers}
    names = list(peers)
    for repeat in range(-1, repeats):
        arguments = jax.block_until_ready(tuple(fresh(repeat)))
        # Neighbours in time take turns at going first, or drift of the clock rate favours one.
        for name in names if repeat % 2 else names[::-1]:
            start = time.perf_counter()
            jax.block_until_ready(peers[name](*arguments))
            if repeat >= 0:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def medians(seconds: Mapping[str, Sequence[float]], scale: float = 1.0) -> dict[str, float]:
    """Each peer's median time, in seconds divided by `scale` (1e-6: microseconds)."""
    return {name: statistics.median(times) / scale for name, times in seconds.items()}


def ratio(seconds: Mapping[str, Sequence[float]], peer: str, ours: str = "ours") -> float:
    """How many times faster than the peer we are: the median over the repeats of the ratio.

    Both sides of a repeat ran one after the other, so a load that comes and goes cancels.
    """
    return statistics.median(
        theirs / mine for theirs, mine in zip(seconds[peer], seconds[ours], strict=True)
    )


def cpu() -> str:
    """The processor's model."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else None
    return found.group(1).strip() if found else platform.processor() or platform.machine()


def machine() -> dict[str, Any]:
    """What the figures depend on, and nothing that identifies the machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    device = jax.devices()[0]
    return {
        "cpu": cpu(),
        "cores": cores,
        "device": f"{device.platform} ({device.device_kind})",
        "system": platform.system(),
        "python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    """The versions of those packages that a figure can depend on and that are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def show(value: Any) -> str:
    """A table cell: four significant digits of a float, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, float) and not isinstance(value, bool):
        plain_digits = value == 0 or (
            (value.is_integer() or abs(value) >= 1e3) and abs(value) < 1e7
        )
        return f"{value:.0f}" if plain_digits else f"{value:.4g}"
    return str(value)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as aligned text; a new header wherever the columns change."""
    blocks: list[list[Mapping[str, Any]]] = []
    for row in rows:
        if not blocks or list(blocks[-1][0]) != list(row):
            blocks.append([])
        blocks[-1].append(row)
    texts = []
    for block in blocks:
        cells = [[*block[0]]] + [[show(value) for value in row.values()] for row in block]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in cells
        ]
        rule = "  ".join("-" * width for width in widths)
        texts.append("\n".join([lines[0], rule, *lines[1:]]))
    return "\n\n".join(texts)


def meets(value: float, target: str | None) -> bool | None:
    """Whether a value meets a target such as "<= 0.6"; None if there is none to meet."""
    if target is None:
        return None
    comparison, bound = target.split()
    return bool(COMPARISONS[comparison](value, float(bound)))


def plain(value: Any) -> Any:
    """A value as JSON has it: array scalars as numbers, NaN and infinities as null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, Path):
        return value.name
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Report:
    """Rows and summary figures of one benchmark: printed at the end, and written as JSON.

    Args:
        name: the benchmark's module.
    """

    def __init__(self, name: str):
        self.name = name
        self.rows: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}
        self.targets: dict[str, dict[str, Any]] = {}

    def row(self, **columns: Any) -> None:
        """Add a row of the table; rows of the same columns stand under one header."""
        self.rows.append(columns)

    def summarise(
        self, key: str, value: float, target: str | None = None, paper: float | None = None
    ) -> None:
        """Add a figure of the summary.

        Args:
            key: its name.
            value: what was measured.
            target: what is asked, such as "<= 0.6" or "== 0".
            paper: the paper's figure.
        """
        self.summary[key] = value
        self.targets[key] = {"target": target, "paper": paper, "met": meets(value, target)}

    def finish(self, args: argparse.Namespace) -> None:
        """Print the table and the summary, and write both to `args.json` if it is given."""
        print(table(self.rows))
        words = {True: "yes", False: "NO", None: None}
        figures = [
            {"figure": key, "value": value, **self.targets[key]}
            for key, value in self.summary.items()
        ]
        if figures:
            print()
            print(table([{**figure, "met": words[figure["met"]]} for figure in figures]))
        if args.json is None:
            return
        document = {
            "name": self.name,
            "quick": args.quick,
            "machine": machine(),
            "versions": versions(),
            "rows": self.rows,
            "summary": self.summary,
            "targets": self.targets,
        }
        args.json.parent.mkdir(parents=True, exist_ok=True)
        partial = args.json.with_name(args.json.name + ".partial")
        partial.write_text(json.dumps(plain(document), indent=1) + "\n")
        partial.replace(args.json)
        print(f"\nwritten: {args.json}")
