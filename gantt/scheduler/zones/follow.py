# SPDX-License-Identifier: Apache-2.0
"""Follower of the claims in child zones, which also sends pending give-backs.

One thread queries each zone in turn for its changes since the last time, and sends the give-backs
that a zone has not acknowledged yet.  A zone that does not answer costs the others nothing but its
timeout.

What only one side knows, as the database of the other one was restored from an older copy, is
neither left nor deleted: what was forgotten here is read back, what the zone has forgotten is lost.
"""

import collections
import logging
import threading
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from gantt import exceptions
from gantt.core.claims.claim import LIVE, State
from gantt.core.messages.base import derived_id
from gantt.core.records.decision import Answer, Outcome, Selection
from gantt.core.records.members import pack
from gantt.core.zones.messages import LOST, ClaimBelow, ZoneChanges, ZoneRecord
from gantt.scheduler.ports import Clock, Recorder, ZoneClaims
from gantt.scheduler.ports.zones import StoredBelow, Zones
from gantt.scheduler.zones.directory import ZoneDirectory
from gantt.scheduler.zones.receipts import Receipt, Receipts
from gantt.scheduler.zones.release_outbox import ReleaseOutbox

LOG = logging.getLogger(__name__)
#: Interval between two rounds, and timeout of one call, in seconds.
EACH_SECONDS, CALL_SECONDS = 2.0, 5.0
#: Seconds for reading the changes of one zone in one round, page by page.
ZONE_SECONDS = 20.0
#: Seconds before the last change that are read again.
OVERLAP_SECONDS = 10.0


class WholeList(NamedTuple):
    """The complete list of our claims in a zone, read from the beginning.

    :ivar held: claims that lived there according to the rows here before it was read
    :ivar listed: claims in it, as far as it is read
    """

    held: set[str]
    listed: set[str]


class ZoneFollower:
    """The thread that follows the child zones.

    :ivar outbox: repeats releases that a zone has not acknowledged
    :ivar receipts: seals of what is requested of other zones
    """

    def __init__(
        self,
        claims: ZoneClaims,
        zones: Zones,
        directory: ZoneDirectory,
        outbox: ReleaseOutbox,
        recorder: Recorder,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._claims, self._zones, self._directory = claims, zones, directory
        self.outbox, self._recorder = outbox, recorder
        self.receipts, self._complained = Receipts(directory.identity), set[str]()
        #: Claims in a zone, see ``UnknownClaims``, for which its changes are read again.
        self._undecided: dict[str, set[str]] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name='zones', daemon=True)
        self._thread.start()

    def stop(self, seconds: float) -> bool:
        """End the thread; return whether that was in time."""
        self._stopping.set()
        if self._thread is None:
            return True
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.wait(EACH_SECONDS):
            try:
                self.step()
            except exceptions.Unavailable as e:
                LOG.warning('Child zones cannot be read: error=%s', e.message)
            except Exception:  # the thread has to outlive any one round
                LOG.exception('Round over the child zones failed unexpectedly')

    def step(self) -> None:
        """Run one round over all zones."""
        self._directory.freshen()
        zones = {zone.uuid: zone for zone in self._directory.children()}
        silent = self.outbox.step(zones) if zones else set[str]()
        for zone in zones.values():
            if zone.uuid not in silent and not self._is_followed(zone):
                silent.add(zone.uuid)
        states = collections.Counter(
            'disabled'
            if not zone.enabled
            else 'unresponsive'
            if zone.uuid in silent
            else 'responding'
            for zone in zones.values()
        )
        for state in ('responding', 'unresponsive', 'disabled'):
            self._recorder.gauge('gantt_zones', states[state], state=state)

    def _is_followed(self, zone: ZoneRecord) -> bool:
        try:
            return self.follow(zone)
        except exceptions.Unavailable:
            raise
        except Exception:  # an answer of one zone is not to keep the others from being followed
            LOG.exception('Changes of a zone cannot be applied: zone=%s', zone.name)
            return False

    def follow(self, zone: ZoneRecord) -> bool:
        """Read the changes there since the last time; all claims where a database was restored.

        Any thread.

        :return: whether the zone has reported its changes
        """
        own = self._directory.identity().incarnation
        # Transactions become visible later than they noted the time.
        since, incarnation = max(0.0, zone.revision - OVERLAP_SECONDS), zone.incarnation
        after, whole = '', None
        awaited, undecided = self._undecided.get(zone.uuid, set()), set[str]()
        if zone.own_incarnation not in (0, own):
            if not awaited:
                LOG.warning(
                    'The local database was restored; all claims in the zone are read: zone=%s',
                    zone.name,
                )
            since = 0.0
        if zone.own_incarnation != own:
            # The first time as well: claims there may be older than its changes.
            whole = self._whole(zone)
        end = self._clock.monotonic() + ZONE_SECONDS
        while self._clock.monotonic() < end:
            try:
                changes = self._zones.changes(zone, since, CALL_SECONDS, after)
                if changes.incarnation != incarnation and zone.own_incarnation:
                    if incarnation != zone.incarnation:
                        break  # it is restored again and again
                    LOG.warning(
                        'Database of a zone was restored; all its changes are read again: zone=%s',
                        zone.name,
                    )
                    since, incarnation, after = 0.0, changes.incarnation, ''
                    whole = self._whole(zone)
                    continue
                still_undecided = self._read_back(zone, changes.claims, end)
                undecided |= still_undecided & awaited if awaited else still_undecided
            except exceptions.DatabaseUnavailable:
                raise
            except exceptions.GanttError as e:
                LOG.info('Changes of a zone cannot be read: zone=%s error=%s', zone.name, e.message)
                return False
            self._note(zone, changes, whole, own, bool(undecided))
            if not changes.more or not changes.claims:
                break
            since, incarnation = changes.revision, changes.incarnation
            after = changes.claims[-1].claim_id
        self._undecided[zone.uuid] = undecided
        return True

    def _note(
        self,
        zone: ZoneRecord,
        changes: ZoneChanges,
        whole: WholeList | None,
        own: int,
        is_undecided: bool,
    ) -> None:
        """Store one page of changes.

        :param whole: where all claims are read
        :param own: incarnation of our database
        :param is_undecided: there are undecided claims on this page or one before
        """
        states = {claim.claim_id: str(claim.state) for claim in changes.claims}
        is_first = zone.own_incarnation == 0
        if whole is not None:
            whole.listed.update(states)
            if not changes.more:
                states |= dict.fromkeys(self._lost(zone, whole), LOST)
        if is_undecided or (whole is not None and changes.more):
            # Until all pages are read, and no claim is undecided that was so in the round before,
            # the next round begins anew: claims that change no more are not reported again.
            own = zone.own_incarnation
            changes = msgspec.structs.replace(
                changes, incarnation=zone.incarnation, revision=zone.revision
            )
        if (
            states
            or is_first
            or (changes.incarnation, own)
            != (
                zone.incarnation,
                zone.own_incarnation,
            )
        ):
            self._claims.note_changes_below(zone.uuid, changes, states, own)

    # -- claims known to one side ----------------------------------------------------------
    def _read_back(self, zone: ZoneRecord, claims: Sequence[ClaimBelow], end: float) -> set[str]:
        """Store claims there that were forgotten here, lest their consumers be placed again.

        Claims that this zone never requested of it are not stored, however many it reports.

        :return: undecided ones, see ``UnknownClaims``
        :raises GanttError: the zone does not report their state
        """
        unknown, undecided = self._claims.unknown_below(zone.uuid, claims)
        receipts = {claim.claim_id: self.receipts.opened(zone.uuid, claim) for claim in unknown}
        by_key: dict[str, dict[str, ClaimBelow]] = {}
        for claim in unknown:
            if receipts[claim.claim_id] is not None:
                by_key.setdefault(claim.key, {}).setdefault(claim.consumer, claim)
        self._note_made_up(zone, sum(receipt is None for receipt in receipts.values()))
        rows: list[StoredBelow] = []
        answers: dict[str, bytes] = {}
        for key, of_key in by_key.items():
            if self._clock.monotonic() >= end:
                raise exceptions.Unavailable(f'{len(by_key)} allocations of it are not known here')
            # Reserved claims may have been given back since: the allocation is queried once more.
            # Confirmed ones outlive it, as a guest runs under each.
            state = self._zones.allocation(zone, key, CALL_SECONDS)
            is_placed = state is not None and state.state == 'placed'
            places = {} if state is None else {m.claim_id: m.place for m in state.members}
            restored = [
                restored_row(zone, claim, receipt, places.get(claim.claim_id, ''))
                for claim in of_key.values()
                if (receipt := receipts[claim.claim_id]) is not None
                and (is_placed or claim.state == State.CONFIRMED)
            ]
            if not restored:
                continue
            rows += restored
            answers[key] = restored_answer(zone, key, restored)
        if rows:
            LOG.error(
                'Claims live in a child zone and were unknown here, as after a restore; they are '
                'read back, and "gantt-manage audit" counts them: zone=%s claims=%d',
                zone.name,
                len(rows),
            )
            self._claims.read_back(rows, answers)
        return undecided

    def _note_made_up(self, zone: ZoneRecord, number: int) -> None:
        """Log once for each zone that it reports claims which were never requested."""
        if number and zone.uuid not in self._complained:
            LOG.error(
                'Zone reports claims that it was never requested to make; they are ignored, and '
                '"gantt-manage audit" lists them: zone=%s claims=%d',
                zone.name,
                number,
            )
            self._complained.add(zone.uuid)

    def _whole(self, zone: ZoneRecord) -> WholeList:
        """Return a list still to be read, with the claims held by now.

        Claims created while it is read need not be in it.
        """
        return WholeList({row.claim_id for row in self._live_in(zone)}, set())

    def _live_in(self, zone: ZoneRecord) -> list[StoredBelow]:
        return [row for row in self._claims.child_claims(child=zone.uuid) if row.state in LIVE]

    def _lost(self, zone: ZoneRecord, whole: WholeList) -> list[str]:
        """Return the claims that the zone does not know any more.

        A guest that runs there is found by its host, and becomes that zone's own; an operator has
        to resolve that.
        """
        if whole.held <= whole.listed:
            return []
        missing = whole.held - whole.listed
        lost = [row.claim_id for row in self._live_in(zone) if row.claim_id in missing]
        if lost:
            LOG.error(
                'Zone no longer knows claims of this zone: zone=%s claims=%d', zone.name, len(lost)
            )
        return lost


def restored_row(zone: ZoneRecord, claim: ClaimBelow, receipt: Receipt, place: str) -> StoredBelow:
    """Return the row of a claim in a child zone that was forgotten here, to be stored again.

    Its content comes from the receipt, its state from the zone.  The request of the claim is
    unknown by now, and its caller too: the claim gets a request of its own, whose id is the key
    that the zone has for it, by which it can be cancelled.

    :param place: sealed by the zone; '': it did not report it
    """
    return StoredBelow(
        claim_id=claim.claim_id,
        child=zone.uuid,
        request_id=claim.key,
        key=claim.key,
        consumer=claim.consumer,
        purpose=receipt.purpose,
        project_id=receipt.project_id,
        state=claim.state,
        place=place,
        group=receipt.group,
        read_back=True,
        resources=receipt.resources,
        user_id=receipt.user_id,
        consumer_type=receipt.consumer_type,
    )


def restored_answer(zone: ZoneRecord, key: str, rows: Sequence[StoredBelow]) -> bytes:
    """Return the packed answer of the request that restored rows get."""
    selections = [
        [
            Selection(
                host='',
                node='',
                uuid='',
                provider_id=0,
                consumer=row.consumer,
                claim_id=row.claim_id,
                child=zone.name,
                place=row.place,
            )
        ]
        for row in rows
    ]
    answer = Answer(
        request_id=key,
        decision_id=derived_id('read back', key),
        outcome=Outcome.PLACED,
        selections=selections,
    )
    return pack(answer)
