"""Are pair radii right, and never overstated? Every (p, q, domain) against independent answers.

Small random triples with every degeneracy: shared coordinates, equal prototypes, z on a prototype,
on the boundary or midway, prototypes outside the box. `rho` is compared in float64 with LP, QP or
MILP solutions of the problem as it is defined; `prove` with exact rational arithmetic, for float32
and for float64 inputs, at ordinary, tiny and huge scales. The relaxed cells (1, 1) and (1, 2) are
compared with the true minimum in 10 to 30 dimensions. Last, exact radii and bounds over all
prototypes of small classifiers.
"""

import functools
import itertools
import math
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import harness, pair_references
from jaxnpc.bounds import lower_bounds
from jaxnpc.domains import Box, Unbounded
from jaxnpc.exact.generate import minimal_perturbation
from jaxnpc.pairwise.table import is_exact, prove, rho
from jaxnpc.prototypes import prototype_classifier

INF = math.inf
NORMS = (1, 2, INF)
TOLERANCE = 1e-6
# Below this size a difference counts absolutely, as solvers work to absolute tolerances.
FLOOR = 1e-3
SCALES = {
    np.float32: (1.0, 2.0**-140, 2.0**120),
    np.float64: (1.0, 2.0**-1040, 2.0**600),
}
Cell = tuple[float, float, tuple[float, float] | None]


def domain(box: tuple[float, float] | None) -> Box | Unbounded:
    return Unbounded() if box is None else Box(*box)


def solved(cell: Cell, triple: tuple[np.ndarray, ...]) -> float:
    return pair_references.solver(*triple, *cell)


def judged(job: tuple[Cell, tuple[np.ndarray, ...], float, float]) -> tuple[bool, float]:
    """Whether a proved radius is overstated, and the true one in units of the scale."""
    cell, triple, radius, scale = job
    truth, q = pair_references.rational(*triple, *cell), cell[1]
    over = pair_references.overstated(radius, truth, q)
    if truth == INF:
        return over, INF
    unit = Fraction(scale)
    return over, math.sqrt(truth / unit**2) if q == 2 else float(truth / unit)


def gap(value: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """The relative difference; 0 where both are infinite."""
    with np.errstate(invalid="ignore"):
        found = np.abs(value - truth) / np.maximum(truth, FLOOR)
    return np.where(value == truth, 0.0, np.nan_to_num(found, nan=INF))


def bad_witnesses(cell: Cell, triple: tuple[np.ndarray, ...], radius: Any, witness: Any) -> int:
    """How many witnesses are inadmissible, do not flip the pair, or are at a wrong distance."""
    p, q, box = cell
    z, w_i, w_j = triple
    shown = np.isfinite(radius) & (radius > 0)
    away = np.linalg.norm(witness - z, q, axis=1)
    near, far = (np.linalg.norm(witness - w, p, axis=1) for w in (w_j, w_i))
    bad = (near > far + 1e-9) | (away < radius - 1e-9)
    if is_exact(p, q, domain(box)):
        bad |= away > radius + 1e-9
    if box is not None:
        bad |= np.any((witness < box[0]) | (witness > box[1]), axis=1)
    return int(np.sum(bad & shown))


def check_cell(cell: Cell, n: int, sizes: tuple[int, ...], pool: ProcessPoolExecutor) -> dict:
    """All comparisons of one cell."""
    p, q, box = cell
    exact = is_exact(p, q, domain(box))
    found = dict.fromkeys(("instances", "wrong", "above", "witnesses", "overstated"), 0)
    worst = short = 0.0
    kernel = jax.vmap(functools.partial(rho, p=p, q=q, domain=domain(box)))
    for d in sizes:
        rng = np.random.default_rng([d, *(99 if v == INF else int(v) for v in (p, q)), box is None])
        triples = pair_references.sample(rng, math.ceil(n / len(sizes)), d, p)
        rows = list(zip(*triples, strict=True))
        truth = np.array(list(pool.map(functools.partial(solved, cell), rows, chunksize=16)))
        with jax.enable_x64(True):
            radius, witness = map(np.asarray, jax.jit(kernel)(*map(jnp.asarray, triples)))
        found["instances"] += len(rows)
        found["above"] += int(np.sum((radius > truth) & (gap(radius, truth) > 1e-9)))
        found["witnesses"] += bad_witnesses(cell, triples, radius, witness)
        if exact:
            worst = max(worst, gap(radius, truth).max())
            found["wrong"] += int(np.sum(gap(radius, truth) > TOLERANCE))

        for dtype, scales in SCALES.items():
            for scale in scales:
                # A quarter of the instances at each unusual scale.
                some = slice(None) if scale == 1 else slice(0, len(rows), 4)
                scaled = [(x[some] * scale).astype(dtype) for x in triples]
                walls = None if box is None else (0.0, scale)
                proved = prove(*scaled, p=p, q=q, domain=domain(walls))
                jobs = zip(
                    itertools.repeat((p, q, walls)),
                    zip(*scaled, strict=True),
                    proved,
                    itertools.repeat(scale),
                    strict=False,
                )
                over, roots = map(np.array, zip(*pool.map(judged, jobs, chunksize=16), strict=True))
                found["overstated"] += int(over.sum())
                if exact and (scale == 1 or dtype is np.float32):
                    # Beyond float32's range squares may over- or underflow, and less is proved.
                    short = max(short, gap(proved / scale, roots).max())
                    found["wrong"] += int(np.sum(gap(proved / scale, roots) > TOLERANCE))
                if dtype is np.float64 and scale == 1:
                    # The two references keep watch over each other.
                    found["wrong"] += int(np.sum(gap(truth, roots) > TOLERANCE))
    names = {"p": str(p), "q": str(q), "domain": "R^d" if box is None else "box"}
    gaps = {"worst gap": worst, "proof gap": short} if exact else {"worst gap": None}
    return {**names, **found, **gaps}


def relaxed_truth(cell: Cell, triple: tuple[np.ndarray, ...]) -> float:
    if cell[1] == 2:
        return pair_references.moved_sets(*triple, cell[2])
    return pair_references.solver(*triple, *cell)


def check_relaxed(
    q: float, n: int, sizes: tuple[int, ...], pool: ProcessPoolExecutor
) -> list[dict]:
    """Ratio of the proved bound of (1, q) to the true minimum."""
    rows = []
    for d, box in itertools.product(sizes, (None, (0.0, 1.0))):
        rng = np.random.default_rng([d, int(q), box is None, 7])
        z, w_i, w_j = rng.random((3, n, d))
        swap = (np.abs(z - w_i).sum(1) > np.abs(z - w_j).sum(1))[:, None]
        triples = z, np.where(swap, w_j, w_i), np.where(swap, w_i, w_j)
        job = functools.partial(relaxed_truth, (1, q, box))
        truth = np.array(list(pool.map(job, zip(*triples, strict=True), chunksize=4)))
        bound = prove(*triples, p=1, q=q, domain=domain(box))
        ratio = (bound / truth)[np.isfinite(truth) & (truth > 0)]
        rows.append(
            {
                "p": "1",
                "q": str(q),
                "domain": "R^d" if box is None else "box",
                "d": d,
                "instances": len(ratio),
                "mean ratio": float(ratio.mean()),
                "least ratio": float(ratio.min()),
                "above": int(np.sum(ratio > 1 + 1e-9)),
            }
        )
    return rows


def whole(cell: Cell, job: tuple[np.ndarray, np.ndarray, np.ndarray]) -> float:
    point, own, rivals = job
    return pair_references.classifier(point, own, rivals, *cell)


def check_classifier(cell: Cell, n: int, pool: ProcessPoolExecutor) -> dict:
    """Exact radii and bounds over all prototypes of small classifiers."""
    p, q, box = cell
    found = dict.fromkeys(("instances", "wrong", "above"), 0)
    worst = 0.0
    for seed, k in enumerate((1, 2, 3)):
        rng = np.random.default_rng([seed, *(99 if v == INF else int(v) for v in (p, q))])
        # As many prototypes a class as k; half of them outside the box, some coordinates shared.
        w = rng.uniform(-0.5, 1.5, (2 * k, 2))
        w[k:] = np.where(rng.random((k, 2)) < 0.3, w[:k], w[k:])
        # The classifier keeps float32 prototypes: give it such.
        w = w.astype(np.float32).astype(np.float64)
        labels = np.repeat([0, 1], k)
        model = prototype_classifier(w, labels, distance=p)
        z = rng.random((math.ceil(n / 3), 2))
        z[::5] = np.round(z[::5])
        nearest = np.linalg.norm(z[:, None] - w, p, axis=2).argmin(axis=1)
        own = labels[nearest]
        jobs = [(x, w[labels == c], w[labels != c]) for x, c in zip(z, own, strict=True)]
        truth = np.array(list(pool.map(functools.partial(whole, cell), jobs, chunksize=8)))
        exact = minimal_perturbation(model, z, own, q=q, domain=domain(box)).lower
        bound = lower_bounds(model, z, own, q=q, domain=domain(box)).radius
        found["instances"] += len(z)
        worst = max(worst, gap(exact, truth).max())
        found["wrong"] += int(np.sum(gap(exact, truth) > TOLERANCE))
        for radius in (exact, bound):
            found["above"] += int(np.sum((radius > truth) & (gap(radius, truth) > 1e-9)))
    names = {"classifier p": str(p), "q": str(q), "domain": "R^d" if box is None else "box"}
    return {**names, **found, "worst gap": worst}


def main() -> None:
    args = harness.parser(__doc__).parse_args()
    report = harness.Report("npc_soundness")
    n, sizes = (200, (3,)) if args.quick else (2001, (2, 3, 4))
    cells = list(itertools.product(NORMS, NORMS, (None, (0.0, 1.0))))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        rows = [check_cell(cell, n, sizes, pool) for cell in cells]
        # Enumerating the moved coordinates limits (1, 2) to 10 dimensions.
        ratios = {
            1: check_relaxed(1, 10 if args.quick else 100, (10, 20, 30), pool),
            2: check_relaxed(2, 10 if args.quick else 100, (10,), pool),
        }
        n_whole = 30 if args.quick else 300
        wholes = [
            check_classifier((p, q, box), n_whole, pool)
            for p, q in ((2, 1), (2, 2), (2, INF), (1, INF))
            for box in (None, (0.0, 1.0))
        ]
    for row in (*rows, *ratios[1], *ratios[2], *wholes):
        report.row(**row)
    faults = ("wrong", "above", "witnesses", "overstated")
    violations = sum(row[fault] for row in rows for fault in faults)
    violations += sum(row["above"] for q in ratios for row in ratios[q])
    violations += sum(row["wrong"] + row["above"] for row in wholes)
    report.summarise("violations", violations, target="== 0")
    report.summarise(
        "instances",
        min(row["instances"] for row in rows),
        target=f">= {200 if args.quick else 2000}",
    )
    report.summarise(
        "worst_gap_exact",
        max(
            gap or 0.0 for row in rows + wholes for gap in (row["worst gap"], row.get("proof gap"))
        ),
        target=f"<= {TOLERANCE}",
    )
    for q, key in ((1, "mean_ratio_11"), (2, "mean_ratio_12")):
        report.summarise(
            key, float(np.mean([row["mean ratio"] for row in ratios[q]])), target=">= 0.99"
        )
    report.finish(args)


if __name__ == "__main__":
    main()
