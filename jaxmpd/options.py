"""Command-line options: values with bounds, and errors of one line that name option and value."""

import argparse
import math
import re
from collections.abc import Callable
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """A parser that leaves the word about errors to its caller and takes all floats as values."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # argparse knows -1 and -.5 by itself, but takes -1e3 and -inf for options.
        self._negative_number_matcher = re.compile(r"-(\d|\.\d|inf|nan)", re.IGNORECASE)

    def error(self, message: str) -> NoReturn:
        """Raise a ValueError instead of printing the usage and leaving."""
        raise ValueError(f"{message} (see {self.prog} --help)")


def whole(least: int, most: float = math.inf) -> Callable[[str], int]:
    """Reads an option's whole number within bounds.

    Args:
        least: the smallest number allowed.
        most: the largest.

    Returns:
        A function of the option's text, for argparse's `type`.

    Example:
        >>> whole(1)("12")
        12
        >>> whole(1)("0")
        Traceback (most recent call last):
        argparse.ArgumentTypeError: must be a whole number of at least 1, got '0'
    """

    def read(text: str) -> int:
        try:
            if least <= int(text) <= most:
                return int(text)
        except ValueError:
            pass
        bound = "" if most == math.inf else f" and at most {most}"
        raise argparse.ArgumentTypeError(
            f"must be a whole number of at least {least}{bound}, got {text!r}"
        )

    return read


def real(*, positive: bool, infinite: bool = False) -> Callable[[str], float]:
    """Reads an option's number that is positive, or at least not negative.

    Args:
        positive: whether 0 is refused.
        infinite: whether infinity is allowed.

    Returns:
        A function of the option's text, for argparse's `type`.

    Example:
        >>> real(positive=True)("1e-3")
        0.001
        >>> real(positive=True)("0")
        Traceback (most recent call last):
        argparse.ArgumentTypeError: must be a number above 0, got '0'
    """

    def read(text: str) -> float:
        try:
            value = float(text)
            if value >= 0 and (value > 0 or not positive) and (value < math.inf or infinite):
                return value
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(
            f"must be a number {'above' if positive else 'of at least'} 0, got {text!r}"
        )

    return read
