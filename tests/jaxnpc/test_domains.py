"""Domains: room, membership and the errors that name what is wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxnpc.domains import Box, Unbounded, check, check_inside


def test_room_is_the_way_to_the_wall_in_the_direction_of_the_sign():
    z, sign = jnp.array([0.25, 0.25, 2.0]), jnp.array([1.0, -1.0, 1.0])
    np.testing.assert_array_equal(Box(0.0, 1.0).room(z, sign), [0.75, 0.25, 0.0])
    np.testing.assert_array_equal(Box(0.0, jnp.inf).room(z, sign), [np.inf, 0.25, np.inf])
    assert np.isinf(Unbounded().room(z, sign)).all()


def test_clip_leads_into_the_domain_and_contains_agrees():
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(50, 3)))
    box = Box(jnp.array([-1.0, 0.0, 0.5]), jnp.array([1.0, 0.0, jnp.inf]))
    inside = box.contains(x)
    np.testing.assert_array_equal(inside, np.all(box.clip(x) == x, axis=1))
    assert box.contains(box.clip(x)).all()
    assert Unbounded().contains(x).all()
    np.testing.assert_array_equal(Unbounded().clip(x), x)


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
@pytest.mark.parametrize("domain", [Unbounded(), Box(-jnp.inf, jnp.inf), Box()])
def test_no_domain_contains_a_point_that_is_not_finite(domain, bad):
    assert not domain.contains(jnp.array([0.5, bad]))


def test_bounds_are_data_and_the_type_is_static():
    doubled = jax.tree.map(lambda bound: 2 * bound, Box(-1.0, 1.0))
    assert doubled == Box(-2.0, 2.0)
    assert jax.tree.leaves(Unbounded()) == []
    traces = []

    @jax.jit
    def width(box):
        traces.append(1)
        return box.upper - box.lower

    assert width(Box(0.0, 1.0)) == 1
    assert width(Box(0.0, 3.0)) == 3
    assert len(traces) == 1


def test_check_returns_what_fits():
    for domain in (Unbounded(), Box(), Box(np.zeros(3), np.ones(3)), Box(0, np.inf), Box(1, 1)):
        assert check(domain, 3) is domain


@pytest.mark.parametrize(
    ("domain", "error", "message"),
    [
        ((0, 1), TypeError, r"domain is \(0, 1\)"),
        (None, TypeError, "domain is None"),
        (Box(np.zeros(2), 1), ValueError, r"domain.lower has shape \(2,\).*3 coordinates"),
        (Box(0, np.ones((3, 3))), ValueError, r"domain.upper has shape \(3, 3\)"),
        (Box(0, np.nan), ValueError, "domain.upper holds NaN"),
        (Box(1, 0), ValueError, "empty: lower 1 exceeds upper 0 at coordinate 0"),
        (Box(np.array([0, 0, 2.5]), 1), ValueError, "lower 2.5 exceeds upper 1.* at coordinate 2"),
    ],
)
def test_check_names_what_is_wrong(domain, error, message):
    with pytest.raises(error, match=message):
        check(domain, 3)


def test_check_inside_names_the_first_point_outside():
    x = np.array([[0.5, 0.5], [0.0, 1.0], [0.5, 1.25], [-3.0, 0.0], [np.nan, 7.0]])
    check_inside(x, Unbounded())
    check_inside(x[:2], Box())
    check_inside(x[4:], Box())
    with pytest.raises(ValueError, match=r"points\[2, 1\] is 1.25, outside .*\[0.*1.*\]: 2 of 5"):
        check_inside(x, Box(), name="points")
    with pytest.raises(ValueError, match=r"x\[0, 1\]"):
        check_inside(x[:1], Box(np.zeros(2), np.array([1.0, 0.25])))


def test_a_float32_point_on_a_float64_wall_is_inside():
    # float32(0.1) exceeds 0.1, float32(0.7) is less than 0.7.
    for wall in (0.1, 0.7):
        check_inside(np.full((1, 2), wall, np.float32), Box(-wall, wall))
        check_inside(np.full((1, 2), wall, np.float32), Box(wall, 1.0))


def test_bounds_may_be_lists():
    box = check(Box([0, 0], [1, 2]), 2)
    assert box.contains(jnp.array([[1.0, 2.0], [2.0, 1.0]])).tolist() == [True, False]


def test_bounds_beyond_the_points_precision_are_none():
    check_inside(np.array([[3e38, -3e38]], np.float32), Box(-1e300, 1e300))
