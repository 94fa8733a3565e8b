"""Counting robust points, the union of norms, and files that give back what went in."""

import csv
import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxnpc import certificate as cert


def make(radius, upper=None, *, label=None, q=2.0, classes=("a", "b")):
    radius = np.asarray(radius, float)
    n = len(radius)
    upper = radius if upper is None else np.asarray(upper, float)
    return cert.Certificate(
        radius=radius,
        upper=upper,
        exact=radius == upper,
        witness=np.arange(2.0 * n).reshape(n, 2),
        predicted=np.zeros(n, int),
        label=np.zeros(n, int) if label is None else np.asarray(label),
        pair=np.tile([0, 1], (n, 1)),
        subproblems=np.arange(n),
        seconds=np.full(n, 0.25),
        checksum=cert.checksums(np.arange(n)[:, None]),
        classes=classes,
        q=q,
        settings={"method": "exact"},
    )


radii = st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, math.inf]), min_size=1, max_size=8)


@given(radii, st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0, 3.0]))
@settings(deadline=None)
def test_robust_accuracy_counts_strictly(sizes, eps):
    c = make(sizes)
    assert cert.robust_accuracy(c, eps) == pytest.approx(np.mean([r > eps for r in sizes]))
    assert cert.robust_accuracy(c, [eps, eps]).shape == (2,)


def test_upper_counts_the_witnesses():
    c = make([0, 1, 1], [0, 1, 3])
    assert cert.robust_accuracy(c, 2) == 0
    assert cert.robust_accuracy(c, 2, upper=True) == pytest.approx(1 / 3)


@pytest.mark.parametrize("eps", [-1.0, math.nan, [0.5, -0.1]])
def test_robust_accuracy_refuses(eps):
    with pytest.raises(ValueError, match="radii must be at least 0"):
        cert.robust_accuracy(make([1]), eps)


def test_union_is_point_by_point():
    a = make([2, 2, 0, 1, 1], [2, 2, 0, 3, 1], q=1.0)
    b = make([1, 3, 3, 1, 0.5], [1, 3, 3, 1, 0.7])
    both = cert.union([a, b], [1.5, 0.9])
    assert both.robust.tolist() == [True, True, False, False, False]
    assert both.broken.tolist() == [False, False, True, False, True]
    assert (both.certified, both.upper, both.exact) == (0.4, pytest.approx(0.6), False)
    assert cert.union([a, b], [0.5, 0.3]).exact
    # No union exceeds one of its members.
    for c, eps in ((a, 1.5), (b, 0.9)):
        assert both.certified <= cert.robust_accuracy(c, eps)
        assert both.upper <= cert.robust_accuracy(c, eps, upper=True)


def test_union_refuses():
    with pytest.raises(ValueError, match="one radius for each of 1"):
        cert.union([make([1])], [1, 2])
    with pytest.raises(ValueError, match="one radius for each of 0"):
        cert.union([], [])
    with pytest.raises(ValueError, match=r"certificates\[1\] is not of the same points"):
        cert.union([make([1]), make([1], label=[1])], [1, 1])


def test_curve_ends_where_nothing_is_left():
    r, lower, upper = cert.curve(make([0, 1, 2], [0, 1, 4]), steps=5)
    np.testing.assert_allclose(r, [0, 1, 2, 3, 4])
    np.testing.assert_allclose(lower, [2 / 3, 1 / 3, 0, 0, 0])
    np.testing.assert_allclose(upper, [2 / 3, 1 / 3, 1 / 3, 1 / 3, 0])
    assert cert.curve(make([0, math.inf]))[0][-1] == 1, "nothing finite but 0: any axis will do"
    assert (np.diff(lower) <= 0).all()


def test_concatenate_keeps_order():
    a, b = make([1, 2]), make([3])
    assert cert.concatenate([a, b]).radius.tolist() == [1, 2, 3]
    assert len(cert.concatenate([a, b])) == 3


@pytest.mark.parametrize("classes", [("a", "b"), (3, 7), (1.5, 2), (("t", 1), "b")])
def test_npz_round_trip(tmp_path, classes):
    c = make([0, 1.1, math.inf], classes=classes, q=math.inf)
    cert.save_npz(c, tmp_path / "c.npz")
    back = cert.load_npz(tmp_path / "c.npz")
    for field in dataclasses.fields(c):
        if field.name != "classes":
            np.testing.assert_array_equal(getattr(back, field.name), getattr(c, field.name))
    plain = all(isinstance(name, str) for name in classes) or all(
        isinstance(name, int | float) for name in classes
    )
    assert back.classes == (classes if plain else tuple(map(str, classes)))


def test_load_refuses_other_archives(tmp_path):
    np.savez(tmp_path / "x.npz", radius=np.ones(2))
    with pytest.raises(ValueError, match=r"no certificate: it lacks .*witness"):
        cert.load_npz(tmp_path / "x.npz")


def test_csv_keeps_every_digit(tmp_path):
    c = make([0, 1 / 3, math.inf], label=[0, 0, 1])
    cert.save_csv(c, tmp_path / "c.csv")
    with (tmp_path / "c.csv").open(newline="") as stream:
        table = list(csv.DictReader(stream))
    assert [float(row["radius"]) for row in table] == [0, 1 / 3, math.inf]
    assert [row["label"] for row in table] == ["a", "a", "b"]
    assert [row["point"] for row in table] == ["0", "1", "2"]


def test_json_is_strict(tmp_path):
    c = make([math.inf, math.inf, 1], q=math.inf)
    cert.save_json(c, tmp_path / "c.json", [0.5, 2])

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    read = json.loads((tmp_path / "c.json").read_text(), parse_constant=refuse)
    assert read["norm"] == "inf"
    assert read["median_radius"] == "inf"
    assert [row["certified"] for row in read["robust_accuracy"]] == [1, pytest.approx(2 / 3)]


def test_clean_accuracy_of_points_that_are_none():
    c = dataclasses.replace(make([0, 1]), predicted=np.array([-1, 0]), label=np.array([-1, 0]))
    assert c.clean_accuracy == 0.5
    assert c.name(-1) is None


def test_what_no_witness_breaks_stands_at_every_radius():
    c = make([1, 2, math.inf], [1, math.inf, math.inf])
    assert cert.robust_accuracy(c, [0.5, math.inf], upper=True).tolist() == [
        1,
        pytest.approx(2 / 3),
    ]
    assert cert.union([c], [math.inf]).broken.tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"predicted": np.array([0, 0, 1])}, "row 2 has another predicted"),
        ({"checksum": cert.checksums(np.array([[0.0], [1.5], [2.0]]))}, "row 1 has another check"),
    ],
)
def test_union_refuses_other_points_of_the_same_labels(changes, reason):
    a = make([1, 1, 1])
    b = dataclasses.replace(a, **changes)
    with pytest.raises(ValueError, match=rf"certificates\[1\] is not of the same .*: {reason}"):
        cert.union([a, b], [1, 1])
    with pytest.raises(ValueError, match="it has 2 rows, not 3"):
        cert.union([a, a.take(np.arange(2))], [1, 1])


def test_checksums_tell_points_not_precisions():
    x = np.random.default_rng(0).random((50, 3)).astype(np.float32)
    one = cert.checksums(x)
    np.testing.assert_array_equal(one, cert.checksums(x.astype(float)))
    assert len(set(one.tolist())) == 50
    assert (one != cert.checksums(x[:, ::-1])).all()


@pytest.mark.parametrize(
    "damage", [lambda b: b"", lambda b: b"garbage", lambda b: b[: len(b) // 2]]
)
def test_a_damaged_file_is_named(tmp_path, damage):
    path = tmp_path / "c.npz"
    cert.save_npz(make([1.0]), path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"c\.npz is no certificate, or a damaged one"):
        cert.load_npz(path)
