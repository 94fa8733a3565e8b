"""How the tables' models are trained: data for `npc_tables`, chosen on validation images only.

Selection: training on the first 50,000 images, certification of the last 10,000 training images.
"""

import math
from dataclasses import dataclass, field
from typing import Any

from jaxnpc.augmentation import Warp


@dataclass(frozen=True)
class Recipe:
    """One model.

    Attributes:
        data: "mnist" or "cifar10".
        stages: arguments of [`train`][jaxnpc.training.train], one set a stage; a later stage goes
            on from the prototypes of the one before.
        configurations: how many were tried on validation, this one among them; 0: none yet.
    """

    data: str
    stages: tuple[dict[str, Any], ...]
    configurations: int
    eps: tuple[float, ...] = field(default=())


MILD = Warp(rotation=6.4, scale=0.048, shear=0.064, shift=0.48, keep=0.3)

# Validation, seed 0: clean 97.8, exact CRA 77.6 / 75.1 / 60.1 at 1.5 / 1.58 / 2.
MNIST_L2 = Recipe(
    data="mnist",
    stages=(
        {
            "per_class": 400,
            "components": 150,
            "cap": 2.2,
            "dropout": 0.4,
            "learning_rate": 40.0,
            "epochs": 40,
            "augment": MILD,
        },
    ),
    configurations=1,
    eps=(1.5, 1.58, 2.0),
)

# Validation, seed 0: clean 96.9, CRA 94.2 / 83.8 / 70.7 at 0.1 / 0.3 / 0.4 by Theorem 2.4's bound;
# 80.9 at 0.3 with no prototype hidden and 20 epochs.
MNIST_LINF = Recipe(
    data="mnist",
    stages=(
        {
            "per_class": 128,
            "distance": math.inf,
            "q": math.inf,
            "objective": "semi_metric",
            "smoothing": 0.05,
            "cap": 0.6,
            "dropout": 0.4,
            "optimizer": "adam",
            "learning_rate": 0.005,
            "batch_size": 250,
            "epochs": 40,
            "augment": Warp(rotation=3.2, scale=0.024, shear=0.032, shift=0.24, keep=0.4),
        },
    ),
    configurations=16,
    eps=(0.1, 0.3, 0.4),
)

# Validation, seed 0: clean 51.9, CRA 47.0 / 45.2 / 40.2 at 0.1 / 36/255 / 0.25 by the bound. What
# helped: a cap far beyond the radii of interest (0.5: 46.4 clean), own prototypes hidden more
# often than on MNIST, mirrored images, and time (20 epochs: 49.6).
CIFAR10_L2 = Recipe(
    data="cifar10",
    stages=(
        {
            "per_class": 400,
            "components": 150,
            "cap": 3.0,
            "dropout": 0.6,
            "learning_rate": 46.8,
            "epochs": 80,
            "augment": Warp(0, 0.05, 0, 1.0, flip=True, keep=0.1, fill="edge"),
        },
    ),
    configurations=17,
    eps=(0.1, 36 / 255, 0.25),
)

RECIPES: dict[int, Recipe] = {
    3: MNIST_L2,
    4: MNIST_L2,
    5: MNIST_L2,
    6: MNIST_L2,
    7: MNIST_LINF,
    10: CIFAR10_L2,
    11: CIFAR10_L2,
}
"""The recipe of each table's model."""
