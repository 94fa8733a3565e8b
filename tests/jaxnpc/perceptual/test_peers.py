"""LPIPS values against the packages that define them; skipped where these are not installed."""

import warnings

import numpy as np
import pytest

from jaxnpc.perceptual.embedding import EPS, embed, lpips
from jaxnpc.perceptual.weights import load_embedding

torch = pytest.importorskip("torch")
SIDE = 64


@pytest.fixture(autouse=True)
def theirs():
    """Torchvision and torchmetrics warn of their own ways."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def images(seed=0, n=6, side=SIDE):
    rng = np.random.default_rng(seed)
    coarse = rng.random((2, n, side // 8, side // 8, 3)).repeat(8, axis=2).repeat(8, axis=3)
    return (0.7 * coarse + 0.3 * rng.random(coarse[..., :1].shape)).astype(np.float32)


def stirred(module):
    """Random convolutions whose activations do not shrink from layer to layer."""
    torch.manual_seed(0)
    for parameter in module.parameters():
        if parameter.ndim == 4 and parameter.shape[1] > 1 and parameter.shape[0] > 1:
            torch.nn.init.kaiming_normal_(parameter)
        elif parameter.ndim == 1:
            torch.nn.init.normal_(parameter, std=0.1)
    return module.eval()


def values(module, x, y):
    planes = (torch.from_numpy(v.transpose(0, 3, 1, 2).copy()) * 2 - 1 for v in (x, y))
    with torch.no_grad():
        return module(*planes).double().numpy().ravel()


@pytest.mark.parametrize("weighted", [False, True])
def test_the_lpips_package_returns_the_squares_of_our_distances(tmp_path, weighted):
    package = pytest.importorskip("lpips")
    module = stirred(
        package.LPIPS(net="alex", lpips=weighted, pnet_rand=True, pretrained=True, verbose=False)
    )
    file = tmp_path / "lpips.pth"
    torch.save(module.state_dict(), file)
    x, y = images()
    want = values(module, x, y)
    assert want.min() > 1e-3
    linear = file if weighted else None
    for eps in (0.0, EPS):
        phi = load_embedding(file, linear=linear, size=(SIDE, SIDE), eps=eps)
        gap = np.abs(lpips(phi, x, y) ** 2 - want).max()
        print(f"largest difference from lpips: {gap:.2e} of {want.max():.2f}")
        assert gap < 1e-5


def test_the_linear_layers_that_lpips_ships_are_read_without_pickle(tmp_path):
    package = pytest.importorskip("lpips")
    module = stirred(package.LPIPS(net="alex", pnet_rand=True, verbose=False))
    torch.save(module.net.state_dict(), tmp_path / "net.pth")
    state = {f"net.{key}": value for key, value in module.net.state_dict().items()}
    torch.save(state, tmp_path / "net.pth", _use_new_zipfile_serialization=False)
    shipped = package.__path__[0] + "/weights/v0.1/alex.pth"
    phi = load_embedding(tmp_path / "net.pth", linear=shipped, size=(SIDE, SIDE))
    x, y = images(1)
    assert np.abs(lpips(phi, x, y) ** 2 - values(module, x, y)).max() < 1e-5


def test_torchmetrics_agrees(tmp_path):
    source = pytest.importorskip("torchmetrics.functional.image.lpips")
    module = stirred(source._LPIPS(net="alex", pnet_rand=True))
    torch.save(module.state_dict(), tmp_path / "metrics.pt")
    phi = load_embedding(tmp_path / "metrics.pt", linear=tmp_path / "metrics.pt", size=(SIDE, SIDE))
    x, y = images(2)
    gap = np.abs(lpips(phi, x, y) ** 2 - values(module, x, y)).max()
    print(f"largest difference from torchmetrics: {gap:.2e}")
    assert gap < 1e-5


def test_torchvision_s_file_and_safetensors_give_one_metric(tmp_path):
    models = pytest.importorskip("torchvision.models")
    safetensors = pytest.importorskip("safetensors.torch")
    net = models.alexnet(weights=None).eval()
    torch.save(net.state_dict(), tmp_path / "new.pth")
    torch.save(net, tmp_path / "module.pth")
    torch.save(net.state_dict(), tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    safetensors.save_file(net.state_dict(), tmp_path / "some.safetensors")
    found = {
        load_embedding(tmp_path / name, size=(SIDE, SIDE)).digest
        for name in ("new.pth", "old.pth", "some.safetensors")
    }
    assert len(found) == 1
    with pytest.raises(ValueError, match=r"asks for torchvision\.models\.alexnet\.AlexNet"):
        load_embedding(tmp_path / "module.pth")
    phi = load_embedding(tmp_path / "new.pth", size=(224, 224))
    x = images(3, n=1, side=224)[0]
    z = torch.from_numpy(x.transpose(0, 3, 1, 2).copy())
    with torch.no_grad():
        z = (z - torch.tensor([0.485, 0.456, 0.406])[:, None, None]) / torch.tensor(
            [0.229, 0.224, 0.225]
        )[:, None, None]
        parts = []
        for layer in net.features[:-1]:
            z = layer(z)
            if isinstance(layer, torch.nn.ReLU):
                unit = z / z.norm(dim=1, keepdim=True).clamp_min(1e-30)
                parts.append((unit / (z.shape[2] * z.shape[3]) ** 0.5).permute(0, 2, 3, 1))
        want = torch.cat([p.reshape(1, -1) for p in parts], 1).numpy()
    np.testing.assert_allclose(embed(phi, x), want, atol=1e-5)
