"""A report's figures are those of its certificates, counted by hand."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest

from jaxnpc import attacks, report
from jaxnpc.certify import certify
from jaxnpc.domains import Box
from jaxnpc.prototypes import prototype_classifier
from jaxnpc.report import Threat, compare

pytestmark = pytest.mark.compiled_quickly

THREATS = (Threat(2, (0.05, 0.2)), Threat(math.inf, (0.1,)), Threat(1, (0.15,)))
DOMAIN = Box(0, 1)


def problem(n=12):
    rng = np.random.default_rng(0)
    points = rng.random((n, 3)).astype(np.float32)
    labels = np.where(points[:, 0] > 0.5, "high", "low")
    made = {
        f"model {k}": prototype_classifier(rng.random((6, 3)), ["low", "high"] * 3)
        for k in range(2)
    }
    return made, points, labels.tolist()


@pytest.fixture(scope="module")
def found():
    made, points, labels = problem()
    return compare(made, points, labels, THREATS, domain=DOMAIN)


@pytest.fixture(scope="module")
def bounded():
    """With radii that are not exact, by the method that compiles fastest."""
    made, points, labels = problem()
    return compare(made, points, labels, THREATS, domain=DOMAIN, method="margin")


def percent(hits):
    hits = list(hits)
    return f"{float(Fraction(100 * sum(map(bool, hits)), len(hits))):.2f}"


def test_the_accuracies_are_counts_of_points(found):
    _, points, labels = problem()
    head, *rows = report.accuracy_table(found)
    assert [row[0] for row in rows] == ["model 0", "model 1"]
    for row in rows:
        shown = dict(zip(head, row, strict=True))
        classifier = found.classifiers[row[0]]
        direct = {t.q: certify(classifier, points, labels, q=t.q, domain=DOMAIN) for t in THREATS}
        right = direct[2].predicted == direct[2].label
        assert shown["prototypes"] == "6"
        assert shown["clean"] == percent(right)
        for threat in THREATS:
            c = direct[threat.q]
            for eps in threat.radii:
                assert shown[f"{threat.name} {eps:g} CRA"] == percent(c.radius > eps)
                assert shown[f"{threat.name} {eps:g} URA"] == percent(~(c.upper <= eps))
        kept = np.all([direct[t.q].radius > t.radii[0] for t in THREATS], axis=0)
        broken = np.any([direct[t.q].upper <= t.radii[0] for t in THREATS], axis=0)
        assert shown["union CRA"] == percent(kept)
        assert shown["union URA"] == percent(~broken)
    clean = [float(row[2]) for row in rows]
    assert min(clean) > 0, "else there is nothing to count"


def test_the_document_is_plain_json_with_the_same_figures(found):
    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    text = json.dumps(report.document(found))
    document = json.loads(text, parse_constant=refuse)
    assert document["points"] == 12
    head, *rows = report.accuracy_table(found)
    for row in rows:
        shown = dict(zip(head, row, strict=True))
        model = document["classifiers"][row[0]]
        assert model["classes"] == ["high", "low"]
        for threat in THREATS:
            norm = model["norms"][f"{threat.q:g}"]
            for eps, entry in zip(threat.radii, norm["robust_accuracy"], strict=True):
                assert shown[f"{threat.name} {eps:g} CRA"] == f"{100 * entry['certified']:.2f}"
            curve, c = norm["curve"], found.certificates[row[0]][threat.q]
            shares = [np.mean(c.radius > r) for r in curve["radius"]]
            np.testing.assert_allclose(curve["certified"], shares)
            assert norm["attacks"] is None
        assert shown["union CRA"] == f"{100 * model['union']['certified']:.2f}"
        assert model["union"]["radii"] == {"2": 0.05, "inf": 0.1, "1": 0.15}


def test_tables_of_certificates_and_points(bounded):
    head, *rows = report.certificate_table(bounded)
    assert [row[:2] for row in rows] == [
        [name, norm] for name in ("model 0", "model 1") for norm in ("l2", "linf", "l1")
    ]
    column = dict(zip(head, zip(*rows, strict=True), strict=True))
    assert column["method"] == ("margin",) * 6
    certificates = bounded.certificates["model 1"]
    for name, certified in bounded.certificates.items():
        for threat in THREATS:
            k = rows.index(next(row for row in rows if row[:2] == [name, threat.name]))
            c = certified[threat.q]
            assert column["exact %"][k] == percent(c.exact)
            assert float(column["median radius"][k]) == pytest.approx(np.median(c.radius), 1e-3)
    assert not all(c.exact.all() for c in certificates.values())
    head, *rows = report.point_table(certificates, THREATS, np.array([3, 0]))
    assert [row[0] for row in rows] == ["3", "0"]
    for row in rows:
        shown, k = dict(zip(head, row, strict=True)), int(row[0])
        for threat in THREATS:
            c = certificates[threat.q]
            assert shown["label"] == c.name(c.label[k])
            assert shown["predicted"] == c.name(c.predicted[k])
            radius, *upper = map(float, shown[f"{threat.name} radius"].split(" to "))
            assert radius == pytest.approx(c.radius[k], rel=1e-3)
            assert bool(upper) == (not c.exact[k])
            if c.pair[k, 0] >= 0:
                assert shown[f"{threat.name} pair"] == "{}, {}".format(*c.pair[k])


def test_points_to_show_are_spread_over_the_radii(found):
    c = found.certificates["model 0"][2]
    positive = np.sort(c.radius[c.radius > 0])
    rows = report.spread_points(c, 3)
    assert list(c.radius[rows]) == [
        positive[0], positive[round((len(positive) - 1) / 2)], positive[-1]
    ]  # fmt: skip
    assert len(report.spread_points(c, 1000)) == len(positive), "each once"
    assert not len(report.spread_points(c, 0))
    missed = c.take(np.flatnonzero(c.radius == 0))
    assert not len(report.spread_points(missed, 3))


@pytest.mark.parametrize(
    ("threats", "radii"),
    [
        ([Threat(2, (1.0,))], None),
        ([Threat(2, (1.0, 2.0)), Threat(1)], None),
        ([Threat(2, (1.0, 2.0)), Threat(1, (3.0,))], [1.0, 3.0]),
    ],
)
def test_a_union_needs_a_radius_in_each_of_several_norms(threats, radii):
    assert report.union_radii(threats) == radii


def test_attacks_lower_the_upper_bound_and_stay_outside(monkeypatch):
    pytest.importorskip("foolbox", reason="needs the extra attacks")
    for table in (attacks.MINIMISING, attacks.FROM_STARTS, attacks.WITHIN):
        for norm, chosen in table.items():
            fewer = {name: dict.fromkeys(options, 20) for name, options in chosen.items()}
            monkeypatch.setitem(table, norm, fewer)
    made, points, labels = problem()
    made = {"bounds": made["model 1"]}
    how = {"threats": [Threat(2, (0.2,))], "domain": DOMAIN, "method": "margin"}
    plain = compare(made, points, labels, **how)
    found = compare(made, points, labels, **how, attacks=8)
    before, after = (each.certificates["bounds"][2] for each in (plain, found))
    np.testing.assert_array_equal(after.radius, before.radius)
    assert (after.upper <= before.upper).all()
    np.testing.assert_array_equal(after.upper[8:], before.upper[8:])
    counted = found.attacked["bounds"][2]
    assert counted == (8, np.sum(after.upper < before.upper), 0)
    assert counted.nearer > 0
    assert report.attack_table(found)[1:] == [["bounds", "l2", "8", str(counted.nearer), "0"]]
    assert report.attack_table(plain)[1:] == []
    assert report.document(found)["classifiers"]["bounds"]["norms"]["2"]["attacks"] == {
        "points": 8, "nearer": counted.nearer, "inside": 0
    }  # fmt: skip


def test_finished_parts_are_kept_apart(tmp_path, bounded):
    made, points, labels = problem()
    how = {"domain": DOMAIN, "method": "margin", "chunk": 8, "checkpoint": tmp_path}
    compare(made, points, labels, THREATS, **how)
    folders = sorted(path.name for path in tmp_path.iterdir())
    assert folders == ["0-l1", "0-l2", "0-linf", "1-l1", "1-l2", "1-linf"]
    again = compare(made, points, labels, THREATS, **how)
    for name, certificates in again.certificates.items():
        for q, c in certificates.items():
            np.testing.assert_allclose(c.radius, bounded.certificates[name][q].radius, rtol=1e-6)


def test_refusals():
    made, points, labels = problem()
    with pytest.raises(ValueError, match="names a norm twice: l2, l2"):
        compare(made, points, labels, [Threat(2), Threat(2)])
    for nothing in (({}, [Threat(2)]), (made, [])):
        with pytest.raises(ValueError, match="must name at least one each"):
            compare(nothing[0], points, labels, nothing[1])
    with pytest.raises(ValueError, match="attacks must be at least 0, got -1"):
        compare(made, points, labels, [Threat(2)], attacks=-1)
