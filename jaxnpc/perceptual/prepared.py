r"""A classifier of embedded images made ready, and what one matrix product tells of its points.

The score $\langle z, w_k \rangle - |w_k|^2 / 2$ is largest for the nearest prototype, and the
half-space between $w_i$ and $w_j$ lies at the difference of their scores over $|w_j - w_i|$
(eq. 13). All of it is float32 with bounds of what rounding can have done.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxnpc.batching import blocks, padded
from jaxnpc.distances import rounding as sum_error
from jaxnpc.domains import SphereProduct, check_spheres
from jaxnpc.pairwise.sphere_proofs import as_float64, group_squares
from jaxnpc.prototypes import PrototypeClassifier
from jaxnpc.rounding import Interval, exact, total, up

ROWS = 256  # points that are worked on together
GROUP = 512  # coordinates added up at a time: blocks of sums round less


@dataclass(frozen=True)
class Prepared:
    """A classifier of embedded images and their domain, with all that points share.

    Attributes:
        domain: the product of spheres, bounds in float64.
        prototypes: K prototypes, float32, taken as exact.
        labels: the class of each.
        members: for each class the indices of its prototypes, all of one length: the first repeats.
        squares: enclosures of the squared norms of the prototypes.
        lengths: upper bounds of the norms of their groups.
        apart: upper bounds of the distances between prototypes, float32.
        largest: an upper bound of the squared norm of a point of the domain.
        device: what the device needs.
    """

    domain: SphereProduct
    prototypes: Float[np.ndarray, "K d"]
    labels: Int[np.ndarray, " K"]
    members: Int[np.ndarray, "C own"]
    squares: Interval
    lengths: Float[np.ndarray, "K G"]
    apart: Float[np.ndarray, "K K"]
    largest: float
    device: "Device"


class Device(NamedTuple):
    """Float32 arrays on the device.

    Attributes:
        domain: the product of spheres.
        prototypes: the prototypes.
        grouped: the same, `GROUP` coordinates at a time, filled up with zeros.
        half: half the squared norms of the prototypes.
        size: upper bounds of their norms.
        apart: upper bounds of the distances between them.
        members: the members of each class.
        labels: the class of each.
    """

    domain: SphereProduct
    prototypes: Float[Array, "K d"]
    grouped: Float[Array, "parts K group"]
    half: Float[Array, " K"]
    size: Float[Array, " K"]
    apart: Float[Array, "K K"]
    members: Int[Array, "C own"]
    labels: Int[Array, " K"]


class Scores(NamedTuple):
    r"""Bounds of $\langle z, w_k \rangle - |w_k|^2 / 2$, which is largest for the nearest w."""

    lower: Float[np.ndarray, "n K"]
    upper: Float[np.ndarray, "n K"]


def prepare(classifier: PrototypeClassifier, domain: SphereProduct) -> Prepared:
    """A classifier made ready.

    Args:
        classifier: of embedded images: distance 2, no metric, float32 prototypes.
        domain: where embedded images lie.

    Returns:
        What the bounds need.

    Raises:
        TypeError: if the prototypes are not float32 or the domain is no product of spheres.
        ValueError: if the distance is not 2, there is a metric, or the domain does not fit.
    """
    w = check_classifier(classifier)
    domain = as_float64(check_spheres(domain, w.shape[1]))
    labels = np.asarray(classifier.labels)
    own = [np.flatnonzero(labels == c) for c in range(len(classifier.classes))]
    width = max(map(len, own))
    members = np.array([np.pad(k, (0, width - len(k)), constant_values=k[0]) for k in own])
    wide = w.astype(np.float64)
    parts = [group_squares(wide[part], domain) for part in blocks(len(w), 32)]
    per = Interval(*(np.concatenate([getattr(p, s) for p in parts]) for s in ("lower", "upper")))
    squares = total(per)
    sums = squares.upper[:, None] + squares.upper
    table = sums - 2 * (wide @ wide.T) + 4 * sum_error(w.shape[1] + 4, np.float64) * sums
    apart = _narrow_up(np.sqrt(np.maximum(table, 0)))
    outer, bounds = domain.spread(domain.outer), (domain.inner, domain.outer)
    device = Device(
        SphereProduct(domain.blocks, *(jnp.asarray(b, jnp.float32) for b in bounds)),
        jnp.asarray(w),
        _grouped(jnp.asarray(w)),
        jnp.asarray(squares.upper / 2, jnp.float32),
        jnp.asarray(_narrow_up(np.sqrt(squares.upper))),
        jnp.asarray(apart),
        jnp.asarray(members),
        jnp.asarray(labels),
    )
    lengths = up(np.sqrt(per.upper))
    largest = float(total(exact(outer) * outer).upper)
    return Prepared(domain, w, labels, members, squares, lengths, apart, largest, device)


def check_classifier(classifier: PrototypeClassifier) -> Float[np.ndarray, "K d"]:
    """The prototypes of a classifier that can be one of embedded images.

    Raises:
        TypeError: if the prototypes are not float32.
        ValueError: if the distance is not 2 or there is a metric.
    """
    if callable(classifier.distance) or classifier.distance != 2 or classifier.metric is not None:
        raise ValueError("classifier must have distance 2 and no metric, as embedded images do")
    w = np.asarray(classifier.prototypes)
    if w.dtype != np.float32:
        raise TypeError(f"the prototypes are {w.dtype}: embedded images are float32, round them")
    return w


def scores(prepared: Prepared, z: Float[np.ndarray, "n d"]) -> Scores:
    """Bounds of the scores of all prototypes, from one matrix product in float32."""
    lower, upper = (np.empty((len(z), len(prepared.labels)), np.float32) for _ in range(2))
    for part in blocks(len(z), ROWS):
        count = part.stop - part.start
        block = z[part] if count == ROWS else padded(z[part], ROWS)
        found = _scores(jnp.asarray(block), prepared.device)
        lower[part], upper[part] = (np.asarray(v)[:count] for v in found)
    return Scores(lower, upper)


@jax.jit
def _scores(
    z: Float[Array, "B d"], device: Device
) -> tuple[Float[Array, "B K"], Float[Array, "B K"]]:
    """Lower and upper bounds. Sums of few numbers round less: coordinates are taken in groups."""
    eps, (count, k, _) = float(jnp.finfo(z.dtype).eps), device.grouped.shape

    def add(sums: Array, pair: tuple[Array, Array]) -> tuple[Array, None]:
        return sums + jnp.matmul(pair[0], pair[1].T, precision=jax.lax.Precision.HIGHEST), None

    products, _ = jax.lax.scan(add, jnp.zeros((len(z), k), z.dtype), (_grouped(z), device.grouped))
    size = jnp.sqrt(jnp.sum(jnp.square(z), axis=1)) * (1 + sum_error(z.shape[1] + 4))
    error = sum_error(GROUP + count + 4) * size[:, None] * device.size
    # Rounding the half squares, the difference, and what underflows.
    error += eps * (jnp.abs(products) + 2 * device.half) + z.shape[1] * 2.0**-100
    return products - device.half - error, products - device.half + error


def _grouped(x: Float[Array, "n d"]) -> Float[Array, "parts n group"]:
    count = -(-x.shape[1] // GROUP)
    x = jnp.pad(x, ((0, 0), (0, count * GROUP - x.shape[1])))
    return x.reshape(len(x), count, GROUP).swapaxes(0, 1)


@jax.jit
def floors(
    lower: Float[Array, "B K"], upper: Float[Array, "B K"], label: Int[Array, " B"], device: Device
) -> Float[Array, "B K"]:
    """The half-space bounds of every rival, the best over i; infinite for own prototypes."""
    own = device.members[label]
    need = jnp.take_along_axis(lower, own, axis=1)[:, :, None] - upper[:, None, :]
    bound = jnp.max(need / device.apart[own], axis=1)
    bound = bound - 8 * float(jnp.finfo(lower.dtype).eps) * jnp.abs(bound)
    return jnp.where(device.labels != label[:, None], bound, jnp.inf)


def certainly(
    found: Scores, labels: Int[np.ndarray, " K"], count: int
) -> tuple[Int[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """The class of the nearest prototype, and whether that is certain and no tie.

    Args:
        found: the scores of n points.
        labels: the class of each prototype.
        count: the number of classes.

    Returns:
        The classes by their indices, and whether rounding cannot matter.
    """
    masks = [labels == c for c in range(count)]
    lower = np.stack([found.lower[:, mask].max(axis=1) for mask in masks], axis=1)
    upper = np.stack([found.upper[:, mask].max(axis=1) for mask in masks], axis=1)
    rows, best = np.arange(len(lower)), np.argmax(lower, axis=1)
    others = upper.copy()
    others[rows, best] = -np.inf
    return best, lower[rows, best] > others.max(axis=1)


def _narrow_up(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Numbers in float32, at least as large and positive."""
    return (x * (1 + 2.0**-22)).astype(np.float32) + np.float32(2.0**-100)
