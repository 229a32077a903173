# SPDX-License-Identifier: Apache-2.0
"""Common parts of the command lines: the exit code of wrong usage, numbers within bounds."""

import argparse
import sys
from collections.abc import Callable
from typing import NoReturn

from gantt.cmd import USAGE

#: Of a seed, and of what has no other bound.
MOST = 2**63 - 1


class ArgumentParser(argparse.ArgumentParser):
    """Wrong usage has an exit code of its own: 2 means something else here."""

    def error(self, message: str) -> NoReturn:
        """Print the error and exit."""
        self.print_usage(sys.stderr)
        self.exit(USAGE, f'{self.prog}: {message}\n')


def whole(most: int = MOST, least: int = 1) -> Callable[[str], int]:
    """Return an argument type: a whole number within bounds."""

    def parse(text: str) -> int:
        number = int(text) if text.isdecimal() and len(text) < 20 else least - 1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(
                f'expected a whole number from {least} to {most}, got {text!r}'
            )
        return number

    return parse
