"""Weights of feature networks: from other programs' files, and the project's own."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jaxmpd.files import replacing
from jaxnpc.perceptual.alexnet import CIFAR, IMAGENET, Architecture
from jaxnpc.perceptual.embedding import Embedding, arrays_of
from jaxnpc.perceptual.tensors import Tensors, read_tensors
from jaxnpc.readers import PathLike

FEATURES = (0, 3, 6, 8, 10)
"""Where the convolutions stand among the layers of torchvision's `features`."""


class KeyMap(NamedTuple):
    """How a program names the convolutions.

    Attributes:
        source: whose names these are.
        kernels: the name of each layer's kernel, after any prefix.
        biases: of each layer's bias.
        torch: whether kernels are (out, in, height, width) instead of (height, width, in, out).
    """

    source: str
    kernels: tuple[str, ...]
    biases: tuple[str, ...]
    torch: bool = True


KEY_MAPS = (
    KeyMap(
        "torchvision and perceptual-advex",
        tuple(f"features.{k}.weight" for k in FEATURES),
        tuple(f"features.{k}.bias" for k in FEATURES),
    ),
    KeyMap(
        "lpips and torchmetrics",
        tuple(f"net.slice{l + 1}.{k}.weight" for l, k in enumerate(FEATURES)),
        tuple(f"net.slice{l + 1}.{k}.bias" for l, k in enumerate(FEATURES)),
    ),
    KeyMap(
        "this project",
        tuple(f"conv{l}.kernel" for l in range(1, 6)),
        tuple(f"conv{l}.bias" for l in range(1, 6)),
        torch=False,
    ),
    KeyMap(
        "plain arrays",
        tuple(f"w{l}" for l in range(5)),
        tuple(f"b{l}" for l in range(5)),
    ),
)
"""The names that are known; perceptual-advex has prefixes before torchvision's."""

LINEAR = "lin{}.model.1.weight"
"""The linear layers of the lpips package, from 0."""


def load_embedding(
    path: PathLike,
    *,
    linear: PathLike | None = None,
    size: tuple[int, int] | None = None,
    eps: float | None = None,
) -> Embedding:
    """A perceptual metric from a file.

    Args:
        path: what `save_embedding` wrote; or the weights of torchvision's `alexnet`, of
            perceptual-advex's `alexnet_cifar`, or of an LPIPS module of the lpips or torchmetrics
            packages, as npz, safetensors, `.pt` or `.pth` (see
            [`read_tensors`][jaxnpc.perceptual.tensors.read_tensors]). Their heads are not needed.
        linear: a file with the linear layers of the lpips package, for weighted LPIPS; may be
            `path` itself. By default the metric is unweighted, unless `path` is of
            `save_embedding`, which knows.
        size: height and width of the images; by default those that the network is meant for.
        eps: what is added to norms; by default what the file says, or 0. `EPS` is what the lpips
            package takes, at the price of a looser bound.

    Returns:
        The metric, in float32.

    Raises:
        OSError: if a file is missing or cannot be read.
        ValueError: if a file holds no such weights, or an array has a wrong shape or value, naming
            its key.
    """
    tensors = read_tensors(path)
    architecture, params = convolutions(tensors, str(path))
    sizes = (architecture.side, architecture.side)
    found = Embedding(params, None, architecture, sizes)
    if "architecture" in tensors:
        height, width = (int(side) for side in tensors["size"])
        found = replace(found, size=(height, width), eps=float(tensors["eps"]))
        if "linear1" in tensors:
            names = tuple(f"linear{l + 1}" for l in range(len(architecture.layers)))
            found = replace(found, linear=_linear(tensors, names, architecture, str(path)))
    if linear is not None:
        others = read_tensors(linear)
        names = tuple(LINEAR.format(l) for l in range(len(architecture.layers)))
        prefix = _prefix(others, names[0])
        if prefix is None:
            raise ValueError(f"{linear}: no key ends with {names[0]}: {_some(others)}")
        names = tuple(prefix + name for name in names)
        found = replace(found, linear=_linear(others, names, architecture, str(linear)))
    found = replace(
        found, size=found.size if size is None else size, eps=found.eps if eps is None else eps
    )
    if not 0 <= found.eps < 1:
        raise ValueError(f"eps must be at least 0 and small, got {found.eps}")
    found.architecture.locations(*found.size)
    return found


def convolutions(
    tensors: Tensors, source: str = "tensors"
) -> tuple[Architecture, dict[str, dict[str, Any]]]:
    """The network and its parameters, from arrays under any of the known names.

    Args:
        tensors: arrays by name; others are passed over.
        source: where they come from, for messages.

    Returns:
        The architecture, told by the kernels' sizes, and the parameters.

    Raises:
        ValueError: if no names are known, an array is missing, has a wrong shape or is not finite.
    """
    for names in KEY_MAPS:
        prefix = _prefix(tensors, names.kernels[0])
        if prefix is not None:
            break
    else:
        known = "; ".join(f"{m.kernels[0]} ({m.source})" for m in KEY_MAPS)
        raise ValueError(f"{source}: no known names of weights: {_some(tensors)}. Known: {known}")
    first = tensors[prefix + names.kernels[0]]
    side = first.shape[-1] if names.torch else first.shape[0]
    architecture = IMAGENET if first.ndim == 4 and side == IMAGENET.layers[0].kernel else CIFAR
    params: dict[str, dict[str, Any]] = {}
    for l, (height, width, ins, outs) in enumerate(architecture.shapes()):
        shape = (outs, ins, height, width) if names.torch else (height, width, ins, outs)
        kernel = _array(tensors, prefix + names.kernels[l], shape, source)
        bias = _array(tensors, prefix + names.biases[l], (outs,), source)
        if names.torch:
            kernel = kernel.transpose(2, 3, 1, 0)
        params[f"conv{l + 1}"] = {"kernel": jnp.asarray(kernel), "bias": jnp.asarray(bias)}
    return architecture, params


def save_embedding(
    path: PathLike,
    embedding: Embedding,
    *,
    dtype: str = "float32",
    settings: Mapping[str, Any] | None = None,
) -> str:
    """Write a metric as an npz file, for `load_embedding`.

    Args:
        path: the file; it appears whole or not at all.
        embedding: the metric.
        dtype: "float32", or "float16" for half the size: the metric in the file is then that of
            the rounded weights.
        settings: how it was made: numbers, strings, lists and mappings of them.

    Returns:
        The `digest` of what is in the file.

    Raises:
        ValueError: if the dtype is neither, or float16 cannot hold a weight.

    Example:
        >>> import jax, tempfile
        >>> from jaxnpc.perceptual.embedding import random_embedding
        >>> phi = random_embedding(CIFAR, jax.random.key(0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     digest = save_embedding(f"{folder}/phi.npz", phi, settings={"epochs": 0})
        ...     again = load_embedding(f"{folder}/phi.npz")
        >>> again.digest == digest == phi.digest
        True
    """
    if dtype not in ("float32", "float16"):
        raise ValueError(f'dtype must be "float32" or "float16", got {dtype!r}')
    arrays = arrays_of(embedding)
    with np.errstate(over="ignore"):
        stored = {name: array.astype(dtype) for name, array in arrays.items()}
    for name, array in stored.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{name} holds numbers that are not finite in {dtype}")
    with replacing(path) as temporary:
        np.savez_compressed(
            temporary,
            allow_pickle=False,
            architecture=np.array(embedding.architecture.name),
            size=np.array(embedding.size),
            eps=np.float64(embedding.eps),
            settings=np.array(json.dumps(dict(settings or {}))),
            **stored,
        )
    return load_embedding(path).digest


def load_settings(path: PathLike) -> dict[str, Any]:
    """How a metric was made, as `save_embedding` was told; empty for files of other programs.

    Raises:
        OSError: if the file is missing or cannot be read.
        ValueError: if it cannot be understood.
    """
    return dict(json.loads(str(read_tensors(path).get("settings", "{}"))))


def _linear(
    tensors: Tensors, names: tuple[str, ...], architecture: Architecture, source: str
) -> tuple[Float[np.ndarray, " c"], ...]:
    found: list[Any] = []
    for name, layer in zip(names, architecture.layers, strict=True):
        channels = layer.features
        shape = (channels,) if name.startswith("linear") else (1, channels, 1, 1)
        weights = _array(tensors, name, shape, source).reshape(-1)
        if (weights < 0).any():
            raise ValueError(
                f"{source}: {name} holds {weights.min()}: the weights of a metric are at least 0"
            )
        found.append(jnp.asarray(weights))
    return tuple(found)


def _prefix(tensors: Tensors, name: str) -> str | None:
    """What stands before a name, the shortest if it occurs several times; None if it is missing."""
    pattern = re.compile(rf"(?:.*\.)?{re.escape(name)}")
    found = [key.removesuffix(name) for key in tensors if pattern.fullmatch(key)]
    return min(found, key=len) if found else None


def _array(
    tensors: Tensors, key: str, shape: tuple[int, ...], source: str
) -> Float[np.ndarray, "..."]:
    if key not in tensors:
        raise ValueError(f"{source}: {key} is missing: {_some(tensors)}")
    array = tensors[key]
    if array.shape != shape:
        raise ValueError(f"{source}: {key} has shape {array.shape}, the network needs {shape}")
    with np.errstate(over="ignore"):
        array = array.astype(np.float32)
    if not np.isfinite(array).all():
        raise ValueError(f"{source}: {key} holds a number that is not finite")
    return array


def _some(tensors: Tensors) -> str:
    keys = list(tensors)
    return f"it holds {', '.join(keys[:6])}{', ...' if len(keys) > 6 else ''}" if keys else "empty"
