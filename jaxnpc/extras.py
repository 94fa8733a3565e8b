"""Optional packages: imported where they are used, and asked for by the name of their extra."""

import importlib
from typing import Any

EXTRAS: dict[str, str] = {
    "matplotlib": "plots",
    "sklearn": "data",
    "PIL": "data",
    "foolbox": "attacks",
    "eagerpy": "attacks",
}
"""The extra of this distribution that installs each optional package."""


def require(module: str) -> Any:
    """Import an optional module.

    Args:
        module: its dotted name, for example "matplotlib.pyplot".

    Returns:
        The module.

    Raises:
        ImportError: if it is not installed, naming the extra that installs it.

    Example:
        >>> require("sklearn.datasets").__name__
        'sklearn.datasets'
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f'{package} is not installed; pip install "jaxmpd-npc[{EXTRAS[package]}]" brings it'
        ) from error
