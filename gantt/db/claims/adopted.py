# SPDX-License-Identifier: Apache-2.0
"""Claims that nobody asked for: of guests that were found, or told of, running."""

from collections.abc import Sequence

import msgspec

from gantt.core.claims.adoption import Adoption, GuestOutcome, GuestToAdopt
from gantt.core.claims.claim import Claim
from gantt.db.claims import groups, held
from gantt.db.claims.claims import Changes
from gantt.db.engine import session
from gantt.db.hosts import claim_rows, providers, rows
from gantt.db.hosts.claim_rows import load_claims, of_guests
from gantt.db.hosts.hosts import HostRecords
from gantt.db.schema import models

_c = models.claims

PARTS = 500


def insert(tx: session.Tx, made: Sequence[Claim]) -> None:
    """Write claims that are new.

    What runs takes its room also where its guest has a claim in a zone below: both say so until
    somebody has looked where it runs.
    """
    if not made:
        return
    below: dict[str, str] = {}
    for start in range(0, len(made), PARTS):
        below |= held.zones_of(tx, {claim.consumer for claim in made[start : start + PARTS]})
    noted = [
        msgspec.structs.replace(
            claim, reason=f'{claim.reason}, and has one in zone {below[claim.consumer]} below'
        )
        if claim.consumer in below
        else claim
        for claim in made
    ]
    claim_rows.insert_claims(tx, noted)


def flag(changes: Changes, hosts: HostRecords) -> None:
    """What follows for the hosts whose use grew without anybody having asked.

    They may be over-full, also of classes that they have nothing of, which get rows.
    """
    locked = changes.locked
    for pid in changes.grown:
        rows.flag(locked.counters[pid])
        if locked.is_host(pid):
            _write_others(changes, hosts, pid)


def _write_others(changes: Changes, hosts: HostRecords, pid: int) -> None:
    """Rows for classes that the host has nothing of, or had."""
    locked = changes.locked
    counters, facts = locked.counters[pid], locked.templates[pid].facts
    if set(counters.others) <= locked.others_read(pid):
        return
    providers.read_uncounted(changes.tx, locked, [pid])
    others = {name: of for name, of in counters.others.items() if of[1] or of[2]}
    counters.cold = hosts.write_inventories(pid, facts, others)
    locked.forget_others(pid)


def adopt(
    changes: Changes, hosts: HostRecords, guests: Sequence[GuestToAdopt]
) -> list[GuestOutcome]:
    """Make claims for guests that an operator tells of; their fates in the order given.

    Groups and hosts are locked in the order of the group commit, which finds these claims, or is
    found by this.
    """
    tx = changes.tx
    known = providers.ids_by_name(tx, {guest.host for guest in guests})
    there = [guest for guest in guests if guest.host in known]
    groups.lock(tx, {guest.group for guest in there if guest.group is not None})
    changes.lock(known.values())
    adoption = _adoption(changes, guests)
    outcomes = [adoption.judge(guest) for guest in guests]
    for claim in adoption.made:
        changes.count(claim, 1)
    insert(tx, adoption.made)
    flag(changes, hosts)
    changes.write()
    groups.bump(tx, {claim.group for claim in adoption.made if claim.group is not None})
    return outcomes


def judge(changes: Changes, guests: Sequence[GuestToAdopt]) -> list[GuestOutcome]:
    """What ``adopt`` would say; nothing is locked and nothing written."""
    known = providers.ids_by_name(changes.tx, {guest.host for guest in guests})
    changes.locked = providers.read(changes.tx, changes.memory, known.values())
    adoption = _adoption(changes, guests)
    return [adoption.judge(guest) for guest in guests]


def _adoption(changes: Changes, guests: Sequence[GuestToAdopt]) -> Adoption:
    locked = changes.locked
    hosts = map(locked.row, locked.hosts())
    consumers = sorted({guest.consumer for guest in guests})
    live: list[Claim] = []
    below: dict[str, str] = {}
    for start in range(0, len(consumers), PARTS):
        # Not "live = 1": of a few consumers this is.
        some = consumers[start : start + PARTS]
        where = [of_guests(some), _c.c.live != 0]
        live += load_claims(changes.tx, where=where)
        below |= held.zones_of(changes.tx, some)
    return Adoption({row.name: row for row in hosts}, live, below, changes.tx.now)
