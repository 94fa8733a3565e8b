r"""How far an image can move in the LPIPS metric before its class changes.

The classifier is one of embedded images: $f(x)$ is the class of the prototype next to $\phi(x)$.
For an image x of class y a radius r says that every image x' with $d(x, x') < r$ is of class y as
well. That is proved over all points of a set that holds every embedded image and more, so that the
true radius may be larger; no image at that distance is shown.
"""

import os
import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import ArrayLike, Bool, Float, Int
from tqdm import tqdm

from jaxnpc.batching import blocks
from jaxnpc.certificate import Certificate, checksums, concatenate
from jaxnpc.certify import check_labels
from jaxnpc.checkpoints import Checkpoints, fingerprint
from jaxnpc.decisions import decide
from jaxnpc.domains import SphereProduct
from jaxnpc.pairwise.sphere_proofs import group_squares
from jaxnpc.perceptual.bounds import lower_bounds
from jaxnpc.perceptual.embedding import Embedding, check_images, embed
from jaxnpc.perceptual.prepared import Scores, certainly, prepare, scores
from jaxnpc.prototypes import PrototypeClassifier, finite_rows

METHODS = {"spheres": True, "half-space": False}
"""The bounds by their names: whether they use the spheres."""

OFF = 1e-5
"""How far the norm of a group may lie from the domain's, relatively: more is no rounding."""


def certify_embedded(
    classifier: PrototypeClassifier,
    z: Float[ArrayLike, "n d"],
    labels: Iterable[Hashable] | None = None,
    *,
    domain: SphereProduct,
    method: str = "spheres",
    chunk: int = 1024,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> Certificate:
    r"""Prove how far embedded images can move before their class changes.

    Args:
        classifier: of embedded images: float32 prototypes, distance 2, no metric.
        z: n embedded images, float32, as of [`embed`][jaxnpc.perceptual.embedding.embed]. A point
            with a NaN gets radius 0.
        labels: their n class names: a point that is assigned to another class gets radius 0. By
            default the predicted classes.
        domain: a set that holds all embedded images, `Embedding.domain()`.
        method: "spheres", the corrected Prop. 3.1 on the domain; or "half-space", Lemma 2.9 on all
            of $\mathbb{R}^d$, which is weaker.
        chunk: how many points are worked off at a time.
        checkpoint: a folder where finished chunks are kept, to resume a run that was interrupted.
        progress: whether to show a progress bar.

    Returns:
        The certificate: proved radii, an infinite `upper` where the class is right, since no image
        is known there, and `witness` without coordinates.

    Raises:
        TypeError: if z or the prototypes are not float32, or the domain is no product of spheres.
        ValueError: if a shape or the domain does not fit, a point lies outside the domain, labels
            are unknown or of a wrong number, there is no such method, or the checkpoint is another
            run's.

    Example:
        >>> from jaxnpc.prototypes import prototype_classifier
        >>> circle = SphereProduct(((1, 2),), np.ones(1), np.ones(1))
        >>> w = np.array([[0.0, 1.0], [1.0, 0.0]], np.float32)
        >>> certificate = certify_embedded(
        ...     prototype_classifier(w, ["up", "right"]), w, ["up", "up"], domain=circle
        ... )
        >>> certificate.radius.round(4).tolist()    # the chord to 45 degrees
        [0.7654, 0.0]
        >>> plane = certify_embedded(
        ...     prototype_classifier(w, ["up", "right"]), w, domain=circle, method="half-space"
        ... )
        >>> plane.radius.round(4).tolist()
        [0.7071, 0.7071]
    """
    run = _Run(classifier, domain, method)
    points = np.asarray(z)
    if points.dtype != np.float32:
        raise TypeError(
            f"z has dtype {points.dtype}: embedded images are float32, and the certificate would "
            "be that of rounded numbers; round them yourself if that is meant"
        )
    if points.ndim != 2 or points.shape[1] != run.prepared.domain.dimension or not len(points):
        raise ValueError(
            f"z has shape {points.shape}: give at least one point of shape (n, "
            f"{run.prepared.domain.dimension})"
        )
    index = None if labels is None else check_labels(classifier, labels, len(points))
    return run(
        points, index, lambda part: (points[part], points[part]), chunk, checkpoint, progress
    )


def certify(
    embedding: Embedding,
    classifier: PrototypeClassifier,
    images: ArrayLike,
    labels: Iterable[Hashable] | None = None,
    *,
    method: str = "spheres",
    chunk: int = 512,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> Certificate:
    r"""Prove within which LPIPS distance of each image no image is of another class.

    The distance is $d = |\phi(x) - \phi(x')|_2$, the square root of what the lpips package returns.
    The certificate is about embeddings as `embed` computes them, in one float32 pass: so are the
    domain's bounds, and the distances that an attack on it should be judged by.

    Args:
        embedding: the metric, which is also what the classifier sees.
        classifier: of embedded images; see `certify_embedded`.
        images: n images (n, height, width, 3), or flattened, with values in [0, 1].
        labels: their class names; by default the predicted classes.
        method: "spheres" or "half-space"; with weights that differ or `eps`, "spheres" loses
            strength, see `Embedding.domain`.
        chunk: how many images are worked off at a time; it bounds the memory.
        checkpoint: a folder where finished chunks are kept, to resume a run that was interrupted.
        progress: whether to show a progress bar.

    Returns:
        The certificate, with the embedding's SHA-256 among its settings.

    Raises:
        TypeError: if the images are no floating-point numbers or the prototypes are not float32.
        ValueError: if a shape does not fit, a pixel lies outside [0, 1], labels are unknown or of a
            wrong number, there is no such method, or the checkpoint is another run's.
    """
    run = _Run(classifier, embedding.domain(), method)
    checked = check_images(embedding, images)
    if not len(checked):
        raise ValueError(f"images has shape {checked.shape}: give at least one")
    index = None if labels is None else check_labels(classifier, labels, len(checked))

    def load(part: slice) -> tuple[np.ndarray, np.ndarray]:
        return embed(embedding, checked[part]), checked[part].reshape(part.stop - part.start, -1)

    run.settings["embedding"] = embedding.digest
    return run(checked, index, load, chunk, checkpoint, progress)


class _Run:
    """A classifier made ready for certification by one method."""

    def __init__(self, classifier: PrototypeClassifier, domain: SphereProduct, method: str) -> None:
        if method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
        self.classifier, self.spheres = classifier, METHODS[method]
        self.prepared = prepare(classifier, domain)
        self.settings: dict[str, str] = {
            "distance": "lpips",
            "metric": "identity",
            "domain": "product of spheres" if self.spheres else "unbounded",
            "method": method,
        }

    def __call__(
        self,
        rows: np.ndarray,
        label: Int[np.ndarray, " n"] | None,
        load: Callable[[slice], tuple[np.ndarray, np.ndarray]],
        chunk: int,
        checkpoint: str | os.PathLike[str] | None,
        progress: bool,
    ) -> Certificate:
        if chunk < 1:
            raise ValueError(f"chunk must be at least 1, got {chunk}")
        run = "" if checkpoint is None else self._fingerprint(rows, label, chunk)
        done, parts = Checkpoints(checkpoint, run), list[Certificate]()
        with tqdm(total=len(rows), desc="certify", unit="image", disable=not progress) as bar:
            for part in blocks(len(rows), chunk):
                found = done.load(part.start)
                if found is None:
                    began = time.perf_counter()
                    z, named = load(part)
                    some = None if label is None else label[part]
                    found = self._chunk(z, some, checksums(named), began)
                    done.save(part.start, found)
                parts.append(found)
                bar.update(len(found))
        return replace(concatenate(parts), classes=self.classifier.classes, settings=self.settings)

    def _fingerprint(
        self, rows: np.ndarray, label: Int[np.ndarray, " n"] | None, chunk: int
    ) -> str:
        domain = self.prepared.domain
        return fingerprint(
            self.classifier.prototypes,
            self.classifier.labels,
            self.classifier.classes,
            domain.inner,
            domain.outer,
            rows,
            label,
            {**self.settings, "blocks": domain.blocks, "chunk": chunk},
        )

    def _chunk(
        self,
        z: Float[np.ndarray, "n d"],
        label: Int[np.ndarray, " n"] | None,
        checksum: Any,
        began: float,
    ) -> Certificate:
        n, finite = len(z), finite_rows(z)
        clean = np.where(finite[:, None], z, 0)
        _check_inside(clean, self.prepared.domain)
        found = scores(self.prepared, clean)
        predicted, certain = self._decide(clean, found)
        predicted[~finite] = -1
        label = predicted if label is None else label
        # Of points that are tied, the proof itself gives 0.
        rows = np.flatnonzero(finite & ((predicted == label) | ~certain))
        radius, pair, count = np.zeros(n), np.full((n, 2), -1), np.zeros(n, np.int64)
        if len(rows):
            some = Scores(found.lower[rows], found.upper[rows])
            bound = lower_bounds(
                self.prepared, clean[rows], label[rows], some, spheres=self.spheres
            )
            radius[rows], pair[rows], count[rows] = bound.radius, bound.pair, bound.evaluated
        right = (predicted == label) & finite
        return Certificate(
            radius=radius,
            upper=np.where(right, np.inf, 0.0),
            exact=~right | np.isinf(radius),
            witness=np.zeros((n, 0)),
            label=label.astype(np.int64),
            predicted=predicted,
            pair=pair,
            subproblems=count,
            seconds=np.full(n, (time.perf_counter() - began) / n),
            checksum=checksum,
            classes=self.classifier.classes,
            q=2.0,
            settings=self.settings,
        )

    def _decide(
        self, z: Float[np.ndarray, "n d"], found: Scores
    ) -> tuple[Int[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
        """The classes, in float64 where float32 cannot tell; and whether there is no tie."""
        count = len(self.classifier.classes)
        predicted, certain = certainly(found, self.prepared.labels, count)
        for part in blocks(len(open_ := np.flatnonzero(~certain)), 128):
            closer = decide(self.classifier, z[open_[part]])
            predicted[open_[part]], certain[open_[part]] = closer.predicted, closer.certain
        return predicted, certain


def _check_inside(z: Float[np.ndarray, "n d"], domain: SphereProduct) -> None:
    """Make sure that points are embedded images, to rounding."""
    if (z < 0).any():
        at = tuple(int(i) for i in np.argwhere(z < 0)[0])
        raise ValueError(f"z[{at[0]}, {at[1]}] is {z[at]}: embedded images are not negative")
    inner, outer = (domain.spread(bound) for bound in (domain.inner, domain.outer))
    for part in blocks(len(z), 32):
        norm = np.sqrt(group_squares(z[part].astype(np.float64), domain).upper)
        small = norm < 2.0**-450  # of a group that is 0
        bad = ~small & ((norm < inner * (1 - OFF)) | (norm > outer * (1 + OFF)))
        if bad.any():
            row, group = (int(i) for i in np.argwhere(bad)[0])
            raise ValueError(
                f"group {group} of z[{part.start + row}] has norm {norm[row, group]:.9g}, outside "
                f"the domain's [{inner[group]:.9g}, {outer[group]:.9g}] and not 0: these are no "
                "embeddings of that domain's network"
            )
