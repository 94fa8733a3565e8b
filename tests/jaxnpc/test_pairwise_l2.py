"""Half-spaces that belong to no pair of prototypes, and derivatives."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog

from jaxnpc.domains import Box, Unbounded
from jaxnpc.pairwise import l2, proofs
from jaxnpc.pairwise.table import TABLE, rho
from jaxnpc.rounding import Interval, exact

DOMAINS = (Unbounded, Box)  # products of spheres: test_pairwise_spheres
INF = math.inf


@pytest.mark.parametrize("q", [1, INF])
@pytest.mark.parametrize("domain", [Unbounded(), Box(-0.5, 1.0)], ids=["free", "box"])
def test_half_space_is_the_optimum_of_the_linear_program(q, domain):
    rng = np.random.default_rng(0)
    z, v = rng.uniform(-0.5, 1, (20, 4)), rng.normal(size=(20, 4))
    v[:8] = np.round(v[:8])
    need = rng.random(20) * 3
    with jax.enable_x64(True):
        run = jax.vmap(functools.partial(l2.half_space, q=q, domain=domain))
        radius = np.asarray(jax.jit(run)(*map(jnp.asarray, (z, v, need))).radius)
    proved = proofs.half_space(z, exact(v), exact(need), q=q, domain=domain)
    walls = (-0.5, 1.0) if isinstance(domain, Box) else (-1e6, 1e6)
    for k in range(20):
        # x = z + up - down; for q = inf both are below one radius.
        rows = [np.concatenate([-v[k], v[k], [0.0]])]
        rows += [np.concatenate([row, [-1.0 if q == INF else 0.0]]) for row in np.eye(8)]
        sides = [-need[k], *np.full(8, 0.0 if q == INF else INF)]
        bounds = [(0, walls[1] - a) for a in z[k]] + [(0, a - walls[0]) for a in z[k]] + [(0, None)]
        cost = np.concatenate([np.full(8, float(q == 1)), [float(q == INF)]])
        kept = [i for i, side in enumerate(sides) if side < INF]
        found = linprog(cost, np.array(rows)[kept], np.array(sides)[kept], bounds=bounds)
        truth = found.fun if found.success else INF
        assert radius[k] == pytest.approx(truth, rel=1e-7)
        assert proved[k] == pytest.approx(truth, rel=1e-7)


@pytest.mark.parametrize("q", [1, 2, INF])
@pytest.mark.parametrize("domain", [Unbounded(), Box()], ids=["free", "box"])
def test_an_uncertain_half_space_is_no_farther_than_any_it_may_be(q, domain):
    rng = np.random.default_rng(1)
    z, v = rng.random((50, 3)), rng.normal(size=(50, 3)) * 0.1
    v[:25] = np.round(v[:25], 1)
    need, width = rng.random(50) * 0.1, 0.03
    proved = proofs.half_space(
        z, Interval(v - width, v + width), Interval(need - width, need + width), q=q, domain=domain
    )
    for corner in itertools.product((-width, 0.0, width), repeat=4):
        sharp = proofs.half_space(
            z, exact(v + corner[:3]), exact(need + corner[3]), q=q, domain=domain
        )
        assert np.all(np.maximum(proved, 0) <= np.maximum(sharp, 0) * (1 + 1e-12))


def test_a_normal_of_zero_is_reached_only_without_need():
    need = jnp.array([1.0, 0.0])
    for domain in (Unbounded(), Box()):
        run = functools.partial(l2.half_space, jnp.zeros(2), jnp.zeros(2), q=2, domain=domain)
        np.testing.assert_array_equal(jax.jit(jax.vmap(run))(need).radius, [INF, 0])


@pytest.mark.parametrize("boxed", [False, True])
@pytest.mark.parametrize("q", [1, 2, INF])
def test_float32_prototypes_far_apart_or_close_do_not_overflow(q, boxed):
    scale = jnp.array([1e-18, 1.0, 1e18], jnp.float32)
    z, w_i, w_j = (jnp.outer(scale, jnp.array(x)) for x in ([0, 0, 0], [0, 0, 0], [1, 2, 2]))

    def run(z, w_i, w_j, scale):
        domain = Box(-10 * scale, 10 * scale) if boxed else Unbounded()
        return l2.rho(z, w_i, w_j, q=q, domain=domain).radius

    # Squares of the distances lie within float32's range; those of the normal's parts need not.
    radius = jax.jit(jax.vmap(run))(z, w_i, w_j, scale)
    np.testing.assert_allclose(radius / scale, {1: 9 / 4, 2: 3 / 2, INF: 9 / 10}[q], rtol=1e-5)


@pytest.mark.parametrize(
    ("p", "q", "kind"),
    [pytest.param(*c, id=f"{c[0]}-{c[1]}-{c[2].__name__}") for c in TABLE if c[2] in DOMAINS],
)
def test_derivatives_are_those_of_the_radius_and_always_finite(p, q, kind):
    domain = kind()
    rng = np.random.default_rng(3)
    z, w_i, w_j = rng.random((3, 40, 4))
    swap = (np.linalg.norm(z - w_i, p, axis=1) > np.linalg.norm(z - w_j, p, axis=1))[:, None]
    w_i, w_j = np.where(swap, w_j, w_i), np.where(swap, w_i, w_j)
    direction = rng.normal(size=(3, 40, 4))

    def radius(z, w_i, w_j):
        return rho(z, w_i, w_j, p=p, q=q, domain=domain).radius

    with jax.enable_x64(True):
        value_and_grad = jax.jit(jax.vmap(jax.value_and_grad(radius, (0, 1, 2))))
        step = 1e-7
        point = jnp.asarray(np.stack([z, w_i, w_j]))
        middle, slopes = value_and_grad(*point)
        ends = [value_and_grad(*(point + sign * step * direction))[0] for sign in (1, -1)]
        along = sum((g * d).sum(-1) for g, d in zip(slopes, direction, strict=True))
        shown = np.asarray(jnp.isfinite(middle) & jnp.isfinite(ends[0]) & jnp.isfinite(ends[1]))
        difference = np.asarray((ends[0] - ends[1]) / (2 * step))
        assert shown.sum() >= 20
        assert np.isfinite(np.stack(slopes)).all()
        # A kink within the step may fall between: it is rare.
        close = np.isclose(np.asarray(along)[shown], difference[shown], rtol=1e-4, atol=1e-5)
        assert close.mean() >= 0.9

        ties = jnp.asarray([[0.5, 0.5, 0.5, 0.5]] * 3 + [[0.0, 1.0, 0.0, 1.0]])
        nothing = value_and_grad(ties, ties, ties[::-1])[1]
        assert np.isfinite(np.stack(nothing)).all()
