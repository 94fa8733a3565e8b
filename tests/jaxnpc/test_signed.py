"""The signed radius of one pair."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxnpc.domains import Box, Unbounded
from jaxnpc.pairwise.table import rho
from jaxnpc.signed import half_space, signed_radius

INF = math.inf


def triples(seed, n=200, d=5):
    return np.random.default_rng(seed).random((3, n, d))


@pytest.mark.parametrize(
    ("p", "q", "domain"),
    [(p, q, d) for p, q in itertools.product((1, 2, INF), repeat=2) for d in (Unbounded(), Box())],
)
def test_on_its_own_side_it_is_rho_and_beyond_that_of_the_flipped_pair(p, q, domain):
    with jax.enable_x64(True):
        z, w_i, w_j = triples(1)
        batched = lambda f: jax.jit(jax.vmap(f))(z, w_i, w_j)  # noqa: E731
        signed = batched(lambda *t: signed_radius(*t, p=p, q=q, domain=domain))
        here = batched(lambda z, i, j: rho(z, i, j, p=p, q=q, domain=domain).radius)
        there = batched(lambda z, i, j: rho(z, j, i, p=p, q=q, domain=Unbounded()).radius)
    own = np.linalg.norm(z - w_i, ord=p, axis=1) < np.linalg.norm(z - w_j, ord=p, axis=1)
    assert 20 < own.sum() < 180
    np.testing.assert_allclose(signed, np.where(own, here, -there), atol=1e-9)


@pytest.mark.parametrize("q", [1, 2, INF])
def test_the_closed_form_is_the_distance_to_the_hyperplane(q):
    z, w_i, w_j = triples(2)
    dual = {1: INF, 2: 2, INF: 1}[q]
    excess = ((z - w_j) ** 2).sum(1) - ((z - w_i) ** 2).sum(1)
    expected = excess / (2 * np.linalg.norm(w_j - w_i, ord=dual, axis=1))
    found = jax.vmap(lambda *t: half_space(*t, q))(
        *(jnp.asarray(a, jnp.float32) for a in (z, w_i, w_j))
    )
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_far_from_the_origin_nothing_cancels():
    z, w_i, w_j = triples(3)
    with jax.enable_x64(True):
        far = [np.float32(a + 100) for a in (z, w_i, w_j)]
        exact = jax.vmap(lambda *t: half_space(*t, 2))(*(a.astype(np.float64) for a in far))
    found = jax.vmap(lambda *t: half_space(*t, 2))(*far)
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-7)
