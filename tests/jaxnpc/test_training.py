"""Training end to end: better radii, bit for bit the same, resumed or not."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxnpc import monitor
from jaxnpc.augmentation import Shift
from jaxnpc.certificate import robust_accuracy
from jaxnpc.certify import certify
from jaxnpc.domains import Box
from jaxnpc.training import train

pytestmark = pytest.mark.compiled_quickly

INF = math.inf
quiet = partial(train, progress=False)


def moons(n=240, seed=0, d=2):
    """Two half-circles that interlock, in the first two of d coordinates, within [0, 1]."""
    rng = np.random.default_rng(seed)
    label = np.arange(n) % 2
    angle = rng.uniform(0, math.pi, n)
    turn = np.where(label, -1, 1)
    x = np.stack([turn * np.cos(angle) + label, turn * np.sin(angle) + 0.4 * label], axis=1)
    noise = 0.1 * rng.normal(size=(n, d))
    noise[:, :2] += x
    return np.clip((noise + 1.5) / 4, 0, 1).astype(np.float32), label


def images(n=120, seed=0):
    """Images of 5 x 5 with a bright row or a bright column."""
    rng = np.random.default_rng(seed)
    x, label = 0.3 * rng.random((n, 5, 5)), np.arange(n) % 2
    at = rng.integers(1, 4, n)
    for image, k, c in zip(x, at, label, strict=True):
        image[(k, slice(None)) if c else (slice(None), k)] += 0.7
    return x.astype(np.float32), np.where(label, "row", "column")


@pytest.mark.parametrize(
    ("choices", "certified"),
    [
        ({}, {}),
        ({"objective": "squared_hinge", "optimizer": "adam"}, {}),
        ({"objective": "glvq"}, {}),
        ({"q": 1, "domain": Box()}, {"q": 1, "domain": Box()}),
        ({"distance": INF, "q": INF}, {"q": INF}),
        ({"distance": INF, "q": INF, "objective": "semi_metric", "smoothing": 0.005}, {"q": INF}),
        ({"distance": 1, "q": INF}, {"q": INF}),
    ],
)
def test_radii_of_other_points_grow(choices, certified):
    x, y = moons()
    z, label = moons(seed=1)
    result = quiet(
        x, y, per_class=3, start="sample", batch_size=60, epochs=30, dropout=0.2, seed=3,
        validation=(z, label), criterion="area", **choices,
    )  # fmt: skip
    objective, area = result.history.train_objective, result.history.validation_area
    assert objective[-1] < 0.9 * objective[0]
    assert area.max() > 1.02 * area[0]
    assert result.history.validation_clean[-1] > 0.85
    # What was estimated is proved, but for the box, in which it can only be more.
    radius = certify(result.classifier, z, label, method="bound", **certified).radius
    proved = np.minimum(radius, result.settings["cap"]).mean()
    assert proved > area.max() - 1e-5
    assert choices.get("objective") == "semi_metric" or proved < area.max() + 1e-3


def test_the_same_seed_gives_the_same_bits_and_another_one_others():
    x, y = images()
    run = partial(quiet, x, y, per_class=4, epochs=3, batch_size=32, augment="affine")
    first, again, other = run(seed=0), run(seed=0), run(seed=1)
    np.testing.assert_array_equal(first.classifier.prototypes, again.classifier.prototypes)
    assert (first.classifier.prototypes != other.classifier.prototypes).any()


@pytest.mark.parametrize("killed_at", [1, 4])
def test_an_interrupted_run_ends_as_if_nothing_had_happened(tmp_path, monkeypatch, killed_at):
    x, y = images()
    run = partial(
        quiet, x, y, per_class=4, epochs=5, batch_size=32, augment="shift", components=6,
        validation=0.25, evaluate_every=2, criterion="cra", eps=(0.2, 0.1),
    )  # fmt: skip
    whole = run()
    watch = monitor.Monitor.__call__

    def killed(self, progress):
        watch(self, progress)
        if progress.batch_steps == killed_at:
            raise KeyboardInterrupt

    file = tmp_path / "run.ckpt"
    monkeypatch.setattr(monitor.Monitor, "__call__", killed)
    with pytest.raises(KeyboardInterrupt):
        run(checkpoint=file)
    monkeypatch.undo()
    resumed = run(checkpoint=file, resume=True)
    np.testing.assert_array_equal(resumed.classifier.prototypes, whole.classifier.prototypes)
    for name, entries in whole.history._asdict().items():
        if name != "seconds":
            np.testing.assert_array_equal(getattr(resumed.history, name), entries)
    assert resumed.settings == whole.settings
    # Once finished there is nothing left to do.
    again = run(checkpoint=file, resume=True)
    np.testing.assert_array_equal(again.classifier.prototypes, whole.classifier.prototypes)
    assert len(again.history.epoch) == len(whole.history.epoch)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    x, y = moons(40)
    file = tmp_path / "run.ckpt"
    run = partial(quiet, x, y, per_class=1, epochs=1, checkpoint=file, resume=True)
    run()
    with pytest.raises(ValueError, match="dropout"):
        run(dropout=0.1)
    monitor.beside(file).unlink()
    with pytest.raises(FileNotFoundError, match="history"):
        run()


def test_the_history_counts_epochs_and_the_best_on_validation_is_kept():
    x, y = moons()
    # A rate far too large: it ends worse than it was.
    result = quiet(
        x, y, per_class=2, epochs=7, batch_size=40, validation=moons(seed=2), evaluate_every=3,
        optimizer=optax.sgd(lambda step: jnp.where(step < 18, 0.05, 30.0)), eps=(0.02, 0.04),
        criterion="cra", dropout=0.0,
    )  # fmt: skip
    history = result.history
    assert history.epoch.tolist() == [0, 3, 6, 7]
    assert history.train_certified.shape == history.validation_certified.shape == (4, 2)
    assert (np.diff(history.seconds) > 0).all()
    assert np.isfinite(np.concatenate([np.ravel(column) for column in history])).all()
    best = history.validation_certified[:, 0]
    assert best.max() > best[-1]
    z, label = moons(seed=2)
    certificate = certify(result.classifier, z, label, method="bound")
    assert robust_accuracy(certificate, 0.02) == pytest.approx(best.max(), abs=1e-9)
    assert certificate.clean_accuracy == pytest.approx(history.validation_clean[best.argmax()])
    assert result.seconds > result.seconds_per_epoch * 7 > 0


def test_without_validation_the_last_prototypes_are_kept():
    x, y = moons(80)
    result = quiet(x, y, per_class=2, epochs=4)
    assert np.isnan(result.history.validation_clean).all()
    radius = certify(result.classifier, x, y, method="bound").radius
    assert np.mean(radius > 0) == pytest.approx(result.history.train_clean[-1])


def test_a_subspace_of_all_directions_changes_little():
    x, y = moons(d=6)
    whole, inside = (
        quiet(x, y, per_class=3, epochs=4, batch_size=60, components=c, start="sample")
        for c in (None, 6)
    )
    np.testing.assert_allclose(inside.classifier.prototypes, whole.classifier.prototypes, atol=1e-3)
    np.testing.assert_allclose(
        inside.history.train_objective, whole.history.train_objective, rtol=1e-3
    )
    few = quiet(x, y, per_class=3, epochs=2, components=2)
    centred = few.classifier.prototypes - x.mean(axis=0)
    assert np.linalg.matrix_rank(np.asarray(centred), tol=1e-4) == 2


def test_labels_of_any_kind_and_small_classes():
    x, _ = moons(30)
    labels = [("a", 1)] * 20 + ["b"] * 9 + [None]
    result = quiet(x, labels, per_class=5, epochs=2)
    assert set(result.classifier.classes) == {("a", 1), "b", None}
    assert sorted(np.bincount(result.classifier.labels)) == [1, 5, 5]


def test_training_goes_on_from_a_classifier():
    x, y = images()
    first = quiet(x, y, per_class=3, epochs=4, batch_size=32)
    second = quiet(x, y, start=first.classifier, epochs=1, learning_rate=1e-9)
    np.testing.assert_allclose(second.classifier.prototypes, first.classifier.prototypes, atol=1e-6)
    with pytest.raises(ValueError, match="start has the classes"):
        quiet(x, y == "row", start=first.classifier, epochs=1)
    with pytest.raises(ValueError, match="coordinates"):
        quiet(x[:, :3], y, start=first.classifier, epochs=1)


def test_a_function_of_images_as_distance():
    def blurred(x, w):
        return jnp.abs(x.mean(axis=1)[:, None] - w.mean(axis=1)).sum(axis=-1)

    x, y = images()
    result = quiet(
        x, y, distance=blurred, objective="semi_metric", per_class=2, epochs=10, batch_size=40,
        smoothing=0.02, augment=Shift(keep=0.5),
    )  # fmt: skip
    assert result.classifier.prototypes.shape == (4, 5, 5)
    assert result.history.train_objective[-1] < result.history.train_objective[0]
    assert certify(result.classifier, x, y, method="margin").clean_accuracy > 0.9


def test_settings_are_numbers_and_strings_that_repeat_the_run():
    x, y = images()
    result = quiet(x, y, per_class=2, epochs=1, augment="elastic", domain=Box(0, 2), eps=(1, 0.5))
    assert all(isinstance(value, str | int | float) for value in result.settings.values())
    assert result.settings["eps"] == "1 0.5"
    assert result.settings["domain"] == "box 0 to 2"
    assert "elastic=0.8" in str(result.settings["augment"])
    again = quiet(
        x, y, per_class=2, epochs=1, augment="elastic", domain=Box(0, 2), eps=(1, 0.5),
        cap=float(result.settings["cap"]), learning_rate=float(result.settings["learning_rate"]),
    )  # fmt: skip
    np.testing.assert_array_equal(again.classifier.prototypes, result.classifier.prototypes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"per_class": 0}, "per_class"),
        ({"distance": 3}, "distance"),
        ({"q": 3}, "q must be"),
        ({"domain": Box(0.4, 0.6)}, "points"),
        ({"objective": "loss"}, "objective"),
        ({"cap": 0.0}, "cap"),
        ({"dropout": 1.0}, "dropout"),
        ({"smoothing": 0.1}, "smoothing"),
        ({"start": "grid"}, "'grid'"),
        ({"components": 3}, "components"),
        ({"components": 1, "q": 1}, "components=1 is for"),
        ({"augment": "cutout"}, "'cutout'"),
        ({"augment": "shift"}, "shape"),
        ({"augment": "shift", "shape": (3, 1)}, "shape"),
        ({"optimizer": "sgd"}, "'sgd'"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"epochs": 0}, "epochs"),
        ({"batch_size": 0}, "batch_size"),
        ({"criterion": "loss"}, "criterion"),
        ({"eps": (-1,)}, "eps"),
        ({"eps": ()}, "eps"),
        ({"evaluate_every": 0}, "evaluate_every"),
        ({"validation": 1.5}, "validation"),
        ({"resume": True}, "checkpoint"),
        ({"learning_rate": 1e38, "epochs": 3}, "infinity"),
    ],
)
def test_what_does_not_fit_is_named(changes, message):
    x, y = moons(20)
    with pytest.raises(ValueError, match=message):
        quiet(x, y, **{"per_class": 2, "epochs": 1, **changes})


def test_progress_tells_epochs_and_accuracies(capsys):
    x, y = moons(40)
    train(x, y, per_class=2, epochs=3, evaluate_every=1, eps=(0.01,))
    shown = capsys.readouterr().err
    assert "3/3" in shown
    assert "clean" in shown
    assert "at 0.01" in shown


def test_memory_is_bounded_where_all_pairs_would_not_fit():
    # 3000 prototypes and 300 points: all pairs of the two would take 30 GB.
    rng = np.random.default_rng(0)
    x, y = rng.random((3000, 8)).astype(np.float32), np.arange(3000) % 2
    result = quiet(x, y, per_class=1500, epochs=1, start="sample", batch_size=1500)
    assert jax.device_get(result.classifier.prototypes).shape == (3000, 8)
