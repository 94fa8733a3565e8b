"""The solvers of one sub-problem: rows in a box, in l2, l1 and linf."""

import functools
import math
from functools import partial

import daqp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog

from jaxnpc.exact.linear import nearest_linear
from jaxnpc.exact.quadratic import nearest_l2

NORMS = (1, 2, math.inf)
B, K, D = 160, 4, 6


def truth(v, c, low, high, q):
    k, d = v.shape
    if q == 2:
        sense = np.zeros(d + k, np.int32)
        upper, lower = np.concatenate([high, np.full(k, 1e30)]), np.concatenate([low, c])
        x, _, status, _ = daqp.solve(np.eye(d), np.zeros(d), v, upper, lower, sense)
        return np.linalg.norm(x) if status > 0 else math.inf
    if q == 1:
        a, b, cost = np.hstack([-v, v]), -c, np.ones(2 * d)
        bounds = np.c_[np.zeros(2 * d), np.concatenate([high, -low])]
    else:
        eye, one = np.eye(d), np.ones((d, 1))
        a = np.block([[-v, np.zeros((k, 1))], [eye, -one], [-eye, -one]])
        b, cost = np.concatenate([-c, np.zeros(2 * d)]), np.append(np.zeros(d), 1)
        bounds = np.c_[np.append(low, 0), np.append(high, np.inf)]
    result = linprog(cost, a, b, bounds=bounds, method="highs")
    return result.fun if result.status == 0 else math.inf


@pytest.fixture(scope="module")
def problems():
    """Generic rows and degenerate ones: integers, equal and absent rows, walls, no room, ties."""
    rng = np.random.default_rng(0)
    v = rng.normal(size=(B, K, D))
    c = np.abs(rng.normal(size=(B, K))) * rng.choice([0.3, 1, 2], size=(B, 1))
    v[::3], c[::3] = np.round(2 * v[::3]) / 2, np.round(2 * c[::3]) / 2
    v[::5, 1] = v[::5, 0]
    v[::4, :, 2] = 0
    v[::7, 3], c[::7, 3] = 0, -1
    c[1::2, 1] -= 1
    v[1::6, 0], c[1::6, 0] = np.sign(v[1::6, 0]), np.abs(c[1::6, 0])  # all coordinates tie
    low, high = -rng.choice([0, 0.5, 1, 3], size=(B, D)), rng.choice([0, 0.5, 1, 3], size=(B, D))
    return v, c, low, high


@functools.cache
def solver(q):
    one = nearest_l2 if q == 2 else partial(nearest_linear, maximum=q == math.inf)
    return jax.jit(jax.vmap(one))


def solve(q, problems):
    with jax.enable_x64(True):
        return [np.asarray(x) for x in solver(q)(*problems)]


def admissible(problems, step):
    """Which problems a step solves, rows and box."""
    v, c, low, high = problems
    lack = (c - np.einsum("bkd,bd->bk", v, step)).max(axis=1)
    return (lack < 1e-7) & np.all((step >= low - 1e-9) & (step <= high + 1e-9), axis=1)


@pytest.mark.parametrize("q", NORMS)
def test_agrees_with_a_generic_solver(q, problems):
    dual, step = solve(q, problems)
    assert dual.min() >= -1e-12
    kinds = {"infeasible": 0, "feasible": 0}
    for v, c, low, high, weights, x in zip(*problems, dual, step, strict=True):
        expected = truth(v, c, low, high, q)
        normal = weights @ v
        if math.isinf(expected):
            # The multipliers prove it: their combination cannot be met in the box.
            assert weights @ c > np.where(normal > 0, normal * high, normal * low).sum() - 1e-9
            assert weights.max() > 0
            kinds["infeasible"] += 1
            continue
        kinds["feasible"] += 1
        assert abs(np.linalg.norm(x, ord=q) - expected) <= 1e-8
        assert (c - v @ x).max() <= 1e-9
        assert np.all((x >= low - 1e-12) & (x <= high + 1e-12))
    assert min(kinds.values()) > 10


@pytest.mark.parametrize("q", NORMS)
def test_multipliers_attain_the_dual(q, problems):
    dual, step = solve(q, problems)
    v, c, low, high = problems
    met = admissible(problems, step)
    normal = np.einsum("bk,bkd->bd", dual, v)
    gain = np.einsum("bk,bk->b", dual, c)
    room = np.where(normal > 0, high, -low)
    a, size = np.abs(normal), np.linalg.norm(step, ord=q, axis=1)
    if q == 2:
        x = np.minimum(a, room)
        value = np.sqrt(np.maximum(2 * (gain - (a * x - x * x / 2).sum(axis=1)), 0))
    elif q == 1:
        value = gain - (np.maximum(a - 1, 0) * room).sum(axis=1)
    else:
        # At the radius found the combination can just be met.
        value = size * (gain >= (a * np.minimum(size[:, None], room)).sum(axis=1) - 1e-9)
    np.testing.assert_allclose(value[met], size[met], rtol=1e-7, atol=1e-7)
    assert met.sum() > 50


@pytest.mark.parametrize("q", NORMS)
def test_float32_reaches_its_own_precision(q, problems):
    _, exact = solve(q, problems)
    _, step = solver(q)(*[jnp.asarray(x, jnp.float32) for x in problems])
    met = admissible(problems, exact)
    sizes = [np.linalg.norm(np.asarray(x)[met], ord=q, axis=1) for x in (step, exact)]
    assert np.mean(np.abs(sizes[0] - sizes[1]) <= 1e-3 * (1 + sizes[1])) >= 0.98


@pytest.mark.parametrize("q", NORMS)
@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_scales(q, scale, problems):
    v, c, low, high = problems
    _, once = solve(q, problems)
    _, scaled = solve(q, (v / scale, c, low * scale, high * scale))
    met = admissible(problems, once)
    sizes = [np.linalg.norm(x[met], ord=q, axis=1) for x in (scaled / scale, once)]
    np.testing.assert_allclose(*sizes, rtol=1e-7, atol=1e-7)
