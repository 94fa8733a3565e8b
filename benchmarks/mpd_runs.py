"""Runs of the optimisers that `benchmarks.mpd_vs_gradient` compares, each done once and kept."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from benchmarks import peers
from jaxmpd import network
from jaxmpd.activations import LEAKY_HARD_TANH
from jaxmpd.files import write_whole
from jaxmpd.minibatches import BatchSize, constant, shape
from jaxmpd.presets import PRESETS
from jaxmpd.regressor import Task, prepare
from jaxmpd.runs import Fit, History
from jaxmpd.starts import spread
from jaxmpd.steps.kinds import Polish
from jaxmpd.tables import Table
from jaxmpd.training import fit, regression_loss
from jaxmpd.transform import mpd

WIDTH = 500
GLOROT = 0.0
GROWING = "growing"
SCHEDULES = {
    GROWING: BatchSize(),
    "growing early": BatchSize(hold=40, every=20),
    "from 512": BatchSize(512, hold=160, every=40),
    "from 256": BatchSize(256, hold=250, every=60),
    "full": None,
}
"""MPD's minibatches: the paper's 2,048, growing from minibatch step 200 on; growing earlier, which
is to MPD what a decaying rate is to the peers; starting smaller; or all samples."""
EVERY = {"adam": 4, "nag": 4, "lbfgs": 4}
"""Batch steps between evaluations, where they are short."""
FULL_BATCH = {"lbfgs": peers.lbfgs, "levenberg": peers.levenberg_marquardt}
"""Peers that take all samples and a ridge."""


@dataclass(frozen=True)
class Config:
    """One run; `seconds` or `steps` is its budget."""

    data: str
    optimizer: str
    batch: int | str
    start: float = GLOROT
    rate: float | None = None
    schedule: str = "constant"
    steps: int | None = None
    seconds: float | None = None
    seed: int = 0
    ridge: float | None = None

    def __str__(self) -> str:
        rate = "" if self.rate is None else f", rate {self.rate:g} {self.schedule}"
        ridge = "" if self.ridge is None else f", ridge {self.ridge:g} / samples"
        return f"batch {self.batch}, start {self.start or 'Glorot'}{rate}{ridge}"


class Lab:
    """Runs configurations, each once.

    Args:
        tables: the data by name.
        cache: the folder that keeps the histories.
    """

    def __init__(self, tables: dict[str, Table], cache: Path):
        self.tables = tables
        self.cache = cache
        self.tasks: dict[tuple[str, int], Task] = {}
        self.speeds: dict[tuple[str, str, int], float] = {}
        self.starts: dict[tuple[str, str], float] = {}

    def history(self, config: Config) -> History:
        """The history of a run: from the cache, or run now."""
        text = json.dumps(asdict(config), sort_keys=True)
        file = self.cache / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
        if not file.exists():
            result = self.run(config)
            columns = {key: list(map(float, c)) for key, c in result.history._asdict().items()}
            document = {"config": asdict(config), "history": columns}
            write_whole(file, json.dumps(document).encode())
            print(f"{config.data}, seed {config.seed}, {config.optimizer}, {config}: ", end="")
            print(f"training {columns['train_loss'][-1]:.4g}", flush=True)
        columns = json.loads(file.read_text())["history"]
        return History(**{key: np.array(column) for key, column in columns.items()})

    def run(self, config: Config) -> Fit:
        """A run of the configuration."""
        task = self.task(config)
        samples, features = task.train.inputs.shape
        batch = SCHEDULES.get(config.batch, config.batch) or constant(samples)
        key, widths = jax.random.key(config.seed), (features, WIDTH, 1)
        rate: Any = config.rate
        if config.schedule == "cosine":
            rate = optax.cosine_decay_schedule(config.rate, self.updates(config))
        return fit(
            regression_loss(LEAKY_HARD_TANH),
            spread(key, widths, config.start) if config.start else network.init(key, widths),
            self.optimizer(config, rate, samples),
            task.train,
            validation=task.validation,
            batch_size=batch,
            steps=config.steps,
            seconds=config.seconds,
            seed=config.seed,
            evaluate_every=EVERY.get(config.optimizer, 1) if config.seconds else 1,
            progress=False,
        )

    def optimizer(
        self, config: Config, rate: Any, samples: int
    ) -> optax.GradientTransformationExtraArgs:
        """The optimiser of the configuration."""
        ridge = None if config.ridge is None else config.ridge / samples
        if config.optimizer in FULL_BATCH:
            return FULL_BATCH[config.optimizer](LEAKY_HARD_TANH, ridge)
        if config.optimizer == "polish":
            return mpd(LEAKY_HARD_TANH, steps=[Polish()], l2=ridge)
        return PRESETS[config.optimizer].make(LEAKY_HARD_TANH, rate, config.seed, samples)

    def task(self, config: Config) -> Task:
        """The data as this seed splits them."""
        key = (config.data, config.seed)
        if key not in self.tasks:
            table = self.tables[config.data]
            self.tasks[key] = prepare(table, [list(table.columns)[-1]], seed=config.seed)
        return self.tasks[key]

    def updates(self, config: Config) -> int:
        """How many updates the budget allows: what a cosine schedule has to know beforehand."""
        samples = len(self.task(config).train.inputs)
        number = shape(samples, config.batch)[0]
        if config.steps is not None:
            return config.steps * number
        key = (config.data, config.optimizer, config.batch)
        if key not in self.speeds:
            trial = replace(config, schedule="constant", seconds=min(2.0, config.seconds / 2))
            history = self.run(trial).history
            self.speeds[key] = history.minibatch_steps[-1] / history.seconds[-1]
        return int(self.speeds[key] * config.seconds)
