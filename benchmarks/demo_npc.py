"""The jaxnpc half of `make demo`: digits certified in three norms, digits trained, Fig. 1."""

import math
import time
from pathlib import Path

import numpy as np

from benchmarks import harness
from jaxnpc import datasets, plots
from jaxnpc.certificate import Certificate, robust_accuracy, union
from jaxnpc.certify import certify
from jaxnpc.decisions import decide
from jaxnpc.domains import Box, Unbounded
from jaxnpc.extras import require
from jaxnpc.prototypes import PrototypeClassifier, prototype_classifier
from jaxnpc.report import Threat, accuracy_table, compare
from jaxnpc.training import train

PER_CLASS = 20
TRAINED_PER_CLASS, TRAINED_CAP, EPOCHS = 40, 0.7, 60  # chosen on the last 297 training digits
RADII = {1: (0.5, 1.0, 2.0), 2: (0.25, 0.5, 1.0), math.inf: (0.05, 0.1, 0.2)}
SIZES = ("near", "middle", "far")
BOX = Box(0.0, 1.0)


def run(output: Path) -> None:
    """Certify scikit-learn's digits and a picture in the plane; write figures into `output`."""
    points, labels, classifier = digits_classifier()
    print(
        f"jaxnpc: {len(classifier.prototypes)} prototypes by k-means, {len(points)} test digits of "
        "8 x 8 pixels in [0, 1], exact minimal perturbations of the l2 classifier"
    )
    certificates: dict[float, Certificate] = {}
    rows: list[dict[str, object]] = []
    for q, radii in RADII.items():
        began = time.perf_counter()
        c = certificates[q] = certify(classifier, points, labels, q=q, domain=BOX)
        seconds = time.perf_counter() - began
        shares = robust_accuracy(c, radii)
        rows.append(
            {
                "perturbation": f"l{q}",
                "clean %": f"{100 * c.clean_accuracy:.1f}",
                "exact radii %": f"{100 * c.exact.mean():.1f}",
                "median radius": f"{np.median(c.radius):.3f}",
                **{
                    f"certified {size} %": f"{100 * share:.1f} at {eps:g}"
                    for size, eps, share in zip(SIZES, radii, shares, strict=True)
                },
                "seconds": f"{seconds:.1f}",
            }
        )
    print(harness.table(rows))
    chosen = {q: radii[1] for q, radii in RADII.items()}
    both = union(list(certificates.values()), list(chosen.values()))
    at = ", ".join(f"l{q} {eps:g}" for q, eps in chosen.items())
    print(f"robust in all three ({at}): {100 * both.certified:.1f} %, exact: {both.exact}")

    titles = {f"{plots.NORM_NAMES[q]} perturbations": c for q, c in certificates.items()}
    plots.save(plots.robustness_curves(titles), output / "jaxnpc_curves.png")
    some = np.argsort(-certificates[2].radius)[:: len(points) // 4][:4]
    pictures = plots.nearest_adversarials(
        classifier, points[some], certificates[2].take(some), (8, 8)
    )
    plots.save(pictures, output / "jaxnpc_nearest.png")
    plots.save(balls_in_the_plane(), output / "jaxnpc_balls.png")
    print(f"figures: {output}/jaxnpc_curves.png, jaxnpc_nearest.png, jaxnpc_balls.png")
    print()
    trained_beside_1nn(output)


def trained_beside_1nn(output: Path) -> None:
    """Train on digits for certified robustness; the certified curve beside 1-NN's."""
    points, labels, test_points, test_labels = split_digits()
    trained = train(
        points,
        labels,
        per_class=TRAINED_PER_CLASS,
        cap=TRAINED_CAP,
        eps=RADII[2],
        epochs=EPOCHS,
        batch_size=100,
        progress=False,
    )
    print(
        f"certified training: {EPOCHS} epochs over {len(points)} digits in {trained.seconds:.1f} s "
        "(compilation included), certified on the others in l2, beside 1-NN"
    )
    found = compare(
        {"trained": trained.classifier, "1-NN": prototype_classifier(points, labels)},
        test_points,
        test_labels,
        [Threat(2, RADII[2])],
        domain=BOX,
    )
    head, *rows = accuracy_table(found)
    print(harness.table([dict(zip(head, row, strict=True)) for row in rows]))
    panel = {name: certificates[2] for name, certificates in found.certificates.items()}
    figure = plots.compared_curves({f"{plots.NORM_NAMES[2]} perturbations": panel})
    plots.save(figure, output / "jaxnpc_trained.png")
    plots.save(plots.prototype_pictures(trained.classifier, (8, 8)), output / "jaxnpc_digits.png")
    print(f"figures: {output}/jaxnpc_trained.png, jaxnpc_digits.png")


def split_digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training digits and labels, test digits and labels."""
    data = datasets.digits()
    order = np.random.default_rng(0).permutation(len(data.points))
    learn, test = order[:1297], order[1297:]
    return data.points[learn], data.labels[learn], data.points[test], data.labels[test]


def digits_classifier() -> tuple[np.ndarray, np.ndarray, PrototypeClassifier]:
    """Test points and labels, and a classifier from the other digits' cluster centres."""
    points, labels, test_points, test_labels = split_digits()
    classifier = prototype_classifier(*cluster(points, labels, PER_CLASS))
    return test_points, test_labels, classifier


def cluster(points: np.ndarray, labels: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The centres of `count` clusters in each class, and their labels."""
    k_means = require("sklearn.cluster").KMeans
    classes = np.unique(labels)
    fits = [k_means(count, n_init=1, random_state=0).fit(points[labels == c]) for c in classes]
    return np.concatenate([f.cluster_centers_ for f in fits]), np.repeat(classes, count)


def balls_in_the_plane() -> object:
    """Two interleaved classes, prototypes, and the largest ball around each point (Fig. 1)."""
    rng = np.random.default_rng(1)
    angle = rng.uniform(0, np.pi, (2, 14))
    moons = np.stack([np.cos(angle), np.sin(angle)], -1)
    moons[1] = [1.0, 0.4] - moons[1]
    points = (moons + 0.12 * rng.normal(size=moons.shape)).reshape(-1, 2)
    labels = np.repeat(["upper", "lower"], 14)
    classifier = prototype_classifier(*cluster(points, labels, 3))
    free = Unbounded()
    certificates = [certify(classifier, points, labels, q=q, domain=free) for q in RADII]
    return plots.largest_balls(
        classifier,
        lambda grid: decide(classifier, grid).predicted,
        points,
        certificates,
        domain=free,
    )
