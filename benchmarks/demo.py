"""Both packages at work on data that every installation has: `make demo`.

python -m benchmarks.demo --output out
"""

import argparse
import importlib.util
import time
from pathlib import Path

import jax
import numpy as np

from benchmarks import harness
from jaxmpd.activations import LEAKY_HARD_TANH
from jaxmpd.datasets import terrain
from jaxmpd.plots import histories_figure, save_figure
from jaxmpd.presets import PRESETS
from jaxmpd.regressor import prepare
from jaxmpd.runs import History
from jaxmpd.starts import spread
from jaxmpd.training import fit, regression_loss

SAMPLES = 20_000
WIDTH = 500
SECONDS = 12.0


def train_all(seed: int = 0) -> dict[str, History]:
    """MPD in its two forms, Adam and NAG from one start, each for the same time."""
    task = prepare(terrain(SAMPLES, seed), ["elevation"], seed=seed)
    histories = {}
    for preset in PRESETS.values():
        print(f"training {preset.label} for {SECONDS:g} s ...", flush=True)
        result = fit(
            regression_loss(LEAKY_HARD_TANH),
            spread(jax.random.key(seed), (2, WIDTH, 1)),
            preset.make(LEAKY_HARD_TANH, preset.learning_rate, seed, len(task.train.inputs)),
            task.train,
            validation=task.validation,
            batch_size=preset.batch_size,
            seconds=SECONDS,
            seed=seed,
            progress=False,
        )
        histories[preset.label] = result.history
    return histories


def run_mpd(output: Path) -> None:
    """Elevations learned by three optimisers: a table and the paper's Fig. 2."""
    print(
        f"jaxmpd: {SAMPLES:,} elevations of the Jacksboro fault, {WIDTH} hidden units; all from "
        "one start, the peers at the paper's learning rate"
    )
    histories = train_all()
    steps = min(int(history.batch_steps[-1]) for history in histories.values())
    rows = []
    for label, history in histories.items():
        # An even step is the end of the common budget in steps, the last entry that in seconds.
        k = int(np.searchsorted(history.batch_steps, steps))
        rows.append(
            {
                "optimiser": label,
                f"training MSE, {steps} batch steps": history.train_loss[k].item(),
                "validation": history.validation_loss[k].item(),
                f"training MSE, {SECONDS:g} s": history.train_loss[-1].item(),
                "validation ": history.validation_loss[-1].item(),
                "batch steps": int(history.batch_steps[-1]),
            }
        )
    print(harness.table(rows))
    figure = histories_figure(histories, "Terrain: mean squared error, standardised elevation")
    save_figure(figure, output / "jaxmpd.png")
    print(f"figure: {output / 'jaxmpd.png'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("out"), metavar="FOLDER")
    output = parser.parse_args().output
    start = time.perf_counter()
    run_mpd(output)
    print()
    if importlib.util.find_spec("benchmarks.demo_npc") is None:
        print("jaxnpc: no demonstration yet")
    else:
        from benchmarks import demo_npc

        demo_npc.run(output)
    print(f"\ndone in {time.perf_counter() - start:.0f} s; everything is in {output}")


if __name__ == "__main__":
    main()
