"""The pair that decides, against all pairs; what is hidden stays out."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxnpc.domains import Box, Unbounded
from jaxnpc.selection import OWNS, decisive, members, nearest, visible
from jaxnpc.signed import signed_radius

pytestmark = pytest.mark.compiled_quickly

INF = math.inf
LABELS = np.array([1, 0, 2, 0, 1, 0, 2, 0, 1, 2])  # class 0 has 4, the others 3
K, D, N = len(LABELS), 3, 40


def cases(seed):
    """Points and prototypes in [0, 1]: plain, with points and prototypes that coincide, a grid."""
    rng = np.random.default_rng(seed)
    x, w = rng.random((N, D)), rng.random((K, D))
    y = rng.integers(0, 3, N)
    yield x, w, y
    x2, w2 = x.copy(), w.copy()
    w2[3], w2[4], w2[5] = w2[0], w2[1], w2[0]  # equal in one class and across classes
    x2[:K] = w2
    yield x2, w2, y
    yield np.round(3 * x) / 3, np.round(2 * w) / 2, np.zeros(N, int)


def sigma(x, w, p, q, domain):
    """All signed radii, in float64."""
    with jax.enable_x64(True):
        one = lambda z, i, j: signed_radius(z, i, j, p=p, q=q, domain=domain)  # noqa: E731
        every = jax.vmap(jax.vmap(jax.vmap(one, (None, None, 0)), (None, 0, None)), (0, None, None))
        return np.asarray(every(*(jnp.asarray(a, jnp.float64) for a in (x, w, w))))


def masks(group, y, seed):
    """Everything shown; a random half of it, never nothing."""
    real = group.real[y]
    yield real
    luck = np.where(real, np.random.default_rng(seed).random(real.shape), -1)
    yield real & ((luck > 0.5) | (luck == luck.max(axis=1, keepdims=True)))


CELLS = [
    *[(2, q, domain) for q in (1, 2, INF) for domain in (Unbounded(), Box())],
    *[(p, INF, domain) for p in (1, INF) for domain in (Unbounded(), Box())],
    (INF, 2, Box()),
]


@pytest.mark.parametrize(("p", "q", "domain"), CELLS)
def test_the_pair_is_that_of_the_min_max_over_all_pairs(p, q, domain):
    group = members(LABELS)
    assert max(np.bincount(LABELS)) <= OWNS  # else candidates alone are tried
    choose = jax.jit(decisive(group, p=p, q=q, domain=domain, rivals=K))
    for x, w, y in cases(1):
        x, w = x.astype(np.float32), w.astype(np.float32)
        every = sigma(x, w, p, q, domain)
        for shown in masks(group, y, 2):
            pairs = choose(w, x, y, shown)
            i, j = np.asarray(pairs.own)[:, 0], np.asarray(pairs.rival)[:, 0]
            assert (LABELS[i] == y).all()
            assert (LABELS[j] != y).all()
            for a in range(N):
                own = group.table[y[a]][shown[a]]
                assert i[a] in own
                best = every[a][own].max(axis=0)[y[a] != LABELS].min()
                found = every[a, i[a], j[a]]
                # Rounding may prefer another pair, but none that is worse by more than that.
                if math.isinf(best):
                    assert math.isinf(every[a][own, j[a]].max())
                    continue
                np.testing.assert_allclose(found, best, atol=3e-3 if best == 0 else 2e-5)
                np.testing.assert_allclose(every[a][own, j[a]].max(), best, atol=2e-3)


@pytest.mark.parametrize("q", [1, 2, INF])
def test_one_rival_is_that_of_the_closest_own_prototype(q):
    group = members(LABELS)
    choose = jax.jit(decisive(group, p=2, q=q, domain=Unbounded(), rivals=1))
    x, w, y = next(cases(3))
    x, w = x.astype(np.float32), w.astype(np.float32)
    every = sigma(x, w, 2, q, Unbounded())
    pairs = choose(w, x, y, group.real[y])
    for a in range(N):
        own, foreign = np.flatnonzero(y[a] == LABELS), np.flatnonzero(y[a] != LABELS)
        star = own[np.linalg.norm(x[a] - w[own], axis=1).argmin()]
        j = foreign[every[a, star, foreign].argmin()]
        assert pairs.rival[a, 0] == j
        assert pairs.own[a, 0] == own[every[a, own, j].argmax()]


@pytest.mark.parametrize("counts", [(1, 300), (150, 1), (300, 300), (0, 70)])
def test_blocks_hold_any_mixture_of_classes(counts):
    rng = np.random.default_rng(4)
    labels = np.repeat([0, 1], [90, 40])
    x = rng.normal(size=(sum(counts), 5)).astype(np.float32)
    w = rng.normal(size=(130, 5)).astype(np.float32)
    y = rng.permutation(np.repeat([0, 1], counts))
    group = members(labels)
    pairs = jax.jit(decisive(group, p=2, q=2, domain=Unbounded(), rivals=90))(
        w, x, y, group.real[y]
    )
    wide = [a.astype(np.float64) for a in (x, w)]
    d = ((wide[0][:, None] - wide[1]) ** 2).sum(-1)
    gap = np.sqrt(((wide[1][:, None] - wide[1]) ** 2).sum(-1))
    for a in range(len(x)):
        own, foreign = labels == y[a], labels != y[a]
        bound = (d[a, foreign] - d[a, own][:, None]) / (2 * gap[np.ix_(own, foreign)])
        i, j = int(pairs.own[a, 0]), int(pairs.rival[a, 0])
        found = (d[a, j] - d[a, i]) / (2 * gap[i, j])
        np.testing.assert_allclose(found, bound.max(axis=0).min(), atol=1e-5)


@pytest.mark.parametrize("p", [1, 2, INF])
def test_the_nearest_come_in_order_and_say_how_many_count(p):
    group = members(LABELS)
    choose = jax.jit(nearest(group, p, 5))
    for x, w, y in cases(5):
        x, w = x.astype(np.float32), w.astype(np.float32)
        d = np.linalg.norm(x[:, None].astype(float) - w, ord=p, axis=-1)
        for shown in masks(group, y, 6):
            pairs = jax.tree.map(np.asarray, choose(w, x, y, shown))
            assert (pairs.own_counts.sum(axis=1) == np.minimum(shown.sum(axis=1), 5)).all()
            assert pairs.rival_counts.all()
            for a in range(N):
                own = group.table[y[a]][shown[a]]
                mine = pairs.own[a][pairs.own_counts[a]]
                np.testing.assert_allclose(d[a, mine], np.sort(d[a, own]), atol=2e-3)
                theirs = np.sort(d[a, y[a] != LABELS])[:5]
                np.testing.assert_allclose(d[a, pairs.rival[a]], theirs, atol=2e-3)


def test_nearest_asks_a_function_for_distances():
    group = members([0, 0, 1])
    far = lambda x, w: -jnp.abs(x[:, None, 0, 0] - w[None, :, 0, 0])  # noqa: E731
    w = jnp.array([0.0, 2.0, 5.0]).reshape(3, 1, 1)
    pairs = nearest(group, far)(w, jnp.zeros((1, 1, 1)), jnp.array([0]), group.real[[0]])
    assert pairs.own.tolist() == [[1]]


def test_dropout_hides_each_own_prototype_as_often_but_never_all():
    labels = np.repeat([0, 1], [1, 3])
    group = members(labels)
    y = np.repeat([0, 1], 4000)
    for dropout in (0.0, 0.4, 0.95):
        shown = np.asarray(visible(jax.random.key(0), group, y, dropout))
        assert (shown <= group.real[y]).all()  # fillings stay out
        assert shown.any(axis=1).all()
        share = shown[4000:].mean()
        kept = 1 - dropout + dropout**3 / 3  # one is kept where all three would be hidden
        assert abs(share - kept) < 4 * math.sqrt(0.25 / 12000)


@pytest.mark.parametrize(
    "labels", [[0, 0], [0, 2], [], [-1, 0, 1], [0.0, 1.0], [[0, 1]], ["a", "b"]]
)
def test_labels_that_are_no_class_indices_are_refused(labels):
    with pytest.raises(ValueError, match="labels"):
        members(labels)
