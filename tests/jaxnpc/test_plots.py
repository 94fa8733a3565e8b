"""Figures show what the certificates say."""

import math

import numpy as np
import pytest

from jaxnpc import plots
from jaxnpc.certify import certify
from jaxnpc.decisions import decide
from jaxnpc.domains import Box, Unbounded
from jaxnpc.prototypes import prototype_classifier

pytestmark = pytest.mark.compiled_quickly

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


def test_compared_curves_share_their_axis_and_colours(plane):
    _, _, certificates = plane
    panels = {f"l{c.q:g}": {"ours": c, "worse": c.take(np.arange(3))} for c in certificates}
    figure = plots.compared_curves(panels)
    for axes, lines in zip(figure.axes, panels.values(), strict=True):
        drawn = {line.get_label(): line for line in axes.lines}
        end = max(c.upper.max() for c in lines.values())
        for name, c in lines.items():
            radii, shares = drawn[name].get_data()
            np.testing.assert_allclose(shares, [100 * np.mean(c.radius > r) for r in radii])
            assert radii[-1] == pytest.approx(end)
    colours = [
        [line.get_color() for line in axes.lines if line.get_label() in panels["l1"]]
        for axes in figure.axes
    ]
    assert len(set(colours[0])) == 2
    assert colours[0] == colours[1] == colours[2]
    legend = [text.get_text() for text in figure.axes[-1].get_legend().get_texts()]
    assert legend == ["ours", "worse"]


@pytest.mark.parametrize("colour", [(), (3,)])
def test_prototypes_as_a_mosaic(colour):
    rng = np.random.default_rng(2)
    shape = (2, 3, *colour)
    prototypes = rng.uniform(-1, 3, (5, 2 * 3 * (3 if colour else 1)))
    classifier = prototype_classifier(prototypes, ["b", "a", "b", "b", "c"])
    figure = plots.prototype_pictures(classifier, shape, columns=2, rows=2, limits=(-1, 3))
    (axes,) = figure.axes
    mosaic = axes.images[0].get_array()
    assert mosaic.shape == (2 * 3 - 1, 2 * 4 - 1, *colour)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    pictures = (np.asarray(classifier.prototypes).reshape(-1, *shape) + 1) / 4
    np.testing.assert_allclose(mosaic[:2, :3], pictures[1])
    np.testing.assert_allclose(mosaic[3:, :3], pictures[0])
    np.testing.assert_allclose(mosaic[3:, 4:], pictures[2])
    assert (mosaic[2] == 1).all()
    assert (mosaic[:2, 4:] == 1).all(), "class a has one prototype only"
    with pytest.raises(ValueError, match=r"shape \(4,\) is not that of images"):
        plots.prototype_pictures(classifier, (4,))


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
    c = certify(classifier, points, [1, 0, 0], domain=Box(0, 1))
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
    assert set(c.radius > 0) == {True, False}, "or there is nothing to see"
    change = figure.axes[5 * int(np.argmax(c.radius)) + 4].images[0].get_array() - 0.5
    moved = c.witness[np.argmax(c.radius)] - points[np.argmax(c.radius)]
    np.testing.assert_allclose(change.ravel(), moved / (2 * np.abs(moved).max()))
    brighter = plots.nearest_adversarials(classifier, points, c, (3, 3), limits=(-1, 1))
    shown = brighter.axes[0].images[0].get_array()
    np.testing.assert_allclose(shown, (points[0].reshape(3, 3) + 1) / 2)
    with pytest.raises(ValueError, match=r"shape \(2, 4\) is not that of images with 9"):
        plots.nearest_adversarials(classifier, points, c, (2, 4))


@pytest.mark.parametrize("q", [1, 2, math.inf])
def test_unit_circles(q):
    circle = plots.unit_circle(q)
    np.testing.assert_allclose(np.linalg.norm(circle, ord=q, axis=1), 1)
    np.testing.assert_allclose(circle[0], circle[-1], atol=1e-12)
    assert np.isclose(np.abs(circle).max(), 1)
