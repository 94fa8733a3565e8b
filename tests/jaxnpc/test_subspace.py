"""Principal components, and that radii there are radii in input space."""

import jax
import numpy as np
import pytest

from jaxnpc.objectives import signed_bound
from jaxnpc.subspace import principal


def cloud(seed, n, d, rank=None):
    rng = np.random.default_rng(seed)
    rank = rank or d
    x = rng.normal(size=(n, rank)) * np.linspace(3, 1, rank) @ rng.normal(size=(rank, d))
    return (x + rng.normal(size=d)).astype(np.float32)


@pytest.mark.parametrize(("n", "d"), [(200, 12), (9, 30), (12, 12)])
def test_the_subspace_is_that_of_the_largest_variances(n, d):
    x, r = cloud(0, n, d), 5
    space = principal(x, r)
    basis = np.asarray(space.basis)
    np.testing.assert_allclose(basis @ basis.T, np.eye(r), atol=1e-5)
    centred = x.astype(np.float64) - x.mean(axis=0, dtype=np.float64)
    values = np.linalg.svd(centred, compute_uv=False)
    c = np.asarray(space.coefficients(x), np.float64)
    np.testing.assert_allclose(np.sqrt((c**2).sum(axis=0)), values[:r], rtol=1e-3)
    back = np.asarray(space.points(space.coefficients(x)))
    left = np.sqrt((values[r:] ** 2).sum())
    np.testing.assert_allclose(np.linalg.norm(back - x), left, rtol=1e-3, atol=1e-4)
    assert (np.abs(basis).max(axis=1) == basis.max(axis=1)).all()


def test_points_of_few_directions_leave_the_other_ones_orthonormal():
    x = cloud(1, 50, 8, rank=2)
    basis = np.asarray(principal(x, 4).basis)
    np.testing.assert_allclose(basis @ basis.T, np.eye(4), atol=1e-5)


def test_squared_distances_differ_by_a_number_of_the_point():
    x = cloud(2, 60, 10)
    space = principal(x, 4)
    c = np.random.default_rng(3).normal(size=(7, 4)).astype(np.float32)
    w = np.asarray(space.points(c), np.float64)
    inside = ((np.asarray(space.coefficients(x), np.float64)[:, None] - c) ** 2).sum(-1)
    outside = ((x[:, None].astype(np.float64) - w) ** 2).sum(-1)
    residual = outside - inside
    np.testing.assert_allclose(residual, residual[:, :1].repeat(7, axis=1), rtol=1e-4, atol=1e-3)
    assert (residual > 0.01).any()


def test_radii_of_coefficients_are_radii_of_points():
    x = cloud(4, 80, 30)
    space = principal(x, 6)
    labels = np.repeat([0, 1], 5)
    c = 2 * np.random.default_rng(5).normal(size=(10, 6)).astype(np.float32)
    y = np.arange(80) % 2
    margin = signed_bound(labels)
    key = jax.random.key(0)
    inside = margin(c, space.coefficients(x), y, key)
    outside = margin(space.points(c), x, y, key)
    np.testing.assert_allclose(inside, outside, rtol=1e-4, atol=1e-4)
    # In another norm they are not, which is why training refuses it.
    other = signed_bound(labels, q=1)
    assert (
        np.abs(other(c, space.coefficients(x), y, key) - other(space.points(c), x, y, key)).max()
        > 0.1
    )


@pytest.mark.parametrize("components", [0, 9])
def test_so_many_components_there_must_be(components):
    with pytest.raises(ValueError, match=f"got {components}"):
        principal(cloud(6, 20, 8), components)
