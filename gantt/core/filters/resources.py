# SPDX-License-Identifier: Apache-2.0
"""ResourcesFilter: enough of every class is free, and may be had in one piece."""

from typing import Any

import numpy as np

from gantt.core.filters.base import Filter, only
from gantt.core.messages.request import RequestSpec
from gantt.core.messages.resource_classes import format_amount
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.host_table import HostTable

#: Amounts of these are said with their unit, under these names.
_NAMES = {'MEMORY_MB': 'RAM', 'DISK_GB': 'disk'}


class ResourcesFilter(Filter):
    """``cap - used - foreign >= amount``, and min_unit, max_unit and step_size hold.

    The same rule as ``core.topology.fit`` for plain amounts, over all hosts at once.
    """

    reason = 'too little is free'
    public_reason = 'the amounts asked for'
    columns = ('cap', 'used', 'free', 'min_unit', 'largest', 'step')
    always = True
    local = True

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        mask: BoolArray | None = None
        for name, amount in spec.resources.items():
            code = hosts.class_code(name)
            if code is None:
                return only(hosts, [])
            fits = hosts.free[code] >= amount
            mask = fits if mask is None else np.logical_and(mask, fits, out=mask)
            _one_piece(hosts, code, amount, mask)
        return mask

    def passes(self, hosts: HostTable, spec: RequestSpec, row: int) -> bool:
        for name, amount in spec.resources.items():
            code = hosts.class_code(name)
            if code is None or not (
                hosts.free.item(code, row) >= amount
                and hosts.min_unit.item(code, row) <= amount <= hosts.largest.item(code, row)
                and amount % hosts.step.item(code, row) == 0
            ):
                return False
        return True

    def detail(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> dict[str, Any]:
        """Each host is counted for the first class that it is short of."""
        parts: dict[str, int] = {}
        best: dict[str, int] = {}
        for name, amount in spec.resources.items():
            if not len(rows):
                break
            code = hosts.class_code(name)
            if code is None:
                parts[f'no host has {name}'] = len(rows)
                return {'parts': parts, 'best': best}
            free = hosts.free[code].take(rows)
            short = free < amount
            count = int(np.count_nonzero(short))
            if count:
                best[name] = most = max(int(np.maximum.reduce(free[short])), 0)
                need, has = format_amount(name, amount), format_amount(name, most)
                parts[f'too little free {name} (need {need}, best has {has})'] = count
                rows = rows[~short]
        for name, amount in spec.resources.items():
            code = hosts.class_code(name)
            if not len(rows) or code is None:
                break
            fits = np.ones(len(hosts), np.bool_)
            _one_piece(hosts, code, amount, fits)
            wrong = ~fits.take(rows)
            count = int(np.count_nonzero(wrong))
            if count:
                parts[f'{name} not to be had as {format_amount(name, amount)} in one piece'] = count
                rows = rows[~wrong]
        return {'parts': parts, 'best': best}

    def remedy(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> str:
        """The host with the least relative shortage; each class stated."""
        shortage = np.zeros(len(rows))
        for name, amount in spec.resources.items():
            code = hosts.class_code(name)
            free = hosts.free[code].take(rows) if code is not None else np.zeros(len(rows))
            shortage += np.maximum(amount - free, 0) / amount
        # A host that is short of nothing breaks a unit rule: last choice.
        shortage[shortage == 0] = np.inf
        row = int(rows[int(shortage.argmin())])
        problems = hosts.host_state(row).fit(spec.resources).problems
        most: dict[str, int] = {}
        for problem in problems:
            if problem.lack:
                name = problem.resource_class
                most[name] = min(problem.have, most.get(name, problem.have))
        if problems and all(problem.lack and problem.have > 0 for problem in problems):
            bounds = ' and '.join(_bound(name, amount) for name, amount in most.items())
            return f'fits if {bounds} (on {hosts.names[row]})'
        return f'nearest is {hosts.names[row]}: {"; ".join(map(str, problems))}'


def _bound(name: str, amount: int) -> str:
    """``RAM <= 6.2 GiB``, ``VCPU <= 8``."""
    amount_text = format_amount(name, amount)
    return f'{_NAMES[name]} <= {amount_text}' if name in _NAMES else f'{name} <= {amount}'


def _one_piece(hosts: HostTable, code: int, amount: int, mask: BoolArray) -> None:
    """Narrow ``mask`` to hosts whose unit rules admit ``amount``."""
    if amount > hosts.largest_floor[code]:
        mask &= hosts.largest[code] >= amount
    if amount < hosts.min_ceiling[code]:
        mask &= hosts.min_unit[code] <= amount
    if hosts.has_step[code]:
        mask &= amount % hosts.step[code] == 0
