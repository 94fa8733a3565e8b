"""The jaxnpc half of `make demo`: digits certified in three norms, and the balls of Fig. 1."""

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

PER_CLASS = 20
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


def digits_classifier() -> tuple[np.ndarray, np.ndarray, PrototypeClassifier]:
    """Test points and labels, and a classifier from the other digits' cluster centres."""
    data = datasets.digits()
    order = np.random.default_rng(0).permutation(len(data.points))
    train, test = order[:1297], order[1297:]
    centres, labels = cluster(data.points[train], data.labels[train], PER_CLASS)
    return data.points[test], data.labels[test], prototype_classifier(centres, labels)


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
