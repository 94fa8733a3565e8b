"""Trains the CIFAR-10 network whose activations the shipped perceptual metric compares.

AlexNet's convolutions for 32 x 32 pixels, on the class labels of 45,000 training images; the last
500 of each class are for validation, here and of whatever is built on the metric. About 45 minutes
on two cores; interrupted, it goes on from its checkpoint. The folded float16 weights are written to
--output, with the recipe; the package ships what `--output
jaxnpc/perceptual/metrics/alexnet_cifar.npz` makes.

- `accuracy`: the share of the test images that the network with float16 weights assigns to their
  class, in percent; `validation`: that of the validation images, before rounding.
- `seconds`: the training's own time, without compilation and evaluation.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks import harness
from jaxnpc.cifar import cifar10
from jaxnpc.perceptual.features import train_features
from jaxnpc.perceptual.weights import load_embedding, save_embedding

HELD_OUT = 0.1
"""The share of the training images, the last ones of each class, that nothing is trained on."""


def main() -> None:
    options = harness.parser(__doc__)
    options.add_argument("--epochs", type=int, default=36, help="default: %(default)s")
    options.add_argument(
        "--output",
        type=Path,
        default=harness.ROOT / "out" / "alexnet_cifar.npz",
        help="default: out/alexnet_cifar.npz",
    )
    args = options.parse_args()
    report = harness.Report("perceptual_features")
    file = harness.data("cifar10/cifar10_jpeg.npz", "JAXNPC_DATA")
    if file is None:
        report.finish(args)
        return
    train, test = (cifar10(split, folder=file.parent) for split in ("train", "test"))
    every = 20 if args.quick else 1
    images, test_images = (x.reshape(-1, 32, 32, 3)[::every] for x in (train.points, test.points))
    checkpoint = args.output.with_suffix(".checkpoint")
    found = train_features(
        images,
        train.labels[::every],
        validation=HELD_OUT,
        epochs=3 if args.quick else args.epochs,
        checkpoint=None if args.quick else checkpoint,
        resume=not args.quick,
    )
    args.output.parent.mkdir(parents=True, exist_ok=True)
    settings = {**found.settings, "data": "CIFAR-10's training images, JPEG re-encoded"}
    digest = save_embedding(args.output, found.embedding, dtype="float16", settings=settings)
    rounded = replace(found, embedding=load_embedding(args.output))

    report.row(
        file=args.output.name,
        sha256=digest,
        epochs=int(found.history.batch_steps[-1]),
        parameters=sum(a.size for layer in found.embedding.params.values() for a in layer.values()),
    )
    right = np.array(rounded.predict(test_images)) == test.labels[::every]
    report.summarise("accuracy", 100 * float(right.mean()), ">= 85")
    report.summarise("validation", 100 * found.accuracy)
    report.summarise("seconds", float(found.history.seconds[-1]))
    report.finish(args)


if __name__ == "__main__":
    main()
