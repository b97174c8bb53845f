"""The command line that all programs share."""

from __future__ import annotations

import argparse


def parse(description: str, *names: str, **counts: int) -> argparse.Namespace:
    """Read the command line.

    Args:
        description: The first line of the program's docstring.
        names: Words, one of which is the first argument; none = there is no such argument.
        counts: Options that take a whole number, with their defaults.
    """
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    if names:
        parser.add_argument("what", choices=names)
    parser.add_argument("--rounds", type=int, default=1)
    for name, default in counts.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()
