"""How far each point can move before its class changes: the public function and its checks."""

import dataclasses
import math
import os
import time
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Bool, Float, Int
from tqdm import tqdm

from jaxnpc.certificate import Certificate, checksums, concatenate
from jaxnpc.checkpoints import Checkpoints, fingerprint
from jaxnpc.decisions import decide, left
from jaxnpc.distances import named_norm
from jaxnpc.domains import Box, Domain, Unbounded, check, check_inside
from jaxnpc.methods import EXACT, FALLBACK, METHODS, Found, Method
from jaxnpc.prototypes import (
    PrototypeClassifier,
    as_points,
    class_indices,
    distances,
    real_array,
)
from jaxnpc.witnesses import admissible, approach, gap, just_outside, pull_back

RESOLUTION = 1e-11
"""How close to a boundary float64 can tell on which side a point lies, relative to the distances to
the two prototypes that it separates."""

SAMPLE = 8
"""How many points' distances tell one callable distance from another."""


def certify(
    classifier: PrototypeClassifier,
    x: Float[ArrayLike, "n *d"],
    labels: Iterable[Hashable] | None = None,
    *,
    q: float = 2,
    domain: Domain | None = None,
    method: str = "exact",
    strict: bool = False,
    tolerance: float = 1e-6,
    chunk: int = 2048,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> Certificate:
    r"""Prove for each point how far it can move in the q-norm before its class changes.

    With method "exact" the minimal adversarial perturbation (paper, Theorem 2.6 and Algorithm 1),

    $$\epsilon(z) = \min_{j \notin I_y} \min_{x \in X} |x - z|_q
      \ \text{ s.t. }\ d(x, w_j) \le d(x, w_i)\ \forall i \in I_y$$

    Pairs of a distance and a norm for which that is not available get the bound of Lemma 2.9, as do
    points with p = q = infinity for which the search, in theory as hard as SAT, takes too long. The
    result says which method ran, and for each point whether bound and witness meet. A radius never
    exceeds the true one, whatever the method and rounding: it is proved in float64 on the host.

    Args:
        classifier: the classifier.
        x: n points inside the domain, (n, ...) of the prototypes' size. A point that is NaN or
            infinite gets radius 0.
        labels: their n class names: a point that is assigned to another class gets radius 0. By
            default the predicted classes.
        q: the norm of the threat model: 1, 2 or infinity. Ignored for a callable distance, whose
            radii are in that distance itself.
        domain: where inputs live: `Unbounded()`, the default, or `Box(lower, upper)`.
        method: "exact"; "bound", Lemma 2.9 over all prototypes in the domain; or "margin", the
            hypothesis margin of Theorem 2.4.
        strict: whether a method that is not available is an error; by default the next weaker one
            takes its place.
        tolerance: up to which relative gap of radius and witness a point counts as exact.
        chunk: how many points are worked off at a time; it bounds the memory.
        checkpoint: a folder where finished chunks are kept, to resume a run that was interrupted.
        progress: whether to show a progress bar.

    Returns:
        The certificate, one row a point.

    Raises:
        TypeError: if x, domain or labels are of a wrong type.
        ValueError: if an argument does not fit, naming it and the value: x empty, of a wrong shape
            or with a point outside the domain, labels of a wrong number or unknown, no such norm
            or method, a checkpoint of another run; with `strict` also a method not available.

    Example:
        >>> from jaxnpc.prototypes import prototype_classifier
        >>> pets = prototype_classifier([[0.0, 0.0], [4.0, 0.0]], ["cat", "dog"])
        >>> certificate = certify(pets, [[1.0, 0.0], [3.5, 1.0]], ["cat", "cat"])
        >>> certificate.radius.round(6).tolist(), certificate.exact.tolist()
        ([1.0, 0.0], [True, True])
        >>> certificate.witness[0].round(6).tolist()
        [2.0, 0.0]
    """
    domain = Unbounded() if domain is None else domain
    points = check_points(classifier, x, domain)
    domain = check(domain, math.prod(points.shape[1:]))
    plan = _plan(classifier, q, domain, method, strict, tolerance)
    label = None if labels is None else check_labels(classifier, labels, len(points))
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    done = Checkpoints(
        checkpoint,
        "" if checkpoint is None else _fingerprint(classifier, points, label, plan, chunk),
    )
    compute = METHODS[plan.method](classifier, plan.q, plan.domain)
    parts: list[Certificate] = []
    with tqdm(
        total=len(points), desc=f"certify l{plan.q:g}", unit="point", disable=not progress
    ) as bar:
        for start in range(0, len(points), chunk):
            rows = slice(start, start + chunk)
            part = done.load(start)
            if part is None:
                wanted = None if label is None else label[rows]
                # Distances that exceed float64 prove nothing, which is an answer.
                with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                    part = _certify_chunk(
                        classifier, points[rows], wanted, plan, compute, bar.update
                    )
                done.save(start, part)
            parts.append(part)
            # What was read, missed or of no class never was computed.
            bar.update(start + len(part) - bar.n)
    return dataclasses.replace(
        concatenate(parts), classes=classifier.classes, settings=plan.settings(classifier)
    )


def check_points(
    classifier: PrototypeClassifier, x: Float[ArrayLike, "n *d"], domain: Domain
) -> Float[np.ndarray, "n *d"]:
    """Points as the classifier takes them, float32 or float64 as given, inside the domain.

    Raises:
        TypeError: if they are no real numbers or the domain is none.
        ValueError: if there is none, their shape does not fit, or one lies outside the domain.
    """
    points = as_points(classifier, real_array(x, "x"))
    if not len(points):
        raise ValueError(f"x has shape {points.shape}: give at least one point")
    flat = points.reshape(len(points), -1)
    check_inside(flat, check(domain, flat.shape[1]))
    return points


def check_labels(
    classifier: PrototypeClassifier, labels: Iterable[Hashable], count: int
) -> Int[np.ndarray, " n"]:
    """The class indices of `count` labels.

    Raises:
        ValueError: if there are more or fewer, or one is none of the classes.
    """
    indices = class_indices(classifier, labels)
    if len(indices) != count:
        raise ValueError(f"labels has {len(indices)} entries for {count} points: give one each")
    return indices


def agrees(
    radius: Float[np.ndarray, " n"],
    upper: Float[np.ndarray, " n"],
    *,
    tolerance: float,
    scale: Float[np.ndarray, " n"],
) -> Bool[np.ndarray, " n"]:
    """Whether bounds meet: relatively, or as closely as float64 can tell at distances `scale`.

    Beside a positive radius that resolution excuses a gap of a hundredth at most.
    """
    resolved = np.where(np.isfinite(scale), RESOLUTION * scale, 0.0)
    excused = np.where(radius > 0, np.minimum(resolved, upper / 100), resolved)
    with np.errstate(invalid="ignore"):  # infinity - infinity
        close = upper - radius <= np.maximum(tolerance * upper, excused)
    return np.where(np.isinf(upper), np.isinf(radius), close)


def _fingerprint(
    classifier: PrototypeClassifier,
    points: Float[np.ndarray, "n *d"],
    label: Int[np.ndarray, " n"] | None,
    plan: "_Plan",
    chunk: int,
) -> str:
    ends = () if isinstance(plan.domain, Unbounded) else (plan.domain.lower, plan.domain.upper)
    # A function has no content to hash but what it returns.
    some = jnp.asarray(points[:SAMPLE])
    values = distances(classifier, some) if callable(classifier.distance) else None
    return fingerprint(
        classifier.prototypes,
        classifier.labels,
        classifier.metric,
        *(np.asarray(end, np.float64) for end in ends),
        points,
        label,
        values,
        {**plan.settings(classifier), "q": plan.q, "chunk": chunk},
    )


class _Plan(NamedTuple):
    """What to compute: the checked choices of a call."""

    q: float
    domain: Domain
    asked: str
    method: str
    tolerance: float

    def settings(self, classifier: PrototypeClassifier) -> dict[str, str]:
        distance, domain = classifier.distance, "unbounded"
        if isinstance(self.domain, Box):
            ends = (
                np.unique(np.asarray(v, np.float64)) for v in (self.domain.lower, self.domain.upper)
            )
            domain = "box " + " ".join(
                f"[{v[0]:g}, {v[-1]:g}]" if len(v) > 1 else f"{v[0]:g}" for v in ends
            )
        return {
            "distance": getattr(distance, "__name__", repr(distance)),
            "metric": "identity" if classifier.metric is None else "linear",
            "domain": domain,
            "method": self.method,
            "asked": self.asked,
            "tolerance": f"{self.tolerance:g}",
        }


def _plan(
    classifier: PrototypeClassifier,
    q: float,
    domain: Domain,
    method: str,
    strict: bool,
    tolerance: float,
) -> _Plan:
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance must be at least 0 and below 1, got {tolerance}")
    if callable(classifier.distance):
        q, available = math.nan, {"margin"}
    else:
        named_norm(q, "q")
        exact = (classifier.distance, q) in EXACT
        available = set(METHODS) if exact else set(METHODS) - {"exact"}
    if strict and method not in available:
        raise ValueError(
            f"method {method!r} is not available for distance {classifier.distance!r} and q={q!r} "
            f"(exact radii are for distance 2, and for distances 1 and inf with q=inf): use "
            f"{' or '.join(sorted(available))}, or strict=False to fall back to a bound"
        )
    ran = next(name for name in FALLBACK[FALLBACK.index(method) :] if name in available)
    return _Plan(float(q), domain, method, ran, tolerance)


def _certify_chunk(
    classifier: PrototypeClassifier,
    points: Float[np.ndarray, "n *d"],
    label: Int[np.ndarray, " n"] | None,
    plan: _Plan,
    compute: Method,
    progress: Callable[[int], object],
) -> Certificate:
    began, n = time.perf_counter(), len(points)
    wide = points.astype(np.float64)
    decision = decide(classifier, wide)
    label = decision.predicted if label is None else label
    radius, upper, witness = np.zeros(n), np.zeros(n), wide.copy()
    pair, subproblems = np.full((n, 2), -1), np.zeros(n, np.int64)
    # What is certainly missed, or no point of the space at all, has radius 0.
    rows = np.flatnonzero((decision.predicted >= 0) & ~left(decision, label))
    if len(rows):
        found = compute(points[rows], label[rows], progress)
        radius[rows], pair[rows], subproblems[rows] = found.radius, found.pair, found.subproblems
        upper[rows], witness[rows] = _witnesses(classifier, wide[rows], label[rows], found, plan)
    between = wide[:, None] - np.asarray(classifier.prototypes)[pair]
    scale = np.where(pair >= 0, np.abs(between).reshape(n, 2, -1).sum(axis=2), 0).sum(axis=1)
    exact = agrees(radius, upper, tolerance=plan.tolerance, scale=scale)
    return Certificate(
        radius=radius,
        upper=upper,
        exact=exact | (decision.predicted < 0),
        witness=witness,
        predicted=decision.predicted,
        label=label,
        pair=pair,
        subproblems=subproblems,
        seconds=np.full(n, (time.perf_counter() - began) / n),
        checksum=checksums(wide),
        classes=classifier.classes,
        q=plan.q,
    )


def _witnesses(
    classifier: PrototypeClassifier,
    points: Float[np.ndarray, "n *d"],
    label: Int[np.ndarray, " n"],
    found: Found,
    plan: _Plan,
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n *d"]]:
    """Distances of verified adversarial points, infinite where there is none, and the points."""
    upper, witness = np.full(len(points), np.inf), points.copy()
    rows = np.flatnonzero(np.isfinite(found.radius) & (found.rival >= 0))
    if callable(classifier.distance) or not len(rows):
        return upper, witness
    z, y, near, rivals = points[rows], label[rows], found.near[rows], found.rival[rows]
    outside, ok = just_outside(classifier, z, near, y, rivals, q=plan.q, domain=plan.domain)
    rows, z, y, outside, rivals = rows[ok], z[ok], y[ok], outside[ok], rivals[ok]
    size = gap(outside, z, plan.q)
    far = size > found.radius[rows] * (1 + plan.tolerance)
    if far.any():
        # Rounded to float32, a point on a wall may lie beyond it: the segment must not.
        inside = admissible(z[far], plan.domain)
        outside[far] = pull_back(classifier, inside, outside[far], y[far], rivals=rivals[far])
        size = gap(outside, z, plan.q)
        if classifier.distance == math.inf:
            near, ok = approach(classifier, inside, y[far], rivals[far], domain=plan.domain)
            nearer = ok & (gap(near, z[far], plan.q) < size[far])
            outside[np.flatnonzero(far)[nearer]] = near[nearer]
            size = gap(outside, z, plan.q)
    upper[rows], witness[rows] = size, outside
    return upper, witness
