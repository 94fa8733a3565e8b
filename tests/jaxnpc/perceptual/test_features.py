"""Feature networks learn classes, their folded convolutions do the same, and runs resume."""

import jax
import numpy as np
import pytest

from jaxnpc.augmentation import Shift
from jaxnpc.perceptual import features
from jaxnpc.perceptual.alexnet import AlexNet, Architecture, Convolution
from jaxnpc.perceptual.features import train_features

SMALL = Architecture("small", (Convolution(8, 3, 2, 1, 0), Convolution(12, 3, 1, 1, 2)), 2, 16)
MILD = Shift(1, diagonal=True, flip=True, keep=0.0)


def stripes(n, seed=0):
    """Noisy images of stripes, along rows or along columns."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, n)
    wave = 0.5 + 0.3 * np.sign(np.sin(np.arange(16) * 1.5 + rng.uniform(0, 6, (n, 1))))
    along = np.where(labels[:, None, None] == 0, wave[:, :, None], wave[:, None, :])
    noise = rng.normal(0, 0.1, (n, 16, 16, 3))
    names = np.array(["rows", "columns"])[labels]
    return np.clip(along[..., None] + noise, 0, 1).astype(np.float32), names


def run(images, labels, **options):
    given = {"architecture": SMALL, "augment": MILD, "epochs": 6, "batch_size": 50, **options}
    return train_features(images, labels, learning_rate=0.2, progress=False, **given)


@pytest.fixture(scope="module")
def trained():
    return run(*stripes(400), validation=0.25)


def test_classes_are_learned_and_the_last_images_validate(trained):
    images, labels = stripes(200, seed=1)
    assert np.mean(np.array(trained.predict(images)) == labels) > 0.95
    last, names = (x[300:] for x in stripes(400))
    assert trained.accuracy == np.mean(np.array(trained.predict(last)) == names) > 0.9
    assert trained.settings["images"] == 300
    assert trained.history.validation_loss[-1] < 0.1 < trained.history.validation_loss[0]


def test_folded_convolutions_do_what_normalised_ones_did():
    images, _ = stripes(60)
    net = AlexNet(SMALL, normalized=True)
    params = net.init(jax.random.key(1), images)["params"]
    rng = np.random.default_rng(2)
    for layer in ("norm1", "norm2"):
        params[layer] = {
            name: rng.uniform(0.5, 1.5, array.shape).astype(np.float32)
            for name, array in params[layer].items()
        }
    expected, _ = net.apply({"params": params}, images, mutable=["batch_stats"])
    folded = features._fold(params, features._statistics(net, params, images))
    found = AlexNet(SMALL).apply({"params": folded}, images)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
        assert (np.asarray(theirs) == 0).any()
        assert (np.asarray(theirs) > 1).any()


def test_a_run_that_was_interrupted_ends_as_one_that_was_not(tmp_path, monkeypatch):
    images, labels = stripes(100)
    whole = run(images, labels, epochs=3)
    options = {"epochs": 3, "checkpoint": tmp_path / "run"}
    fit = features.fit
    monkeypatch.setattr(
        features, "fit", lambda *given, **named: fit(*given, **named | {"steps": 1})
    )
    assert run(images, labels, **options).embedding.digest != whole.embedding.digest
    monkeypatch.undo()
    resumed = run(images, labels, resume=True, **options)
    assert resumed.embedding.digest == whole.embedding.digest
    assert list(resumed.history.train_loss) == list(whole.history.train_loss)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
        ({"smoothing": -0.1}, "smoothing"),
        ({"validation": 2.0}, "validation"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        run(*stripes(20), **options)


def test_pixels_are_checked():
    images, labels = stripes(20)
    with pytest.raises(ValueError, match="outside"):
        run(255 * images, labels)
