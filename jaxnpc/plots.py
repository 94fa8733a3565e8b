"""Pictures: robustness curves, certified balls in the plane, and nearest adversarial images."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from jaxmpd.files import replacing
from jaxnpc.certificate import Certificate, curve
from jaxnpc.domains import Box, Domain
from jaxnpc.extras import require
from jaxnpc.prototypes import PrototypeClassifier

COLOURS = ("tab:red", "tab:blue", "tab:green", "tab:orange", "tab:purple", "tab:brown")
NORM_NAMES: dict[float, str] = {1: r"$\ell_1$", 2: r"$\ell_2$", math.inf: r"$\ell_\infty$"}


def new_figure(width: float, height: float) -> Any:
    """A figure that belongs to no window system and need not be closed (extra `plots`)."""
    return require("matplotlib.figure").Figure(figsize=(width, height), layout="constrained")


def save(figure: Any, path: str | os.PathLike[str], dpi: int = 150) -> None:
    """Write a figure in the format that the file's name ends in; whole or not at all."""
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=dpi)


def robustness_curves(
    certificates: Mapping[str, Certificate], *, axis_label: str = "radius"
) -> Any:
    """Certified robust accuracy against the radius, and what is known above it.

    The solid line is proved; the band up to the thin line is what neither a proof nor a witness
    decides, and vanishes where the radii are exact. Each certificate has a panel of its own, since
    radii in different norms are not comparable.

    Args:
        certificates: at least one, by the title of its panel.
        axis_label: the name of the radius.

    Returns:
        A matplotlib figure.

    Raises:
        ImportError: if matplotlib is missing (extra `plots`).
    """
    count = len(certificates)
    figure = new_figure(4 * count, 3.2)
    panels = figure.subplots(1, count, sharey=True, squeeze=False)[0]
    for panel, colour, (title, certificate) in zip(
        panels, _colours(count), certificates.items(), strict=True
    ):
        radii, lower, upper = curve(certificate)
        panel.fill_between(radii, 100 * lower, 100 * upper, color=colour, alpha=0.25, lw=0)
        panel.plot(radii, 100 * upper, color=colour, lw=0.8)
        panel.plot(radii, 100 * lower, color=colour, lw=2, label="certified")
        panel.set(title=title, xlabel=axis_label, xlim=(0, radii[-1]), ylim=(0, 100))
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("robust accuracy in %")
    return figure


def largest_balls(
    classifier: PrototypeClassifier,
    decide: Callable[[Float[np.ndarray, "n 2"]], Int[np.ndarray, " n"]],
    points: Float[np.ndarray, "n 2"],
    certificates: Sequence[Certificate],
    *,
    domain: Domain,
    resolution: int = 300,
) -> Any:
    """Points in the plane, each with the largest ball that is proved to keep its class (Fig. 1).

    One panel a norm; the prototypes are large dots, the background shows the decision regions. A
    ball that the box cuts is drawn whole: outside the box there are no inputs.

    Args:
        classifier: with prototypes in the plane.
        decide: gives the class index of each of a batch of points, for the background.
        points: the n points.
        certificates: of these points, one a norm.
        domain: where inputs live; a box is drawn.
        resolution: of the background, in pixels a side.

    Returns:
        A matplotlib figure.

    Raises:
        ValueError: if the points are not in the plane.
        ImportError: if matplotlib is missing (extra `plots`).
    """
    points, prototypes = np.asarray(points), np.asarray(classifier.prototypes)
    if points.shape[1] != 2 or prototypes.shape[1] != 2:
        raise ValueError(
            f"points of shape {points.shape} and prototypes of shape {prototypes.shape} must lie "
            "in the plane to be drawn: two coordinates each"
        )
    everything = np.concatenate([points, prototypes])
    low, high = everything.min(0), everything.max(0)
    low, high = low - 0.1 * (high - low), high + 0.1 * (high - low)
    sides = [np.linspace(low[k], high[k], resolution) for k in (0, 1)]
    grid = np.stack(np.meshgrid(*sides), -1).reshape(-1, 2)
    regions = decide(grid).reshape(resolution, resolution)
    classes = len(classifier.classes)
    colours = [*_colours(classes), "black"]  # the last, index -1, is for labels it does not know
    figure = new_figure(4 * len(certificates), 4)
    panels = figure.subplots(1, len(certificates), sharex=True, sharey=True, squeeze=False)[0]
    rectangle = require("matplotlib.patches").Rectangle
    for panel, certificate in zip(panels, certificates, strict=True):
        panel.contourf(
            *sides,
            regions,
            levels=np.arange(classes + 1) - 0.5,
            colors=colours[:-1],
            alpha=0.12,
        )
        if isinstance(domain, Box):
            a, b = (np.broadcast_to(np.asarray(v, float), 2) for v in (domain.lower, domain.upper))
            panel.add_patch(rectangle(a, *(b - a), fill=False, ls="--", lw=0.8))
        for point, radius, label in zip(points, certificate.radius, certificate.label, strict=True):
            if 0 < radius < math.inf:
                outline = point + radius * unit_circle(certificate.q)
                panel.plot(*outline.T, color=colours[label], lw=0.8)
        panel.scatter(*points.T, s=8, c=[colours[k] for k in certificate.label])
        panel.scatter(
            *prototypes.T,
            s=90,
            c=[colours[k] for k in np.asarray(classifier.labels)],
            edgecolors="black",
        )
        panel.set(
            title=NORM_NAMES[certificate.q],
            xlim=(low[0], high[0]),
            ylim=(low[1], high[1]),
            aspect="equal",
        )
    return figure


def nearest_adversarials(
    classifier: PrototypeClassifier,
    points: Float[np.ndarray, "n d"],
    certificate: Certificate,
    shape: tuple[int, ...],
) -> Any:
    """For each image: itself, its prototype, the rival one, the nearest adversarial, the change.

    Args:
        classifier: whose prototypes the certificate's pairs name.
        points: n images as rows; a few, since each gets a row of the figure.
        certificate: of these images.
        shape: (height, width) of an image, or (height, width, 3).

    Returns:
        A matplotlib figure.

    Raises:
        ValueError: if the points are not images of this shape.
        ImportError: if matplotlib is missing (extra `plots`).
    """
    points, prototypes = np.asarray(points), np.asarray(classifier.prototypes)
    if len(shape) not in (2, 3) or points.shape[1] != math.prod(shape):
        raise ValueError(f"shape {shape} is not that of images with {points.shape[1]} values")
    figure = new_figure(8, 1.8 * len(points))
    panels = figure.subplots(len(points), 5, squeeze=False)
    for k, row in enumerate(panels):
        label = certificate.name(certificate.label[k])
        change = certificate.witness[k] - points[k]
        reach = np.abs(change).max() or 1.0
        i, j = certificate.pair[k]
        images = {
            f"label {label}": points[k],
            f"prototype {i}": prototypes[i] if i >= 0 else None,
            f"rival {j}": prototypes[j] if j >= 0 else None,
            f"radius {certificate.radius[k]:.3g}": certificate.witness[k],
            f"change, up to {reach:.2g}": 0.5 + change / (2 * reach),
        }
        for panel, (title, image) in zip(row, images.items(), strict=True):
            panel.set_axis_off()
            if image is not None:
                style = {"cmap": "coolwarm" if "change" in title else "gray"}
                panel.imshow(np.clip(image, 0, 1).reshape(shape), vmin=0, vmax=1, **style)
                panel.set_title(title, fontsize=8)
    return figure


def unit_circle(q: float, corners: int = 128) -> Float[np.ndarray, "c 2"]:
    """The closed outline of the unit ball of a norm in the plane.

    Args:
        q: 1, 2 or infinity.
        corners: how many points, for the round one; a multiple of 8 hits all corners.

    Returns:
        Points of norm 1, the last equal to the first.

    Example:
        >>> import math
        >>> bool(np.allclose(np.abs(unit_circle(math.inf)).max(1), 1))
        True
    """
    angle = np.linspace(0, 2 * np.pi, corners + 1)
    circle = np.stack([np.cos(angle), np.sin(angle)], -1)
    return circle / np.linalg.norm(circle, ord=q, axis=1, keepdims=True)


def _colours(count: int) -> list[str]:
    return [COLOURS[k % len(COLOURS)] for k in range(count)]
