"""What own prototypes prove against all rivals: less than every pair's radius, and most of it."""

import math
from fractions import Fraction

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxnpc.bounds import lower_bounds
from jaxnpc.domains import Box, Unbounded
from jaxnpc.pairwise.linf import reach
from jaxnpc.pairwise.proofs import linf_reach
from jaxnpc.pairwise.table import prove
from jaxnpc.prototypes import prototype_classifier

N, D = 32, 5
DOMAINS = {"unbounded": Unbounded(), "box": Box(0.0, 1.0)}
numbers = st.one_of(st.integers(-2, 6).map(lambda k: k / 4), st.floats(-0.5, 1.5, width=32))
inside = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1, width=32))


def rows(entry):
    return st.lists(st.tuples(*D * [entry]), min_size=N, max_size=N)


def least_budget(z, w, distance, boxed):
    """In rational arithmetic: the least e at which x can be as far from w as distance - e."""
    z, w = ([Fraction(float(v)) for v in x] for x in (z, w))
    best = None
    for a, b in zip(z, w, strict=True):
        for way in (1, -1):
            lack = Fraction(float(distance)) - way * (a - b)
            room = (1 - a if way > 0 else a) if boxed else None
            step = lack / 2 if room is None else max(lack / 2, lack - room)
            best = step if best is None else min(best, step)
    return best


@pytest.mark.parametrize("domain", DOMAINS)
@settings(max_examples=25, deadline=None)
@given(z=rows(inside), w_i=rows(numbers), w_j=rows(numbers))
def test_never_above_the_budget_nor_above_any_radius(domain, z, w_i, w_j):
    z, w_i, w_j = (np.array(v, float) for v in (z, w_i, w_j))
    distance = np.abs(z - w_j).max(axis=1)
    found = linf_reach(z, w_i, distance, DOMAINS[domain])
    with jax.enable_x64(True):
        kernel = jax.vmap(lambda z, w, d: reach(z, w, d, DOMAINS[domain]))
        close = np.asarray(kernel(z, w_i, distance))
    radius = {
        q: prove(z, w_i, w_j, p=math.inf, q=q, domain=DOMAINS[domain]) for q in (1, 2, math.inf)
    }
    for n in range(N):
        true = least_budget(z[n], w_i[n], distance[n], domain == "box")
        assert Fraction(float(found[n])) <= true
        assert float(true) - found[n] <= 1e-14
        assert abs(close[n] - float(true)) <= 1e-14
        assert all(found[n] <= r[n] * (1 + 1e-12) + 1e-14 for r in radius.values())


@pytest.mark.parametrize("domain", DOMAINS)
def test_it_grows_by_half_of_what_the_distance_grows(domain):
    rng = np.random.default_rng(0)
    z, w = rng.random((N, D)), rng.random((N, D))
    one, more = rng.random((2, N))
    near, far = (linf_reach(z, w, v, DOMAINS[domain]) for v in (one, one + more))
    assert (far - near >= more / 2 - 1e-15).all()
    assert (far - near <= more + 1e-15).all()


@pytest.mark.parametrize("selection", ["all", "nearest"])
def test_of_many_equally_far_rivals_a_few_are_looked_at(selection):
    """Binary images in [0, 1]: nearly all distances are 1, and the walls decide."""
    rng = np.random.default_rng(1)
    w = np.clip(rng.integers(-1, 3, (600, 40)) + rng.uniform(-0.2, 0.2, (600, 40)), 0, 1)
    w = (np.round(w * 255) / 255).astype(np.float32)
    labels = np.arange(600) % 3
    push = np.where(w[:30] < 0.5, 0.7, -0.7) * (rng.random((30, 40)) < 0.2)
    z = np.clip(w[:30] + push, 0, 1).astype(np.float32)
    classifier = prototype_classifier(w, labels, distance=math.inf)
    far = np.abs(z[:, None].astype(float) - w).max(axis=2)
    y = labels[:30]
    boxed, free = (
        lower_bounds(classifier, z, y, q=math.inf, domain=domain, selection=selection)
        for domain in (Box(), Unbounded())
    )
    assert (boxed.radius >= free.radius).all()
    assert boxed.evaluated.mean() < 40  # of 400
    for n in range(30):
        own, rest = np.flatnonzero(labels == y[n]), np.flatnonzero(labels != y[n])
        own = own if selection == "all" else own[[far[n, own].argmin()]]
        i, j = (v.ravel() for v in np.meshgrid(own, rest, indexing="ij"))
        every = prove(z[np.full(len(i), n)], w[i], w[j], p=math.inf, q=math.inf, domain=Box())
        best = every.reshape(len(own), -1).max(axis=0).min()
        assert best - 3e-7 <= boxed.radius[n] <= best
