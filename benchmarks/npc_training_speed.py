"""Seconds an epoch of certified training, against a plain NumPy transcription of eq. 7.

The paper's recipe: 4000 prototypes, minibatches of 500 of the 60,000 images of MNIST, shifts by a
pixel, the pair of Lemma 2.9. `ours` and `plain` take the same minibatches of the same images, in
turns of several gradient steps: an epoch takes 120 of them one after the other. Then whole epochs
by [`train`][jaxnpc.training.train], the default selection and others; k-means and augmentation of
all images. Without MNIST random images take its place: the time is the same. `--quick` takes turns
of one step and 1000 prototypes.

`speedup_plain` compares epochs: of `train`, shifts included, and as many steps of `plain`;
`speedup_step` single steps in turns, each a call from Python.
"""

import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import harness
from jaxnpc.augmentation import AUGMENTATIONS
from jaxnpc.datasets import mnist
from jaxnpc.objectives import capped_margin
from jaxnpc.starts import start
from jaxnpc.training import train

CAP, RATE, MOMENTUM, BATCH, CLASSES = 2.2, 40.0, 0.9, 500, 10

TURN = 6
"""Minibatches a turn: the first one finds the caches full of the other side's numbers."""


def plain_step(w, velocity, x, y, labels):
    """One step of Nesterov's method on eq. 7 as the formulas read: class by class, all pairs."""
    gradient = np.zeros_like(w)
    for c in range(CLASSES):
        own, foreign = np.flatnonzero(labels == c), np.flatnonzero(labels != c)
        squares = (w * w).sum(axis=1)
        gap = squares[own][:, None] + squares[foreign] - 2 * w[own] @ w[foreign].T
        gap = 2 * np.sqrt(np.maximum(gap, 1e-12))
        for z in x[y == c]:
            distance = squares - 2 * w @ z + z @ z
            rho = (distance[foreign] - distance[own][:, None]) / gap
            best = rho.argmax(axis=0)
            j = rho[best, np.arange(len(foreign))].argmin()
            i = best[j]
            if rho[i, j] < CAP:
                w_i, w_j = w[own[i]], w[foreign[j]]
                size = np.linalg.norm(w_j - w_i)
                along = rho[i, j] * (w_j - w_i) / size**2
                gradient[own[i]] -= ((z - w_i) / size + along) / len(x)
                gradient[foreign[j]] -= ((w_j - z) / size - along) / len(x)
    velocity *= MOMENTUM
    velocity += gradient
    w -= RATE * (gradient + MOMENTUM * velocity)


def images(quick: bool) -> tuple[np.ndarray, np.ndarray]:
    path = harness.data("mnist/train-images-idx3-ubyte.gz", "JAXNPC_DATA")
    if path is not None:
        data = mnist("train", folder=path.parent)
        points, labels = data.points, np.asarray(data.labels)
    else:
        rng = np.random.default_rng(0)
        points, labels = rng.random((60_000, 784), np.float32), rng.integers(0, CLASSES, 60_000)
    return (points[:3000], labels[:3000]) if quick else (points, labels)


def main() -> None:
    args = harness.parser(__doc__).parse_args()
    report = harness.Report("npc_training_speed")
    x, y = images(args.quick)
    per_class = 100 if args.quick else 400
    w, labels = start(x, y, per_class, jax.random.key(0), "sample")
    steps = len(x) // BATCH

    loss = capped_margin(labels, cap=CAP)
    tx = optax.sgd(RATE, momentum=MOMENTUM, nesterov=True)

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(w, state, x, y):
        gradient = jax.grad(lambda w: loss(w, x, y, jax.random.key(0)).mean())(w)
        updates, state = tx.update(gradient, state, w)
        return optax.apply_updates(w, updates), state

    mine = [jnp.array(w), tx.init(w)]
    theirs = np.array(w), np.zeros(w.shape, np.float32)

    def ours(minibatches):
        for x, y in minibatches:
            mine[:] = step(*mine, jnp.asarray(x), jnp.asarray(y))
        return mine[0]

    def plain(minibatches):
        for x, y in minibatches:
            plain_step(*theirs, x, y, labels)

    rng = np.random.default_rng(1)
    turn = 1 if args.quick else TURN

    def fresh(repeat):
        return ([(x[rows], y[rows]) for rows in rng.integers(0, len(x), (turn, BATCH))],)

    # From one start, by the same minibatch, both must learn the same.
    first = fresh(-1)[0][:1]
    ours(first)
    plain(first)
    apart = np.abs(np.asarray(mine[0]) - theirs[0]).max() / np.abs(theirs[0] - np.asarray(w)).max()
    seconds = harness.alternate({"ours": ours, "plain": plain}, fresh, 1 if args.quick else 5)
    report.row(what="one minibatch", **harness.medians(seconds, turn), apart=float(apart))
    epoch = harness.medians(seconds, turn / steps)
    report.row(what=f"epoch of {steps} minibatches, extrapolated", **epoch, apart=None)

    epochs = 1 if args.quick else 3
    common = {"per_class": per_class, "start": "sample", "epochs": epochs, "cap": CAP}
    common |= {"learning_rate": RATE, "evaluate_every": epochs, "progress": False}
    runs = {
        "paper's recipe": {"augment": "shift", "shape": (28, 28), "dropout": 0.0},
        "with dropout and affine warps": {"augment": "affine", "shape": (28, 28)},
        "likewise in 150 components": {
            "augment": "affine",
            "shape": (28, 28),
            "components": 150,
        },
    }
    for name, choices in runs.items():
        result = train(x, y, **common, **choices)
        report.row(what=name, seconds_per_epoch=result.seconds_per_epoch, seconds=result.seconds)
        if name == "paper's recipe":
            target = None if args.quick else "<= 12"
            report.summarise("seconds_per_epoch", result.seconds_per_epoch, target)
            target = None if args.quick else ">= 20"
            speedup = epoch["plain"] / result.seconds_per_epoch
            report.summarise("speedup_plain", speedup, target)
            report.summarise("speedup_step", harness.ratio(seconds, "plain"))
    report.summarise("seconds_per_epoch_150_components", result.seconds_per_epoch)

    for name, augment in AUGMENTATIONS.items():
        batch = jnp.asarray(x[:BATCH].reshape(-1, 28, 28))
        warp = jax.jit(augment)
        warp(jax.random.key(0), batch).block_until_ready()
        began = time.perf_counter()
        for k in range(steps):
            warp(jax.random.key(k), batch).block_until_ready()
        report.row(augmentation=name, seconds_per_60000=(time.perf_counter() - began) * 120 / steps)
    began = time.perf_counter()
    start(x, y, per_class, jax.random.key(0), "kmeans")[0].block_until_ready()
    report.row(start="kmeans", seconds=time.perf_counter() - began)
    report.finish(args)


if __name__ == "__main__":
    main()
