import jax
import numpy as np
import pytest

from jaxmpd import network
from jaxmpd.activations import LEAKY_HARD_TANH, piecewise_linear
from jaxmpd.regressor import Regressor, prepare
from jaxmpd.tables import Table

pytestmark = pytest.mark.compiled_quickly

RNG = np.random.default_rng(0)
SHADES = np.array(["dark", "light", "grey"])
TABLE = Table(
    {
        "size": RNG.normal(1e4, 10, 50),
        "shade": SHADES[np.arange(50) % 3],
        "price": RNG.normal(-3, 0.1, 50),
        "weight": RNG.normal(0, 100, 50),
    },
    np.arange(50),
    "mine",
)
TASK = prepare(TABLE, ["price", "weight"])


def model(activation=LEAKY_HARD_TANH):
    layers = network.init(jax.random.key(0), (4, 5, 2))
    return Regressor(
        layers, activation, TASK.inputs, TASK.targets, TASK.input_scaler, TASK.target_scaler
    )


def test_prepare_standardises_by_the_training_rows():
    assert TASK.train.inputs.shape == (40, 4)
    assert TASK.validation.targets.shape == (10, 2)
    for part in (TASK.train.inputs, TASK.train.targets):
        assert np.allclose(part.mean(axis=0), 0, atol=1e-5)
        assert np.allclose(part.std(axis=0), 1, atol=1e-5)
    assert not np.allclose(TASK.validation.targets.mean(axis=0), 0, atol=1e-5)


def test_every_row_is_in_exactly_one_part():
    back = np.concatenate(
        [TASK.target_scaler.inverse(np.asarray(b.targets)) for b in (TASK.train, TASK.validation)]
    )
    assert np.allclose(np.sort(back[:, 0]), np.sort(TABLE.columns["price"]), atol=1e-5)


def test_the_seed_decides_the_split():
    same, other = (prepare(TABLE, ["price", "weight"], seed=seed) for seed in (0, 1))
    assert (same.train.targets == TASK.train.targets).all()
    assert not (other.train.targets == TASK.train.targets).all()


def test_predictions_are_in_original_units_whatever_the_columns_order():
    got = model().predict(TABLE)
    x = TASK.input_scaler(np.concatenate([c.encode(TABLE) for c in TASK.inputs], axis=1))
    z = np.asarray(network.apply(model().layers, x.astype(np.float32), LEAKY_HARD_TANH))
    assert np.allclose(
        got[:, 0], z[:, 0] * TASK.target_scaler.scale[0] + TASK.target_scaler.mean[0]
    )
    shuffled = Table(dict(reversed(TABLE.columns.items())), TABLE.rows, "other")
    assert (model().predict(shuffled) == got).all()


def test_saved_and_loaded_models_predict_alike(tmp_path):
    before = model(piecewise_linear([-0.3, 0.4, 2.0], [0.1, 1, -0.7, 0.2], (0.1, 0.2)))
    before.save(tmp_path / "new" / "model.npz")
    after = Regressor.load(tmp_path / "new" / "model.npz")
    assert (after.predict(TABLE) == before.predict(TABLE)).all()
    assert (after.inputs, after.targets, after.activation) == (
        before.inputs,
        before.targets,
        before.activation,
    )
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["model.npz"]


def test_predict_names_what_is_missing():
    part = {name: TABLE.columns[name] for name in ("size", "price")}
    with pytest.raises(ValueError, match="other has no column 'shade'"):
        model().predict(Table(part, TABLE.rows, "other"))


@pytest.mark.parametrize(
    ("targets", "categories", "message"),
    [
        (["cost"], [], "no column 'cost'"),
        (["shade"], [], "the target 'shade' holds categories"),
        (["price"], ["cost"], "no column 'cost'"),
        (["price"], ["price"], "the target 'price' holds categories"),
    ],
)
def test_what_cannot_be_prepared(targets, categories, message):
    with pytest.raises(ValueError, match=message):
        prepare(TABLE, targets, categories)


def test_too_few_rows():
    short = Table({k: v[:9] for k, v in TABLE.columns.items()}, TABLE.rows[:9], "mine")
    with pytest.raises(
        ValueError, match="mine has 9 rows; training and validation need at least 10"
    ):
        prepare(short, ["price"])


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["?"] + ["1"] * 49, r"row 0, column 'y': a value is missing \('\?'\); drop"),
        (["1,5"] + ["1"] * 49, r"row 0, column 'y': '1,5' is not a finite number; mend it$"),
        ([f"${k}.5" for k in range(50)], "the target 'y' holds categories"),
        (["1"] * 50, "'y' is constant"),
    ],
)
def test_targets_are_numbers_and_never_categories(cells, message):
    bad = Table({**TABLE.columns, "y": np.array(cells, dtype=object)}, TABLE.rows, "mine")
    with pytest.raises(ValueError, match=message) as error:
        prepare(bad, ["y"])
    assert "--category" not in str(error.value)


def test_what_is_no_model(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file .*model\.npz"):
        Regressor.load(tmp_path / "model.npz")
    np.savez(tmp_path / "model.npz", x=np.zeros(3))
    with pytest.raises(ValueError, match="not a model saved by jaxmpd"):
        Regressor.load(tmp_path / "model.npz")
