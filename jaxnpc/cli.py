"""The command line: `jaxnpc train`, `jaxnpc certify`, `jaxnpc report` and `jaxnpc predict`."""

import argparse
import sys
from collections.abc import Sequence

import jax

from jaxmpd.options import Parser
from jaxnpc.commands import certify, predict, report, train

COMMANDS = (train, certify, report, predict)


def build_parser() -> Parser:
    """The commands and their options."""
    parser = Parser(
        prog="jaxnpc",
        description="Nearest-prototype classifiers whose robustness is proved.",
        epilog="Example: jaxnpc train mnist:train --box 0 1 --radii 1.58 --output model.npz, then "
        "jaxnpc report model.npz mnist --output report",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    for command in COMMANDS:
        command.add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: the arguments; by default those of the process.

    Returns:
        The exit status: 0, or after one line on standard error 2 for what was wrong and 130 for an
        interrupt from the keyboard.
    """
    arguments = argparse.Namespace()
    try:
        arguments = build_parser().parse_args(argv)
        arguments.command(arguments)
    except KeyboardInterrupt:
        resumable = getattr(arguments, "resume", None) is not None
        advice = "; continue with --resume" if resumable else ""
        print(f"\njaxnpc: stopped{advice}", file=sys.stderr)
        return 130
    except (ValueError, TypeError, OSError, ImportError) as error:
        return _failed(str(error))
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        full = isinstance(error, MemoryError) or "out of memory" in str(error).lower()
        return _failed(
            f"out of memory: try fewer points at a time ({error})" if full else str(error)
        )
    return 0


def _failed(message: str) -> int:
    print(f"jaxnpc: error: {' '.join(message.split())}", file=sys.stderr)
    return 2
