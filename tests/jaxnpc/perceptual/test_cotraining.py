"""Co-training end to end on small images: larger margins, a full record, the same bits resumed."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmpd.training import fit
from jaxnpc.augmentation import Shift
from jaxnpc.certificate import robust_accuracy
from jaxnpc.perceptual import cotraining
from jaxnpc.perceptual.alexnet import Architecture, Convolution
from jaxnpc.perceptual.calibration import CHANGES, DIFFERENTIABLE, OTHER_CLASS, calibrate, compare
from jaxnpc.perceptual.certify import certify
from jaxnpc.perceptual.cotraining import cotrain
from jaxnpc.perceptual.embedding import embed, random_embedding

SMALL = Architecture("small", (Convolution(6, 3, 2, 1, 0), Convolution(8, 3, 1, 1, 2)), 2, 16)
PHI = random_embedding(SMALL, jax.random.key(0))


def stripes(n, seed=0):
    """Noisy images of stripes, along rows or along columns."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    wave = 0.5 + 0.3 * np.sign(np.sin(np.arange(16) * 1.5 + rng.uniform(0, 6, (n, 1))))
    along = np.where(labels[:, None, None] == 0, wave[:, :, None], wave[:, None, :])
    noise = rng.normal(0, 0.1, (n, 16, 16, 3))
    names = np.array(["rows", "columns"])[labels].tolist()
    return np.clip(along[..., None] + noise, 0, 1).astype(np.float32), names


run = partial(
    cotrain,
    PHI,
    *stripes(96),
    cap=0.4,
    keep=3.0,
    augment=Shift(1, diagonal=True, keep=0.0),
    learning_rate=0.002,
    prototype_rate=0.05,
    epochs=8,
    batch_size=16,
    validation=stripes(40, seed=1),
    evaluate_every=2,
    radii=(0.05, 0.1),
    progress=False,
)


@pytest.fixture(scope="module")
def found():
    return run()


def test_margins_grow_and_the_best_network_is_returned(found):
    missing = found.history.validation_loss
    assert list(found.history.batch_steps) == [0, 2, 4, 6, 8]
    assert missing.min() < missing[0] - 0.05
    x, names = stripes(40, seed=1)
    certificate = certify(found.embedding, found.classifier, x, names, method="half-space")
    area = np.clip(certificate.radius, 0, 0.4).mean() / 0.4
    assert 1 - area == pytest.approx(missing.min(), abs=1e-4)
    assert found.settings["picked"] == found.history.batch_steps[missing.argmin()]
    assert found.embedding.digest != PHI.digest


def test_the_record_is_complete_and_true(found):
    s = json.loads(json.dumps(found.settings))
    assert s["cotrained"] is True
    assert s["frozen"] == PHI.digest
    assert (s["images"], s["validation_images"], s["classes"]) == (96, 40, 2)
    for name in ("cap", "epochs", "learning_rate", "prototype_rate", "keep", "seed", "augment"):
        assert name in s
    x, names = stripes(40, seed=1)
    before, after = (calibrate(metric, x, names) for metric in (PHI, found.embedding))
    assert set(s["calibration"]) == {*CHANGES, OTHER_CLASS}
    for name, values in s["calibration"].items():
        assert values == pytest.approx({"frozen": before[name], "cotrained": after[name]})
    compared = compare(before, after)
    assert (s["deviation"], s["counts"]) == (pytest.approx(compared.deviation), compared.within)
    certificate = certify(found.embedding, found.classifier, x, names)
    assert s["baseline"] == pytest.approx(
        {
            "validation images": 40,
            "clean": certificate.clean_accuracy,
            "certified at 0.05": float(robust_accuracy(certificate, 0.05)),
            "certified at 0.1": float(robust_accuracy(certificate, 0.1)),
        }
    )


def test_prototypes_start_at_the_means_of_their_classes():
    x, names = stripes(30)
    data = cotraining.samples(x, names, 2)
    w, classes = cotraining._start(PHI, data, 1, seed=0)
    z = embed(PHI, x)
    for c in (0, 1):
        np.testing.assert_allclose(w[classes == c][0], z[data.classes == c].mean(0), atol=1e-6)


def test_a_resumed_run_gives_the_same_bits(found, tmp_path, monkeypatch):
    def stop(progress):
        if progress.batch_steps == 4:
            raise KeyboardInterrupt

    file = tmp_path / "run.checkpoint"
    monkeypatch.setattr(cotraining, "fit", partial(fit, callbacks=[stop], checkpoint_seconds=0.0))
    with pytest.raises(KeyboardInterrupt):
        run(checkpoint=file)
    monkeypatch.undo()
    resumed = run(checkpoint=file, resume=True)
    assert resumed.embedding.digest == found.embedding.digest
    np.testing.assert_array_equal(resumed.classifier.prototypes, found.classifier.prototypes)
    assert resumed.settings == found.settings
    with pytest.raises(ValueError, match=r"cap 0\.4, this one has 0\.3"):
        run(checkpoint=file, resume=True, cap=0.3)


def test_the_penalty_holds_distances(found):
    def drift(result):
        calibration = result.settings["calibration"]
        pairs = [calibration[name] for name in (*DIFFERENTIABLE, OTHER_CLASS)]
        return sum(abs(pair["cotrained"] / pair["frozen"] - 1) for pair in pairs)

    free = run(keep=0.0)
    assert found.settings["picked"] > 0
    assert free.settings["picked"] > 0
    assert drift(found) < 0.6 * drift(free)


def test_several_prototypes_a_class_and_half_the_digits():
    found = run(per_class=2, dropout=0.4, epochs=1, stored="float16", dtype=jnp.bfloat16)
    assert found.classifier.prototypes.shape == (4, PHI.dimension)
    assert found.classifier.classes == ("columns", "rows")
    for layer in found.embedding.params.values():
        for array in layer.values():
            np.testing.assert_array_equal(array, np.float32(np.float16(array)))
    assert found.settings["dtype"] == "bfloat16"
    # The baseline has one prototype a class, whatever was trained.
    data = cotraining.samples(*stripes(96), 2)
    means, _ = cotraining._start(found.embedding, data, 1, seed=0)
    x, names = stripes(40, seed=1)
    one = cotraining.prototype_classifier(means, ["columns", "rows"])
    assert (
        found.settings["baseline"]["clean"]
        == certify(found.embedding, one, x, names).clean_accuracy
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cap": 0.0}, "cap must be positive and finite, got 0.0"),
        ({"keep": -1.0}, "keep must be at least 0"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1"),
        ({"warmup": 1.0}, "warmup"),
        ({"epochs": 0}, "epochs"),
        ({"anchors": 0}, "anchors"),
        ({"stored": "int8"}, 'stored must be "float32" or "float16"'),
        ({"validation": 2.0}, "validation"),
        ({"learning_rate": 1e30}, "training ran off with learning_rate"),
        ({"resume": True}, "checkpoint"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        run(**options)


def test_pixels_are_checked():
    x, names = stripes(20)
    with pytest.raises(ValueError, match=r"images\[.* outside"):
        cotrain(PHI, 255 * x, names)
    with pytest.raises(ValueError, match=r"validation\[.* outside"):
        cotrain(PHI, x, names, validation=(255 * x, names))
