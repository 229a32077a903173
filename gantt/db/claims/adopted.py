# SPDX-License-Identifier: Apache-2.0
"""Claims without a request: of guests that were found running, or reported by an operator."""

from collections.abc import Collection, Sequence

import msgspec

from gantt.core.claims.adoption import Adoption, GuestOutcome, GuestToAdopt
from gantt.db.claims import groups, held
from gantt.db.claims.unit_of_work import UnitOfWork
from gantt.db.hosts import providers, rows
from gantt.db.hosts.claim_rows import is_live, load_claims_of
from gantt.db.hosts.hosts import HostRecords


def write(changes: UnitOfWork, hosts: HostRecords, group_uuids: Collection[str]) -> None:
    """Write changes that no request asked for, with flags on the hosts that they may overfill.

    :param group_uuids: locked groups with new members: what was planned for them is void
    """
    if changes.created:
        _note_zones(changes)
    _flag(changes, hosts)
    changes.write()
    if group_uuids:
        groups.increment_generations(changes.tx, group_uuids)


def _note_zones(changes: UnitOfWork) -> None:
    """Record in new claims the child zone where their guest has a claim as well.

    A running guest takes its room also there: both claims are kept until an operator has checked
    where it runs.
    """
    zone_of_consumer = held.zones_of_consumers(
        changes.tx, {claim.consumer for claim in changes.created}
    )
    changes.created = [
        msgspec.structs.replace(
            claim,
            reason=f'{claim.reason}, and has one in child zone {zone_of_consumer[claim.consumer]}',
        )
        if claim.consumer in zone_of_consumer
        else claim
        for claim in changes.created
    ]


def _flag(changes: UnitOfWork, hosts: HostRecords) -> None:
    """Flag the hosts whose usage grew without a request.

    They may be over-full, also of classes without inventory, which get rows.
    """
    locked = changes.locked
    for pid in changes.grown:
        rows.update_over_full_flag(locked.counters[pid])
        new_classes = set(locked.counters[pid].others) - locked.others_read(pid)
        if locked.is_host(pid) and new_classes:
            providers.read_uncounted(changes.tx, locked, [pid])
            hosts.replace_inventories(locked, pid, locked.templates[pid].facts)


def adopt(
    changes: UnitOfWork, hosts: HostRecords, guests: Sequence[GuestToAdopt]
) -> list[GuestOutcome]:
    """Create claims for guests that an operator names; return their outcomes in the order given.

    Groups and hosts are locked in the order of the group commit: each sees the claims of the
    other.
    """
    host_ids = providers.ids_by_name(changes.tx, {guest.host for guest in guests})
    known_guests = [guest for guest in guests if guest.host in host_ids]
    group_uuids = {guest.group for guest in known_guests if guest.group is not None}
    changes.lock(host_ids.values(), group_uuids)
    adoption = _adoption(changes, guests)
    outcomes = [adoption.check(guest) for guest in guests]
    for claim in adoption.new_claims:
        changes.add_claim(claim)
    write(changes, hosts, {claim.group for claim in adoption.new_claims if claim.group is not None})
    return outcomes


def check(changes: UnitOfWork, guests: Sequence[GuestToAdopt]) -> list[GuestOutcome]:
    """Return the outcomes of ``adopt``; nothing is locked and nothing written."""
    host_ids = providers.ids_by_name(changes.tx, {guest.host for guest in guests})
    changes.locked = providers.read(changes.tx, changes.memory, host_ids.values())
    adoption = _adoption(changes, guests)
    return [adoption.check(guest) for guest in guests]


def _adoption(changes: UnitOfWork, guests: Sequence[GuestToAdopt]) -> Adoption:
    locked = changes.locked
    hosts = map(locked.row, locked.hosts())
    consumers = {guest.consumer for guest in guests}
    return Adoption(
        {row.name: row for row in hosts},
        list(load_claims_of(changes.tx, consumers, is_live)),
        held.zones_of_consumers(changes.tx, consumers),
        changes.tx.now,
    )
