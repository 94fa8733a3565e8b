r"""L-BFGS over any tree, with an initial inverse Hessian of the caller's.

In coordinates C^-1 theta the plain method with initial inverse Hessian gamma I is, in theta, the
method with gamma C C^T: nothing has to be transformed, and the memory outlives a new C.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

PyTree = Any

CURVED = 1e-10
"""The least s.y / y.y of a pair that is remembered."""


class Memory(NamedTuple):
    """The last M pairs, the newest in front; zeros where there is none yet.

    Attributes:
        steps: the changes s of the parameters.
        changes: the changes y of the gradient.
        inverses: 1 / s.y, 0 for no pair.
    """

    steps: PyTree
    changes: PyTree
    inverses: Float[Array, " M"]


def empty(params: PyTree, size: int) -> Memory:
    """A memory of this size without pairs."""
    zeros = jax.tree.map(lambda a: jnp.zeros((size, *jnp.shape(a)), a.dtype), params)
    return Memory(zeros, zeros, jnp.zeros(size, jnp.result_type(*jax.tree.leaves(params))))


def remember(memory: Memory, step: PyTree, change: PyTree) -> Memory:
    """The memory with one more pair, unless the function does not curve upwards along it."""
    product = jnp.asarray(optax.tree.vdot(step, change))
    curved = product > CURVED * jnp.asarray(optax.tree.vdot(change, change))
    pair = Memory(step, change, 1 / jnp.where(curved, product, 1))
    return jax.tree.map(
        lambda old, new: jnp.where(curved, jnp.concatenate([new[None], old[:-1]]), old),
        memory,
        pair,
    )


def direction(gradient: PyTree, memory: Memory, precondition: Callable[[PyTree], PyTree]) -> PyTree:
    """The direction of descent: minus the inverse Hessian times the gradient, by two loops.

    Args:
        gradient: at the current parameters.
        memory: of pairs.
        precondition: applies the symmetric positive definite C C^T. Its scale matters only while
            the memory is empty.

    Returns:
        The direction.
    """

    def backwards(q: PyTree, pair: Memory) -> tuple[PyTree, Array]:
        a = pair.inverses * optax.tree.vdot(pair.steps, q)
        return optax.tree.add_scale(q, -a, pair.changes), a

    def forwards(r: PyTree, item: tuple[Memory, Array]) -> tuple[PyTree, None]:
        pair, a = item
        b = pair.inverses * optax.tree.vdot(pair.changes, r)
        return optax.tree.add_scale(r, a - b, pair.steps), None

    q, a = jax.lax.scan(backwards, gradient, memory)
    newest = jax.tree.map(lambda m: m[0], memory.changes)
    length = memory.inverses[0] * optax.tree.vdot(newest, precondition(newest))
    scale = jnp.where(length > 0, 1 / jnp.where(length > 0, length, 1), 1)
    r = optax.tree.scale(scale, precondition(q))
    r, _ = jax.lax.scan(forwards, r, (memory, a), reverse=True)
    return optax.tree.scale(-1, r)
