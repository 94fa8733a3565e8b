"""Classification by exact steps, and where message passing descent helps and where not.

Two parts, each against Adam in the same time, the optimiser's own.

1. Digits (scikit-learn's) and, where its files are there, MNIST: one hidden layer of ReLUs and the
   softmax cross-entropy. Ours is `jaxmpd.mpd` alone: `Blocks` and `Polish` on all samples for the
   digits, `Polish` for MNIST.
2. Regressions of a made-up function, one property changed at a time: width, samples, noise, depth,
   inputs. Figures are mean squared errors against the function without noise, on fresh samples.
   Ours is the hybrid; for two hidden layers one sweep of `Units`, then `Polish`.

Both sides choose by validation samples: Adam among three learning rates, and the one above the best
of them with cosine decay too; ours between two ridges; for regressions both between two starts.
Both keep the best parameters on the way. The figures are those of the chosen on test samples.

- `digits_accuracy`, `mnist_accuracy`: the share of test samples that is right, the median over the
  splits; `..._adam`: Adam's.
- `helps`: in how many of the regressions ours errs by less than 0.9 times what Adam does; `hurts`:
  in how many by more than 1/0.9 times.
"""

import functools
import itertools
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm

import jaxmpd
from benchmarks import harness
from jaxmpd.losses import SOFTMAX, SQUARED, AnyLoss, weighted_mean
from jaxmpd.minibatches import constant
from jaxmpd.presets import HYBRID_RIDGE
from jaxnpc.datasets import digits, load

MNIST_FILES = ("mnist/train-images-idx3-ubyte.gz", "mnist/t10k-images-idx3-ubyte.gz")
RATES = {SOFTMAX: (1e-3, 4e-3, 1.6e-2), SQUARED: (4e-3, 1.6e-2, 6.4e-2)}
RIDGES = {SOFTMAX: (0.3, 1.2), SQUARED: (HYBRID_RIDGE, 100 * HYBRID_RIDGE)}
"""Times the number of samples: of the sum of the losses."""
GLOROT = 0.0
STARTS = {SOFTMAX: (GLOROT,), SQUARED: (2.0, 8.0)}
"""Deviations of the hidden pre-activations (jaxmpd.starts); GLOROT stands for Glorot's scale."""
DEEP = (jaxmpd.During(jaxmpd.Units(), stop=1), jaxmpd.Polish(20))
EVALUATIONS = 20_000
"""Samples that Adam sees between evaluations, at least: they are outside its clock, not ours."""


class Samples(NamedTuple):
    """What is learned from, chosen by and judged by."""

    train: jaxmpd.Batch
    validation: jaxmpd.Batch
    test: jaxmpd.Batch


class Contest(NamedTuple):
    """What both sides are given."""

    samples: Samples
    widths: tuple[int, ...]
    activation: jaxmpd.PiecewiseLinear
    loss: AnyLoss
    metric: Callable[[Any, Any], jax.Array]
    seconds: float
    seed: int
    most: int
    """How many options of each knob are tried."""

    def options(self, knobs: dict[AnyLoss, tuple[float, ...]]) -> tuple[float, ...]:
        """What may be chosen from."""
        return knobs[self.loss][: self.most]


class Outcome(NamedTuple):
    """A run: what it was given, errors on validation and test samples, what it took."""

    knob: float
    start: float
    schedule: str
    validation: float
    test: float
    seconds: float
    updates: int


def wrong(predictions: Any, targets: Any) -> jax.Array:
    """1 for a sample of another class, else 0."""
    found, asked = jnp.argmax(predictions, axis=1), jnp.argmax(targets, axis=1)
    return (found != asked).astype(jnp.float32)


# Cached: one function for equal arguments, so that a second run finds the first one's program.
@functools.cache
def mean_of(values: Any, activation: jaxmpd.PiecewiseLinear) -> Any:
    """A loss of predictions and targets as `fit` takes it."""

    def loss(params: Any, batch: jaxmpd.Batch, key: Any) -> jax.Array:
        del key
        predictions = jaxmpd.apply(params, batch.inputs, activation)
        return weighted_mean(values(predictions, batch.targets), batch.weights)

    return loss


mpd = functools.cache(jaxmpd.mpd)
adam = functools.cache(optax.adam)


def run(
    contest: Contest,
    optimizer: Any,
    knob: float,
    start: float,
    size: int,
    every: int = 1,
    schedule: str = "constant",
) -> Outcome:
    """Train; the parameters that are best on the validation samples count."""
    samples, metric = contest.samples, mean_of(contest.metric, contest.activation)
    key, widths = jax.random.key(contest.seed), contest.widths
    fitted = jaxmpd.fit(
        mean_of(contest.loss, contest.activation),
        jaxmpd.spread(key, widths, start) if start else jaxmpd.init(key, widths),
        optimizer,
        samples.train,
        validation=samples.validation,
        metric=metric,
        batch_size=constant(size),
        seconds=contest.seconds,
        evaluate_every=every,
        seed=contest.seed,
        progress=False,
    )
    history = fitted.history
    test = float(metric(fitted.best_params, samples.test, None))
    spent = float(history.seconds[-1]), int(history.minibatch_steps[-1])
    return Outcome(knob, start, schedule, fitted.best_loss, test, *spent)


def best(outcomes: Sequence[Outcome]) -> Outcome:
    """The one to choose; a run that diverged is none."""
    return min(outcomes, key=lambda outcome: np.nan_to_num(outcome.validation, nan=np.inf))


def ours(contest: Contest, steps: tuple[jaxmpd.Step, ...]) -> Outcome:
    """Message passing descent on all samples, with the best ridge and start."""
    count = len(contest.samples.train.inputs)

    def trial(ridge: float, start: float) -> Outcome:
        optimizer = mpd(contest.activation, steps=steps, loss=contest.loss, l2=ridge / count)
        return run(contest, optimizer, ridge, start, count)

    knobs = itertools.product(contest.options(RIDGES), contest.options(STARTS))
    return best([trial(*knob) for knob in knobs])


def theirs(contest: Contest) -> Outcome:
    """Adam with the best rate, schedule and start."""
    count = len(contest.samples.train.inputs)
    # A dozen updates a batch step at least, so that what a call costs does not weigh.
    size = min(256, max(16, count // 16))
    every = max(1, EVALUATIONS // count)

    def trial(rate: float, start: float, updates: int | None = None) -> Outcome:
        if updates is None:
            return run(contest, adam(rate), rate, start, size, every)
        decay = optax.cosine_decay_schedule(rate, updates)
        return run(contest, adam(decay), rate, start, size, every, "cosine")

    rates = contest.options(RATES)
    plain = [trial(*knobs) for knobs in itertools.product(rates, contest.options(STARTS))]
    chosen = best(plain)
    higher = rates[min(rates.index(chosen.knob) + 1, len(rates) - 1)]
    return best([*plain, trial(higher, chosen.start, chosen.updates)])


def both(contest: Contest, steps: tuple[jaxmpd.Step, ...]) -> tuple[Outcome, Outcome]:
    """Ours and Adam, which is given the time that ours took: a step too long counts for it."""
    mine = ours(contest, steps)
    return mine, theirs(contest._replace(seconds=max(contest.seconds, mine.seconds)))


# Classification ---------------------------------------------------------------------------------


def as_batches(images: np.ndarray, labels: Any, parts: Sequence[np.ndarray]) -> list[jaxmpd.Batch]:
    """Parts of the samples, standardised by the first."""
    mean, scale = images[parts[0]].mean(axis=0), images[parts[0]].std()
    inputs, targets = (images - mean) / scale, np.eye(10)[np.asarray(labels, int)]
    return [
        jaxmpd.Batch(*(jnp.asarray(a[part], jnp.float32) for a in (inputs, targets)))
        for part in parts
    ]


def digits_samples(seed: int) -> Samples:
    """A fifth for testing, a tenth for validation."""
    data = digits()
    count = len(data.points)
    order = np.random.default_rng(seed).permutation(count)
    parts = np.split(order, [count * 7 // 10, count * 8 // 10])
    return Samples(*as_batches(data.points, data.labels, parts))


def mnist_samples(paths: Sequence[Path], seed: int) -> Samples:
    """A sixth of the training images for validation, MNIST's own for testing."""
    train, test = (load(path) for path in paths)
    count = len(train.points)
    order = np.random.default_rng(seed).permutation(count)
    points = np.concatenate([train.points, test.points])
    labels = np.append(np.asarray(train.labels), np.asarray(test.labels))
    parts = (*np.split(order, [count * 5 // 6]), np.arange(count, len(points)))
    return Samples(*as_batches(points, labels, parts))


def classify(
    name: str,
    splits: Sequence[Samples],
    width: int,
    seconds: float,
    steps: tuple[jaxmpd.Step, ...],
    report: harness.Report,
    target: str | None,
    most: int,
    bar: tqdm,
) -> None:
    """Rows and figures of one data set."""
    found: dict[str, list[float]] = {"": [], "_adam": []}
    for seed, samples in enumerate(splits):
        widths = (samples.train.inputs.shape[1], width, 10)
        contest = Contest(samples, widths, jaxmpd.RELU, SOFTMAX, wrong, seconds, seed, most)
        mine, other = both(contest, steps)
        found[""].append(1 - mine.test)
        found["_adam"].append(1 - other.test)
        report.row(
            data=name,
            width=width,
            samples=len(samples.train.inputs),
            split=seed,
            mpd=1 - mine.test,
            ridge=mine.knob,
            seconds=mine.seconds,
            adam=1 - other.test,
            rate=other.knob,
            schedule=other.schedule,
            adam_seconds=other.seconds,
        )
        bar.update()
    for suffix, values in found.items():
        goal = target if not suffix else None
        report.summarise(f"{name}_accuracy{suffix}", statistics.median(values), target=goal)


# Regression -------------------------------------------------------------------------------------


class Setting(NamedTuple):
    """A regression: units a hidden layer, samples, standard deviation of the noise, and so on."""

    width: int = 64
    samples: int = 4000
    noise: float = 0.1
    depth: int = 1
    inputs: int = 2


SETTINGS = (
    Setting(),
    Setting(width=8),
    Setting(width=512),
    Setting(samples=400),
    Setting(samples=40_000),
    Setting(noise=1.0),
    Setting(depth=2),
    Setting(inputs=20),
)


def function(x: np.ndarray) -> np.ndarray:
    """Ripples and a crease on the first two inputs; the others add a little each."""
    ripples = np.sin(3 * x[:, 0]) * np.cos(2 * x[:, 1]) + np.abs(x[:, 0] + x[:, 1])
    others = np.tanh(x[:, 2:]).sum(axis=1) / max(1, x.shape[1] - 2) ** 0.5
    return (ripples + others)[:, None]


def regression_samples(setting: Setting, seed: int) -> Samples:
    rng = np.random.default_rng(seed)

    def draw(count: int, noise: float) -> jaxmpd.Batch:
        x = rng.normal(size=(count, setting.inputs))
        y = function(x) + noise * rng.normal(size=(count, 1))
        return jaxmpd.Batch(jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32))

    validation = max(100, setting.samples // 4)
    return Samples(
        draw(setting.samples, setting.noise), draw(validation, setting.noise), draw(20_000, 0.0)
    )


def regress(setting: Setting, seconds: float, report: harness.Report, most: int) -> float:
    """One row; ours over Adam's."""
    contest = Contest(
        regression_samples(setting, seed=0),
        (setting.inputs, *[setting.width] * setting.depth, 1),
        jaxmpd.LEAKY_HARD_TANH,
        SQUARED,
        jaxmpd.squared_error,
        seconds,
        seed=0,
        most=most,
    )
    mine, other = both(contest, DEEP if setting.depth > 1 else jaxmpd.HYBRID)
    ratio = mine.test / other.test
    report.row(
        **setting._asdict(),
        mpd=mine.test,
        ridge=mine.knob,
        start=mine.start,
        seconds=mine.seconds,
        adam=other.test,
        rate=other.knob,
        schedule=other.schedule,
        adam_start=other.start,
        adam_seconds=other.seconds,
        ratio=ratio,
    )
    return ratio


def main() -> None:
    args = harness.parser(__doc__).parse_args()
    report = harness.Report("mpd_classification")
    splits = [digits_samples(seed) for seed in range(1 if args.quick else 3)]
    settings = SETTINGS[:1] if args.quick else SETTINGS
    paths = [] if args.quick else [harness.data(name, "JAXNPC_DATA") for name in MNIST_FILES]
    found = [path for path in paths if path]
    seconds, most = (0.5, 1) if args.quick else (2.0, 3)
    with tqdm(total=len(splits) + len(found) // 2 + len(settings), unit="contest") as bar:
        steps = (jaxmpd.Blocks(), jaxmpd.Polish(20))
        classify("digits", splits, 128, seconds, steps, report, ">= 0.97", most, bar)
        if len(found) == 2:
            steps = (jaxmpd.Polish(10),)
            classify("mnist", [mnist_samples(found, 0)], 128, 10.0, steps, report, None, most, bar)
        ratios: list[float] = []
        for setting in settings:
            ratios.append(regress(setting, seconds, report, most))
            bar.update()
    report.summarise("helps", sum(ratio < 0.9 for ratio in ratios))
    report.summarise("hurts", sum(ratio > 1 / 0.9 for ratio in ratios))
    report.finish(args)


if __name__ == "__main__":
    main()
