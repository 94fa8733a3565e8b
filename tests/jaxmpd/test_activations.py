import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxmpd import activations

CLOSED_FORMS = {
    "leaky_hard_tanh": lambda x: np.where(
        np.abs(x) <= 1, x, np.sign(x) + 0.01 * (x - np.sign(x))
    ),  # eq. 41
    "hard_tanh": lambda x: np.clip(x, -1, 1),
    "relu": lambda x: np.maximum(x, 0),
    "leaky_relu": lambda x: np.maximum(x, 0.01 * x),
    "abs": np.abs,
    "hard_sigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "identity": lambda x: x,
}


@pytest.mark.parametrize("name", activations.ACTIVATIONS)
def test_named_activations_have_their_closed_forms(name):
    x = np.concatenate([np.linspace(-5, 5, 81), [-1e6, 1e6]]).astype(np.float32)
    f = activations.ACTIVATIONS[name]
    np.testing.assert_allclose(f(jnp.asarray(x)), CLOSED_FORMS[name](x), rtol=2e-6, atol=2e-6)
    away = x[~np.isin(x, f.kinks)]
    np.testing.assert_array_equal(jax.vmap(jax.grad(f))(away), f.slope(jnp.asarray(away)))
    assert hash(f) == hash(activations.piecewise_linear(f.kinks, f.slopes, (0.0, float(f(0.0)))))


@given(
    st.lists(st.integers(-20, 20), unique=True, max_size=5).map(sorted),
    st.lists(st.integers(-4, 4), min_size=6, max_size=6),
    st.integers(-25, 25),
    st.integers(-9, 9),
)
def test_any_kinks_and_slopes_make_a_continuous_function_through_the_anchor(kinks, slopes, x, y):
    f = activations.piecewise_linear(kinks, slopes[: len(kinks) + 1], anchor=(x, y))
    assert float(f(jnp.asarray(float(x)))) == y
    pieces = zip(f.slopes, f.offsets, strict=True)
    ends = [(m * k + o) for (m, o), k in zip(pieces, f.kinks, strict=False)]
    starts = [m * k + o for m, o, k in zip(f.slopes[1:], f.offsets[1:], f.kinks, strict=True)]
    assert ends == starts
    assert f.monotone == (all(m >= 0 for m in f.slopes) or all(m <= 0 for m in f.slopes))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0.0], [1.0]), "slopes has 1 entries, but 1 kinks separate 2 pieces"),
        (([1.0, 1.0], [1, 2, 3]), "kinks must strictly increase"),
        (([2.0, 1.0], [1, 2, 3]), "kinks must strictly increase"),
        (([float("inf")], [1, 2]), "must all be finite"),
        (([0.0], [1, float("nan")]), "must all be finite"),
    ],
)
def test_bad_data_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        activations.piecewise_linear(*arguments)
