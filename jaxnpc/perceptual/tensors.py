"""Arrays out of files of other programs: npz, safetensors, and what torch.save wrote.

PyTorch is not needed, and nothing in a file is executed: a `.pt` file is a pickle, and the only
names that this reader resolves are those of tensors, which become NumPy arrays.
"""

import collections
import io
import json
import math
import pickle
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Shaped

from jaxnpc.readers import PathLike

Tensors = dict[str, Shaped[np.ndarray, "..."]]

MAGIC = 0x1950A86A20F9469CFC6C
"""What the first pickle of a file in torch's format before 1.6 holds."""

STORAGES: dict[str, Any] = {
    "DoubleStorage": np.float64,
    "FloatStorage": np.float32,
    "HalfStorage": np.float16,
    "BFloat16Storage": jnp.bfloat16,
    "LongStorage": np.int64,
    "IntStorage": np.int32,
    "ShortStorage": np.int16,
    "CharStorage": np.int8,
    "ByteStorage": np.uint8,
    "BoolStorage": np.bool_,
}
"""Torch's storages and the types of their numbers, little-endian."""

SAFETENSORS: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": jnp.bfloat16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": np.bool_,
}
"""The types of safetensors."""

NESTING = 100_000_000
"""The longest header of a safetensors file, in bytes, as its authors have it."""


def read_tensors(path: PathLike) -> Tensors:
    """All arrays of a file, by their names; what else it holds is passed over.

    Nested mappings are flattened, their keys joined by dots: `{"model": {"a.weight": ...}}` gives
    `model.a.weight`.

    Args:
        path: an npz file, a safetensors file, or one of torch.save (`.pt`, `.pth`), old or new.
            Told apart by their content.

    Returns:
        The arrays, in the file's own types.

    Raises:
        OSError: if the file is missing or cannot be read.
        ValueError: if it is none of these, is damaged, or asks for anything but tensors.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/some.npz", kernel=np.zeros((2, 3)))
        ...     read_tensors(f"{folder}/some.npz")["kernel"].shape
        (2, 3)
    """
    content = Path(path).read_bytes()
    try:
        if content[:4] == b"PK\x03\x04":
            return _zipped(content)
        if content[:1] == b"\x80":
            return _flat(_legacy(content))
        return _safetensors(content)
    except (
        ArithmeticError,
        AttributeError,
        EOFError,
        ImportError,
        IndexError,
        KeyError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
        pickle.UnpicklingError,
        struct.error,
        zipfile.BadZipFile,
    ) as error:
        raise ValueError(f"{path}: no file of arrays that can be read: {error}") from error


class _Storage(NamedTuple):
    """A storage that a pickle refers to: its type, its name in the file and its length."""

    dtype: np.dtype[Any]
    key: str
    length: int


class _Tensor:
    """A view of a storage, whose numbers may come later in the file."""

    def __init__(
        self,
        storage: _Storage,
        offset: int,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        *_: object,
    ) -> None:
        self.storage, self.offset, self.shape, self.stride = storage, offset, shape, stride

    def array(self, storages: Mapping[str, Shaped[np.ndarray, " n"]]) -> Shaped[np.ndarray, "..."]:
        """The numbers, copied."""
        data = storages[self.storage.key].view(self.storage.dtype)
        numbers: tuple[Any, ...] = (self.offset, *self.shape, *self.stride)
        if not all(isinstance(x, int) and x >= 0 for x in numbers):
            raise ValueError(f"a tensor has offset, shape and stride {numbers}")
        if len(self.shape) != len(self.stride):
            raise ValueError(f"a tensor of shape {self.shape} has the strides {self.stride}")
        last = self.offset + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
        if math.prod(self.shape) and last >= len(data):
            raise ValueError(f"a tensor of shape {self.shape} reaches beyond its storage")
        if math.prod(self.shape) > len(data):
            raise ValueError(f"a tensor of shape {self.shape} repeats its storage")
        steps = [s * data.itemsize for s in self.stride]
        return np.lib.stride_tricks.as_strided(data[self.offset :], self.shape, steps).copy()


def _parameter(data: _Tensor, *_: object) -> _Tensor:
    """A parameter is its tensor."""
    return data


class _Tensors(pickle.Unpickler):
    """Unpickles tensors and plain containers; any other name in the pickle is an error."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in STORAGES:
            return np.dtype(STORAGES[name])
        allowed = {
            ("collections", "OrderedDict"): collections.OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): _Tensor,
            ("torch._utils", "_rebuild_parameter"): _parameter,
        }
        if (module, name) not in allowed:
            raise pickle.UnpicklingError(
                f"it asks for {module}.{name}, which is no tensor: refused. Save a state dict alone"
            )
        return allowed[module, name]

    def persistent_load(self, pid: Any) -> _Storage:
        kind, dtype, key, _, length, *_ = pid
        if kind != "storage" or not isinstance(dtype, np.dtype):
            raise pickle.UnpicklingError(f"it refers to {kind!r}, which is no storage")
        return _Storage(dtype, str(key), int(length))


def _zipped(content: bytes) -> Tensors:
    """An npz file, or torch's format since 1.6: a zip of a pickle and one file a storage."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = archive.namelist()
        pickles = [name for name in names if name.endswith("/data.pkl") and name.count("/") == 1]
        if not pickles:
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
        root = pickles[0].removesuffix("data.pkl")
        order = archive.read(root + "byteorder") if root + "byteorder" in names else b"little"
        if order != b"little":
            raise ValueError("its numbers are big-endian")
        found = _Tensors(io.BytesIO(archive.read(pickles[0]))).load()
        storages = {
            name.removeprefix(root + "data/"): np.frombuffer(archive.read(name), np.uint8)
            for name in names
            if name.startswith(root + "data/")
        }
    return _flat((found, storages))


def _legacy(content: bytes) -> tuple[Any, dict[str, Shaped[np.ndarray, " n"]]]:
    """Torch's format before 1.6: five pickles, then each storage's length and numbers."""
    stream = io.BytesIO(content)

    def load() -> Any:
        return _Tensors(stream).load()

    if load() != MAGIC:
        raise ValueError("a pickle, but not one of torch.save")
    load()  # the version
    if not load()["little_endian"]:
        raise ValueError("its numbers are big-endian")
    seen: dict[str, _Storage] = {}

    class Noting(_Tensors):
        def persistent_load(self, pid: Any) -> _Storage:
            storage = super().persistent_load(pid)
            seen[storage.key] = storage
            return storage

    found = Noting(stream).load()
    storages: dict[str, Shaped[np.ndarray, " n"]] = {}
    for key in load():
        (length,) = struct.unpack("<q", stream.read(8))
        size = length * seen[str(key)].dtype.itemsize
        numbers = stream.read(size)
        if length < 0 or len(numbers) != size:
            raise ValueError("the file ends within a tensor")
        storages[str(key)] = np.frombuffer(numbers, np.uint8)
    return found, storages


def _flat(loaded: tuple[Any, Mapping[str, Shaped[np.ndarray, " n"]]]) -> Tensors:
    found, storages = loaded
    tensors: Tensors = {}

    def walk(value: Any, name: str) -> None:
        if isinstance(value, _Tensor):
            tensors[name] = value.array(storages)
        elif isinstance(value, Mapping):
            for key, inner in value.items():
                walk(inner, f"{name}.{key}" if name else str(key))

    walk(found, "")
    return tensors


def _safetensors(content: bytes) -> Tensors:
    (length,) = struct.unpack("<Q", content[:8])
    if length > min(NESTING, len(content) - 8):
        raise ValueError("neither npz, nor safetensors, nor of torch.save")
    header, data = json.loads(content[8 : 8 + length]), memoryview(content)[8 + length :]
    tensors: Tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, stop = entry["data_offsets"]
        if not 0 <= start <= stop <= len(data):
            raise ValueError(f"{name} reaches beyond the file")
        numbers = np.frombuffer(data[start:stop], np.dtype(SAFETENSORS[entry["dtype"]]))
        tensors[name] = numbers.reshape(entry["shape"]).copy()
    return tensors
