# SPDX-License-Identifier: Apache-2.0
"""The operators of Nova's extra specs, slow and plain: one value against one requirement."""

import operator

from gantt.core.messages import extra_specs

NUMERIC = {
    '=': operator.ge,
    '>=': operator.ge,
    '<=': operator.le,
    '==': operator.eq,
    '!=': operator.ne,
}
TEXTUAL = {
    's==': operator.eq,
    's!=': operator.ne,
    's<': operator.lt,
    's<=': operator.le,
    's>': operator.gt,
    's>=': operator.ge,
}


def match(
    value: str, text: str, as_nova: bool = False, items: frozenset[str] | None = None
) -> bool:
    """Return whether a value meets a requirement.

    :param items: of a list its members as text, the operands of <in> and <all-in>
    """
    requirement = extra_specs.parse(text, as_nova=as_nova)
    op, operands = requirement.operator, requirement.operands
    if not op:
        return value == text
    if op in NUMERIC:
        number = extra_specs.number_of(value)
        if number is None or requirement.number is None:
            return False
        return NUMERIC[op](number, requirement.number)
    if not operands:
        return False
    if op in TEXTUAL:
        return TEXTUAL[op](value, operands[0])
    if op == '<or>':
        return value in operands
    words = operands if op == '<all-in>' else operands[:1]
    return all(word in (value if items is None else items) for word in words)
