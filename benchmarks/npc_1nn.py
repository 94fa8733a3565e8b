"""1-NN on MNIST: 60,000 prototypes, exact l2 radii, bounds for l1 and linf (paper, Tables 5, 6).

The full test set in the box [0, 1]; a point is robust at eps if its radius exceeds eps. The exact
radius is Theorem 2.6's, the bounds are Lemma 2.9's over all own prototypes or its cheap form with
i* (Theorem 2.10). `--quick` takes the first 100 images, whose figures differ.
"""

import resource
import sys
import time

import numpy as np

from benchmarks import harness
from jaxnpc.bounds import lower_bounds
from jaxnpc.datasets import mnist
from jaxnpc.domains import Box
from jaxnpc.exact.generate import minimal_perturbation
from jaxnpc.prototypes import prototype_classifier

EXACT = {0.0: 96.9, 1.5: 52.1, 1.58: 47.3, 2.0: 23.7}
# Norm, radius, the paper's figure, which own prototypes.
BOUNDS = (
    (1, 1.0, 95.0, "all"),
    (np.inf, 0.1, 78.3, "nearest"),
    (np.inf, 0.1, 78.3, "all"),
)


def share(radius: np.ndarray, eps: float) -> float:
    return 100 * float(np.mean(radius > eps))


def main() -> None:
    args = harness.parser(__doc__).parse_args()
    report = harness.Report("npc_1nn")
    images = harness.data("mnist/train-images-idx3-ubyte.gz", "JAXNPC_DATA")
    if images is None:
        return
    train, test = (mnist(split, folder=images.parent) for split in ("train", "test"))
    classifier = prototype_classifier(train.points, train.labels)
    count = 100 if args.quick else len(test.points)
    x, y = test.points[:count], test.labels[:count]
    start = time.perf_counter()
    exact = minimal_perturbation(classifier, x, y, q=2, domain=Box())
    seconds = time.perf_counter() - start
    for eps, paper in EXACT.items():
        cra = share(exact.lower, eps)
        report.row(
            norm="l2",
            method="exact",
            eps=eps,
            cra=cra,
            ura=share(exact.upper, eps),
            paper=paper,
            exact_percent=100 * float(exact.exact.mean()),
            mean_radius=float(exact.lower.mean()),
            seconds=seconds,
        )
        key = "clean" if eps == 0 else f"cra_{eps:g}"
        report.summarise(key, cra, None if args.quick else f">= {paper - 0.1:.1f}", paper)
    for q, eps, paper, selection in BOUNDS:
        start = time.perf_counter()
        bounds = lower_bounds(
            classifier, x, y, q=q, domain=Box(), selection=selection, progress=True
        )
        report.row(
            norm=f"l{q}",
            method=f"bound, {selection} i",
            eps=eps,
            cra=share(bounds.radius, eps),
            paper=paper,
            mean_radius=float(bounds.radius.mean()),
            rivals_evaluated=float(bounds.evaluated.mean()),
            seconds=time.perf_counter() - start,
        )
        key = f"bound_l{q}_{eps}" + ("" if selection == "all" else f"_{selection}")
        report.summarise(key, share(bounds.radius, eps), paper=paper)
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
    report.summarise("peak_gib", peak, target="< 4")
    report.finish(args)


if __name__ == "__main__":
    main()
