# SPDX-License-Identifier: Apache-2.0
"""AggregatesFilter: in all the requested aggregates, in none of the forbidden."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from gantt.core.filters.base import Filter, UnknownFacts, has_any, names_of
from gantt.core.messages.request import RequestSpec
from gantt.core.plugin import EVERY_KIND
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.host_table import HostTable

OUTSIDE, FORBIDDEN = 'not in the aggregates asked for', 'in a forbidden aggregate'


class AggregatesFilter(Filter):
    """``member_of`` is an AND of ORs; aggregates are named by uuid or name."""

    reason = 'not in the aggregates asked for, or in a forbidden one'
    columns = ('aggregates',)
    kinds = EVERY_KIND
    fields = ('member_of', 'forbidden_aggregates')
    always = True

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        return aggregate_mask(hosts, spec.member_of, spec.forbidden_aggregates)

    def detail(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> dict[str, Any]:
        """Return parts that count each host for the first condition that it breaks.

        Names are for operators: some of them come from rules that keep tenants apart.
        """
        bits = hosts.aggregates.take(rows, axis=1)
        conditions = [(OUTSIDE, names, True) for names in spec.member_of]
        conditions += [(FORBIDDEN, [name], False) for name in spec.forbidden_aggregates]
        parts: dict[str, int] = {}
        reasons: dict[str, str] = {}
        for text, names, expected in conditions:
            wrong = has_any(bits, hosts.aggregate_bits(names)) != expected
            count = int(np.count_nonzero(wrong))
            if count:
                shown = f'{text}: {names_of(_names(hosts, names)) or "there is none"}'
                parts[shown] = parts.get(shown, 0) + count
                reasons[shown] = text
                bits = bits[:, ~wrong]
        return {'parts': parts, 'told': reasons}

    def unknown(self, hosts: HostTable, spec: RequestSpec) -> Iterable[UnknownFacts]:
        return unknown_aggregates(hosts, spec.member_of)


def unknown_aggregates(hosts: HostTable, member_of: list[list[str]]) -> Iterable[UnknownFacts]:
    """Yield unknown aggregates that no host reports, of lists without any other."""
    aggregates = hosts.known_aggregates
    names = {aggregate.name for aggregate in aggregates.values()}
    for requested in member_of:
        if (
            aggregates.keys().isdisjoint(requested)
            and names.isdisjoint(requested)
            and not has_any(hosts.aggregates, hosts.aggregate_bits(requested)).any()
        ):
            yield from (UnknownFacts('aggregate', name, sorted(names)) for name in requested)


def _names(hosts: HostTable, wanted: list[str]) -> list[str]:
    """Return names of aggregates that were named by name or uuid."""
    aggregates = hosts.known_aggregates
    return [aggregates[key].name if key in aggregates else key for key in wanted]


def aggregate_mask(
    hosts: HostTable, member_of: list[list[str]], forbidden: list[str]
) -> BoolArray | None:
    """Return hosts in one of each list of ``member_of`` and in none of ``forbidden``."""
    mask: BoolArray | None = None
    for names in member_of:
        inside = has_any(hosts.aggregates, hosts.aggregate_bits(names))
        mask = inside if mask is None else np.logical_and(mask, inside, out=mask)
    if forbidden:
        words = hosts.aggregate_bits(forbidden)
        if words:
            outside = ~has_any(hosts.aggregates, words)
            mask = outside if mask is None else np.logical_and(mask, outside, out=mask)
    return mask
