"""Augmented images: every one a shift or a warp of its own, within the bounds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import ndimage

from jaxnpc.augmentation import AUGMENTATIONS, Shift, Warp, interpolate

KEY = jax.random.key(0)
N, H, W = 400, 9, 7


def images(seed=0, shape=(N, H, W)):
    return np.random.default_rng(seed).random(shape).astype(np.float32)


def shifted(image, rows, columns, mode="constant"):
    return ndimage.shift(image, (rows, columns), order=0, mode=mode)


@pytest.mark.parametrize("fill", ["zero", "edge"])
@pytest.mark.parametrize("diagonal", [False, True])
def test_shifts_are_by_whole_pixels_each_as_often(fill, diagonal):
    x = images()
    out = np.asarray(jax.jit(Shift(1, diagonal, keep=0.0, fill=fill))(KEY, x))
    mode = {"zero": "constant", "edge": "nearest"}[fill]
    steps = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1) if diagonal or abs(a) + abs(b) == 1]
    counts = dict.fromkeys(steps, 0)
    for before, after in zip(x, out, strict=True):
        found = [s for s in steps if np.array_equal(shifted(before, *s, mode), after)]
        assert len(found) == 1
        counts[found[0]] += 1
    expected = N / len(steps)
    assert all(abs(c - expected) < 4.5 * expected**0.5 for c in counts.values())


def test_half_of_the_images_are_mirrored():
    x = images(4)
    out = np.asarray(Shift(0, flip=True, keep=1.0)(KEY, x))
    mirrored = (out == x[:, :, ::-1]).all(axis=(1, 2))
    assert (mirrored | (out == x).all(axis=(1, 2))).all()
    assert abs(mirrored.mean() - 0.5) < 4 * (0.25 / N) ** 0.5


@pytest.mark.parametrize("augment", [Shift(keep=0.3), Warp(keep=0.3), Warp(elastic=1.0, keep=0.3)])
def test_a_share_of_images_stays_and_draws_are_new_with_every_key(augment):
    x = images(1)
    first, again, second = (np.asarray(augment(jax.random.key(k), x)) for k in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != second).any()
    same = np.isclose(first, x, atol=1e-6).all(axis=(1, 2)).mean()
    assert abs(same - 0.3) < 4 * (0.21 / N) ** 0.5


@pytest.mark.parametrize(("fill", "mode"), [("zero", "constant"), ("edge", "nearest")])
def test_interpolation_is_bilinear(fill, mode):
    x = images(2, (3, H, W))
    rng = np.random.default_rng(3)
    at = rng.uniform(-3, 11, (2, 3, 5, 6)).astype(np.float32)
    at[:, 0, 0] = [[0, H - 1, 2, -1, H, 3], [0, W - 1, 3, -1, W, 2]]  # whole ones, and just outside
    out = interpolate(x, at[0], at[1], fill)
    # SciPy drops to its filling beyond the last pixel; around a padded image it does not.
    around = np.pad(x, ((0, 0), (2, 2), (2, 2)), mode=mode.replace("nearest", "edge"))
    for k in range(3):
        expected = ndimage.map_coordinates(around[k], at[:, k] + 2, order=1, mode=mode)
        np.testing.assert_allclose(out[k], expected, atol=1e-5)


def sources(warp, n=N, h=21, w=17):
    """Where each output pixel comes from: an image that holds its own coordinates, warped."""
    grid = np.stack(np.meshgrid(np.arange(h), np.arange(w), indexing="ij"), -1).astype(np.float32)
    # Far from the walls bilinear interpolation of a linear image is exact.
    out = np.asarray(jax.jit(warp)(KEY, jnp.broadcast_to(grid, (n, h, w, 2))))
    centre = np.array([(h - 1) / 2, (w - 1) / 2])
    inner = (slice(None), slice(6, h - 6), slice(5, w - 5))
    return out[inner] - centre, (grid - centre)[inner[1:]]


@pytest.mark.parametrize("flip", [False, True])
def test_affine_warps_are_affine_and_within_their_bounds(flip):
    bounds = {"rotation": 10.0, "scale": 0.1, "shear": 0.2, "shift": 0.5}
    source, u = sources(Warp(**bounds, keep=0, flip=flip))
    design = np.concatenate([u.reshape(-1, 2), np.ones((u.size // 2, 1))], axis=1)
    flat = source.reshape(len(source), -1, 2)
    fitted = np.linalg.lstsq(design, flat.transpose(1, 0, 2).reshape(len(design), -1))[0]
    np.testing.assert_allclose(
        (design @ fitted).reshape(len(design), -1, 2), flat.transpose(1, 0, 2), atol=1e-4
    )
    a = fitted.reshape(3, len(source), 2)
    mirrored = np.linalg.det(a[:2].transpose(1, 0, 2)) < 0
    assert mirrored.any() == flip
    if flip:
        assert abs(mirrored.mean() - 0.5) < 0.1
    shift = a[2]
    assert 0.45 < np.abs(shift).max() <= 0.5 + 1e-4
    sign = np.where(mirrored, -1, 1)
    down, right = a[0], a[1] * sign[:, None]  # what a step down or right in the output moves
    angle = np.degrees(np.arctan2(-down[:, 1], right[:, 1]))
    assert 8.5 < np.abs(angle).max() < 10.01
    size = np.hypot(down[:, 1], right[:, 1])
    assert 0.9 - 1e-4 < size.min() < 0.92
    assert 1.08 < size.max() < 1.1 + 1e-4
    skew = right[:, 0] - down[:, 0] * np.tan(np.radians(angle))
    assert 0.17 < np.abs(skew).max() < 0.2 + 1e-4


def test_elastic_fields_are_smooth_and_of_the_size_asked_for():
    warp = Warp(0, 0, 0, 0, elastic=0.5, smoothness=4.0, keep=0.0)
    source, u = sources(warp, n=2000)
    e = source - u
    assert abs(e.mean()) < 0.03
    # Uniform between 0 and the largest: its mean square is a third.
    assert abs(np.mean(e**2) / (0.5**2 / 3) - 1) < 0.15
    difference = np.diff(e, axis=1)
    assert np.mean(difference**2) < 0.2 * np.mean(e**2)


def test_channels_move_together():
    x = images(4, (6, H, W, 3))
    for augment in AUGMENTATIONS.values():
        out = np.asarray(augment(KEY, x))
        for c in range(3):
            np.testing.assert_allclose(out[..., c], augment(KEY, x[..., c]), atol=1e-6)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Shift(-1), "pixels"),
        (lambda: Shift(keep=1.5), "keep"),
        (lambda: Shift(fill="mirror"), "'mirror'"),
        (lambda: Warp(rotation=-1.0), "rotation"),
        (lambda: Warp(scale=1.0), "scale"),
        (lambda: Warp(elastic=float("nan")), "elastic"),
        (lambda: Warp(smoothness=0.0), "smoothness"),
        (lambda: Warp(fill="wrap"), "'wrap'"),
    ],
)
def test_what_does_not_fit_is_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()
