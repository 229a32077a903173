# SPDX-License-Identifier: Apache-2.0
"""ResourcesFilter: enough of every class is free, and may be had in one piece."""

from typing import Any

import numpy as np

from gantt.core.filters import tree_room
from gantt.core.filters.base import UNBOUNDED, Filter, names_of, only
from gantt.core.messages.request import RequestSpec
from gantt.core.messages.resource_classes import format_amount
from gantt.core.plugin import EVERY_KIND
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.host_table import HostTable

#: Classes whose amounts have a unit in texts -> their names there.
_AMOUNT_NAMES = {'MEMORY_MB': 'RAM', 'DISK_GB': 'disk'}


class ResourcesFilter(Filter):
    """``cap - used - foreign >= amount``, and min_unit, max_unit and step_size hold.

    The same rule as ``core.topology.fit`` for plain amounts, over all hosts at once.  An amount
    that a host does not have itself may come from a pool that serves it, see ``core.table.pools``,
    or from one provider that is nested below it; so may the groups of a request, see
    :mod:`gantt.core.filters.tree_room`.
    """

    reason = 'too little is free'
    public_reason = 'the amounts asked for'
    columns = ('cap', 'used', 'free', 'min_unit', 'largest', 'step')
    kinds = EVERY_KIND
    always = True
    is_room = True
    local = True

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        if _needs_tree(hosts, spec):
            plain = self._mask(hosts, _spec_of_host_classes(hosts, spec))
            tree = tree_room.mask(hosts, spec)
            return tree if plain is None else tree & plain
        return self._mask(hosts, spec)

    def _mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        mask: BoolArray | None = None
        shared = hosts.pools.of_class
        for name, amount in spec.resources.items():
            code = hosts.class_code(name)
            if code is None:
                return only(hosts, [])
            fits = hosts.free[code] >= amount
            served = hosts.served(name, amount) if name in shared else None
            if served is not None:
                _restrict_to_unit_rules(hosts, code, amount, fits)
                fits |= served
            mask = fits if mask is None else np.logical_and(mask, fits, out=mask)
            if served is None:
                _restrict_to_unit_rules(hosts, code, amount, mask)
        return mask

    def passes(self, hosts: HostTable, spec: RequestSpec, row: int) -> bool:
        if _needs_tree(hosts, spec):
            mask = self.mask(hosts, spec)
            return mask is None or bool(mask[row])
        for name, amount in spec.resources.items():
            code = hosts.class_code(name)
            if code is None or not (
                (
                    hosts.free.item(code, row) >= amount
                    and hosts.min_unit.item(code, row) <= amount <= hosts.largest.item(code, row)
                    and amount % hosts.step.item(code, row) == 0
                )
                or hosts.pool_for(row, name, amount) is not None
            ):
                return False
        return True

    def picks_left(self, hosts: HostTable, spec: RequestSpec, row: int) -> int | None:
        shared = hosts.pools.of_class
        if _needs_tree(hosts, spec):
            return None
        if shared and any(hosts.has(row, n, a) for n, a in spec.resources.items() if n in shared):
            return None  # it may take of itself what pools have, too
        # It passes now: its units admit the amounts, and no pick changes units.  What comes from
        # pools is not the host's: the pick checks whether they still have it.
        free, least = hosts.free, UNBOUNDED
        for name, amount in spec.resources.items():
            code = None if name in shared else hosts.class_code(name)
            if code is not None:
                left = free.item(code, row) // amount
                if left < least:
                    least = left
        return least

    def detail(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> dict[str, Any]:
        """Return parts that count each host for the first class that it is short of."""
        if not _needs_tree(hosts, spec):
            return self._detail(hosts, spec, rows)
        plain = _spec_of_host_classes(hosts, spec)
        plain_mask = self._mask(hosts, plain) if plain.resources else None
        short = np.zeros(len(rows), np.bool_) if plain_mask is None else ~plain_mask.take(rows)
        numbers: dict[str, Any] = {'parts': {}, 'best': {}}
        if short.any():
            numbers = self._detail(hosts, plain, rows[short])
        of_tree = tree_room.detail(hosts, spec, rows[~short])
        return numbers | {'parts': {**numbers['parts'], **of_tree.get('parts', {})}}

    def _detail(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> dict[str, Any]:
        parts: dict[str, int] = {}
        best: dict[str, int] = {}
        public_parts: dict[str, str] = {}
        for name, amount in spec.resources.items():
            if not len(rows):
                break
            code = hosts.class_code(name)
            if code is None:
                parts[f'no host has {name}'] = len(rows)
                return {'parts': parts, 'best': best}
            free, served = hosts.free[code].take(rows), hosts.served(name, amount)
            short = free < amount
            if served is not None:
                short &= ~served.take(rows)
                free = np.maximum(free, hosts.pools.most(len(hosts), name).take(rows))
            count = int(np.count_nonzero(short))
            if count:
                best[name] = largest = max(int(np.maximum.reduce(free[short])), 0)
                need, largest_text = format_amount(name, amount), format_amount(name, largest)
                part = f'too little free {name} (need {need}, best has {largest_text})'
                if count == 1 and served is not None:
                    public, part = part, part + _pools_text(hosts, int(rows[short][0]), name)
                    public_parts[part] = public
                parts[part] = count
                rows = rows[~short]
        for name, amount in spec.resources.items():
            code = hosts.class_code(name)
            if not len(rows) or code is None:
                break
            fits = np.ones(len(hosts), np.bool_)
            _restrict_to_unit_rules(hosts, code, amount, fits)
            served = hosts.served(name, amount)
            wrong = ~(fits if served is None else fits | served).take(rows)
            count = int(np.count_nonzero(wrong))
            if count:
                parts[f'{name} not to be had as {format_amount(name, amount)} in one piece'] = count
                rows = rows[~wrong]
        return {'parts': parts, 'best': best} | (
            {'public_parts': public_parts} if public_parts else {}
        )

    def facts(self, hosts: HostTable, spec: RequestSpec, row: int) -> list[str] | None:
        pools = hosts.pools
        if not pools.have_any(spec.resources):
            return None
        host, texts = hosts.host_state(row), []
        for name in spec.resources:
            of_pools = ''.join(
                f', {format_amount(name, pools.free(pool, name))} in pool {pools.by_id[pool].name}'
                for pool in pools.serving(host.provider_id, name)
            )
            texts.append(f'{format_amount(name, host.free(name))} {name} free{of_pools}')
        return texts

    def remedy(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> str:
        """Return the host with the least relative shortage, with each class."""
        if _needs_tree(hosts, spec):
            row = int(rows[0])
            parts = self.detail(hosts, spec, rows[:1])['parts']
            text = ' and '.join(parts).replace('best has', 'has')
            return f'nearest is {hosts.names[row]}: {text}'
        shortage = np.zeros(len(rows))
        for name, amount in spec.resources.items():
            code = hosts.class_code(name)
            free = hosts.free[code].take(rows) if code is not None else np.zeros(len(rows))
            lack = np.maximum(amount - free, 0) / amount
            served = hosts.served(name, amount)
            shortage += lack if served is None else np.where(served.take(rows), 0, lack)
        # A host that is short of nothing breaks a unit rule: last choice.
        shortage[shortage == 0] = np.inf
        row = int(rows[int(shortage.argmin())])
        problems = hosts.host_state(row).fit(spec.resources).problems
        available: dict[str, int] = {}
        for problem in problems:
            if problem.lack:
                name = problem.resource_class
                available[name] = min(problem.have, available.get(name, problem.have))
        if problems and all(problem.lack and problem.have > 0 for problem in problems):
            bounds = ' and '.join(_bound_text(name, amount) for name, amount in available.items())
            return f'fits if {bounds} (on {hosts.names[row]})'
        return f'nearest is {hosts.names[row]}: {"; ".join(map(str, problems))}'


def _needs_tree(hosts: HostTable, spec: RequestSpec) -> bool:
    """Return ``tree_room.concerns``, which is called only where providers are nested."""
    if spec.tree is not None:
        return True
    return bool(hosts.pools.nested.of_class) and tree_room.needs_tree(hosts, spec)


def _spec_of_host_classes(hosts: HostTable, spec: RequestSpec) -> RequestSpec:
    """Return the spec of classes that no provider below the hosts has."""
    nested = hosts.pools.nested.of_class
    amounts = {name: amount for name, amount in spec.resources.items() if name not in nested}
    return spec.taking(amounts)


def _pools_text(hosts: HostTable, row: int, name: str) -> str:
    """Return the pools that serve a host, with their free amounts, for operators."""
    pools = hosts.pools
    texts = [
        f'pool {pools.by_id[pool].name} has {format_amount(name, max(pools.free(pool, name), 0))}'
        for pool in pools.serving(hosts.hosts[row].id, name)
    ]
    return f'; {names_of(texts)}' if texts else '; no pool of it serves the host'


def _bound_text(name: str, amount: int) -> str:
    """Return a bound as text: ``RAM <= 6.2 GiB``, ``VCPU <= 8``."""
    amount_text = format_amount(name, amount)
    return (
        f'{_AMOUNT_NAMES[name]} <= {amount_text}'
        if name in _AMOUNT_NAMES
        else f'{name} <= {amount}'
    )


def _restrict_to_unit_rules(hosts: HostTable, code: int, amount: int, mask: BoolArray) -> None:
    """Narrow ``mask`` to hosts whose unit rules admit ``amount``."""
    if amount > hosts.largest_floor[code]:
        mask &= hosts.largest[code] >= amount
    if amount < hosts.min_ceiling[code]:
        mask &= hosts.min_unit[code] <= amount
    if hosts.has_step[code]:
        mask &= amount % hosts.step[code] == 0
