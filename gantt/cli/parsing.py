# SPDX-License-Identifier: Apache-2.0
"""A parser of command lines, and types of their arguments."""

import argparse
import math
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from gantt.cli.endpoint import Exit
from gantt.core.messages.near import did_you_mean, nearest_names
from gantt.core.messages.resource_classes import MILLI_VCPU, MILLIS_PER_UNIT

#: Bound of a seed, and of what has no other.
SEED_MAX = 2**63 - 1
#: Colloquial name of a resource -> the argument of ``--resource``.
_RESOURCE_HINTS = {
    'vcpu': 'VCPU=2',
    'cpu': 'VCPU=2',
    'core': 'VCPU=2',
    'pcpu': 'PCPU=2',
    'ram': 'MEMORY_MB=4096',
    'memory': 'MEMORY_MB=4096',
    'memory-mb': 'MEMORY_MB=4096',
    'disk': 'DISK_GB=20',
    'disk-gb': 'DISK_GB=20',
}


class Parser(argparse.ArgumentParser):
    """A parser whose exit code for wrong usage is not 2, which is no valid host."""

    def error(self, message: str) -> NoReturn:
        """Print the error and exit."""
        self.print_usage(sys.stderr)
        self.exit(Exit.USAGE, f'{self.prog}: error: {message}\n')

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments; an unknown one is an error that suggests a known one."""
        parsed, rest = self.parse_known_args(args, namespace)
        if rest:
            self.error(self._unknown_argument_error(rest))
        return parsed

    def _unknown_argument_error(self, rest: Sequence[str]) -> str:
        options = [argument.partition('=')[0] for argument in rest if argument.startswith('-')]
        if not options:
            return f'{rest[0]!r} is one argument too many'
        known_options = self._option_string_actions
        problem = f'there is no option {options[0]}'
        resource = _RESOURCE_HINTS.get(options[0].strip('-').lower().removesuffix('s'))
        if resource is not None and '--resource' in known_options:
            return f'{problem}; say --resource {resource}'
        return (
            f'{problem}{did_you_mean(nearest_names(options[0], known_options)) or "; see --help"}'
        )


def whole_number(least: int, most: int) -> Any:
    """Return an argument type: a whole number within bounds."""

    def parse(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(
                f'expected a whole number from {least} to {most}, got {value!r}'
            )
        return number

    return parse


def shell_name(value: str) -> str:
    """Return the beginning of names of shell variables."""
    if value and not re.fullmatch(r'[A-Za-z_][A-Za-z0-9_]*', value):
        raise argparse.ArgumentTypeError(
            f'expected letters, digits and _, and no digit first, as a shell names variables; '
            f'got {value!r}'
        )
    return value


def number(least: float, most: float, *, exclusive: bool = False) -> Any:
    """Return an argument type: a number within bounds.

    :param exclusive: exclude ``least`` itself
    """
    bounds = f'above {least:g}, at most {most:g}' if exclusive else f'from {least:g} to {most:g}'

    def parse(value: str) -> float:
        try:
            result = float(value)
        except ValueError:
            result = math.nan
        if not (least < result if exclusive else least <= result) or not result <= most:
            raise argparse.ArgumentTypeError(f'expected a number {bounds}, got {value!r}')
        return result

    return parse


#: An argument type: any number that JSON has.
any_number = number(-sys.float_info.max, sys.float_info.max)


def resource(value: str) -> tuple[str, int]:
    """Parse an argument such as ``VCPU=2``."""
    name, equals, number = value.partition('=')
    if name == 'VCPU' and re.fullmatch(r'\d{1,9}\.\d{1,3}', number) and float(number):
        thousandths = round(float(number) * MILLIS_PER_UNIT)
        raise argparse.ArgumentTypeError(
            f'a part of a processor is asked for in thousandths: {MILLI_VCPU}={thousandths}; '
            f'got {value!r}'
        )
    if not (equals and name and number.isdecimal() and len(number) < 20 and int(number) > 0):
        raise argparse.ArgumentTypeError(
            f'expected CLASS=AMOUNT with a whole number above 0, such as VCPU=2 '
            f'or MEMORY_MB=4096; got {value!r}'
        )
    return name, int(number)


def devices(value: str) -> dict[str, Any]:
    """Parse an argument such as ``VGPU=500x2``, ``PGPU=whole`` or ``PGPU=wholex4``."""
    name, _, rest = value.partition('=')
    amount, times, count = rest.partition('x')
    numbers = [amount] * (amount != 'whole') + [count] * bool(times)
    if not name or not all(
        digits.isdecimal() and len(digits) < 20 and int(digits) > 0 for digits in numbers
    ):
        raise argparse.ArgumentTypeError(
            f'expected CLASS=AMOUNT, CLASS=AMOUNTxCOUNT or CLASS=whole with whole numbers above 0, '
            f'such as VGPU=500x2; got {value!r}'
        )
    group: dict[str, Any] = {'resource_class': name}
    if amount == 'whole':
        group['whole'] = True
    else:
        group['amount'] = int(amount)
    if count:
        group['count'] = int(count)
    return group


def hint(value: str) -> tuple[str, str]:
    """Parse an argument ``NAME=VALUE``."""
    name, equals, rest = value.partition('=')
    if not (equals and name and rest):
        raise argparse.ArgumentTypeError(
            f'expected NAME=VALUE, such as location=site1.room2; got {value!r}'
        )
    return name, rest


def pair(value: str) -> tuple[str, str | None]:
    """Parse an argument ``key=value``; ``key=`` removes the key."""
    name, equals, rest = value.partition('=')
    if not (equals and name):
        raise argparse.ArgumentTypeError(f'expected KEY=VALUE, got {value!r}')
    return name, rest or None
