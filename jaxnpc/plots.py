"""Pictures: robustness curves, certified balls in the plane, prototypes, adversarial images."""

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
    panels = {title: {"certified": c} for title, c in certificates.items()}
    return compared_curves(panels, axis_label=axis_label, legend=False)


def compared_curves(
    panels: Mapping[str, Mapping[str, Certificate]],
    *,
    axis_label: str = "radius",
    legend: bool = True,
) -> Any:
    """Certified robust accuracy of several classifiers against the radius, one panel a norm.

    Lines and bands as in [`robustness_curves`][jaxnpc.plots.robustness_curves].

    Args:
        panels: by their titles: certificates in one norm, by the classifier's name. Several lines
            of a panel keep their colour in the next one.
        axis_label: the name of the radius.
        legend: whether to name the lines.

    Returns:
        A matplotlib figure.

    Raises:
        ImportError: if matplotlib is missing (extra `plots`).
    """
    figure = new_figure(4 * len(panels), 3.2)
    row = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for number, (panel, (title, certificates)) in enumerate(zip(row, panels.items(), strict=True)):
        end = max(curve(c)[0][-1] for c in certificates.values())
        colours = _colours(len(certificates), number if len(certificates) == 1 else 0)
        for colour, (name, certificate) in zip(colours, certificates.items(), strict=True):
            radii, lower, upper = curve(certificate, largest=end)
            panel.fill_between(radii, 100 * lower, 100 * upper, color=colour, alpha=0.25, lw=0)
            panel.plot(radii, 100 * upper, color=colour, lw=0.8)
            panel.plot(radii, 100 * lower, color=colour, lw=2, label=name)
        panel.set(title=title, xlabel=axis_label, xlim=(0, end), ylim=(0, 100))
        panel.grid(alpha=0.3)
    row[0].set_ylabel("robust accuracy in %")
    if legend:
        row[-1].legend(fontsize="small")
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


def prototype_pictures(
    classifier: PrototypeClassifier,
    shape: tuple[int, ...],
    *,
    columns: int = 12,
    rows: int = 20,
    limits: tuple[float, float] = (0.0, 1.0),
) -> Any:
    """Prototypes as images, a row a class: its first ones.

    Args:
        classifier: with images for prototypes.
        shape: (height, width) of an image, or (height, width, 3).
        columns: the most prototypes of a class to show.
        rows: the most classes.
        limits: the values of black and white.

    Returns:
        A matplotlib figure.

    Raises:
        ValueError: if the prototypes are not images of this shape.
        ImportError: if matplotlib is missing (extra `plots`).
    """
    prototypes, of = np.asarray(classifier.prototypes), np.asarray(classifier.labels)
    shown = [
        _as_images(prototypes[np.flatnonzero(of == k)[:columns]], shape, limits)
        for k in range(min(rows, len(classifier.classes)))
    ]
    across = max(map(len, shown))
    height, width = shape[0] + 1, shape[1] + 1  # a line of white between two images
    mosaic = np.ones((len(shown) * height - 1, across * width - 1, *shape[2:]))
    for row, images in enumerate(shown):
        for column, image in enumerate(images):
            top, left = row * height, column * width
            mosaic[top : top + shape[0], left : left + shape[1]] = image
    figure = new_figure(0.6 * across + 0.8, 0.6 * len(shown) * shape[0] / shape[1] + 0.2)
    panel = figure.subplots()
    panel.imshow(mosaic, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    panel.set_xticks([])
    panel.set_yticks(
        (np.arange(len(shown)) + 0.5) * height - 1,
        [str(name) for name in classifier.classes[: len(shown)]],
    )
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)
    return figure


def nearest_adversarials(
    classifier: PrototypeClassifier,
    points: Float[np.ndarray, "n d"],
    certificate: Certificate,
    shape: tuple[int, ...],
    *,
    limits: tuple[float, float] = (0.0, 1.0),
) -> Any:
    """For each image: itself, its prototype, the rival one, the nearest adversarial, the change.

    The change is red where the adversarial image is larger and blue where it is smaller; of colour
    images each channel is brighter or darker than grey.

    Args:
        classifier: whose prototypes the certificate's pairs name.
        points: n images as rows; a few, since each gets a row of the figure.
        certificate: of these images.
        shape: (height, width) of an image, or (height, width, 3).
        limits: the values of black and white.

    Returns:
        A matplotlib figure.

    Raises:
        ValueError: if the points are not images of this shape.
        ImportError: if matplotlib is missing (extra `plots`).
    """
    images = _as_images(np.asarray(points), shape, limits)
    witnesses = _as_images(certificate.witness, shape, limits)
    own, rivals = (
        _as_images(np.asarray(classifier.prototypes)[side], shape, limits)
        for side in certificate.pair.T
    )
    of = np.asarray(classifier.labels)
    figure = new_figure(8, 1.8 * len(images))
    panels = figure.subplots(len(images), 5, squeeze=False)
    for k, row in enumerate(panels):
        change = certificate.witness[k] - points[k]
        reach = np.abs(change).max() or 1.0
        i, j = certificate.pair[k]
        shown = {
            f"label {certificate.name(certificate.label[k])}": images[k],
            f"prototype {i}": own[k] if i >= 0 else None,
            f"rival {j}, class {certificate.name(int(of[j]))}": rivals[k] if j >= 0 else None,
            f"radius {certificate.radius[k]:.3g}": witnesses[k],
            f"change, up to {reach:.2g}": (0.5 + change / (2 * reach)).reshape(shape),
        }
        for column, (panel, (title, image)) in enumerate(zip(row, shown.items(), strict=True)):
            panel.set_axis_off()
            if image is not None:
                colours = "coolwarm" if column == 4 else "gray"
                panel.imshow(image, vmin=0, vmax=1, cmap=colours)
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


def _as_images(
    rows: Float[np.ndarray, "n d"], shape: tuple[int, ...], limits: tuple[float, float]
) -> Float[np.ndarray, "n h w *c"]:
    """Rows as images with values in [0, 1]."""
    if len(shape) not in (2, 3) or math.prod(rows.shape[1:]) != math.prod(shape):
        raise ValueError(
            f"shape {shape} is not that of images with {math.prod(rows.shape[1:])} values"
        )
    low, high = limits
    return np.clip((rows - low) / ((high - low) or 1.0), 0, 1).reshape(-1, *shape)


def _colours(count: int, first: int = 0) -> list[str]:
    return [COLOURS[(first + k) % len(COLOURS)] for k in range(count)]
