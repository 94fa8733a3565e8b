import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmpd import interpolants, losses

SMOOTH = {
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "softplus": jax.nn.softplus,
}
EVERYWHERE = np.concatenate(
    [np.linspace(-12, 12, 200_001), np.geomspace(12, 1e30, 500), -np.geomspace(12, 1e30, 500)]
)


def distance(smooth, pieces):
    """The greatest distance at dense points and far out, less what float64 cannot tell there."""
    with jax.enable_x64(True):
        x = jnp.asarray(EVERYWHERE)
        return float(jnp.max(jnp.abs(smooth(x) - pieces(x)) - 1e-14 * jnp.abs(x)))


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("error", [0.2, 1e-2, 1e-3])
def test_the_bound_holds_everywhere_and_is_not_wasted(name, error):
    function, stated = getattr(interpolants, name)(error)
    off = distance(SMOOTH[name], function)
    assert off <= stated <= error
    assert off >= 0.8 * error


@pytest.mark.parametrize("name", SMOOTH)
def test_named_interpolants_are_within_a_hundredth(name):
    f = interpolants.INTERPOLANTS[name]
    assert distance(SMOOTH[name], f) <= 1e-2
    assert f.monotone == (name != "gelu")


def test_nodes_that_are_kept_are_those_that_the_search_finds(monkeypatch):
    kept = {name: getattr(interpolants, name)() for name in SMOOTH}
    monkeypatch.setattr(interpolants, "_known", lambda name, error: None)
    for name, (function, error) in kept.items():
        found = getattr(interpolants, name)()
        np.testing.assert_allclose(function.kinks, found.function.kinks, rtol=1e-6, atol=1e-6)
        assert error == pytest.approx(found.error, rel=1e-6)
    monkeypatch.setattr(losses, "LOGISTIC_NODES", None)
    found = losses.logistic.__wrapped__()
    np.testing.assert_allclose(losses.LOGISTIC.kinks, found.kinks, rtol=1e-6)
    assert losses.LOGISTIC.error == pytest.approx(found.error, rel=1e-6)


@pytest.mark.parametrize(("degree", "constant"), [(1, 1 / 8), (2, 1 / (72 * np.sqrt(3)))])
def test_the_pieces_are_about_as_few_as_any_interpolant_needs(degree, constant):
    """Asymptotically the integral of |f^(d+1)|^(1/(d+1)) times (C / error)^(1/(d+1))."""
    order, error = degree + 1, 1e-4
    s = interpolants._sigmoid
    derivative = {
        1: lambda x: s(x) * s(-x),
        2: lambda x: s(x) * s(-x) * (1 - 2 * s(x)),
    }[degree]
    pieces = interpolants.interpolate_pieces(
        lambda x: np.logaddexp(0, x), error, ((0.0, 0.0), (1.0, 0.0)), degree, derivative
    )
    x = np.linspace(pieces.kinks[0], pieces.kinks[-1], 100_001)
    mass = np.trapezoid(np.abs(derivative(x)) ** (1 / order), x)
    assert len(pieces.kinks) <= 1.05 * mass * (constant / error) ** (1 / order) + 2


@pytest.mark.parametrize("error", [0.1, 1e-2, 1e-3, 1e-5])
def test_the_logistic_loss_is_within_its_error(error):
    loss = losses.logistic(error)
    off = distance(lambda m: jax.nn.softplus(-m), loss.pieces)
    assert off <= loss.error <= error
    assert off >= 0.9 * error
    assert loss.convex_pieces
    # Continuous, whatever the degree.
    with jax.enable_x64(True):
        kinks = jnp.asarray(loss.kinks)
        np.testing.assert_allclose(
            loss.pieces(kinks), loss.pieces(jnp.nextafter(kinks, jnp.inf)), rtol=1e-9
        )


def test_derivatives_are_found_where_none_are_given():
    own = interpolants.interpolate(jnp.tanh, 1e-2)
    given = interpolants.tanh(1e-2)
    np.testing.assert_allclose(own.function.kinks, given.function.kinks, atol=1e-6)
    smooth = losses.Smooth(lambda e: jnp.sqrt(1 + e * e) - 1, *[jnp.tanh] * 3)
    pseudo_huber = losses.interpolated_loss(smooth, 1e-2, ((-1.0, -1.0), (1.0, -1.0)))
    assert distance(smooth.value, pseudo_huber.pieces) <= pseudo_huber.error <= 1e-2
    assert not pseudo_huber.margin


def test_chords_make_a_loss_too():
    smooth = losses.LOGISTIC.smooth
    assert smooth is not None
    loss = losses.interpolated_loss(smooth, 1e-2, ((-1.0, 0.0), (0.0, 0.0)), margin=True, degree=1)
    assert loss.degree == 1
    assert distance(smooth.value, loss.pieces) <= loss.error <= 1e-2


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="error must be positive, got -1"):
        interpolants.interpolate(jnp.tanh, -1.0)
    with pytest.raises(ValueError, match="asymptotes: the function is still"):
        interpolants.interpolate(jnp.exp, 0.1)
    with pytest.raises(ValueError, match="degree must be 1 or 2, got 3"):
        interpolants.interpolate_pieces(jnp.tanh, 0.1, ((0.0, -1.0), (0.0, 1.0)), 3)
    with pytest.raises(ValueError, match="ask for a larger one"):
        interpolants.tanh(1e-9)
