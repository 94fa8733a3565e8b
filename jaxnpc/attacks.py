"""Adversarial attacks by foolbox, judged in float64: upper bounds no certificate may exceed."""

import dataclasses
import math
import warnings
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int
from tqdm import tqdm

from jaxnpc.certificate import Certificate
from jaxnpc.certify import check_labels, check_points
from jaxnpc.decisions import leaves
from jaxnpc.distances import named_norm
from jaxnpc.domains import Box, Domain, Unbounded
from jaxnpc.extras import require
from jaxnpc.prototypes import PrototypeClassifier, scores
from jaxnpc.witnesses import admissible, gap, nearest_outside

Logits = Callable[[Float[Array, "n d"]], Float[Array, "n C"]]
Rows = Int[np.ndarray, " r"]

MINIMISING: dict[float, dict[str, dict[str, Any]]] = {
    1: {"L2DeepFoolAttack": {}, "L1FMNAttack": {"steps": 100}},
    2: {"L2DeepFoolAttack": {}, "L2FMNAttack": {"steps": 100}},
    math.inf: {"LinfDeepFoolAttack": {}, "LInfFMNAttack": {"steps": 100}},
}
"""Foolbox's attacks that look for a small perturbation, by norm, with their settings."""

FROM_STARTS: dict[float, dict[str, dict[str, Any]]] = {
    1: {"L1FMNAttack": {"steps": 100}},
    2: {"L2FMNAttack": {"steps": 100}, "BoundaryAttack": {"steps": 200}},
    math.inf: {"LInfFMNAttack": {"steps": 100}},
}
"""Those that can begin at an adversarial point."""

WITHIN: dict[float, dict[str, dict[str, Any]]] = {
    1: {"SparseL1DescentAttack": {"steps": 40}},
    2: {"L2ProjectedGradientDescentAttack": {"steps": 40}},
    math.inf: {"LinfProjectedGradientDescentAttack": {"steps": 40}},
}
"""Those that search the ball of a given radius."""

PUSHES = (0.0, *(10.0**k for k in range(-6, 1)))
"""How far beyond a start an attack may begin, relative to the perturbation."""


class Attacked(NamedTuple):
    """The best that attacks found for each of n points.

    Attributes:
        points: an admissible point that is not assigned to the label, as judged in float64; the
            point itself where none was found.
        distance: its distance from the point, rounded up; 0 where the point itself is not assigned
            to its label, infinite where nothing was found.
        attack: which one found it, as an index into `names`; -1 for none.
        failed: how many attacks raised an exception at the point.
        names: the attacks that ran.
    """

    points: Float[np.ndarray, "n d"]
    distance: Float[np.ndarray, " n"]
    attack: Int[np.ndarray, " n"]
    failed: Int[np.ndarray, " n"]
    names: tuple[str, ...]


def attack(
    classifier: PrototypeClassifier,
    x: Float[ArrayLike, "n d"],
    labels: Iterable[Hashable],
    *,
    q: float = 2,
    domain: Domain | None = None,
    attacks: Sequence[Any] | None = None,
    radii: Sequence[float] = (),
    starts: Float[np.ndarray, "n d"] | None = None,
    batch: int = 256,
    seed: int = 0,
    progress: bool = False,
) -> Attacked:
    """Attack points, as somebody without the certificate would, and as somebody with it.

    The attacks see logits in JAX's default precision; whether a point is adversarial is judged by
    the classifier in float64 with its rounding bounded, and each success is pulled back towards its
    point as far as it stays one. Points for which an attack fails or raises cost no others.

    Args:
        classifier: the classifier.
        x: n points inside the domain.
        labels: their n class names.
        q: the norm in which perturbations are measured: 1, 2 or infinity.
        domain: where inputs live; by default all of R^d.
        attacks: foolbox attacks, or functions of (logits, points, labels) that return points; by
            default foolbox's for this norm. A function is the way to AutoAttack or any other
            library: `logits` maps a batch of points to scores and can be differentiated by JAX.
        radii: sizes at which foolbox attacks with a fixed size run; each size is one more run.
        starts: adversarial points to begin at too, such as a certificate's witnesses. Rows that the
            attacks' model does not find adversarial are moved outwards a little or left out.
        batch: how many points are attacked at a time.
        seed: of foolbox's random numbers.
        progress: whether to show a progress bar.

    Returns:
        The best adversarial point and distance of each point.

    Raises:
        ImportError: if foolbox is missing (extra `attacks`).
        TypeError: if an attack is neither foolbox's nor a function.
        ValueError: if x, labels, domain or q do not fit (see `certify`), starts have another shape
            than x, or an attack with a fixed size is given without radii.
    """
    domain = Unbounded() if domain is None else domain
    named_norm(q, "q")
    points = check_points(classifier, x, domain).astype(np.float64)
    label = check_labels(classifier, labels, len(points))
    compiled = jax.jit(logits)
    target = Target(
        lambda batch: compiled(classifier, batch),
        lambda found, of: leaves(classifier, found, of),
        *_bounds(classifier, points, domain),
    )
    return attack_target(
        target,
        points,
        label,
        q=q,
        domain=domain,
        attacks=attacks,
        radii=radii,
        starts=starts,
        batch=batch,
        seed=seed,
        progress=progress,
    )


class Target(NamedTuple):
    """What is attacked, when it is no `PrototypeClassifier` of the points themselves.

    Attributes:
        see: logits of a batch of float32 points, differentiable by JAX.
        left: given points and labels, which of them certainly are of another class.
        low: the least value of a coordinate, for foolbox; the domain is met afterwards.
        high: the largest.
    """

    see: Logits
    left: Callable[[Float[np.ndarray, "n d"], Int[np.ndarray, " n"]], Bool[np.ndarray, " n"]]
    low: float
    high: float


def attack_target(
    target: Target,
    points: Float[np.ndarray, "n d"],
    label: Int[np.ndarray, " n"],
    *,
    q: float,
    domain: Domain,
    attacks: Sequence[Any] | None = None,
    radii: Sequence[float] = (),
    starts: Float[np.ndarray, "n d"] | None = None,
    batch: int = 256,
    seed: int = 0,
    progress: bool = False,
) -> Attacked:
    """Attack points of anything that gives logits; arguments as for `attack`.

    Args:
        target: what is attacked.
        points: n points, float64.
        label: their class indices.
        q: the norm.
        domain: where inputs live.
        attacks: as for `attack`.
        radii: as for `attack`.
        starts: as for `attack`.
        batch: as for `attack`.
        seed: as for `attack`.
        progress: as for `attack`.

    Returns:
        The best adversarial point and distance of each point.

    Raises:
        ImportError: if foolbox is missing (extra `attacks`).
        TypeError: if an attack is neither foolbox's nor a function.
        ValueError: if starts have another shape than the points, or an attack with a fixed size is
            given without radii.
    """
    if starts is not None and np.shape(starts) != points.shape:
        raise ValueError(f"starts has shape {np.shape(starts)}, but the points {points.shape}")
    with _foolbox(seed) as foolbox:
        model = foolbox.models.JAXModel(target.see, bounds=(target.low, target.high))
        runs = _runs(foolbox, model, target.see, q, attacks, radii, starts is not None)
        missed = target.left(points, label)
        best, distance = points.copy(), np.where(missed, 0.0, np.inf)
        which, failed = np.full(len(points), -1), np.zeros(len(points), np.int64)
        todo = np.flatnonzero(~missed & np.isfinite(points).all(axis=1))
        for rows in tqdm(
            np.array_split(todo, range(batch, len(todo), batch)), "attack", disable=not progress
        ):
            begin = points if starts is None else _outwards(target, points, starts, label, rows)
            started = rows[np.isfinite(begin[rows]).all(axis=1)]
            for number, run in enumerate(runs):
                who = started if run.from_starts else rows
                for part, found in _survivors(run, points, label, begin, who):
                    if found is None:
                        failed[part] += 1
                        continue
                    found, part = _verified(target, points, label, found, part, domain)
                    size = gap(found, points[part], q)
                    better = size < distance[part]
                    part = part[better]
                    best[part], distance[part], which[part] = found[better], size[better], number
    return Attacked(best, distance, which, failed, tuple(run.name for run in runs))


def tighten(
    certificate: Certificate, attacked: Attacked, *, tolerance: float = 1e-6
) -> Certificate:
    """The certificate with the attacks' adversarial points wherever they are nearer.

    `robust_accuracy(..., upper=True)` of the result is the upper bound on robust accuracy (URA)
    after the attacks.

    Args:
        certificate: of n points.
        attacked: attacks on the same points and labels, in the same norm and domain.
        tolerance: up to which relative gap of radius and witness a point counts as exact.

    Returns:
        The certificate with a smaller or equal `upper`, its witnesses and `exact`.
    """
    nearer = attacked.distance < certificate.upper
    upper = np.where(nearer, attacked.distance, certificate.upper)
    return dataclasses.replace(
        certificate,
        upper=upper,
        witness=np.where(nearer[:, None], attacked.points, certificate.witness),
        exact=certificate.exact | (nearer & (upper <= certificate.radius * (1 + tolerance))),
    )


def logits(classifier: PrototypeClassifier, x: Float[Array, "n d"]) -> Float[Array, "n C"]:
    """Scores to attack: differentiable, with finite gradients everywhere.

    For the l2 distance they are squared, keeping their sign: the difference of two classes is then
    linear in the point as long as the closest prototypes stay the same.
    """
    value = scores(classifier, x)
    return -jnp.square(value) if classifier.distance == 2 else value


class _Run(NamedTuple):
    """One attack, ready for points, labels and, perhaps, starts."""

    name: str
    call: Callable[[Array, Array, Array | None], Any]
    from_starts: bool = False


def _runs(
    foolbox: Any,
    model: Any,
    see: Logits,
    q: float,
    attacks: Sequence[Any] | None,
    radii: Sequence[float],
    with_starts: bool,
) -> list[_Run]:
    def build(table: dict[str, dict[str, Any]]) -> list[Any]:
        return [getattr(foolbox.attacks, name)(**options) for name, options in table.items()]

    if attacks is None:
        attacks = build(MINIMISING[q]) + (build(WITHIN[q]) if len(radii) else [])
    base = foolbox.attacks.base
    runs: list[_Run] = []
    for one in attacks:
        name = getattr(one, "__name__", type(one).__name__)
        if isinstance(one, base.FixedEpsilonAttack):
            if not len(radii):
                raise ValueError(f"radii is empty, but {name} needs the size of its perturbation")
            runs += [_Run(f"{name}@{r:g}", partial(_call, one, model, r)) for r in radii]
        elif isinstance(one, base.Attack):
            runs.append(_Run(name, partial(_call, one, model, None)))
        elif callable(one):
            runs.append(_Run(name, lambda x, y, _, one=one: one(see, x, y)))
        else:
            raise TypeError(f"attacks holds {one!r}: give foolbox attacks or functions")
    if with_starts:
        for one in build(FROM_STARTS[q]):
            call = partial(_call, one, model, None)
            runs.append(_Run(f"{type(one).__name__} from starts", call, from_starts=True))
    return runs


def _call(one: Any, model: Any, radius: float | None, x: Array, y: Array, s: Array | None) -> Any:
    start = {} if s is None else {"starting_points": require("eagerpy").astensor(s)}
    return one(model, x, y, epsilons=radius, **start)[1]


def _survivors(
    run: _Run,
    points: Float[np.ndarray, "n d"],
    label: Int[np.ndarray, " n"],
    begin: Float[np.ndarray, "n d"],
    rows: Rows,
) -> Iterator[tuple[Rows, Float[np.ndarray, "r d"] | None]]:
    """Run an attack; where it raises, on ever smaller parts, until only the culprits are out."""
    if not len(rows):
        return
    start = jnp.asarray(begin[rows], jnp.float32) if run.from_starts else None
    try:
        found = run.call(jnp.asarray(points[rows], jnp.float32), jnp.asarray(label[rows]), start)
    except (AssertionError, ValueError):
        if len(rows) == 1:
            yield rows, None
            return
        for half in np.array_split(rows, 2):
            yield from _survivors(run, points, label, begin, half)
        return
    yield rows, np.asarray(found, np.float64)


def _verified(
    target: Target,
    points: Float[np.ndarray, "n d"],
    label: Int[np.ndarray, " n"],
    found: Float[np.ndarray, "r d"],
    rows: Rows,
    domain: Domain,
) -> tuple[Float[np.ndarray, "s d"], Rows]:
    """Those of the points that are adversarial, as near as bisection brings them."""
    found = np.where(np.isfinite(found), found, points[rows])
    found = admissible(found, domain)
    good = target.left(found, label[rows])
    rows = rows[good]
    if not len(rows):
        return found[good], rows
    # From the point as the domain has it: a float32 point may lie beyond a wall by its rounding.
    inside = admissible(points[rows], domain)
    return nearest_outside(inside, found[good], lambda x: target.left(x, label[rows])), rows


def _outwards(
    target: Target,
    points: Float[np.ndarray, "n d"],
    starts: Float[np.ndarray, "n d"],
    label: Int[np.ndarray, " n"],
    rows: Rows,
) -> Float[np.ndarray, "n d"]:
    """Starts of these rows that the model finds adversarial; NaN where there are none."""
    chosen = np.full_like(points, np.nan)
    for push in reversed(PUSHES):
        away = starts[rows] + push * (starts[rows] - points[rows])
        candidate = np.clip(away, target.low, target.high).astype(np.float32)
        predicted = np.asarray(jnp.argmax(target.see(jnp.asarray(candidate)), axis=1))
        adversarial = predicted != label[rows]
        chosen[rows[adversarial]] = candidate[adversarial]
    return chosen


def _bounds(
    classifier: PrototypeClassifier, points: Float[np.ndarray, "n d"], domain: Domain
) -> tuple[float, float]:
    """One finite interval for all coordinates, as foolbox wants it; the domain is met later."""
    everything = np.concatenate([points, np.asarray(classifier.prototypes)])
    everything = everything[np.isfinite(everything).all(axis=1)]
    low, high = everything.min(), everything.max()
    low, high = 2 * low - high, 2 * high - low
    if isinstance(domain, Box):
        low = max(low, float(np.min(np.asarray(domain.lower))))
        high = min(high, float(np.max(np.asarray(domain.upper))))
    # Points rounded to float32 must not fall outside.
    return float(np.nextafter(np.float32(low), -np.inf)), float(
        np.nextafter(np.float32(high), np.inf)
    )


@contextmanager
def _foolbox(seed: int) -> Generator[Any]:
    """Foolbox, quiet about what it imports and calls that is deprecated, with its random seed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        foolbox, tensor = require("foolbox"), require("eagerpy").JAXTensor
        before, tensor.key = tensor.key, jax.random.PRNGKey(seed)
        try:
            yield foolbox
        finally:
            tensor.key = before
