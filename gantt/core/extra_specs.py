# SPDX-License-Identifier: Apache-2.0
"""The operators of Nova's extra specs, as total functions: nothing here ever raises.

A requirement is text such as ``>= 4`` or ``<in> avx``; without an operator the
whole text must be equal.  Both sides are text and stay what they are: what is
no number matches no numeric operator, ``!=`` included, for then it is not known.
"""

import operator
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from gantt.core.columns import BoolArray, FloatArray, IntArray

#: Words of a requirement that are looked at, at most.
WORDS_MAX = 256

_NUMERIC: dict[str, Callable[[Any, Any], Any]] = {
    '=': operator.ge,  # Nova's oldest surprise: at least
    '>=': operator.ge,
    '<=': operator.le,
    '==': operator.eq,
    '!=': operator.ne,
}
_TEXTUAL: dict[str, Callable[[str, str], bool]] = {
    's==': operator.eq,
    's!=': operator.ne,
    's<': operator.lt,
    's<=': operator.le,
    's>': operator.gt,
    's>=': operator.ge,
}
_IN, _ALL_IN, _OR = '<in>', '<all-in>', '<or>'

#: Every operator; each has to stand alone, with a space behind it.
OPERATORS = frozenset({*_NUMERIC, *_TEXTUAL, _IN, _ALL_IN, _OR})


class Requirement(msgspec.Struct, frozen=True):
    """A requirement, parsed.

    :ivar operator: '' where the whole text must be equal
    :ivar operands: of ``<or>`` the alternatives; of the others at least one, else nothing fits
    :ivar number: the operand of a numeric operator, None where it is no number
    """

    text: str
    operator: str = ''
    operands: tuple[str, ...] = ()
    number: float | None = None

    @property
    def is_numeric(self) -> bool:
        return self.operator in _NUMERIC

    def fits(self, value: str, items: frozenset[str] | None = None) -> bool:
        """Whether a value fits.

        :param items: of a list of values each as text; then ``<in>`` and ``<all-in>``
            mean membership instead of being contained in the text
        """
        op = self.operator
        if not op:
            return value == self.text
        if op in _NUMERIC:
            number = number_of(value)
            if number is None or self.number is None:
                return False
            return bool(_NUMERIC[op](number, self.number))
        if not self.operands:
            return False
        if op in _TEXTUAL:
            return _TEXTUAL[op](value, self.operands[0])
        if op == _OR:
            return value in self.operands
        wanted = self.operands if op == _ALL_IN else self.operands[:1]
        return all(word in (value if items is None else items) for word in wanted)

    def fits_numbers(self, values: IntArray | FloatArray) -> BoolArray | None:
        """As :meth:`fits` for numbers at once; None where they are to be compared as text."""
        if self.operator not in _NUMERIC:
            return None
        if self.number is None:
            return np.zeros(len(values), np.bool_)
        found: BoolArray = _NUMERIC[self.operator](values, self.number)
        return found & (values == values)


def parse(text: str, *, as_nova: bool = False) -> Requirement:
    """A requirement from its text.

    :param as_nova: of ``<or> a b c`` take every other word; otherwise an alternative is
        everything up to the next ``<or>``
    """
    words = text.split(maxsplit=WORDS_MAX)[:WORDS_MAX]
    if not words or words[0] not in OPERATORS:
        return Requirement(text)
    op, operands = words[0], words[1:]
    if op == _OR:
        operands = operands[::2] if as_nova else _alternatives(operands)
    number = number_of(operands[0]) if op in _NUMERIC and operands else None
    return Requirement(text, op, tuple(operands), number)


def _alternatives(words: list[str]) -> list[str]:
    found: list[list[str]] = [[]]
    for word in words:
        if word == _OR:
            found.append([])
        else:
            found[-1].append(word)
    return [' '.join(alternative) for alternative in found if alternative]


def match(value: str, text: str, *, as_nova: bool = False) -> bool:
    """Whether a value meets a requirement that is given as text."""
    return parse(text, as_nova=as_nova).fits(value)


def number_of(text: str) -> float | None:
    """Text as a number, as Python reads it (``1e3``, ``1_000``, ``inf``); None: it is none."""
    try:
        number = float(text)
    except ValueError:
        return None
    return None if number != number else number


def integer_of(text: str) -> int | None:
    """Text as a whole number (`` 5 ``, ``-1``, ``1_0``); None: it is none."""
    try:
        return int(text)
    except ValueError:
        return None
