"""Bounds over all prototypes: the min-max itself, never more, whatever was pruned on the way."""

import itertools
import math
import os
import subprocess
import sys
from fractions import Fraction
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxnpc import batching, best_first
from jaxnpc.bounds import lower_bounds, margin_bounds
from jaxnpc.domains import Box, Unbounded
from jaxnpc.pairwise.l2 import half_space
from jaxnpc.pairwise.table import is_exact, rho
from jaxnpc.prototypes import prototype_classifier

INF = math.inf
CELLS = [(p, q, domain) for p, q in itertools.product((1, 2, INF), repeat=2) for domain in (0, 1)]
K, D, N, CLASSES = 12, 4, 24, 3


@partial(jax.jit, static_argnames=("p", "q"))
def all_radii(z, w, domain, p, q):
    radius = lambda z, i, j: rho(z, w[i], w[j], p=p, q=q, domain=domain).radius  # noqa: E731
    k = jnp.arange(len(w))
    return jax.vmap(jax.vmap(jax.vmap(radius, (None, None, 0)), (None, 0, None)), (0, None, None))(
        z, k, k
    )


def reference(z, w, labels, y, p, q, domain):
    """The min over j of the max over i, and of i*, from every pair's radius in float64."""
    with jax.enable_x64(True):
        radii = np.asarray(all_radii(z.astype(float), w.astype(float), domain, p, q))
    distance = np.linalg.norm(z[:, None].astype(float) - w, ord=p, axis=-1)
    best, nearest = np.zeros((2, len(z)))
    for a in range(len(z)):
        own, rest = (np.flatnonzero(labels == y[a]), np.flatnonzero(labels != y[a]))
        best[a] = radii[a][np.ix_(own, rest)].max(axis=0).min()
        nearest[a] = radii[a][own[distance[a, own].argmin()], rest].min()
    return best, nearest


def cases(seed):
    """Points and prototypes of one shape: plain, shared coordinates, far from 0, tiny, a grid."""
    rng = np.random.default_rng(seed)
    for offset, scale, kind in [
        (0, 1, ""),
        (0, 1, "shared"),
        (64, 1, ""),
        (0, 1e-4, ""),
        (0, 1, "grid"),
    ]:
        w, z = rng.random((K, D)), rng.random((N, D))
        if kind == "shared":
            w[:, :2] = w[0, :2]
            w[1] = w[0]  # equal prototypes of different classes
            z[0] = w[5]
        if kind == "grid":
            w, z = (rng.integers(0, 3, v.shape) / 2 for v in (w, z))
        yield tuple((offset + scale * v).astype(np.float32) for v in (w, z)), offset, scale


@pytest.mark.parametrize(("p", "q", "boxed"), CELLS)
def test_the_minimum_of_the_maximum_and_never_more(p, q, boxed, monkeypatch):
    monkeypatch.setattr(batching, "QUEUE", (64,))  # one program is enough here
    labels = np.arange(K) % CLASSES
    for (w, z), offset, scale in cases(17):
        classifier = prototype_classifier(w, labels, distance=p)
        distance = np.linalg.norm(z[:, None].astype(float) - w, ord=p, axis=-1)
        y = labels[distance.argmin(axis=1)]
        y[-2:] = (y[-2:] + 1) % CLASSES  # misclassified
        domain = Box(np.full(D, offset), np.full(D, offset + scale)) if boxed else Unbounded()
        best, nearest = reference(z, w, labels, y, p, q, domain)
        all_own = lower_bounds(classifier, z, y, q=q, domain=domain)
        star = lower_bounds(classifier, z, y, q=q, domain=domain, selection="nearest")
        # The relaxed cells' own arithmetic is what the proof improves on or falls short of.
        slack = 1e-9 if is_exact(p, q, domain) else 1e-5
        for found, true in ((all_own, best), (star, nearest)):
            finite = np.isfinite(true)
            assert (found.radius[finite] <= true[finite] * (1 + slack) + 1e-12 * scale).all()
            # A relaxed cell's witness lies beyond its radius, so that the i it rules out may have
            # a little larger a bound: there i* is promised, the maximum is not.
            least = nearest if not is_exact(p, q, domain) else true
            rtol = 1e-4 if offset else 2e-5
            assert (found.radius >= least * (1 - rtol) - 1e-5 * scale).all()
        assert (all_own.radius[-2:] == 0).all()
        assert (all_own.radius >= star.radius * (1 - 1e-4)).all()


@pytest.mark.parametrize("q", [1, 2, INF])
@pytest.mark.parametrize("boxed", [False, True])
@pytest.mark.parametrize("with_table", [False, True])
def test_pruning_drops_no_rival_that_matters(q, boxed, with_table, monkeypatch):
    """240 prototypes far from the origin, where the cheap distances have lost five digits."""
    monkeypatch.setattr("jaxnpc.rivals.TABLE_BYTES", 1 << 28 if with_table else 0)
    rng = np.random.default_rng(3)
    w, z = (1000 + rng.random((m, 6)) for m in (240, 16))
    w, z = w.astype(np.float32), z.astype(np.float32)
    labels = np.arange(240) % 4
    gap = np.linalg.norm(z[:, None].astype(float) - w, axis=-1)
    y = labels[gap.argmin(axis=1)]
    domain = Box(1000.0, 1001.0) if boxed else Unbounded()
    found = lower_bounds(prototype_classifier(w, labels), z, y, q=q, domain=domain)
    with jax.enable_x64(True):
        radii = np.asarray(plane_radii(z.astype(float), w.astype(float), domain, q))
    for a in range(len(z)):
        own, rest = labels == y[a], labels != y[a]
        best = radii[a][own][:, rest].max(axis=0).min()
        assert found.radius[a] <= best * (1 + 1e-9)
        np.testing.assert_allclose(found.radius[a], best, rtol=1e-3, atol=1e-4)
    assert found.evaluated.mean() < 90  # of 180 rivals


@partial(jax.jit, static_argnames="q")
def plane_radii(z, w, domain, q):
    def one(z, w_i, w_j):
        need = jnp.sum((w_j - w_i) * (w_i + w_j - 2 * z)) / 2
        return half_space(z, w_j - w_i, need, q=q, domain=domain).radius

    rows = jax.vmap(jax.vmap(one, (None, None, 0)), (None, 0, None))
    return jax.lax.map(lambda z: rows(z, w, w), z)


def exact_radius(z, w, labels, y, p, q):
    """The min-max in rational arithmetic, on R^d, where it is rational."""
    z, w = [Fraction(float(v)) for v in z], [[Fraction(float(v)) for v in row] for row in w]
    own = [k for k in range(len(w)) if labels[k] == y]
    rest = [k for k in range(len(w)) if labels[k] != y]

    def radius(i, j):
        v = [b - a for a, b in zip(w[i], w[j], strict=True)]
        need = sum((a - c) ** 2 - (a - b) ** 2 for a, b, c in zip(z, w[i], w[j], strict=True))
        if need <= 0:
            return Fraction(0)
        size = max(map(abs, v)) if q == 1 else sum(map(abs, v))
        return need / 2 / size

    return min(max(radius(i, j) for i in own) for j in rest)


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, INF]),
    st.sampled_from([1e-12, 1e-3, 1.0, 1e6]),
    st.sampled_from([0.0, 1.0, 100.0]),
    st.sampled_from([np.float32, np.float64]),
)
def test_no_radius_exceeds_the_rational_one(seed, q, scale, offset, dtype):
    rng = np.random.default_rng(seed)
    w = (scale * (offset + rng.normal(size=(K, D)))).astype(np.float32)
    z = (scale * (offset + rng.normal(size=(N, D)))).astype(dtype)
    labels = np.arange(K) % CLASSES
    y = labels[np.linalg.norm(z[:, None].astype(float) - w, axis=-1).argmin(axis=1)]
    found = lower_bounds(prototype_classifier(w, labels), z, y, q=q)
    for a in range(0, N, 4):
        true = exact_radius(z[a], w, labels, y[a], 2, q)
        assert Fraction(found.radius[a]) <= true
        if offset == 0:
            assert found.radius[a] >= float(true) * 0.999 - 1e-5 * scale


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, INF]),
    st.sampled_from([1e-30, 1.0, 1e30]),
    st.sampled_from([np.float32, np.float64]),
)
def test_no_margin_exceeds_the_rational_one(seed, p, scale, dtype):
    rng = np.random.default_rng(seed)
    w = (scale * rng.normal(size=(K, D))).astype(np.float32)
    z = (scale * rng.normal(size=(N, D))).astype(dtype)
    labels = np.arange(K) % CLASSES
    y = labels[np.linalg.norm(z[:, None] / scale - w / scale, ord=p, axis=-1).argmin(axis=1)]
    found = margin_bounds(prototype_classifier(w, labels, distance=p), z, y)
    fold = sum if p == 1 else max
    for a in range(0, N, 3):
        gap = [
            fold(
                abs(Fraction(float(s)) - Fraction(float(t))) for s, t in zip(z[a], row, strict=True)
            )
            for row in w
        ]
        own = min(gap[k] for k in range(K) if labels[k] == y[a])
        rest = min(gap[k] for k in range(K) if labels[k] != y[a])
        true = (rest - own) / 2
        assert Fraction(found.radius[a]) <= max(true, 0)
        assert found.radius[a] >= float(true) * (1 - 1e-9)
        i, j = found.pair[a]
        assert labels[i] == y[a] != labels[j]
        assert (gap[i] - own, gap[j] - rest) == (0, 0)


@pytest.mark.parametrize("p", [1, 2, INF])
def test_theorem_2_10_orders_the_bounds(p):
    rng = np.random.default_rng(5)
    w, z = rng.random((K, D)).astype(np.float32), rng.random((N, D)).astype(np.float32)
    labels = np.arange(K) % CLASSES
    y = labels[np.linalg.norm(z[:, None] - w, ord=p, axis=-1).argmin(axis=1)]
    classifier = prototype_classifier(w, labels, distance=p)
    margin = margin_bounds(classifier, z, y).radius
    star = lower_bounds(classifier, z, y, q=p, selection="nearest").radius
    full = lower_bounds(classifier, z, y, q=p).radius
    assert (margin <= star * (1 + 1e-5)).all()
    assert (star <= full * (1 + 1e-5)).all()
    assert (full > star * 1.001).any() or p == 1


def test_the_example_of_theorem_2_10():
    """Two own prototypes and a rival on a line: 0.5 by Theorem 2.4, 1.5 for p = 2 (corrected)."""
    classifier = prototype_classifier([[0.0, 1.0], [3.0, 0.0]], ["own", "other"])
    found = lower_bounds(classifier, np.zeros((1, 2), np.float32), [1])
    margin = margin_bounds(classifier, np.zeros((1, 2), np.float32), [1])
    assert margin.radius[0] == pytest.approx(1.0)
    assert found.radius[0] == pytest.approx(4 / math.sqrt(10))


def test_a_tight_bound_is_the_minimal_perturbation():
    rng = np.random.default_rng(6)
    w, z = rng.random((K, 2)).astype(np.float32), rng.random((200, 2)).astype(np.float32)
    labels = np.arange(K) % CLASSES
    gap = np.linalg.norm(z[:, None] - w, axis=-1)
    y = labels[gap.argmin(axis=1)]
    found = lower_bounds(prototype_classifier(w, labels), z, y, domain=Box())
    assert 0.3 < found.tight.mean() < 1
    to_all = np.linalg.norm(found.witness[:, None] - w, axis=-1)
    rows = np.arange(len(z))
    own = np.where(labels == y[:, None], to_all, np.inf).min(axis=1)
    reaches = to_all[rows, found.pair[:, 1]] <= own + 1e-5
    assert (reaches == found.tight)[np.abs(to_all[rows, found.pair[:, 1]] - own) > 1e-4].all()
    np.testing.assert_allclose(
        np.linalg.norm(found.witness - z, axis=1), found.radius, rtol=1e-4, atol=1e-5
    )
    # Nothing closer changes the class: a dense ring just inside each radius.
    angle = np.linspace(0, 2 * np.pi, 64, endpoint=False)
    ring = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    for radius in (0.5, 0.999):
        x = np.clip(z[:, None] + radius * found.radius[:, None, None] * ring, 0, 1)
        nearest = labels[np.linalg.norm(x[:, :, None] - w, axis=-1).argmin(axis=-1)]
        assert (nearest == y[:, None]).all()


def test_relaxed_cells_are_never_called_tight():
    rng = np.random.default_rng(7)
    w, z = rng.random((K, D)).astype(np.float32), rng.random((N, D)).astype(np.float32)
    labels = np.arange(K) % CLASSES
    y = labels[np.abs(z[:, None] - w).sum(axis=-1).argmin(axis=1)]
    found = lower_bounds(prototype_classifier(w, labels, distance=1), z, y, q=1)
    assert not found.tight[found.radius > 0].any()


@pytest.mark.parametrize("q", [1, 2, INF])
@pytest.mark.parametrize("boxed", [False, True])
def test_a_metric_measures_in_input_space(q, boxed):
    rng = np.random.default_rng(8)
    w, z = rng.random((K, D)).astype(np.float32), rng.random((N, D)).astype(np.float32)
    a = rng.normal(size=(3, D)).astype(np.float32)
    labels = np.arange(K) % CLASSES
    images, w_images = (v.astype(float) @ a.T.astype(float) for v in (z, w))
    y = labels[np.linalg.norm(images[:, None] - w_images, axis=-1).argmin(axis=1)]
    domain = Box() if boxed else Unbounded()
    found = lower_bounds(prototype_classifier(w, labels, metric=a), z, y, q=q, domain=domain)
    normals = w_images @ a
    with jax.enable_x64(True):
        plane = partial(half_space, q=q, domain=domain)
        each = jax.jit(jax.vmap(plane))
        for n in range(N):
            own, rest = np.flatnonzero(labels == y[n]), np.flatnonzero(labels != y[n])
            i, j = (v.ravel() for v in np.meshgrid(own, rest, indexing="ij"))
            far = np.sum((images[n] - w_images) ** 2, axis=1)
            radius = np.asarray(
                each(np.repeat(z[n : n + 1].astype(float), len(i), 0), normals[j] - normals[i],
                     (far[j] - far[i]) / 2).radius
            )  # fmt: skip
            best = radius.reshape(len(own), len(rest)).max(axis=0).min()
            assert found.radius[n] <= best * (1 + 1e-9)
            np.testing.assert_allclose(found.radius[n], best, rtol=1e-4, atol=1e-6)


def euclid(x, w):
    return jnp.linalg.norm(x[:, None] - w[None], axis=-1)


def test_a_semi_metric_gets_theorem_2_4():
    rng = np.random.default_rng(9)
    w, z = rng.random((K, D)).astype(np.float32), rng.random((N, D)).astype(np.float32)
    labels = np.arange(K) % CLASSES
    y = labels[np.linalg.norm(z[:, None] - w, axis=-1).argmin(axis=1)]
    own = prototype_classifier(w, labels, distance=euclid)
    norm = margin_bounds(prototype_classifier(w, labels), z, y)
    found = margin_bounds(own, z, y)
    np.testing.assert_allclose(found.radius, norm.radius, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(found.pair, norm.pair)
    with pytest.raises(ValueError, match="distance is a callable"):
        lower_bounds(own, z, y)


@pytest.mark.parametrize("bound", [lower_bounds, margin_bounds])
def test_points_without_a_radius(bound):
    classifier = prototype_classifier([[0.0, 0.0], [2.0, 0.0]], ["a", "b"])
    z = np.array([[np.nan, 0], [np.inf, 0], [1.0, 3.0], [1.5, 0], [0.5, 0], [0.5, 0]], np.float32)
    found = bound(classifier, z, [0, 0, 0, 0, 0, -1])
    assert found.radius[:4].tolist() == [0, 0, 0, 0]
    assert found.radius[4] == pytest.approx(0.5)
    assert found.radius[5] == 0
    assert found.pair[[0, 1, 5]].tolist() == [[-1, -1]] * 3
    assert found.pair[4].tolist() == [0, 1]
    empty = bound(classifier, np.zeros((0, 2)), np.zeros(0, int))
    assert empty.radius.shape == (0,)


@pytest.mark.parametrize("p", [1, 2, INF])
def test_nothing_in_the_box_flips_the_point(p):
    classifier = prototype_classifier([[0.0, 0.0], [9.0, 0.0]], ["a", "b"], distance=p)
    found = lower_bounds(classifier, [[0.5, 0.5]], [0], q=INF, domain=Box())
    assert found.radius.tolist() == [INF]
    assert found.pair.tolist() == [[-1, -1]]
    assert found.tight.all()


def test_huge_and_tiny_numbers_prove_nothing_false():
    for scale in (1e-42, 1e-25, 1e19, 3e37):
        w = (scale * np.array([[0.0, 1.0], [1.0, 0.0]])).astype(np.float32)
        z = (scale * np.array([[0.0, 0.75], [0.6, 0.5]])).astype(np.float32)
        classifier = prototype_classifier(w, ["a", "b"])
        found = lower_bounds(classifier, z, [0, 1], q=INF)
        for a in range(2):
            assert Fraction(found.radius[a]) <= exact_radius(z[a], w, [0, 1], a, 2, INF)


def test_float64_points_beyond_float32_are_answered():
    classifier = prototype_classifier([[0.0], [1.0]], ["a", "b"])
    found = lower_bounds(classifier, np.array([[1e300], [-1e300], [0.25]]), [1, 0, 0])
    assert found.radius[2] == pytest.approx(0.25)
    assert np.isfinite(found.radius).all()
    assert (found.radius[:2] <= 1e300).all()


@pytest.mark.parametrize(
    ("x", "labels", "options", "error", "message"),
    [
        ([[0.0, 0.0]], [0], {"q": 3}, ValueError, r"q must be 1, 2 or float\('inf'\), got 3"),
        ([[0.0, 0.0]], [0], {"selection": "best"}, ValueError, "got 'best'"),
        ([[0.0, 0.0]], [0], {"domain": "box"}, TypeError, "domain is 'box'"),
        ([[0.0, 1.5]], [0], {"domain": Box()}, ValueError, r"x\[0, 1\] is 1.5, outside"),
        ([[0.0, 0.0, 0.0]], [0], {}, ValueError, r"x has shape \(1, 3\)"),
        ([["a", "b"]], [0], {}, TypeError, "x must hold real numbers"),
        ([[0.0, 0.0]], [0, 1], {}, ValueError, r"labels has shape \(2,\) for 1 points"),
        ([[0.0, 0.0]], [2], {}, ValueError, r"labels\[0\] is 2, but the classifier has 2"),
        ([[0.0, 0.0]], ["a"], {}, TypeError, "labels must be class indices"),
        ([[0.0, 0.0]], [0.0], {}, TypeError, "labels must be class indices"),
    ],
)
def test_errors_name_the_argument(x, labels, options, error, message):
    classifier = prototype_classifier([[0.0, 0.0], [1.0, 0.0]], ["a", "b"])
    with pytest.raises(error, match=message):
        lower_bounds(classifier, x, labels, **options)


def test_blocks_compile_once():
    rng = np.random.default_rng(10)
    w = rng.random((40, 3)).astype(np.float32)
    classifier = prototype_classifier(w, np.arange(40) % 2)
    best_first._radius.clear_cache()
    for n in (40, 50, 60):
        z = rng.random((n, 3)).astype(np.float32)
        y = (np.linalg.norm(z[:, None] - w, axis=-1).argmin(axis=1) % 2).astype(int)
        y[: n // 2], y[n // 2 :] = 0, 1
        lower_bounds(classifier, z, y, domain=Box())
    assert best_first._radius._cache_size() <= 2


ONE_NN = """
import resource, sys
from pathlib import Path
import numpy as np
from jaxnpc.bounds import lower_bounds
from jaxnpc.datasets import mnist
from jaxnpc.domains import Box
from jaxnpc.decisions import predict
from jaxnpc.prototypes import prototype_classifier
train, test = mnist("train", folder=sys.argv[1]), mnist("test", folder=sys.argv[1])
classifier = prototype_classifier(train.points, train.labels)
x, y = test.points[:100], test.labels[:100]
right = np.array(predict(classifier, x)) == y
found = lower_bounds(classifier, x, y, q=2, domain=Box(), selection="nearest")
assert ((found.radius > 0) == right).all()
# Linux counts in ru_maxrss the process that started this one, too; VmHWM is this program's alone.
status = Path("/proc/self/status")
if status.exists():
    peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    print(int(peak.split()[1]) * 1024)
else:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_1_nn_over_sixty_thousand_images_fits_four_gib():
    root = Path(__file__).resolve().parents[2]
    folder = Path(os.environ.get("JAXNPC_DATA", root.parent / "shared" / "data"))
    if not (folder / "mnist" / "train-images-idx3-ubyte.gz").exists():
        pytest.skip("MNIST is not there; set JAXNPC_DATA to the folder that holds mnist/")
    done = subprocess.run(
        [sys.executable, "-c", ONE_NN, str(folder)], capture_output=True, text=True, check=True
    )
    assert 2**30 / 8 < int(done.stdout) < 4 * 2**30


def test_a_box_of_lists_and_a_norm_in_an_array():
    classifier = prototype_classifier([[0.0, 0.0], [1.0, 0.0]], ["a", "b"])
    x, label = [[0.25, 0.25]], [0]
    boxed = lower_bounds(classifier, x, label, domain=Box([0, 0], [1, 1]))
    assert boxed.radius[0] == pytest.approx(0.25)
    with pytest.raises(ValueError, match=r"q must be 1, 2 or float\('inf'\), got array"):
        lower_bounds(classifier, x, label, q=np.array([2]))
