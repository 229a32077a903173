# SPDX-License-Identifier: Apache-2.0
"""Benches: one module each, run as ``python -m bench NAME --json``.

A module has ``add_arguments(parser)`` and ``run(args) -> Result``.  The figure
that counts is the ratio to a yardstick measured in the same run, in turn with
it: a number alone depends more on the machine than about the code.
"""

import argparse

import msgspec


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Figures that a bench prints as its last line.

    :ivar yardstick: its name and value, in the same unit
    :ivar ratio: value / yardstick value
    :ivar audit: violations of the promises found afterwards; must be 0
    """

    bench: str
    value: float
    unit: str
    yardstick: dict[str, object]
    ratio: float
    conditions: dict[str, object]
    audit: int = 0


def count(text: str) -> int:
    """Return a number of things, as an argument.  :raises ArgumentTypeError:"""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f'expected a whole number from 1 on; got {text!r}')
    return int(text)
