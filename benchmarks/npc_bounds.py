"""How good the bounds are, and what they cost (paper, Tables 3 and 4).

The l2 model: 400 prototypes a class on MNIST cropped to 26 x 26, in the box [0, 1]. For each threat
model the mean over the test set of Theorem 2.4, of Lemma 2.9 on R^d and in the box and of the exact
radius, misclassified points counting 0; the share of correctly classified points whose radius the
tightness check of Lemma 2.9 settles, by the pair that Algorithm 1 looks at (i*) and by that of the
full min-max; the seconds for all points. Then the published linf model likewise. The paper's
figures are of its own models. `--quick` takes the first 300 images.
"""

import time
from collections.abc import Callable

import numpy as np

from benchmarks import harness
from jaxnpc.bounds import Bounds, lower_bounds, margin_bounds
from jaxnpc.datasets import crop, mnist
from jaxnpc.domains import Box, Unbounded
from jaxnpc.exact.generate import minimal_perturbation
from jaxnpc.prototypes import prototype_classifier

# Theorem 2.4, Lemma 2.9 on R^d and in the box, exact; directly solved in percent; seconds.
PAPER = {
    1: {"theorem_2.4": None, "lemma_Rd": 9.71, "lemma_box": 11.77, "exact": 12.11},
    2: {"theorem_2.4": 0.39, "lemma_Rd": 1.86, "lemma_box": 1.96, "exact": 1.99},
    np.inf: {"theorem_2.4": None, "lemma_Rd": 0.14, "lemma_box": 0.16, "exact": 0.17},
}
PAPER_DIRECT = {1: 43.8, 2: 32.6, np.inf: 21.3}
PAPER_SECONDS = {1: 188.0, 2: 33.0, np.inf: 131.0}
PAPER_LINF = {"theorem_2.4": 0.3545, "lemma_Rd": 0.3560, "lemma_box": 0.3616}


def timed(compute: Callable[[], Bounds]) -> tuple[Bounds, float]:
    start = time.perf_counter()
    return compute(), time.perf_counter() - start


def tight_percent(bounds: Bounds) -> float:
    return 100 * float(bounds.tight[bounds.radius > 0].mean())


def main() -> None:
    args = harness.parser(__doc__).parse_args()
    report = harness.Report("npc_bounds")
    images = harness.data("mnist/t10k-images-idx3-ubyte.gz", "JAXNPC_DATA")
    model = harness.data("mnist/l2_npc_400ppc_26x26.npz", "JAXNPC_DATA")
    published = harness.data("glvq/mnist_linf_glvq_128ppc.npz", "JAXNPC_DATA")
    if images is None or model is None or published is None:
        return
    full = mnist("test", folder=images.parent)
    test = crop(full, 1)
    count = 300 if args.quick else len(test.points)
    x, y = test.points[:count], test.labels[:count]
    with np.load(model) as archive:
        classifier = prototype_classifier(archive["prototypes"], archive["labels"])
    margin = margin_bounds(classifier, x, y).radius.mean()
    for q, paper in PAPER.items():
        found = {
            (name, selection): timed(
                lambda q=q, d=domain, s=selection: lower_bounds(
                    classifier, x, y, q=q, domain=d, selection=s
                )
            )
            for name, domain in (("lemma_Rd", Unbounded()), ("lemma_box", Box()))
            for selection in ("nearest", "all")
        }
        start = time.perf_counter()
        exact = minimal_perturbation(classifier, x, y, q=q, domain=Box())
        means = {
            "theorem_2.4": float(margin) if q == 2 else None,
            "lemma_Rd": float(found["lemma_Rd", "all"][0].radius.mean()),
            "lemma_box": float(found["lemma_box", "all"][0].radius.mean()),
            "exact": float(exact.lower.mean()),
        }
        exact_seconds = time.perf_counter() - start
        report.row(threat=f"l{q}", model="l2, 4000 prototypes", **means)
        report.row(threat=f"l{q}", model="paper's l2-PNPC", **paper)
        for (name, selection), (bounds, seconds) in found.items():
            boxed = name == "lemma_box"
            report.row(
                threat=f"l{q}",
                bound=name,
                selection=selection,
                mean=float(bounds.radius.mean()),
                direct_percent=tight_percent(bounds),
                paper_direct=PAPER_DIRECT[q] if boxed and selection == "nearest" else None,
                rivals_evaluated=float(bounds.evaluated.mean()),
                seconds=seconds,
                paper_seconds=PAPER_SECONDS[q] if boxed and selection == "nearest" else None,
                exact_seconds=exact_seconds,
            )
        bounds, seconds = found["lemma_box", "nearest"]
        full_bounds = found["lemma_box", "all"]
        for key, value, reference in (
            ("box_mean", means["lemma_box"], paper["lemma_box"]),
            ("direct_percent", tight_percent(bounds), PAPER_DIRECT[q]),
            ("direct_percent_all", tight_percent(full_bounds[0]), None),
        ):
            report.summarise(f"l{q}_{key}", value, paper=reference)
        target = None if args.quick else f"<= {PAPER_SECONDS[q]:.0f}"
        report.summarise(f"l{q}_seconds", seconds, target, PAPER_SECONDS[q])
        report.summarise(f"l{q}_seconds_all", full_bounds[1])
    with np.load(published) as archive:
        prototypes = archive["prototypes"]
    classifier = prototype_classifier(
        prototypes, np.arange(len(prototypes)) // 128, distance=np.inf
    )
    x = full.points[:count]
    linf = {"theorem_2.4": float(margin_bounds(classifier, x, y).radius.mean())}
    for name, domain in (("lemma_Rd", Unbounded()), ("lemma_box", Box())):
        bounds, seconds = timed(lambda d=domain: lower_bounds(classifier, x, y, q=np.inf, domain=d))
        linf[name] = float(bounds.radius.mean())
        report.summarise(f"linf_model_{name}_seconds", seconds)
    report.row(model="published linf-GLVQ", **linf)
    report.row(model="paper's linf-PNPC", **PAPER_LINF)
    for name, value in linf.items():
        report.summarise(f"linf_model_{name}", value, paper=PAPER_LINF[name])
    report.finish(args)


if __name__ == "__main__":
    main()
