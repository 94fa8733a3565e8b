"""The kinds of step as data: what `mpd` does with a minibatch, in the order it is told."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxmpd.activations import PiecewiseLinear
from jaxmpd.expansion import normalized_weights
from jaxmpd.losses import SQUARED, AnyLoss, Batch, weighted_mean
from jaxmpd.network import Layer, pre_activations
from jaxmpd.penalties import penalty
from jaxmpd.rows import Rows, from_rows, movable_rows, predict, to_rows, with_ones
from jaxmpd.steps import block, coordinate, deep
from jaxmpd.steps.output import solve_output
from jaxmpd.steps.polish import polish
from jaxmpd.steps.replace import replace

Layers = tuple[Layer, ...]


@dataclass(frozen=True)
class Objective:
    """What falls: the weighted mean loss of a network on a batch plus penalties.

    Attributes:
        activation: after every layer but the last.
        loss: of predictions and targets.
        l2: weight of the sum of the parameters' squares, the output's biases left out.
        l1: weight of the sum of their absolute values.
    """

    activation: PiecewiseLinear
    loss: AnyLoss = SQUARED
    l2: float = 0.0
    l1: float = 0.0

    def __call__(self, layers: Layers, batch: Batch) -> Float[Array, ""]:
        """The value on a batch."""
        predictions = pre_activations(layers, batch.inputs, self.activation)[-1]
        mean = weighted_mean(self.loss(predictions, batch.targets), batch.weights)
        return mean + penalty(layers, self.l2, self.l1) if self.l2 or self.l1 else mean


class Task(NamedTuple):
    """What a step works on.

    Attributes:
        objective: what has to fall.
        batch: S samples.
        movable: the layers with a NumPy flag in each parameter's place: whether it may move.
        key: for what is random.
        number: how many updates there were before this one.
    """

    objective: Objective
    batch: Batch
    movable: Layers
    key: PRNGKeyArray
    number: Int[Array, ""]


def _positive(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be a positive integer, got {value!r}")


class Step(Protocol):
    """A kind of step. Its numbers are checked when it is made, whether it fits by `check`."""

    def check(self, objective: Objective, depth: int) -> None:
        """Raise a ValueError if the step does not know the loss, a penalty or the depth."""
        ...

    def __call__(self, layers: Layers, task: Task) -> Layers:
        """The layers after the step; the objective on the batch has not risen but by rounding."""
        ...


@dataclass(frozen=True)
class Coordinates:
    """Parameters in random order, each to the exact global minimum along it (Algorithm 4).

    Attributes:
        count: how many a step visits, without repetition: `"all"`, or a number of them; 1 is the
            paper's text to the letter.
    """

    count: int | Literal["all"] = "all"

    def __post_init__(self) -> None:
        if self.count != "all":
            _positive("count", self.count)

    def check(self, objective: Objective, depth: int) -> None:
        """For one hidden layer; any loss and penalty."""
        _one_hidden_layer(self, depth)

    def __call__(self, layers: Layers, task: Task) -> Layers:
        """One visit to `count` parameters."""
        objective = task.objective
        numbers = coordinate.coordinates(task.movable)
        count = len(numbers) if self.count == "all" else min(self.count, len(numbers))
        order = coordinate.random_order(task.key, numbers, count)
        return coordinate.sweep(
            layers,
            task.batch,
            order,
            objective.activation,
            objective.loss,
            l2=objective.l2,
            l1=objective.l1,
        )


@dataclass(frozen=True)
class Blocks:
    """The hidden units, `units` at a time, by exact searches along their own directions.

    Units are dealt to blocks at random; those that do not fill a block wait for another step.
    See [`jaxmpd.steps.block`][jaxmpd.steps.block]. A loss that is not the squared error goes
    through its quadratic majorant.

    Attributes:
        units: how many share one damping; 1 is the unit step.
    """

    units: int = 32

    def __post_init__(self) -> None:
        _positive("units", self.units)

    def check(self, objective: Objective, depth: int) -> None:
        """For one hidden layer and any loss with a quadratic majorant."""
        _one_hidden_layer(self, depth)
        _smooth(self, objective)

    def __call__(self, layers: Layers, task: Task) -> Layers:
        """One sweep."""
        problem = _squares(layers, task)
        order = block.deal(task.key, len(problem.rows.incoming), self.units)
        rows = block.sweep(
            *problem[:4], order, task.objective.activation, task.objective.l2, problem.free
        )
        return from_rows(rows, layers)


@dataclass(frozen=True)
class Units:
    """All hidden units of a network of any depth once, each by an exact search along its direction.

    The output layer is solved in closed form. See [`jaxmpd.steps.deep`][jaxmpd.steps.deep]. On one
    hidden layer `Blocks(1)` does the same and knows more losses.

    Attributes:
        budget: knots a sample and side where they are traced, three layers or more from the output.
    """

    budget: int = 64

    def __post_init__(self) -> None:
        _positive("budget", self.budget)

    def check(self, objective: Objective, depth: int) -> None:
        """For the squared error and any depth."""
        _no_l1(self, objective)
        if objective.loss != SQUARED:
            raise ValueError("Units knows the squared error only: take Polish for another loss")

    def __call__(self, layers: Layers, task: Task) -> Layers:
        """One sweep."""
        objective = task.objective
        return deep.sweep(
            layers,
            task.batch,
            task.key,
            objective.activation,
            l2=objective.l2,
            budget=self.budget,
            movable=task.movable,
        )


@dataclass(frozen=True)
class Output:
    """The output layer in closed form, see [`jaxmpd.steps.output`][jaxmpd.steps.output]."""

    def check(self, objective: Objective, depth: int) -> None:
        """For one hidden layer and any loss with a quadratic majorant."""
        _one_hidden_layer(self, depth)
        _smooth(self, objective)

    def __call__(self, layers: Layers, task: Task) -> Layers:
        """The solution."""
        problem = _squares(layers, task)
        objective = task.objective
        rows = solve_output(*problem[:4], objective.activation, objective.l2, problem.free)
        return from_rows(rows, layers)


@dataclass(frozen=True)
class Polish:
    """Whitened L-BFGS, see [`jaxmpd.steps.polish`][jaxmpd.steps.polish].

    It fits the batch closely: give it more samples than the network has parameters.

    Attributes:
        iterations: of L-BFGS, from an empty memory.
        memory: pairs that it remembers.
    """

    iterations: int = 100
    memory: int = 20

    def __post_init__(self) -> None:
        _positive("iterations", self.iterations)
        _positive("memory", self.memory)

    def check(self, objective: Objective, depth: int) -> None:
        """For any depth and any loss."""
        _no_l1(self, objective)

    def __call__(self, layers: Layers, task: Task) -> Layers:
        """The layers after the iterations."""
        objective = task.objective
        return polish(
            layers,
            task.batch,
            objective.activation,
            objective.loss,
            l2=objective.l2,
            movable=task.movable,
            iterations=self.iterations,
            memory=self.memory,
        )


@dataclass(frozen=True)
class Replace:
    """Units of little worth moved to where the residual is, if that pays.

    The network and one with new units are polished alike, and the better one is kept: what a
    replacement is worth shows only then. See [`jaxmpd.steps.replace`][jaxmpd.steps.replace].

    Attributes:
        polish: what both get.
    """

    polish: Polish = Polish()

    def check(self, objective: Objective, depth: int) -> None:
        """For one hidden layer and any loss with a quadratic majorant."""
        _one_hidden_layer(self, depth)
        _smooth(self, objective)

    def __call__(self, layers: Layers, task: Task) -> Layers:
        """The better of the two networks."""
        problem = _squares(layers, task)
        objective = task.objective
        rows = replace(*problem[:4], task.key, objective.activation, objective.l2, problem.free)
        both = jax.tree.map(lambda *a: jnp.stack(a), tuple(layers), from_rows(rows, layers))
        both = jax.lax.map(lambda network: self.polish(network, task), both)
        values = jax.lax.map(lambda network: objective(network, task.batch), both)
        best = jnp.argmin(jnp.where(jnp.isnan(values), jnp.inf, values))
        return jax.tree.map(lambda a: a[best], both)


@dataclass(frozen=True)
class During:
    """A step that is taken in some updates only.

    Attributes:
        step: the step.
        start: the number of updates before the first that takes it.
        stop: the number of updates before the first that takes it no longer; None: never.
    """

    step: Step
    start: int = 0
    stop: int | None = None

    def __post_init__(self) -> None:
        if self.start < 0 or (self.stop is not None and self.stop <= self.start):
            raise ValueError(
                f"start={self.start} must not be negative and stop={self.stop} must lie beyond it"
            )

    def check(self, objective: Objective, depth: int) -> None:
        """As the step's."""
        self.step.check(objective, depth)

    def __call__(self, layers: Layers, task: Task) -> Layers:
        """The step, or nothing."""
        due = task.number >= self.start
        if self.stop is not None:
            due = due & (task.number < self.stop)
        return jax.lax.cond(due, lambda a: tuple(self.step(a, task)), lambda a: a, tuple(layers))


HYBRID: tuple[Step, ...] = (Replace(),)
"""Units placed by global searches, and all parameters polished: the choice by the clock.

Meant for a little ridge and for all samples at once, or minibatches of more samples than the
network has parameters."""


class _Squares(NamedTuple):
    """A one-hidden-layer network under a weighted squared error, by columns."""

    rows: Rows
    x: Float[Array, "d0+1 S"]
    targets: Float[Array, "dN S"]
    weights: Float[Array, "#dN S"]
    free: Rows | None


def _squares(layers: Layers, task: Task) -> _Squares:
    """The squared error itself, or the majorant of another loss at the current predictions."""
    rows, x = to_rows(layers), with_ones(task.batch.inputs)
    weights, targets = normalized_weights(task.batch), task.batch.targets
    objective = task.objective
    free = movable_rows(task.movable)
    free = None if free.incoming.all() and free.outgoing.all() else free
    if objective.loss == SQUARED:
        return _Squares(rows, x, targets.T, weights[None], free)
    predictions = predict(rows, x, objective.activation).T
    majorant = objective.loss.quadratic_majorant(predictions, targets)
    assert majorant is not None  # `check` has seen to it
    return _Squares(rows, x, majorant.targets.T, weights * majorant.weights.T, free)


def _one_hidden_layer(step: Step, depth: int) -> None:
    if depth != 2:
        raise ValueError(
            f"{type(step).__name__} needs one hidden layer and an output, but params has {depth} "
            "layers: take Units or Polish for a deeper network"
        )


def _no_l1(step: Step, objective: Objective) -> None:
    if objective.l1:
        raise ValueError(
            f"{type(step).__name__} does not know l1={objective.l1}: only Coordinates does"
        )


def _smooth(step: Step, objective: Objective) -> None:
    _no_l1(step, objective)
    probe = jnp.ones((1, 1))
    if objective.loss.quadratic_majorant(probe, probe) is None:
        raise ValueError(
            f"{type(step).__name__} needs a loss with a quadratic majorant, which "
            f"{objective.loss} has not: take Coordinates or Polish"
        )
