# SPDX-License-Identifier: Apache-2.0
"""ComputeCapabilitiesFilter: the host is what the flavor's extra specs ask for."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from gantt.core import extra_specs, nova_facts
from gantt.core.columns import BoolArray, IntArray
from gantt.core.extra_specs import Requirement
from gantt.core.filters.aggregate_extra_specs import AS_NOVA
from gantt.core.filters.base import Filter, names_of
from gantt.core.nova_facts import Fact
from gantt.core.request import RequestSpec

if TYPE_CHECKING:
    from gantt.core.host_table import HostTable

SCOPE = 'capabilities'
ADDRESS_BITS = 'hw:maxphysaddr_bits'
_ADDRESS_PATH = ['cpu_info', 'maxphysaddr', 'bits']


class ComputeCapabilitiesFilter(Filter):
    """Keys without scope or in ``capabilities:`` name facts of a host, with colons a way inside.

    A key without scope is left alone by hosts that have no such fact; in the scope
    the fact must be there.
    """

    reason = 'does not have the capabilities of the extra specs'
    public_reason = 'the extra specs of the flavor'
    columns = (
        'platform', 'metrics', 'hypervisor', 'names', 'nodes', 'cell', 'enabled', 'total',
        'reserved', 'ratio', 'cap', 'free', 'instances', 'io_ops', 'placed',
    )  # fmt: skip
    options = (AS_NOVA,)
    extra_specs_as_nova: bool

    def mask(self, hosts: 'HostTable', spec: RequestSpec) -> BoolArray | None:
        mask: BoolArray | None = None
        for _, fits in self._each(hosts, spec):
            mask = fits if mask is None else np.logical_and(mask, fits, out=mask)
        return mask

    def detail(self, hosts: 'HostTable', spec: RequestSpec, rows: IntArray) -> dict[str, Any]:
        """Each host is counted for the first key that does not fit."""
        parts: dict[str, int] = {}
        for (key, wanted), fits in self._each(hosts, spec):
            wrong = ~fits.take(rows)
            count = int(np.count_nonzero(wrong))
            if count:
                text = f'{key} is not {wanted!r} ({self._found(hosts, key, rows[wrong])})'
                parts[text] = count
                rows = rows[~wrong]
            if not len(rows):
                break
        return {'parts': parts}

    def remedy(self, hosts: 'HostTable', spec: RequestSpec, rows: IntArray) -> str:
        row = int(rows[0])
        broken = [
            f'{key}={wanted}' for (key, wanted), fits in self._each(hosts, spec) if not fits[row]
        ]
        where = (
            hosts.names[row] if len(rows) == 1 else f'{hosts.names[row]} and {len(rows) - 1} more'
        )
        return f'fits on {where} without extra spec {names_of(broken)}'

    def _each(
        self, hosts: 'HostTable', spec: RequestSpec
    ) -> Iterator[tuple[tuple[str, str], BoolArray]]:
        """Each extra spec that concerns some host, and the hosts that pass it."""
        for key, path, wanted in asked(spec):
            fits, has = self._answers(hosts, path, wanted)
            if key.startswith(SCOPE + ':') or key == ADDRESS_BITS:
                yield (key, wanted), fits
            elif has.any():
                yield (key, wanted), fits | ~has

    def _answers(
        self, hosts: 'HostTable', path: list[str], wanted: str
    ) -> tuple[BoolArray, BoolArray]:
        """(hosts where the fact fits, hosts that have it)."""
        requirement = extra_specs.parse(wanted, as_nova=self.extra_specs_as_nova)
        fits, has = np.zeros(len(hosts), np.bool_), np.zeros(len(hosts), np.bool_)
        for fact in facts_at(hosts, path):
            there = fact.is_there()
            fits |= self._meets(fact, requirement) & ~has
            has |= there
        return fits, has

    def _meets(self, fact: Fact, requirement: Requirement) -> BoolArray:
        if fact.numbers is not None:
            found = requirement.fits_numbers(fact.numbers)
            if found is not None:
                return found

        def fits(value: Any) -> bool:
            text = nova_facts.text_of(value)
            if text is None:
                return False
            items = None
            if isinstance(value, list) and not self.extra_specs_as_nova:
                items = frozenset(nova_facts.text_of(item) or '' for item in value)
            return requirement.fits(text, items)

        return fact.where(fits)

    def _found(self, hosts: 'HostTable', key: str, rows: IntArray) -> str:
        """What such hosts have instead, a few of them."""
        path = _path(key)
        seen: dict[str, None] = {}
        facts = facts_at(hosts, path)
        for row in rows[:100].tolist():
            values = (fact.at(row) for fact in facts)
            value = next((v for v in values if v is not None), None)
            text = 'nothing' if value is None else nova_facts.text_of(value) or ''
            seen[text if len(text) <= 40 else text[:37] + '...'] = None
        return f'hosts have {names_of(list(seen))}'


def asked(spec: RequestSpec) -> list[tuple[str, list[str], str]]:
    """(key, path of the fact, requirement) of the extra specs that concern capabilities."""
    specs = spec.flavor.extra_specs
    bits = specs.get(ADDRESS_BITS)
    found = []
    for key, wanted in specs.items():
        if key == ADDRESS_BITS:
            found.append((key, _ADDRESS_PATH, f'>= {wanted}'))
        elif bits is not None and _path(key) == _ADDRESS_PATH and ':' in key:
            continue  # the flavor's own word on it counts
        elif ':' not in key or key.startswith(SCOPE + ':'):
            found.append((key, _path(key), wanted))
    return found


def facts_at(hosts: 'HostTable', path: list[str]) -> list[Fact]:
    """What hosts have at a path, best source first: their own attribute, else ``stats``."""
    if path[0] == 'stats' and len(path) > 1:
        return [fact.inside(path[2:]) for fact in nova_facts.stats(hosts, path[1])]
    own = nova_facts.fact(hosts, path[0])
    facts = ([own] if own is not None else []) + nova_facts.stats(hosts, path[0])
    return [fact.inside(path[1:]) for fact in facts]


def _path(key: str) -> list[str]:
    if key == ADDRESS_BITS:
        return _ADDRESS_PATH
    parts = key.split(':')
    return parts[1:] if len(parts) > 1 and parts[0] == SCOPE else parts
