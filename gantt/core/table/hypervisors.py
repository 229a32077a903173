# SPDX-License-Identifier: Apache-2.0
"""What filters ask of a host's hypervisor and address, as columns.

A platform is all that a hypervisor says but for the host's own names: hosts of
one kind share it.  An address is 128 bits in two words, IPv4 mapped into them.
"""

import ipaddress

import msgspec
from msgspec.structs import force_setattr, replace

from gantt.core.messages.report import Hypervisor
from gantt.core.resources.host import HostFacts, HostRow
from gantt.core.table.codes import Interned
from gantt.core.table.columns import Columns

LOW = 2**64 - 1
#: First of the addresses that stand for IPv4.
MAPPED = 0xFFFF << 32


def write(columns: Columns, platforms: Interned, i: int, old: HostRow, facts: HostFacts) -> None:
    """The platform and the address of a row.

    :param platforms: what hosts say at length, once each
    :param old: the row as it was
    """
    hypervisor = facts.hypervisor
    if old.version >= 0 and old.facts.hypervisor == hypervisor:
        # Facts change with every metric; these do not: one copy is enough.
        force_setattr(facts, 'hypervisor', old.facts.hypervisor)
        return
    blank = replace(hypervisor, hostname='', host_ip='')
    try:
        key = msgspec.msgpack.encode(blank)
    except (OverflowError, RecursionError, TypeError):
        # Nothing that could have come over the wire: only the plain facts count.
        blank = replace(blank, cpu_info='', supported=[])
        key = msgspec.msgpack.encode(blank)
    column = columns.arrays['platform']
    code = platforms.add(key, blank)
    # Hosts of one kind say the same at length: keep one of them.
    known: Hypervisor = platforms.values[code]
    for field in ('cpu_info', 'supported', 'stats'):
        force_setattr(hypervisor, field, getattr(known, field))
    column[i] = code
    platforms.compact(column[: columns.count])
    address = address_of(hypervisor.host_ip) or 0
    columns.arrays['address'][:, i] = address >> 64, address & LOW


def address_of(text: str) -> int | None:
    """An IP address as 128 bits; None: it is none."""
    try:
        address = ipaddress.ip_address(text.strip())
    except ValueError:
        return None
    return int(address) | (MAPPED if address.version == 4 else 0)
