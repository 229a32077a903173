# SPDX-License-Identifier: Apache-2.0
"""Events of a host: its changes, as lines of its history.

A line is derived from the row before and after.  Values that change all the time, such as metrics,
use and sequences, are no events.
"""

from collections.abc import Iterable, Mapping

import msgspec

from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.host import HostFacts, HostRow

#: Number of the newest lines that are stored of a host, about.
STORED_PER_HOST = 200
#: Retention of a line.
STORED_SECONDS = 30 * 86_400.0
#: Longest line, in characters; below, the most names in one.
MESSAGE_CHARACTERS_MAX = 1000
_NAMED_MAX = 8


class HostEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Change of a host.

    :ivar kind: registered | disabled | enabled | service | facts | key | renamed | removed |
        claimed | confirmed | released | expired | refused
    :ivar actor: operator that changed it, if any
    :ivar at: seconds of the database's clock; 0: now
    :ivar claim_id: id of the claim that it concerns, if any
    """

    kind: str
    message: str
    actor: str = ''
    at: float = 0.0
    claim_id: str | None = None


def host_events(before: HostRow, after: HostRow, by: str = '') -> list[HostEvent]:
    """Return lines about what differs between two rows of a host; [] without notable change.

    :param by: operator that changed it, if any
    """
    events: list[HostEvent] = []
    if after.boot_nonce != before.boot_nonce and after.boot_nonce:
        again = 'again: its agent was started anew, or another one reports for it'
        text = again if before.boot_nonce else 'for the first time'
        events.append(HostEvent(kind='registered', message=text))
    if after.disabled != before.disabled:
        if after.disabled is None:
            events.append(HostEvent(kind='enabled', message='an operator enabled it', actor=by))
        else:
            author = after.disabled_by or ''
            events.append(HostEvent(kind='disabled', message=after.disabled, actor=author))
    if after.service_disabled != before.service_disabled:
        disabled_after = after.service_disabled
        text = (
            'the service takes guests again'
            if disabled_after is None
            else f'takes no guests: {disabled_after}'
        )
        events.append(HostEvent(kind='service', message=text))
    if after.key is not before.key and after.key != before.key:
        events += _key_events(before, after)
    if after.inventories_by != before.inventories_by:
        author = (
            'its reports' if after.reports_inventories else 'requests to the Placement interface'
        )
        events.append(HostEvent(kind='facts', message=f'{author} say what it has', actor=by))
    events += [HostEvent(kind='facts', message=text) for text in _facts_events(before, after)]
    return [
        msgspec.structs.replace(event, message=event.message[:MESSAGE_CHARACTERS_MAX])
        if len(event.message) > MESSAGE_CHARACTERS_MAX
        else event
        for event in events
    ]


def _key_events(before: HostRow, after: HostRow) -> list[HostEvent]:
    """Return the line of a changed key; a new number of the last signed message alone is none."""
    old = before.key.public if before.key else ''
    new = after.key.public if after.key else ''
    if (
        after.key is not None
        and after.key.is_revoked
        and not (before.key and before.key.is_revoked)
    ):
        return [HostEvent(kind='key', message='its key was revoked')]
    if old == new:
        return []
    text = 'its key was forgotten' if not new else 'a key was kept' if not old else 'another key'
    return [HostEvent(kind='key', message=text)]


def _facts_events(before: HostRow, after: HostRow) -> Iterable[str]:
    if after.zone != before.zone:
        yield f'zone: {before.zone or "-"} -> {after.zone or "-"}'
    old, new = before.facts, after.facts
    if old is new:
        return
    if not old.inventories and new.inventories:
        yield 'it reported what it has: ' + _inventories_text(new.inventories, new.inventories)
    elif old.inventories != new.inventories:
        names = [
            name
            for name in sorted({*old.inventories, *new.inventories})
            if old.inventories.get(name) != new.inventories.get(name)
        ]
        old_text, new_text = (_inventories_text(facts.inventories, names) for facts in (old, new))
        yield f'inventories: {old_text} -> {new_text}'
    if old.traits != new.traits and old.inventories:
        yield f'traits: {_differences(old.traits, new.traits)}'
    if old.location != new.location and old.inventories:
        yield f'location: {old.location or "-"} -> {new.location or "-"}'
    yield from _changed_facts(old, new)


def _changed_facts(old: HostFacts, new: HostFacts) -> Iterable[str]:
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


def _inventories_text(inventories: Mapping[str, Inventory], names: Iterable[str]) -> str:
    sizes = []
    for name in sorted(names):
        inventory = inventories.get(name)
        if inventory is None:
            sizes.append(f'no {name}')
            continue
        more = f' less {inventory.reserved}' if inventory.reserved else ''
        ratio = f' x {inventory.allocation_ratio:g}' if inventory.allocation_ratio != 1 else ''
        sizes.append(f'{inventory.total}{more}{ratio} {name}')
    return _names_text(sizes)


def _differences(old: Iterable[str], new: Iterable[str]) -> str:
    removed, new_names = set(old) - set(new), set(new) - set(old)
    return _names_text(
        [*(f'+{name}' for name in sorted(new_names)), *(f'-{name}' for name in sorted(removed))]
    )


def _names_text(names: list[str]) -> str:
    more = f' and {len(names) - _NAMED_MAX} more' if len(names) > _NAMED_MAX else ''
    return ', '.join(names[:_NAMED_MAX]) + more
