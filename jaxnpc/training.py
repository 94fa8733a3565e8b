"""Certified training: prototypes whose proved radii are as large as can be, by `train`."""

import math
import time
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, ArrayLike, Float
from tqdm import tqdm

from jaxmpd.losses import Batch
from jaxmpd.runs import at_least_one
from jaxmpd.training import fit
from jaxnpc.augmentation import AUGMENTATIONS, Augment
from jaxnpc.domains import Box, Domain, Unbounded, check, check_inside
from jaxnpc.monitor import History, Monitor, beside, check_criterion
from jaxnpc.plans import Plan, is_finite, optimizer_of, programs
from jaxnpc.prototypes import (
    Distance,
    PrototypeClassifier,
    as_points,
    prototype_classifier,
)
from jaxnpc.samples import Samples, hold_out, samples
from jaxnpc.scales import default_cap, typical_radius
from jaxnpc.starts import allotted
from jaxnpc.starts import start as starting_prototypes
from jaxnpc.subspace import Subspace, principal

SHOWN = 5000
"""Training points that the history's figures are taken of, at most."""


@dataclass(frozen=True)
class Trained:
    """What [`train`][jaxnpc.training.train] returns.

    Attributes:
        classifier: in input space; with validation points the best by the criterion, else the last.
        history: losses and accuracies by epoch.
        settings: everything needed to repeat the run, as numbers and strings.
        seconds: what this call took by the clock: start, compilation and evaluation included.
        seconds_per_epoch: what an epoch took, without these.
    """

    classifier: PrototypeClassifier
    history: History
    settings: dict[str, float | str]
    seconds: float
    seconds_per_epoch: float


def train(
    points: Float[ArrayLike, "n *d"],
    labels: Iterable[Hashable],
    *,
    per_class: int = 40,
    distance: float | Distance = 2,
    q: float = 2,
    domain: Domain | None = None,
    objective: str = "margin",
    cap: float | None = None,
    rivals: int = 8,
    dropout: float = 0.4,
    smoothing: float = 0.0,
    start: str | PrototypeClassifier = "kmeans",
    components: int | None = None,
    augment: str | Augment | None = None,
    shape: tuple[int, ...] | None = None,
    optimizer: str | optax.GradientTransformation | None = None,
    learning_rate: float | None = None,
    epochs: int = 40,
    batch_size: int = 500,
    validation: float | tuple[Any, Any] | None = None,
    criterion: str = "area",
    eps: Sequence[float] | None = None,
    evaluate_every: int | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
) -> Trained:
    r"""Train prototypes for certified robustness (paper, section 4).

    Maximises the mean over the training points of the capped lower bound of Lemma 2.9, by
    stochastic gradients of the pair of prototypes that decides about each point. A run is a
    function of its arguments: the same seed gives the same prototypes, interrupted or not.

    Args:
        points: n finite training points of any shape, flattened unless the distance is a function.
        labels: their n labels, of any hashable kind.
        per_class: prototypes a class; a class with fewer points gets as many as it has points.
        distance: the norm of the classifier's distance, 1, 2 or infinity, or a semi-metric: a
            function of points (n, ...) and prototypes (K, ...) that returns distances (n, K).
        q: the norm of the perturbation.
        domain: where adversarial points are sought; by default R^d. Boxes cost several times more
            per epoch, and on MNIST gained nothing: certify in the box, train without.
        objective: "margin" (eq. 7), "squared_hinge", "glvq" or "semi_metric"
            ([`jaxnpc.objectives`][jaxnpc.objectives]); a function as distance needs the last one.
        cap: R, beyond which a radius gains nothing; by default two thirds of the median radius
            against the closest point of another class.
        rivals: how many rivals are compared with all own prototypes.
        dropout: the probability with which each prototype of its class is hidden from a point.
        smoothing: a temperature for "semi_metric", which the l-infinity distance needs to train
            well: a tenth to a thirtieth of the cap. 0 for none.
        start: "kmeans", "sample" (points of the class), or a classifier to go on from, whose
            prototypes and labels take the place of `per_class`.
        components: train in the subspace of so many principal components, which is several times
            cheaper and hardly constrains images; for l2 distances and perturbations on R^d, whose
            radii are the same there.
        augment: "shift", "affine", "elastic", a function of key and images such as
            [`Warp`][jaxnpc.augmentation.Warp], or None.
        shape: the images' shape, (h, w) or (h, w, c); by default that of the points.
        optimizer: "nesterov" (the default) or "adam", with a cosine decay; or any optax
            transformation, which brings its own learning rate.
        learning_rate: of the named optimisers; by default one for the data's scale.
        epochs: passes over the points.
        batch_size: points a minibatch.
        validation: points and labels to choose the best prototypes by; or the share of the points,
            from the end, that is taken for that instead of for training. If either part lacked a
            class then, the end of each class is taken.
        criterion: what is best there: "clean" (accuracy), "cra" (certified accuracy at the first
            of `eps`) or "area" (under the curve of certified accuracy up to the cap); estimated by
            the bound that is trained.
        eps: radii at which certified accuracy is reported; by default half the cap.
        evaluate_every: epochs between evaluations; by default an eighth of all.
        seed: of everything that is random.
        checkpoint: a file to save the run in, and beside it the history in another one.
        resume: go on from the checkpoint if it exists.
        progress: whether to show a progress bar and a line at every evaluation.

    Returns:
        The classifier, the history and the settings.

    Raises:
        TypeError: if an argument is of a wrong type.
        ValueError: if an argument is out of its range, its name or the value is unknown, or the
            checkpoint belongs to another run.
        FileNotFoundError: if the checkpoint's history is missing.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> points = rng.normal(size=(200, 2)) + np.repeat([[0, 0], [3, 0]], 100, axis=0)
        >>> names = np.repeat(["left", "right"], 100)
        >>> trained = train(points, names, per_class=3, epochs=10, batch_size=50, progress=False)
        >>> trained.classifier.classes, trained.classifier.prototypes.shape
        (('left', 'right'), (6, 2))
        >>> bool(trained.history.train_clean[-1] > 0.9)
        True
    """
    began = time.perf_counter()
    data, held_out = samples(points, labels, distance), None
    if validation is not None:
        data, held_out = hold_out(data, validation, distance)
    x, y, names = data.points, data.classes, data.names
    domain = check(Unbounded() if domain is None else domain, x[0].size)
    for name, part in (("points", data), ("validation", held_out)):
        if part is not None:
            check_inside(part.points.reshape(len(part.points), -1), domain, name)
    plan = Plan(
        distance, q, domain, objective, 1.0 if cap is None else cap, rivals, dropout, smoothing
    ).check()
    check_criterion(criterion, (0.0,) if eps is None else eps)
    image = data.shape if shape is None else tuple(shape)
    warp = _augmentation(augment, image, x)
    if isinstance(start, PrototypeClassifier):
        k_labels = np.asarray(start.labels)
    else:
        k_labels = allotted(y, per_class, start)
    plan.build(k_labels)  # raises before any work is done
    if cap is None:
        cap = default_cap(typical_radius(x, y, distance, q))
    plan = plan._replace(cap=cap)
    radii = (cap / 2,) if eps is None else tuple(float(e) for e in eps)
    every = max(1, epochs // 8) if evaluate_every is None else evaluate_every
    at_least_one(evaluate_every=every)
    tx, rate = optimizer_of(
        optimizer, learning_rate, plan, len(k_labels), len(x), batch_size, epochs
    )

    space = _subspace(components, plan, x)
    file = None if checkpoint is None else Path(checkpoint)
    resumed = resume and file is not None and file.exists()
    w = _start(start, data, per_class, seed, space, resumed)

    def embedded(x: np.ndarray) -> Array:
        return jnp.asarray(x) if space is None else space.coefficients(jnp.asarray(x))

    some = np.unique(np.linspace(0, len(x) - 1, min(len(x), SHOWN)).astype(int))
    compiled = programs(plan, k_labels, radii, warp, image, space)
    monitor = Monitor(
        judge=compiled.judge,
        train=(embedded(x[some]), jnp.asarray(y[some])),
        validation=None
        if held_out is None
        else (embedded(held_out.points), jnp.asarray(held_out.classes)),
        criterion=criterion,
        eps=radii,
        every=every,
        last=epochs,
        file=None if file is None else beside(file),
        bar=tqdm(total=epochs, unit="epoch", disable=not progress),
    )
    if resumed and monitor.file is not None:
        monitor.restore(monitor.file)
    settings: dict[str, float | str] = {
        "points": len(x),
        "validation_points": 0 if held_out is None else len(held_out.points),
        "classes": len(names),
        "prototypes": len(w),
        "per_class": per_class,
        "distance": _name(distance),
        "q": float(q),
        "domain": _domain_name(domain),
        "objective": objective,
        "cap": float(cap),
        "rivals": rivals,
        "dropout": float(dropout),
        "smoothing": float(smoothing),
        "start": start if isinstance(start, str) else "classifier",
        "components": 0 if components is None else components,
        "augment": "none" if warp is None else _name(warp),
        "shape": "x".join(map(str, image)),
        "optimizer": _name(optimizer or "nesterov"),
        "learning_rate": rate,
        "epochs": epochs,
        "batch_size": batch_size,
        "criterion": criterion,
        "eps": " ".join(f"{e:g}" for e in radii),
        "evaluate_every": every,
        "seed": seed,
    }
    with monitor.bar:
        result = fit(
            compiled.loss,
            w,
            tx,
            # What is augmented has to be seen before it is projected.
            Batch(embedded(x) if warp is None else jnp.asarray(x), jnp.asarray(y)),
            batch_size=batch_size,
            steps=epochs,
            seed=seed,
            metric=is_finite,
            callbacks=[monitor],
            checkpoint=file,
            checkpoint_every=1,
            identity=settings,
            resume=resume,
            progress=False,
        )
    if result.stopped == "not finite":
        raise ValueError(
            f"training ran off to infinity with learning_rate {rate}: give a smaller one"
        )
    best = result.params if monitor.best is None else jnp.asarray(monitor.best)
    return Trained(
        classifier=prototype_classifier(
            best if space is None else space.points(best),
            [names[c] for c in k_labels],
            distance=distance,
            classes=names,
        ),
        history=monitor.history(),
        settings=settings,
        seconds=time.perf_counter() - began,
        seconds_per_epoch=float(result.history.seconds[-1]) / epochs,
    )


def _augmentation(
    augment: str | Augment | None, shape: tuple[int, ...], x: Float[np.ndarray, "n *d"]
) -> Augment | None:
    if augment is None:
        return None
    if isinstance(augment, str):
        if augment not in AUGMENTATIONS:
            raise ValueError(
                f"augment must be one of {', '.join(AUGMENTATIONS)} or a function of key and "
                f"images, got {augment!r}"
            )
        augment = AUGMENTATIONS[augment]
    if len(shape) not in (2, 3) or math.prod(shape) != x[0].size:
        raise ValueError(
            f"shape {shape} is not that of images (h, w) or (h, w, c) of {x[0].size} values, which "
            "augment needs: give shape"
        )
    return augment


def _subspace(components: int | None, plan: Plan, x: Float[np.ndarray, "n *d"]) -> Subspace | None:
    if components is None:
        return None
    if (plan.distance, plan.q) != (2, 2) or not isinstance(plan.domain, Unbounded):
        raise ValueError(
            f"components={components} is for distance=2, q=2 and an unbounded domain, whose radii "
            f"a projection keeps: leave it out for distance={_name(plan.distance)}, q={plan.q:g}"
        )
    return principal(x, components)


def _start(
    start: str | PrototypeClassifier,
    data: Samples,
    per_class: int,
    seed: int,
    space: Subspace | None,
    resumed: bool,
) -> Float[Array, "K *d"]:
    """Prototypes to start from, in the subspace."""
    if isinstance(start, PrototypeClassifier):
        if start.classes != data.names:
            raise ValueError(
                f"start has the classes {start.classes!r}, the labels have {data.names!r}"
            )
        as_points(start, data.points[:1])  # raises where the sizes differ
        return start.prototypes if space is None else space.coefficients(start.prototypes)
    x = data.points.reshape(len(data.points), -1)
    x = x if space is None else np.asarray(space.coefficients(jnp.asarray(x)))
    if resumed:  # the prototypes come out of the checkpoint
        w = jnp.zeros((len(allotted(data.classes, per_class, start)), x.shape[1]))
    else:
        key = jax.random.split(jax.random.key(seed))[1]  # fit folds numbers into the key itself
        w = starting_prototypes(x, data.classes, per_class, key, start)[0]
    return w if space is not None else w.reshape(-1, *data.points.shape[1:])


def _name(choice: Any) -> str:
    """A choice in words: numbers, strings and data classes as they print, functions by name."""
    if isinstance(choice, optax.GradientTransformation):
        return "optax transformation"
    return str(getattr(choice, "__name__", choice))


def _domain_name(domain: Domain) -> str:
    if not isinstance(domain, Box):
        return "unbounded"
    ends = (np.unique(np.asarray(end, np.float64)) for end in (domain.lower, domain.upper))
    return "box " + " to ".join(
        f"{end[0]:g}" if len(end) == 1 else f"[{end[0]:g}, {end[-1]:g}]" for end in ends
    )
