"""The classifier: labels of any kind, ties by class, scores with usable gradients, clear errors."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxnpc import decisions, prototypes
from jaxnpc.decisions import predict
from jaxnpc.prototypes import (
    class_indices,
    predict_index,
    prototype_classifier,
    scores,
)

NORMS = (1, 2, math.inf)
SQUARE = np.array([[0.0, 0.0], [0.0, 2.0], [2.0, 0.0], [2.0, 2.0]], np.float32)


@pytest.mark.parametrize(
    ("labels", "order"),
    [
        (["b", "a", "b", "a"], ("a", "b")),
        ([7, -3, 7, -3], (-3, 7)),
        (np.array([7, -3, 7, -3]), (-3, 7)),
        (jnp.array([7, -3, 7, -3]), (-3, 7)),
        (np.array(["x", "yy", "x", "yy"]), ("x", "yy")),
        ([(1, 2), (0, 5), (1, 2), (0, 5)], ((0, 5), (1, 2))),
        ([2, "2", 2, "2"], (2, "2")),
        ([None, False, None, False], (None, False)),
    ],
)
def test_labels_of_any_hashable_kind(labels, order):
    classifier = prototype_classifier(SQUARE, labels)
    assert set(classifier.classes) == set(order)
    if all(type(name) is type(order[0]) for name in order):
        assert classifier.classes == order
    assert predict(classifier, SQUARE) == [
        name.item() if isinstance(name, np.generic | jax.Array) else name for name in labels
    ]
    back = class_indices(classifier, labels)
    assert back.tolist() == np.asarray(classifier.labels).tolist()


@pytest.mark.parametrize("p", NORMS)
def test_a_tie_goes_to_the_first_class_whatever_the_order(p):
    for flip in (slice(None), slice(None, None, -1)):
        classifier = prototype_classifier(
            np.array([[0.0], [1.0]])[flip], ["b", "a"][flip], distance=p
        )
        assert predict(classifier, [[0.5]]) == ["a"]
        assert predict_index(classifier, jnp.array([[0.5]])).tolist() == [0]
        named = prototype_classifier(
            np.array([[0.0], [1.0]])[flip], ["b", "a"][flip], distance=p, classes=["b", "a"]
        )
        assert predict(named, [[0.5]]) == ["b"]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(NORMS))
def test_the_order_of_prototypes_does_not_matter(seed, p):
    rng = np.random.default_rng(seed)
    w = rng.integers(-2, 3, size=(11, 3)).astype(np.float32)  # full of ties
    labels, x = rng.permutation(np.arange(11) % 3), rng.integers(-2, 3, (8, 3)).astype(np.float32)
    shuffle = rng.permutation(11)
    one = prototype_classifier(w, labels, distance=p)
    two = prototype_classifier(w[shuffle], labels[shuffle], distance=p)
    assert predict(one, x) == predict(two, x)
    chex.assert_trees_all_equal(predict_index(one, x), predict_index(two, x))
    chex.assert_trees_all_equal(scores(one, x), scores(two, x))
    gap = np.linalg.norm(x[:, None] - w, ord=p, axis=-1)
    by_class = np.stack([gap[:, labels == c].min(axis=1) for c in range(3)], axis=1)
    np.testing.assert_allclose(scores(one, x), -by_class, rtol=1e-6)
    assert predict(one, x) == by_class.argmin(axis=1).tolist()


def test_prediction_is_judged_in_float64():
    # Both distances round to the same float32.
    w = np.array([[0.0], [2.0]], np.float32)
    classifier = prototype_classifier(w, ["left", "right"])
    x = np.array([[1 + 1e-12], [1 - 1e-12]])
    assert predict(classifier, x) == ["right", "left"]


def test_prediction_survives_the_cancellation_of_the_matrix_product():
    rng = np.random.default_rng(0)
    w = (1e3 + rng.normal(size=(40, 30))).astype(np.float32)
    x = (1e3 + rng.normal(size=(50, 30))).astype(np.float32)
    classifier = prototype_classifier(w, np.arange(40) % 4)
    gap = np.linalg.norm(x[:, None].astype(float) - w.astype(float), axis=-1)
    assert predict(classifier, x) == (gap.argmin(axis=1) % 4).tolist()


def test_one_nearest_neighbour_knows_its_training_set():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(300, 4, 5)).astype(np.float32), rng.integers(0, 5, 300)
    classifier = prototype_classifier(x, y)
    assert classifier.prototypes.shape == (300, 20)
    assert predict(classifier, x) == y.tolist()
    assert float(scores(classifier, x.reshape(300, 20)).max(axis=1).min()) == 0


def test_a_metric_is_the_l2_distance_of_images():
    rng = np.random.default_rng(2)
    w, a, x = (rng.normal(size=s).astype(np.float32) for s in ((10, 6), (3, 6), (20, 6)))
    with_metric = prototype_classifier(w, np.arange(10) % 2, metric=a)
    mapped = prototype_classifier(w @ a.T, np.arange(10) % 2)
    np.testing.assert_allclose(scores(with_metric, x), scores(mapped, x @ a.T), rtol=1e-4)
    assert predict(with_metric, x) == predict(mapped, x @ a.T)


def chebyshev_of_images(x, w):
    return jnp.max(jnp.abs(x[:, None] - w[None]), axis=(2, 3))


def test_a_callable_distance_sees_the_shapes_it_was_given():
    rng = np.random.default_rng(3)
    w, x = (rng.normal(size=(n, 2, 3)).astype(np.float32) for n in (6, 9))
    own = prototype_classifier(w, np.arange(6) % 3, distance=chebyshev_of_images)
    norm = prototype_classifier(w, np.arange(6) % 3, distance=math.inf)
    assert own.prototypes.shape == (6, 2, 3)
    assert predict(own, x) == predict(norm, x)
    np.testing.assert_allclose(scores(own, x), scores(norm, x), rtol=1e-6)


@pytest.mark.parametrize("p", NORMS)
def test_gradients_are_those_of_the_chosen_prototypes_and_finite(p):
    classifier = prototype_classifier(SQUARE, [0, 0, 1, 1], distance=p)
    x = jnp.array([[0.0, 0.0], [0.5, 0.25], [1.0, 1.0]])
    gradient = jax.grad(lambda x: scores(classifier, x)[:, 0].sum())(x)
    assert np.isfinite(gradient).all()
    assert gradient[0].tolist() == [0, 0] or p != 2
    step = 1e-2
    for l in range(2):
        e = jnp.zeros(2).at[l].set(step)
        change = (scores(classifier, x[1:2] + e) - scores(classifier, x[1:2] - e))[0, 0] / 2 / step
        np.testing.assert_allclose(gradient[1, l], change, atol=2e-3)


def test_scores_differentiate_with_respect_to_the_classifier():
    classifier = prototype_classifier(SQUARE, [0, 0, 1, 1], metric=np.eye(2, dtype=np.float32))
    x = jnp.array([[0.5, 0.25]])
    gradient = jax.grad(lambda c: scores(c, x)[0, 0], allow_int=True)(classifier)
    np.testing.assert_allclose(np.asarray(gradient.prototypes)[1:], 0, atol=0)
    np.testing.assert_allclose(
        gradient.prototypes[0], np.array([0.5, 0.25]) / np.hypot(0.5, 0.25), rtol=1e-6
    )
    assert np.isfinite(gradient.metric).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_points_that_are_not_finite_get_the_first_class(value):
    x = np.array([[2.0, 2.0], [value, 0.0]], np.float32)
    classifier = prototype_classifier(SQUARE, [0, 0, 1, 1])
    assert predict(classifier, x) == [1, 0]


def test_no_points():
    classifier = prototype_classifier(SQUARE, [0, 0, 1, 1])
    assert predict(classifier, np.zeros((0, 2))) == []
    assert scores(classifier, jnp.zeros((0, 2))).shape == (0, 2)


def test_blocks_of_one_shape_compile_once():
    classifier = prototype_classifier(SQUARE, [0, 0, 1, 1])
    decisions._bounds.clear_cache()
    rng = np.random.default_rng(4)
    for n in (33, 50, 64):
        predict(classifier, rng.normal(size=(n, 2)).astype(np.float32))
    assert decisions._bounds._cache_size() == 1


def test_it_is_a_pytree_that_jits_without_folding():
    classifier = prototype_classifier(SQUARE, ["a", "a", "b", "b"])
    leaves, structure = jax.tree.flatten(classifier)
    assert [leaf.shape for leaf in leaves] == [(4, 2), (4,)]
    assert jax.tree.unflatten(structure, leaves).classes == ("a", "b")


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((SQUARE[0], [0, 1]), {}, ValueError, r"prototypes has shape \(2,\)"),
        ((np.zeros((0, 2)), []), {}, ValueError, r"prototypes has shape \(0, 2\)"),
        ((np.zeros((2, 0)), [0, 1]), {}, ValueError, r"prototypes has shape \(2, 0\)"),
        (([["a"], ["b"]], [0, 1]), {}, TypeError, "prototypes must hold real numbers, got dtype"),
        ((SQUARE * 1j, range(4)), {}, TypeError, "prototypes must hold real numbers, got dtype"),
        (([[1.0], [1.0, 2.0]], [0, 1]), {}, TypeError, "prototypes must be an array"),
        ((SQUARE * np.nan, range(4)), {}, ValueError, r"prototypes\[0, 0\] is nan"),
        ((np.add(SQUARE, [0, np.inf]), range(4)), {}, ValueError, r"prototypes\[0, 1\] is inf"),
        ((SQUARE, [0, 1]), {}, ValueError, "labels has 2 entries for 4 prototypes"),
        ((SQUARE, [3] * 4), {}, ValueError, "all labels are 3: .* at least two classes"),
        ((SQUARE, [[0], [1], [0], [1]]), {}, TypeError, r"labels must be hashable, got \[0\]"),
        ((SQUARE, [0, 1, math.nan, 0]), {}, ValueError, "labels must equal themselves, got nan"),
        ((SQUARE, [0, 1, 0, 1]), {"classes": [0, 1, 2]}, ValueError, "class 2 has no prototype"),
        ((SQUARE, [0, 1, 0, 5]), {"classes": [0, 1]}, ValueError, "label 5 is not in classes"),
        ((SQUARE, [0, 1, 0, 1]), {"classes": [0, 1, 1]}, ValueError, "names one class twice"),
        ((SQUARE, [0, 1, 0, 1]), {"distance": 3}, ValueError, "distance must be 1, 2, .* got 3"),
        (
            (SQUARE, [0, 1, 0, 1]),
            {"distance": np.array([2])},
            ValueError,
            r"distance must be .* got array\(\[2\]\)",
        ),
        (
            (np.multiply(SQUARE, 1e39, dtype=float), [0, 1, 0, 1]),
            {},
            ValueError,
            r"prototypes\[1, 1\] is 2e\+39: beyond float32",
        ),
        ((SQUARE, [0, 1, 0, 1]), {"metric": np.eye(3)}, ValueError, r"metric has shape \(3, 3\)"),
        (
            (SQUARE, [0, 1, 0, 1]),
            {"metric": np.eye(2), "distance": 1},
            ValueError,
            "metric needs distance=2, got distance=1",
        ),
        (
            (SQUARE, [0, 1, 0, 1]),
            {"metric": np.full((1, 2), np.nan)},
            ValueError,
            r"metric\[0, 0\] is nan",
        ),
    ],
)
def test_errors_name_the_argument(arguments, options, error, message):
    with pytest.raises(error, match=message):
        prototype_classifier(*arguments, **options)


def test_errors_about_points_and_labels():
    classifier = prototype_classifier(SQUARE, ["a", "a", "b", "b"])
    with pytest.raises(ValueError, match=r"x has shape \(1, 3\), but the prototypes have 2"):
        predict(classifier, np.zeros((1, 3)))
    with pytest.raises(ValueError, match=r"x has shape \(2,\)"):
        predict(classifier, np.zeros(2))
    with pytest.raises(TypeError, match="x must hold real numbers"):
        predict(classifier, np.array([["a", "b"]]))
    with pytest.raises(ValueError, match="label 'c' of point 1 is none of the classes"):
        class_indices(classifier, ["a", "c"])


@pytest.mark.parametrize(
    ("dtype", "kept"),
    [
        (">f8", np.float64),
        (np.longdouble, np.float64),
        (">f4", np.float32),
        (np.float16, np.float32),
        (jnp.bfloat16, np.float32),
        (">i4", np.float32),
    ],
)
def test_numbers_keep_their_values_in_whatever_type_they_come(dtype, kept):
    x = np.array([[0.1, 0.7], [3.0, 5.0]]).astype(dtype)
    real = prototypes.real_array(x, "x")
    assert real.dtype == np.dtype(kept)
    assert real.dtype.isnative
    np.testing.assert_array_equal(real, x.astype(np.float64))


@pytest.mark.parametrize("value", [2**53 + 1, -(2**63), 2**64 - 1])
def test_integers_that_float64_cannot_hold_are_refused(value):
    with pytest.raises(ValueError, match=f"x holds an integer of size {abs(value)}"):
        prototypes.real_array(np.array([[value]]), "x")


@pytest.mark.parametrize("metric", [None, np.eye(2) * 1e10])
def test_points_whose_distances_overflow_raise_no_warning(metric):
    classifier = prototype_classifier(SQUARE, ["a", "a", "b", "b"], metric=metric)
    far = np.array([[1e200, 0], [1e308, -1e308], [1.5, 0]])
    assert predict(classifier, far)[2] == "b"
