# SPDX-License-Identifier: Apache-2.0
"""What becomes of claims in zones below, and what those have still to be told.

One thread asks each zone in turn what has changed since the last time, and gives back what a zone
has not heard of yet.  A zone that does not answer costs the others nothing but its bound.

What only one side knows, as the database of the other one went back, is neither left nor deleted:
what was forgotten here is read back, what the zone has forgotten is lost.
"""

import collections
import logging
import threading
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from gantt import exceptions
from gantt.core.claims.claim import LIVE
from gantt.core.messages.base import derived_id
from gantt.core.records.decision import Answer, Outcome, Selection
from gantt.core.records.members import pack
from gantt.core.zones.messages import LOST, ClaimBelow, ZoneChanges, ZoneRecord
from gantt.scheduler.ports import Clock, Recorder, Store
from gantt.scheduler.ports.zones import StoredBelow, Zones
from gantt.scheduler.zones.directory import ZoneDirectory
from gantt.scheduler.zones.give_backs import GiveBacks
from gantt.scheduler.zones.receipts import Receipt, Receipts

LOG = logging.getLogger(__name__)
#: Between two rounds, and what one call of it may take.
EACH_SECONDS, CALL_SECONDS = 2.0, 5.0
#: What reading the changes of one zone may take in one round, in parts of a call each.
ZONE_SECONDS = 20.0
#: Of the time before the last change that is read again.
OVERLAP_SECONDS = 10.0


class WholeList(NamedTuple):
    """All that a zone has of us, read from the beginning.

    :ivar held: claims that lived there as far as was known here before it was read
    :ivar listed: claims in it, as far as it is read
    """

    held: set[str]
    listed: set[str]


class ZoneFollower:
    """The thread."""

    def __init__(
        self,
        store: Store,
        zones: Zones,
        directory: ZoneDirectory,
        give_backs: GiveBacks,
        recorder: Recorder,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._store, self._zones, self._directory = store, zones, directory
        self._give_backs, self._recorder = give_backs, recorder
        self._receipts, self._complained = Receipts(directory.identity), set[str]()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name='zones', daemon=True)
        self._thread.start()

    def stop(self, seconds: float) -> bool:
        """End it; whether that was in time."""
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
                LOG.warning('zones below are not followed: %s', e.message)
            except Exception:  # the thread has to outlive any one round
                LOG.exception('following the zones below failed')

    def step(self) -> None:
        """One round over all zones."""
        self._directory.freshen()
        known = {zone.uuid: zone for zone in self._directory.children()}
        silent = self._give_backs.step(known) if known else set[str]()
        for zone in known.values():
            if zone.uuid not in silent and not self._is_followed(zone):
                silent.add(zone.uuid)
        states = collections.Counter(
            'disabled' if not zone.enabled else 'silent' if zone.uuid in silent else 'answering'
            for zone in known.values()
        )
        for state in ('answering', 'silent', 'disabled'):
            self._recorder.gauge('gantt_zones', states[state], state=state)

    def _is_followed(self, zone: ZoneRecord) -> bool:
        try:
            return self.follow(zone)
        except exceptions.Unavailable:
            raise
        except Exception:  # what one zone says is not to keep the others from being heard
            LOG.exception('following zone %s failed', zone.name)
            return False

    def follow(self, zone: ZoneRecord) -> bool:
        """Read what has changed there since the last time; all of it where a database went back.

        Any thread.

        :return: whether the zone has said what has changed
        """
        own = self._directory.identity().incarnation
        # Transactions become visible later than they noted the time.
        since, incarnation = max(0.0, zone.revision - OVERLAP_SECONDS), zone.incarnation
        after, whole = '', None
        if zone.own_incarnation not in (0, own):
            LOG.warning('our database went back: all that zone %s has of us is read', zone.name)
            since = 0.0
        if zone.own_incarnation != own:
            # Of the first time as well: what is claimed there may be older than what it has.
            whole = self._whole(zone)
        end = self._clock.monotonic() + ZONE_SECONDS
        while self._clock.monotonic() < end:
            try:
                found = self._zones.changes(zone, since, CALL_SECONDS, after)
                if found.incarnation != incarnation and zone.own_incarnation:
                    if incarnation != zone.incarnation:
                        break  # it goes back all the time
                    LOG.warning('the database of zone %s went back: all is read again', zone.name)
                    since, incarnation, after = 0.0, found.incarnation, ''
                    whole = self._whole(zone)
                    continue
                self._read_back(zone, found.claims, end)
            except exceptions.DatabaseUnavailable:
                raise
            except exceptions.GanttError as e:
                LOG.info('zone %s has not said what has changed: %s', zone.name, e.message)
                return False
            self._note(zone, found, whole, own)
            if not found.more or not found.claims:
                break
            since, incarnation = found.revision, found.incarnation
            after = found.claims[-1].claim_id
        return True

    def _note(
        self, zone: ZoneRecord, found: ZoneChanges, whole: WholeList | None, own: int
    ) -> None:
        """Store a part of what has changed.

        :param whole: where all is read
        :param own: incarnation of our database
        """
        known = {one.claim_id: str(one.state) for one in found.claims}
        is_first = zone.own_incarnation == 0
        if whole is not None:
            whole.listed.update(known)
            if found.more:
                # Until all is read the next round begins anew.
                own = zone.own_incarnation
                found = msgspec.structs.replace(
                    found, incarnation=zone.incarnation, revision=zone.revision
                )
            else:
                known |= dict.fromkeys(self._lost(zone, whole), LOST)
        if (
            known
            or is_first
            or (found.incarnation, own)
            != (
                zone.incarnation,
                zone.own_incarnation,
            )
        ):
            self._store.note_changes_below(zone.uuid, found, known, own)

    # -- what only one side knows ----------------------------------------------------------
    def _read_back(self, zone: ZoneRecord, claims: Sequence[ClaimBelow], end: float) -> None:
        """Store what lives there and was forgotten here: else its consumers are placed once more.

        Of what it was never asked for by this zone nothing is stored, however much it says.

        :raises GanttError: the zone does not say what becomes of it
        """
        unknown = self._store.unknown_below(zone.uuid, claims)
        receipts = {one.claim_id: self._receipts.opened(zone.uuid, one) for one in unknown}
        by_key: dict[str, dict[str, ClaimBelow]] = {}
        for one in unknown:
            if receipts[one.claim_id] is not None:
                by_key.setdefault(one.key, {}).setdefault(one.consumer, one)
        self._note_made_up(zone, sum(one is None for one in receipts.values()))
        rows: list[StoredBelow] = []
        answers: dict[str, bytes] = {}
        for key, of_key in by_key.items():
            if self._clock.monotonic() >= end:
                raise exceptions.Unavailable(f'{len(by_key)} allocations of it are not known here')
            # What is reserved may have been given back since: it is asked once more.
            state = self._zones.allocation(zone, key, CALL_SECONDS)
            if state is None or state.state != 'placed':
                continue
            places = {one.claim_id: one.place for one in state.members}
            made = [
                restored_row(zone, one, receipt, places.get(one.claim_id, ''))
                for one in of_key.values()
                if (receipt := receipts[one.claim_id]) is not None
            ]
            rows += made
            answers[key] = restored_answer(zone, key, made)
        if rows:
            LOG.error(
                '%d claims live in zone %s and were not known here, as after a database was put '
                'back: they are read back; "gantt-manage audit" counts them',
                *(len(rows), zone.name),
            )
            self._store.read_back(rows, answers)

    def _note_made_up(self, zone: ZoneRecord, number: int) -> None:
        """Say it once of each zone that says what is not so."""
        if number and zone.uuid not in self._complained:
            LOG.error(
                'zone %s says that %d claims of us live there which it was never asked for: that '
                'is not believed, nor are more of them; "gantt-manage audit" lists them',
                *(zone.name, number),
            )
            self._complained.add(zone.uuid)

    def _whole(self, zone: ZoneRecord) -> WholeList:
        """Before all is read: what is claimed meanwhile need not be in it."""
        return WholeList({one.claim_id for one in self._live_in(zone)}, set())

    def _live_in(self, zone: ZoneRecord) -> list[StoredBelow]:
        return [one for one in self._store.claims_below(child=zone.uuid) if one.state in LIVE]

    def _lost(self, zone: ZoneRecord, whole: WholeList) -> list[str]:
        """Claims that the zone does not know any more.

        What runs there is found by its host, and is that zone's own; that somebody has to look at.
        """
        if whole.held <= whole.listed:
            return []
        gone = whole.held - whole.listed
        found = [one.claim_id for one in self._live_in(zone) if one.claim_id in gone]
        if found:
            LOG.error('zone %s does not know %d claims of us any more', zone.name, len(found))
        return found


def restored_row(zone: ZoneRecord, claim: ClaimBelow, receipt: Receipt, place: str) -> StoredBelow:
    """Return the row of a claim below that was forgotten here, as it is stored again.

    What it is comes from the receipt, what has become of it from the zone.  The request that made
    it is unknown by now, and its caller too: it gets a request of its own, whose id is the key that
    the zone has for it, by which it can be cancelled.

    :param place: sealed by the zone; '': it did not say
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
    """The answer of the request that it gets, as it is stored."""
    selections = [
        [
            Selection(
                host='',
                node='',
                uuid='',
                provider_id=0,
                consumer=one.consumer,
                claim_id=one.claim_id,
                child=zone.name,
                place=one.place,
            )
        ]
        for one in rows
    ]
    answer = Answer(
        request_id=key,
        decision_id=derived_id('read back', key),
        outcome=Outcome.PLACED,
        selections=selections,
    )
    return pack(answer)
