"""Deep networks: exactness against brute force, numbers of breakpoints, time, and training.

- `depth2_gap`, `depth3_gap`: along a parameter of the first layer (closed form for two hidden
  layers, trace for three) and along a direction of the whole first layer, float64: the loss found
  minus the least that brute force finds, over the loss at the start; the worst case. Brute force
  refines each sample's mesh layer by layer in NumPy (the paper's section 3.3) and shares no code.
- Breakpoints a sample, measured, against the bound and the paper's estimate R_n ~ 2 d R_(n-1), and
  how they grow with width and depth.
- Microseconds an update, float32, and how it splits.
- `depth2_ratio_seconds60`: training MSE of a network of two hidden layers on terrain after 60 s
  (`--seconds`), ours over that of the best Adam (start and learning rate tuned, constant and with
  cosine decay over the budget, in runs of a fifteenth of it), median over the seeds;
  `..._validation` likewise. Ours: exact unit sweeps on growing minibatches, then the polishing
  step; `without_sweeps` is the polishing step alone.
"""

import itertools
import statistics
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxmpd
from benchmarks import harness
from jaxmpd import Batch, Coordinate, Layer
from jaxmpd.datasets import terrain
from jaxmpd.deep import LayerDirection, breakpoint_bound, curves_along
from jaxmpd.regressor import prepare
from jaxmpd.starts import spread
from jaxmpd.steps import deep, polish
from jaxmpd.steps.line import minimum_along

F = jaxmpd.LEAKY_HARD_TANH
FAR = 1e5
"""How far from the current value brute force looks."""
RATES = (3e-3, 1e-2, 2e-2)
DEVIATIONS = (1.0, 2.0, 4.0)
"""Of the hidden pre-activations at the start: Adam's are tuned."""
OUR_DEVIATION, RIDGE, SHARE = 2.0, 1e-6, 0.2
STAGES = ((512, 0), (1024, 0), (4096, 1))
"""Sweeps of ours, for a third of their time each: samples, and the first layer that moves."""


def activation(z: np.ndarray) -> np.ndarray:
    """The leaky hard tanh once more, without the package."""
    return np.clip(z, -1, 1) * 0.99 + 0.01 * z


def random_network(rng: np.random.Generator, depth: int, width: int) -> list[tuple]:
    widths = [2, *[width] * depth, 1]
    layers = []
    for d_in, d_out in itertools.pairwise(widths):
        gain = 3.0 / np.sqrt(d_in)
        layers.append((gain * rng.normal(size=(d_in, d_out)), rng.normal(size=d_out)))
    return layers


def forward(layers: list[tuple], x: np.ndarray) -> np.ndarray:
    *hidden, (kernel, bias) = layers
    for w, b in hidden:
        x = activation(x @ w + b)
    return x @ kernel + bias


def shifted(layers: list[tuple], change: tuple, t: float) -> list[tuple]:
    (w, b), (dw, db) = layers[0], change
    return [(w + t * dw, b + t * db), *layers[1:]]


def mesh(layers: list[tuple], change: tuple, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One sample's breakpoints along the change and its prediction there, by refinement."""
    (w, b), (dw, db) = layers[0], change
    t = np.array([-FAR, 0.0, FAR])
    z = (x @ w + b) + t[:, None] * (x @ dw + db)
    for kernel, bias in layers[1:]:
        # Between neighbouring points z is affine: where does it meet a kink?
        places = []
        for kink in (-1.0, 1.0):
            a, c = z[:-1] - kink, z[1:] - kink
            piece, unit = np.nonzero(a * c < 0)
            share = a[piece, unit] / (a[piece, unit] - c[piece, unit])
            places.append((piece, share))
        piece, share = (np.concatenate(column) for column in zip(*places, strict=True))
        new = t[piece] + share * (t[piece + 1] - t[piece])
        values = z[piece] + share[:, None] * (z[piece + 1] - z[piece])
        order = np.argsort(np.concatenate([t, new]), kind="stable")
        t = np.concatenate([t, new])[order]
        z = np.concatenate([z, values])[order]
        z = activation(z) @ kernel + bias
    return t, z[:, 0]


def brute_force(layers: list[tuple], change: tuple, x: np.ndarray, y: np.ndarray) -> tuple:
    """The least loss, and each sample's number of breakpoints."""
    curves = [mesh(layers, change, row) for row in x]
    points = np.unique(np.concatenate([t for t, _ in curves]))
    total = np.zeros(len(points))
    middle = (points[1:] + points[:-1]) / 2
    total_middle = np.zeros(len(middle))
    for (t, value), target in zip(curves, y, strict=True):
        total += (np.interp(points, t, value) - target) ** 2
        total_middle += (np.interp(middle, t, value) - target) ** 2
    bend = total[:-1] - 2 * total_middle + total[1:]
    safe = np.where(bend > 0, bend, 1)
    move = np.where(bend > 0, np.clip((total[:-1] - total[1:]) / (4 * safe), -0.5, 0.5), 0)
    vertex = middle + move * np.diff(points)
    # A parabola through both ends and the middle of each interval.
    value = total_middle + move * (total[1:] - total[:-1]) + 2 * move**2 * bend
    candidates = np.concatenate([points, vertex])
    best = candidates[np.argsort(np.concatenate([total, value]))[:50]]
    least = min(loss_at(layers, change, t, x, y) for t in best)
    return least, np.array([len(t) - 3 for t, _ in curves])


def loss_at(layers: list[tuple], change: tuple, t: float, x: np.ndarray, y: np.ndarray) -> float:
    return float(np.mean((forward(shifted(layers, change, t), x)[:, 0] - y) ** 2))


def exactness(depth: int, width: int, cases: int, samples: int, report: harness.Report) -> float:
    """The worst gap over random networks, along single parameters and the whole layer."""
    budget = 2048
    worst, counts = 0.0, []

    with jax.enable_x64(True):

        @partial(jax.jit, static_argnames="whole")
        def search(layers: Any, x: Any, y: Any, direction: Any, whole: bool) -> Any:
            along = LayerDirection(0, direction) if whole else Coordinate(0, *direction)
            resolved = curves_along(layers, x, F, along, budget=budget, chunk=64)
            found = minimum_along(resolved, y[:, None], jnp.full(len(y), 1 / len(y)))
            return found.argmin, jnp.max(resolved.lo), jnp.min(resolved.hi)

        for case in range(cases):
            rng = np.random.default_rng([depth, width, case])
            network = random_network(rng, depth, width)
            x, y = rng.normal(size=(samples, 2)), rng.normal(size=samples)
            layers = tuple(Layer(jnp.asarray(w), jnp.asarray(b)) for w, b in network)
            whole = case % 4 == 3
            row, column = int(rng.integers(3)), int(rng.integers(width))
            if whole:
                change = (rng.normal(size=(2, width)), rng.normal(size=width))
                direction: Any = Layer(*map(jnp.asarray, change))
            else:
                change = (np.zeros((2, width)), np.zeros(width))
                (change[1] if row == 2 else change[0][row])[column] = 1.0
                direction = (row, column)
            t, lo, hi = (float(v) for v in search(layers, x, y, direction, whole=whole))
            if max(-lo, hi) < np.inf:
                raise RuntimeError(f"the budget of {budget} knots did not cover the line")
            before = loss_at(network, change, 0.0, x, y)
            least, knots = brute_force(network, change, x, y)
            worst = max(worst, (loss_at(network, change, t, x, y) - least) / before)
            if not whole:
                counts.extend(knots)
    report.row(
        hidden_layers=depth,
        width=width,
        cases=cases,
        samples=samples,
        gap=worst,
        breakpoints_mean=float(np.mean(counts)),
        breakpoints_most=int(np.max(counts)),
        bound=breakpoint_bound((2, *[width] * depth, 1), 0, F),
        paper_estimate=float((2 * width) ** depth),
    )
    return worst


def growth(depths: tuple[int, ...], widths: tuple[int, ...], report: harness.Report) -> None:
    """Breakpoints a sample along a first-layer parameter, by brute force's meshes."""
    for depth, width in itertools.product(depths, widths):
        counts = []
        for case in range(6):
            rng = np.random.default_rng([depth, width, case])
            network = random_network(rng, depth, width)
            change = (np.zeros((2, width)), np.zeros(width))
            change[0][case % 2][case % width] = 1.0
            counts += [len(mesh(network, change, x)[0]) - 3 for x in rng.normal(size=(8, 2))]
        report.row(
            growth="first-layer parameter",
            hidden_layers=depth,
            width=width,
            mean=float(np.mean(counts)),
            most=int(np.max(counts)),
            bound=float(breakpoint_bound((2, *[width] * depth, 1), 0, F)),
            paper_estimate=float((2 * width) ** depth),
        )


def speed(depth: int, width: int, samples: int, repeats: int, report: harness.Report) -> float:
    """Microseconds of an exact update of a first-layer parameter."""

    @jax.jit
    def follow(layers: Any, x: Any, row: Any, column: Any) -> Any:
        return curves_along(layers, x, F, Coordinate(0, row, column), budget=256)

    @jax.jit
    def update(layers: Any, x: Any, y: Any, row: Any, column: Any) -> Any:
        resolved = curves_along(layers, x, F, Coordinate(0, row, column), budget=256)
        t = minimum_along(resolved, y, jnp.full(len(y), 1 / len(y), y.dtype)).argmin
        return layers[0].kernel.at[row, column].add(t)

    def fresh(repeat: int) -> tuple:
        rng = np.random.default_rng(repeat + 1)
        layers = tuple(
            Layer(jnp.asarray(w, jnp.float32), jnp.asarray(b, jnp.float32))
            for w, b in random_network(rng, depth, width)
        )
        x, y = (jnp.asarray(rng.normal(size=(samples, n)), jnp.float32) for n in (2, 1))
        return layers, x, y, jnp.asarray(rng.integers(2)), jnp.asarray(rng.integers(width))

    seconds = harness.alternate(
        {"update": update, "curves": lambda l, x, y, r, c: follow(l, x, r, c)}, fresh, repeats
    )
    medians = harness.medians(seconds, 1e-6)
    report.row(
        update="first-layer parameter",
        hidden_layers=depth,
        width=width,
        samples=samples,
        us_update=medians["update"],
        us_curves=medians["curves"],
        us_update_per_sample=medians["update"] / samples,
    )
    return medians["update"]


# Training ---------------------------------------------------------------------------------------


def mse(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean(jnp.sum((jaxmpd.apply(params, x, F) - y) ** 2, axis=1))


def start(key: Any, inputs: jax.Array, width: int, deviation: float) -> tuple[Layer, ...]:
    """Two hidden layers whose kinks cut through the data: pre-activations of this deviation."""
    keys = jax.random.split(key, 3)
    first = spread(keys[0], (inputs.shape[1], width, 1), deviation)[0]
    features = F(inputs[:2048] @ first.kernel + first.bias)
    size = jnp.sqrt(jnp.mean(jnp.sum(features**2, axis=1)))
    second = Layer(deviation / size * jax.random.normal(keys[1], (width, width)), jnp.zeros(width))
    return first, second, spread(keys[2], (width, 1, 1))[0]._replace(bias=jnp.zeros(1))


ADAM = optax.inject_hyperparams(optax.adam)(learning_rate=0.0)
BATCH = 256


@jax.jit
def adam_epoch(params: Any, state: Any, key: Any, rate: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """One pass of Adam over all samples."""
    count = len(x) // BATCH
    places = jax.random.permutation(key, len(x))[: count * BATCH].reshape(count, BATCH)

    def step(carry: Any, i: Any) -> Any:
        params, state = carry
        state.hyperparams["learning_rate"] = rate
        gradient = jax.grad(mse)(params, x[i], y[i])
        updates, state = ADAM.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), None

    return jax.lax.scan(step, (params, state), places)[0]


def train_adam(params: Any, data: tuple, rate: float, schedule: str, seconds: float) -> Any:
    """Adam for so many seconds; the cosine decay follows the clock."""
    state = ADAM.init(params)
    jax.block_until_ready(adam_epoch(params, state, jax.random.key(0), jnp.zeros(()), *data))
    began, turns = time.perf_counter(), 0
    while (spent := time.perf_counter() - began) < seconds:
        now = rate * (0.5 * (1 + np.cos(np.pi * spent / seconds)) if schedule == "cosine" else 1)
        key = jax.random.key(turns)
        params, state = adam_epoch(params, state, key, jnp.asarray(now, jnp.float32), *data)
        jax.block_until_ready(params)
        turns += 1
    return params


@partial(jax.jit, static_argnames=("size", "first"))
def exact_sweep(params: Any, key: Any, x: Any, y: Any, size: int, first: int) -> Any:
    i = jax.random.choice(key, len(x), (min(size, len(x)),), replace=False)
    movable = [
        Layer(np.full(w.shape, k >= first), np.full(b.shape, k >= first))
        for k, (w, b) in enumerate(params)
    ]
    return deep.sweep(params, Batch(x[i], y[i]), key, F, l2=RIDGE, movable=movable)


@jax.jit
def finish(params: Any, x: Any, y: Any) -> Any:
    return polish.polish(params, Batch(x, y), F, l2=RIDGE, iterations=50)


def train_ours(params: Any, data: tuple, seconds: float, share: float = SHARE) -> Any:
    """Unit sweeps for a share of the time, on growing minibatches; then polishing."""
    for size, first in STAGES:
        jax.block_until_ready(exact_sweep(params, jax.random.key(0), *data, size=size, first=first))
    jax.block_until_ready(finish(params, *data))
    began, turns = time.perf_counter(), 0
    while (spent := time.perf_counter() - began) < share * seconds:
        size, first = STAGES[int(len(STAGES) * spent / (share * seconds))]
        key = jax.random.key(turns)
        params = jax.block_until_ready(exact_sweep(params, key, *data, size=size, first=first))
        turns += 1
    last = 0.0  # no call may end after the time is up
    while (spent := time.perf_counter() - began) + last < seconds:
        params = jax.block_until_ready(finish(params, *data))
        last = time.perf_counter() - began - spent
    return params


def training(width: int, seconds: float, seeds: tuple[int, ...], report: harness.Report) -> None:
    """Ours against the best Adam at equal seconds; Adam and its start are tuned on seed 0."""
    table = terrain(50_929)
    ratios: list[tuple[float, float]] = []
    chosen: tuple[float, str, float] | None = None
    for seed in seeds:
        task = prepare(table, [list(table.columns)[-1]], seed=seed)
        data, held_out = (
            tuple(map(jnp.asarray, (part.inputs, part.targets)))
            for part in (task.train, task.validation)
        )

        def begin(deviation: float, seed: int = seed, x: Any = data[0]) -> Any:
            return start(jax.random.key(seed), x, width, deviation)

        if chosen is None:
            grid = list(itertools.product(RATES, ("constant", "cosine"), DEVIATIONS))
            grid = grid[-2:] if len(seeds) == 1 else grid
            trials = {
                (rate, schedule, deviation): float(
                    mse(train_adam(begin(deviation), data, rate, schedule, seconds / 15), *held_out)
                )
                for rate, schedule, deviation in grid
            }
            chosen = min(grid, key=lambda option: np.nan_to_num(trials[option], nan=np.inf))
        rate, schedule, deviation = chosen
        results = {
            "Adam": train_adam(begin(deviation), data, rate, schedule, seconds),
            "ours": train_ours(begin(OUR_DEVIATION), data, seconds),
        }
        if seed == seeds[0]:
            results["without_sweeps"] = train_ours(begin(OUR_DEVIATION), data, seconds, share=0.0)
        losses = {
            name: tuple(float(mse(found, *part)) for part in (data, held_out))
            for name, found in results.items()
        }
        ratios.append(tuple(a / b for a, b in zip(losses["ours"], losses["Adam"], strict=True)))
        report.row(
            training="terrain",
            width=width,
            seed=seed,
            seconds=seconds,
            adam_chosen=f"rate {rate:g} {schedule}, start {deviation:g}",
            adam_train=losses["Adam"][0],
            our_train=losses["ours"][0],
            adam_validation=losses["Adam"][1],
            our_validation=losses["ours"][1],
            without_sweeps_train=losses.get("without_sweeps", (None,))[0],
        )
    key = f"depth2_ratio_seconds{seconds:g}"
    report.summarise(key, statistics.median(ratio for ratio, _ in ratios), target="< 1")
    report.summarise(f"{key}_validation", statistics.median(ratio for _, ratio in ratios))


def main() -> None:
    options = harness.parser(__doc__)
    options.add_argument(
        "--seconds", type=float, default=60, help="of each training run (default: 60)"
    )
    options.add_argument(
        "--parts", choices=("all", "exact", "training"), default="all", help="what to run"
    )
    args = options.parse_args()
    report = harness.Report("mpd_depth")
    quick = args.quick
    if args.parts != "training":
        for depth in (2, 3):
            widths = (10,) if quick else (50, 100)
            cases, samples = (4, 12) if quick else (12 if depth == 2 else 8, 30)
            gaps = [exactness(depth, width, cases, samples, report) for width in widths]
            report.summarise(f"depth{depth}_gap", max(gaps), target="<= 1e-9")
        growth(
            (2,) if quick else (1, 2, 3, 4), (10, 20) if quick else (12, 25, 50, 100, 200), report
        )
        for depth, width in ((2, 10),) if quick else ((2, 50), (2, 100), (3, 50), (3, 100)):
            samples = 256 if quick else 1024
            us = speed(depth, width, samples, 5, report)
            report.summarise(f"us_update_depth{depth}_{width}", us)
    if args.parts != "exact":
        if quick:
            training(10, min(args.seconds, 2), (0,), report)
        else:
            training(50, args.seconds, (0, 1, 2), report)
    report.finish(args)


if __name__ == "__main__":
    main()
