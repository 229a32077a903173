# SPDX-License-Identifier: Apache-2.0
"""The part of ``gantt-manage audit`` that is over zones, and hosts named by their digests."""

from typing import Any

from gantt import exceptions
from gantt.cmd import console, wiring
from gantt.core.messages import quoting
from gantt.core.zones import marks
from gantt.db.stores import store
from gantt.scheduler.zones.audit import AuditedZone, ZoneAudit, ZoneFindings


def over_zones(conf: Any, connected: Any) -> ZoneFindings:
    """What is wrong between this zone and those directly below it."""
    calls = wiring.zone_calls(conf, lambda: connected.zone_identity().uuid)
    try:
        return ZoneAudit(connected, calls).run()
    finally:
        calls.close()


def line_of(zone: AuditedZone) -> str:
    """As the audit shows a zone that it compared, or tried to."""
    if zone.problem:
        return f'zone {zone.zone}: not compared as a whole: {zone.problem}'
    line = f'zone {zone.zone}: compared, live claims there: {zone.claims}, hosts: {zone.hosts}'
    if zone.read_back:
        line += f'; forgotten here and read back: {zone.read_back}'
    return line


def named(conf: Any) -> int:
    """Name hosts of this zone by the digests that an audit above has shown; 1: none is."""
    salt, wanted = _bytes(conf.command.salt, 'SALT', marks.SALT_BYTES), set()
    for text in conf.command.digests:
        wanted.add(_bytes(text, 'DIGEST', marks.DIGEST_BYTES))
    connected = store.connect(conf)
    own = connected.zone_identity().uuid
    found = {
        mark.hex(): host.name
        for host in connected.registered_hosts()
        if (mark := marks.marks_of(host, own, salt).registration) in wanted
    }
    lines = [f'{digest} is {name}' for digest, name in sorted(found.items())]
    nothing = 'none of them is a host of this zone: look in the zones below it'
    console.show(conf, {'hosts': found}, lines or [nothing])
    return 0 if found else 1


def _bytes(text: str, name: str, count: int) -> bytes:
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b''
    if len(found) != count:
        shown = quoting.short(text)
        raise exceptions.invalid(name, f'expected {count * 2} hexadecimal digits, got {shown}')
    return found
