"""A training run on record: its history, its end, its checkpoint."""

import bisect
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from jaxmpd import checkpoints

PyTree = Any


def at_least_one(**arguments: int) -> None:
    """Check arguments that count something.

    Raises:
        ValueError: naming the first that is not positive.
    """
    for name, value in arguments.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")


class History(NamedTuple):
    """A training run, one entry an evaluation, the first before any step.

    Attributes:
        batch_steps: passes over the training samples so far.
        minibatch_steps: updates so far.
        seconds: the time these took: only the optimiser's steps, without compilation,
            evaluation, callbacks and checkpoints.
        train_loss: on all training samples.
        validation_loss: on all validation samples; NaN without any.
    """

    batch_steps: Int[np.ndarray, " n"]
    minibatch_steps: Int[np.ndarray, " n"]
    seconds: Float[np.ndarray, " n"]
    train_loss: Float[np.ndarray, " n"]
    validation_loss: Float[np.ndarray, " n"]


class Progress(NamedTuple):
    """What a callback sees: the last entry of the history, and copies of the parameters."""

    batch_steps: int
    minibatch_steps: int
    seconds: float
    train_loss: float
    validation_loss: float
    params: PyTree
    best_params: PyTree


@dataclass(frozen=True)
class Fit:
    """What [`fit`][jaxmpd.training.fit] returns.

    Attributes:
        params: the parameters after the last step.
        best_params: those of the least validation loss at an evaluation; of the least training
            loss if there are no validation samples.
        best_loss: that loss.
        opt_state: the optimiser's state after the last step.
        history: the losses against batch steps and seconds.
        stopped: why it ended: "steps", "seconds", "plateau", "callback" or "not finite".
        compile_seconds: what compilation took, on top of the history's seconds.
        evaluation_seconds: what evaluating the losses took, on top of them too.
    """

    params: PyTree
    best_params: PyTree
    best_loss: float
    opt_state: optax.OptState
    history: History
    stopped: str
    compile_seconds: float
    evaluation_seconds: float


@dataclass(frozen=True)
class Budget:
    """When a run ends."""

    steps: int | None
    seconds: float | None
    patience: int | None
    tolerance: float

    def __post_init__(self):
        if self.steps is None and self.seconds is None and self.patience is None:
            raise ValueError("a run needs an end: give steps, seconds or patience")
        if self.steps is not None and self.steps < 0:
            raise ValueError(f"steps must not be negative, got {self.steps}")
        if self.seconds is not None and not self.seconds >= 0:
            raise ValueError(f"seconds must not be negative, got {self.seconds}")
        if self.patience is not None:
            at_least_one(patience=self.patience)
        if not 0 <= self.tolerance < 1:
            raise ValueError(f"tolerance must lie in [0, 1), got {self.tolerance}")

    def spent(self, run: "Run") -> str:
        """Why the run ends here; empty if it goes on."""
        if not math.isfinite(run.rows[-1][3]):
            return "not finite"
        if self.steps is not None and run.batch_steps >= self.steps:
            return "steps"
        if self.seconds is not None and run.seconds >= self.seconds:
            return "seconds"
        if self.patience is not None:
            then = run.batch_steps - self.patience
            before = bisect.bisect_right(run.rows, then, key=lambda row: row[0])
            if 0 < before < len(run.rows):
                least = run.least[before - 1]
                if run.least[-1] >= least - self.tolerance * abs(least):
                    return "plateau"
        return ""


def own(leaf: Any) -> Array:
    """A copy, to be donated. With a dtype of its own, as that of a restored checkpoint has."""
    array = jnp.asarray(leaf)
    return jnp.array(array, dtype=None if checkpoints.is_key(array) else array.dtype)


@dataclass
class Run:
    """A run so far: all that a checkpoint has to hold."""

    params: PyTree
    opt_state: Any
    best_params: PyTree
    best_loss: float = math.inf
    batch_steps: int = 0
    minibatch_steps: int = 0
    seconds: float = 0.0
    compile_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    rows: list[tuple[float, ...]] = field(default_factory=list)
    least: list[float] = field(default_factory=list)  # training loss up to each row

    def record(self, train_loss: float, validation_loss: float, selecting: float) -> None:
        """Add an entry to the history, and keep the parameters if they are the best so far."""
        row = (self.batch_steps, self.minibatch_steps, self.seconds, train_loss, validation_loss)
        self.rows.append(row)
        self.least.append(min(train_loss, self.least[-1]) if self.least else train_loss)
        if selecting < self.best_loss:
            self.best_loss, self.best_params = selecting, jax.tree.map(own, self.params)

    def progress(self) -> Progress:
        """A callback's view; copies, since the next step donates the parameters' memory."""
        batch_steps, minibatch_steps, *rest = self.rows[-1]
        trees = (jax.tree.map(own, tree) for tree in (self.params, self.best_params))
        return Progress(int(batch_steps), int(minibatch_steps), *rest, *trees)

    def history(self) -> History:
        """The entries so far, as arrays."""
        columns = np.array(self.rows, np.float64).T
        return History(columns[0].astype(int), columns[1].astype(int), *columns[2:])

    def _state(self) -> tuple[PyTree, Any, PyTree]:
        return self.params, self.opt_state, self.best_params

    def save(self, path: Path, identity: dict[str, Any]) -> None:
        """Write the run and what a run that resumes it must agree with."""
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        rows = np.array(self.rows, np.float64)
        record = {"numbers": numbers, "rows": rows, "identity": identity}
        checkpoints.save(path, self._state(), record)

    def restore(self, path: Path, identity: dict[str, Any]) -> None:
        """Take up a saved run.

        Raises:
            ValueError: if the file belongs to another run.
        """

        def agree(record: dict[str, Any]) -> None:
            saved = record["identity"]
            for name in {**identity, **saved}:
                old, new = saved.get(name), identity.get(name)
                if old != new:
                    raise ValueError(
                        f"{path} belongs to a run with {name} {old}, this one has {new}: resume "
                        "with the same, or start without resume"
                    )

        state, record = checkpoints.load(path, self._state(), agree)
        self.params, self.opt_state, self.best_params = state
        for name, value in record["numbers"].items():
            setattr(self, name, value)
        self.rows = [tuple(row) for row in record["rows"].tolist()]
        self.least = np.minimum.accumulate(record["rows"][:, 3]).tolist()


_NUMBERS = (
    "best_loss",
    "batch_steps",
    "minibatch_steps",
    "seconds",
    "compile_seconds",
    "evaluation_seconds",
)
