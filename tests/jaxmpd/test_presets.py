import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxmpd import network
from jaxmpd.activations import LEAKY_HARD_TANH, RELU
from jaxmpd.losses import Batch
from jaxmpd.penalties import penalty
from jaxmpd.plots import histories_figure, save_figure
from jaxmpd.presets import HYBRID_RIDGE, PRESETS
from jaxmpd.runs import History
from jaxmpd.training import fit, regression_loss

INPUTS = jnp.linspace(-1, 1, 40)[:, None]
DATA = Batch(INPUTS, INPUTS**2)
PARAMS = network.init(jax.random.key(0), (1, 6, 1))


def run(name, **settings):
    preset = PRESETS[name]
    optimizer = preset.make(LEAKY_HARD_TANH, preset.learning_rate, 0, len(INPUTS))
    settings = {"batch_size": preset.batch_size, "steps": 8, "progress": False, **settings}
    return fit(regression_loss(), PARAMS, optimizer, DATA, **settings)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_trains(name):
    history = run(name).history
    assert history.train_loss[-1] < history.train_loss[0]


def test_mpd_never_raises_the_loss_of_a_full_batch():
    """The squared error and its ridge together, that is."""
    error, ridge = regression_loss(), HYBRID_RIDGE / len(INPUTS)

    def objective(params, batch, key):
        return error(params, batch, key) + penalty(params, ridge)

    history = run("mpd", metric=objective).history
    assert (np.diff(history.train_loss) <= 1e-7).all()
    assert history.train_loss[-1] < 0.6 * history.train_loss[0]


@pytest.mark.parametrize("name", PRESETS)
def test_equal_arguments_give_one_optimiser(name):
    make = PRESETS[name].make
    assert make(RELU, 0.1, 0, 40) is make(RELU, 0.1, 0, 40)
    assert make(RELU, 0.1, 0, 40) is not make(RELU, 0.2, 0, 40)


@pytest.mark.parametrize("name", ["adam", "nag"])
def test_the_learning_rate_may_be_a_schedule(name):
    still = PRESETS[name].make(RELU, optax.constant_schedule(0.0), 0, 40)
    history = fit(regression_loss(RELU), PARAMS, still, DATA, steps=1, progress=False).history
    assert history.train_loss[0] == history.train_loss[1]


def test_the_figure_shows_what_the_histories_hold(tmp_path):
    histories = {"MPD": run("mpd").history, "Adam": run("adam", validation=DATA).history}
    figure = histories_figure(histories, "title")
    by_step, by_time = figure.axes
    lines = {line.get_label(): line for line in by_step.get_lines()}
    assert set(lines) == {
        f"{name}, {part}" for name in histories for part in ("training", "validation")
    }
    shown = lines["Adam, validation"].get_ydata().tolist()
    assert shown == histories["Adam"].validation_loss[1:].tolist()
    assert by_time.get_lines()[0].get_xdata().tolist() == histories["MPD"].seconds[1:].tolist()
    save_figure(figure, tmp_path / "new" / "figure.png")
    assert (tmp_path / "new" / "figure.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("losses", [[1.0], [1.0, np.nan], [1.0, np.inf]])
def test_a_figure_of_nothing_to_see(losses, tmp_path):
    n = len(losses)
    history = History(np.arange(n), np.arange(n), np.arange(1.0 * n), *np.array([losses, losses]))
    save_figure(histories_figure({"Adam": history}), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").exists()
