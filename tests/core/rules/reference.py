# SPDX-License-Identifier: Apache-2.0
"""Conditions evaluated plainly: of one host after the other, with three answers.

Shares the tree and the rows of the database with the tested code, nothing else:
no columns, no codes, no opposites pushed down.  None is "that is not known".
"""

import dataclasses
import json
import operator

from gantt.core.messages.request import RequestSpec
from gantt.core.resources.host import Aggregate, HostRow
from gantt.core.rules import tree
from gantt.core.table.metrics import DeclaredMetric

RELATIONS = {
    '<': operator.lt,
    '<=': operator.le,
    '>': operator.gt,
    '>=': operator.ge,
    '==': operator.eq,
}
#: Facts whose values are members of a set; a comparison is about any of them.
SETS = (
    'traits',
    'aggregates',
    'metadata',
    'cpu.features',
    'request.traits',
    'request.extra_specs',
    'request.properties',
    'request.hints',
)


@dataclasses.dataclass
class World:
    """A host's surroundings for the evaluation of a condition."""

    aggregates: list[Aggregate]
    spec: RequestSpec
    now: float
    default_zone: str = 'nova'
    declared: dict[str, DeclaredMetric] = dataclasses.field(default_factory=dict)

    def holds(self, expr: tree.Expr, host: HostRow) -> bool:
        """Return whether the condition is known to hold."""
        return self.says(expr, host) is True

    def says(self, expr: tree.Expr, host: HostRow) -> bool | None:
        match expr:
            case tree.And():
                return least([self.says(x, host) for x in expr.of])
            case tree.Or():
                return opposite(least([opposite(self.says(x, host)) for x in expr.of]))
            case tree.Not():
                return opposite(self.says(expr.of, host))
            case tree.Always():
                return expr.value
            case tree.Known():
                value = self.value(expr.fact, host)
                return bool(value) if is_set(expr.fact) else value is not None
            case tree.NotEqual():
                return opposite(self.compared('==', expr, host))
        return self.compared(tree.op_of(expr), expr, host)

    def compared(self, op: str, expr: tree.Comparison, host: HostRow) -> bool | None:
        value, right = self.value(expr.fact, host), expr.value
        if isinstance(right, tree.Ref):
            right = self.value(right.name, host)
            if right is None or right == set():
                return None
        operands = sorted(right) if isinstance(right, set) else [right]
        if is_set(expr.fact):
            op = '==' if op == 'contains' else op
            return any(
                answer is True
                for member in value
                for r in operands
                for answer in [asked(op, member, r)]
            )
        if value is None:
            return None
        if expr.fact == 'location':
            return any(
                at_or_below(value, r, op == '==')
                for r in (right if isinstance(right, tuple) else [right])
            )
        if expr.fact == 'hypervisor.version':
            return asked(op, value, counted(right))
        answers = [asked(op, value, r) for r in operands]
        return None if None in answers else any(answers)

    def value(self, name: str, host: HostRow):
        facts, spec = host.facts, self.spec
        family, _, key = name.partition('.')
        mine = [a for a in self.aggregates if host.name in a.hosts or a.uuid in host.aggregates]
        cpu = facts.hypervisor.cpu_info
        cpu = json.loads(cpu or '{}') if isinstance(cpu, str) else cpu
        if family in ('cap', 'free', 'used', 'total'):
            inventory = facts.inventories.get(key)
            return {
                'cap': host.cap(key),
                'free': host.free(key),
                'used': host.used.get(key, 0),
                'total': inventory.total if inventory else 0,
            }[family]
        if family == 'metrics':
            return self.measured(key, host)
        if family == 'metadata':
            return {a.metadata[key] for a in mine if key in a.metadata}
        if name.startswith('request.'):
            return self.asked_for(name.removeprefix('request.'), spec)
        zone = next(
            (a.metadata['availability_zone'] for a in mine if a.metadata.get('availability_zone')),
            None,
        )
        return {
            'name': host.name,
            'zone': zone or host.zone or self.default_zone,
            'cell': host.cell,
            'location': facts.location or None,
            'enabled': host.disabled is None and host.service_disabled is None,
            'instances': 0,
            'age': max(0.0, self.now - host.reported_at) if host.reported_at else None,
            'traits': set(facts.traits),
            'aggregates': {a.name for a in mine} | {a.uuid for a in mine},
            'hypervisor.type': facts.hypervisor.type or None,
            'hypervisor.version': facts.hypervisor.version or None,
            'cpu.model': cpu.get('model'),
            'cpu.features': set(cpu.get('features', ())),
        }[name]

    def measured(self, name: str, host: HostRow) -> float | None:
        """Return the metric; None where its report does not count."""
        metric, declared = host.facts.metrics.get(name), self.declared.get(name)
        if metric is None or declared is None:
            return metric and metric.value
        age = max(0.0, self.now - host.reported_at) + (metric.age_seconds or 0.0)
        old = declared.stale_seconds is not None and age > declared.stale_seconds
        return None if old or not declared.takes(metric.value) else metric.value

    def asked_for(self, name: str, spec: RequestSpec):
        if name.startswith('resources.'):
            return spec.resources.get(name.removeprefix('resources.'), 0)
        if name.startswith('hints.'):
            return set(spec.hints.get(name.removeprefix('hints.'), ()))
        return {'project': spec.project_id, 'zone': spec.availability_zone}[name]


def is_set(name: str) -> bool:
    return any(name == set_name or name.startswith(f'{set_name}.') for set_name in SETS)


def opposite(truth: bool | None) -> bool | None:
    return None if truth is None else not truth


def least(answers: list[bool | None]) -> bool | None:
    if False in answers:
        return False
    return None if None in answers else True


def at_or_below(path: str, place: str, exact: bool) -> bool:
    here, levels = path.split('.'), place.split('.')
    if len(here) < len(levels) or (exact and len(here) != len(levels)):
        return False
    return all(w in ('*', h) for w, h in zip(levels, here, strict=False))


def counted(right):
    """Return versions of hypervisors as the number that they report."""
    if isinstance(right, tree.Range):
        return tree.Range(counted(right.low), counted(right.high))
    if isinstance(right, tuple):
        return tuple(counted(item) for item in right)
    if isinstance(right, tree.VersionNumber):
        parts = [int(p) for p in right.text.split('.')] + [0, 0]
        return (parts[0] * 1000 + parts[1]) * 1000 + parts[2]
    return right


def parts_of(text: str) -> list[int] | None:
    try:
        parts = [int(p) for p in text.removeprefix('v').split('.')]
    except ValueError:
        return None
    while parts and parts[-1] == 0:
        parts.pop()
    return parts


def asked(op: str, value, right) -> bool | None:
    """Compare one value with one right side."""
    if isinstance(right, tree.Range):
        if isinstance(value, str):
            here = parts_of(value)
            if here is None:
                return None
            return (right.low is None or parts_of(right.low.text) <= here) and (
                right.high is None or here <= parts_of(right.high.text)
            )
        above = right.low is None or value >= right.low
        return above and (right.high is None or value <= right.high)
    if isinstance(right, tuple):
        answers = [asked('==', value, item) for item in right]
        return None if None in answers else any(answers)
    if isinstance(right, tree.VersionNumber):
        here = parts_of(value)
        return None if here is None else RELATIONS[op](here, parts_of(right.text))
    if op == 'contains':
        return right in value
    return RELATIONS[op](value, right)
