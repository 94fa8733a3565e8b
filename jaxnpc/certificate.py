"""What certification gives: one row a point, robust accuracies, and files of it."""

import csv
import json
import os
import zipfile
import zlib
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from jaxmpd.files import replacing

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Certificate:
    r"""How far each of n points can move before the class changes, proved.

    For a point z of label y the true radius is

    $$\epsilon(z) = \inf \{ |x - z|_q : x \in X,\ x \text{ is not assigned to } y \}$$

    and `radius <= epsilon(z) <= upper`. A tie between classes counts as a change, so the class is
    certain in the *open* ball of that radius. The radius is 0 where the label is missed or tied
    with another one and where the point is NaN or infinite, and infinite where no point of X leaves
    the class.

    Attributes:
        radius: the proved lower bound, in the units of the points.
        upper: the distance of the witness, rounded up; infinite where there is none.
        exact: whether the two agree, to the relative tolerance that `certify` was given.
        witness: a point of X that is not assigned to the label, as judged in float64; the point
            itself where the radius is 0 or no other is known.
        predicted: the class that the point is assigned to, as an index into `classes`; -1 where the
            point is NaN or infinite.
        label: the class that is certified, likewise.
        pair: the prototypes (i, j), own and rival, that give the bound; -1 where there are none.
        subproblems: how many optimisation problems were solved for the point.
        seconds: the time of the point's chunk, shared evenly among its points.
        checksum: of each point's coordinates, by which certificates of other points are told.
        classes: the names of the classes.
        q: the norm of the threat model.
        settings: the other choices that were made, in words, for the record.

    Example:
        >>> from jaxnpc.certificate import Certificate, checksums, robust_accuracy
        >>> two = Certificate(
        ...     radius=np.array([0.0, 1.5]), upper=np.array([0.0, 1.5]),
        ...     exact=np.array([True, True]), witness=np.zeros((2, 1)),
        ...     label=np.array([0, 0]), predicted=np.array([1, 0]),
        ...     pair=np.array([[-1, -1], [0, 1]]), subproblems=np.array([0, 1]),
        ...     seconds=np.zeros(2), checksum=checksums(np.zeros((2, 1))),
        ...     classes=("a", "b"), q=2.0,
        ... )
        >>> len(two), two.clean_accuracy, robust_accuracy(two, [0.5, 1.5]).tolist()
        (2, 0.5, [0.5, 0.0])
    """

    radius: Float[np.ndarray, " n"]
    upper: Float[np.ndarray, " n"]
    exact: Bool[np.ndarray, " n"]
    witness: Float[np.ndarray, "n d"]
    label: Int[np.ndarray, " n"]
    predicted: Int[np.ndarray, " n"]
    pair: Int[np.ndarray, "n 2"]
    subproblems: Int[np.ndarray, " n"]
    seconds: Float[np.ndarray, " n"]
    checksum: Int[np.ndarray, " n"]
    classes: tuple[Hashable, ...]
    q: float
    settings: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.radius)

    @property
    def clean_accuracy(self) -> float:
        """The share of points that are assigned to their label."""
        return float(np.mean((self.predicted == self.label) & (self.predicted >= 0)))

    def take(self, rows: Int[np.ndarray, " r"]) -> "Certificate":
        """The certificate of some of the points, in the order given."""
        return replace(self, **{name: getattr(self, name)[rows] for name in _ARRAYS})

    def name(self, index: int) -> Hashable:
        """The name of a class by its index; None for -1."""
        return self.classes[index] if index >= 0 else None


def checksums(points: Float[np.ndarray, "n *d"]) -> Int[np.ndarray, " n"]:
    """A number for each point that other coordinates hardly share (CRC-32 of them in float64).

    Example:
        >>> checksums(np.array([[0.0, 1.0], [-0.0, 1.0], [1.0, 0.0]])).tolist()
        [1315014613, 1315014613, 226478287]
    """
    wide = np.asarray(points, "<f8") + 0.0  # -0 + 0 is 0
    return np.array([zlib.crc32(row.tobytes()) for row in wide], np.uint32)


def robust_accuracy(
    certificate: Certificate,
    radii: float | Sequence[float] | Float[np.ndarray, "*r"],
    *,
    upper: bool = False,
) -> Float[np.ndarray, "*r"]:
    """The share of points whose class no perturbation up to these radii changes.

    Counts the points with radius > eps, strictly: a certificate holds in the open ball, and a
    perturbation of exactly the radius may reach a tie, which counts as a change.

    Args:
        certificate: of n points.
        radii: one or more sizes eps of the perturbation, at least 0; eps = 0 gives the share of
            points that are assigned to their label without a tie.
        upper: whether to count `upper` instead: no less than the true robust accuracy (URA),
            while the radius gives no more than it (CRA).

    Returns:
        The shares, in the shape of the radii.

    Raises:
        ValueError: if a radius is negative or NaN, or the certificate has no points.
    """
    eps = _radii(radii)
    if len(certificate) == 0:
        raise ValueError("certificate has no points: a share of none is not defined")
    size = np.sort(certificate.upper if upper else certificate.radius)
    # Without a witness, a point is not broken at any radius, an infinite one included.
    reached = size[np.isfinite(size)] if upper else size
    return (len(size) - np.searchsorted(reached, eps, side="right")) / len(size)


class Union(NamedTuple):
    """Robustness against several threat models at once.

    Attributes:
        robust: whether each point is proved robust in every norm.
        broken: whether the witness of some norm lies within its radius.
    """

    robust: Bool[np.ndarray, " n"]
    broken: Bool[np.ndarray, " n"]

    @property
    def exact(self) -> bool:
        """Whether each point is known to be one or the other."""
        return bool(np.all(self.robust | self.broken))

    @property
    def certified(self) -> float:
        """The share of points that are proved robust: no more than the true one."""
        return float(np.mean(self.robust))

    @property
    def upper(self) -> float:
        """The share of points that are not known to be broken: no less than the true one."""
        return float(1 - np.mean(self.broken))


def union(certificates: Sequence[Certificate], radii: Sequence[float]) -> Union:
    """Which points are robust in every one of several norms.

    Args:
        certificates: of the same n points and labels, one a norm.
        radii: the radius for each of them.

    Returns:
        Per point whether it is robust in all, and whether it is broken in one.

    Raises:
        ValueError: if there is not one radius a certificate, or they are of different points,
            labels or predictions; naming the first that differs.
    """
    if len(certificates) != len(radii) or not certificates:
        raise ValueError(
            f"radii {list(radii)} must give one radius for each of {len(certificates)} certificates"
        )
    eps = _radii(radii)
    first = certificates[0]
    for k, other in enumerate(certificates):
        if len(other) != len(first):
            raise ValueError(
                f"certificates[{k}] is not of the same points as certificates[0]: it has "
                f"{len(other)} rows, not {len(first)}"
            )
        for name in ("checksum", "label", "predicted"):
            differ = np.flatnonzero(getattr(other, name) != getattr(first, name))
            if len(differ):
                raise ValueError(
                    f"certificates[{k}] is not of the same points as certificates[0]: row "
                    f"{differ[0]} has another {name}; certify one array of points in every norm"
                )
    robust = [c.radius > e for c, e in zip(certificates, eps, strict=True)]
    broken = [np.isfinite(c.upper) & (c.upper <= e) for c, e in zip(certificates, eps, strict=True)]
    return Union(np.all(robust, axis=0), np.any(broken, axis=0))


def curve(
    certificate: Certificate, steps: int = 200, largest: float | None = None
) -> tuple[Float[np.ndarray, " r"], Float[np.ndarray, " r"], Float[np.ndarray, " r"]]:
    """Robust accuracy against the radius.

    Args:
        certificate: of n points.
        steps: the number of radii.
        largest: the last radius; by default the largest finite one in the certificate.

    Returns:
        Radii from 0, the certified accuracy at each, and its upper bound.
    """
    finite = certificate.upper[np.isfinite(certificate.upper)]
    end = largest if largest is not None else float(np.max(finite, initial=0.0)) or 1.0
    radii = np.linspace(0, end, steps)
    return (
        radii,
        robust_accuracy(certificate, radii),
        robust_accuracy(certificate, radii, upper=True),
    )


def concatenate(parts: Sequence[Certificate]) -> Certificate:
    """The certificates of several batches of points as one; all else as in the first."""
    arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _ARRAYS}
    return replace(parts[0], **arrays)


def summary(certificate: Certificate, radii: Sequence[float] = ()) -> dict[str, Any]:
    """The main figures, ready for JSON (which has no infinity: it is written as a string).

    Args:
        certificate: of n points.
        radii: where to give robust accuracies.

    Returns:
        Settings, counts, medians and, per radius, the certified accuracy and its upper bound.
    """
    return {
        "norm": json_number(certificate.q),
        **certificate.settings,
        "points": len(certificate),
        "clean_accuracy": certificate.clean_accuracy,
        "exact_share": float(np.mean(certificate.exact)),
        "median_radius": json_number(float(np.median(certificate.radius))),
        "median_upper": json_number(float(np.median(certificate.upper))),
        "subproblems": int(certificate.subproblems.sum()),
        "seconds": float(certificate.seconds.sum()),
        "robust_accuracy": [
            {
                "radius": json_number(float(eps)),
                "certified": float(robust_accuracy(certificate, eps)),
                "upper": float(robust_accuracy(certificate, eps, upper=True)),
            }
            for eps in radii
        ],
    }


def union_summary(certificates: Sequence[Certificate], radii: Sequence[float]) -> dict[str, Any]:
    """The figures of a [`union`][jaxnpc.certificate.union] of norms, ready for JSON.

    Args:
        certificates: of the same n points, one a norm.
        radii: the radius for each of them.

    Returns:
        The radii by norm, the certified accuracy and its upper bound, and whether they are exact.
    """
    both = union(certificates, radii)
    return {
        "radii": {
            f"{c.q:g}": json_number(float(eps)) for c, eps in zip(certificates, radii, strict=True)
        },
        "certified": both.certified,
        "upper": both.upper,
        "exact": both.exact,
    }


def json_number(value: float) -> float | str:
    """A number as JSON can hold it: infinities and NaN, which it lacks, as strings."""
    return value if np.isfinite(value) else str(value)


def save_json(certificate: Certificate, path: PathLike, radii: Sequence[float] = ()) -> None:
    """Write the [`summary`][jaxnpc.certificate.summary] as JSON."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(summary(certificate, radii), indent=2) + "\n")


def rows(certificate: Certificate) -> Iterator[dict[str, Any]]:
    """One mapping a point, for a data frame or a CSV file."""
    for k in range(len(certificate)):
        yield {
            "point": k,
            "label": certificate.name(certificate.label[k]),
            "predicted": certificate.name(certificate.predicted[k]),
            "radius": float(certificate.radius[k]),
            "upper": float(certificate.upper[k]),
            "exact": bool(certificate.exact[k]),
            "prototype": int(certificate.pair[k, 0]),
            "rival": int(certificate.pair[k, 1]),
            "subproblems": int(certificate.subproblems[k]),
            "seconds": float(certificate.seconds[k]),
        }


def save_csv(certificate: Certificate, path: PathLike) -> None:
    """Write one row a point; the radii with all their digits."""
    with replacing(path) as temporary, temporary.open("w", newline="") as stream:
        table = list(rows(certificate))
        writer = csv.DictWriter(stream, fieldnames=list(table[0]))
        writer.writeheader()
        writer.writerows(table)


def name_array(names: Sequence[Hashable]) -> Shaped[np.ndarray, " C"]:
    """Class names as a plain array: as they are if all are numbers or all strings, else strings.

    Example:
        >>> name_array([1, 2]).tolist(), name_array([1, "dog"]).tolist()
        ([1, 2], ['1', 'dog'])
    """
    strings = all(isinstance(name, str) for name in names)
    numbers = all(isinstance(name, int | float | np.number) for name in names)
    return np.array(names if strings or numbers else [str(name) for name in names])


def save_npz(certificate: Certificate, path: PathLike) -> None:
    """Write everything, witnesses included, for [`load_npz`][jaxnpc.certificate.load_npz].

    Class names that are neither all numbers nor all strings are written as strings.
    """
    with replacing(path) as temporary:
        np.savez_compressed(
            temporary,
            allow_pickle=False,
            classes=name_array(certificate.classes),
            q=np.float64(certificate.q),
            settings=json.dumps(certificate.settings),
            **{name: getattr(certificate, name) for name in _ARRAYS},
        )


def load_npz(path: PathLike) -> Certificate:
    """Read what [`save_npz`][jaxnpc.certificate.save_npz] wrote.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it holds no certificate.
    """
    wanted = {*_ARRAYS, "classes", "q", "settings"}
    try:
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as archive:
            found = {name: archive[name] for name in sorted(wanted.intersection(archive.files))}
    except (AttributeError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is no certificate, or a damaged one: {error}") from error
    if missing := sorted(wanted - set(found)):
        raise ValueError(f"{path} is no certificate: it lacks {', '.join(missing)}")
    return Certificate(
        **{name: found[name] for name in _ARRAYS},
        classes=tuple(found["classes"].tolist()),
        q=float(found["q"]),
        settings=json.loads(str(found["settings"])),
    )


def _radii(radii: float | Sequence[float] | Float[np.ndarray, "*r"]) -> Float[np.ndarray, "*r"]:
    eps = np.asarray(radii, float)
    if not np.all(eps >= 0):
        raise ValueError(f"radii must be at least 0, got {radii}")
    return eps


_ARRAYS = tuple(f.name for f in fields(Certificate) if f.name not in ("classes", "q", "settings"))
