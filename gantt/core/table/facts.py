# SPDX-License-Identifier: Apache-2.0
"""Reported facts of hosts as columns: traits, location, hypervisor, address, metrics.

A platform is a hypervisor's report without the host's own names: hosts of one kind
share it.  An address is 128 bits in two words, IPv4 mapped into them.
"""

import ipaddress

import msgspec
from msgspec.structs import force_setattr, replace

from gantt.core.messages.report import Hypervisor
from gantt.core.resources.host import HostFacts, HostRow
from gantt.core.table.columns import Codes, Columns, InternedFacts, words_of, write_bits

#: Names of the parts of ``location``, the widest first, unless configured otherwise.
LOCATION_PARTS = ('site', 'room', 'rack')
LOW_64_BITS = 2**64 - 1
#: First of the addresses that stand for IPv4.
MAPPED_IPV4_PREFIX = 0xFFFF << 32
#: Distinct sets of traits whose bits are remembered while encoding.
_TRAIT_SETS_MAX = 4096


class FactCodes:
    """Codes of reported facts.

    :ivar platforms: distinct hypervisor reports, without the host's own names
    """

    def __init__(self) -> None:
        self.trait_codes = Codes()
        self.locations = Codes([''])
        self.platforms = InternedFacts()
        self._trait_sets: dict[tuple[str, ...], tuple[list[str], dict[int, int]]] = {}

    def copy(self) -> 'FactCodes':
        other = FactCodes()
        other.trait_codes, other.locations = self.trait_codes.copy(), self.locations.copy()
        other.platforms = self.platforms.copy()
        return other

    def write(self, columns: Columns, i: int, old: HostRow, facts: HostFacts) -> None:
        """Write all facts of one row.

        :param old: the row as it was
        """
        self._write_traits(columns, i, facts)
        columns.arrays['location'][i] = self.locations.add(facts.location)
        columns.write_metrics(i, facts.metrics)
        if old.version >= 0 and old.facts.hypervisor == facts.hypervisor:
            # Facts change with every metric, the hypervisor does not: one copy is enough.
            force_setattr(facts, 'hypervisor', old.facts.hypervisor)
        else:
            self._write_hypervisor(columns, i, facts.hypervisor)

    def _write_traits(self, columns: Columns, i: int, facts: HostFacts) -> None:
        key = tuple(facts.traits)
        names_and_bits = self._trait_sets.get(key)
        if names_and_bits is None:
            if len(self._trait_sets) >= _TRAIT_SETS_MAX:
                self._trait_sets.clear()
            codes = [self.trait_codes.add(name) for name in key]
            shared = [self.trait_codes.names[code] for code in codes]
            names_and_bits = self._trait_sets[key] = (shared, words_of(codes))
        # Hosts of one kind have equal lists of a hundred names: one of them is enough.
        force_setattr(facts, 'traits', names_and_bits[0])
        write_bits(columns, 'traits', i, names_and_bits[1])

    def _write_hypervisor(self, columns: Columns, i: int, hypervisor: Hypervisor) -> None:
        blank = replace(hypervisor, hostname='', host_ip='')
        try:
            key = msgspec.msgpack.encode(blank)
        except (OverflowError, RecursionError, TypeError):
            # Not encodable, so it cannot have come over the wire: only the plain facts count.
            blank = replace(blank, cpu_info='', supported=[])
            key = msgspec.msgpack.encode(blank)
        column = columns.arrays['platform']
        code = self.platforms.add(key, blank)
        # Hosts of one kind report the same long texts: one copy is enough.
        platform: Hypervisor = self.platforms.values[code]
        for field in ('cpu_info', 'supported', 'stats'):
            force_setattr(hypervisor, field, getattr(platform, field))
        column[i] = code
        self.platforms.compact(column[: columns.count])
        address = address_of(hypervisor.host_ip) or 0
        columns.arrays['address'][:, i] = address >> 64, address & LOW_64_BITS


def address_of(text: str) -> int | None:
    """Return an IP address as 128 bits; None if the text is not an address."""
    try:
        address = ipaddress.ip_address(text.strip())
    except ValueError:
        return None
    return int(address) | (MAPPED_IPV4_PREFIX if address.version == 4 else 0)
