"""A comparison as a folder: a page as Markdown and HTML, its pictures, and all figures as JSON."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxmpd.files import replacing
from jaxnpc import plots
from jaxnpc.decisions import decide
from jaxnpc.domains import Box
from jaxnpc.pages import Block, Heading, Picture, Table, Text, html_page, markdown
from jaxnpc.readers import PathLike
from jaxnpc.report import (
    Comparison,
    accuracy_table,
    attack_table,
    certificate_table,
    document,
    point_table,
    spread_points,
    union_radii,
)

IN_THE_PLANE = 200
"""The most points whose certified balls are drawn."""

RULES = (
    "CRA is the share of points whose class is proved to withstand every perturbation up to the "
    "radius: correct, and with a certified radius that exceeds it. URA is the share for which no "
    "adversarial point within the radius is known. A tie between classes counts as a change. All "
    "shares are in percent."
)


def publish(
    comparison: Comparison,
    folder: PathLike,
    *,
    title: str = "Certified robustness",
    shape: tuple[int, ...] | None = None,
    pictures: int = 5,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[str]:
    """Write the report of a comparison.

    Args:
        comparison: what was found.
        folder: where to write; made if it is missing.
        title: of the page.
        shape: of one point: images (height, width) or (height, width, 3) and points in the plane
            are drawn.
        pictures: how many points are shown one by one, from the least radius to the largest.
        settings: how each classifier was made, by its name, for the record.

    Returns:
        The names of the files: `report.md`, `report.html`, `report.json` and the pictures.

    Raises:
        ImportError: if matplotlib is missing (extra `plots`).
    """
    folder, settings = Path(folder), dict(settings or {})
    size = comparison.points.shape[1:] if shape is None else shape
    blocks = [
        Heading(title, 1),
        *_summary(comparison, folder),
        *_classifiers(comparison, folder, size, pictures),
        *_record(settings),
    ]
    found = {**document(comparison), "settings": settings}
    texts = {
        "report.md": markdown(blocks),
        "report.html": html_page(blocks),
        "report.json": json.dumps(found, indent=1) + "\n",
    }
    for name, text in texts.items():
        with replacing(folder / name) as temporary:
            temporary.write_text(text)
    return [*texts, *(block.file for block in blocks if isinstance(block, Picture))]


def _summary(comparison: Comparison, folder: Path) -> Iterator[Block]:
    """What is found over all points."""
    threats, at = comparison.threats, union_radii(comparison.threats)
    settings = next(iter(next(iter(comparison.certificates.values())).values())).settings
    yield Text(
        f"{len(comparison.points)} points of {comparison.points.shape[1]} coordinates; domain: "
        f"{settings['domain']}."
    )
    head, *rows = accuracy_table(comparison)
    yield Table(head, rows)
    yield Text(RULES)
    if at is not None:
        radii = ", ".join(f"{t.name} {eps:g}" for t, eps in zip(threats, at, strict=True))
        yield Text(f"The union is robustness in every norm at once, at {radii}.")
    panels = {
        f"{plots.NORM_NAMES[threat.q]} perturbations": {
            name: certificates[threat.q] for name, certificates in comparison.certificates.items()
        }
        for threat in threats
    }
    yield _draw(
        folder,
        "curves.png",
        plots.compared_curves(panels),
        "Certified robust accuracy "
        "against the radius; the band is what neither proof nor witness decides.",
    )
    yield Heading("Certificates")
    head, *rows = certificate_table(comparison)
    yield Table(head, rows)
    head, *rows = attack_table(comparison)
    if rows:
        yield Heading("Attacks")
        yield Table(head, rows)
        yield Text(
            "Attacks by foolbox, judged in float64. A point inside the certificate would be an "
            "error of the certificate."
        )


def _classifiers(
    comparison: Comparison, folder: Path, shape: tuple[int, ...], pictures: int
) -> Iterator[Block]:
    """What is found for single points, and what the prototypes look like."""
    points, threats, domain = comparison.points, comparison.threats, comparison.domain
    image = len(shape) == 2 or (len(shape) == 3 and shape[2] == 3)
    limits = (float(points.min()), float(points.max()))
    if isinstance(domain, Box) and np.ndim(domain.lower) == np.ndim(domain.upper) == 0:
        ends = (float(domain.lower), float(domain.upper))
        limits = ends if np.isfinite(ends).all() else limits
    for number, (name, certificates) in enumerate(comparison.certificates.items(), start=1):
        classifier = comparison.classifiers[name]
        slug = f"{number}-{re.sub('[^A-Za-z0-9]+', '-', name).strip('-')}"
        rows = spread_points(certificates[threats[0].q], pictures)
        yield Heading(name)
        if image:
            figure = plots.prototype_pictures(classifier, shape, limits=limits)
            yield _draw(folder, f"prototypes_{slug}.png", figure, "Prototypes, a row a class.")
        if len(rows):
            head, *cells = point_table(certificates, threats, rows)
            yield Table(head, cells)
        for threat in threats:
            if not (image and len(rows)):
                break
            chosen = certificates[threat.q].take(rows)
            yield _draw(
                folder,
                f"nearest_{slug}_{threat.name}.png",
                plots.nearest_adversarials(classifier, points[rows], chosen, shape, limits=limits),
                f"The points of the table: image, prototype, rival prototype, nearest adversarial "
                f"image in {threat.name}, and the difference.",
            )
        if shape == (2,):
            some = np.arange(min(len(points), IN_THE_PLANE))
            balls = plots.largest_balls(
                classifier,
                lambda grid, classifier=classifier: decide(classifier, grid).predicted,
                points[some],
                [certificates[threat.q].take(some) for threat in threats],
                domain=domain,
            )
            yield _draw(folder, f"balls_{slug}.png", balls, "The largest balls that keep a class.")


def _record(settings: Mapping[str, Mapping[str, Any]]) -> Iterator[Block]:
    """How the classifiers were made."""
    for name, values in settings.items():
        if values:
            yield Heading(f"How {name} was made")
            flat = _flat(values)
            yield Table(["setting", "value"], [[key, value] for key, value in flat.items()])


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as one mapping of dotted names to text."""
    found: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = (
                " ".join(map(str, value)) if isinstance(value, list) else str(value)
            )
    return found


def _draw(folder: Path, file: str, figure: Any, caption: str) -> Picture:
    plots.save(figure, folder / file)
    return Picture(file, caption)
