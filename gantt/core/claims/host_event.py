# SPDX-License-Identifier: Apache-2.0
"""What changed of a host, as a line of its history.

A line is made from what its row was and is.  What moves all the time, such as metrics, use and
sequences, is no change here.
"""

from collections.abc import Iterable, Mapping

import msgspec

from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.host import HostFacts, HostRow

#: Lines that are kept of a host, about: the newest.
STORED_EACH = 200
#: A line is kept for so long.
STORED_SECONDS = 30 * 86_400.0
#: Characters of a line, and names that one has.
WHAT_MAX = 1000
_NAMED = 8


class HostEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One change.

    :ivar kind: registered | disabled | enabled | service | facts | key | renamed | removed |
        claimed | confirmed | released | expired | refused
    :ivar by: who did it, where it was an operator
    :ivar at: seconds of the database's clock; 0: now
    :ivar claim_id: of what it is about, where it is about a claim
    """

    kind: str
    what: str
    by: str = ''
    at: float = 0.0
    claim_id: str | None = None


def changes(before: HostRow, after: HostRow, by: str = '') -> list[HostEvent]:
    """Lines about what differs between two rows of a host; [] where it is nothing of note.

    :param by: who changed it, where that was an operator
    """
    found: list[HostEvent] = []
    if after.boot_nonce != before.boot_nonce and after.boot_nonce:
        again = 'again: its agent was started anew, or another one reports for it'
        what = again if before.boot_nonce else 'for the first time'
        found.append(HostEvent(kind='registered', what=what))
    if after.disabled != before.disabled:
        if after.disabled is None:
            found.append(HostEvent(kind='enabled', what='an operator enabled it', by=by))
        else:
            who = after.disabled_by or ''
            found.append(HostEvent(kind='disabled', what=after.disabled, by=who))
    if after.service_disabled != before.service_disabled:
        disabled_after = after.service_disabled
        what = (
            'the service takes guests again'
            if disabled_after is None
            else f'takes no guests: {disabled_after}'
        )
        found.append(HostEvent(kind='service', what=what))
    if after.key is not before.key and after.key != before.key:
        found += _key(before, after)
    if after.inventories_by != before.inventories_by:
        who = 'its reports' if after.reports_inventories else 'requests to the Placement interface'
        found.append(HostEvent(kind='facts', what=f'{who} say what it has', by=by))
    found += [HostEvent(kind='facts', what=what) for what in _facts(before, after)]
    return [
        msgspec.structs.replace(one, what=one.what[:WHAT_MAX]) if len(one.what) > WHAT_MAX else one
        for one in found
    ]


def _key(before: HostRow, after: HostRow) -> list[HostEvent]:
    """Of its words alone the number of the last signed one changes: that is no line."""
    old = before.key.public if before.key else ''
    new = after.key.public if after.key else ''
    if (
        after.key is not None
        and after.key.is_revoked
        and not (before.key and before.key.is_revoked)
    ):
        return [HostEvent(kind='key', what='its key was revoked')]
    if old == new:
        return []
    what = 'its key was forgotten' if not new else 'a key was kept' if not old else 'another key'
    return [HostEvent(kind='key', what=what)]


def _facts(before: HostRow, after: HostRow) -> Iterable[str]:
    if after.zone != before.zone:
        yield f'zone: {before.zone or "-"} -> {after.zone or "-"}'
    old, new = before.facts, after.facts
    if old is new:
        return
    if not old.inventories and new.inventories:
        yield 'it reported what it has: ' + _sizes(new.inventories, new.inventories)
    elif old.inventories != new.inventories:
        names = [
            name
            for name in sorted({*old.inventories, *new.inventories})
            if old.inventories.get(name) != new.inventories.get(name)
        ]
        yield f'inventories: {_sizes(old.inventories, names)} -> {_sizes(new.inventories, names)}'
    if old.traits != new.traits and old.inventories:
        yield f'traits: {_differences(old.traits, new.traits)}'
    if old.location != new.location and old.inventories:
        yield f'location: {old.location or "-"} -> {new.location or "-"}'
    yield from _parts(old, new)


def _parts(old: HostFacts, new: HostFacts) -> Iterable[str]:
    if not old.inventories:
        return
    if (old.hypervisor.type, old.hypervisor.version) != (
        new.hypervisor.type,
        new.hypervisor.version,
    ):
        yield (
            f'hypervisor: {old.hypervisor.type} {old.hypervisor.version} -> '
            f'{new.hypervisor.type} {new.hypervisor.version}'
        )
    if len(old.numa) != len(new.numa):
        yield f'NUMA cells: {len(old.numa)} -> {len(new.numa)}'
    counts = sum(pool.count for pool in old.devices), sum(pool.count for pool in new.devices)
    if counts[0] != counts[1]:
        yield f'devices: {counts[0]} -> {counts[1]}'


def _sizes(inventories: Mapping[str, Inventory], names: Iterable[str]) -> str:
    shown = []
    for name in sorted(names):
        one = inventories.get(name)
        if one is None:
            shown.append(f'no {name}')
            continue
        more = f' less {one.reserved}' if one.reserved else ''
        ratio = f' x {one.allocation_ratio:g}' if one.allocation_ratio != 1 else ''
        shown.append(f'{one.total}{more}{ratio} {name}')
    return _named(shown)


def _differences(old: Iterable[str], new: Iterable[str]) -> str:
    gone, come = set(old) - set(new), set(new) - set(old)
    return _named([*(f'+{name}' for name in sorted(come)), *(f'-{name}' for name in sorted(gone))])


def _named(names: list[str]) -> str:
    more = f' and {len(names) - _NAMED} more' if len(names) > _NAMED else ''
    return ', '.join(names[:_NAMED]) + more
