# SPDX-License-Identifier: Apache-2.0
"""Wording of numbers, alike in explanations, in HTTP and on the command line."""

import collections
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gantt.core.messages.resource_classes import format_amount

if TYPE_CHECKING:  # commands begin without the messages
    from gantt.core.messages.request import RequestSpec

_UNIT_SUFFIXES = {'MEMORY_MB': ' RAM', 'DISK_GB': ' disk'}
#: Kinds of groups of a tree that are named at most; a request may have 64.
_GROUPS_NAMED = 5
_FIRST_CLASSES = ('VCPU', 'PCPU', 'MEMORY_MB', 'DISK_GB')


def age_text(seconds: float | None) -> str:
    """Return ``41s``, ``3m``, ``2h10m``, ``5d``; ``never`` for None."""
    if seconds is None:
        return 'never'
    whole = int(max(0.0, seconds))
    if whole < 120:
        return f'{whole}s'
    if whole < 3600:
        return f'{whole // 60}m'
    if whole < 86_400:
        return f'{whole // 3600}h{whole % 3600 // 60:02d}m'
    return (
        f'{whole // 86_400}d{whole % 86_400 // 3600}h'
        if whole < 10 * 86_400
        else f'{whole // 86_400}d'
    )


def outcome_text(name: str, kind: str) -> str:
    """Return the outcome of a decision in words: ``no valid pool``."""
    return f'no valid {kind}' if name == 'no_valid_host' else name.replace('_', ' ')


def counted_noun(number: int, one: str, many: str = '') -> str:
    """Return ``1 host``, ``2 hosts``."""
    return f'{number} {one if number == 1 else many or one + "s"}'


def classes_in_order(names: Mapping[str, object] | set[str]) -> list[str]:
    """Return resource classes, the everyday ones first."""
    return sorted(
        names,
        key=lambda name: (
            _FIRST_CLASSES.index(name) if name in _FIRST_CLASSES else len(_FIRST_CLASSES),
            name,
        ),
    )


def needs_text(spec: 'RequestSpec') -> str:
    """Return what each member takes, as ``2 vCPU, 4 GiB RAM, 2 × 500 VGPU``."""
    groups = spec.tree.expanded() if spec.tree is not None else ()
    of_tree = collections.Counter(
        shape_text(group.group.resources) + ' of a whole one' * group.whole
        for group in groups
        if group.group.resources
    )
    parts = [shape_text(spec.resources)] if spec.resources else []
    named = [f'{number} × {text}' if number > 1 else text for text, number in of_tree.items()]
    more = len(named) - _GROUPS_NAMED
    return ', '.join([*parts, *named[:_GROUPS_NAMED], *([f'and {more} more'] if more > 0 else [])])


def shape_text(resources: Mapping[str, int]) -> str:
    """Return ``2 vCPU, 4 GiB RAM, 20 GiB disk``."""
    return ', '.join(
        format_amount(name, resources[name]) + _UNIT_SUFFIXES.get(name, '')
        for name in classes_in_order(resources)
    )
