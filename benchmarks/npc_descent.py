"""Message passing descent on prototypes against Nesterov and Adam: final loss and accuracy.

scikit-learn's digits, the last fifth for validation, the hinge on l1, squared l2 and l-infinity
distances, k-means start, three seeds. A pass is one over the training points: a gradient step a
minibatch, or an update of every coordinate a minibatch. The peers' rates, minibatches and, for the
l-infinity distance, smoothing of the gradient are those of the least *training* loss in the mean
over the seeds, after `PASSES` passes and anew after `TUNING`, with which they then run for our
seconds, unless the loss is 0 already. Ours has one setting for all, of a dozen tried, by the
training loss too. `seconds` leaves out compilation; an objective below a thousandth of the start's
counts as that in a ratio. `--quick` takes one seed and one size of minibatches, and
leaves out the l1 distance and equal seconds.
"""

import importlib.util
import itertools
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import harness
from jaxmpd.losses import Batch
from jaxmpd.training import batch_step
from jaxnpc.descent import prototype_descent
from jaxnpc.distances import squared_l2
from jaxnpc.lines import distances, hinge
from jaxnpc.scales import default_cap, typical_radius
from jaxnpc.starts import start

PASSES, TUNING, PER_CLASS = 10, 100, 3
NORMS = {"squared l2": 2.0, "l1": 1.0, "linf": np.inf}
PEERS = {
    "nesterov": (optax.trace(0.9, nesterov=True), (0.1, 0.3, 1.0, 3.0, 10.0)),
    "adam": (optax.scale_by_adam(), (0.003, 0.01, 0.03, 0.1)),
}
MINIBATCHES = (50, 25)
TEMPERATURES = {np.inf: (0.0, 1 / 8)}
"""Smoothing of a distance's gradient, in parts of the cap."""

PARTS, DAMPED, DAMPING = 4, 8, 0.003
"""Ours: the first passes over so many damped minibatches, the others undamped over all points."""


class Setting(NamedTuple):
    """Points, classes and caps; starts and labels of the prototypes."""

    x: jax.Array
    y: jax.Array
    held_out: tuple[jax.Array, jax.Array]
    p: float
    cap: float
    starts: jax.Array
    labels: np.ndarray

    def loss(self, w: jax.Array) -> float:
        """On the training points."""
        d = distances(self.x, w, self.p)
        return float(jnp.mean(hinge(d, jnp.asarray(self.labels), self.y, self.cap)))

    def accuracy(self, w: jax.Array) -> float:
        """On the validation points, in percent."""
        x, y = self.held_out
        return 100 * float(
            jnp.mean(jnp.asarray(self.labels)[distances(x, w, self.p).argmin(1)] == y)
        )


def setting(p: float, seeds: int) -> Setting:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x, count = (x / 16).astype(np.float32), 4 * len(x) // 5
    cap = default_cap(typical_radius(x[:count], y[:count], lambda a, b: distances(a, b, p), 2))
    found = [
        start(x[:count], y[:count], PER_CLASS, jax.random.key(seed), "kmeans")
        for seed in range(seeds)
    ]
    points = (jnp.asarray(x[:count]), jnp.asarray(y[:count]))
    held_out = (jnp.asarray(x[count:]), jnp.asarray(y[count:]))
    return Setting(*points, held_out, p, cap, jnp.stack([w for w, _ in found]), found[0][1])


def ours(task: Setting) -> tuple[list[jax.Array], float]:
    """The prototypes of every seed, and the median seconds of a run."""
    data, n = Batch(task.x, task.y), len(task.x)
    optimizer = prototype_descent(
        task.labels,
        task.p,
        cap=task.cap,
        damping=lambda updates: jnp.where(updates < PARTS * DAMPED, DAMPING, 0.0),
    )
    sizes = [-(-n // PARTS)] * DAMPED + [n] * (PASSES - DAMPED)

    def one_pass(w, state, key, size):
        return jax.block_until_ready(
            batch_step(w, state, key, data, loss=no_loss, optimizer=optimizer, size=size)
        )

    for size in set(sizes):  # compiles; what is passed is donated
        one_pass(jnp.array(task.starts[0]), optimizer.init(task.starts[0]), jax.random.key(0), size)
    results, seconds = [], []
    for seed, begin in enumerate(task.starts):
        w, state = jnp.array(begin), optimizer.init(begin)
        began = time.perf_counter()
        for number, size in enumerate(sizes):
            w, state = one_pass(w, state, jax.random.fold_in(jax.random.key(seed), number), size)
        seconds.append(time.perf_counter() - began)
        results.append(w)
    return results, float(np.median(seconds))


def no_loss(w, batch, key):
    """The descent takes no gradient."""
    return jnp.zeros(())


def peer(
    task: Setting, name: str, passes: int, size: int, temperature: float
) -> Callable[..., jax.Array]:
    """A run of so many passes: a function of rate, start and key."""
    rule = PEERS[name][0]
    x, y, labels, n = task.x, task.y, jnp.asarray(task.labels), len(task.x)
    steps = passes * (n // size)
    decay = optax.cosine_decay_schedule(1.0, steps, alpha=0.01)

    def loss(w, x, y):
        if task.p == 2:
            d = squared_l2(x, w)
        else:
            gap = jnp.abs(x[:, None] - w)
            d = gap.sum(-1) if task.p == 1 else gap.max(-1)
        if temperature:
            soft = temperature * task.cap * jax.nn.logsumexp(gap / (temperature * task.cap), -1)
            d = jax.lax.stop_gradient(d - soft) + soft
        return jnp.mean(hinge(d, labels, y, task.cap))

    def run(rate, w, key):
        def step(carry, at):
            w, state = carry
            number, index = at
            updates, state = rule.update(jax.grad(loss)(w, x[index], y[index]), state, w)
            return (w - rate * decay(number) * updates, state), None

        # The few points that the last minibatch would lack sit out, others in every pass.
        order = jax.vmap(lambda k: jax.random.permutation(k, n)[: n // size * size])(
            jax.random.split(key, passes)
        )
        numbers = (jnp.arange(steps), order.reshape(steps, size))
        return jax.lax.scan(step, (w, rule.init(w)), numbers)[0][0]

    return run


def tuned(task: Setting, name: str, passes: int, sizes: Sequence[int]) -> tuple[float, int, float]:
    """The rate, the size of minibatches and the smoothing of the least mean loss."""
    rates = PEERS[name][1]
    tried = []
    for size, temperature in itertools.product(sizes, TEMPERATURES.get(task.p, (0.0,))):
        run = peer(task, name, passes, size, temperature)
        runs = jax.vmap(jax.vmap(run, (None, 0, 0)), (0, None, None))
        found = jax.jit(runs)(jnp.array(rates), task.starts, keys(task))
        tried += [
            (np.mean([task.loss(w) for w in ws]), rate, size, temperature)
            for rate, ws in zip(rates, found, strict=True)
        ]
    return min(tried)[1:]


def timed(
    task: Setting, name: str, passes: int, rate: float, size: int, temperature: float
) -> tuple[list[jax.Array], float]:
    """The prototypes of every seed, and the median seconds of a run."""
    run = jax.jit(peer(task, name, passes, size, temperature))
    compiled = run.lower(rate, task.starts[0], keys(task)[0]).compile()
    results, seconds = [], []
    for w, key in zip(task.starts, keys(task), strict=True):
        began = time.perf_counter()
        results.append(jax.block_until_ready(compiled(rate, w, key)))
        seconds.append(time.perf_counter() - began)
    return results, float(np.median(seconds))


def keys(task: Setting) -> jax.Array:
    return jax.random.split(jax.random.key(0), len(task.starts))


def row(report: harness.Report, task: Setting, ws, **columns) -> float:
    """Adds a row, and returns the mean loss."""
    losses = [task.loss(w) for w in ws]
    report.row(
        **columns,
        objective=float(np.mean(losses)),
        least=min(losses),
        most=max(losses),
        accuracy=float(np.mean([task.accuracy(w) for w in ws])),
    )
    return float(np.mean(losses))


def main() -> None:
    args = harness.parser(__doc__).parse_args()
    report = harness.Report("npc_descent")
    if importlib.util.find_spec("sklearn") is None:
        print("skipped: scikit-learn is not there; install the extra data")
        return
    for norm, p in list(NORMS.items())[:: 2 if args.quick else 1]:
        task = setting(p, 1 if args.quick else 3)
        begin = row(report, task, task.starts, distance=norm, optimizer="start", **settings(0, 0.0))
        ws, seconds = ours(task)
        mine = row(report, task, ws, distance=norm, optimizer="ours", **settings(PASSES, seconds))
        budgets = {"passes": PASSES} if args.quick else {"passes": PASSES, "seconds": TUNING}
        best = {kind: [] for kind in budgets}
        for name in PEERS:
            for kind, passes in budgets.items():
                choice = tuned(task, name, passes, MINIBATCHES[: 1 if args.quick else None])
                ws, spent = timed(task, name, passes, *choice)
                if kind == "seconds" and any(task.loss(w) for w in ws):
                    passes = int(passes * seconds / spent)
                    ws, spent = timed(task, name, passes, *choice)
                chosen = settings(passes, spent, *choice)
                best[kind].append(row(report, task, ws, distance=norm, optimizer=name, **chosen))
        for kind, values in best.items():
            suffix = "" if p == 2 else f"_{norm}"
            report.summarise(f"digits_ratio_{kind}{suffix}", mine / max(min(values), begin / 1000))
    report.finish(args)


def settings(passes, seconds, rate=None, minibatch=None, temperature=None):
    return {
        "passes": passes,
        "seconds": seconds,
        "rate": rate,
        "minibatch": minibatch,
        "smoothing": temperature,
    }


if __name__ == "__main__":
    main()
