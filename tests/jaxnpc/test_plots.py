"""Figures show what the certificates say."""

import math

import numpy as np
import pytest

from jaxnpc import plots
from jaxnpc.certify import certify
from jaxnpc.decisions import decide
from jaxnpc.domains import Box, Unbounded
from jaxnpc.prototypes import prototype_classifier

pytest.importorskip("matplotlib", reason="needs the extra plots")


@pytest.fixture(scope="module")
def plane():
    rng = np.random.default_rng(0)
    classifier = prototype_classifier(rng.random((4, 2)), ["a", "b", "a", "b"])
    points = rng.random((6, 2))
    certificates = [certify(classifier, points, q=q, domain=Box(0, 1)) for q in (1, 2, math.inf)]
    return classifier, points, certificates


def test_curves_go_through_the_certificates_accuracies(plane, tmp_path):
    _, _, certificates = plane
    figure = plots.robustness_curves({f"l{c.q}": c for c in certificates})
    assert len(figure.axes) == 3
    for axes, c in zip(figure.axes, certificates, strict=True):
        line = next(line for line in axes.lines if line.get_label() == "certified")
        radii, shares = line.get_data()
        expected = [100 * np.mean(c.radius > r) for r in radii]
        np.testing.assert_allclose(shares, expected)
    plots.save(figure, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("domain", [Unbounded(), Box(0, 1)])
def test_balls_have_the_certified_radii(plane, domain):
    classifier, points, certificates = plane
    figure = plots.largest_balls(
        classifier,
        lambda grid: decide(classifier, grid).predicted,
        points,
        certificates,
        domain=domain,
        resolution=20,
    )
    for axes, c in zip(figure.axes, certificates, strict=True):
        assert len(axes.lines) == len(points)
        for line, point, radius in zip(axes.lines, points, c.radius, strict=True):
            outline = np.stack(line.get_data(), -1)
            far = np.linalg.norm(outline - point, ord=c.q, axis=1)
            np.testing.assert_allclose(far, radius)
        assert len(axes.patches) == isinstance(domain, Box)


def test_balls_need_the_plane(plane):
    classifier, _, certificates = plane
    with pytest.raises(ValueError, match=r"points of shape \(6, 3\)"):
        plots.largest_balls(classifier, len, np.zeros((6, 3)), certificates, domain=Unbounded())


def test_nearest_adversarials_show_five_images(plane):
    rng = np.random.default_rng(1)
    classifier = prototype_classifier(rng.random((4, 9)), [0, 1, 0, 1])
    points = rng.random((3, 9))
    c = certify(classifier, points, [0, 1, 0], domain=Box(0, 1))
    figure = plots.nearest_adversarials(classifier, points, c, (3, 3))
    assert len(figure.axes) == 15
    for k in range(3):
        shown = [
            axes.images[0].get_array() for axes in figure.axes[5 * k : 5 * k + 5] if axes.images
        ]
        np.testing.assert_allclose(shown[0], points[k].reshape(3, 3))
        if c.radius[k]:
            i, j = c.pair[k]
            prototypes = np.asarray(classifier.prototypes)
            np.testing.assert_allclose(shown[1], prototypes[i].reshape(3, 3))
            np.testing.assert_allclose(shown[2], prototypes[j].reshape(3, 3))
            np.testing.assert_allclose(shown[3], c.witness[k].reshape(3, 3))
        else:
            assert len(shown) == 3, "what is misclassified anyway has no pair"
    with pytest.raises(ValueError, match=r"shape \(2, 4\) is not that of images with 9"):
        plots.nearest_adversarials(classifier, points, c, (2, 4))


@pytest.mark.parametrize("q", [1, 2, math.inf])
def test_unit_circles(q):
    circle = plots.unit_circle(q)
    np.testing.assert_allclose(np.linalg.norm(circle, ord=q, axis=1), 1)
    np.testing.assert_allclose(circle[0], circle[-1], atol=1e-12)
    assert np.isclose(np.abs(circle).max(), 1)
