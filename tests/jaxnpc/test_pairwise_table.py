"""Every cell of the table: against solvers, against rational arithmetic, and by its own witness."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import pair_references
from jaxnpc.domains import Box, SphereProduct, Unbounded
from jaxnpc.pairwise.table import TABLE, cell, is_exact, prove, rho

INF = math.inf
CELLS = [
    pytest.param(p, q, kind is Box, id=f"{p}-{q}-{kind.__name__}")
    for p, q, kind in TABLE
    if kind in (Unbounded, Box)  # products of spheres: test_pairwise_spheres
]


def domain(boxed):
    return Box(0.0, 1.0) if boxed else Unbounded()


def walls(boxed):
    return (0.0, 1.0) if boxed else None


@functools.cache
def kernel(p, q, boxed):
    return jax.jit(jax.vmap(functools.partial(rho, p=p, q=q, domain=domain(boxed))))


def radii(triples, p, q, boxed):
    found = kernel(p, q, boxed)(*map(jnp.asarray, triples))
    return np.asarray(found.radius), np.asarray(found.witness)


def true_radii(triples, p, q, boxed):
    exact = [pair_references.rational(*t, p, q, walls(boxed)) for t in zip(*triples, strict=True)]
    return exact, np.array([float(r) ** (0.5 if q == 2 else 1) for r in exact])


def samples(p, q, boxed, n, d=3):
    seed = [d, n, boxed, *(99 if v == INF else v for v in (p, q))]
    return pair_references.sample(np.random.default_rng(seed), n, d, p)


@pytest.mark.parametrize(("p", "q", "boxed"), CELLS)
def test_rho_meets_rational_arithmetic_and_its_witness_shows_it(p, q, boxed):
    z, w_i, w_j = triples = samples(p, q, boxed, 200)
    _, truth = true_radii(triples, p, q, boxed)
    with jax.enable_x64(True):
        radius, witness = radii(triples, p, q, boxed)
    assert np.sum(truth > 0.01) > 60
    if is_exact(p, q, domain(boxed)):
        np.testing.assert_allclose(radius, truth, rtol=1e-10, atol=1e-13)
    else:
        assert np.all(radius <= truth * (1 + 1e-12) + 1e-15)
        assert np.all((radius > 0) == (truth > 0))
        assert np.all(np.isinf(radius) == np.isinf(truth))
        some = np.isfinite(truth) & (truth > 0)
        share = radius[some] / truth[some]
        assert share.mean() > 0.97

    shown = np.isfinite(radius) & (radius > 0)
    np.testing.assert_array_equal(witness[~shown], z[~shown])
    away = np.linalg.norm(witness - z, q, axis=1)
    # Of a lower bound the witness bounds the truth from above.
    least = radius if is_exact(p, q, domain(boxed)) else truth
    assert np.all(away[shown] >= least[shown] * (1 - 1e-10) - 1e-12)
    if is_exact(p, q, domain(boxed)):
        np.testing.assert_allclose(away[shown], radius[shown], rtol=1e-10, atol=1e-12)
    near, far = (np.linalg.norm(witness - w, p, axis=1) for w in (w_j, w_i))
    assert np.all(near[shown] <= far[shown] + 1e-12)
    if boxed:
        assert np.all((witness >= 0) & (witness <= 1))


@pytest.mark.parametrize(("p", "q", "boxed"), CELLS)
def test_rho_in_float32_is_right_to_rounding(p, q, boxed):
    triples = [x.astype(np.float32) for x in samples(p, q, boxed, 200)]
    _, truth = true_radii(triples, p, q, boxed)
    radius, witness = radii(triples, p, q, boxed)
    assert radius.dtype == witness.dtype == np.float32
    assert not np.isnan(radius).any()
    assert not np.isnan(witness).any()
    finite = np.isfinite(truth)
    assert np.all(radius[finite] <= truth[finite] * (1 + 1e-4) + 1e-5)
    if is_exact(p, q, domain(boxed)):
        np.testing.assert_allclose(radius[finite], truth[finite], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("p", "q", "boxed"), CELLS)
def test_the_references_agree_with_solvers_that_know_nothing(p, q, boxed):
    triples = samples(p, q, boxed, 12)
    _, truth = true_radii(triples, p, q, boxed)
    solved = [pair_references.solver(*t, p, q, walls(boxed)) for t in zip(*triples, strict=True)]
    np.testing.assert_allclose(solved, truth, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("p", "q", "boxed"), CELLS)
def test_proved_radii_are_never_overstated_and_tight(p, q, boxed, dtype):
    triples = [x.astype(dtype) for x in samples(p, q, boxed, 150)]
    exact, truth = true_radii(triples, p, q, boxed)
    proved = prove(*triples, p=p, q=q, domain=domain(boxed))
    assert proved.dtype == np.float64
    assert not any(map(pair_references.overstated, proved, exact, [q] * len(exact)))
    if is_exact(p, q, domain(boxed)):
        np.testing.assert_allclose(proved, truth, rtol=1e-11, atol=1e-14)


numbers = (
    st.sampled_from([0.0, 1.0, 0.5, 0.25, 0.1, -0.5, 1.5, 5e-324, 1e-30, 1e150, -1e300])
    | st.floats(-2, 2, width=32)
    | st.floats(-2, 2)
    | st.floats(allow_nan=False, allow_infinity=False)
)


@pytest.mark.parametrize(("p", "q", "boxed"), CELLS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_proved_radii_survive_ties_zeros_and_extremes(p, q, boxed, data):
    points = [
        data.draw(
            st.lists(st.floats(0, 1) | st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=2)
        )
        if boxed
        else data.draw(st.lists(numbers, min_size=2, max_size=2)),
        *(data.draw(st.lists(numbers, min_size=2, max_size=2)) for _ in range(2)),
    ]
    # Prototypes that repeat a coordinate of the point or of each other.
    for l in range(2):
        for copy, original in ((1, 0), (2, 0), (2, 1)):
            if data.draw(st.integers(0, 5)) == 0:
                points[copy][l] = points[original][l]
    triple = [np.array([x]) for x in points]
    exact = pair_references.rational(*points, p, q, walls(boxed))
    proved = prove(*triple, p=p, q=q, domain=domain(boxed))[0]
    assert not np.isnan(proved)
    assert proved >= 0
    assert not pair_references.overstated(proved, exact, q)


@pytest.mark.parametrize(("p", "q", "boxed"), CELLS)
def test_the_degenerate_cases_have_defined_answers(p, q, boxed):
    inside, outside = [0.25, 0.5, 1.0], [9.0, 9.0, 9.0]
    cases = {
        "equal prototypes": (inside, outside, outside, 0.0),
        "z on w_j": (inside, outside, inside, 0.0),
        "tie": ([0.5, 0.5, 0.5], [0.0, 0.5, 0.5], [1.0, 0.5, 0.5], 0.0),
        "all equal": (inside, inside, inside, 0.0),
    }
    triples = [
        np.array(column, np.float32) for column in list(zip(*cases.values(), strict=True))[:3]
    ]
    radius, witness = radii(triples, p, q, boxed)
    np.testing.assert_array_equal(radius, [case[3] for case in cases.values()])
    np.testing.assert_array_equal(witness, triples[0])
    np.testing.assert_array_equal(prove(*triples, p=p, q=q, domain=domain(boxed)), 0)


@pytest.mark.parametrize(("p", "q"), [(p, q) for p, q, kind in TABLE if kind is Box])
def test_a_box_that_no_point_of_flips_gives_infinity(p, q):
    # All of the box is at least twice as far from w_j.
    z, w_i, w_j = (np.array([x], np.float32) for x in ([0.2, 0.3], [0.5, 0.5], [7.0, 6.0]))
    radius, witness = radii((z, w_i, w_j), p, q, True)
    assert radius[0] == INF
    np.testing.assert_array_equal(witness, z)
    assert prove(z, w_i, w_j, p=p, q=q, domain=Box())[0] == INF


@pytest.mark.parametrize(("p", "q"), [(p, q) for p, q, kind in TABLE if kind is Box])
def test_a_wide_box_is_no_box_and_bounds_may_be_vectors_or_infinite(p, q):
    triples = samples(p, q, False, 100)
    free = prove(*triples, p=p, q=q, domain=Unbounded())
    for box in (Box(-50.0, 50.0), Box(-INF, INF), Box(np.full(3, -INF), np.full(3, 50.0))):
        proved = prove(*triples, p=p, q=q, domain=box)
        np.testing.assert_allclose(proved, free, rtol=1e-11, atol=1e-15)

    @jax.jit
    def run(box, z, w_i, w_j):
        one = functools.partial(rho, p=p, q=q, domain=box)
        return jax.vmap(lambda *t: one(*t).radius)(z, w_i, w_j)

    with jax.enable_x64(True):
        points = list(map(jnp.asarray, triples))
        kernel_free, _ = radii(triples, p, q, False)
        for wall in (50.0, INF):
            box = Box(jnp.full(3, -wall), jnp.full(3, wall))
            np.testing.assert_allclose(run(box, *points), kernel_free, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_triple_that_is_not_finite_has_proved_radius_0_and_spoils_no_other(bad):
    triples = samples(2, 2, True, 30)
    clean = prove(*triples, p=2, q=2, domain=Box())
    assert clean[[3, 7, 9]].any()
    for place, row in enumerate((3, 7, 9)):
        triples[place][row, 1] = bad
    spoilt = prove(*triples, p=2, q=2, domain=Box())
    np.testing.assert_array_equal(spoilt[[3, 7, 9]], 0)
    rest = np.setdiff1d(np.arange(30), [3, 7, 9])
    np.testing.assert_array_equal(spoilt[rest], clean[rest])


def test_proofs_do_not_depend_on_how_the_rows_are_chunked():
    rng = np.random.default_rng(0)
    triples = rng.random((3, 90, 784))
    together = prove(*triples, p=2, q=INF, domain=Box())
    alone = [prove(*triples[:, [i]], p=2, q=INF, domain=Box())[0] for i in (0, 41, 42, 89)]
    np.testing.assert_array_equal(together[[0, 41, 42, 89]], alone)


def test_no_rows_and_no_columns():
    assert prove(*np.zeros((3, 0, 5)), p=2, q=2, domain=Box()).shape == (0,)
    np.testing.assert_array_equal(prove(*np.zeros((3, 2, 0)), p=2, q=2, domain=Box()), 0)


def test_unknown_cells_and_shapes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"p = 3, q = 2 on Box: known are \(p, q\) in \[\(1, 1\)"):
        cell(3, 2, Box())
    with pytest.raises(ValueError, match="q = 0 on Unbounded"):
        is_exact(2, 0, Unbounded)
    z = np.zeros((2, 3))
    with pytest.raises(ValueError, match=r"shapes \[\(2, 3\), \(2, 3\), \(1, 3\)\]"):
        prove(z, z, z[:1], p=2, q=2, domain=Box())
    with pytest.raises(ValueError, match=r"one \(n, d\)"):
        prove(z[0], z[0], z[0], p=2, q=2, domain=Box())


def test_only_the_hard_cells_are_bounds():
    bounds = {(p, q, kind) for p, q, kind in TABLE if not TABLE[p, q, kind].exact}
    assert bounds == {
        *((1, q, kind) for q in (1, 2) for kind in (Unbounded, Box)),
        (2, 2, SphereProduct),
    }
    assert len(TABLE) == 19


@pytest.mark.parametrize(
    ("q", "domain", "error", "message"),
    [
        (2, Box(np.zeros(3), 1), ValueError, r"domain.lower has shape \(3,\)"),
        (2, Box(1, 0), ValueError, "domain is empty"),
        (2, Box(0, np.nan), ValueError, "domain.upper holds NaN"),
        (np.array([2]), Box(), ValueError, "no pair radius for p = 2"),
    ],
)
def test_prove_refuses_what_does_not_fit(q, domain, error, message):
    z = np.zeros((1, 2))
    with pytest.raises(error, match=message):
        prove(z, z, z + 1, p=2, q=q, domain=domain)
