"""The published linf-GLVQ prototypes on MNIST, certified by the box bound (paper, Table 7).

128 prototypes a class by Saralajew, Holdijk and Villmann (2020); the full test set in [0, 1]; the
bound of Lemma 2.9 in the box. Tie rule: a tie counts as a change of class, so a point is robust at
eps if its radius exceeds eps, and correct if no other class is as close. `--quick` takes the first
1,000 images, whose figures differ.
"""

import time

import numpy as np

from benchmarks import harness
from jaxnpc.bounds import lower_bounds
from jaxnpc.datasets import mnist
from jaxnpc.domains import Box
from jaxnpc.prototypes import prototype_classifier

PER_CLASS = 128
PAPER = {0.0: (96.34, 96.34), 0.1: (93.51, 93.52), 0.3: (80.75, 80.76), 0.4: (61.29, 61.29)}


def main() -> None:
    args = harness.parser(__doc__).parse_args()
    report = harness.Report("npc_glvq")
    weights = harness.data("glvq/mnist_linf_glvq_128ppc.npz", "JAXNPC_DATA")
    images = harness.data("mnist/t10k-images-idx3-ubyte.gz", "JAXNPC_DATA")
    if weights is None or images is None:
        return
    with np.load(weights) as archive:
        prototypes = archive["prototypes"]
    test = mnist("test", folder=images.parent)
    count = 1000 if args.quick else len(test.points)
    labels = np.arange(len(prototypes)) // PER_CLASS
    classifier = prototype_classifier(prototypes, labels, distance=np.inf)
    for selection in ("nearest", "all"):
        start = time.perf_counter()
        bounds = lower_bounds(
            classifier,
            test.points[:count],
            test.labels[:count],
            q=np.inf,
            domain=Box(),
            selection=selection,
        )
        seconds = time.perf_counter() - start
        cra = {eps: 100 * float(np.mean(bounds.radius > eps)) for eps in PAPER}
        report.row(
            selection=selection,
            images=count,
            **{f"cra_{eps}": value for eps, value in cra.items()},
            mean_radius=float(bounds.radius.mean()),
            tight_percent=100 * float(bounds.tight[bounds.radius > 0].mean()),
            rivals_evaluated=float(bounds.evaluated.mean()),
            seconds=seconds,
        )
    report.row(selection="paper", **{f"cra_{eps}": high for eps, (_, high) in PAPER.items()})
    for eps, (low, high) in PAPER.items():
        key = "clean" if eps == 0 else f"cra_{eps}"
        target = None if args.quick else f">= {low - 0.005:.3f}"
        report.summarise(key, cra[eps], target=target, paper=high)
    report.finish(args)


if __name__ == "__main__":
    main()
