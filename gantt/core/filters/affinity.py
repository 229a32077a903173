# SPDX-License-Identifier: Apache-2.0
"""Filters by other guests and hosts: server groups, hosts of named consumers, near addresses.

Members of a group count through Gantt's own claims of the group and, for those placed
before Gantt knew it, through the consumers that the caller names.  Members of
one request see each other because each pick is laid over the table.
"""

import ipaddress
from typing import Any

import numpy as np

from gantt import exceptions
from gantt.core.filters.base import Filter, PairwiseFilter, all_but, one_or_all, only
from gantt.core.messages.request import Policy, RequestSpec
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.facts import LOW_64_BITS, MAPPED_IPV4_PREFIX
from gantt.core.table.group_members import members_by_row, rows_with_members
from gantt.core.table.host_table import HostTable

#: Text for members bound by others that stay.
WHOLE_GROUP_TEXT = 'which moves as a whole, all members in one request'


PUBLIC_REASON = 'the rule of the server group'
COLUMNS = ('placed', 'names')


def _has_policy(spec: RequestSpec, policy: Policy) -> bool:
    return spec.group is not None and spec.group.policy is policy


class ServerGroupAntiAffinityFilter(PairwiseFilter):
    """Fewer than ``max_per_host`` other members are on the host."""

    reason = 'with {spec.group.max_per_host} of the server group already'
    public_reason = PUBLIC_REASON
    columns = COLUMNS
    always = True

    def concerns(self, spec: RequestSpec) -> bool:
        return _has_policy(spec, Policy.ANTI_AFFINITY)

    def removed_for(self, hosts: HostTable, spec: RequestSpec, consumer: str) -> list[int]:
        group = spec.group
        if group is None or not self.concerns(spec):
            return []
        return rows_with_members(hosts, group, consumer, group.max_per_host)

    def remedy(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> str:
        assert spec.group is not None
        limit = f'max_per_host {spec.group.max_per_host + 1}'
        return f'fits on {one_or_all(hosts, rows)} with {limit} or soft-anti-affinity'


class ServerGroupAffinityFilter(PairwiseFilter):
    """The host that the other members are on; any host for the first of them."""

    reason = 'not where the server group is'
    public_reason = PUBLIC_REASON
    columns = COLUMNS
    always = True

    def concerns(self, spec: RequestSpec) -> bool:
        return _has_policy(spec, Policy.AFFINITY)

    def mask_for(self, hosts: HostTable, spec: RequestSpec, consumer: str) -> BoolArray | None:
        group = spec.group
        if group is None or not self.concerns(spec):
            return None
        # Members that leave their host by the same request bind no other member.
        members = members_by_row(hosts, group, consumer, staying=True)
        names = group.hosts
        if hosts.placed.leaving:
            # Of hosts that the caller names those count that have members which do not leave.
            names = [name for name in names if not hosts.rows_of_host(name)]
        if not members and not names:
            return None
        named = (row for name in names for row in hosts.rows_of_host(name))
        return only(hosts, [*members, *named])

    def reason_for(self, spec: RequestSpec, detail: dict[str, Any]) -> str:
        text = super().reason_for(spec, detail)
        return f'{text}, {WHOLE_GROUP_TEXT}' if spec.purpose.is_move else text

    def remedy(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> str:
        return f'fits on {one_or_all(hosts, rows)} with soft-affinity'


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
        return only(hosts, _rows_of_consumers(hosts, spec.same_host))


class DifferentHostFilter(Filter):
    """None of the consumers named is on the host."""

    reason = 'has a consumer of different_host'
    public_reason = 'the hint different_host'
    columns = ('placed', 'names')
    local = True

    def concerns(self, spec: RequestSpec) -> bool:
        return bool(spec.different_host)

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        return all_but(hosts, _rows_of_consumers(hosts, spec.different_host))

    def passes(self, hosts: HostTable, spec: RequestSpec, row: int) -> bool:
        # A named consumer picked to this host rules out the hosts beside it as well: returning
        # False here, all of them are evaluated.
        claims = hosts.placed.on_provider(hosts.hosts[row].id).values()
        return {placed.consumer for placed in claims}.isdisjoint(spec.different_host)


def _rows_of_consumers(hosts: HostTable, consumers: list[str]) -> list[int]:
    return [
        near
        for consumer in consumers
        for row in hosts.rows_of_consumer(consumer)
        for near in hosts.rows_of_same_host(row)
    ]


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class SimpleCIDRAffinityFilter(Filter):
    """The host's address is in the network of hints ``build_near_host_ip`` and ``cidr`` (/24)."""

    reason = 'its address is not in {network}'
    public_reason = 'the hints build_near_host_ip and cidr'
    columns = ('address',)
    fields = ('hints',)

    def check_request(self, spec: RequestSpec) -> None:
        if _has_address(spec):
            problem = network_of(spec)
            if isinstance(problem, str):
                raise exceptions.invalid('request.spec.hints.build_near_host_ip', problem)

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        if not _has_address(spec):
            return None
        network = network_of(spec)
        if isinstance(network, str):
            return only(hosts, [])
        start = int(network.network_address)
        bits = network.prefixlen
        if network.version == 4:
            start, bits = start | MAPPED_IPV4_PREFIX, bits + 96
        width = (2**128 - 1) ^ (2 ** (128 - bits) - 1)
        high, low = hosts.address
        inside = (high & np.uint64(width >> 64)) == np.uint64(start >> 64)
        inside &= (low & np.uint64(width & LOW_64_BITS)) == np.uint64(start & LOW_64_BITS)
        inside &= (high | low) != 0
        if network.version == 6:
            # IPv4 addresses are mapped into IPv6 here; they are in no network of IPv6.
            inside &= (high != 0) | ((low >> np.uint64(32)) != np.uint64(0xFFFF))
        return np.asarray(inside)

    def detail(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> dict[str, Any]:
        network = network_of(spec)
        if isinstance(network, str):
            return {'network': 'any network', 'parts': {network: len(rows)}}
        high, low = hosts.address.take(rows, axis=1)
        unknown = int(np.count_nonzero((high | low) == 0))
        parts = {f'not in {network}': len(rows) - unknown, 'did not say their address': unknown}
        parts = {text: count for text, count in parts.items() if count}
        return {'network': str(network), 'parts': parts}

    def remedy(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> str:
        row = int(rows[0])
        address = hosts.hosts[row].facts.hypervisor.host_ip or 'an address that is not known'
        rest = f' and {len(rows) - 1} more' if len(rows) > 1 else ''
        return (
            f'fits on {hosts.names[row]} ({address}){rest} with another build_near_host_ip or cidr'
        )


def _has_address(spec: RequestSpec) -> bool:
    return spec.hints.get('build_near_host_ip', []) not in ([], [''])


def network_of(spec: RequestSpec) -> Network | str:
    """Return the network that the hints mean, or the problem with them."""
    near, cidr = spec.hints.get('build_near_host_ip', []), spec.hints.get('cidr', [])
    if len(near) != 1 or len(cidr) > 1:
        return 'expected one value each for build_near_host_ip and cidr'
    bits = cidr[0] if cidr else '/24'
    # As in Nova an empty one leaves that address alone.
    text = f'{near[0]}/{bits.removeprefix("/")}' if bits else near[0]
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return f'expected an address and a prefix such as 192.0.2.1 and /24, got {text!r}'
