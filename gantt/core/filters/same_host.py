# SPDX-License-Identifier: Apache-2.0
"""SameHostFilter and DifferentHostFilter: beside these consumers, or away from them."""

from gantt.core.filters.base import Filter, all_but, only
from gantt.core.messages.request import RequestSpec
from gantt.core.table.columns import BoolArray
from gantt.core.table.host_table import HostTable


class SameHostFilter(Filter):
    """At least one of the consumers named is on the host."""

    reason = 'has none of the consumers of same_host'
    public_reason = 'the hint same_host'
    columns = ('placed', 'names')

    def concerns(self, spec: RequestSpec) -> bool:
        return bool(spec.same_host)

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        if not spec.same_host:
            return None
        return only(hosts, _rows(hosts, spec.same_host))


class DifferentHostFilter(Filter):
    """None of the consumers named is on the host."""

    reason = 'has a consumer of different_host'
    public_reason = 'the hint different_host'
    columns = ('placed', 'names')
    local = True

    def concerns(self, spec: RequestSpec) -> bool:
        return bool(spec.different_host)

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        return all_but(hosts, _rows(hosts, spec.different_host))

    def passes(self, hosts: HostTable, spec: RequestSpec, row: int) -> bool:
        # A named consumer picked to this host rules out the hosts beside it as well: returning
        # False here, all of them are evaluated.
        claims = hosts.placed.on(hosts.hosts[row].id).values()
        return {placed.consumer for placed in claims}.isdisjoint(spec.different_host)


def _rows(hosts: HostTable, consumers: list[str]) -> list[int]:
    return [
        near
        for consumer in consumers
        for row in hosts.rows_of_consumer(consumer)
        for near in hosts.rows_of_same_host(row)
    ]
