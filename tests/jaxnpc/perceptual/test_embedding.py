"""The embedding against a transcription in NumPy and SciPy that shares no code with it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.signal import correlate2d

from jaxnpc.distances import rounding
from jaxnpc.pairwise.sphere_proofs import group_squares
from jaxnpc.perceptual.alexnet import CIFAR, IMAGENET, AlexNet
from jaxnpc.perceptual.embedding import (
    CHUNK,
    Embedding,
    check_images,
    embed,
    lpips,
    random_embedding,
    unit_vectors,
)


def images(seed, n, side=32):
    return np.random.default_rng(seed).random((n, side, side, 3), dtype=np.float32)


@pytest.fixture(scope="module")
def phi():
    found = random_embedding(CIFAR, jax.random.key(0))
    params = jax.tree.map(np.asarray, dict(found.params))
    rng = np.random.default_rng(1)
    for layer in params.values():
        layer["bias"] = rng.normal(size=layer["bias"].shape).astype(np.float32) / 10
    return dataclasses.replace(found, params=params)


def transcribed(embedding, image, eps=0.0, weights=None):
    """phi(x) by the formulas, in float64, one channel after the other."""
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    x, parts = (image.astype(np.float64) - mean) / std, []
    for l, layer in enumerate(embedding.architecture.layers):
        if layer.pool:
            height, width = ((s - layer.pool) // 2 + 1 for s in x.shape[:2])
            x = np.array(
                [
                    [
                        x[2 * a : 2 * a + layer.pool, 2 * b : 2 * b + layer.pool].max((0, 1))
                        for b in range(width)
                    ]
                    for a in range(height)
                ]
            )
        kernel = np.asarray(embedding.params[f"conv{l + 1}"]["kernel"], np.float64)
        bias = np.asarray(embedding.params[f"conv{l + 1}"]["bias"], np.float64)
        x = np.pad(x, ((layer.padding,) * 2, (layer.padding,) * 2, (0, 0)))
        planes = [
            sum(
                correlate2d(x[:, :, c], kernel[:, :, c, k], mode="valid") for c in range(x.shape[2])
            )
            for k in range(kernel.shape[3])
        ]
        x = np.maximum(np.stack(planes, -1)[:: layer.stride, :: layer.stride] + bias, 0)
        size = np.sqrt((x**2).sum(-1, keepdims=True))
        unit = x / np.where(size + eps > 0, size + eps, 1) / np.sqrt(x.shape[0] * x.shape[1])
        parts.append((unit * (1 if weights is None else np.sqrt(weights[l]))).ravel())
    return np.concatenate(parts)


def narrow(architecture, features=4):
    """The same network with few channels."""
    layers = tuple(layer._replace(features=features) for layer in architecture.layers)
    return dataclasses.replace(architecture, layers=layers)


@pytest.mark.parametrize(("architecture", "side"), [(CIFAR, 32), (IMAGENET, 67)])
@pytest.mark.parametrize(("eps", "weighted"), [(0.0, False), (0.1, False), (0.0, True)])
def test_the_embedding_is_that_of_the_formulas(architecture, side, eps, weighted):
    found = random_embedding(narrow(architecture), jax.random.key(2), size=(side, side), eps=eps)
    rng = np.random.default_rng(3)
    weights = tuple(rng.random((5, 4)).astype(np.float32)) if weighted else None
    found = dataclasses.replace(found, linear=weights)
    x = images(4, 2, side)
    want = [transcribed(found, image, eps, weights) for image in x]
    np.testing.assert_allclose(embed(found, x), want, atol=1e-6)
    gap = np.linalg.norm(want[0] - want[1])
    np.testing.assert_allclose(lpips(found, x[:1], x[1:]), gap, atol=1e-6)
    assert gap > 0.1


def test_the_shapes_are_those_of_the_paper(phi):
    assert phi.blocks == ((256, 64), (64, 192), (16, 384), (16, 256), (16, 256))
    assert phi.dimension == 43008
    assert [shape[3] for shape in CIFAR.shapes()] == [64, 192, 384, 256, 256]
    assert IMAGENET.locations(64, 64) == [(15, 15), (7, 7), (3, 3), (3, 3), (3, 3)]
    with pytest.raises(ValueError, match="16 x 16 pixels leave nothing of layer 3 of alexnet"):
        IMAGENET.locations(16, 16)


@pytest.mark.parametrize("kind", ["exact", "eps", "weighted"])
def test_every_embedding_lies_in_the_domain(phi, kind):
    rng = np.random.default_rng(5)
    if kind == "eps":
        phi = dataclasses.replace(phi, eps=0.5)
    if kind == "weighted":
        weights = tuple(rng.random(c).astype(np.float32) for _, c in phi.blocks)
        phi = dataclasses.replace(phi, linear=weights)
    space = phi.domain()
    z = embed(phi, images(6, 3))
    assert (z >= 0).all()
    norms = np.sqrt(group_squares(z.astype(np.float64), space).upper)
    inner, outer = space.spread(space.inner), space.spread(space.outer)
    assert ((norms == 0) | ((norms >= inner) & (norms <= outer))).all()
    if kind == "exact":
        radius = np.repeat([1 / 16, 1 / 8, 1 / 4, 1 / 4, 1 / 4], [c for c, _ in phi.blocks])
        np.testing.assert_allclose(outer, radius, rtol=rounding(400))
        np.testing.assert_allclose(inner, radius, rtol=rounding(400))
    else:
        assert (norms[norms > 0].min() < 0.9 * outer.max()) == (kind != "exact")
        assert (inner == 0).all() == (kind == "eps")


def test_a_location_without_an_active_channel_is_0_and_has_a_gradient(phi):
    params = {layer: dict(values) for layer, values in phi.params.items()}
    params["conv3"]["bias"] = np.full_like(params["conv3"]["bias"], -1e6)
    params["conv4"]["bias"] = np.full_like(params["conv4"]["bias"], -1e6)
    dead = dataclasses.replace(phi, params=params)
    x = images(7, 1)
    z = embed(dead, x)[0]
    parts = list(phi.domain().split(z))
    assert not parts[2].any()
    assert not parts[3].any()
    np.testing.assert_allclose(np.linalg.norm(parts[0], axis=1), 1 / 16, rtol=1e-6)
    slope = jax.grad(lambda image: jnp.sum(dead(image)[:, ::7]))(jnp.asarray(x))
    assert jnp.isfinite(slope).all()
    assert jnp.abs(slope).max() > 0


def test_unit_vectors_of_extreme_lengths():
    g = jnp.array([[3.0, 4.0]]) * jnp.array([[1e-30], [1.0], [1e30]])
    np.testing.assert_allclose(unit_vectors(g), [[0.6, 0.8]] * 3, rtol=1e-6)
    np.testing.assert_allclose(unit_vectors(g, 5.0)[1], [0.3, 0.4], rtol=1e-6)
    np.testing.assert_allclose(unit_vectors(g, 1e-10)[0], 0, atol=1e-15)
    assert jnp.isnan(unit_vectors(jnp.array([jnp.nan, 1.0]))).all()


def test_an_image_s_embedding_does_not_depend_on_its_company(phi):
    x = images(8, CHUNK + 3)
    together = embed(phi, x)
    np.testing.assert_array_equal(embed(phi, x[CHUNK:]), together[CHUNK:])
    np.testing.assert_array_equal(embed(phi, x[5:6]), together[5:6])
    np.testing.assert_array_equal(embed(phi, x.reshape(len(x), -1)[:2]), together[:2])
    np.testing.assert_allclose(jax.jit(Embedding.__call__)(phi, x[:2]), together[:2], atol=1e-6)


def test_an_image_with_nan_has_no_embedding(phi):
    x = images(9, 3)
    x[1, 0, 0, 0] = np.nan
    z = embed(phi, x)
    assert np.isnan(z[1]).all()
    assert np.isfinite(z[[0, 2]]).all()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda x: (255 * x).astype(np.uint8), TypeError, "dtype uint8: give float32 values"),
        (lambda x: 255 * x, ValueError, r"outside \[0, 1\]: divide values up to 255"),
        (lambda x: 2 * x - 1, ValueError, r"map those in \[-1, 1\]"),
        (lambda x: np.where(x == x[1, 2, 3, 1], 1.5, x), ValueError, r"\[1, 2, 3, 1\] is 1.5"),
        (lambda x: x.transpose(0, 3, 1, 2), ValueError, r"\(n, 32, 32, 3\), channels last"),
        (lambda x: x[:, :30], ValueError, r"shape \(2, 30, 32, 3\)"),
        (lambda x: x[0], ValueError, "give"),
    ],
)
def test_images_out_of_range_or_shape_are_refused(phi, change, error, message):
    x = change(images(10, 2))
    with pytest.raises(error, match=message):
        embed(phi, x)
    with pytest.raises(error, match="names"):
        check_images(phi, x, "names")
    with pytest.raises(ValueError, match="1 images and y 2"):
        lpips(phi, images(10, 1), images(10, 2))


def test_the_digest_is_of_all_that_makes_the_metric(phi):
    params = {layer: dict(values) for layer, values in phi.params.items()}
    params["conv5"]["bias"] = params["conv5"]["bias"] + np.float32(1e-3)
    ones = tuple(np.ones(c, np.float32) for _, c in phi.blocks)
    others = [
        dataclasses.replace(phi, params=params),
        dataclasses.replace(phi, linear=ones),
        dataclasses.replace(phi, eps=1e-10),
        dataclasses.replace(phi, size=(48, 48)),
    ]
    digests = {other.digest for other in (phi, *others)}
    assert len(digests) == 5
    assert all(len(digest) == 64 for digest in digests)
    again = dataclasses.replace(phi, params=jax.tree.map(jnp.asarray, phi.params))
    assert again.digest == phi.digest


def test_bfloat16_is_for_training():
    net = AlexNet(narrow(CIFAR), jnp.bfloat16)
    params = net.init(jax.random.key(0), jnp.zeros((1, 32, 32, 3)))
    assert params["params"]["conv1"]["kernel"].dtype == jnp.float32
    assert all(a.dtype == jnp.bfloat16 for a in net.apply(params, images(11, 1)))
