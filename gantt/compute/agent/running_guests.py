# SPDX-License-Identifier: Apache-2.0
"""Guests on a host, and their layouts: those that its driver lists, not those of its journal.

The journal adds pending builds, and the claim of each guest.  After a crash
:func:`resume_after_boot` brings the journal in line with what really runs.

The kernel's count of used pages includes those of our guests; a host's report
does not, as they are in the layouts of its claims.
"""

import logging
from collections.abc import Container, Iterable, Mapping

import msgspec

from gantt import exceptions
from gantt.compute.agent.journal import (
    FINISHED,
    PENDING,
    RUNNING,
    STARTING,
    STOPPING,
    Journal,
    JournalEntry,
)
from gantt.compute.ports import GuestDriver, GuestError, HostReadings, RunningGuest
from gantt.core.messages.build import Build
from gantt.core.messages.layout import Layout, read, readable
from gantt.core.messages.report import NumaCell, NumaPages, Running
from gantt.core.topology import fit

LOG = logging.getLogger(__name__)

#: Seconds to wait for a start that an earlier process began.
CONVERGENCE_SECONDS = 30.0


class GuestInventory(msgspec.Struct, frozen=True):
    """Guests on the host; both lists None where they cannot be listed now."""

    running: list[Running] | None
    pending: list[Running] | None

    @property
    def guests(self) -> list[RunningGuest]:
        """The running guests, in the form that a driver's methods accept."""
        return [
            RunningGuest(
                consumer=guest.consumer, claim_id=guest.claim_id, resources=guest.resources
            )
            for guest in self.running or ()
        ]

    def used(self, but: Container[str | None] = ()) -> dict[str, int]:
        """Return class -> amount used by guests, pending builds included.

        :param but: claims that do not count
        """
        used_amounts: dict[str, int] = {}
        for guest in (*(self.running or ()), *(self.pending or ())):
            if guest.claim_id is not None and guest.claim_id in but:
                continue
            for name, amount in guest.resources.items():
                used_amounts[name] = used_amounts.get(name, 0) + amount
        return used_amounts


def take_inventory(driver: GuestDriver, journal: Journal) -> GuestInventory:
    """Return the guests on the host now.

    The journal is read before the driver lists guests: one that starts in
    between is then in both, never in neither.
    """
    entries = journal.live()
    try:
        guests = driver.guests()
    except GuestError as e:
        LOG.error('Guests cannot be listed; the report omits them: error=%s', e)
        return GuestInventory(None, None)
    if guests is None:
        running = [
            _running_of_entry(entry) for entry in entries if entry.state in (RUNNING, STOPPING)
        ]
    else:
        running = [_running_of_guest(guest, entries) for guest in _distinct(guests)]
        _record_gone(journal, entries, running)
    running_keys = {(item.consumer, item.claim_id) for item in running}
    pending = [
        _running_of_entry(entry)
        for entry in entries
        if entry.state in (PENDING, STARTING)
        and (entry.consumer, entry.claim_id) not in running_keys
    ]
    return GuestInventory(running, pending)


def resume_after_boot(
    driver: GuestDriver, journal: Journal, starting: Container[str] = frozenset()
) -> list[JournalEntry]:
    """Bring the journal in line after a restart; return the claims to release.

    Pending builds stay: the agent has them confirmed again.

    :param starting: claims that this very process is starting already: no crash cut them off
    :raises GuestError: the guests here cannot be listed; try again
    """
    entries = [entry for entry in journal.live() if entry.claim_id not in starting]
    _wait_for_starts(driver, entries)
    guests = driver.guests()
    listed_claims = (
        None if guests is None else {_running_of_guest(g, entries).claim_id for g in guests}
    )
    ended = [
        entry
        for entry in entries
        if entry.state != PENDING and _has_ended(driver, journal, entry, listed_claims)
    ]
    for guest in guests or ():
        _record_running(journal, guest)
    return ended


def _wait_for_starts(driver: GuestDriver, entries: Iterable[JournalEntry]) -> None:
    running_keys = {(guest.consumer, guest.claim_id) for guest in driver.guests() or ()}
    for entry in entries:
        if entry.state != STARTING or (entry.consumer, entry.claim_id) in running_keys:
            continue
        if not driver.await_start(entry.claim_id, CONVERGENCE_SECONDS):
            raise GuestError(
                consumer=entry.consumer,
                problem='an earlier process is still starting it; waiting for its end',
            )


def _has_ended(
    driver: GuestDriver, journal: Journal, entry: JournalEntry, listed: set[str | None] | None
) -> bool:
    runs = None if listed is None else entry.claim_id in listed
    if entry.state == RUNNING and runs is not False:
        return False
    if entry.state == STARTING and runs:
        journal.change_state(entry.claim_id, (STARTING,), RUNNING)
        return False
    if entry.state == RUNNING:
        return journal.change_state(
            entry.claim_id, (RUNNING,), FINISHED, 'not there after a restart'
        )
    try:
        # Half started or half stopped: make sure of its end before its room is given back.
        driver.stop(RunningGuest.of(entry.build))
    except GuestError as e:
        LOG.error(
            'Guest cannot be stopped after a restart of the agent: claim=%s error=%s',
            entry.claim_id,
            e,
        )
        if runs is not False:
            journal.change_state(entry.claim_id, (entry.state,), RUNNING)
            return False
    return journal.change_state(
        entry.claim_id, (entry.state,), FINISHED, f'was {entry.state} in a crash'
    )


def _record_running(journal: Journal, guest: RunningGuest) -> None:
    """Record a running guest, which must not be started again, whatever state the journal has."""
    if guest.claim_id is None:
        return
    build = Build(
        claim_id=guest.claim_id, consumer=guest.consumer, host='-', resources=guest.resources
    )
    if not journal.add(JournalEntry(build=build, state=RUNNING)):
        journal.change_state(guest.claim_id, (PENDING,), RUNNING)


def _record_gone(journal: Journal, entries: Iterable[JournalEntry], running: list[Running]) -> None:
    running_claims = {guest.claim_id for guest in running}
    for entry in entries:
        if (
            entry.state == RUNNING
            and entry.claim_id not in running_claims
            and journal.change_state(
                entry.claim_id, (RUNNING,), FINISHED, 'it was not there any more'
            )
        ):
            LOG.warning('Guest has disappeared: guest=%s claim=%s', entry.consumer, entry.claim_id)


def _distinct(guests: Iterable[RunningGuest]) -> list[RunningGuest]:
    return list({(guest.consumer, guest.claim_id): guest for guest in guests}.values())


def _running_of_entry(entry: JournalEntry) -> Running:
    return Running(
        consumer=entry.consumer, claim_id=entry.claim_id, resources=entry.build.resources
    )


def _running_of_guest(guest: RunningGuest, entries: Iterable[JournalEntry]) -> Running:
    """Return a listed guest, completed from the journal where the list has gaps."""
    entry = None
    if guest.claim_id is None or not guest.resources:
        candidates = (item for item in entries if item.consumer == guest.consumer)
        entry = next((item for item in candidates if guest.claim_id in (None, item.claim_id)), None)
    return Running(
        consumer=guest.consumer,
        claim_id=guest.claim_id if entry is None else entry.claim_id,
        resources=guest.resources or ({} if entry is None else entry.build.resources),
    )


def layouts_taken(entries: Iterable[JournalEntry], but: str = '') -> list[Layout]:
    """Return layouts that guests here have, or are about to get.

    :param but: a claim that does not count
    """
    layouts = []
    for entry in entries:
        layout = readable(entry.build.layout)
        if layout and entry.state != FINISHED and entry.claim_id != but:
            layouts.append(layout)
    return layouts


def check_build(
    build: Build,
    facts: HostReadings,
    used: Mapping[str, int],
    foreign: Mapping[str, int],
    entries: Iterable[JournalEntry],
) -> fit.Fit:
    """Return whether a build fits beside the guests of this host, in the layout of its claim."""
    layout = None
    if build.layout is not None:
        try:
            layout = read(build.layout, 'build.layout')
        except exceptions.InvalidMessage as e:
            return fit.Fit(False, [fit.Problem('', 'inside', 0, 0, str(e))])
    return fit.fit(
        build.resources,
        facts.inventories,
        used,
        foreign,
        numa=facts.numa or None,
        devices=facts.devices or None,
        layout=layout,
        taken=layouts_taken(entries, build.claim_id),
    )


def outside_claims(facts: HostReadings, entries: Iterable[JournalEntry]) -> HostReadings:
    """Return facts in which the used pages leave out the pages that claims use."""
    if not facts.numa:
        return facts
    pages: dict[tuple[int, int], int] = {}
    for layout in layouts_taken(
        entry for entry in entries if entry.state in (STARTING, RUNNING, STOPPING)
    ):
        for cell in layout.cells:
            if cell.page_kb:
                key = (cell.cell, cell.page_kb)
                pages[key] = pages.get(key, 0) + cell.memory_mb * 1024 // cell.page_kb
    if not pages:
        return facts
    return msgspec.structs.replace(facts, numa=[_without(cell, pages) for cell in facts.numa])


def _without(cell: NumaCell, pages: dict[tuple[int, int], int]) -> NumaCell:
    def less(reported: NumaPages) -> NumaPages:
        used = max(0, reported.used - pages.get((cell.id, reported.size_kb), 0))
        return msgspec.structs.replace(reported, used=used)

    return msgspec.structs.replace(cell, pages=[less(page) for page in cell.pages])
