"""Checkpoints: a tree of arrays in a file that is whole or absent."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np

from jaxmpd.files import write_whole

PyTree = Any


def is_key(leaf: Any) -> bool:
    """Whether a leaf is a typed PRNG key."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(leaf: Any) -> np.ndarray:
    """The leaf as numbers: a typed PRNG key has no serial form of its own."""
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def save(path: Path, state: PyTree, record: dict[str, Any]) -> None:
    """Write a checkpoint.

    Args:
        path: the file.
        state: any tree of arrays and PRNG keys.
        record: what goes with it, of any shapes: nested dictionaries of arrays, numbers, strings.
    """
    leaves = [_plain(leaf) for leaf in jax.tree.leaves(state)]
    document = {"leaves": {str(i): leaf for i, leaf in enumerate(leaves)}, "record": record}
    write_whole(path, flax.serialization.msgpack_serialize(document))


def load(
    path: Path, like: PyTree, check: Callable[[dict[str, Any]], None]
) -> tuple[PyTree, dict[str, Any]]:
    """Read a checkpoint.

    Args:
        path: the file.
        like: a tree of the same structure, shapes and dtypes as the state that was saved.
        check: is shown the record before the state is compared with `like`, and raises where it
            can say better why they will not agree.

    Returns:
        The state, bit for bit, and the record.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it holds no checkpoint, or one of another structure.
    """
    content = path.read_bytes()
    try:
        document: Any = flax.serialization.msgpack_restore(content)
        saved, record = document["leaves"], document["record"]
    except Exception as error:  # msgpack raises a dozen kinds on foreign bytes
        raise ValueError(f"{path} is not a checkpoint of jaxmpd") from error
    check(record)
    leaves, treedef = jax.tree.flatten(like)
    if len(saved) != len(leaves):
        raise ValueError(
            f"{path} holds {len(saved)} arrays but this optimiser and these parameters have "
            f"{len(leaves)}: resume with the same ones, or start without resume"
        )
    restored = []
    for i, leaf in enumerate(leaves):
        old, new = saved[str(i)], _plain(leaf)
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise ValueError(
                f"{path} holds {old.dtype}{old.shape} where {new.dtype}{new.shape} is needed: "
                "resume with the same model, optimiser and precision, or start without resume"
            )
        array = jnp.asarray(old)
        wrap = is_key(leaf)
        restored.append(
            jax.random.wrap_key_data(array, impl=jax.random.key_impl(leaf)) if wrap else array
        )
    return jax.tree.unflatten(treedef, restored), record
