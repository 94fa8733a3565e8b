"""Weights from every kind of file; what is no tensor, or of no such shape, is refused by name."""

import collections
import io
import json
import pickle
import struct
import sys
import types
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxnpc.perceptual.alexnet import CIFAR, IMAGENET
from jaxnpc.perceptual.embedding import EPS, arrays_of, random_embedding
from jaxnpc.perceptual.tensors import MAGIC, read_tensors
from jaxnpc.perceptual.weights import FEATURES, load_embedding, load_settings, save_embedding


@pytest.fixture(scope="module")
def phi():
    return random_embedding(CIFAR, jax.random.key(0))


def state(embedding, prefix="features."):
    """The weights under torchvision's names and in its layout."""
    found = {}
    for l, k in enumerate(FEATURES):
        layer = embedding.params[f"conv{l + 1}"]
        found[f"{prefix}{k}.weight"] = np.asarray(layer["kernel"]).transpose(3, 2, 0, 1)
        found[f"{prefix}{k}.bias"] = np.asarray(layer["bias"])
    return found


class Written:
    """A tensor as torch pickles it: a call of its rebuilding function on a storage."""

    def __init__(self, key, array):
        self.key, self.array = str(key), np.asarray(array)

    def __reduce__(self):
        strides = tuple(s // self.array.itemsize for s in self.array.strides)
        arguments = (Storage(self.key, self.array), 0, self.array.shape, strides, False, {})
        return sys.modules["torch._utils"]._rebuild_tensor_v2, arguments


class Storage:
    def __init__(self, key, array):
        self.key, self.array = key, array


class Pickler(pickle.Pickler):
    def persistent_id(self, obj):
        if not isinstance(obj, Storage):
            return None
        kind = {"float32": "FloatStorage", "float16": "HalfStorage", "int64": "LongStorage"}
        storage = getattr(sys.modules["torch"], kind[obj.array.dtype.name])
        return "storage", storage, obj.key, "cpu", obj.array.size


@pytest.fixture
def torch(monkeypatch):
    """As much of torch as a pickle names."""
    module, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    for name in ("FloatStorage", "HalfStorage", "LongStorage"):
        setattr(module, name, type(name, (), {"__module__": "torch"}))

    def rebuild(*arguments):
        raise AssertionError("the reader must not call what a pickle names")

    rebuild.__module__, rebuild.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    utils._rebuild_tensor_v2 = rebuild
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setitem(sys.modules, "torch._utils", utils)
    return module


def pickled(value):
    stream = io.BytesIO()
    Pickler(stream, protocol=2).dump(value)
    return stream.getvalue()


def new_file(path, value, arrays):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", pickled(value))
        archive.writestr("model/byteorder", "little")
        for key, array in arrays.items():
            archive.writestr(f"model/data/{key}", np.ascontiguousarray(array).tobytes())


def old_file(path, value, arrays):
    parts = [pickle.dumps(v, 2) for v in (MAGIC, 1001, {"little_endian": True})]
    parts += [pickled(value), pickle.dumps(list(arrays), 2)]
    for array in arrays.values():
        parts.append(struct.pack("<q", array.size) + np.ascontiguousarray(array).tobytes())
    path.write_bytes(b"".join(parts))


def torch_file(path, arrays, write=new_file, wrap=lambda tensors: tensors):
    arrays = {k: np.ascontiguousarray(v) for k, v in arrays.items()}
    keys = {str(k): array for k, array in enumerate(arrays.values())}
    tensors = collections.OrderedDict(
        (name, Written(k, array)) for k, (name, array) in enumerate(arrays.items())
    )
    write(path, wrap(tensors), keys)


@pytest.mark.parametrize("write", [new_file, old_file])
def test_files_of_torch_are_read_without_it(tmp_path, phi, torch, write):
    path = tmp_path / "alexnet.pth"
    head = {"classifier.6.weight": np.ones((2, 3), np.float16), "steps": np.arange(3)}
    torch_file(path, {**state(phi), **head}, write)
    assert load_embedding(path).digest == phi.digest
    found = read_tensors(path)
    assert found["classifier.6.weight"].dtype == np.float16
    np.testing.assert_array_equal(found["steps"], [0, 1, 2])


def test_the_checkpoint_of_perceptual_advex_nests_the_weights(tmp_path, phi, torch):
    path = tmp_path / "alexnet_cifar.pt"
    torch_file(
        path,
        {**state(phi, "model.features."), "layer1.0.0.weight": np.zeros(3, np.float32)},
        wrap=lambda tensors: {"model": tensors, "epoch": 7, "optimizer": [1.5, None]},
    )
    assert load_embedding(path).digest == phi.digest


def test_strides_and_shared_storages_are_respected(tmp_path, torch):
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    new_file(tmp_path / "t.pt", {"a": Written(0, array.T), "b": Written(0, array)}, {"0": array})
    found = read_tensors(tmp_path / "t.pt")
    np.testing.assert_array_equal(found["a"], array.T)
    np.testing.assert_array_equal(found["b"], array)
    for shape, strides in (((3, 5), (4, 1)), ((100, 100), (0, 0)), ((2,), (-1,)), ((2, 2), (1,))):
        bad = types.SimpleNamespace(shape=shape, strides=tuple(4 * s for s in strides))
        written = Written(0, array)
        written.array = bad
        bad.itemsize, bad.dtype, bad.size = 4, array.dtype, 12
        new_file(tmp_path / "bad.pt", {"a": written}, {"0": array})
        with pytest.raises(ValueError, match="a tensor"):
            read_tensors(tmp_path / "bad.pt")


class Attack:
    """Runs a command where it is unpickled."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("write", [new_file, old_file])
def test_a_pickle_with_code_is_refused_and_not_run(tmp_path, torch, write):
    import os

    witness = tmp_path / "ran"
    for attack in (
        Attack(os.system, f"touch {witness}"),
        Attack(eval, f"open({str(witness)!r}, 'w')"),
        Attack(getattr, Written, "__init__"),
        Attack(open, str(witness), "w"),
        Attack(types.SimpleNamespace),
    ):
        path = tmp_path / "attack.pt"
        write(path, {"a": Written(0, np.ones(2, np.float32)), "b": attack}, {"0": np.ones(2)})
        with pytest.raises(ValueError, match="which is no tensor: refused"):
            read_tensors(path)
        with pytest.raises(ValueError, match="refused"):
            load_embedding(path)
    assert not witness.exists()


def test_the_first_pickles_of_an_old_file_are_restricted_too(tmp_path):
    path = tmp_path / "attack.pt"
    path.write_bytes(pickle.dumps(Attack(open, str(tmp_path / "ran"), "w"), 2))
    with pytest.raises(ValueError, match="refused"):
        read_tensors(path)
    assert not (tmp_path / "ran").exists()


def test_an_npz_with_objects_is_refused(tmp_path):
    np.savez(tmp_path / "objects.npz", w0=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        read_tensors(tmp_path / "objects.npz")


def safetensors_file(path, arrays, dtypes):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, array in arrays.items():
        numbers = np.ascontiguousarray(array).tobytes()
        offsets = [len(data), len(data) + len(numbers)]
        header[name] = {"dtype": dtypes, "shape": array.shape, "data_offsets": offsets}
        data += numbers
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_safetensors_and_plain_arrays(tmp_path, phi):
    safetensors_file(tmp_path / "a.safetensors", state(phi), "F32")
    assert load_embedding(tmp_path / "a.safetensors").digest == phi.digest
    half = {k: np.asarray(jnp.asarray(v, jnp.bfloat16)) for k, v in state(phi).items()}
    safetensors_file(tmp_path / "b.safetensors", half, "BF16")
    found = load_embedding(tmp_path / "b.safetensors").params["conv2"]["kernel"]
    np.testing.assert_allclose(found, phi.params["conv2"]["kernel"], rtol=1e-2)
    plain = dict(zip([f"{n}{l}" for l in range(5) for n in "wb"], state(phi).values(), strict=True))
    np.savez(tmp_path / "plain.npz", **plain, fcw=np.ones((10, 1024)))
    assert load_embedding(tmp_path / "plain.npz").digest == phi.digest


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"words",
        b"\x80\x02.",
        b"PK\x03\x04" + bytes(30),
        struct.pack("<Q", 10**9) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 60) + b'{"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 9]}}',
        pickle.dumps(MAGIC, 2),
        pickle.dumps([1, 2, 3], 2),
    ],
)
def test_damaged_files_are_an_error_that_names_the_file(tmp_path, content):
    (tmp_path / "broken.pt").write_bytes(content)
    with pytest.raises(ValueError, match=r"broken\.pt: no file of arrays"):
        read_tensors(tmp_path / "broken.pt")
    with pytest.raises(FileNotFoundError):
        read_tensors(tmp_path / "missing.pt")


def test_a_file_cut_short_is_an_error(tmp_path, torch, phi):
    for name, write in (("new.pt", new_file), ("old.pt", old_file)):
        torch_file(tmp_path / name, {"features.0.bias": np.ones(64, np.float32)}, write)
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[:-40])
        with pytest.raises(ValueError, match="no file of arrays"):
            read_tensors(tmp_path / name)


def test_the_project_s_own_format_keeps_everything(tmp_path, phi):
    rng = np.random.default_rng(0)
    weights = tuple(jnp.asarray(rng.random(c), jnp.float32) for _, c in phi.blocks)
    wide = random_embedding(CIFAR, jax.random.key(1), size=(48, 40), eps=EPS)
    wide = type(wide)(wide.params, weights, CIFAR, (48, 40), EPS)
    digest = save_embedding(tmp_path / "wide.npz", wide, settings={"epochs": 30, "seed": [1, 2]})
    again = load_embedding(tmp_path / "wide.npz")
    assert again.digest == digest == wide.digest
    assert (again.size, again.eps, again.architecture) == ((48, 40), EPS, CIFAR)
    assert load_settings(tmp_path / "wide.npz") == {"epochs": 30, "seed": [1, 2]}
    assert load_embedding(tmp_path / "wide.npz", eps=0, size=(32, 32)).eps == 0

    half = save_embedding(tmp_path / "half.npz", phi, dtype="float16")
    found = load_embedding(tmp_path / "half.npz")
    assert found.digest == half != phi.digest
    assert save_embedding(tmp_path / "again.npz", found, dtype="float16") == half
    for name, array in arrays_of(found).items():
        np.testing.assert_array_equal(array, arrays_of(phi)[name].astype(np.float16))
    assert (tmp_path / "half.npz").stat().st_size < 0.6 * (tmp_path / "wide.npz").stat().st_size


def test_linear_weights_are_read_and_checked(tmp_path, phi):
    rng = np.random.default_rng(1)
    linear = {
        f"lin{l}.model.1.weight": rng.random((1, c, 1, 1)).astype(np.float32)
        for l, (_, c) in enumerate(phi.blocks)
    }
    names = {f"net.slice{l + 1}.{k}.": f"features.{k}." for l, k in enumerate(FEATURES)}
    lpips = {new + part: state(phi)[old + part] for new, old in names.items() for part in
             ("weight", "bias")}  # fmt: skip
    np.savez(tmp_path / "lpips.npz", **lpips, **linear)
    found = load_embedding(tmp_path / "lpips.npz", linear=tmp_path / "lpips.npz")
    for l, weights in enumerate(found.linear):
        np.testing.assert_array_equal(weights, linear[f"lin{l}.model.1.weight"].ravel())
    assert load_embedding(tmp_path / "lpips.npz").linear is None

    np.savez(tmp_path / "none.npz", **lpips)
    with pytest.raises(ValueError, match=r"no key ends with lin0\.model\.1\.weight"):
        load_embedding(tmp_path / "lpips.npz", linear=tmp_path / "none.npz")
    linear["lin3.model.1.weight"][0, 5] = -0.25
    np.savez(tmp_path / "negative.npz", **linear)
    with pytest.raises(ValueError, match=r"lin3\.model\.1\.weight holds -0\.25"):
        load_embedding(tmp_path / "lpips.npz", linear=tmp_path / "negative.npz")
    linear["lin3.model.1.weight"] = np.ones((256,))
    np.savez(tmp_path / "flat.npz", **linear)
    with pytest.raises(ValueError, match=r"lin3\.model\.1\.weight has shape \(256,\)"):
        load_embedding(tmp_path / "lpips.npz", linear=tmp_path / "flat.npz")


def test_errors_name_the_key(tmp_path, phi):
    def refused(arrays, message):
        np.savez(tmp_path / "bad.npz", **arrays)
        with pytest.raises(ValueError, match=message):
            load_embedding(tmp_path / "bad.npz")

    good = state(phi)
    refused({"a": np.ones(2)}, r"no known names of weights: it holds a\. Known: features\.0\.weig")
    missing = {k: v for k, v in good.items() if k != "features.8.bias"}
    refused(missing, r"features\.8\.bias is missing: it holds features\.0\.weight, ")
    turned = {**good, "features.3.weight": good["features.3.weight"].transpose(2, 3, 1, 0)}
    refused(turned, r"features\.3\.weight has shape \(3, 3, 64, 192\), the network needs \(192, 64")
    spoilt = {**good, "features.10.bias": np.full(256, np.nan, np.float32)}
    refused(spoilt, r"features\.10\.bias holds a number that is not finite")
    refused({**good, "features.0.weight": np.ones((64, 3))}, r"features\.0\.weight has shape")
    np.savez(tmp_path / "good.npz", **good)
    with pytest.raises(ValueError, match="leave nothing of layer"):
        load_embedding(tmp_path / "good.npz", size=(2, 2))
    with pytest.raises(ValueError, match="eps must be at least 0"):
        load_embedding(tmp_path / "good.npz", eps=-1)
    with pytest.raises(ValueError, match="dtype must be"):
        save_embedding(tmp_path / "x.npz", phi, dtype="int8")
    params = {layer: dict(values) for layer, values in phi.params.items()}
    params["conv1"]["bias"] = np.full(64, 1e6, np.float32)
    huge = type(phi)(params, None, CIFAR, (32, 32))
    with pytest.raises(ValueError, match=r"conv1\.bias holds numbers that are not finite in float"):
        save_embedding(tmp_path / "x.npz", huge, dtype="float16")


def test_the_network_is_told_by_its_kernels(tmp_path):
    big = random_embedding(IMAGENET, jax.random.key(3), size=(64, 64))
    np.savez(tmp_path / "big.npz", **state(big))
    found = load_embedding(tmp_path / "big.npz", size=(64, 64))
    assert found.architecture == IMAGENET
    assert found.digest == big.digest
