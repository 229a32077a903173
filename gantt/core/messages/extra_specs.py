# SPDX-License-Identifier: Apache-2.0
"""Parser of the requirements of Nova's extra specs: nothing here ever raises.

A requirement is text such as ``>= 4`` or ``<in> avx``; without an operator the whole text must be
equal.  It is translated into the language of rules by :mod:`gantt.core.rules.nova_json`.
"""

import msgspec

#: Most tokens of a requirement that are read.
SPEC_WORDS_MAX = 256

_NUMERIC_OPERATORS = ('=', '>=', '<=', '==', '!=')
_TEXT_OPERATORS = ('s==', 's!=', 's<', 's<=', 's>', 's>=')
_OR_OPERATOR = '<or>'

#: All operators; each has to be followed by a space.
OPERATORS = frozenset({*_NUMERIC_OPERATORS, *_TEXT_OPERATORS, '<in>', '<all-in>', _OR_OPERATOR})


class Requirement(msgspec.Struct, frozen=True):
    """A requirement, parsed.

    :ivar operator: '' where the whole text must be equal
    :ivar operands: of ``<or>`` the alternatives; any other operator needs at least one operand,
        else nothing fits
    :ivar number: the operand of a numeric operator, None where it is no number
    """

    text: str
    operator: str = ''
    operands: tuple[str, ...] = ()
    number: float | None = None


def parse(text: str, *, as_nova: bool = False) -> Requirement:
    """Return a requirement from its text.

    :param as_nova: in ``<or> a b c`` take every other token; otherwise an alternative is everything
        up to the next ``<or>``
    """
    words = text.split(maxsplit=SPEC_WORDS_MAX)[:SPEC_WORDS_MAX]
    if not words or words[0] not in OPERATORS:
        return Requirement(text)
    op, operands = words[0], words[1:]
    if op == _OR_OPERATOR:
        operands = operands[::2] if as_nova else _alternatives(operands)
    number = number_of(operands[0]) if op in _NUMERIC_OPERATORS and operands else None
    return Requirement(text, op, tuple(operands), number)


def _alternatives(words: list[str]) -> list[str]:
    alternatives: list[list[str]] = [[]]
    for word in words:
        if word == _OR_OPERATOR:
            alternatives.append([])
        else:
            alternatives[-1].append(word)
    return [' '.join(alternative) for alternative in alternatives if alternative]


def number_of(text: str) -> float | None:
    """Return a text as a number, as Python reads it (``1e3``, ``inf``, ``1_000``), or None."""
    try:
        number = float(text)
    except ValueError:
        return None
    return None if number != number else number


def integer_of(text: str) -> int | None:
    """Return text as a whole number (`` 5 ``, ``-1``, ``1_0``); None: it is none."""
    try:
        return int(text)
    except ValueError:
        return None
