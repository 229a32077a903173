# SPDX-License-Identifier: Apache-2.0
"""SimpleCIDRAffinityFilter: near an address, by the network that both are in."""

import ipaddress
from typing import Any

import numpy as np

from gantt import exceptions
from gantt.core.filters.base import Filter, only
from gantt.core.messages.request import RequestSpec
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.facts import LOW, MAPPED
from gantt.core.table.host_table import HostTable

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class SimpleCIDRAffinityFilter(Filter):
    """The host's address is in the network of hints ``build_near_host_ip`` and ``cidr`` (/24)."""

    reason = 'its address is not in {network}'
    public_reason = 'the hints build_near_host_ip and cidr'
    columns = ('address',)
    fields = ('hints',)

    def check_request(self, spec: RequestSpec) -> None:
        if _is_requested(spec):
            network = network_of(spec)
            if isinstance(network, str):
                raise exceptions.invalid('request.spec.hints.build_near_host_ip', network)

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        if not _is_requested(spec):
            return None
        network = network_of(spec)
        if isinstance(network, str):
            return only(hosts, [])
        start = int(network.network_address)
        bits = network.prefixlen
        if network.version == 4:
            start, bits = start | MAPPED, bits + 96
        width = (2**128 - 1) ^ (2 ** (128 - bits) - 1)
        high, low = hosts.address
        inside = (high & np.uint64(width >> 64)) == np.uint64(start >> 64)
        inside &= (low & np.uint64(width & LOW)) == np.uint64(start & LOW)
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


def _is_requested(spec: RequestSpec) -> bool:
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
