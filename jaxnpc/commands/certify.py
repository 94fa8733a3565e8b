"""`jaxnpc certify`: how far each point can be moved before its class changes."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxmpd.files import replacing
from jaxmpd.options import real, whole
from jaxnpc.certificate import (
    Certificate,
    robust_accuracy,
    save_csv,
    save_npz,
    summary,
    union_summary,
)
from jaxnpc.certify import METHODS, certify
from jaxnpc.commands import inputs
from jaxnpc.commands.inputs import NORMS
from jaxnpc.extras import require
from jaxnpc.models import load_model
from jaxnpc.plots import NORM_NAMES, robustness_curves, save


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "certify",
        help="prove how far each point can be moved before its class changes",
        description="Prove how far each point can be moved, in each norm, before its class "
        "changes. Writes, per norm, an npz with everything and a CSV with one row a point, and a "
        "summary as JSON and as a picture.",
    )
    parser.add_argument("--prototypes", required=True, metavar="P", help=inputs.SOURCES)
    parser.add_argument("--data", required=True, metavar="D", help="the points: as for P")
    inputs.add_points(parser)
    inputs.add_distance(parser)
    parser.add_argument(
        "--norms", nargs="+", choices=list(NORMS), default=["2"], help="of the perturbation"
    )
    inputs.add_box(parser)
    add_work(parser)
    parser.add_argument(
        "--radii",
        nargs="+",
        type=real(positive=False, infinite=True),
        default=[],
        metavar="EPS",
        help="where to give robust accuracies; with as many radii as norms also of their union",
    )
    parser.add_argument(
        "--output", type=Path, default=Path("out"), metavar="FOLDER", help="default: out"
    )
    parser.set_defaults(command=run)


def add_work(parser: argparse.ArgumentParser) -> None:
    """Options that say how certification is carried out."""
    parser.add_argument(
        "--method", choices=list(METHODS), default="exact", help="exact (default), bound or margin"
    )
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="FOLDER",
        help="keep finished parts here and go on from them after an interruption",
    )
    parser.add_argument(
        "--chunk", type=whole(1), default=1024, help="points at a time (default: %(default)s)"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(arguments: argparse.Namespace) -> None:
    """Certify, then write everything."""
    if len(set(arguments.norms)) < len(arguments.norms):
        raise ValueError(f"--norms names one twice: {' '.join(arguments.norms)}")
    # What could still fail once the work is done is asked for before it begins.
    require("matplotlib.figure")
    inputs.check_folder(arguments.output)
    model = load_model(arguments.prototypes)
    domain = inputs.parse_box(inputs.box_words(arguments, model.settings))
    data, margin, shape = inputs.read_points(arguments.data, arguments, model.settings)
    classifier = inputs.classifier_of(model, margin, shape, arguments.distance)
    labels = None if data.labels is None else inputs.names_of(classifier, data.labels)
    certificates: dict[str, Certificate] = {}
    for norm in arguments.norms:
        certificates[norm] = certify(
            classifier,
            data.points,
            labels,
            q=NORMS[norm],
            domain=domain,
            method=arguments.method,
            chunk=arguments.chunk,
            checkpoint=None if arguments.resume is None else arguments.resume / f"l{norm}",
            progress=not arguments.quiet,
        )
    # With one radius for each of several norms, also their union.
    paired = len(arguments.norms) == len(arguments.radii) > 1
    in_order = list(certificates.values())
    report = {
        "norms": {norm: summary(c, arguments.radii) for norm, c in certificates.items()},
        "union": union_summary(in_order, arguments.radii) if paired else None,
    }
    print(table(certificates, arguments.radii, report["union"]))
    write(arguments.output, certificates, report)
    print(f"written to {arguments.output}")


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
                    inputs.bracket(*(float(robust_accuracy(c, e, upper=u)) for u in (False, True)))
                    for e in radii
                ),
            ]
        )
    text = [inputs.aligned(lines)]
    if both is not None:
        at = ", ".join(f"l{norm} {eps:g}" for norm, eps in zip(certificates, radii, strict=True))
        text.append(f"union of {at}: {inputs.bracket(both['certified'], both['upper'])} %")
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
