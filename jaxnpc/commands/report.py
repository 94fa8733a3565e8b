"""`jaxnpc report`: a page on one or several classifiers' proved robustness."""

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxmpd.options import real, whole
from jaxnpc.commands import inputs
from jaxnpc.commands.certify import add_work
from jaxnpc.commands.inputs import NORMS
from jaxnpc.extras import require
from jaxnpc.models import Model, load_model
from jaxnpc.prototypes import PrototypeClassifier
from jaxnpc.publish import publish
from jaxnpc.report import Threat, accuracy_table, compare


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "report",
        help="a page with the certified accuracies, curves and pictures of classifiers",
        description="Certify one classifier, or several side by side, and write a page (Markdown "
        "and HTML) with clean accuracy, certified robust accuracy (CRA) and its upper bound (URA), "
        "curves and pictures, and all figures as JSON.",
        epilog="Example: jaxnpc report model.npz mnist --threat 2 0.3 1.58 --threat inf 0.1 "
        "--threat 1 1 --beside 1-NN mnist:train --output report",
    )
    parser.add_argument("model", metavar="MODEL", help=f"the classifier: {inputs.SOURCES}")
    parser.add_argument("data", metavar="DATA", help="labelled points: as for MODEL")
    parser.add_argument(
        "--beside",
        nargs="+",
        action="append",
        default=[],
        metavar=("NAME SOURCE", "NORM"),
        help="another classifier to compare with: how to call it, where to find it (as for MODEL; "
        "a training set makes 1-NN) and, if its file does not state it, its distance (1, 2 or "
        "inf; default 2); repeat for several",
    )
    parser.add_argument(
        "--threat",
        nargs="+",
        action="append",
        metavar=("NORM", "EPS"),
        help="a norm of the perturbation and the radii at which to give robust accuracies; repeat "
        "for several norms, whose union is taken at the first radius of each (default: as MODEL "
        "was trained for, else 2)",
    )
    inputs.add_points(parser)
    inputs.add_distance(parser)
    inputs.add_box(parser)
    add_work(parser)
    parser.add_argument(
        "--attacks",
        type=whole(0),
        default=0,
        metavar="N",
        help="also attack the first N points with foolbox (extra attacks; default: none)",
    )
    parser.add_argument(
        "--pictures",
        type=whole(0),
        default=5,
        metavar="N",
        help="points to show one by one (default: %(default)s)",
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="for the page")
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> None:
    """Certify all classifiers, then write the page."""
    inputs.check_folder(arguments.output)
    require("matplotlib.figure")
    if arguments.attacks:
        require("foolbox")
    others = parse_beside(arguments.beside)
    model = load_model(arguments.model)
    threats = parse_threats(arguments.threat, model.settings)
    domain = inputs.parse_box(inputs.box_words(arguments, model.settings))
    data, margin, shape = inputs.read_points(arguments.data, arguments, model.settings)
    if data.labels is None:
        raise ValueError(f"{arguments.data} has no labels: a report needs them")
    first = Path(arguments.model).stem
    if first in others:
        raise ValueError(f"--beside {first} has the name of MODEL: choose another name")
    models: dict[str, tuple[Model, str | None]] = {first: (model, arguments.distance)}
    models |= {name: (load_model(source), norm) for name, (source, norm) in others.items()}
    classifiers = {
        name: in_text(inputs.classifier_of(each, margin, shape, norm))
        for name, (each, norm) in models.items()
    }
    comparison = compare(
        classifiers,
        data.points,
        [str(label) for label in data.labels.tolist()],
        threats,
        domain=domain,
        method=arguments.method,
        attacks=arguments.attacks,
        chunk=arguments.chunk,
        checkpoint=arguments.resume,
        progress=not arguments.quiet,
    )
    print(inputs.aligned(accuracy_table(comparison)))
    files = publish(
        comparison,
        arguments.output,
        title=f"Certified robustness of {', '.join(classifiers)}",
        shape=data.shape,
        pictures=arguments.pictures,
        settings={name: each.settings for name, (each, _) in models.items()},
    )
    print(f"written to {arguments.output}: {', '.join(files)}")


def in_text(classifier: PrototypeClassifier) -> PrototypeClassifier:
    """The classifier with its classes' names as text, in which those of all files agree."""
    return dataclasses.replace(classifier, classes=tuple(map(str, classifier.classes)))


def parse_beside(given: Sequence[Sequence[str]]) -> dict[str, tuple[str, str | None]]:
    """Source and distance by name, from the words of every `--beside`."""
    found: dict[str, tuple[str, str | None]] = {}
    for words in given:
        if not 2 <= len(words) <= 3 or (len(words) == 3 and words[2] not in NORMS):
            raise ValueError(
                f"--beside takes NAME SOURCE and perhaps 1, 2 or inf, got {' '.join(words)}"
            )
        name, source, *norm = words
        if name in found:
            raise ValueError(f"--beside names {name} twice")
        found[name] = (source, norm[0] if norm else None)
    return found


def parse_threats(
    given: Sequence[Sequence[str]] | None, settings: Mapping[str, Any]
) -> list[Threat]:
    """The threat models, from the words of every `--threat` or else from the model's file."""
    if given is None:
        given = [[str(word) for word in (settings.get("norm", "2"), *settings.get("radii", []))]]
    read, found = real(positive=False, infinite=True), dict[str, Threat]()
    for norm, *radii in given:
        if norm not in NORMS:
            raise ValueError(f"--threat begins with a norm, 1, 2 or inf, got {norm}")
        if norm in found:
            raise ValueError(f"--threat names the norm {norm} twice: give all radii at once")
        try:
            found[norm] = Threat(NORMS[norm], tuple(map(read, radii)))
        except argparse.ArgumentTypeError as error:
            raise ValueError(f"--threat {norm} {' '.join(radii)}: a radius {error}") from None
    return list(found.values())
