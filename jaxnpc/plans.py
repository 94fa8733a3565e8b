"""What a training run minimises and how, by name: objectives, optimisers, the checks of both."""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxmpd.losses import Batch, weighted_mean
from jaxmpd.minibatches import shape as minibatch_shape
from jaxmpd.runs import at_least_one
from jaxnpc.augmentation import Augment
from jaxnpc.distances import named_norm
from jaxnpc.domains import Domain
from jaxnpc.monitor import Figures, Loss, Points, figures
from jaxnpc.objectives import (
    Margin,
    Objective,
    capped_margin,
    glvq,
    hypothesis_margin,
    semi_metric,
    signed_bound,
    squared_hinge,
)
from jaxnpc.prototypes import Distance
from jaxnpc.scales import default_rate
from jaxnpc.subspace import Subspace

PROGRAMS = 64
"""How many runs' functions are remembered: a run that finds its own is not compiled again."""


class Plan(NamedTuple):
    """The choices that make an objective, all of them made."""

    distance: float | Distance
    q: float
    domain: Domain
    objective: str
    cap: float
    rivals: int
    dropout: float
    smoothing: float

    def check(self) -> "Plan":
        """The plan itself, if its choices fit each other.

        Raises:
            ValueError: naming the choice that does not.
        """
        if self.objective not in OBJECTIVES:
            raise ValueError(
                f"objective must be one of {', '.join(OBJECTIVES)}, got {self.objective!r}"
            )
        if callable(self.distance):
            if self.objective != "semi_metric":
                raise ValueError(
                    f"objective {self.objective!r} is for norms: with a function as distance give "
                    'objective="semi_metric"'
                )
        else:
            named_norm(self.distance, "distance")
            named_norm(self.q, "q")
        if self.smoothing and self.objective != "semi_metric":
            raise ValueError(
                f'smoothing {self.smoothing} is for objective="semi_metric", not for '
                f"{self.objective!r}"
            )
        return self

    def build(self, labels: Int[np.ndarray, " K"]) -> Objective:
        """The objective."""
        return OBJECTIVES[self.objective].build(labels, self)

    def margin(self, labels: Int[np.ndarray, " K"]) -> Margin:
        """The signed radius by which prototypes are judged: as close as what is trained, no dearer.

        Lemma 2.9 where it is trained or has a closed form, else Theorem 2.4 if it speaks of the
        norm of the perturbation.
        """
        searched = self.distance != 2 and OBJECTIVES[self.objective].of_margin is None
        if callable(self.distance) or (searched and self.q == self.distance):
            return hypothesis_margin(labels, self.distance)
        return signed_bound(
            labels, p=self.distance, q=self.q, domain=self.domain, rivals=self.rivals
        )

    def measured(self, labels: Int[np.ndarray, " K"]) -> Loss:
        """The objective without dropout, from the signed radius if that is enough."""
        of_margin = OBJECTIVES[self.objective].of_margin
        if of_margin is not None:
            return lambda w, x, y, radius: of_margin(radius, self.cap)
        plain = self._replace(dropout=0.0).build(labels)
        return lambda w, x, y, radius: plain(w, x, y, jax.random.key(0))


class Kind(NamedTuple):
    """An objective by name.

    Attributes:
        build: from the prototypes' labels and the plan.
        of_margin: from the plan's signed radius and the cap, where it is a function of those.
    """

    build: Callable[[Int[np.ndarray, " K"], Plan], Objective]
    of_margin: Callable[[Array, float], Array] | None = None


def _bounded(build: Callable[..., Objective]) -> Callable[[Int[np.ndarray, " K"], Plan], Objective]:
    def built(labels: Int[np.ndarray, " K"], plan: Plan) -> Objective:
        return build(
            labels,
            p=plan.distance,
            q=plan.q,
            domain=plan.domain,
            cap=plan.cap,
            rivals=plan.rivals,
            dropout=plan.dropout,
        )

    return built


OBJECTIVES: dict[str, Kind] = {
    "margin": Kind(_bounded(capped_margin), lambda radius, cap: jax.nn.relu(cap - radius)),
    "squared_hinge": Kind(
        _bounded(squared_hinge), lambda radius, cap: jax.nn.relu(cap - radius) ** 2 / (2 * cap)
    ),
    "glvq": Kind(lambda labels, plan: glvq(labels, p=plan.distance, dropout=plan.dropout)),
    "semi_metric": Kind(
        lambda labels, plan: semi_metric(
            labels,
            plan.distance,
            cap=plan.cap,
            dropout=plan.dropout,
            smoothing=plan.smoothing,
        )
    ),
}
"""The objectives by name."""

OPTIMIZERS: dict[str, Callable[[optax.Schedule], optax.GradientTransformation]] = {
    "nesterov": lambda rate: optax.sgd(rate, momentum=0.9, nesterov=True),
    "adam": optax.adam,
}
"""The optimisers by name; each with a cosine decay to a hundredth of its learning rate."""


def optimizer_of(
    given: str | optax.GradientTransformation | None,
    learning_rate: float | None,
    plan: Plan,
    prototypes: int,
    points: int,
    batch_size: int,
    epochs: int,
) -> tuple[optax.GradientTransformation, float]:
    """The optimiser, and the learning rate that it was given (0 if it brought its own).

    Args:
        given: its name, an optax transformation, or None for "nesterov".
        learning_rate: for the named ones; None for one that suits the data.
        plan: what is minimised.
        prototypes: how many.
        points: how many there are to train on.
        batch_size: points a minibatch.
        epochs: passes over the points, over which the rate decays.

    Raises:
        ValueError: if there is no optimiser of that name, or the rate does not fit.
    """
    at_least_one(batch_size=batch_size, epochs=epochs)
    if given is not None and not isinstance(given, str):
        if learning_rate is not None:
            raise ValueError(
                f"learning_rate {learning_rate} is for named optimizers: a transformation brings "
                "its own"
            )
        return given, 0.0
    name = given or "nesterov"
    if name not in OPTIMIZERS:
        raise ValueError(
            f"optimizer must be one of {', '.join(OPTIMIZERS)} or an optax transformation, got "
            f"{name!r}"
        )
    if learning_rate is not None and not 0 < learning_rate < math.inf:
        raise ValueError(f"learning_rate must be positive and finite, got {learning_rate}")
    steps = epochs * minibatch_shape(points, batch_size)[0]
    rate = learning_rate
    if rate is None:
        rate = default_rate(name, plan.objective, plan.cap, prototypes, steps)
    return _decaying(name, float(rate), steps), float(rate)


@functools.lru_cache(PROGRAMS)
def _decaying(name: str, rate: float, steps: int) -> optax.GradientTransformation:
    return OPTIMIZERS[name](optax.cosine_decay_schedule(rate, steps, alpha=0.01))


class Programs(NamedTuple):
    """The functions of a run, which are compiled: the same ones for the same choices.

    Attributes:
        loss: what [`fit`][jaxmpd.training.fit] minimises.
        judge: measures prototypes on points.
    """

    loss: Callable[[Array, Batch, PRNGKeyArray], Float[Array, ""]]
    judge: Callable[[Float[Array, "K *d"], Points], Figures]


def programs(
    plan: Plan,
    labels: Int[np.ndarray, " K"],
    radii: tuple[float, ...],
    augment: Augment | None,
    shape: tuple[int, ...],
    space: Subspace | None,
) -> Programs:
    """The functions of a run, which are compiled: the same ones for the same choices.

    Args:
        plan: the choices.
        labels: the class index of each prototype.
        radii: where certified accuracy is measured.
        augment: changes the images of every minibatch.
        shape: the images' shape.
        space: where the prototypes live.

    Returns:
        The loss to minimise, and what measures prototypes on points.
    """
    choices = (plan, tuple(labels.tolist()), radii, augment, shape, space)
    try:
        hash(choices)
    except TypeError:  # arrays in a domain or a subspace: nothing to find a run by again
        return _programs.__wrapped__(*choices)
    return _programs(*choices)


@functools.lru_cache(PROGRAMS)
def _programs(
    plan: Plan,
    labels: tuple[int, ...],
    radii: tuple[float, ...],
    augment: Augment | None,
    shape: tuple[int, ...],
    space: Subspace | None,
) -> Programs:
    group = np.array(labels)
    return Programs(
        training_loss(plan.build(group), augment, shape, space),
        figures(plan.margin(group), plan.measured(group), radii, plan.cap),
    )


def training_loss(
    objective: Objective, augment: Augment | None, shape: tuple[int, ...], space: Subspace | None
) -> Callable[[Array, Batch, PRNGKeyArray], Float[Array, ""]]:
    """What [`fit`][jaxmpd.training.fit] minimises.

    Args:
        objective: the loss of each point.
        augment: changes the images of every minibatch.
        shape: the images' shape.
        space: where the prototypes live. Points that are not augmented come as its coefficients.

    Returns:
        The mean of the objective over a minibatch.
    """

    def loss(w: Array, batch: Batch, key: PRNGKeyArray) -> Float[Array, ""]:
        drawn, hidden = jax.random.split(key)
        x = batch.inputs
        if augment is not None:
            x = augment(drawn, x.reshape(-1, *shape)).reshape(x.shape)
            x = x if space is None else space.coefficients(x)
        return weighted_mean(objective(w, x, batch.targets, hidden), batch.weights)

    return loss


def is_finite(w: Array, batch: Batch, key: PRNGKeyArray) -> Float[Array, ""]:
    """0, or NaN once a prototype is no number: then the run ends. Costs nothing per point."""
    del batch, key
    return jnp.where(jnp.all(jnp.isfinite(w)), 0.0, jnp.nan)
