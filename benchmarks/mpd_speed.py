"""Hidden-parameter updates per second: the search without sorting against sorts.

A hidden parameter's update expands the loss along it (two knots a sample), finds the global
minimum and brings the residuals up to date. Four ways share expansion and bookkeeping and differ in
the search: ours (a histogram's bounds, then the few knots they leave), the sort of packed 64-bit
keys, `lax.sort` with the jumps as payload; and the same algorithm in plain NumPy, float32 as well.
Terrain, 500 hidden units, a fresh minibatch and fresh parameters each repeat.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import harness
from jaxmpd import LEAKY_HARD_TANH, Batch, init, minimize, minimize_convex_pieces
from jaxmpd.datasets import Standardizer, terrain
from jaxmpd.piecewise import PiecewisePolynomial
from jaxmpd.steps.coordinate import sweep

WIDTH = 500
# Samples: hidden parameters a timed call, so many that the forward pass before counts for little.
SIZES = {2048: 600, 40_000: 120}


def sort_with_payload(f: PiecewisePolynomial) -> PiecewisePolynomial:
    knots, *jumps = jax.lax.sort((f.knots, *f.jumps), num_keys=1, is_stable=False)
    return PiecewisePolynomial(f.base, knots, jnp.stack(jumps))


SEARCHES = {
    "ours": minimize_convex_pieces,
    "packed sort": minimize,
    "lax.sort": partial(minimize, sort=sort_with_payload),
}


def numpy_sweep(layers, x, y, order, alpha=0.01):
    """The same algorithm in NumPy: argsort, gathers and prefix sums; returns the loss."""

    def f(z):
        return np.clip(z, -1, 1) * np.float32(1 - alpha) + np.float32(alpha) * z

    (w1, b1), (w2, b2) = layers
    incoming = np.concatenate([w1, b1[None]]).T.copy()
    x = np.concatenate([x.T, np.ones((1, len(x)), np.float32)])
    residual = w2[:, 0] @ f(incoming @ x) + b2[0] - y[:, 0]
    loss = residual @ residual
    for number in order:
        unit, row = divmod(int(number), 3)
        w, v, u = incoming[unit], w2[unit, 0], x[row]
        z = w @ x
        now = f(z)
        with np.errstate(divide="ignore", invalid="ignore"):
            t_low, t_high = (-1 - z) / u, (1 - z) / u
        signal, energy, step = v * residual, v * v, np.abs(u) * np.float32(1 - alpha)
        bend_low = 2 * step * (signal + energy * (-1 - now))
        bend_high = -2 * step * (signal + energy * (1 - now))
        curve = step * u * np.float32(1 + alpha) * energy
        knots = np.concatenate([t_low, t_high])
        c2 = np.concatenate([curve, -curve])
        c1 = np.concatenate([bend_low, bend_high]) - 2 * c2 * knots
        c0 = -(c1 + c2 * knots) * knots
        met = np.isfinite(knots)
        if not met.all():
            knots, c0, c1, c2 = knots[met], c0[met], c1[met], c2[met]
        order_ = np.argsort(knots)
        knots = knots[order_]
        jumps = np.stack([c0[order_], c1[order_], c2[order_]])
        # Outwards from the current value, as ours: prefix sums right of it, suffix sums left.
        home = np.searchsorted(knots, 0, side="right")
        rate = np.where((t_low <= 0) == (t_high <= 0), np.float32(alpha), np.float32(1)) * u
        base = np.array([0, 2 * (signal @ rate), energy * (rate @ rate)], np.float32)[:, None]
        right = base + np.cumsum(jumps[:, home:], axis=1)
        left = base - np.cumsum(jumps[:, :home][:, ::-1], axis=1)[:, ::-1]
        p0, p1, p2 = np.concatenate([left, base, right], axis=1)
        lo = np.concatenate([[-np.inf], knots]).astype(np.float32)
        hi = np.concatenate([knots, [np.inf]]).astype(np.float32)
        t = np.clip(-p1 / np.maximum(2 * p2, np.float32(1e-30)), lo, hi)
        with np.errstate(invalid="ignore", over="ignore"):
            value = (p2 * t + p1) * t + p0
        t = t[np.nanargmin(np.where(np.isfinite(t), value, np.inf))]
        new = w[row] + t
        tried = residual + v * (f(z + (new - w[row]) * u) - now)
        with np.errstate(over="ignore"):
            tried_loss = tried @ tried
        if tried_loss < loss:
            residual, loss, incoming[unit, row] = tried, tried_loss, new
    return loss / len(y)


def points(samples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    table = terrain(samples, seed)
    columns = np.stack([table.numbers(name) for name in table.columns], axis=1)
    columns = Standardizer.of(columns)(columns).astype(np.float32)
    return columns[:, :2], columns[:, 2:]


def measure(samples: int, count: int, repeats: int) -> dict[str, list[float]]:
    @partial(jax.jit, static_argnames="name")
    def timed(layers, x, y, order, name):
        return sweep(layers, Batch(x, y), order, LEAKY_HARD_TANH, search=SEARCHES[name])

    def ours(name, device, host):
        del host
        return timed(*device, name=name)

    peers = {name: partial(ours, name) for name in SEARCHES}
    peers["numpy"] = lambda device, host: numpy_sweep(*host)

    def fresh(repeat: int):
        rng = np.random.default_rng(repeat + 1)
        layers = init(jax.random.key(repeat + 1), (2, WIDTH, 1))
        layers = (
            layers[0]._replace(bias=jnp.asarray(rng.normal(size=WIDTH), jnp.float32)),
            layers[1],
        )
        x, y = points(samples, repeat + 1)
        order = rng.permutation(3 * WIDTH)[:count].astype(np.int32)
        host = (tuple(tuple(map(np.asarray, layer)) for layer in layers), x, y, order)
        return jax.device_put((layers, x, y, order)), host

    return harness.alternate(peers, fresh, repeats)


def main() -> None:
    args = harness.parser(__doc__).parse_args()
    report = harness.Report("mpd_speed")
    for samples, count in SIZES.items():
        count = count // 2 if args.quick else count
        seconds = measure(samples, count, repeats=5 if args.quick else 11)
        report.row(
            samples=samples,
            unit="us an update",
            **harness.medians(seconds, 1e-6 * count),
        )
        report.row(
            samples=samples,
            unit="times ours",
            **{name: harness.ratio(seconds, name) for name in seconds},
        )
        report.summarise(
            f"speedup_lax_{samples}", harness.ratio(seconds, "lax.sort"), target=">= 2.2"
        )
        report.summarise(f"speedup_numpy_{samples}", harness.ratio(seconds, "numpy"), target="> 1")
    report.finish(args)


if __name__ == "__main__":
    main()
