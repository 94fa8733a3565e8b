"""From a table to batches and from a trained network back to a table: a model one can keep."""

import io
import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jaxmpd.activations import PiecewiseLinear
from jaxmpd.datasets import Column, Standardizer, inputs_of, split, varied
from jaxmpd.files import write_whole
from jaxmpd.losses import Batch
from jaxmpd.network import Layer, apply
from jaxmpd.tables import Table, read_arrays

LEAST_ROWS = 10


@dataclass(frozen=True)
class Task:
    """A table as a network is trained on it.

    Attributes:
        train: standardised samples to train on.
        validation: the others, standardised by the training samples' mean and variance.
        inputs: the columns that became inputs.
        targets: the columns to predict.
        input_scaler: of the encoded inputs.
        target_scaler: of the targets.
    """

    train: Batch
    validation: Batch
    inputs: tuple[Column, ...]
    targets: tuple[str, ...]
    input_scaler: Standardizer
    target_scaler: Standardizer


def encode(table: Table, columns: Sequence[Column]) -> Float[np.ndarray, "n d"]:
    """The columns' cells as inputs, side by side."""
    return np.concatenate([column.encode(table) for column in columns], axis=1)


def prepare(
    table: Table,
    targets: Sequence[str],
    categories: Collection[str] = (),
    fraction: float = 0.8,
    seed: int = 0,
) -> Task:
    """Encode, split and standardise a table.

    Args:
        table: the table; every column that is no target becomes an input.
        targets: the columns to predict, all numbers.
        categories: columns to take for categories whatever their cells are.
        fraction: how much of the rows is for training.
        seed: of the split.

    Returns:
        The samples, and what it takes to encode others like them.

    Raises:
        ValueError: if a column is missing or constant, a cell is missing or no number, or there
            are fewer than 10 rows.

    Example:
        >>> x = np.linspace(0, 1, 20)
        >>> task = prepare(Table({"x": x, "y": x**2}, np.arange(20), "parabola"), ["y"])
        >>> task.train.inputs.shape, task.validation.targets.shape
        ((16, 1), (4, 1))
    """
    names = inputs_of(table, targets)
    for name in categories:
        table.cells(name)
    if len(table) < LEAST_ROWS:
        raise ValueError(
            f"{table.source} has {len(table)} rows; training and validation need at least "
            f"{LEAST_ROWS}"
        )
    for name in targets:
        if table.is_category(name) or name in categories:
            cell = str(table.cells(name)[0])
            raise ValueError(
                f"{table.source}: the target {name!r} holds categories, such as {cell!r}, not "
                "numbers to predict; choose another, or write numbers as 1.5"
            )
        varied(table, name, table.numbers(name).tolist())
    inputs = tuple(Column.of(table, name, name in categories) for name in names)
    x = encode(table, inputs)
    y = np.stack([table.numbers(name) for name in targets], axis=1)
    first, second = split(len(table), fraction, seed)
    scale_x, scale_y = Standardizer.of(x[first]), Standardizer.of(y[first])

    def batch(rows: Any) -> Batch:
        return Batch(*(jnp.asarray(v, jnp.float32) for v in (scale_x(x[rows]), scale_y(y[rows]))))

    return Task(batch(first), batch(second), inputs, tuple(targets), scale_x, scale_y)


@dataclass(frozen=True)
class Regressor:
    """A trained network with all it needs to predict from a table.

    Attributes:
        layers: the network's parameters.
        activation: after every layer but the last.
        inputs: the columns it reads.
        targets: the columns it predicts.
        input_scaler: of the encoded inputs.
        target_scaler: of the targets.
    """

    layers: tuple[Layer, ...]
    activation: PiecewiseLinear
    inputs: tuple[Column, ...]
    targets: tuple[str, ...]
    input_scaler: Standardizer
    target_scaler: Standardizer

    def predict(self, table: Table) -> Float[np.ndarray, "n dN"]:
        """Predictions in the targets' original units.

        Args:
            table: has the input columns, in any order; others are ignored.

        Returns:
            One row a row of the table, one column a target.

        Raises:
            ValueError: if a column or a cell is missing, no number or an unknown category.
        """
        x = jnp.asarray(self.input_scaler(encode(table, self.inputs)), jnp.float32)
        # In chunks, so that memory does not grow with the table.
        y = jax.lax.map(
            lambda row: apply(self.layers, row[None], self.activation)[0], x, batch_size=4096
        )
        return self.target_scaler.inverse(np.asarray(y, np.float64))

    def save(self, path: str | Path) -> None:
        """Write the model to an npz file, whole or not at all."""
        arrays: dict[str, Any] = {}
        for k, layer in enumerate(self.layers):
            arrays[f"kernel_{k}"] = layer.kernel
            arrays[f"bias_{k}"] = layer.bias
        for name in ("input_scaler", "target_scaler"):
            scaler: Standardizer = getattr(self, name)
            arrays[f"{name}_mean"], arrays[f"{name}_scale"] = scaler.mean, scaler.scale
        description = {
            "format": 1,
            "activation": asdict(self.activation),
            "inputs": [asdict(column) for column in self.inputs],
            "targets": self.targets,
        }
        file = io.BytesIO()
        np.savez(file, description=json.dumps(description), **arrays)
        write_whole(Path(path), file.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> "Regressor":
        """Read a model that [`save`][jaxmpd.regressor.Regressor.save] wrote.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if it is no such model.
        """
        arrays = read_arrays(Path(path))
        try:
            about = json.loads(str(arrays["description"]))
            number = sum(name.startswith("kernel_") for name in arrays)
            layers = tuple(
                Layer(jnp.asarray(arrays[f"kernel_{k}"]), jnp.asarray(arrays[f"bias_{k}"]))
                for k in range(number)
            )
            activation = {key: tuple(value) for key, value in about["activation"].items()}
            return cls(
                layers,
                PiecewiseLinear(**activation),
                tuple(Column(c["name"], tuple(c["levels"])) for c in about["inputs"]),
                tuple(about["targets"]),
                *(
                    Standardizer(arrays[f"{name}_mean"], arrays[f"{name}_scale"])
                    for name in ("input_scaler", "target_scaler")
                ),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is not a model saved by jaxmpd ({error!r})") from error
