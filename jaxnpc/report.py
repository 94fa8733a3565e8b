"""Several classifiers certified on the same points: what a report says, as numbers and tables."""

import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import ArrayLike, Float, Int

from jaxnpc.attacks import attack, tighten
from jaxnpc.certificate import (
    Certificate,
    concatenate,
    curve,
    robust_accuracy,
    summary,
    union,
    union_summary,
)
from jaxnpc.certify import certify, check_labels, check_points
from jaxnpc.domains import Domain, Unbounded
from jaxnpc.prototypes import PrototypeClassifier


class Threat(NamedTuple):
    """A threat model of a report.

    Attributes:
        q: the norm of the perturbation.
        radii: where robust accuracies are given; the first one is that of the union of norms.
    """

    q: float
    radii: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """The norm in words: l1, l2 or linf."""
        return f"l{self.q:g}"


class AttackCount(NamedTuple):
    """What attacks came to.

    Attributes:
        points: how many points were attacked.
        nearer: for how many an attack found a nearer adversarial point than the certificate's.
        inside: for how many it lies inside the certified ball: none, unless there is an error.
    """

    points: int
    nearer: int
    inside: int


@dataclass(frozen=True)
class Comparison:
    """Certificates of several classifiers on the same points.

    Attributes:
        classifiers: by name.
        points: the n points that were certified.
        threats: the threat models.
        domain: where inputs live.
        certificates: by the classifier's name, then by the norm.
        attacked: likewise, where attacks ran.
    """

    classifiers: dict[str, PrototypeClassifier]
    points: Float[np.ndarray, "n d"]
    threats: tuple[Threat, ...]
    domain: Domain
    certificates: dict[str, dict[float, Certificate]]
    attacked: dict[str, dict[float, AttackCount]] = field(default_factory=dict)


def compare(
    classifiers: Mapping[str, PrototypeClassifier],
    points: Float[ArrayLike, "n d"],
    labels: Iterable[Hashable],
    threats: Sequence[Threat],
    *,
    domain: Domain | None = None,
    method: str = "exact",
    attacks: int = 0,
    seed: int = 0,
    chunk: int = 1024,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> Comparison:
    """Certify several classifiers on the same points, in each threat model.

    The upper bounds (URA) come from the certificates' witnesses, adversarial points verified in
    float64, and from attacks on the first points, if asked for.

    Args:
        classifiers: at least one, by name; 1-NN is one whose prototypes are the training set.
        points: n points inside the domain.
        labels: their class names, known to every classifier.
        threats: at least one, each of another norm.
        domain: where inputs live; by default all of R^d.
        method: as for `certify`.
        attacks: how many points are also attacked by foolbox (extra `attacks`), with the witnesses
            among the starts.
        seed: of the attacks.
        chunk: how many points are certified at a time.
        checkpoint: a folder where finished chunks are kept, to resume a run that was interrupted.
        progress: whether to show progress bars.

    Returns:
        The certificates, attacks counted in.

    Raises:
        ImportError: if attacks are asked for and foolbox is missing.
        ValueError: if there is no classifier or threat model, a norm is named twice, or an argument
            does not fit (see `certify`).

    Example:
        >>> from jaxnpc.prototypes import prototype_classifier
        >>> pets = prototype_classifier([[0.0, 0.0], [4.0, 0.0]], ["cat", "dog"])
        >>> found = compare({"pets": pets}, [[1.0, 0.0], [3.5, 1.0]], ["cat", "dog"],
        ...                 [Threat(2, (0.5, 1.2)), Threat(1, (1.0,))])
        >>> head, pets = accuracy_table(found)
        >>> dict(zip(head[2:6], pets[2:6]))
        {'clean': '100.00', 'l2 0.5 CRA': '100.00', 'l2 0.5 URA': '100.00', 'l2 1.2 CRA': '50.00'}
    """
    norms = [threat.q for threat in threats]
    if not classifiers or not norms:
        raise ValueError("classifiers and threats must name at least one each")
    if len(set(norms)) < len(norms):
        raise ValueError(f"threats names a norm twice: {', '.join(t.name for t in threats)}")
    if attacks < 0:
        raise ValueError(f"attacks must be at least 0, got {attacks}")
    domain, names = Unbounded() if domain is None else domain, list(labels)
    for name, classifier in classifiers.items():  # before the work on any of them
        try:
            check_labels(classifier, names, len(check_points(classifier, points, domain)))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    certificates: dict[str, dict[float, Certificate]] = {name: {} for name in classifiers}
    attacked: dict[str, dict[float, AttackCount]] = {name: {} for name in classifiers}
    for number, (name, classifier) in enumerate(classifiers.items()):
        for threat in threats:
            folder = None if checkpoint is None else Path(checkpoint) / f"{number}-{threat.name}"
            found = certify(
                classifier,
                points,
                names,
                q=threat.q,
                domain=domain,
                method=method,
                chunk=chunk,
                checkpoint=folder,
                progress=progress,
            )
            if attacks:
                found, attacked[name][threat.q] = _attack(
                    classifier, np.asarray(points), names, found, threat, domain, attacks, seed
                )
            certificates[name][threat.q] = found
    return Comparison(
        dict(classifiers), np.asarray(points), tuple(threats), domain, certificates, attacked
    )


def _attack(
    classifier: PrototypeClassifier,
    points: Float[np.ndarray, "n d"],
    labels: Sequence[Hashable],
    certificate: Certificate,
    threat: Threat,
    domain: Domain,
    count: int,
    seed: int,
) -> tuple[Certificate, AttackCount]:
    """The certificate after attacks on its first points."""
    head, rest = np.split(np.arange(len(certificate)), [count])
    before = certificate.take(head)
    found = attack(
        classifier,
        points[head],
        [labels[k] for k in head],
        q=threat.q,
        domain=domain,
        radii=[eps for eps in threat.radii if 0 < eps < np.inf],
        starts=before.witness,
        seed=seed,
    )
    after = tighten(before, found)
    counted = AttackCount(
        points=len(head),
        nearer=int(np.sum(found.distance < before.upper)),
        inside=int(np.sum(found.distance < before.radius)),
    )
    return concatenate([after, certificate.take(rest)]), counted


def union_radii(threats: Sequence[Threat]) -> list[float] | None:
    """The radii of the union of norms: the first of each, where there are several with radii."""
    if len(threats) < 2 or not all(threat.radii for threat in threats):
        return None
    return [threat.radii[0] for threat in threats]


def accuracy_table(comparison: Comparison) -> list[list[str]]:
    """Clean, certified (CRA) and upper bounds (URA) of robust accuracy, in percent.

    Args:
        comparison: of any number of classifiers.

    Returns:
        The head of the table, then one row a classifier.
    """
    threats, at = comparison.threats, union_radii(comparison.threats)
    head = ["classifier", "prototypes", "clean"]
    for threat in threats:
        for eps in threat.radii:
            head += [f"{threat.name} {eps:g} {bound}" for bound in ("CRA", "URA")]
    rows = [head + (["union CRA", "union URA"] if at is not None else [])]
    for name, certificates in comparison.certificates.items():
        shares = [next(iter(certificates.values())).clean_accuracy]
        for threat in threats:
            for eps in threat.radii:
                shares += [
                    float(robust_accuracy(certificates[threat.q], eps, upper=upper))
                    for upper in (False, True)
                ]
        if at is not None:
            both = union([certificates[threat.q] for threat in threats], at)
            shares += [both.certified, both.upper]
        count = len(comparison.classifiers[name].prototypes)
        rows.append([name, str(count), *(f"{100 * share:.2f}" for share in shares)])
    return rows


def certificate_table(comparison: Comparison) -> list[list[str]]:
    """How the radii were proved: method, share of exact ones, medians, time; in each norm."""
    rows = [["classifier", "norm", "method", "exact %", "median radius", "median upper", "seconds"]]
    for name, certificates in comparison.certificates.items():
        for threat in comparison.threats:
            c = certificates[threat.q]
            rows.append(
                [
                    name,
                    threat.name,
                    c.settings["method"],
                    f"{100 * np.mean(c.exact):.2f}",
                    f"{np.median(c.radius):.4g}",
                    f"{np.median(c.upper):.4g}",
                    f"{c.seconds.sum():.1f}",
                ]
            )
    return rows


def attack_table(comparison: Comparison) -> list[list[str]]:
    """What attacks found, where there were any: only the head without."""
    rows = [["classifier", "norm", "points", "nearer than the witness", "inside the certificate"]]
    for name, counts in comparison.attacked.items():
        rows += [
            [name, threat.name, *map(str, counts[threat.q])]
            for threat in comparison.threats
            if threat.q in counts
        ]
    return rows


def point_table(
    certificates: Mapping[float, Certificate],
    threats: Sequence[Threat],
    rows: Int[np.ndarray, " r"],
) -> list[list[str]]:
    """Some points one by one: classes, radii and the two prototypes that decide, in each norm.

    Args:
        certificates: of one classifier, by the norm.
        threats: the order of the norms.
        rows: which points.
    """
    head = ["point", "label", "predicted"]
    table = [head + [f"{t.name} {what}" for t in threats for what in ("radius", "pair")]]
    for k in map(int, rows):
        first = certificates[threats[0].q]
        cells = [str(k), str(first.name(first.label[k])), str(first.name(first.predicted[k]))]
        for threat in threats:
            c = certificates[threat.q]
            exact = c.exact[k] or not np.isfinite(c.upper[k])
            size = f"{c.radius[k]:.4g}" if exact else f"{c.radius[k]:.4g} to {c.upper[k]:.4g}"
            i, j = c.pair[k]
            cells += [size, f"{i}, {j}" if i >= 0 else "none"]
        table.append(cells)
    return table


def spread_points(certificate: Certificate, count: int) -> Int[np.ndarray, " r"]:
    """Points to show: correct ones with a witness, spread evenly from the least radius to the most.

    Args:
        certificate: of n points.
        count: how many, at most.

    Returns:
        Row numbers, in the order of the radii.
    """
    rows = np.flatnonzero((certificate.radius > 0) & np.isfinite(certificate.upper))
    if not len(rows) or count < 1:
        return rows[:0]
    rows = rows[np.argsort(certificate.radius[rows], kind="stable")]
    return rows[np.unique(np.linspace(0, len(rows) - 1, count).round().astype(int))]


def document(comparison: Comparison) -> dict[str, Any]:
    """All figures of the comparison, ready for JSON.

    Args:
        comparison: of any number of classifiers.

    Returns:
        Per classifier its size, distance, the [`summary`][jaxnpc.certificate.summary] of each norm
        with the certified curve, the attacks and the union of norms.
    """
    threats, at = comparison.threats, union_radii(comparison.threats)
    models: dict[str, Any] = {}
    for name, certificates in comparison.certificates.items():
        classifier = comparison.classifiers[name]
        counts = comparison.attacked.get(name, {})
        norms: dict[str, Any] = {}
        for threat in threats:
            c = certificates[threat.q]
            radii, lower, upper = (values.tolist() for values in curve(c))
            norms[f"{threat.q:g}"] = {
                **summary(c, threat.radii),
                "curve": {"radius": radii, "certified": lower, "upper": upper},
                "attacks": counts[threat.q]._asdict() if threat.q in counts else None,
            }
        in_order = [certificates[threat.q] for threat in threats]
        models[name] = {
            "prototypes": len(classifier.prototypes),
            "classes": [str(label) for label in classifier.classes],
            "norms": norms,
            "union": None if at is None else union_summary(in_order, at),
        }
    return {"points": len(comparison.points), "classifiers": models}
