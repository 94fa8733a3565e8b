"""Exact minimal perturbations against generic solvers (paper, Table 4), MNIST in the box.

The l2 model of 400 prototypes a class on the first 200 test images, cropped to 26 x 26. Peers: DAQP
and PIQP with all constraints, HiGHS (through SciPy) with all constraints and with constraint
generation. They get the paper's pruning for nothing: distances and dual norms of all pairs are
prepared outside their clock, rivals come sorted by the bound of the closest own prototype, and one
whose best bound over all own prototypes is no less than the radius found is dropped. What we need
of the prototypes alone is prepared outside our clock too; a row of its own has it inside. Proofs
are always inside. Peers too slow for 200 images get some of them, spread evenly; their times are a
point. Then the whole test set.
"""

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import daqp
import numpy as np
import piqp
from scipy.optimize import linprog
from scipy.sparse import csr_matrix, eye_array, hstack, vstack

from benchmarks import harness
from jaxnpc.datasets import crop, mnist
from jaxnpc.distances import DUAL, pairwise
from jaxnpc.domains import Box
from jaxnpc.exact.generate import ExactRadius, minimal_perturbation, prepare
from jaxnpc.prototypes import PrototypeClassifier, prototype_classifier
from jaxnpc.readers import read_npz

MODEL = "mnist/l2_npc_400ppc_26x26.npz"
BOX = Box(0.0, 1.0)
POINTS = 200
UNPREPARED = "ours, preparation inside"
NAMES = {1: "l1", 2: "l2", math.inf: "linf"}
# How many points each peer gets of the 200, and in a quick run.
SHARES = {
    (2, "DAQP"): (40, 10),
    (2, "PIQP"): (10, 2),
    (1, "HiGHS generated"): (40, 10),
    (1, "HiGHS all"): (5, 2),
    (math.inf, "HiGHS generated"): (20, 4),
    (math.inf, "HiGHS all"): (1, 0),
}
TARGETS = {
    (2, "DAQP"): ("l2_vs_daqp", ">= 60"),
    (1, "HiGHS generated"): ("l1_vs_highs_cg", ">= 6"),
    (math.inf, "HiGHS generated"): ("linf_vs_highs_cg", ">= 30"),
    (1, "HiGHS all"): ("l1_vs_highs_all", ">= 80"),
    (math.inf, "HiGHS all"): ("linf_vs_highs_all", ">= 150"),
}
FULL = {2: "<= 30", 1: "<= 90", math.inf: "<= 90"}
# Constraint generation ends when the worst constraint is violated by no more.
TOLERANCE = 1e-9

# From rows, offsets and the room on either side to a step, or None where there is none.
Solver = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray | None]


class Pruning(NamedTuple):
    """What the peers know beforehand: prototypes, dual norms, and each point's distances."""

    w: np.ndarray
    labels: np.ndarray
    norms: np.ndarray
    points: np.ndarray
    y: np.ndarray
    squared: np.ndarray


def pruning(
    classifier: PrototypeClassifier, points: np.ndarray, y: np.ndarray, q: float
) -> Pruning:
    w = np.asarray(classifier.prototypes)
    norms = np.asarray(pairwise(w, w, DUAL[q]), float)
    w, points = w.astype(float), points.astype(float)
    squared = np.array([np.square(z - w).sum(axis=1) for z in points])
    return Pruning(w, np.asarray(classifier.labels), norms, points, y, squared)


def radius(known: Pruning, at: int, q: float, solver: Solver, generate: bool) -> float:
    """The minimal perturbation of one point (paper, Algorithm 1), by a generic solver."""
    z, distance = known.points[at], known.squared[at]
    own = np.flatnonzero(known.labels == known.y[at])
    rivals = np.flatnonzero(known.labels != known.y[at])
    closest = own[distance[own].argmin()]
    need = distance[rivals] - distance[closest]
    if need.min() <= 0:
        return 0.0
    cheap = need / (2 * known.norms[closest, rivals])
    best = math.inf
    for k in cheap.argsort():
        if cheap[k] >= best:
            break
        j = rivals[k]
        offsets = (distance[j] - distance[own]) / 2
        bounds = offsets / known.norms[j, own]
        if bounds.max() >= best:
            continue
        rows = known.w[j] - known.w[own]
        chosen = [int(bounds.argmax())] if generate else slice(None)
        while True:
            step = solver(rows[chosen], offsets[chosen], -z, 1 - z)
            size = math.inf if step is None else float(np.linalg.norm(step, ord=q))
            if size >= best:
                break
            lack = offsets - rows @ step
            if not generate or lack.max() <= TOLERANCE or lack.argmax() in chosen:
                best = size
                break
            chosen.append(int(lack.argmax()))
    return best


def by_daqp(v: np.ndarray, c: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray | None:
    k, d = v.shape
    upper, lower = np.append(high, np.full(k, 1e30)), np.append(low, c)
    sense = np.zeros(d + k, np.int32)
    x, _, status, _ = daqp.solve(np.eye(d), np.zeros(d), v, upper, lower, sense)
    return x if status > 0 else None


def by_piqp(v: np.ndarray, c: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray | None:
    solver = piqp.DenseSolver()
    solver.settings.eps_abs = solver.settings.eps_rel = 1e-8
    eye, zero = np.asfortranarray(np.eye(len(low))), np.zeros(len(low))
    above = np.full(len(c), np.inf)
    solver.setup(eye, zero, G=np.asfortranarray(v), h_l=c, h_u=above, x_l=low, x_u=high)
    return solver.result.x if solver.solve() == piqp.PIQP_SOLVED else None


def by_highs_l1(
    v: np.ndarray, c: np.ndarray, low: np.ndarray, high: np.ndarray
) -> np.ndarray | None:
    d = len(low)
    bounds = np.column_stack([np.zeros(2 * d), np.append(high, -low)])
    result = linprog(np.ones(2 * d), np.hstack([-v, v]), -c, bounds=bounds, method="highs")
    return result.x[:d] - result.x[d:] if result.status == 0 else None


def by_highs_linf(
    v: np.ndarray, c: np.ndarray, low: np.ndarray, high: np.ndarray
) -> np.ndarray | None:
    d = len(low)
    eye, one = eye_array(d), csr_matrix(np.ones((d, 1)))
    first = hstack([csr_matrix(-v), csr_matrix((len(c), 1))])
    a = vstack([first, hstack([eye, -one]), hstack([-eye, -one])], format="csr")
    b, cost = np.append(-c, np.zeros(2 * d)), np.append(np.zeros(d), 1)
    bounds = np.column_stack([np.append(low, 0), np.append(high, np.inf)])
    result = linprog(cost, a, b, bounds=bounds, method="highs")
    return result.x[:d] if result.status == 0 else None


PEERS: dict[float, dict[str, tuple[Solver, bool]]] = {
    2: {"DAQP": (by_daqp, False), "PIQP": (by_piqp, False)},
    1: {"HiGHS generated": (by_highs_l1, True), "HiGHS all": (by_highs_l1, False)},
    math.inf: {"HiGHS generated": (by_highs_linf, True), "HiGHS all": (by_highs_linf, False)},
}


def compare(
    report: harness.Report,
    classifier: PrototypeClassifier,
    points: np.ndarray,
    y: np.ndarray,
    q: float,
    quick: bool,
) -> float:
    """Time all solvers of one norm; the largest relative difference of the radii."""
    known = pruning(classifier, points, y, q)
    names = [name for name in PEERS[q] if SHARES[q, name][quick]]
    radii: dict[str, dict[int, float]] = {name: {} for name in names}
    found: list[ExactRadius] = []

    problem = prepare(classifier, q)

    def ours() -> None:
        found.append(minimal_perturbation(classifier, points, y, q=q, domain=BOX, problem=problem))

    def unprepared() -> None:
        minimal_perturbation(classifier, points, y, q=q, domain=BOX)

    def peer(name: str) -> None:
        solver, generate = PEERS[q][name]
        for at in chosen[name]:
            radii[name][at] = radius(known, at, q, solver, generate)

    chosen = {
        name: np.linspace(0, POINTS - 1, SHARES[q, name][quick]).astype(int) for name in names
    }
    runs = {name: (lambda name=name: peer(name)) for name in names}
    seconds = harness.alternate(
        {"ours": ours, UNPREPARED: unprepared, **runs}, repeats=1 if quick else 5
    )
    counts = {"ours": POINTS, UNPREPARED: POINTS, **{name: len(at) for name, at in chosen.items()}}
    each = {name: [s / counts[name] for s in times] for name, times in seconds.items()}
    middle = harness.medians(each, scale=1e-3)
    exact = found[-1]
    gap = float(np.nanmax((exact.upper - exact.lower) / np.maximum(exact.upper, 1e-12)))
    report.row(norm=NAMES[q], solver="ours", points=POINTS, ms_a_point=middle["ours"],
               ratio=1.0, target=None, largest_gap=gap)  # fmt: skip
    report.row(norm=NAMES[q], solver=UNPREPARED, points=POINTS, ms_a_point=middle[UNPREPARED],
               ratio=harness.ratio(each, UNPREPARED), target=None, largest_gap=gap)  # fmt: skip
    worst = 0.0
    for name in names:
        at = np.array(list(radii[name]))
        theirs = np.array(list(radii[name].values()))
        gap = float(np.max(np.abs(exact.upper[at] - theirs) / np.maximum(theirs, 1e-3)))
        key, target = TARGETS.get((q, name), (None, None))
        ratio = harness.ratio(each, name)
        report.row(norm=NAMES[q], solver=name, points=len(at), ms_a_point=middle[name],
                   ratio=ratio, target=target, largest_gap=gap)  # fmt: skip
        if key is not None:
            report.summarise(key, ratio, target)
        worst = max(worst, gap)
    return worst


def whole(
    report: harness.Report, classifier: PrototypeClassifier, points: np.ndarray, y: np.ndarray
) -> None:
    """Time the test set; of a quick run a tenth of it, and then tenfold."""
    for q in (2, 1, math.inf):
        start = time.perf_counter()
        found = minimal_perturbation(classifier, points, y, q=q, domain=BOX)
        seconds = (time.perf_counter() - start) * 10_000 / len(points)
        report.row(norm=NAMES[q], images=len(points), seconds_for_10000=seconds,
                   exact=float(found.exact.mean()), mean_radius=float(found.lower.mean()),
                   subproblems=float(found.subproblems.mean()))  # fmt: skip
        report.summarise(f"{NAMES[q]}_full_seconds", seconds, FULL[q])


def main() -> None:
    args = harness.parser(__doc__).parse_args()
    model = harness.data(MODEL, "JAXNPC_DATA")
    images = harness.data("mnist/t10k-images-idx3-ubyte.gz", "JAXNPC_DATA")
    if model is None or images is None:
        return
    prototypes = read_npz(model)
    classifier = prototype_classifier(prototypes.points, prototypes.labels.tolist())
    test = crop(mnist("test", folder=images.parent), 1)
    points, y = test.points, test.labels.astype(np.int32)
    report = harness.Report("npc_exact_speed")
    gaps = [
        compare(report, classifier, points[:POINTS], y[:POINTS], q, args.quick)
        for q in (2, 1, math.inf)
    ]
    report.summarise("max_radius_gap", max(gaps), "<= 1e-6")
    whole(report, classifier, points[:: 10 if args.quick else 1], y[:: 10 if args.quick else 1])
    report.finish(args)


if __name__ == "__main__":
    main()
