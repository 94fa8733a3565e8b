"""The paper's tables of nearest-prototype classifiers, trained and certified here.

python -m benchmarks.npc_tables --table 5 [--validate] [--seed 0] [--retrain]

Tables 3 and 4: bounds and exact radii of the MNIST l2 model; 5: its certified accuracy; 6: several
norms at once; 7: the linf model; 10 and 11: CIFAR-10 in l2 and in several norms. The model is
trained by its recipe (benchmarks/npc_recipes.py) or read from `out/models` where it was left, then
the full test set is certified in the box [0, 1]. A point is robust at eps if its radius exceeds
eps. `--validate` instead trains on all but the last 10,000 training images (the last ones of each
class where the file is sorted by class) and certifies those: that is how recipes are chosen, on
three seeds; the test set is looked at once. `--quick` trains for one epoch on 5,000 images with 20
prototypes a class and certifies 300.
"""

import argparse
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks import harness
from benchmarks.npc_paper import TABLES
from benchmarks.npc_recipes import RECIPES, Recipe
from jaxnpc.attacks import attack
from jaxnpc.bounds import lower_bounds, margin_bounds
from jaxnpc.certificate import Certificate, robust_accuracy, union
from jaxnpc.certify import certify
from jaxnpc.cifar import cifar10
from jaxnpc.datasets import mnist
from jaxnpc.domains import Box, Unbounded
from jaxnpc.models import build, load_model, save_model
from jaxnpc.prototypes import PrototypeClassifier
from jaxnpc.readers import Dataset
from jaxnpc.samples import hold_out, samples
from jaxnpc.training import train

INF = math.inf
MODELS = harness.ROOT / "out" / "models"
HELD_OUT = 10_000
LOADERS: dict[str, tuple[str, Callable[..., Dataset]]] = {
    "mnist": ("mnist/train-images-idx3-ubyte.gz", mnist),
    "cifar10": ("cifar10/cifar10_jpeg.npz", cifar10),
}


class Work(NamedTuple):
    """A trained model and the points to certify."""

    report: harness.Report
    classifier: PrototypeClassifier
    x: np.ndarray
    y: np.ndarray
    targets: bool


def images(args: argparse.Namespace, recipe: Recipe) -> tuple[Dataset, Dataset] | None:
    """What to train on and what to certify."""
    file, load = LOADERS[recipe.data]
    path = harness.data(file, "JAXNPC_DATA")
    if path is None:
        return None
    first = load("train", folder=path.parent)
    if args.validate:
        everything = samples(first.points, first.labels, 2)
        first, second = (
            first._replace(points=part.points, labels=np.array(part.names)[part.classes])
            for part in hold_out(everything, HELD_OUT / len(first.points), 2)
        )
    else:
        second = load("test", folder=path.parent)
    if args.quick:
        first, second = spread(first, 5000), spread(second, 300)
    return first, second


def spread(data: Dataset, count: int) -> Dataset:
    """So many images, evenly from all: a file may be sorted by class."""
    rows = np.linspace(0, len(data.points) - 1, count).astype(int)
    return data._replace(points=data.points[rows], labels=np.asarray(data.labels)[rows])


def model(
    args: argparse.Namespace, recipe: Recipe, data: Dataset, report: harness.Report
) -> PrototypeClassifier:
    """The recipe's model, trained or read."""
    name = f"{recipe.data}_{'_'.join(f'{c:g}' for c in norms(recipe))}_seed{args.seed}"
    name += "_validate" * args.validate + "_quick" * args.quick
    path = MODELS / f"{name}.npz"
    if path.exists() and not args.retrain:
        found = load_model(path)
        if found.settings.get("recipe") == repr(recipe):
            report.row(**found.settings["row"])
            return build(found)
        print(f"{path.name} was trained by another recipe: training anew")
    start: Any = "kmeans"
    seconds, per_epoch, epochs = 0.0, 0.0, 0
    settings: dict[str, Any] = {}
    for k, stage in enumerate(recipe.stages):
        quick = {"per_class": 20, "epochs": 1} if args.quick else {}
        result = train(
            data.points,
            data.labels,
            shape=data.shape,
            start=start,
            eps=recipe.eps,
            seed=args.seed,
            checkpoint=MODELS / f"{name}_stage{k}.ckpt",
            resume=not args.retrain,
            **{**stage, **quick},
        )
        start = result.classifier
        seconds += result.seconds
        per_epoch += result.seconds_per_epoch * result.settings["epochs"]
        epochs += int(result.settings["epochs"])
        settings[f"stage {k}"] = result.settings
    row = {
        "recipe": recipe.data,
        "training_points": len(data.points),
        "seed": args.seed,
        "configurations_tried": recipe.configurations,
        "training_seconds": seconds,
        "seconds_per_epoch": per_epoch / epochs,
    }
    report.row(**row)
    settings |= {"recipe": repr(recipe), "row": row}
    save_model(path, start, shape=data.shape, settings=settings)
    for left in MODELS.glob(f"{name}_stage*"):
        left.unlink()  # the checkpoints have served
    return start


def norms(recipe: Recipe) -> tuple[float, float]:
    last = recipe.stages[-1]
    return last.get("distance", 2), last.get("q", 2)


def percent(share: Any) -> float:
    return 100 * float(share)


def timed(compute: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    return compute(), time.perf_counter() - began


def rows_of_paper(work: Work, number: int) -> None:
    for row in TABLES[number]:
        work.report.row(**{**row, "model": f"paper's {row.get('model', row.get('threat'))}"})


def accuracies(
    work: Work, number: int, eps: dict[str, float], goals: dict[str, float], q: float
) -> Certificate:
    """Certified accuracy at several radii of one norm."""
    certificate, seconds = timed(
        lambda: certify(work.classifier, work.x, work.y, q=q, domain=Box(), progress=True)
    )
    found = {"clean": percent(certificate.clean_accuracy)}
    found |= {f"cra_{name}": percent(robust_accuracy(certificate, e)) for name, e in eps.items()}
    work.report.row(model="ours", **found)
    rows_of_paper(work, number)
    upper = {
        f"ura_{n}": percent(robust_accuracy(certificate, e, upper=True)) for n, e in eps.items()
    }
    work.report.row(
        method=certificate.settings["method"],
        **upper,
        exact_percent=percent(certificate.exact.mean()),
        mean_radius=float(certificate.radius.mean()),
        seconds=seconds,
    )
    paper = TABLES[number][0]
    for key, value in found.items():
        goal = f">= {goals[key]:g}" if work.targets else None
        work.report.summarise(key, value, goal, paper.get(key))
    work.report.summarise("certification_seconds", seconds)
    return certificate


def several(
    work: Work, number: int, radii: dict[str, tuple[float, float]], goals: dict[str, float]
) -> None:
    """Certified accuracy in several norms and their union."""
    certificates, found, seconds = [], {}, {}
    for name, (q, e) in radii.items():
        certificate, seconds[f"seconds_{name}"] = timed(
            lambda q=q: certify(work.classifier, work.x, work.y, q=q, domain=Box(), progress=True)
        )
        certificates.append(certificate)
        found[name] = percent(robust_accuracy(certificate, e))
    together = union(certificates, [e for _, e in radii.values()])
    found["union"] = percent(together.certified)
    clean = percent(certificates[0].clean_accuracy)
    work.report.row(model="ours", clean=clean, **found)
    rows_of_paper(work, number)
    work.report.row(
        exact_percent=percent(np.mean([c.exact.mean() for c in certificates])),
        union_upper=percent(together.upper),
        **seconds,
    )
    paper = TABLES[number][0]
    for key, value in found.items():
        goal = f">= {goals[key]:g}" if work.targets else None
        work.report.summarise(key if key == "union" else f"cra_{key}", value, goal, paper[key])


def table_3(work: Work) -> None:
    """Mean bounds: Theorem 2.4, Lemma 2.9 on R^d and in the box, exact."""
    means = {"theorem_2.4": margin_bounds(work.classifier, work.x, work.y).radius.mean()}
    for name, q in (("l1", 1), ("l2", 2), ("linf", INF)):
        row: dict[str, Any] = {"theorem_2.4": float(means["theorem_2.4"]) if q == 2 else None}
        for bound, domain in (("lemma_Rd", Unbounded()), ("lemma_box", Box())):
            bounds = lower_bounds(work.classifier, work.x, work.y, q=q, domain=domain)
            row[bound] = float(bounds.radius.mean())
        exact = certify(work.classifier, work.x, work.y, q=q, domain=Box(), progress=True)
        row["exact"] = float(exact.radius.mean())
        paper = next(r for r in TABLES[3] if r["threat"] == name)
        work.report.row(model="ours", threat=name, **row)
        work.report.row(**{"model": "paper's", **paper})
        for key in ("lemma_box", "exact"):
            work.report.summarise(f"{name}_{key}", row[key], paper=paper[key])


def table_4(work: Work) -> None:
    """What exact radii cost."""
    for name, q in (("l1", 1), ("l2", 2), ("linf", INF)):
        bounds = lower_bounds(
            work.classifier, work.x, work.y, q=q, domain=Box(), selection="nearest"
        )
        exact, seconds = timed(
            lambda q=q: certify(work.classifier, work.x, work.y, q=q, domain=Box(), progress=True)
        )
        right = exact.radius > 0
        solved = exact.subproblems[right & (exact.subproblems > 0)]
        row = {
            "direct": percent(bounds.tight[right].mean()),
            "problems": int(exact.subproblems.sum()),
            "per_point": float(solved.mean()) if len(solved) else 0.0,
            "ms_per_point": 1e3 * seconds / max(int(right.sum()), 1),
        }
        paper = next(r for r in TABLES[4] if r["threat"] == name)
        work.report.row(model="ours", threat=name, **row)
        work.report.row(**{"model": "paper's", **paper})
        work.report.summarise(
            f"{name}_ms_per_point", row["ms_per_point"], paper=paper["ms_per_point"]
        )


def table_5(work: Work) -> None:
    goals = {"clean": 97.4, "cra_1.5": 76.5, "cra_1.58": 74.5, "cra_2": 59.0}
    accuracies(work, 5, {"1.5": 1.5, "1.58": 1.58, "2": 2.0}, goals, 2)


def table_6(work: Work) -> None:
    goals = {"l1_1": 96.3, "l2_0.3": 95.7, "linf_0.1": 86.0, "union": 86.0}
    several(work, 6, {"l1_1": (1, 1.0), "l2_0.3": (2, 0.3), "linf_0.1": (INF, 0.1)}, goals)


def table_7(work: Work) -> None:
    """The linf model; its upper bounds by witnesses and attacks."""
    goals = {"clean": 96.0, "cra_0.1": 93.5, "cra_0.3": 81.0, "cra_0.4": 65.5}
    eps = {"0.1": 0.1, "0.3": 0.3, "0.4": 0.4}
    certificate = accuracies(work, 7, eps, goals, INF)
    gaps = {}
    for name, e in eps.items():
        # Only points that are neither proved robust nor known to be broken are in doubt.
        doubtful = np.flatnonzero((certificate.radius <= e) & (certificate.upper > e))
        left = len(doubtful)
        if left:
            found = attack(
                work.classifier, work.x[doubtful], work.y[doubtful],
                q=INF, domain=Box(), radii=(e,),
            )  # fmt: skip
            left = int(np.sum(~(found.distance <= e)))
        gaps[f"gap_{name}"] = percent(left / len(work.x))
    work.report.row(**gaps)
    goal = "<= 0.5" if work.targets else None
    work.report.summarise("ura_gap", max(gaps.values()), goal)


def table_10(work: Work) -> None:
    goals = {"clean": 49.2, "cra_0.1": 43.9, "cra_36/255": 41.9, "cra_0.25": 36.4}
    accuracies(work, 10, {"0.1": 0.1, "36/255": 36 / 255, "0.25": 0.25}, goals, 2)


def table_11(work: Work) -> None:
    goals = {"l1_2": 42.5, "l2_0.1": 41.9, "linf_2/255": 32.7, "union": 32.7}
    several(work, 11, {"l1_2": (1, 2.0), "l2_0.1": (2, 0.1), "linf_2/255": (INF, 2 / 255)}, goals)


CERTIFY: dict[int, Callable[[Work], None]] = {
    3: table_3,
    4: table_4,
    5: table_5,
    6: table_6,
    7: table_7,
    10: table_10,
    11: table_11,
}


def main() -> None:
    options = harness.parser(__doc__)
    options.add_argument("--table", type=int, choices=[*CERTIFY], required=True)
    options.add_argument("--validate", action="store_true", help="on held-out training images")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--retrain", action="store_true", help="even if there is a model")
    args = options.parse_args()
    recipe = RECIPES[args.table]
    data = images(args, recipe)
    if data is None:
        return
    report = harness.Report(f"npc_table{args.table}")
    first, second = data
    classifier = model(args, recipe, first, report)
    per_epoch = report.rows[0]["seconds_per_epoch"]
    targets = not args.quick and not args.validate
    work = Work(report, classifier, second.points, np.asarray(second.labels), targets)
    CERTIFY[args.table](work)
    report.summarise("seconds_per_epoch", per_epoch)
    report.summarise("training_seconds", report.rows[0]["training_seconds"])
    report.finish(args)


if __name__ == "__main__":
    main()
