# SPDX-License-Identifier: Apache-2.0
"""Queries of Nova's JsonFilter as conditions of the rule language.

What :mod:`gantt.core.nova_query` asks directly, said as a rule: for who moves from
the hint ``query`` to rules, and so that a query may be soft or be given up.  It
holds for the very hosts that the query fits, ``not`` within ``and`` and ``or``
meaning what it says: what a host lacks makes a comparison false, its opposite true.
"""

from collections.abc import Callable
from typing import Any

from gantt import exceptions
from gantt.core import nova_query
from gantt.core.nova_query import Condition, Literal, Look, Part
from gantt.core.rules import tree
from gantt.core.rules.expression import Expression
from gantt.core.rules.parser import checked

FIELD = nova_query.FIELD
_YES, _NO = tree.Always(value=True), tree.Always(value=False)

#: Facts of Nova that are texts here, and those that are numbers.
TEXTS = {
    'host': 'name', 'nodename': 'node', 'hypervisor_hostname': 'node', 'cell_uuid': 'cell',
    'host_ip': 'hypervisor.host_ip', 'hypervisor_type': 'hypervisor.type',
}  # fmt: skip
NUMBERS = {
    'vcpus_total': 'total.VCPU', 'total_usable_ram_mb': 'total.MEMORY_MB',
    'total_usable_disk_gb': 'total.DISK_GB', 'free_ram_mb': 'physical.MEMORY_MB',
    'cpu_allocation_ratio': 'ratio.VCPU', 'ram_allocation_ratio': 'ratio.MEMORY_MB',
    'disk_allocation_ratio': 'ratio.DISK_GB', 'num_io_ops': 'io_ops', 'num_instances': 'guests',
    'failed_builds': 'failed_builds',
}  # fmt: skip


def expression(text: str) -> Expression:
    """The condition that a query is.

    :raises InvalidMessage: the query is not understood
    :raises InvalidRule: it is, and cannot be said as a rule; says which part
    """
    query = nova_query.parse(text)
    return checked(_YES if query is None else _test(query), FIELD)


def _test(test: Condition) -> tree.Expr:
    if test.op == 'not':
        # At the top, and within others, it holds where any of its arguments does not.
        return _joined(tree.Or, [tree.Not(of=_truth(part)) for part in test.of], _NO)
    if test.op in ('and', 'or'):
        kind, empty = (tree.And, _YES) if test.op == 'and' else (tree.Or, _NO)
        return _joined(kind, [_truth(part) for part in test.of], empty)
    return _compared(test)


def _joined(kind: type[tree.And | tree.Or], parts: list[tree.Expr], empty: tree.Expr) -> tree.Expr:
    if not parts:
        return empty
    return parts[0] if len(parts) == 1 else kind(of=tuple(parts))


def _truth(part: Part) -> tree.Expr:
    if isinstance(part, Condition):
        return _test(part)
    if isinstance(part, Literal):
        return _YES if part.value else _NO
    raise _beyond(f'${".".join(part.path)} on its own')


def _compared(test: Condition) -> tree.Expr:
    """A comparison of one fact with values; the fact may stand anywhere."""
    places = [k for k, part in enumerate(test.of) if isinstance(part, Look)]
    if any(isinstance(part, Condition) for part in test.of) or len(places) > 1:
        raise _beyond(f'{test.op!r} of more than one fact')
    values = [part.value for part in test.of if isinstance(part, Literal)]
    without = _YES if nova_query.holds(test.op, values) else _NO
    if not places:
        return without
    look = test.of[places[0]]
    assert isinstance(look, Look)
    names = _names(look)
    found = _with_fact(test.op, places[0], values, lambda op, v: _one(op, names, v))
    # Where a host lacks the fact, what is left of the comparison decides.
    known = _joined(tree.Or, [tree.Known(fact=name) for name in names if name], _NO)
    there = tree.And(of=(known, found))
    return there if without is _NO else tree.Or(of=(there, tree.Not(of=known)))


def _with_fact(
    op: str, place: int, values: list[Any], one: Callable[[str, Any], tree.Expr]
) -> tree.Expr:
    if place == 0:
        tests = [one('==' if op in ('=', 'in') else op, value) for value in values]
        if not tests:
            return _NO
        return _joined(tree.Or if op == 'in' else tree.And, tests, _NO)
    first, rest = values[0], values[1:]
    turned = one('==' if op in ('=', 'in') else tree.TURNED[op], first)
    if op == 'in':
        return _YES if nova_query.holds('in', values) else turned
    fits = not rest or nova_query.holds(op, [first, *rest])
    return turned if fits else _NO


def _names(look: Look) -> tuple[str, str]:
    """What a fact is called here as a number, and as a text; '' where it is none."""
    first, *rest = look.path
    if first == 'stats' and len(rest) == 1 and rest[0]:
        return f'metrics.stats.{rest[0]}', f'stats.{rest[0]}'
    if not rest and (first in TEXTS or first in NUMBERS):
        return NUMBERS.get(first, ''), TEXTS.get(first, '')
    raise _beyond(f'${".".join(look.path)}')


def _one(op: str, names: tuple[str, str], value: Any) -> tree.Expr:
    """One comparison; what cannot be compared is neither equal, smaller nor larger."""
    value = int(value) if isinstance(value, bool) else value
    name = names[isinstance(value, str)]
    if not name or not isinstance(value, int | float | str):
        return _NO
    return tree.RELATIONS[op](fact=name, value=value)  # type: ignore[return-value]


def _beyond(what: str) -> exceptions.InvalidRule:
    return exceptions.InvalidRule(
        field=FIELD,
        problem=f'{what} cannot be said as a rule; expected comparisons of one of '
        f'{", ".join(f"${name}" for name in (*TEXTS, *NUMBERS))} or $stats.NAME with values',
        at=0,
    )
