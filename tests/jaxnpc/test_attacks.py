"""No attack succeeds inside a certificate, and no failing attack harms its neighbours."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxnpc import attacks
from jaxnpc.attacks import attack, logits, tighten
from jaxnpc.certify import certify
from jaxnpc.datasets import digits
from jaxnpc.decisions import leaves, predict
from jaxnpc.domains import Box, Unbounded
from jaxnpc.prototypes import prototype_classifier

pytest.importorskip("foolbox", reason="needs the extra attacks")


def handwritten(distance, per_class=3, points=12):
    """Digits as prototypes, other digits as points."""
    data = digits()
    chosen = np.concatenate([np.flatnonzero(data.labels == c)[:per_class] for c in range(10)])
    classifier = prototype_classifier(data.points[chosen], data.labels[chosen], distance=distance)
    return classifier, data.points[-points:], data.labels[-points:]


@pytest.fixture
def shorter(monkeypatch):
    """The attacks of the tables with fewer steps."""
    for table in (attacks.MINIMISING, attacks.FROM_STARTS, attacks.WITHIN):
        for norm, chosen in table.items():
            fewer = {name: dict.fromkeys(options, 25) for name, options in chosen.items()}
            monkeypatch.setitem(table, norm, fewer)


@pytest.mark.usefixtures("shorter")
@pytest.mark.parametrize(
    ("p", "q", "domain"),
    [
        (2, 1, Box(0, 1)),
        (2, 2, Unbounded()),
        (2, math.inf, Box(0, 1)),
        (1, math.inf, Unbounded()),
        (math.inf, 2, Box(0, 1)),
    ],
)
def test_no_attack_succeeds_inside_a_certificate(p, q, domain):
    classifier, points, labels = handwritten(p)
    c = certify(classifier, points, labels, q=q, domain=domain)
    missed = c.predicted != c.label
    assert not missed.all()
    radius = float(np.median(c.radius[~missed]))
    found = attack(classifier, points, labels, q=q, domain=domain, starts=c.witness, radii=[radius])
    assert (found.distance >= c.radius).all()
    assert (found.distance[missed] == 0).all()
    assert not found.failed.any()
    hit = np.isfinite(found.distance)
    assert leaves(classifier, found.points[hit], c.label[hit]).all()
    if isinstance(domain, Box):
        assert ((found.points >= 0) & (found.points <= 1)).all()
    tighter = tighten(c, found)
    assert (tighter.upper <= c.upper).all()
    assert (tighter.radius <= tighter.upper).all()
    if c.settings["method"] == "exact":
        # The adversary is one to be reckoned with: it finds the minimum of nearly every point.
        assert np.median(found.distance[~missed] / c.radius[~missed]) < 1.01


def nearest_rival(see, x, y):
    """An attack as another library might bring it: jump to the mean of all that is not y."""
    gradient = jax.grad(lambda x: see(x)[jnp.arange(len(y)), y].sum())(x)
    return x - 50 * gradient


def test_a_function_is_an_attack_and_a_failure_costs_one_point():
    classifier, points, labels = handwritten(2, points=20)
    right = np.flatnonzero(np.array(predict(classifier, points)) == labels)[:4]
    points, labels = points[right], labels[right]
    poison = points[1]

    def touchy(see, x, y):
        if (np.asarray(x) == poison).all(axis=1).any():
            raise ValueError("cannot start here")
        return nearest_rival(see, x, y)

    well = attack(classifier, points, labels, attacks=[nearest_rival])
    ill = attack(classifier, points, labels, attacks=[touchy])
    assert ill.failed.tolist() == [int(k == 1) for k in range(4)]
    assert ill.distance[1] == math.inf
    np.testing.assert_array_equal(ill.points[1], poison)
    others = np.arange(4) != 1
    np.testing.assert_allclose(ill.distance[others], well.distance[others], rtol=1e-5)
    assert well.names == ("nearest_rival",)
    assert np.isfinite(well.distance).any()


def test_success_is_not_a_matter_of_rounding():
    """A point of the boundary, or one that float32 misplaces, is no success."""
    classifier = prototype_classifier([[0.0, 0], [2, 0]], ["a", "b"])
    points = np.array([[0.5, 0.0]])
    on = attack(classifier, points, ["a"], attacks=[lambda see, x, y: np.array([[1.0, 0]])])
    assert on.distance[0] == math.inf
    nan = attack(classifier, points, ["a"], attacks=[lambda see, x, y: np.array([[np.nan, 0]])])
    assert nan.distance[0] == math.inf
    beyond = attack(classifier, points, ["a"], attacks=[lambda see, x, y: np.array([[1.5, 0]])])
    assert 0.5 < beyond.distance[0] < 0.5001, "pulled back to the boundary"


def test_points_that_need_no_attack():
    classifier = prototype_classifier([[0.0, 0], [2, 0]], ["a", "b"])

    def never(see, x, y):
        raise AssertionError(f"called for {x}")

    found = attack(classifier, np.array([[2.0, 0], [np.nan, 0]]), ["a", "a"], attacks=[never])
    assert found.distance.tolist() == [0, math.inf]
    assert found.failed.tolist() == [0, 0]


@pytest.mark.parametrize("p", [1, 2, math.inf])
def test_logits_have_finite_gradients_on_a_prototype(p):
    classifier, _, _ = handwritten(p)
    at = classifier.prototypes[:4]
    gradient = jax.jacobian(lambda x: logits(classifier, x))(at)
    assert jnp.isfinite(gradient).all()
    assert (jnp.argmax(logits(classifier, at), 1) == classifier.labels[:4]).all()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"q": 3}, ValueError, "q must be 1, 2 or float('inf'), got 3"),
        ({"attacks": ["PGD"]}, TypeError, "attacks holds 'PGD'"),
        ({"starts": np.zeros((1, 2))}, ValueError, "starts has shape (1, 2)"),
        ({"x": np.full((12, 64), 2.0)}, ValueError, "x[0, 0] is 2.0"),
        ({"labels": [1]}, ValueError, "labels has 1 entries for 12"),
    ],
)
def test_arguments_that_do_not_fit(change, error, message):
    classifier, points, labels = handwritten(2)
    arguments = {"x": points, "labels": labels, "domain": Box(0, 1), **change}
    with pytest.raises(error, match=re.escape(message)):
        attack(classifier, **arguments)


def test_a_fixed_size_needs_radii():
    import foolbox

    classifier, points, labels = handwritten(2)
    pgd = foolbox.attacks.L2PGD(steps=2)
    with pytest.raises(ValueError, match="radii is empty, but L2ProjectedGradientDescentAttack"):
        attack(classifier, points, labels, attacks=[pgd])
    found = attack(classifier, points, labels, attacks=[pgd], radii=[0.1, 5.0])
    assert found.names[1] == "L2ProjectedGradientDescentAttack@5"
    assert (found.attack == 1).any()


def test_the_seed_decides():
    import foolbox

    classifier, points, labels = handwritten(2, points=4)
    noise = [foolbox.attacks.L2AdditiveGaussianNoiseAttack()]
    runs = [
        attack(classifier, points, labels, attacks=noise, radii=[9.0], seed=s).points
        for s in (0, 0, 1)
    ]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert (runs[0] != runs[2]).any()


def test_every_norm_has_attacks():
    for table in (attacks.MINIMISING, attacks.FROM_STARTS, attacks.WITHIN):
        assert set(table) == {1, 2, math.inf}
