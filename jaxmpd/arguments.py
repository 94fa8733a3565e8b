"""What the optax transformations ask of their arguments."""

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PRNGKeyArray

from jaxmpd.losses import Batch, without_padding
from jaxmpd.network import PyTree

NO_PARAMS = (
    "You are using a transformation that requires the current value of parameters, but you are "
    "not passing `params` when calling `update`."
)
"""optax's own message, which it does not export."""


def as_key(seed: int | PRNGKeyArray) -> PRNGKeyArray:
    """A PRNG key as it is, or one made from an integer.

    Raises:
        TypeError: if it is neither.
    """
    if isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        return seed
    return jax.random.key(operator.index(seed))


def as_parts(batch: Any, inputs: str = "inputs", targets: str = "targets") -> tuple[Any, Any, Any]:
    """What a batch consists of, None for weights that are not there.

    Args:
        batch: a tuple or list of two or three.
        inputs: what an error calls the first.
        targets: what it calls the second.

    Raises:
        ValueError: if it is missing or no such tuple.
    """
    if batch is None:
        raise ValueError(
            "update needs the samples: call optimizer.update(updates, state, params, "
            f"batch=({inputs}, {targets}))"
        )
    if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
        raise ValueError(
            f"batch must be ({inputs}, {targets}) or ({inputs}, {targets}, weights), got "
            f"{type(batch)}"
        )
    first, second, weights = (*batch, None)[:3]
    return first, second, weights


def as_batch(batch: Any, dtype: Any, widths: tuple[int, int] | None = None) -> Batch:
    """The batch in this dtype, its padding set to 0, or an error that says why not.

    Args:
        batch: `(inputs, targets)` or `(inputs, targets, weights)`, a row a sample.
        dtype: of the parameters.
        widths: the numbers of columns of inputs and targets, where they are known.

    Returns:
        The samples.

    Raises:
        ValueError: if it is missing or the shapes do not fit.
    """
    inputs, targets, weights = (
        None if a is None else jnp.asarray(a, dtype) for a in as_parts(batch)
    )
    if (
        inputs is None
        or targets is None
        or inputs.ndim < 2
        or targets.ndim != 2
        or inputs.shape[0] != targets.shape[0]
        or (weights is not None and weights.shape != (inputs.shape[0],))
        or (widths is not None and (*inputs.shape[1:], targets.shape[1]) != widths)
    ):
        shapes = [jnp.shape(a) for a in batch if a is not None]
        asked = "with a row a sample"
        if widths is not None:
            asked = f"of shape (S, {widths[0]}) and targets of shape (S, {widths[1]})"
        raise ValueError(
            f"batch holds arrays of shapes {shapes}: give inputs {asked} and, if any, weights of "
            "shape (S,)"
        )
    if inputs.shape[0] == 0:
        raise ValueError("batch holds no samples")
    return without_padding(Batch(inputs, targets, weights))


# Masks ------------------------------------------------------------------------------------------


def is_masked_out(node: Any) -> bool:
    """Whether optax has put it in place of a parameter that is masked out."""
    return isinstance(node, optax.MaskedNode)


def has_masked(params: PyTree) -> bool:
    """Whether some of the parameters are masked out."""
    return any(map(is_masked_out, jax.tree.leaves(params, is_leaf=is_masked_out)))


def fill_in(tree: PyTree, full: PyTree | None) -> PyTree:
    """The tree with what is masked out taken from another.

    Args:
        tree: the parameters or their updates.
        full: a tree of the same structure, or of one that it is a prefix of, nothing masked out.

    Raises:
        ValueError: if something is masked out and full is None.

    Example:
        >>> fill_in({"a": 1, "b": optax.MaskedNode()}, {"a": 5, "b": 6})
        {'a': 1, 'b': 6}
    """
    if not has_masked(tree):
        return tree
    if full is None:
        raise ValueError(
            "some of params are masked out (optax.masked or optax.multi_transform), but the loss "
            "along a parameter depends on all of them: pass them as full_params= to update"
        )
    return jax.tree.map(
        lambda a, b: b if is_masked_out(a) else a, tree, full, is_leaf=is_masked_out
    )


def leave_out(change: PyTree, params: PyTree) -> PyTree:
    """The changes of all parameters without those of what is masked out."""
    return jax.tree.map(
        lambda p, c: p if is_masked_out(p) else c, params, change, is_leaf=is_masked_out
    )


def movable(params: PyTree, full: PyTree) -> PyTree:
    """A NumPy flag in each parameter's place: whether it is not masked out.

    Args:
        params: the parameters, some of them masked out.
        full: all of them.

    Returns:
        A tree of the structure and the shapes of all of them.
    """
    return jax.tree.map(
        lambda p, f: jax.tree.map(lambda leaf: np.full(jnp.shape(leaf), not is_masked_out(p)), f),
        params,
        full,
        is_leaf=is_masked_out,
    )
