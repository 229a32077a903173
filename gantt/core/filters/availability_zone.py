# SPDX-License-Identifier: Apache-2.0
"""AvailabilityZoneFilter: only hosts of the requested zone."""

from collections.abc import Iterable

import numpy as np

from gantt.core.filters.base import Filter, UnknownFacts, names_of, only
from gantt.core.messages.request import RequestSpec
from gantt.core.plugin import EVERY_KIND
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.host_table import HostTable


class AvailabilityZoneFilter(Filter):
    """A host's zone: of an aggregate that has one, else reported, else the default.

    A forced host has to be in the zone as well, but for the default one: that of
    ``nova:HOST`` is what people write where they do not know the zone of the host.
    """

    reason = 'not in availability zone {spec.availability_zone}'
    public_reason = 'the availability zone asked for'
    columns = ('zone',)
    kinds = EVERY_KIND
    fields = ('availability_zone', 'force_hosts', 'force_nodes')
    always = True

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        requested = spec.availability_zone
        if requested is None:
            return None
        if requested == hosts.default_zone and (spec.force_hosts or spec.force_nodes):
            named = (a.metadata.get('availability_zone') for a in hosts.known_aggregates.values())
            if requested not in named:  # hosts that report it do not make it one of an operator's
                return None
        code = hosts.zones.get(requested)
        if code is None:
            return hosts.zone == 0 if requested == hosts.default_zone else only(hosts, [])
        mask = hosts.zone == code
        if requested == hosts.default_zone:
            mask |= hosts.zone == 0
        return mask

    def unknown(self, hosts: HostTable, spec: RequestSpec) -> Iterable[UnknownFacts]:
        requested, zones = spec.availability_zone, _zones(hosts)
        if requested is not None and requested not in zones:
            yield UnknownFacts('availability zone', requested, sorted(zones))

    def remedy(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> str:
        zones = sorted({hosts.zone_name(int(row)) for row in np.unique(rows)[:1000]})
        host_count = f'{len(rows)} host{"s" if len(rows) > 1 else ""}'
        return f'fits on {host_count} in availability zone {names_of(zones)}'


def _zones(hosts: HostTable) -> set[str]:
    """Return zones that a host is in, or that an aggregate has, be it empty."""
    codes = np.flatnonzero(np.bincount(hosts.zone)).tolist()
    named = {a.metadata.get('availability_zone', '') for a in hosts.known_aggregates.values()}
    return {hosts.zones.names[code] or hosts.default_zone for code in codes} | named - {''}
