"""The command line: `jaxnpc certify` and `jaxnpc predict`."""

import argparse
import csv
import json
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from jaxmpd.files import replacing
from jaxnpc.certificate import (
    Certificate,
    json_number,
    robust_accuracy,
    save_csv,
    save_npz,
    summary,
    union,
)
from jaxnpc.certify import METHODS, certify, check_points
from jaxnpc.datasets import Dataset, crop, load
from jaxnpc.decisions import decide
from jaxnpc.domains import Box, Domain, Unbounded
from jaxnpc.extras import require
from jaxnpc.plots import NORM_NAMES, robustness_curves, save
from jaxnpc.prototypes import PrototypeClassifier, prototype_classifier

NORMS: dict[str, float] = {"1": 1, "2": 2, "inf": math.inf}

SOURCES = (
    "'digits', 'mnist', 'mnist:train', or a file: npz (arrays points or prototypes, labels, "
    "metric), CSV (header; labels in the column label, class or target), idx (MNIST's, .gz too, "
    "labels from the file beside it)"
)


class Parser(argparse.ArgumentParser):
    """A parser that leaves the word about errors to `main` and takes all floats as values."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # argparse knows -1 and -.5 by itself, but takes -1e3 and -inf for options.
        self._negative_number_matcher = re.compile(r"-(\d|\.\d|inf|nan)", re.IGNORECASE)

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage and leaving."""
        raise ValueError(f"{message} (see {self.prog} --help)")


def build_parser() -> Parser:
    """The commands and their options."""
    parser = Parser(
        prog="jaxnpc",
        description="Nearest-prototype classifiers whose robustness is proved.",
        epilog="Example: jaxnpc certify --prototypes model.npz --data mnist --crop 1 "
        "--norms 1 2 inf --box 0 1 --radii 0.5 1 1.58 --output out",
    )
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    certify_ = commands.add_parser(
        "certify",
        help="prove how far each point can be moved before its class changes",
        description="Prove how far each point can be moved, in each norm, before its class "
        "changes. Writes, per norm, an npz with everything and a CSV with one row a point, and a "
        "summary as JSON and as a picture.",
    )
    predict_ = commands.add_parser(
        "predict",
        help="the class of each point",
        description="Write the class of each point to a CSV file.",
    )
    for command in (certify_, predict_):
        command.add_argument("--prototypes", required=True, metavar="P", help=SOURCES)
        command.add_argument("--data", required=True, metavar="D", help="the points: as for P")
        command.add_argument(
            "--target", metavar="COLUMN", help="the column of the labels where D is a CSV file"
        )
        command.add_argument(
            "--distance", choices=list(NORMS), default="2", help="the classifier's (default 2)"
        )
        command.add_argument(
            "--crop", type=int, default=0, metavar="N", help="drop N pixels at each edge of images"
        )
        command.add_argument(
            "--limit", type=int, metavar="N", help="only the first N points (default: all)"
        )
    certify_.add_argument(
        "--norms", nargs="+", choices=list(NORMS), default=["2"], help="of the perturbation"
    )
    certify_.add_argument(
        "--box",
        nargs="+",
        default=["none"],
        metavar="LOW HIGH",
        help="where inputs live: the two ends of every coordinate, or none (default)",
    )
    certify_.add_argument(
        "--method", choices=list(METHODS), default="exact", help="exact (default), bound or margin"
    )
    certify_.add_argument(
        "--radii",
        nargs="+",
        type=float,
        default=[],
        metavar="EPS",
        help="where to give robust accuracies; with as many radii as norms also of their union",
    )
    certify_.add_argument(
        "--output", type=Path, default=Path("out"), metavar="FOLDER", help="default: out"
    )
    certify_.add_argument(
        "--resume",
        type=Path,
        metavar="FOLDER",
        help="keep finished parts here and go on from them after an interruption",
    )
    certify_.add_argument("--chunk", type=int, default=1024, help="points at a time")
    certify_.add_argument("--quiet", action="store_true", help="no progress bar")
    predict_.add_argument(
        "--output", type=Path, default=Path("predictions.csv"), metavar="FILE", help="the CSV file"
    )
    return parser


def run_certify(arguments: argparse.Namespace) -> None:
    """Certify, then write everything."""
    if len(set(arguments.norms)) < len(arguments.norms):
        raise ValueError(f"--norms names one twice: {' '.join(arguments.norms)}")
    if any(not eps >= 0 for eps in arguments.radii):
        raise ValueError(f"--radii must be at least 0, got {' '.join(map(str, arguments.radii))}")
    # What could still fail once the work is done is asked for before it begins.
    require("matplotlib.figure")
    domain = parse_box(arguments.box)
    if arguments.output.exists() and not arguments.output.is_dir():
        raise ValueError(f"--output {arguments.output} exists and is no folder")
    classifier, data = read(arguments)
    certificates: dict[str, Certificate] = {}
    for norm in arguments.norms:
        certificates[norm] = certify(
            classifier,
            data.points,
            data.labels,
            q=NORMS[norm],
            domain=domain,
            method=arguments.method,
            chunk=arguments.chunk,
            checkpoint=None if arguments.resume is None else arguments.resume / f"l{norm}",
            progress=not arguments.quiet,
        )
    report = {
        "norms": {norm: summary(c, arguments.radii) for norm, c in certificates.items()},
        "union": union_summary(certificates, arguments.radii),
    }
    print(table(certificates, arguments.radii, report["union"]))
    write(arguments.output, certificates, report)
    print(f"written to {arguments.output}")


def run_predict(arguments: argparse.Namespace) -> None:
    """Predict, then write."""
    if arguments.output.is_dir():
        raise ValueError(f"--output {arguments.output} is a folder: name a file in it")
    classifier, data = read(arguments)
    decision = decide(classifier, check_points(classifier, data.points, Unbounded()))
    names = [None if k < 0 else classifier.classes[k] for k in decision.predicted]
    with replacing(arguments.output) as temporary, temporary.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["point", "predicted", "tied"])
        for k, (name, certain) in enumerate(zip(names, decision.certain, strict=True)):
            writer.writerow([k, "" if name is None else name, int(not certain)])
    print(f"{len(names)} points; written to {arguments.output}")
    if data.labels is not None:
        right = np.mean([a == b for a, b in zip(names, data.labels.tolist(), strict=True)])
        print(f"accuracy {100 * right:.2f} %")


def read(arguments: argparse.Namespace) -> tuple[PrototypeClassifier, Dataset]:
    """The classifier and the points that the options name."""
    if arguments.limit is not None and arguments.limit < 1:
        raise ValueError(f"--limit must be at least 1, got {arguments.limit}")
    model, data = load(arguments.prototypes), load(arguments.data, arguments.target)
    if len(model.shape) > 1:
        model = crop(model, arguments.crop)
    if model.labels is None:
        raise ValueError(f"{arguments.prototypes} has no labels: prototypes need them")
    data = crop(data, arguments.crop)
    if arguments.limit is not None:
        labels = None if data.labels is None else data.labels[: arguments.limit]
        data = data._replace(points=data.points[: arguments.limit], labels=labels)
    classifier = prototype_classifier(
        model.points,
        model.labels,
        distance=NORMS[arguments.distance],
        metric=model.metric,
    )
    if data.labels is not None:
        # A file whose labels are all integers gives integers, one with a name among them strings.
        known = {str(name): name for name in classifier.classes}
        same = [known.get(str(label), label) for label in data.labels.tolist()]
        data = data._replace(labels=np.array(same, object))
    return classifier, data


def parse_box(words: Sequence[str]) -> Domain:
    """The domain that `--box` names."""
    if list(words) == ["none"]:
        return Unbounded()
    try:
        low, high = (float(word) for word in words)
    except ValueError:
        raise ValueError(f"--box takes LOW HIGH or none, got {' '.join(words)}") from None
    return Box(low, high)


def union_summary(
    certificates: dict[str, Certificate], radii: Sequence[float]
) -> dict[str, Any] | None:
    """Robustness in all norms at once, where there is one radius for each of several."""
    if len(certificates) < 2 or len(radii) != len(certificates):
        return None
    both = union(list(certificates.values()), radii)
    return {
        "radii": {norm: json_number(eps) for norm, eps in zip(certificates, radii, strict=True)},
        "certified": both.certified,
        "upper": both.upper,
        "exact": both.exact,
    }


def table(
    certificates: dict[str, Certificate], radii: Sequence[float], both: dict[str, Any] | None
) -> str:
    """The main figures as text; certified and, in brackets, upper bound where they differ."""
    head = ["norm", "method", "clean %", "exact %", "median radius", "seconds"]
    lines = [head + [f"% at {eps:g}" for eps in radii]]
    for norm, c in certificates.items():
        lines.append(
            [
                f"l{norm}",
                c.settings["method"],
                f"{100 * c.clean_accuracy:.2f}",
                f"{100 * np.mean(c.exact):.2f}",
                f"{np.median(c.radius):.4g}",
                f"{c.seconds.sum():.1f}",
                *(
                    _range(*(float(robust_accuracy(c, e, upper=u)) for u in (False, True)))
                    for e in radii
                ),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    ]
    if both is not None:
        at = ", ".join(f"l{norm} {eps:g}" for norm, eps in zip(certificates, radii, strict=True))
        text.append(f"union of {at}: {_range(both['certified'], both['upper'])} %")
    return "\n".join(text)


def write(folder: Path, certificates: dict[str, Certificate], report: dict[str, Any]) -> None:
    """All files of a certification."""
    for norm, certificate in certificates.items():
        save_npz(certificate, folder / f"certificate_l{norm}.npz")
        save_csv(certificate, folder / f"certificate_l{norm}.csv")
    titles = {f"{NORM_NAMES[c.q]} perturbations": c for c in certificates.values()}
    save(robustness_curves(titles), folder / "robustness_curves.png")
    with replacing(folder / "summary.json") as temporary:
        temporary.write_text(json.dumps(report, indent=2) + "\n")


def _range(lower: float, upper: float) -> str:
    low, high = f"{100 * lower:.2f}", f"{100 * upper:.2f}"
    return low if low == high else f"{low} (<= {high})"


COMMANDS = {"certify": run_certify, "predict": run_predict}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: the arguments; by default those of the process.

    Returns:
        The exit status: 0, or 2 after one line on standard error that says what was wrong.
    """
    try:
        arguments = build_parser().parse_args(argv)
        COMMANDS[arguments.command](arguments)
    except (ValueError, TypeError, OSError, ImportError) as error:
        print(f"jaxnpc: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0
