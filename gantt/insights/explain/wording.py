# SPDX-License-Identifier: Apache-2.0
"""Numbers in words, alike in explanations, in HTTP and on the command line."""

from collections.abc import Mapping

from gantt.core.messages.resource_classes import format_amount

_NOUNS = {'MEMORY_MB': ' RAM', 'DISK_GB': ' disk'}
_FIRST = ('VCPU', 'PCPU', 'MEMORY_MB', 'DISK_GB')


def age(seconds: float | None) -> str:
    """``41s``, ``3m``, ``2h10m``, ``5d``; ``never`` for None."""
    if seconds is None:
        return 'never'
    s = int(max(0.0, seconds))
    if s < 120:
        return f'{s}s'
    if s < 3600:
        return f'{s // 60}m'
    if s < 86_400:
        return f'{s // 3600}h{s % 3600 // 60:02d}m'
    return f'{s // 86_400}d{s % 86_400 // 3600}h' if s < 10 * 86_400 else f'{s // 86_400}d'


def count(number: int, one: str, many: str = '') -> str:
    """``1 host``, ``2 hosts``."""
    return f'{number} {one if number == 1 else many or one + "s"}'


def in_order(names: Mapping[str, object] | set[str]) -> list[str]:
    """Resource classes, the everyday ones first."""
    return sorted(names, key=lambda n: (_FIRST.index(n) if n in _FIRST else len(_FIRST), n))


def shape(resources: Mapping[str, int]) -> str:
    """``2 vCPU, 4 GiB RAM, 20 GiB disk``."""
    return ', '.join(
        format_amount(name, resources[name]) + _NOUNS.get(name, '') for name in in_order(resources)
    )
