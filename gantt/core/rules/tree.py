# SPDX-License-Identifier: Apache-2.0
"""The syntax tree of conditions.

A tree of frozen structs: the result of parsing the text form, and, as JSON, a second
form.  The left side of a comparison is always a fact; the parser of the text form swaps
the sides of comparisons that are written the other way.
"""

import json
import math
from collections.abc import Iterator
from typing import Any

import msgspec

from gantt.core.messages import base

#: Bounds, all checked before anything is evaluated.
TEXT_MAX = 4096  # characters of one rule
NODES_MAX = 128  # tests and connectives of one rule
DEPTH_MAX = 32  # of nesting
LIST_MAX = 64  # items of one list
LITERAL_MAX = 255  # characters of one text in a rule
#: Larger numbers are not exact in the arrays.
NUMBER_MAX = 2**53


class Bounds(msgspec.Struct, frozen=True):
    """Upper bounds of a tree: nodes, levels, items of a list, characters of a text."""

    nodes: int
    depth: int
    items: int
    text: int


#: Bounds of rules written by users and operators.
WRITTEN_BOUNDS = Bounds(NODES_MAX, DEPTH_MAX, LIST_MAX, LITERAL_MAX)
#: Bounds of compiled conditions of Nova's forms, whose terms take several nodes here.
COMPILED_BOUNDS = Bounds(nodes=1024, depth=256, items=256, text=base.BYTES_MAX)


class Ref(msgspec.Struct, frozen=True, tag='fact', tag_field='is', forbid_unknown_fields=True):
    """Another fact, on the right side of a comparison."""

    name: str


class VersionNumber(
    msgspec.Struct, frozen=True, tag='version', tag_field='is', forbid_unknown_fields=True
):
    """A version, e.g. 4.2.1; missing parts count as 0."""

    text: str

    @property
    def parts(self) -> tuple[int, ...]:
        """Numbers of the version, without zeros at the end."""
        return version_parts(self.text) or ()


class Range(msgspec.Struct, frozen=True, tag='range', tag_field='is', forbid_unknown_fields=True):
    """A range ``low`` to ``high``, both included; an end that is left out is open."""

    low: int | float | VersionNumber | None = None
    high: int | float | VersionNumber | None = None


class Json(msgspec.Struct, frozen=True, tag='json', tag_field='is', forbid_unknown_fields=True):
    """A value of any type as its JSON, for facts that may be anything."""

    text: str

    @property
    def value(self) -> Any:
        """Decoded value.

        :raises ValueError: the text is not JSON
        """
        try:
            return json.loads(self.text)
        except RecursionError:
            raise ValueError('nested too deeply') from None


Item = int | float | str | VersionNumber
Operand = bool | int | float | str | tuple[Item, ...] | Ref | VersionNumber | Range | Json


class Node(msgspec.Struct, frozen=True, tag_field='op', forbid_unknown_fields=True):
    """Base of all nodes."""


class And(Node, frozen=True, tag='and'):
    """Conjunction: every one of ``of`` holds; an empty one holds."""

    of: tuple['Expr', ...]


class Or(Node, frozen=True, tag='or'):
    """Disjunction: at least one of ``of`` holds; an empty one does not."""

    of: tuple['Expr', ...]


class Not(Node, frozen=True, tag='not'):
    """Negation: ``of`` is known not to hold."""

    of: 'Expr'


class Always(Node, frozen=True, tag='always'):
    """A constant: true for all hosts, or for none."""

    value: bool


class Known(Node, frozen=True, tag='known'):
    """Test whether the host has the fact at all."""

    fact: str


class Some(Node, frozen=True, tag='some'):
    """Test whether the host has the fact, and it is neither 0, false nor empty."""

    fact: str


class Comparison(Node, frozen=True):
    """Base of comparisons of a fact with a value."""

    fact: str
    value: Operand


class Less(Comparison, frozen=True, tag='<'):
    """Comparison: smaller."""


class LessEqual(Comparison, frozen=True, tag='<='):
    """Comparison: smaller or equal."""


class Greater(Comparison, frozen=True, tag='>'):
    """Comparison: larger."""


class GreaterEqual(Comparison, frozen=True, tag='>='):
    """Comparison: larger or equal."""


class Equal(Comparison, frozen=True, tag='=='):
    """Comparison: equal; of a set: one of its members is."""


class NotEqual(Comparison, frozen=True, tag='!='):
    """Comparison: ``not (… == …)``."""


class In(Comparison, frozen=True, tag='in'):
    """Comparison: in a list, within a range, or at or below a place."""


class Contains(Comparison, frozen=True, tag='contains'):
    """Comparison: a text contains the other, or all of a list; a set has it as a member."""


Expr = (
    And
    | Or
    | Not
    | Always
    | Known
    | Some
    | Less
    | LessEqual
    | Greater
    | GreaterEqual
    | Equal
    | NotEqual
    | In
    | Contains
)

COMPARISON_BY_OPERATOR: dict[str, type[Comparison]] = {
    '<': Less,
    '<=': LessEqual,
    '>': Greater,
    '>=': GreaterEqual,
    '==': Equal,
    '!=': NotEqual,
    'in': In,
    'contains': Contains,
}
#: Relation -> the relation with swapped sides.
SWAPPED_OPERATORS = {'<': '>', '<=': '>=', '>': '<', '>=': '<=', '==': '==', '!=': '!='}


class TooLarge(Exception):
    """A tree is beyond a bound."""


def op_of(node: Node) -> str:
    """Return the operator of a node."""
    return str(node.__struct_config__.tag)


def children(node: Expr) -> tuple[Expr, ...]:
    """Return the child nodes of a node."""
    if isinstance(node, And | Or):
        return node.of
    return (node.of,) if isinstance(node, Not) else ()


def walk(expr: Expr) -> Iterator[tuple[Expr, int]]:
    """Yield every node with its depth, without recursion."""
    todo: list[tuple[Expr, int]] = [(expr, 1)]
    while todo:
        node, depth = todo.pop()
        yield node, depth
        todo.extend((child, depth + 1) for child in children(node))


def check_size(expr: Expr, bounds: Bounds = WRITTEN_BOUNDS) -> None:
    """Check that a tree is within bounds.

    :raises TooLarge: names the bound
    """
    for count, (node, depth) in enumerate(walk(expr), 1):
        if count > bounds.nodes:
            raise TooLarge(f'expected at most {bounds.nodes} tests and connectives in one rule')
        if depth > bounds.depth:
            raise TooLarge(f'expected at most {bounds.depth} levels of nesting')
        value = getattr(node, 'value', None)
        if isinstance(value, tuple) and len(value) > bounds.items:
            raise TooLarge(f'expected at most {bounds.items} items in a list, got {len(value)}')
        if any(isinstance(v, str) and len(v) > bounds.text for v in _texts(node, value)):
            raise TooLarge(f'expected texts of at most {bounds.text} characters')


def _texts(node: Expr, value: object) -> tuple[object, ...]:
    fact_names = (getattr(node, 'fact', ''),)
    if isinstance(value, tuple):
        return fact_names + tuple(v.text if isinstance(v, VersionNumber) else v for v in value)
    if isinstance(value, VersionNumber | Json):
        return (*fact_names, value.text)
    if isinstance(value, Range):
        ends = (value.low, value.high)
        return fact_names + tuple(e.text for e in ends if isinstance(e, VersionNumber))
    return (*fact_names, value.name if isinstance(value, Ref) else value)


def version_parts(text: str) -> tuple[int, ...] | None:
    """Return the numbers of ``4.2.1`` or ``v4.2.1`` without zeros at the end; None: no version."""
    parts = text.removeprefix('v').split('.')
    if len(text) > LITERAL_MAX or not all(p.isascii() and p.isdigit() for p in parts):
        return None
    numbers = [int(p) for p in parts]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


# -- as text -----------------------------------------------------------------------

_WEAKER_CONNECTIVES = {And: (Or,), Or: ()}
_UNPARENTHESIZED = Always | Known | Some | Not


def to_text(expr: Expr) -> str:
    """Return the text form; parsing it returns the same tree, if it is within the bounds."""
    if isinstance(expr, And | Or):
        if len(expr.of) == 1:
            return to_text(expr.of[0])
        if not expr.of:
            return 'true' if isinstance(expr, And) else 'false'
        # One connective in another of the same kind keeps its parentheses.
        parts = [
            f'({to_text(x)})'
            if isinstance(x, (type(expr), *_WEAKER_CONNECTIVES[type(expr)]))
            else to_text(x)
            for x in expr.of
        ]
        return f' {op_of(expr)} '.join(parts)
    if isinstance(expr, Not):
        inner = to_text(expr.of)
        return f'not {inner}' if isinstance(expr.of, _UNPARENTHESIZED) else f'not ({inner})'
    if isinstance(expr, Always):
        return 'true' if expr.value else 'false'
    if isinstance(expr, Known | Some):
        return f'{op_of(expr)} {name_text(expr.fact)}'
    return f'{name_text(expr.fact)} {op_of(expr)} {operand_text(expr.value)}'


def operand_text(value: Operand | None) -> str:
    """Return the right side of a comparison as text."""
    if isinstance(value, bool):
        return 'true' if value else 'false'
    if isinstance(value, str):
        escaped = value.replace('\\', '\\\\').replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, tuple):
        return f'[{", ".join(operand_text(item) for item in value)}]'
    if isinstance(value, Ref):
        return name_text(value.name)
    if isinstance(value, VersionNumber):
        return f'v{value.text.removeprefix("v")}'
    if isinstance(value, Range):
        return f'{_range_end_text(value.low)}..{_range_end_text(value.high)}'
    if isinstance(value, Json):
        return f'json {operand_text(value.text)}'
    return repr(value)


def _range_end_text(value: int | float | VersionNumber | None) -> str:
    return '' if value is None else operand_text(value)


def name_text(name: str) -> str:
    """Return a name as text, with quotes where its parts need them."""
    first, *rest = name.split('.')
    if all(is_plain(part) for part in rest):
        return name
    # Of a quoted part only the whole remainder is a key, dots included.
    return f'{first}.{operand_text(".".join(rest))}'


def is_plain(part: str) -> bool:
    """Return whether a part of a name needs no quotes."""
    return (
        bool(part)
        and part.isascii()
        and part.replace('-', '_').replace(':', '_').replace('_', 'a').isalnum()
        and part[0] not in '-:'
    )


def is_number(value: object) -> bool:
    """Return whether a value is a number that is exact in the arrays."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and abs(value) <= NUMBER_MAX
    )
