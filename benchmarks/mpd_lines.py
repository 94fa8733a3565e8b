"""Exact line searches behind Adam against tuned Adam: steps and seconds to the same loss.

One network of one hidden layer, the same start and the same minibatches for both, on regressions
of few inputs and on MNIST (squared error of ten outputs). Plain Adam runs a
given number of steps for every learning rate of a grid, constant and with cosine decay over the
run; its best final training loss is the mark. Ours, `optax.chain(optax.scale_by_adam(),
jaxmpd.scale_by_exact_linesearch(...))`, has no learning rate and runs until it reaches the mark.

- `steps_ratio`: our steps to the mark over Adam's steps, of its best rate alone: below 1, we need
  fewer.
- `seconds_ratio`: our seconds over Adam's, likewise: below 1, we need less time. What tuning the
  rate costs Adam is not counted; `seconds_ratio_tuned` counts the runs of its whole grid.

On MNIST ours does not reach the mark, and on networks this small a search costs many times a
gradient.

Both are medians over the seeds, of the first data set; a run that does not reach the mark within
Adam's number of steps counts as infinite. Compilation and evaluation are outside all clocks.
"""

import itertools
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxmpd
from benchmarks import harness
from benchmarks.mpd_vs_gradient import ROAD_FILE
from jaxmpd.datasets import road, terrain
from jaxmpd.regressor import prepare
from jaxmpd.starts import spread
from jaxmpd.tables import Table
from jaxnpc.datasets import load

F = jaxmpd.LEAKY_HARD_TANH
RATES = (1e-2, 2e-2, 4e-2, 8e-2, 0.16)
SCHEDULES = ("constant", "cosine")
BUDGET = 4
MOST = 40_000
"""Samples that are used."""
MNIST_FILE = "mnist/train-images-idx3-ubyte.gz"


class Setting(NamedTuple):
    """One comparison; `deviation` is the spread of the start (jaxmpd.starts), 0 for Glorot's."""

    data: str
    width: int
    deviation: float
    batch: int
    steps: int


FULL = (
    Setting("terrain", 100, 7.0, 2048, 500),
    Setting("terrain", 500, 28.0, 2048, 500),
    Setting("road", 100, 14.0, 4000, 500),
    Setting("mnist", 256, 0.0, 2048, 200),
)
QUICK = (Setting("terrain", 50, 7.0, 1024, 120),)


def loss(params: Any, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
    return jnp.mean(jnp.sum((jaxmpd.apply(params, batch[0], F) - batch[1]) ** 2, axis=1))


def optimizers(steps: int) -> dict[str, optax.GradientTransformationExtraArgs]:
    """Adam at every rate and schedule, and ours."""
    found = {}
    for schedule, rate in itertools.product(SCHEDULES, RATES):
        decay = optax.cosine_decay_schedule(rate, steps) if schedule == "cosine" else rate
        found[f"Adam, rate {rate:g} {schedule}"] = optax.with_extra_args_support(optax.adam(decay))
    ours = jaxmpd.scale_by_exact_linesearch(F, budget=BUDGET)
    found["ours"] = optax.chain(optax.scale_by_adam(), ours)
    return found


def stride(
    optimizer: Any, batch: int, every: int
) -> Callable[[Any, Any, jax.Array, Any], tuple[Any, Any]]:
    """A compiled run of some steps, each on a fresh minibatch."""

    def step(data: Any, carry: Any, key: jax.Array) -> tuple[Any, None]:
        params, state = carry
        # A random stretch of shuffled samples: cheap, so that it weighs on neither side.
        size = min(batch, len(data[0]))
        place = jax.random.randint(key, (), 0, len(data[0]) - size + 1)
        samples = jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, place, size), data)
        gradient = jax.grad(loss)(params, samples)
        updates, state = optimizer.update(gradient, state, params, batch=samples)
        return (optax.apply_updates(params, updates), state), None

    def run(params: Any, state: Any, key: jax.Array, data: Any) -> tuple[Any, Any]:
        return jax.lax.scan(partial(step, data), (params, state), jax.random.split(key, every))[0]

    return jax.jit(run)


class Curve(NamedTuple):
    """Training loss against steps and seconds."""

    losses: list[float]
    steps: list[int]
    seconds: list[float]


def follow(
    run: Any, start: Any, state: Any, data: Any, every: int, steps: int, mark: float
) -> Curve:
    """Run until the steps are spent or the mark is reached."""
    value = jax.jit(loss)
    jax.block_until_ready(run(start, state, jax.random.key(0), data))  # compiles
    params, seconds, curve = start, 0.0, Curve([], [], [])
    for k in range(steps // every):
        began = time.perf_counter()
        params, state = jax.block_until_ready(run(params, state, jax.random.key(k), data))
        seconds += time.perf_counter() - began
        curve.losses.append(float(value(params, data)))
        curve.steps.append((k + 1) * every)
        curve.seconds.append(seconds)
        if curve.losses[-1] <= mark:
            break
    return curve


def samples(source: Table | Path, seed: int) -> tuple[jax.Array, jax.Array]:
    """Shuffled inputs and targets: a table's training part, or images and one-hot labels."""
    if isinstance(source, Table):
        task = prepare(source, [list(source.columns)[-1]], seed=seed)
        inputs, targets = task.train.inputs, task.train.targets
    else:
        images = load(source)
        inputs = images.points
        targets = np.eye(10, dtype=np.float32)[images.labels.astype(int)]
    order = np.random.default_rng(seed).permutation(len(inputs))[:MOST]
    return jnp.asarray(inputs[order]), jnp.asarray(targets[order])


def compare(
    setting: Setting, source: Table | Path, seed: int, every: int, report: harness.Report
) -> dict[str, float]:
    """All optimisers on one setting; how many of Adam's steps and seconds we need."""
    data = samples(source, seed)
    widths = (data[0].shape[1], setting.width, data[1].shape[1])
    key = jax.random.key(seed)
    deviation = setting.deviation
    start = spread(key, widths, deviation) if deviation else jaxmpd.init(key, widths)
    curves: dict[str, Curve] = {}
    mark = -np.inf
    for name, optimizer in optimizers(setting.steps).items():
        if name == "ours":
            mark = min(c.losses[-1] for c in curves.values() if np.isfinite(c.losses[-1]))
        run = stride(optimizer, setting.batch, every)
        curves[name] = follow(run, start, optimizer.init(start), data, every, setting.steps, mark)
    ours = curves.pop("ours")
    best = min(curves, key=lambda name: np.nan_to_num(curves[name].losses[-1], nan=np.inf))
    reached = ours.losses[-1] <= mark
    theirs = curves[best]
    ratios = {
        "steps_ratio": ours.steps[-1] / theirs.steps[-1] if reached else np.inf,
        "seconds_ratio": ours.seconds[-1] / theirs.seconds[-1] if reached else np.inf,
        "seconds_ratio_tuned": ours.seconds[-1] / sum(c.seconds[-1] for c in curves.values())
        if reached
        else np.inf,
    }
    report.row(
        **setting._asdict(),
        seed=seed,
        best_adam=best.removeprefix("Adam, "),
        mark=mark,
        our_loss=ours.losses[-1],
        our_steps=ours.steps[-1],
        adam_seconds=theirs.seconds[-1],
        our_seconds=ours.seconds[-1],
        **ratios,
    )
    return ratios


def main() -> None:
    args = harness.parser(__doc__).parse_args()
    report = harness.Report("mpd_lines")
    sources: dict[str, Table | Path] = {"terrain": terrain(10_000 if args.quick else 50_929)}
    if not args.quick:
        path = harness.data(ROAD_FILE)
        if path is not None:
            sources["road"] = road(path)
        path = harness.data(MNIST_FILE, "JAXNPC_DATA")
        if path is not None:
            sources["mnist"] = path
    seeds = (0,) if args.quick else (0, 1, 2)
    for place, setting in enumerate(QUICK if args.quick else FULL):
        if setting.data not in sources:
            continue
        all_ratios = [
            compare(setting, sources[setting.data], seed, 5 if args.quick else 10, report)
            for seed in (seeds if place == 0 else seeds[:1])
        ]
        suffix = "" if place == 0 else f"_{setting.data}_{setting.width}"
        for key in all_ratios[0]:
            target = "< 1" if key == "steps_ratio" and place == 0 else None
            value = statistics.median(ratios[key] for ratios in all_ratios)
            report.summarise(key + suffix, value, target=target)
    report.finish(args)


if __name__ == "__main__":
    main()
