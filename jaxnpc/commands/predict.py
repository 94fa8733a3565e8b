"""`jaxnpc predict`: the class of each point."""

import argparse
import csv
from pathlib import Path
from typing import Any

import numpy as np

from jaxmpd.files import replacing
from jaxnpc.certify import check_points
from jaxnpc.commands import inputs
from jaxnpc.decisions import decide
from jaxnpc.domains import Unbounded
from jaxnpc.models import load_model


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "predict",
        help="the class of each point",
        description="Write the class of each point to a CSV file.",
    )
    parser.add_argument("--prototypes", required=True, metavar="P", help=inputs.SOURCES)
    parser.add_argument("--data", required=True, metavar="D", help="the points: as for P")
    inputs.add_points(parser)
    inputs.add_distance(parser)
    parser.add_argument(
        "--output", type=Path, default=Path("predictions.csv"), metavar="FILE", help="the CSV file"
    )
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> None:
    """Predict, then write."""
    inputs.check_file(arguments.output)
    model = load_model(arguments.prototypes)
    data, margin, shape = inputs.read_points(arguments.data, arguments, model.settings)
    classifier = inputs.classifier_of(model, margin, shape, arguments.distance)
    decision = decide(classifier, check_points(classifier, data.points, Unbounded()))
    names = [None if k < 0 else classifier.classes[k] for k in decision.predicted]
    with replacing(arguments.output) as temporary, temporary.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["point", "predicted", "tied"])
        for k, (name, certain) in enumerate(zip(names, decision.certain, strict=True)):
            writer.writerow([k, "" if name is None else name, int(not certain)])
    print(f"{len(names)} points; written to {arguments.output}")
    if data.labels is not None:
        labels = inputs.names_of(classifier, data.labels)
        right = np.mean([a == b for a, b in zip(names, labels, strict=True)])
        print(f"accuracy {100 * right:.2f} %")
