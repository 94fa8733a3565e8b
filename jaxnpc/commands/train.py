"""`jaxnpc train`: prototypes trained for certified robustness."""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

from jaxmpd.files import write_whole
from jaxmpd.options import real, whole
from jaxmpd.reports import csv_text
from jaxnpc.augmentation import AUGMENTATIONS
from jaxnpc.commands import inputs
from jaxnpc.commands.inputs import NORMS
from jaxnpc.datasets import Dataset
from jaxnpc.domains import check as check_domain
from jaxnpc.domains import check_inside
from jaxnpc.models import load_model, save_model
from jaxnpc.monitor import CRITERIA, History, beside
from jaxnpc.plans import OBJECTIVES, OPTIMIZERS
from jaxnpc.prototypes import PrototypeClassifier
from jaxnpc.starts import STARTS
from jaxnpc.training import Trained, train

CLOSEST: dict[str, str] = {"1": "inf", "2": "2", "inf": "inf"}
"""The norm of the perturbation that is taken by default, for each distance."""

SHOWN = 10
"""How many lines of the history are printed."""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "train",
        help="train prototypes for certified robustness",
        description="Train prototypes so that the certified accuracy of new points is high, and "
        "write them, with all settings, as an npz file that certify, report and predict read.",
        epilog="Examples: jaxnpc train digits --box 0 1 --radii 0.5 --output digits.npz; "
        "jaxnpc train mnist:train --crop 1 --box 0 1 --per-class 400 --radii 1.58 --cap 2.2 "
        "--components 150 --augment affine --epochs 40 --output mnist.npz",
    )
    parser.add_argument("data", metavar="DATA", help=f"labelled points: {inputs.SOURCES}")
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FILE", help="the npz file of the model"
    )
    inputs.add_points(parser)
    _add_robustness(parser)
    _add_recipe(parser)
    _add_budget(parser)
    parser.set_defaults(command=run)


def _add_robustness(parser: argparse.ArgumentParser) -> None:
    """Options that say what to be robust against."""
    parser.add_argument(
        "--distance",
        choices=list(NORMS),
        default="2",
        help="by which the nearest prototype is found (default: %(default)s)",
    )
    parser.add_argument(
        "--norm",
        choices=list(NORMS),
        help="of the perturbation to be robust against (default: 2 for distance 2, else inf)",
    )
    parser.add_argument(
        "--box",
        nargs="+",
        metavar=("LOW HIGH", "none"),
        help="where inputs live: the two ends of every coordinate, or none (default). The file "
        "keeps it for certification",
    )
    parser.add_argument(
        "--train-in-box",
        action="store_true",
        help="seek adversarial points in the box while training too, at several times the cost",
    )
    parser.add_argument(
        "--radii",
        nargs="+",
        type=real(positive=True),
        default=[],
        metavar="EPS",
        help="radii of interest: certified accuracy is shown at each (default: half the cap)",
    )
    parser.add_argument(
        "--cap",
        type=real(positive=True),
        metavar="R",
        help="the radius beyond which robustness earns nothing more; best somewhat above the radii "
        "of interest (default: derived from the data)",
    )
    parser.add_argument(
        "--validation",
        default="0.1",
        metavar="SHARE",
        help="the share of the points, from the end, that is left to choose the best epoch by, or "
        "the name or file of points for that; 0 trains on all and takes the last epoch (default: "
        "%(default)s)",
    )
    parser.add_argument(
        "--criterion",
        choices=list(CRITERIA),
        default="area",
        help="what is best: clean accuracy (clean), certified accuracy at the first radius (cra) "
        "or the area under the certified curve up to the cap (area, the default)",
    )


def _add_recipe(parser: argparse.ArgumentParser) -> None:
    """Options that say how prototypes are trained."""
    parser.add_argument(
        "--per-class",
        type=whole(1),
        default=40,
        help="prototypes a class; a class of fewer points gets one a point (default: %(default)s)",
    )
    parser.add_argument(
        "--objective",
        choices=list(OBJECTIVES),
        default="margin",
        help="what is minimised (default: %(default)s, what certified radii lack to the cap)",
    )
    parser.add_argument(
        "--start",
        default="kmeans",
        help=f"where prototypes start: {', '.join(STARTS)} or a file of prototypes to go on from, "
        "which then says how many (default: %(default)s)",
    )
    parser.add_argument(
        "--components",
        type=whole(1),
        metavar="N",
        help="train in this many principal components, for the l2 distance (default: in all)",
    )
    parser.add_argument(
        "--augment",
        choices=list(AUGMENTATIONS),
        help="random changes of the images that are learned from (default: none)",
    )
    parser.add_argument(
        "--dropout",
        type=real(positive=False),
        default=0.4,
        help="the probability that a prototype is hidden from a point of its class: more against "
        "over-fitting (default: %(default)s)",
    )
    parser.add_argument(
        "--rivals",
        type=whole(1),
        default=8,
        help="prototypes of other classes that are looked at closely (default: %(default)s)",
    )
    parser.add_argument(
        "--smoothing",
        type=real(positive=False),
        default=0.0,
        metavar="T",
        help="a temperature that spreads the gradient of semi_metric over coordinates, which the "
        "linf distance needs: a tenth to a thirtieth of the cap (default: none)",
    )
    parser.add_argument(
        "--optimizer",
        choices=list(OPTIMIZERS),
        default=next(iter(OPTIMIZERS)),
        help="with a cosine decay (default: %(default)s)",
    )
    parser.add_argument(
        "--learning-rate",
        type=real(positive=True),
        metavar="RATE",
        help="at the start (default: derived from the data)",
    )
    parser.add_argument(
        "--batch-size", type=whole(1), default=500, help="points a minibatch (default: %(default)s)"
    )
    parser.add_argument(
        "--seed",
        type=whole(0, 2**32 - 1),
        default=0,
        help="of all that is random (default: %(default)s)",
    )


def _add_budget(parser: argparse.ArgumentParser) -> None:
    """Options that say how long to train and what to show."""
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument(
        "--epochs", type=whole(1), default=40, help="passes over the points (default: %(default)s)"
    )
    budget.add_argument(
        "--minutes",
        type=real(positive=True),
        help="as many epochs as fit in this time, as two that are thrown away tell; start, "
        "compilation and validation come on top",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue a run that was stopped, from the checkpoint beside FILE, to the same bits",
    )
    parser.add_argument(
        "--history", type=Path, metavar="CSV", help="write what was recorded of each epoch here"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(arguments: argparse.Namespace) -> None:
    """Train, then write."""
    output: Path = arguments.output
    check(arguments)
    words = inputs.box_words(arguments, {})
    domain = inputs.parse_box(words)
    data, margin, shape = inputs.read_points(arguments.data, arguments, {})
    if data.labels is None:
        raise ValueError(f"{arguments.data} has no labels: training needs them")
    # Also where training does without the box, certification will not.
    check_inside(data.points, check_domain(domain, data.points.shape[1]), arguments.data)
    norm = arguments.norm or CLOSEST[arguments.distance]
    start = recipe(
        arguments,
        data,
        q=NORMS[norm],
        domain=domain if arguments.train_in_box else None,
        start=read_start(arguments.start, margin, shape),
        validation=read_validation(arguments),
    )
    epochs: int = arguments.epochs
    if arguments.minutes is not None:
        epochs = epochs_within(arguments.minutes, start)
        print(f"{epochs} epochs in {arguments.minutes:g} minutes: --epochs {epochs}")
    checkpoint = output.with_name(f"{output.stem}.checkpoint")
    trained = start(
        epochs=epochs,
        checkpoint=checkpoint,
        resume=arguments.resume,
        progress=not arguments.quiet,
    )
    radii = arguments.radii or [float(eps) for eps in str(trained.settings["eps"]).split()]
    settings = {
        "data": Path(arguments.data).name,
        "crop": margin,
        "box": words,
        "norm": norm,
        "radii": radii,
        "training": trained.settings,
    }
    save_model(output, trained.classifier, shape=data.shape, settings=settings)
    files = [str(output)]
    if arguments.history is not None:
        columns = history_columns(trained.history, radii)
        text = csv_text(list(columns), zip(*columns.values(), strict=True))
        write_whole(arguments.history, text.encode())
        files.append(str(arguments.history))
    for path in (checkpoint, beside(checkpoint)):
        path.unlink(missing_ok=True)
    print(inputs.aligned(history_table(trained.history, radii)))
    print(
        f"{len(trained.classifier.prototypes)} prototypes in {trained.seconds:.1f} s, "
        f"{trained.seconds_per_epoch:.2g} s an epoch; written to {', '.join(files)}"
    )


def check(arguments: argparse.Namespace) -> None:
    """What can be told from the options alone."""
    output: Path = arguments.output
    if output.suffix != ".npz":
        raise ValueError(f"--output {output} does not end in .npz, by which models are known")
    for path in (output, arguments.history):
        if path is not None:
            inputs.check_file(path)
    if arguments.minutes is not None and arguments.resume:
        raise ValueError(
            f"--minutes {arguments.minutes:g} need not give as many epochs as the run that is "
            "resumed: name the --epochs that it printed"
        )


def recipe(arguments: argparse.Namespace, data: Dataset, **how: Any) -> Callable[..., Trained]:
    """Training as the options have it, but for the epochs."""
    assert data.labels is not None  # run saw to it
    return partial(
        train,
        data.points,
        data.labels.tolist(),
        per_class=arguments.per_class,
        distance=NORMS[arguments.distance],
        objective=arguments.objective,
        cap=arguments.cap,
        rivals=arguments.rivals,
        dropout=arguments.dropout,
        smoothing=arguments.smoothing,
        components=arguments.components,
        augment=arguments.augment,
        shape=data.shape if len(data.shape) > 1 else None,
        optimizer=arguments.optimizer,
        learning_rate=arguments.learning_rate,
        batch_size=arguments.batch_size,
        criterion=arguments.criterion,
        eps=tuple(arguments.radii) or None,
        seed=arguments.seed,
        **how,
    )


def epochs_within(minutes: float, start: Callable[..., Trained]) -> int:
    """How many epochs fit in some minutes, judged by two that are thrown away.

    The second one counts: the first may be slowed by what happens only once.
    """
    seconds = start(epochs=2, evaluate_every=1, progress=False).history.seconds
    return max(1, int(60 * minutes / max(seconds[-1] - seconds[-2], 1e-6)))


def read_start(word: str, margin: int, shape: tuple[int, ...]) -> str | PrototypeClassifier:
    """What `--start` names: a way to choose prototypes, or prototypes in a file."""
    if word in STARTS:
        return word
    if not Path(word).is_file():
        raise ValueError(f"--start {word} is none of {', '.join(STARTS)}, and no file")
    return inputs.classifier_of(load_model(word), margin, shape, None)


def read_validation(
    arguments: argparse.Namespace,
) -> float | tuple[np.ndarray, list[Any]] | None:
    """What `--validation` names: a share of the points, other points, or none."""
    word: str = arguments.validation
    try:
        share = float(word)
    except ValueError:
        held_out: Dataset = inputs.read_points(word, arguments, {})[0]
        if held_out.labels is None:
            raise ValueError(f"--validation {word} has no labels: it needs them") from None
        return held_out.points, held_out.labels.tolist()
    if not 0 <= share < 1:
        raise ValueError(f"--validation must be at least 0 and below 1, got {word}")
    return share or None


def history_columns(
    history: History, radii: Sequence[float]
) -> dict[str, Shaped[np.ndarray, " r"]]:
    """The history's columns by name, those of certified accuracy with their radius."""
    found: dict[str, Shaped[np.ndarray, " r"]] = {}
    for name, column in history._asdict().items():
        if column.ndim == 1:
            found[name] = column
        else:
            found |= {f"{name}_{eps:g}": c for eps, c in zip(radii, column.T, strict=True)}
    return found


def history_table(history: History, radii: Sequence[float]) -> list[list[str]]:
    """Some evaluations, evenly spread: losses, and accuracies in percent."""
    parts = ["train"] if np.isnan(history.validation_clean).all() else ["train", "validation"]
    head = ["epoch", "seconds"]
    for part in parts:
        head += [f"{part} objective", "clean %", *(f"% at {eps:g}" for eps in radii)]
    table = [head]
    count = len(history.epoch)
    for k in np.unique(np.linspace(0, count - 1, min(count, SHOWN)).round().astype(int)):
        row = [str(history.epoch[k]), f"{history.seconds[k]:.1f}"]
        for part in parts:
            objective, clean, certified = (
                getattr(history, f"{part}_{name}")[k]
                for name in ("objective", "clean", "certified")
            )
            shares = (clean, *certified)
            row += [f"{objective:.4g}", *(f"{100 * share:.2f}" for share in shares)]
        table.append(row)
    return table
