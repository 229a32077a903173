# SPDX-License-Identifier: Apache-2.0
"""AggregatesFilter: in all the aggregates asked for, in none of the forbidden."""

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
        """Each host is counted for the first condition that it breaks.

        Names are for operators: some of them come from what they keep apart.
        """
        bits = hosts.aggregates.take(rows, axis=1)
        conditions = [(OUTSIDE, names, True) for names in spec.member_of]
        conditions += [(FORBIDDEN, [name], False) for name in spec.forbidden_aggregates]
        parts: dict[str, int] = {}
        reasons: dict[str, str] = {}
        for text, names, wanted in conditions:
            wrong = has_any(bits, hosts.aggregate_bits(names)) != wanted
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
    """Aggregates that nobody knows and no host reports, of lists in which there is no other."""
    known = hosts.known_aggregates
    names = {aggregate.name for aggregate in known.values()}
    for wanted in member_of:
        if (
            known.keys().isdisjoint(wanted)
            and names.isdisjoint(wanted)
            and not has_any(hosts.aggregates, hosts.aggregate_bits(wanted)).any()
        ):
            yield from (UnknownFacts('aggregate', name, sorted(names)) for name in wanted)


def _names(hosts: HostTable, wanted: list[str]) -> list[str]:
    """Names of aggregates that were named by name or uuid."""
    known = hosts.known_aggregates
    return [known[one].name if one in known else one for one in wanted]


def aggregate_mask(
    hosts: HostTable, member_of: list[list[str]], forbidden: list[str]
) -> BoolArray | None:
    """Hosts that are in one of each list of ``member_of`` and in none of ``forbidden``."""
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
