"""What the search for the nearest rival asks of a problem: bounds, solutions and violations."""

from typing import Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import Float, Int


class Batch(NamedTuple):
    """Points under study, in float64.

    Attributes:
        points: n points of the domain.
        labels: their classes.
        closest: the own prototype that is about closest to each; any one is sound.
        lower: how far each coordinate can move down, at most 0; may be -inf.
        upper: how far up, at least 0; may be inf.
    """

    points: Float[np.ndarray, "n d"]
    labels: Int[np.ndarray, " n"]
    closest: Int[np.ndarray, " n"]
    lower: Float[np.ndarray, "n d"]
    upper: Float[np.ndarray, "n d"]


class Pairs(NamedTuple):
    """Points and rivals of theirs, one sub-problem each.

    Attributes:
        batch: the points under study.
        point: which of them; m indices.
        rival: the prototype j.
    """

    batch: Batch
    point: Int[np.ndarray, " m"]
    rival: Int[np.ndarray, " m"]

    def take(self, some: Any) -> "Pairs":
        """Some of the pairs, by a slice or by their indices."""
        return Pairs(self.batch, self.point[some], self.rival[some])

    def __len__(self) -> int:
        return len(self.point)

    @property
    def z(self) -> Float[np.ndarray, "m d"]:
        """The points themselves."""
        return self.batch.points[self.point]

    @property
    def own(self) -> Int[np.ndarray, " m"]:
        """The own prototype about closest to each."""
        return self.batch.closest[self.point]

    @property
    def room(self) -> tuple[Float[np.ndarray, "m d"], Float[np.ndarray, "m d"]]:
        """How far each coordinate can move, down and up."""
        return self.batch.lower[self.point], self.batch.upper[self.point]


class Solution(NamedTuple):
    """Of m sub-problems, each with a few own prototypes only.

    Attributes:
        bound: proved lower bounds of the least perturbation that makes the rival tie.
        step: the perturbations found, for which the rows tie or favour the rival.
        multipliers: of the rows, not negative.
    """

    bound: Float[np.ndarray, " m"]
    step: Float[np.ndarray, "m d"]
    multipliers: Float[np.ndarray, "m k"]


class Violation(NamedTuple):
    """By how much the rivals still lose at given steps.

    Attributes:
        worst: the largest lead of an own prototype; the rival wins or ties where it is <= 0.
        own: which prototype has it.
        noise: the size of worst that rounding may explain.
    """

    worst: Float[np.ndarray, " m"]
    own: Int[np.ndarray, " m"]
    noise: Float[np.ndarray, " m"]


class Problem(Protocol):
    """A classifier and a threat model, with everything about them that points share."""

    def screen(
        self, points: Float[np.ndarray, "n d"], labels: Int[np.ndarray, " n"]
    ) -> tuple[Float[np.ndarray, "n K"], Int[np.ndarray, " n"]]:
        """Cheap proved bounds for each rival, infinite for own prototypes; and Batch.closest."""
        ...

    def single(self, pairs: Pairs, ceiling: Float[np.ndarray, " m"]) -> Float[np.ndarray, " m"]:
        """Proved bounds from the closest own prototype alone; none need exceed the ceiling."""
        ...

    def solve(self, pairs: Pairs, rows: Int[np.ndarray, "m k"]) -> Solution:
        """The least step by which the rival beats the own prototypes in rows (-1 is none)."""
        ...

    def violation(self, pairs: Pairs, step: Float[np.ndarray, "m d"]) -> Violation:
        """What the rivals lack at points + step, over all own prototypes."""
        ...
