# SPDX-License-Identifier: Apache-2.0
"""The part of ``gantt-manage audit`` that is over zones, and hosts named by their digests."""

from typing import Any

from gantt import exceptions
from gantt.cmd import console, wiring
from gantt.core.messages import quoting
from gantt.core.zones import marks
from gantt.db import stores
from gantt.scheduler.ports import Stores
from gantt.scheduler.zones.audit import AuditedZone, ZoneAudit, ZoneFindings


def over_zones(conf: Any, connected: Stores) -> ZoneFindings:
    """Return the findings between this zone and its child zones."""
    calls = wiring.zone_calls(conf, lambda: connected.zones.zone_identity().uuid)
    try:
        return ZoneAudit(
            connected.zones, connected.zone_figures, connected.zone_claims, calls
        ).run()
    finally:
        calls.close()


def line_of(zone: AuditedZone) -> str:
    """Return the line of the audit on a zone that it compared, or tried to."""
    if zone.problem:
        return f'zone {zone.zone}: not compared as a whole: {zone.problem}'
    line = f'zone {zone.zone}: compared, live claims there: {zone.claims}, hosts: {zone.hosts}'
    if zone.read_back:
        line += f'; forgotten here and read back: {zone.read_back}'
    return line


def named(conf: Any) -> int:
    """Name hosts of this zone by the digests that an audit above has shown; 1: none is."""
    salt, digests = _bytes(conf.command.salt, 'SALT', marks.SALT_BYTES), set()
    for text in conf.command.digests:
        digests.add(_bytes(text, 'DIGEST', marks.DIGEST_BYTES))
    connected = stores.connect(conf)
    zone_uuid = connected.zones.zone_identity().uuid
    name_of = {
        mark.hex(): host.name
        for host in connected.zone_figures.registered_hosts()
        if (mark := marks.marks_of(host, zone_uuid, salt).registration) in digests
    }
    lines = [f'{digest} is {name}' for digest, name in sorted(name_of.items())]
    nothing = 'none of them is a host of this zone: look in the zones below it'
    console.show(conf, {'hosts': name_of}, lines or [nothing])
    return 0 if name_of else 1


def _bytes(text: str, name: str, count: int) -> bytes:
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = b''
    if len(value) != count:
        quoted = quoting.short(text)
        raise exceptions.invalid(name, f'expected {count * 2} hexadecimal digits, got {quoted}')
    return value
