"""The corrected Prop. 3.1: sound on all that it admits, tight where it can be, never overstated."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, minimize_scalar

from jaxnpc.domains import SphereProduct, Unbounded, check, check_spheres
from jaxnpc.pairwise.sphere_proofs import as_float64, dual_bound, group_squares
from jaxnpc.pairwise.table import is_exact, prove, rho
from jaxnpc.rounding import exact, total
from tests.jaxnpc import spheres

KINDS = ["sphere", "shell", "ball"]


@functools.cache
def kernel(space_kind):
    space = spheres.domain(space_kind)
    return jax.jit(jax.vmap(functools.partial(rho, p=2, q=2, domain=space)))


def found(triples, kind):
    result = kernel(kind)(*map(jnp.asarray, triples))
    return np.asarray(result.radius), np.asarray(result.witness)


def flips(x, w_i, w_j):
    return np.linalg.norm(x - w_i, axis=-1) >= np.linalg.norm(x - w_j, axis=-1)


@pytest.mark.parametrize("kind", KINDS)
def test_no_admissible_point_within_the_radius_flips_the_pair(kind):
    space = spheres.domain(kind)
    triples = spheres.triples(0, 200, space)
    z, w_i, w_j = (v[:, None] for v in triples)
    radius = prove(*triples, p=2, q=2, domain=space)
    assert (radius > 0.05).mean() > 0.8
    rng = np.random.default_rng(1)
    nearest = np.full(200, np.inf)
    for zero in (0.0, 0.1, 0.5):
        x = spheres.members(rng, 2000, space, zero)
        away = np.where(flips(x, w_i, w_j), np.linalg.norm(x - z, axis=-1), np.inf)
        nearest = np.minimum(nearest, away.min(axis=1))
    # 1.2 million points, those with groups that vanish among them.
    assert (nearest >= radius * (1 - 1e-12)).all()
    some = np.isfinite(nearest)
    assert np.median(radius[some] / nearest[some]) > 0.7


def test_exhaustively_on_two_circles():
    space = SphereProduct(((1, 2), (1, 2)), np.array([0.6, 1.0]), np.array([0.6, 1.0]))
    angle = np.linspace(0, np.pi / 2, 400)
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    arcs = [np.concatenate([r * circle, [[0.0, 0.0]]]) for r in (0.6, 1.0)]
    every = np.array([np.concatenate(pair) for pair in itertools.product(*arcs)])
    z, w_i, w_j = spheres.triples(2, 60, space)
    radius = prove(z, w_i, w_j, p=2, q=2, domain=space)
    for k in range(60):
        far = np.linalg.norm(every - z[k], axis=1)
        true = np.min(far, where=flips(every, w_i[k], w_j[k]), initial=np.inf)
        assert true >= radius[k] * (1 - 1e-12)
        if np.isinf(radius[k]):
            assert np.isinf(true)


def test_a_group_that_vanishes_breaks_the_paper_s_bound_but_not_this_one():
    # All of the circle keeps w_i, its centre does not.
    space = SphereProduct(((1, 2),), np.ones(1), np.ones(1))
    z, w_i = np.array([[0.6, 0.8]]), np.array([[0.9, 0.9]])
    w_j = np.array([[-0.1, -0.2]])
    angle = np.linspace(0, np.pi / 2, 1000)
    assert not flips(np.stack([np.cos(angle), np.sin(angle)], 1), w_i, w_j).any()
    assert flips(np.zeros(2), w_i, w_j).all()
    radius = prove(z, w_i, w_j, p=2, q=2, domain=space)
    assert 0.5 < radius[0] <= 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_the_multiplier_is_the_best_one(kind):
    space = spheres.domain(kind)
    triples = spheres.triples(3, 40, space)
    with jax.enable_x64(True):
        radius, _ = found(triples, kind)
    for k, triple in enumerate(zip(*triples, strict=True)):
        if not 0 < radius[k] < np.inf:
            continue
        best = minimize_scalar(
            lambda t, triple=triple: -float(spheres.naive(*triple, abs(t), space)),
            bounds=(0, 50),
            method="bounded",
            options={"xatol": 1e-10},
        )
        plane = prove(*(v[k : k + 1] for v in triples), p=2, q=2, domain=Unbounded())[0]
        assert radius[k] >= max(np.sqrt(max(-best.fun, 0)), plane) * (1 - 1e-9)
        assert radius[k] >= plane


def test_on_balls_the_bound_is_the_minimum_that_a_solver_finds():
    space = spheres.domain("ball")
    triples = spheres.triples(4, 40, space)
    radius = prove(*triples, p=2, q=2, domain=space)
    parts = [slice(0, 2), slice(2, 4), slice(4, 7)]
    checked = 0
    for z, w_i, w_j, r in zip(*triples, radius, strict=True):
        limits = [
            {"type": "ineq", "fun": lambda x, p=p, b=b: b**2 - np.sum(x[p] ** 2)}
            for p, b in zip(parts, (0.7, 0.7, 1.0), strict=True)
        ]
        limits.append(
            {"type": "ineq", "fun": lambda x, i=w_i, j=w_j: np.sum((x - i) ** 2 - (x - j) ** 2)}
        )
        best = minimize(
            lambda x, z=z: np.sum((x - z) ** 2),
            z,
            jac=lambda x, z=z: 2 * (x - z),
            bounds=[(0, None)] * 7,
            constraints=limits,
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 500},
        )
        if best.success and np.isfinite(r):
            checked += 1
            np.testing.assert_allclose(r, np.sqrt(best.fun), rtol=2e-5, atol=1e-6)
    assert checked > 20


@pytest.mark.parametrize("kind", KINDS)
def test_a_proof_never_exceeds_f_and_meets_the_kernel(kind):
    space = spheres.domain(kind)
    triples = z, w_i, w_j = spheres.triples(5, 60, space)
    multiplier = np.random.default_rng(6).uniform(0, 3, 60)
    ahead = group_squares(np.maximum(z + multiplier[:, None] * (w_j - w_i), 0), space)
    lengths = [np.sqrt(group_squares(w, space).upper) * (1 + 1e-15) for w in (w_i, w_j)]
    beta = total(exact(w_j) * w_j) - total(exact(w_i) * w_i)
    bound = dual_bound(ahead, group_squares(z, space), sum(lengths), beta, multiplier, space)
    true = [spheres.naive(*t, space) for t in zip(z, w_i, w_j, multiplier, strict=True)]
    assert all(b <= t for b, t in zip(bound, true, strict=True))
    np.testing.assert_allclose(bound, [float(t) for t in true], rtol=1e-12, atol=1e-12)
    with jax.enable_x64(True):
        radius, _ = found(triples, kind)
    np.testing.assert_allclose(prove(*triples, p=2, q=2, domain=space), radius, rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wide", [False, True])
def test_the_witness_is_admissible_and_flips(kind, wide):
    space = spheres.domain(kind)
    dtype = np.float64 if wide else np.float32
    triples = [v.astype(dtype) for v in spheres.triples(7, 200, space)]
    with jax.enable_x64(wide):
        radius, x = found(triples, kind)
    assert x.dtype == dtype
    z, w_i, w_j = triples
    shown = (radius > 0) & np.isfinite(radius)
    assert shown.sum() > 150
    np.testing.assert_array_equal(x[~shown], z[~shown])
    slack = 1e-8 if wide else 1e-3
    gap = np.linalg.norm(x - w_i, axis=1) - np.linalg.norm(x - w_j, axis=1)
    assert (gap[shown] >= -slack).all()
    norms = np.sqrt(group_squares(x.astype(np.float64), space).upper)
    inner, outer = space.spread(space.inner), space.spread(space.outer)
    small = slack * 1e-3
    inside = (norms < small) | ((norms >= inner - small) & (norms <= outer + small))
    assert inside.all()
    assert (x >= 0).all()
    away = np.linalg.norm(x - z, axis=1)
    assert (away[shown] >= radius[shown] - slack).all()
    # Where F is smooth at its maximum there is no gap.
    assert (away[shown] <= radius[shown] * (1 + 1e-4)).mean() > 0.2


numbers = st.sampled_from([0.0, 1.0, -1.0, 0.5, 1e-30, 5e-324, 1e150, -1e300]) | st.floats(-2, 2)
scales = st.sampled_from([1.0, 1e-3, 1e-100, 1e6, 1e100])


@settings(max_examples=150, deadline=None)
@given(data=st.data(), kind=st.sampled_from(KINDS), scale=scales)
def test_proofs_survive_ties_zeros_and_scales(data, kind, scale):
    space = spheres.domain(kind, radii=scale * spheres.RADII)
    seed = data.draw(st.integers(0, 1000))
    rng = np.random.default_rng(seed)
    z = spheres.members(rng, 1, space, zero=data.draw(st.sampled_from([0.0, 0.5, 1.0])))[0]
    w = [np.array(data.draw(st.lists(numbers, min_size=7, max_size=7))) for _ in range(2)]
    if data.draw(st.booleans()):
        w = [np.clip(v, -2, 2) * scale for v in w]
    for l in range(7):
        for copy, original in ((w[0], z), (w[1], z), (w[1], w[0])):
            if data.draw(st.integers(0, 4)) == 0:
                copy[l] = original[l]
    radius = prove(z[None], w[0][None], w[1][None], p=2, q=2, domain=space)[0]
    assert radius >= 0
    x = np.concatenate([spheres.members(rng, 300, space, zero) for zero in (0.0, 0.3, 1.0)])
    with np.errstate(over="ignore"):
        # Squares cancel: only what is certain counts.
        near, far = (np.sum(((x - v) / scale) ** 2, axis=1) for v in (w[1], w[0]))
        size = np.linalg.norm(x - z, axis=1)
    reached = near < far * (1 - 1e-9)
    assert (size[reached] >= radius * (1 - 1e-9)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_degenerate_triples_have_radius_0(kind):
    space = spheres.domain(kind)
    z = spheres.members(np.random.default_rng(8), 1, space)[0]
    nothing, far = np.zeros(7), np.full(7, 9.0)
    cases = [(z, far, far), (z, far, z), (z, z, z), (nothing, nothing, nothing), (z, far, nothing)]
    triples = [np.array(column) for column in zip(*cases, strict=True)]
    np.testing.assert_array_equal(prove(*triples, p=2, q=2, domain=space), 0)
    radius, x = found([v.astype(np.float32) for v in triples], kind)
    np.testing.assert_array_equal(radius, 0)
    np.testing.assert_array_equal(x, triples[0].astype(np.float32))


def test_what_no_point_of_the_domain_flips_is_infinitely_far():
    space = spheres.domain()
    z, w_i = np.array([[0.7, 0, 0.7, 0, 1.0, 0, 0]]), np.zeros((1, 7))
    w_j = np.full((1, 7), 5.0)
    assert np.isinf(prove(z, w_i, w_j, p=2, q=2, domain=space)).all()
    assert np.isinf(found((z, w_i, w_j), "sphere")[0]).all()
    spoilt = np.where(np.arange(7) == 3, np.nan, z)
    assert prove(spoilt, w_i, w_j, p=2, q=2, domain=space) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_derivatives_are_those_of_the_bound_and_always_finite(kind):
    space = spheres.domain(kind)
    triples = np.stack(spheres.triples(9, 60, space))
    direction = np.random.default_rng(10).normal(size=triples.shape)

    def radius(z, w_i, w_j):
        return rho(z, w_i, w_j, p=2, q=2, domain=space).radius

    with jax.enable_x64(True):
        run = jax.jit(jax.vmap(jax.value_and_grad(radius, (0, 1, 2))))
        middle, slopes = run(*triples)
        step = 1e-6
        ends = [run(*(triples + sign * step * direction))[0] for sign in (1, -1)]
        middle, slopes = np.asarray(middle), np.stack(slopes)
        ends = [np.asarray(end) for end in ends]
    assert np.isfinite(slopes).all()
    shown = np.isfinite(middle) & np.isfinite(ends[0]) & np.isfinite(ends[1]) & (middle > 0.01)
    difference = (ends[0][shown] - ends[1][shown]) / (2 * step)
    along = (slopes * direction).sum((0, 2))[shown]
    assert np.isclose(along, difference, rtol=1e-3, atol=1e-4).mean() > 0.9
    with jax.enable_x64(True):
        still = run(*(jnp.zeros((1, 7)) for _ in range(3)))[1]
    assert np.isfinite(np.stack(still)).all()


def test_clip_is_the_nearest_point_of_the_domain():
    rng = np.random.default_rng(11)
    for kind in KINDS:
        space = spheres.domain(kind)
        x = rng.normal(size=(30, 7))
        with jax.enable_x64(True):
            nearest = np.asarray(space.clip(jnp.asarray(x)))
            loose = SphereProduct(
                space.blocks, space.inner * (1 - 1e-12), space.outer * (1 + 1e-12)
            )
            assert loose.contains(jnp.asarray(nearest)).all()
        others = spheres.members(rng, 20000, space)
        for point, near in zip(x, nearest, strict=True):
            least = np.linalg.norm(others - point, axis=1).min()
            assert np.linalg.norm(near - point) <= least * (1 + 1e-9)


def test_the_domain_is_checked_and_other_functions_refuse_it():
    space = spheres.domain()
    assert check_spheres(space, 7) is space
    assert (space.dimension, space.groups) == (7, 3)
    assert not is_exact(2, 2, space)
    with pytest.raises(TypeError, match=r"jaxnpc\.perceptual certifies"):
        check(space, 7)
    with pytest.raises(TypeError, match="give a SphereProduct"):
        check_spheres(Unbounded(), 7)
    with pytest.raises(ValueError, match="7 coordinates: give positive"):
        check_spheres(space, 8)
    with pytest.raises(ValueError, match="positive"):
        check_spheres(SphereProduct(((0, 2),), np.ones(1), np.ones(1)), 0)
    with pytest.raises(ValueError, match=r"inner has shape \(1,\)"):
        check_spheres(SphereProduct(space.blocks, np.ones(1), space.outer), 7)
    for inner, outer in ((-1.0, 1.0), (1.0, 0.5), (0.0, np.inf), (np.nan, 1.0)):
        bad = SphereProduct(((1, 7),), np.array([inner]), np.array([outer]))
        with pytest.raises(ValueError, match="0 <= inner <= outer < inf"):
            check_spheres(bad, 7)
    with pytest.raises(ValueError, match="no pair radius for p = 2, q = 1 on SphereProduct"):
        rho(jnp.zeros(7), jnp.zeros(7), jnp.ones(7), p=2, q=1, domain=space)


def test_group_squares_enclose_the_exact_sums():
    space = as_float64(spheres.domain())
    rng = np.random.default_rng(12)
    x = rng.normal(size=(50, 7)) * 10.0 ** rng.integers(-160, 100, (50, 1))
    found_squares = group_squares(x, space)
    for k, row in enumerate(x):
        sums = [
            sum(spheres.Decimal(v) ** 2 for v in part.tolist())
            for part in (row[:2], row[2:4], row[4:])
        ]
        for g, value in enumerate(sums):
            assert found_squares.lower[k, g] <= value <= found_squares.upper[k, g]
