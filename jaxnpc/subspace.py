"""Training in few coordinates: the principal components of the points, and the exact way back."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Subspace:
    r"""The affine subspace of all $m + B^T c$.

    For w in it and any x, $|x - w|_2^2 = |B (x - m) - c|_2^2 + r(x)^2$, where r(x) is the distance
    of x from the subspace: the same for all prototypes. Differences of squared l2 distances, the
    distances between prototypes and therefore the radii of l2 classifiers against l2 perturbations
    on R^d are those of the coefficients, to rounding; in other norms they are not.

    Attributes:
        mean: m.
        basis: B, orthonormal rows.
    """

    mean: Float[Array, " d"]
    basis: Float[Array, "r d"]

    def coefficients(self, x: Float[Array, "n d"]) -> Float[Array, "n r"]:
        """The coefficients of the closest points of the subspace."""
        return jnp.matmul(x - self.mean, self.basis.T, precision=jax.lax.Precision.HIGHEST)

    def points(self, c: Float[Array, "n r"]) -> Float[Array, "n d"]:
        """The points with these coefficients."""
        return self.mean + jnp.matmul(c, self.basis, precision=jax.lax.Precision.HIGHEST)


def principal(x: Float[np.ndarray, "n d"], components: int, *, centred: bool = True) -> Subspace:
    """The subspace in which the points vary most.

    Args:
        x: n points.
        components: its dimension r.
        centred: whether the subspace passes through the mean of the points; else through 0, and
            what is largest is the mean square along a direction instead of its variance.

    Returns:
        The subspace, the direction of the largest variance first; computed in float64, with the
        sign of each direction fixed by its largest coordinate.

    Raises:
        ValueError: if there are not so many components.

    Example:
        >>> line = np.array([[0.0, 1.0], [3.0, 5.0], [6.0, 9.0]], np.float32)
        >>> principal(line, 1).basis.round(3).tolist()
        [[0.6000..., 0.8000...]]
    """
    n, d = x.shape
    if not 1 <= components <= min(n, d):
        raise ValueError(
            f"components must be at least 1 and at most {min(n, d)}, for {n} points of {d} "
            f"coordinates, got {components}"
        )
    mean = np.mean(x, axis=0, dtype=np.float64) if centred else np.zeros(d)
    # Of a data set of images one copy is as much as should be held, and float32 will do.
    moved = x - mean.astype(x.dtype) if centred else x
    if d <= n:
        basis = _leading(moved.T @ moved, components).T
    else:
        basis = _leading(moved @ moved.T, components).T @ moved.astype(np.float64)
    # Rounding, or fewer directions than asked for in which the points vary at all.
    basis = np.linalg.qr(basis.T)[0].T
    largest = np.take_along_axis(basis, np.abs(basis).argmax(axis=1)[:, None], axis=1)
    basis = basis * np.where(largest < 0, -1, 1)
    return Subspace(jnp.asarray(mean, x.dtype), jnp.asarray(basis, x.dtype))


def _leading(gram: Float[np.ndarray, "m m"], count: int) -> Float[np.ndarray, "m count"]:
    """The eigenvectors of the largest eigenvalues, those first."""
    return np.linalg.eigh(gram.astype(np.float64))[1][:, ::-1][:, :count]
