"""What a training run shows of itself: losses and accuracies by epoch, and its best prototypes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from tqdm import tqdm

from jaxmpd.files import replacing
from jaxmpd.runs import Progress
from jaxnpc.objectives import Margin

ROWS = 512  # points that are looked at together

Points = tuple[Float[Array, "n *d"], Int[Array, " n"]]
Loss = Callable[[Float[Array, "K *d"], Array, Array, Float[Array, " n"]], Float[Array, " n"]]
"""Prototypes, points, classes and signed radii, which may spare some work, to losses."""


class Figures(NamedTuple):
    """How good prototypes are on some points, by the bounds in their own precision: estimates.

    Attributes:
        objective: the mean of the objective, without dropout and augmentation.
        clean: the share of points on the right side.
        area: the mean of the radius, capped: the area under the curve of certified accuracy.
        certified: the share of points whose radius exceeds each eps.
    """

    objective: float
    clean: float
    area: float
    certified: tuple[float, ...]


CRITERIA: dict[str, Callable[[Figures], float]] = {
    "clean": lambda figures: figures.clean,
    "cra": lambda figures: figures.certified[0],
    "area": lambda figures: figures.area,
}
"""What to choose prototypes by; more is better."""


def check_criterion(criterion: str, eps: Sequence[float]) -> None:
    """Raise a ValueError if there is no such criterion, or a radius is missing or negative."""
    if criterion not in CRITERIA:
        raise ValueError(f"criterion must be one of {', '.join(CRITERIA)}, got {criterion!r}")
    if not len(eps) or not all(0 <= e < math.inf for e in eps):
        raise ValueError(f"eps must hold radii of at least 0, got {eps!r}")


class History(NamedTuple):
    """A training run, one entry an evaluation, the first before any step.

    Attributes:
        epoch: passes over the training points so far.
        seconds: what these took, without compilation and evaluation.
        train_objective: the mean objective on (a part of) the training points, without dropout and
            augmentation.
        train_clean: the share of them on the right side.
        train_certified: the share of them certified at each eps.
        validation_objective: likewise on the validation points; NaN without any.
        validation_clean: likewise.
        validation_area: the area under their curve of certified accuracy up to the cap.
        validation_certified: likewise.
    """

    epoch: Int[np.ndarray, " r"]
    seconds: Float[np.ndarray, " r"]
    train_objective: Float[np.ndarray, " r"]
    train_clean: Float[np.ndarray, " r"]
    train_certified: Float[np.ndarray, "r e"]
    validation_objective: Float[np.ndarray, " r"]
    validation_clean: Float[np.ndarray, " r"]
    validation_area: Float[np.ndarray, " r"]
    validation_certified: Float[np.ndarray, "r e"]


def figures(
    margin: Margin, loss: Loss, eps: tuple[float, ...], cap: float
) -> Callable[[Float[Array, "K *d"], Points], Figures]:
    """What measures prototypes on points.

    Args:
        margin: the signed radii.
        loss: of each point.
        eps: the radii.
        cap: up to where the area is taken.

    Returns:
        A function of prototypes and points.
    """

    @jax.jit
    def measure(w: Array, x: Array, y: Array) -> tuple[Array, Array]:
        key = jax.random.key(0)  # nothing is random here
        n, size = len(x), min(ROWS, len(x))
        blocks = [
            jnp.pad(a, ((0, -n % size), *[(0, 0)] * (a.ndim - 1))).reshape(-1, size, *a.shape[1:])
            for a in (x, y)
        ]

        def block(rows: tuple[Array, Array]) -> tuple[Array, Array]:
            radius = margin(w, *rows, key)
            return radius, loss(w, *rows, radius)

        radius, losses = jax.lax.map(block, tuple(blocks))
        return radius.reshape(-1)[:n], losses.reshape(-1)[:n]

    def judge(w: Float[Array, "K *d"], points: Points) -> Figures:
        radius, losses = (np.asarray(a, np.float64) for a in measure(w, *points))
        return Figures(
            float(losses.mean()),
            float(np.mean(radius > 0)),
            float(np.mean(np.clip(radius, 0, cap))),
            tuple(float(np.mean(radius > e)) for e in eps),
        )

    return judge


@dataclass
class Monitor:
    """A callback of [`fit`][jaxmpd.training.fit] that keeps the history and the best prototypes.

    Attributes:
        judge: measures prototypes on points.
        train: training points to measure on.
        validation: validation points, if there are any: then the best prototypes are kept.
        criterion: what they are best by, a name in `CRITERIA`.
        eps: the radii, for the line that is shown.
        every: epochs between evaluations.
        last: the last epoch, which is evaluated too.
        file: where all this is saved at every evaluation, so that a resumed run knows it.
        bar: shows epochs and the latest figures.
    """

    judge: Callable[[Array, Points], Figures]
    train: Points
    validation: Points | None
    criterion: str
    eps: tuple[float, ...]
    every: int
    last: int
    file: Path | None
    bar: "tqdm[Any]"
    rows: list[tuple[float, ...]] = field(default_factory=list)
    best: Float[np.ndarray, "K *d"] | None = None
    score: float = -np.inf

    def __call__(self, progress: Progress) -> None:
        """Count an epoch; where it is due, measure and write down."""
        self.bar.update(progress.batch_steps - self.bar.n)
        if progress.batch_steps % self.every and progress.batch_steps != self.last:
            return
        # A resumed run comes again by what it did after its last checkpoint.
        self.rows = [row for row in self.rows if row[0] < progress.batch_steps]
        train = self.judge(progress.params, self.train)
        held_out = Figures(np.nan, np.nan, np.nan, (np.nan,) * len(self.eps))
        if self.validation is not None:
            held_out = self.judge(progress.params, self.validation)
            score = CRITERIA[self.criterion](held_out)
            if score > self.score or self.best is None:
                self.score, self.best = score, np.asarray(progress.params)
        self.rows.append(
            (
                progress.batch_steps,
                progress.seconds,
                *(train.objective, train.clean, *train.certified),
                *(held_out.objective, held_out.clean, held_out.area, *held_out.certified),
            )
        )
        if self.file is not None:
            self.save(self.file)
        self.bar.set_postfix_str(self.line(train if self.validation is None else held_out))

    def line(self, shown: Figures) -> str:
        """Figures in words."""
        pairs = zip(self.eps, shown.certified, strict=True)
        certified = ", ".join(f"{100 * share:.1f} % at {e:g}" for e, share in pairs)
        return f"clean {100 * shown.clean:.1f} %, certified {certified}"

    def history(self) -> History:
        """The entries so far, as arrays."""
        table, e = np.array(self.rows, np.float64), len(self.eps)
        return History(
            table[:, 0].astype(int),
            table[:, 1],
            *(table[:, 2], table[:, 3], table[:, 4 : 4 + e]),
            *(table[:, 4 + e], table[:, 5 + e], table[:, 6 + e], table[:, 7 + e :]),
        )

    def save(self, path: Path) -> None:
        """Write rows and best prototypes."""
        best: dict[str, Any] = {} if self.best is None else {"best": self.best}
        with replacing(path) as temporary:
            np.savez(temporary, rows=np.array(self.rows), score=self.score, **best)

    def restore(self, path: Path) -> None:
        """Take up what was saved.

        Raises:
            FileNotFoundError: if it is not there.
        """
        if not path.is_file():
            raise FileNotFoundError(
                f"{path}, the history that belongs to the checkpoint, is missing: put it back, or "
                "start without resume"
            )
        with np.load(path, allow_pickle=False) as archive:
            self.rows = [tuple(row) for row in archive["rows"].tolist()]
            self.score = float(archive["score"])
            self.best = archive["best"] if "best" in archive.files else None


def beside(checkpoint: Path) -> Path:
    """The file of a checkpoint's history."""
    return checkpoint.with_name(checkpoint.name + ".history.npz")
