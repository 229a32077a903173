# SPDX-License-Identifier: Apache-2.0
"""What runs on a host: what its driver lists, not what its journal remembers.

The journal adds what is pending, and whose claim a guest is.  After a crash
:func:`after_boot` brings the journal in line with what really runs.
"""

import logging
from collections.abc import Container, Iterable

import msgspec

from gantt.compute.agent.journal import (
    FINISHED,
    PENDING,
    RUNNING,
    STARTING,
    STOPPING,
    Journal,
    JournalEntry,
)
from gantt.compute.ports import GuestDriver, GuestError, RunningGuest
from gantt.core.messages.build import Build
from gantt.core.messages.report import Running

LOG = logging.getLogger(__name__)

#: How long a start that an earlier process began is waited for.
CONVERGENCE_SECONDS = 30.0


class GuestInventory(msgspec.Struct, frozen=True):
    """Who is on the host; both lists None where that cannot be said now."""

    running: list[Running] | None
    pending: list[Running] | None

    @property
    def guests(self) -> list[RunningGuest]:
        """What runs, for a driver that asks."""
        return [
            RunningGuest(consumer=r.consumer, claim_id=r.claim_id, resources=r.resources)
            for r in self.running or ()
        ]

    def used(self, but: Container[str | None] = ()) -> dict[str, int]:
        """What is taken by class, by pending builds too.

        :param but: claims that do not count
        """
        taken: dict[str, int] = {}
        for one in (*(self.running or ()), *(self.pending or ())):
            if one.claim_id is not None and one.claim_id in but:
                continue
            for name, amount in one.resources.items():
                taken[name] = taken.get(name, 0) + amount
        return taken


def take(driver: GuestDriver, journal: Journal) -> GuestInventory:
    """Who is on the host now.

    The journal is read before the driver is asked: a guest that starts in
    between is then in both, never in neither.
    """
    entries = journal.live()
    try:
        guests = driver.guests()
    except GuestError as e:
        LOG.error('What runs here cannot be listed; the report says nothing about it: %s', e)
        return GuestInventory(None, None)
    if guests is None:
        running = [_of_entry(e) for e in entries if e.state in (RUNNING, STOPPING)]
    else:
        running = [_of_guest(g, entries) for g in _distinct(guests)]
        _notice_gone(journal, entries, running)
    there = {(r.consumer, r.claim_id) for r in running}
    pending = [
        _of_entry(e)
        for e in entries
        if e.state in (PENDING, STARTING) and (e.consumer, e.claim_id) not in there
    ]
    return GuestInventory(running, pending)


def after_boot(
    driver: GuestDriver, journal: Journal, starting: Container[str] = frozenset()
) -> list[JournalEntry]:
    """Put the journal straight after a restart; the claims to release.

    Pending builds stay: the agent asks again whether they may start.

    :param starting: claims that this very process is starting already: no crash cut them off
    :raises GuestError: it cannot be said what runs here; try again
    """
    entries = [entry for entry in journal.live() if entry.claim_id not in starting]
    _wait_for_starts(driver, entries)
    guests = driver.guests()
    listed = None if guests is None else {_of_guest(g, entries).claim_id for g in guests}
    ended = [
        entry
        for entry in entries
        if entry.state != PENDING and _ended(driver, journal, entry, listed)
    ]
    for guest in guests or ():
        _remember(journal, guest)
    return ended


def _wait_for_starts(driver: GuestDriver, entries: Iterable[JournalEntry]) -> None:
    there = {(g.consumer, g.claim_id) for g in driver.guests() or ()}
    for entry in entries:
        if entry.state != STARTING or (entry.consumer, entry.claim_id) in there:
            continue
        if not driver.await_start(entry.claim_id, CONVERGENCE_SECONDS):
            raise GuestError(
                consumer=entry.consumer,
                problem='an earlier process is still starting it; waiting for its end',
            )


def _ended(
    driver: GuestDriver, journal: Journal, entry: JournalEntry, listed: set[str | None] | None
) -> bool:
    runs = None if listed is None else entry.claim_id in listed
    if entry.state == RUNNING and runs is not False:
        return False
    if entry.state == STARTING and runs:
        journal.move(entry.claim_id, (STARTING,), RUNNING)
        return False
    if entry.state == RUNNING:
        return journal.move(entry.claim_id, (RUNNING,), FINISHED, 'not there after a restart')
    try:
        # Half started or half stopped: make sure of its end before its place is given back.
        driver.stop(RunningGuest.of(entry.build))
    except GuestError as e:
        LOG.error('A guest that was being started or stopped when the agent ended: %s', e)
        if runs is not False:
            journal.move(entry.claim_id, (entry.state,), RUNNING)
            return False
    return journal.move(entry.claim_id, (entry.state,), FINISHED, f'was {entry.state} in a crash')


def _remember(journal: Journal, guest: RunningGuest) -> None:
    """A guest that runs must not be started again, whatever became of the journal."""
    if guest.claim_id is None:
        return
    build = Build(
        claim_id=guest.claim_id, consumer=guest.consumer, host='-', resources=guest.resources
    )
    if not journal.add(JournalEntry(build=build, state=RUNNING)):
        journal.move(guest.claim_id, (PENDING,), RUNNING)


def _notice_gone(journal: Journal, entries: Iterable[JournalEntry], running: list[Running]) -> None:
    there = {r.claim_id for r in running}
    for entry in entries:
        if (
            entry.state == RUNNING
            and entry.claim_id not in there
            and journal.move(entry.claim_id, (RUNNING,), FINISHED, 'it was not there any more')
        ):
            LOG.warning('Guest %s is not there any more', entry.consumer)


def _distinct(guests: Iterable[RunningGuest]) -> list[RunningGuest]:
    return list({(g.consumer, g.claim_id): g for g in guests}.values())


def _of_entry(entry: JournalEntry) -> Running:
    return Running(
        consumer=entry.consumer, claim_id=entry.claim_id, resources=entry.build.resources
    )


def _of_guest(guest: RunningGuest, entries: Iterable[JournalEntry]) -> Running:
    """A listed guest, completed from the journal where the lister does not know it all."""
    entry = None
    if guest.claim_id is None or not guest.resources:
        ours = (e for e in entries if e.consumer == guest.consumer)
        entry = next((e for e in ours if guest.claim_id in (None, e.claim_id)), None)
    return Running(
        consumer=guest.consumer,
        claim_id=guest.claim_id if entry is None else entry.claim_id,
        resources=guest.resources or ({} if entry is None else entry.build.resources),
    )
