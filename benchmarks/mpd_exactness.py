"""Exactness of the minimum along a parameter, against brute force in extended precision.

Random networks of every degeneracy (ties, inputs of 0, equal samples, dead units, saturated ones,
outliers, tiny and huge scales), several activations, one and three outputs. Brute force evaluates
the network itself at every kink, and at the vertex of the parabola between any two, in NumPy's long
double; it shares no code with the package.

- `f64_worst_gap`: loss found minus least loss, over the loss at the parameter's current value.
- `f32_gain_q90`: the share of the best gain that float32 misses at the rounded new parameter, 90 %
  quantile, over the cases where there is more to gain than float32's resolution of the loss.
- `increases`: steps of the optimiser, in float32, after which the loss, evaluated in float64, was
  higher than before by more than float32's resolution.
- `f64_gap_far`: the same as the first where half of the inputs are 1e-7 of the others: kinks lie so
  far out (1e7 and more) that the sums on the way there have lost the digits a comparison takes. The
  nearer minimum is taken then; the table of figures asked for leaves these cases out.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxmpd
from benchmarks import harness
from jaxmpd import Batch, Coordinate, Layer, expand
from jaxmpd.steps.coordinate import search

ACTIVATIONS = {
    "leaky_hard_tanh": jaxmpd.LEAKY_HARD_TANH,
    "hard_tanh": jaxmpd.HARD_TANH,
    "relu": jaxmpd.RELU,
    "abs": jaxmpd.ABS,
    "three kinks": jaxmpd.piecewise_linear([-1, 0.5, 2], [1, -2, 0, 3], (0, 1)),
}
SHAPES = ((5, 1), (40, 3), (400, 1))  # samples, outputs
FAR = "far outliers"
KINDS = [
    "plain",
    "grid",
    "zeros",
    "equal",
    "saturated",
    "tiny",
    "dead",
    "outliers",
    "huge",
    "bias",
    FAR,
]
WIDTH = 4
RESOLUTION = float(np.finfo(np.float32).eps)


def network(rng, kind, samples, outputs):
    """A network and samples, every number a float32."""
    normal = lambda *shape: rng.normal(size=shape)  # noqa: E731
    x, y = normal(samples, 2), normal(samples, outputs)
    w1, b1, w2, b2 = normal(2, WIDTH), normal(WIDTH), normal(WIDTH, outputs), normal(outputs)
    if kind == "grid":
        x, y, w1, b1, w2, b2 = (np.round(2 * a) / 2 for a in (x, y, w1, b1, w2, b2))
    elif kind == "zeros":
        x[rng.random(x.shape) < 0.5] = 0
    elif kind == "equal":
        x[:] = x[0]
    elif kind == "saturated":
        b1 = 300 * b1
    elif kind == "tiny":
        x, w2 = 1e-4 * x, 1e-3 * w2
    elif kind == "dead":
        w2[: WIDTH // 2] = 0
    elif kind == "outliers":
        x[: samples // 2] *= 1e-4
    elif kind == FAR:
        x[: samples // 2] *= 1e-7
    elif kind == "huge":
        x, y = 1e4 * x, 1e4 * y
    return tuple(a.astype(np.float32) for a in (x, y, w1, b1, w2, b2))


def forward(f, x, w1, b1, w2, b2):
    z = x @ w1 + b1
    values = np.full_like(z, f.slopes[0]) * z + np.asarray(f.offsets[0], z.dtype)
    for kink, slope, offset in zip(f.kinks, f.slopes[1:], f.offsets[1:], strict=True):
        values = np.where(
            z > kink, np.asarray(slope, z.dtype) * z + np.asarray(offset, z.dtype), values
        )
    return values @ w2 + b2


def losses(f, case, layer, row, column, t):
    """The mean squared error at each change t of the parameter, in long double."""
    x, y, w1, b1, w2, b2 = (a.astype(np.longdouble) for a in case)
    if layer == 1:  # linear in the parameter: one evaluation and a rank-one change
        z = x @ w1 + b1
        hidden = forward(f, x, w1, b1, np.eye(WIDTH, dtype=z.dtype), np.zeros(WIDTH, z.dtype))
        u = np.ones(len(x)) if row == WIDTH else hidden[:, row]
        error = hidden @ w2 + b2 - y
        rest = np.sum(np.delete(error, column, axis=1) ** 2, axis=1)
        return np.mean((error[:, column] + t[:, None] * u) ** 2 + rest, axis=1)
    u = np.ones(len(x)) if row == 2 else x[:, row]
    others = forward(
        f, x, np.delete(w1, column, 1), np.delete(b1, column), np.delete(w2, column, 0), b2
    )
    z = (x @ w1[:, column] + b1[column]) + t[:, None] * u
    one = np.ones((1, 1), z.dtype)
    unit = forward(f, z.reshape(-1, 1), one, 0 * one[0], one, 0 * one[0]).reshape(z.shape)
    error = others[None] + unit[..., None] * w2[column] - y
    return np.mean(np.sum(error**2, axis=2), axis=1)


def brute_force(f, case, layer, row, column):
    """The least loss: at every kink, around it, and at the vertex between any two neighbours."""
    x, _, w1, b1, _, _ = (a.astype(np.longdouble) for a in case)
    kinks = [np.zeros(1, np.longdouble)]
    if layer == 0:
        u = np.ones(len(x), np.longdouble) if row == 2 else x[:, row]
        z = x @ w1[:, column] + b1[column]
        kinks += [(kink - z[u != 0]) / u[u != 0] for kink in f.kinks]
    kinks = np.unique(np.concatenate(kinks))
    reach = 1e3 * (1 + np.max(np.abs(kinks)))
    ends = np.concatenate([[-reach], kinks, [reach]])
    at = partial(losses, f, case, layer, row, column)
    lo, hi = ends[:-1], ends[1:]
    middle = (lo + hi) / 2
    left, centre, right = at(lo), at(middle), at(hi)
    bend = 2 * (left - 2 * centre + right)
    safe = np.where(bend > 0, bend, 1)
    vertex = middle + np.where(bend > 0, np.clip((left - right) / (2 * safe), -0.5, 0.5), 0) * (
        hi - lo
    )
    return min(np.min(v) for v in (left, centre, right, at(vertex)))


def gaps(f, samples, outputs, cases, dtype):
    """For each case: loss before, least loss, loss found."""

    def found(case, row, column, layer):
        x, y, w1, b1, w2, b2 = case
        line = expand(
            (Layer(w1, b1), Layer(w2, b2)), Batch(x, y), Coordinate(layer, row, column), f
        )
        return search(line).argmin

    result: dict[int, tuple] = {}
    with jax.enable_x64(dtype == "float64"):
        for layer in (0, 1):
            places = [k for k, c in enumerate(cases) if c[1][0] == layer]
            chosen = [cases[k] for k in places]
            if not chosen:
                continue
            arrays = [
                jnp.asarray(np.stack(a), dtype) for a in zip(*(c[0] for c in chosen), strict=True)
            ]
            rows, columns = (jnp.asarray([c[1][k] for c in chosen]) for k in (1, 2))
            t = jax.jit(jax.vmap(partial(found, layer=layer)))(tuple(arrays), rows, columns)
            for place, (case, where, before, least), step in zip(
                places, chosen, np.asarray(t), strict=True
            ):
                _, row, column = where
                matrix, vector = (case[2], case[3]) if layer == 0 else (case[4], case[5])
                old = vector[column] if row == len(matrix) else matrix[row, column]
                new = (
                    np.asarray(old, dtype) + step if dtype == "float32" else old + np.float64(step)
                )
                change = np.array([np.longdouble(new) - np.longdouble(old)])
                result[place] = (before, least, losses(f, case, *where, change)[0])
    return np.array([result[k] for k in range(len(cases))], np.longdouble)


def rises(f, samples, outputs, kinds, steps):
    """Steps of the optimiser after which the loss in float64 was higher."""
    optimizer = jaxmpd.mpd(f)
    count = 0

    @jax.jit
    def step(params, state, x, y):
        updates, state = optimizer.update(params, state, params, batch=(x, y))
        return optax.apply_updates(params, updates), state

    for seed, kind in enumerate(kinds):
        x, y, *weights = network(np.random.default_rng(seed), kind, samples, outputs)
        params = (Layer(*weights[:2]), Layer(*weights[2:]))
        state = optimizer.init(params)
        loss = None
        for _ in range(steps + 1):
            arrays = [np.asarray(a, np.float64) for a in (*params[0], *params[1])]
            now = np.mean(np.sum((forward(f, x.astype(np.float64), *arrays) - y) ** 2, axis=1))
            count += loss is not None and now > loss * (1 + RESOLUTION)
            loss = now
            params, state = step(params, state, x, y)
    return count, len(kinds) * steps


def main() -> None:
    args = harness.parser(__doc__).parse_args()
    report = harness.Report("mpd_exactness")
    seeds = 4 if args.quick else 6
    worst, far, lost, increased, taken, total = 0.0, 0.0, [], 0, 0, 0
    for name, f in ACTIVATIONS.items():
        for samples, outputs in SHAPES:
            cases = []
            for seed in range(seeds):
                for kind in KINDS:
                    rng = np.random.default_rng([seed, samples, KINDS.index(kind)])
                    case = network(rng, kind, samples, outputs)
                    layer = int(rng.random() < 0.2)
                    rows, columns = (WIDTH + 1, outputs) if layer else (3, WIDTH)
                    row = rows - 1 if kind == "bias" else int(rng.integers(rows))
                    where = (layer, row, int(rng.integers(columns)))
                    before = losses(f, case, *where, np.zeros(1, np.longdouble))[0]
                    cases.append((case, where, before, brute_force(f, case, *where)))
            before, least, reached = gaps(f, samples, outputs, cases, "float64").T
            gap = (reached - least) / before
            asked = np.array([kind != FAR for _ in range(seeds) for kind in KINDS])
            far = max(far, float(np.max(gap[~asked])))
            gap = float(np.max(gap[asked]))
            b32, l32, r32 = gaps(f, samples, outputs, cases, "float32").T
            visible = asked & (b32 - l32 > RESOLUTION * b32)
            missed = ((r32 - l32) / np.where(visible, b32 - l32, 1))[visible].astype(float)
            rose, steps = rises(f, samples, outputs, KINDS, 5)
            worst, total = max(worst, gap), total + int(asked.sum())
            lost.extend(missed)
            increased, taken = increased + rose, taken + steps
            report.row(
                activation=name,
                samples=samples,
                outputs=outputs,
                cases=int(asked.sum()),
                f64_gap=gap,
                f32_lost_median=float(np.median(missed)),
                f32_lost_max=float(np.max(missed)),
                steps=steps,
                increases=rose,
            )
    report.summarise("cases", total, target=">= 500")
    report.summarise("f64_worst_gap", worst, target="<= 1e-12")
    report.summarise("f32_gain_q90", float(np.quantile(lost, 0.9)), target="<= 1e-5")
    report.summarise("f32_gain_max", float(np.max(lost)))
    report.summarise("f64_gap_far", far)
    report.summarise("steps", taken)
    report.summarise("increases", increased, target="== 0")
    report.finish(args)


if __name__ == "__main__":
    main()
