# SPDX-License-Identifier: Apache-2.0
"""Claims without a request: of guests that were found running, or reported by an operator."""

from collections.abc import Sequence

import msgspec

from gantt.core.claims.adoption import Adoption, GuestOutcome, GuestToAdopt
from gantt.core.claims.claim import Claim
from gantt.db.claims import groups, held
from gantt.db.claims.unit_of_work import UnitOfWork
from gantt.db.hosts import providers, rows
from gantt.db.hosts.claim_rows import load_claims, of_guests
from gantt.db.hosts.hosts import HostRecords
from gantt.db.schema import models

_c = models.claims

PARTS = 500


def note_zones(changes: UnitOfWork) -> None:
    """Note in new claims that their guests have one in a child zone, too.

    A running guest takes its room also there: both claims are kept until an operator has checked
    where it runs.
    """
    claims = changes.made
    zone_of_consumer: dict[str, str] = {}
    for start in range(0, len(claims), PARTS):
        zone_of_consumer |= held.zones_of(
            changes.tx, {claim.consumer for claim in claims[start : start + PARTS]}
        )
    changes.made = [
        msgspec.structs.replace(
            claim,
            reason=f'{claim.reason}, and has one in zone {zone_of_consumer[claim.consumer]} below',
        )
        if claim.consumer in zone_of_consumer
        else claim
        for claim in claims
    ]


def flag(changes: UnitOfWork, hosts: HostRecords) -> None:
    """Flag the hosts whose usage grew without a request.

    They may be over-full, also of classes without inventory, which get rows.
    """
    locked = changes.locked
    for pid in changes.grown:
        rows.flag(locked.counters[pid])
        if locked.is_host(pid):
            _write_others(changes, hosts, pid)


def _write_others(changes: UnitOfWork, hosts: HostRecords, pid: int) -> None:
    """Write rows for classes that the host has no inventory of, or had."""
    locked = changes.locked
    counters, facts = locked.counters[pid], locked.templates[pid].facts
    if set(counters.others) <= locked.others_read(pid):
        return
    providers.read_uncounted(changes.tx, locked, [pid])
    others = {name: usage for name, usage in counters.others.items() if usage[1] or usage[2]}
    counters.sparse_classes = hosts.write_inventories(pid, facts, others)
    locked.forget_others(pid)


def adopt(
    changes: UnitOfWork, hosts: HostRecords, guests: Sequence[GuestToAdopt]
) -> list[GuestOutcome]:
    """Create claims for guests that an operator names; return their outcomes in the order given.

    Groups and hosts are locked in the order of the group commit: each sees the claims of the
    other.
    """
    tx = changes.tx
    host_ids = providers.ids_by_name(tx, {guest.host for guest in guests})
    known_guests = [guest for guest in guests if guest.host in host_ids]
    groups.lock(tx, {guest.group for guest in known_guests if guest.group is not None})
    changes.lock(host_ids.values())
    adoption = _adoption(changes, guests)
    outcomes = [adoption.judge(guest) for guest in guests]
    for claim in adoption.made:
        changes.make(claim)
    note_zones(changes)
    flag(changes, hosts)
    changes.write()
    groups.bump(tx, {claim.group for claim in adoption.made if claim.group is not None})
    return outcomes


def judge(changes: UnitOfWork, guests: Sequence[GuestToAdopt]) -> list[GuestOutcome]:
    """Return the outcomes of ``adopt``; nothing is locked and nothing written."""
    host_ids = providers.ids_by_name(changes.tx, {guest.host for guest in guests})
    changes.locked = providers.read(changes.tx, changes.memory, host_ids.values())
    adoption = _adoption(changes, guests)
    return [adoption.judge(guest) for guest in guests]


def _adoption(changes: UnitOfWork, guests: Sequence[GuestToAdopt]) -> Adoption:
    locked = changes.locked
    hosts = map(locked.row, locked.hosts())
    consumers = sorted({guest.consumer for guest in guests})
    live_claims: list[Claim] = []
    zone_of_consumer: dict[str, str] = {}
    for start in range(0, len(consumers), PARTS):
        # Not "live = 1", for which PostgreSQL might read all live claims.
        part = consumers[start : start + PARTS]
        where = [of_guests(part), _c.c.live != 0]
        live_claims += load_claims(changes.tx, where=where)
        zone_of_consumer |= held.zones_of(changes.tx, part)
    return Adoption({row.name: row for row in hosts}, live_claims, zone_of_consumer, changes.tx.now)
