"""Are certificates of embedded images sound? Hundreds of thousands of points within the radius.

Small products of spheres, of balls and of shells between them, prototypes around them, and points
of them certified by `certify_embedded`. Feasible points are drawn near each certified point and far
from it, with groups that vanish altogether as those of images do where no channel is active, and
those that lie within the radius must not be of another class. On two circles every point of a fine
grid of both angles is tried instead, and every vanished group. Classes of the points tried are
those of float64 with a margin for its rounding; nothing of the package is used for them.

- `violations`: points within the radius that are of another class.
- `closest`: the least distance of a point of another class over the radius: above 1, and the closer
  to it, the more the search could have found.
- `checked`: all points within a radius that were tried.
- `checked_zero`: those of them with a group that vanishes where the certified point's does not, or
  the other way round.
"""

import itertools
import math

import numpy as np

from benchmarks import harness
from jaxnpc.domains import SphereProduct
from jaxnpc.perceptual.certify import METHODS, certify_embedded
from jaxnpc.prototypes import PrototypeClassifier, prototype_classifier

BLOCKS = ((4, 3), (2, 5), (1, 8))
RADII = np.array([0.5, 0.7, 1.0])
CIRCLES = ((2, 2),)
KINDS = {"sphere": 1.0, "ball": 0.0, "shell": 0.6}
"""The least norm of a group that is not 0, as a share of the largest."""
ROOM = 1e-5
"""Of the domain for the rounding of float32 points."""
ROUNDING = 1e-12
DRAWS = 2000


def groups(blocks: tuple[tuple[int, int], ...]) -> list[tuple[slice, int]]:
    """The coordinates of each group, and its block."""
    found, start = [], 0
    for block, (count, size) in enumerate(blocks):
        for _ in range(count):
            found.append((slice(start, start + size), block))
            start += size
    return found


def members(
    rng: np.random.Generator, near: np.ndarray, space: SphereProduct, zero: float
) -> np.ndarray:
    """Points of the domain close to others: positive parts scaled to an admissible norm, or 0."""
    x = np.maximum(near, 0)
    for part, block in groups(space.blocks):
        inner, outer = space.inner[block], space.outer[block]
        size = np.linalg.norm(x[:, part], axis=1, keepdims=True)
        wanted = np.clip(size, inner, outer)
        x[:, part] *= np.divide(wanted, size, out=np.zeros_like(size), where=size > 0)
        x[rng.random(len(x)) < zero, part] = 0
    return x


def left(classifier: PrototypeClassifier, x: np.ndarray, label: int) -> np.ndarray:
    """Which points certainly are of another class."""
    w, labels = np.asarray(classifier.prototypes, np.float64), np.asarray(classifier.labels)
    squares = np.square(x[:, None] - w).sum(axis=2)
    own = squares[:, labels == label].min(axis=1)
    return squares[:, labels != label].min(axis=1) < own - ROUNDING


def instance(
    rng: np.random.Generator, kind: str, blocks: tuple[tuple[int, int], ...], radii: np.ndarray
) -> tuple[SphereProduct, PrototypeClassifier, np.ndarray, np.ndarray]:
    """A domain, a classifier of three classes, points and their labels."""
    space = SphereProduct(blocks, KINDS[kind] * radii * (1 - ROOM), radii * (1 + ROOM))
    d, labels = space.dimension, np.repeat(np.arange(3), 4)
    centres = rng.normal(size=(3, d)) + rng.choice([0.0, 0.4])

    def around(classes: np.ndarray, spread: float) -> np.ndarray:
        return centres[classes] + spread * rng.normal(size=(len(classes), d))

    w = members(rng, around(labels, 0.5), space, 0.1)
    w = w + rng.choice([0.0, 0.15]) * rng.normal(size=w.shape)
    y = rng.integers(0, 3, 40)
    z = members(rng, around(y, 0.7), space, 0.1).astype(np.float32)
    return space, prototype_classifier(w.astype(np.float32), labels), z, y


def sampled(
    rng: np.random.Generator, point: np.ndarray, radius: float, space: SphereProduct
) -> np.ndarray:
    """Feasible points about as far as the radius, and much nearer ones."""
    scale = radius / math.sqrt(len(point)) * rng.uniform(0, 1.5, (DRAWS, 1))
    noise = rng.normal(size=(DRAWS, len(point)))
    x = members(rng, point + scale * noise, space, 0.0)
    # Some groups of half the points vanish: the smallest perturbations often do that.
    for part, _ in groups(space.blocks):
        x[: DRAWS // 2][rng.random(DRAWS // 2) < 0.1, part] = 0
    return x


def grid(rng: np.random.Generator, *_: object) -> np.ndarray:
    """Both circles' quarters at all angles, and 0."""
    del rng
    angles = np.linspace(0, math.pi / 2, 300)
    circle = np.concatenate([np.stack([np.cos(angles), np.sin(angles)], axis=1), np.zeros((1, 2))])
    return np.array([np.concatenate(pair) for pair in itertools.product(circle, circle)])


def vanished(x: np.ndarray, blocks: tuple[tuple[int, int], ...]) -> np.ndarray:
    """Which groups of points are 0."""
    return np.stack([~x[:, part].any(axis=1) for part, _ in groups(blocks)], axis=1)


def try_to_break(seed: int, kind: str, method: str, exhaustive: bool) -> dict[str, float]:
    """Certify one instance and count what is found within the radii."""
    rng = np.random.default_rng(seed)
    blocks, radii = (CIRCLES, np.ones(1)) if exhaustive else (BLOCKS, RADII)
    space, classifier, z, y = instance(rng, kind, blocks, radii)
    draw = grid if exhaustive else sampled
    certificate = certify_embedded(classifier, z, y, domain=space, method=method)
    found = {"checked": 0, "checked_zero": 0, "violations": 0, "closest": math.inf}
    for k in np.flatnonzero(certificate.radius > 0):
        point = z[k].astype(np.float64)
        radius = min(float(certificate.radius[k]), 4.0)  # the domain is no larger
        x = draw(rng, point, radius, space)
        away = np.linalg.norm(x - point, axis=1) / certificate.radius[k]
        gone, within = left(classifier, x, int(y[k])), away < 1
        other = (vanished(x, blocks) != vanished(point[None], blocks)).any(axis=1)
        found["checked"] += int(within.sum())
        found["checked_zero"] += int((within & other).sum())
        found["violations"] += int((within & gone).sum())
        found["closest"] = min(found["closest"], float(away[gone].min(initial=math.inf)))
    return found


def count(report: harness.Report, instances: int) -> dict[str, int]:
    """All kinds and both bounds; rows of the report, and the sums."""
    sums = {"checked": 0, "checked_zero": 0, "violations": 0}
    for exhaustive, kind, method in itertools.product((False, True), KINDS, METHODS):
        if exhaustive and kind != "sphere":
            continue
        rows = [try_to_break(seed, kind, method, exhaustive) for seed in range(instances)]
        found = {key: int(sum(row[key] for row in rows)) for key in sums}
        points = "all of two circles" if exhaustive else "drawn"
        closest = min(row["closest"] for row in rows)
        report.row(
            domain=kind,
            method=method,
            points=points,
            instances=instances,
            **found,
            closest=closest,
        )
        sums = {key: sums[key] + found[key] for key in sums}
    return sums


def main() -> None:
    args = harness.parser(__doc__).parse_args()
    report = harness.Report("perceptual_soundness")
    found = count(report, 1 if args.quick else 20)
    report.summarise("violations", found["violations"], "== 0")
    report.summarise("checked", found["checked"], None if args.quick else ">= 100000")
    report.summarise("checked_zero", found["checked_zero"])
    report.finish(args)


if __name__ == "__main__":
    main()
