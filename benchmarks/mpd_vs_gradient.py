"""MPD against Adam, NAG and L-BFGS at equal batch steps and at equal seconds (the paper's Fig. 2).

One hidden layer of 500 units on the first 5,000 points of UCI's 3D road network and on the terrain
that matplotlib ships. A seed decides the split, the start and the minibatches.

At equal batch steps MPD goes by coordinates, as in the paper, and training losses are compared.
Everything is tuned on the validation samples of the first seed: per data set the spread of the
start, without which the peers hardly leave the linear function that Glorot's scale starts them at;
for each budget anew the peers' learning rate, its schedule (constant, or cosine over the budget)
and, where the row says so, batch size; MPD's schedule of batch sizes. The start is tuned with
every rate (a constant one), for MPD with the paper's batch sizes.

At equal seconds MPD takes its default, the hybrid of exact sweeps, polishing and replacement, with
nothing tuned, and validation losses are compared. Adam and NAG are tuned as above, all their
configurations for a tenth of the time and the best for the whole. Full-batch L-BFGS is optax's, run
fairly (see `benchmarks.peers`), its start and ridge tuned over the whole time, and so are those of
Levenberg and Marquardt's method. A row without
the exact steps, the whitened L-BFGS of the polish alone from the same start with the same ridge,
tells what those contribute. Ratios are medians over the seeds of our loss over the better peer's.

Every run is kept in the folder --cache, so that an interrupted benchmark continues where it stood;
delete the folder after a change of the code. The full benchmark takes about an hour on two idle
cores; only the budgets in seconds need them idle: `--budgets steps` runs the others, and
`--budgets seconds --against levenberg` races against some peers only.
"""

import itertools
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import harness
from benchmarks.mpd_runs import FULL_BATCH, GLOROT, GROWING, SCHEDULES, Config, Lab
from jaxmpd.datasets import road, terrain
from jaxmpd.presets import HYBRID_RIDGE, PRESETS
from jaxmpd.runs import History

ROAD_FILE = "3droad/3d_spatial_network_first5000.csv"
PEERS = ("adam", "nag")
RATES = {
    "adam": (1e-3, 3e-3, 1e-2, 2e-2, 4e-2, 8e-2),
    "nag": (3e-4, 1e-3, 2e-3, 4e-3, 8e-3),
}
RACE_RATES = {"adam": (1e-2, 2e-2, 4e-2, 8e-2, 0.16), "nag": (1e-3, 2e-3, 4e-3)}
STARTS = (GLOROT, 7.0, 14.0, 28.0, 56.0)
"""Deviations of the hidden pre-activations at the start; GLOROT stands for Glorot's scale."""
START = 14.0
"""The start of MPD's hybrid, not tuned."""
RIDGES = (HYBRID_RIDGE / 10, HYBRID_RIDGE)
"""What the peers that take all samples choose their ridge from, times the number of samples."""
LBFGS_STARTS = (7.0, 14.0)
LABELS = {
    **{name: preset.label for name, preset in PRESETS.items()},
    "lbfgs": "L-BFGS",
    "levenberg": "Levenberg-Marquardt",
    "polish": "MPD without exact steps",
}

RIVALS = ("polish", *FULL_BATCH, *PEERS)


class Budget(NamedTuple):
    """One comparison: what is spent, what the peers may choose from, and what is asked."""

    data: str
    key: str
    peer_batches: tuple[int, ...] = (256,)
    steps: int | None = None
    seconds: float | None = None
    target: str | None = None


FULL_BUDGETS = (
    Budget("terrain", "terrain_ratio_steps4", steps=4, target="<= 0.6"),
    Budget("road", "road_ratio_steps28", steps=28, target="<= 0.47"),
    Budget("road", "road_ratio_steps28_tuned_batch", (32, 64, 128, 256), 28, target="<= 0.56"),
)
QUICK_BUDGETS = (
    Budget("terrain", "terrain_ratio_steps2", steps=2),
    Budget("road", "road_ratio_steps6", steps=6),
)


class Race(NamedTuple):
    """One comparison at equal seconds: the keys' suffix, and what is asked."""

    data: str
    seconds: float
    peer_batches: tuple[int, ...]
    gradient: str | None = None
    lbfgs: str | None = None


FULL_RACES = (
    Race("road", 20, (64, 256), "<= 0.3", "<= 0.8"),
    Race("terrain", 60, (256,), "<= 0.5", "<= 0.75"),
)
QUICK_RACES = (Race("road", 3, (256,)),)
QUICK_RATES = {"adam": (1e-2,), "nag": (2e-3,)}
QUICK_STARTS = (3.5,)


def at(history: History, budget: Budget, spent: float = 1.0) -> tuple[float, float]:
    """Training and validation loss where this share of the budget is spent.

    A run that diverged before counts as infinite.
    """
    axis = history.batch_steps if budget.seconds is None else history.seconds
    place = int(np.searchsorted(axis, spent * (budget.steps or budget.seconds), side="right")) - 1
    train, validation = history.train_loss[place], history.validation_loss[place]
    if not np.isfinite(history.train_loss[: place + 1]).all():
        return np.inf, np.inf
    return float(train), float(validation)


class Options(NamedTuple):
    """What is tuned over, and the seeds that are run."""

    batches: tuple[str, ...]
    rates: dict[str, tuple[float, ...]]
    starts: tuple[float, ...]
    schedules: tuple[str, ...]
    seeds: tuple[int, ...]
    ridges: tuple[float, ...]
    lbfgs_starts: tuple[float, ...]


def candidates(budget: Budget, optimizer: str, options: Options) -> list[Config]:
    """What an optimiser may choose from."""
    base = Config(budget.data, optimizer, 0, steps=budget.steps, seconds=budget.seconds)
    if optimizer == "coordinates":
        return [
            replace(base, batch=batch, start=start)
            for batch, start in itertools.product(options.batches, options.starts)
        ]
    return [
        replace(base, batch=batch, start=start, rate=rate, schedule=schedule)
        for batch, start, rate, schedule in itertools.product(
            budget.peer_batches, options.starts, options.rates[optimizer], options.schedules
        )
    ]


def tune(lab: Lab, budget: Budget, optimizer: str, options: Options) -> tuple[Config, int]:
    """The configuration of the least validation loss on the first seed, and how many were tried.

    The start of a data set is chosen once, at its budget of batch steps.
    """

    def loss(config: Config) -> float:
        # At the end of its own budget: of all, or of the first tenth.
        spent = budget._replace(steps=config.steps, seconds=config.seconds)
        return at(lab.history(config), spent)[1]

    first = replace_all(candidates(budget, optimizer, options), seed=options.seeds[0])
    tried: set[Config] = set()
    place = (budget.data, optimizer)
    if place not in lab.starts:
        batch = options.batches[0] if optimizer == "coordinates" else budget.peer_batches[-1]
        schedule = first[0].schedule
        tried = {c for c in first if c.schedule == schedule and c.batch == batch}
        lab.starts[place] = min(sorted(tried, key=str), key=loss).start
    configs = [config for config in first if config.start == lab.starts[place]]
    tried |= set(configs)
    if budget.seconds is not None:
        early = {c: replace(c, seconds=budget.seconds / 10) for c in configs}
        configs = sorted(configs, key=lambda config: loss(early[config]))[:1]
    return min(configs, key=loss), len(tried)


def replace_all(configs: list[Config], **changes: Any) -> list[Config]:
    """The same changes to each."""
    return [replace(config, **changes) for config in configs]


def compare(
    lab: Lab, budget: Budget, report: harness.Report, options: Options
) -> list[dict[str, Any]]:
    """Tune all, compare, and return the rows of the curve."""
    seeds = options.seeds
    spent = f"{budget.steps or budget.seconds:g} {'s' if budget.seconds else 'batch steps'}"
    histories: dict[str, list[History]] = {}
    ends: dict[str, list[tuple[float, float]]] = {}
    for name in ("coordinates", *PEERS):
        best, tried = tune(lab, budget, name, options)
        histories[name] = [lab.history(replace(best, seed=seed)) for seed in seeds]
        ends[name] = [at(history, budget) for history in histories[name]]
        train, validation = np.array(ends[name]).T
        rates = options.rates.get(name, ())
        edge = len(rates) > 1 and best.rate in (min(rates), max(rates))
        report.row(
            data=budget.data,
            budget=spent,
            optimiser=LABELS[name],
            chosen=str(best) + (" (last rate of the range)" if edge else ""),
            tried=tried,
            train=float(np.median(train)),
            train_least=float(train.min()),
            train_most=float(train.max()),
            validation=float(np.median(validation)),
        )
    peer = min(PEERS, key=lambda name: statistics.median(train for train, _ in ends[name]))
    ratios = [
        ours[0] / theirs[0] for ours, theirs in zip(ends["coordinates"], ends[peer], strict=True)
    ]
    report.summarise(budget.key, statistics.median(ratios), budget.target)
    report.summarise(f"{budget.key}_least", min(ratios))
    report.summarise(f"{budget.key}_most", max(ratios))
    validation = [
        ours[1] / theirs[1] for ours, theirs in zip(ends["coordinates"], ends[peer], strict=True)
    ]
    report.summarise(f"{budget.key}_validation", statistics.median(validation))

    def middle(name: str, share: float) -> float:
        return statistics.median(at(h, budget, share)[0] for h in histories[name])

    points = budget.steps or 10
    curve = []
    for share in (k / points for k in range(1, points + 1)):
        losses = {LABELS[name]: middle(name, share) for name in histories}
        ratio = losses[LABELS["coordinates"]] / min(losses[LABELS[name]] for name in PEERS)
        place = share * (budget.steps or budget.seconds)
        unit = "seconds" if budget.seconds else "batch_steps"
        curve.append({"curve": budget.key, unit: place, **losses, "ratio": ratio})
    return curve


def race(
    lab: Lab, race: Race, report: harness.Report, options: Options, against: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Compare validation losses at equal seconds, and return the rows of the curve."""
    budget = Budget(race.data, "", race.peer_batches, seconds=race.seconds)
    first = options.seeds[0]

    def loss(config: Config) -> float:
        return at(lab.history(config), budget)[1]

    def run(name: str, **settings: Any) -> Config:
        return Config(race.data, name, "full", seconds=race.seconds, seed=first, **settings)

    chosen = {"mpd": (run("mpd", start=START), 1)}
    if "polish" in against:
        chosen["polish"] = (run("polish", start=START, ridge=HYBRID_RIDGE), 1)
    for name in (name for name in FULL_BATCH if name in against):
        many = [
            run(name, start=start, ridge=ridge)
            for start in options.lbfgs_starts
            for ridge in options.ridges
        ]
        chosen[name] = (min(many, key=loss), len(many))
    gradient = [name for name in PEERS if name in against]
    for name in gradient:
        chosen[name] = tune(lab, budget, name, options)
    histories = {
        name: [lab.history(replace(config, seed=seed)) for seed in options.seeds]
        for name, (config, _) in chosen.items()
    }
    ends = {name: np.array([at(h, budget) for h in hs]) for name, hs in histories.items()}
    for name, (config, tried) in chosen.items():
        train, validation = ends[name].T
        report.row(
            data=race.data,
            budget=f"{race.seconds:g} s",
            optimiser=LABELS[name],
            chosen=str(config),
            tried=tried,
            train=float(np.median(train)),
            train_least=float(train.min()),
            train_most=float(train.max()),
            validation=float(np.median(validation)),
            validation_least=float(validation.min()),
            validation_most=float(validation.max()),
        )

    def compare(key: str, peer: str, target: str | None) -> None:
        key = f"{race.data}_ratio_{key}{race.seconds:g}"
        ratios = ends["mpd"][:, 1] / ends[peer][:, 1]
        report.summarise(key, float(np.median(ratios)), target)
        report.summarise(f"{key}_least", float(ratios.min()))
        report.summarise(f"{key}_most", float(ratios.max()))
        report.summarise(f"{key}_train", float(np.median(ends["mpd"][:, 0] / ends[peer][:, 0])))

    if gradient:
        best = min(gradient, key=lambda name: np.median(ends[name][:, 1]))
        compare("seconds", best, race.gradient)
    for key, peer, target in (
        ("lbfgs", "lbfgs", race.lbfgs),
        ("levenberg", "levenberg", None),
        ("ablation", "polish", None),
    ):
        if peer in against:
            compare(key, peer, target)
    curve = []
    for share in np.linspace(0.1, 1, 10):
        middle = {
            LABELS[name]: statistics.median(at(h, budget, float(share))[1] for h in hs)
            for name, hs in histories.items()
        }
        seconds = float(share * race.seconds)
        curve.append({"curve": f"{race.data}_validation", "seconds": seconds, **middle})
    return curve


def main() -> None:
    options = harness.parser(__doc__)
    options.add_argument(
        "--cache",
        type=Path,
        default=harness.ROOT / "out" / "mpd_vs_gradient",
        help="the folder that keeps finished runs (default: out/mpd_vs_gradient)",
    )
    options.add_argument(
        "--budgets",
        choices=("all", "steps", "seconds"),
        default="all",
        help="steps: leave out the budgets in seconds, which need an idle machine; or only those",
    )
    options.add_argument(
        "--against",
        nargs="+",
        choices=RIVALS,
        default=RIVALS,
        help="whom to race against at equal seconds (default: all)",
    )
    args = options.parse_args()
    tables = {"terrain": terrain(10_000 if args.quick else 50_929)}
    path = harness.data(ROAD_FILE)
    if path is not None:
        tables["road"] = road(path)
    lab = Lab(tables, args.cache / ("quick" if args.quick else "full"))
    report = harness.Report("mpd_vs_gradient")
    choice = Options(
        tuple(SCHEDULES), RATES, STARTS, ("constant", "cosine"), (0, 1, 2), RIDGES, LBFGS_STARTS
    )
    if args.quick:
        choice = Options(
            (GROWING,), QUICK_RATES, QUICK_STARTS, ("cosine",), (0,), RIDGES[1:], LBFGS_STARTS[:1]
        )
    curves = []
    budgets = QUICK_BUDGETS if args.quick else FULL_BUDGETS
    for budget in budgets:
        if budget.data in tables and args.budgets != "seconds":
            curves += compare(lab, budget, report, choice)
    rates = QUICK_RATES if args.quick else RACE_RATES
    for contest in QUICK_RACES if args.quick else FULL_RACES:
        if contest.data in tables and args.budgets != "steps":
            # The starts of Adam and NAG come from equal batch steps.
            known = next(budget for budget in budgets if budget.data == contest.data)
            for name in (name for name in PEERS if name in args.against):
                tune(lab, known, name, choice)
            limited = choice._replace(rates=rates)
            curves += race(lab, contest, report, limited, tuple(args.against))
    report.summarise("configurations_tried", sum(row["tried"] for row in report.rows))
    report.rows += curves
    report.finish(args)


if __name__ == "__main__":
    main()
