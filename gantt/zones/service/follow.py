# SPDX-License-Identifier: Apache-2.0
"""Follower of the claims in child zones, which also sends pending give-backs.

One thread queries each zone in turn for its changes since the last time, and sends the give-backs
that a zone has not acknowledged yet.  A zone that does not answer costs the others nothing but its
timeout.

What only one side knows, as the database of the other one was restored from an older copy, is
neither left nor deleted: what was forgotten here is restored, what the zone has forgotten is lost.

A receipt, what this zone has requested of a child zone, sealed for itself as proof, goes down with
each allocation and comes back with each change of a claim.  Where the claim was forgotten here, as
the database was restored from an older copy, the receipt gives its owner and resources; a claim
without one was invented by the child zone.  The child zone cannot read it.
"""

import base64
import collections
import hashlib
import logging
import secrets
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gantt import exceptions
from gantt.core.claims.child_claim import ChildClaim
from gantt.core.claims.claim import LIVE_STATES, LOST_STATE, State
from gantt.core.messages.base import derived_id
from gantt.core.messages.request import Purpose, SelectDestinations
from gantt.core.records.decision import Answer, Outcome
from gantt.core.records.members import pack
from gantt.scheduler.ports.process import Clock, Recorder
from gantt.zones.model.choice import child_selection
from gantt.zones.model.messages import ClaimBelow, ZoneChanges, ZoneRecord
from gantt.zones.ports import ZoneCalls, ZoneIdentity, ZoneStores
from gantt.zones.service.directory import ZoneDirectory
from gantt.zones.service.release_outbox import ReleaseOutbox

NONCE_BYTES, MEMBER_BYTES = 12, 8


class Receipt(msgspec.Struct, frozen=True, array_like=True):
    """The receipt of one allocation.

    :ivar members: its consumers, a few bytes of a digest of each
    """

    key: str
    members: list[bytes]
    purpose: Purpose
    project_id: str | None
    user_id: str | None
    consumer_type: str
    group: str | None
    resources: dict[str, int]

    def matches(self, claim: ClaimBelow) -> bool:
        """Return whether such a claim was requested."""
        return self.key == claim.key and _consumer_digest(claim.consumer) in self.members


_encoder, _decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Receipt)


class ReceiptSealer:
    """A sealer of receipts, by a secret that outlives an older copy of the database.  Any thread.

    :param identity: identity of this zone, with the secret
    """

    def __init__(self, identity: Callable[[], ZoneIdentity]) -> None:
        self._identity = identity

    def seal(self, child: str, request: SelectDestinations) -> str:
        """Return the sealed receipt of an allocation.

        :param child: uuid of the zone that it is requested of
        :param request: as it is sent there, with all that is known of it here
        """
        spec = request.spec
        receipt = Receipt(
            request.request_id,
            [_consumer_digest(consumer) for consumer in request.consumers],
            spec.purpose,
            spec.project_id,
            spec.user_id,
            spec.consumer_type,
            None if spec.group is None else spec.group.uuid,
            spec.at_most,
        )
        nonce = secrets.token_bytes(NONCE_BYTES)
        sealed = self._cipher().encrypt(nonce, _encoder.encode(receipt), child.encode())
        return base64.urlsafe_b64encode(nonce + sealed).decode()

    def open(self, child: str, claim: ClaimBelow) -> Receipt | None:
        """Return the receipt of a claim; None: it was never requested of that zone."""
        try:
            message = base64.urlsafe_b64decode(claim.receipt)
            nonce, sealed = message[:NONCE_BYTES], message[NONCE_BYTES:]
            receipt = _decoder.decode(self._cipher().decrypt(nonce, sealed, child.encode()))
        except (ValueError, InvalidTag, msgspec.MsgspecError):
            return None
        return receipt if receipt.matches(claim) else None

    def _cipher(self) -> AESGCM:
        """Return a cipher under a key of its own: no other seal here passes for a receipt."""
        secret = self._identity().secret
        return AESGCM(hashlib.blake2b(key=secret, person=b'receipts', digest_size=32).digest())


def _consumer_digest(consumer: str) -> bytes:
    return hashlib.blake2b(consumer.encode(), digest_size=MEMBER_BYTES).digest()


LOG = logging.getLogger(__name__)
#: Interval between two rounds, and timeout of one call, in seconds.
ROUND_SECONDS, CALL_SECONDS = 2.0, 5.0
#: Seconds for reading the changes of one zone in one round, page by page.
ZONE_READ_SECONDS = 20.0
#: Seconds before the last change that are read again.
OVERLAP_SECONDS = 10.0


class CompleteClaimList(NamedTuple):
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
        stores: ZoneStores,
        calls: ZoneCalls,
        directory: ZoneDirectory,
        outbox: ReleaseOutbox,
        recorder: Recorder,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._claims = stores.zone_claims
        self._child_claims = stores.child_claims
        self._zones = calls
        self._directory = directory
        self.outbox = outbox
        self._recorder = recorder
        self.receipts = ReceiptSealer(directory.identity)
        self._zones_complained_of = set[str]()
        #: Claims in a zone, see ``UnknownClaims``, for which its changes are read again.
        self._undecided_claims: dict[str, set[str]] = {}
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
        while not self._stopping.wait(ROUND_SECONDS):
            try:
                self.step()
            except exceptions.Unavailable as e:
                LOG.warning('Child zones cannot be read: error=%s', e.message)
            except Exception:  # the thread has to outlive any one round
                LOG.exception(
                    'Round over the child zones failed unexpectedly; the next round follows'
                )

    def step(self) -> None:
        """Run one round over all zones."""
        self._directory.freshen()
        zones = {zone.uuid: zone for zone in self._directory.children()}
        silent = self.outbox.step(zones) if zones else set[str]()
        for zone in zones.values():
            if zone.uuid not in silent and not self._try_follow(zone):
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

    def _try_follow(self, zone: ZoneRecord) -> bool:
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
        after, complete_list = '', None
        awaited, undecided = self._undecided_claims.get(zone.uuid, set()), set[str]()
        if zone.synced_incarnation not in (0, own):
            if not awaited:
                LOG.warning(
                    'The local database was restored; all claims in the zone are read: zone=%s',
                    zone.name,
                )
            since = 0.0
        if zone.synced_incarnation != own:
            # The first time as well: claims there may be older than its changes.
            complete_list = self._begin_complete_list(zone)
        end = self._clock.monotonic() + ZONE_READ_SECONDS
        while self._clock.monotonic() < end:
            try:
                changes = self._zones.changes(zone, since, CALL_SECONDS, after)
                if changes.incarnation != incarnation and zone.synced_incarnation:
                    if incarnation != zone.incarnation:
                        break  # it is restored again and again
                    LOG.warning(
                        'Database of a zone was restored; all its changes are read again: zone=%s',
                        zone.name,
                    )
                    since, incarnation, after = 0.0, changes.incarnation, ''
                    complete_list = self._begin_complete_list(zone)
                    continue
                still_undecided = self._restore(zone, changes.claims, end)
                undecided |= still_undecided & awaited if awaited else still_undecided
            except exceptions.DatabaseUnavailable:
                raise
            except exceptions.GanttError as e:
                LOG.info('Changes of a zone cannot be read: zone=%s error=%s', zone.name, e.message)
                return False
            self._store_changes(zone, changes, complete_list, own, bool(undecided))
            if not changes.more or not changes.claims:
                break
            since, incarnation = changes.revision, changes.incarnation
            after = changes.claims[-1].claim_id
        self._undecided_claims[zone.uuid] = undecided
        return True

    def _store_changes(
        self,
        zone: ZoneRecord,
        changes: ZoneChanges,
        complete_list: CompleteClaimList | None,
        own: int,
        is_undecided: bool,
    ) -> None:
        """Store one page of the changes of claims in a child zone.

        :param complete_list: all of our claims there, where they are read from the beginning;
            None: the changes since the last round are read
        :param own: incarnation of this zone's own database
        :param is_undecided: there are undecided claims on this page or one before
        """
        states = {claim.claim_id: str(claim.state) for claim in changes.claims}
        is_first = zone.synced_incarnation == 0
        if complete_list is not None:
            complete_list.listed.update(states)
            if not changes.more:
                states |= dict.fromkeys(self._lost_claims(zone, complete_list), LOST_STATE)
        if is_undecided or (complete_list is not None and changes.more):
            # Until all pages are read, and no claim is undecided that was so in the round before,
            # the next round begins anew: claims that change no more are not reported again.
            own = zone.synced_incarnation
            changes = msgspec.structs.replace(
                changes, incarnation=zone.incarnation, revision=zone.revision
            )
        if (
            states
            or is_first
            or (changes.incarnation, own)
            != (
                zone.incarnation,
                zone.synced_incarnation,
            )
        ):
            self._claims.note_child_changes(zone.uuid, changes, states, own)

    # -- claims known to one side ----------------------------------------------------------
    def _restore(self, zone: ZoneRecord, claims: Sequence[ClaimBelow], end: float) -> set[str]:
        """Store claims there that were forgotten here, lest their consumers be placed again.

        Claims that this zone never requested of it are not stored, however many it reports.

        :return: undecided ones, see ``UnknownClaims``
        :raises GanttError: the zone does not report their state
        """
        unknown, undecided = self._claims.unknown_child_claims(zone.uuid, claims)
        receipts = {claim.claim_id: self.receipts.open(zone.uuid, claim) for claim in unknown}
        by_key: dict[str, dict[str, ClaimBelow]] = {}
        for claim in unknown:
            if receipts[claim.claim_id] is not None:
                by_key.setdefault(claim.key, {}).setdefault(claim.consumer, claim)
        self._log_unrequested(zone, sum(receipt is None for receipt in receipts.values()))
        rows: list[ChildClaim] = []
        answers: dict[str, bytes] = {}
        for key, of_key in by_key.items():
            if self._clock.monotonic() >= end:
                raise exceptions.Unavailable(f'{len(by_key)} allocations of it are not known here')
            # Reserved claims may have been given back since: the allocation is queried once more.
            # Confirmed ones outlive it, as a guest runs under each.
            state = self._zones.allocation(zone, key, CALL_SECONDS)
            is_placed = state is not None and state.state == 'placed'
            sealed_hosts = (
                {} if state is None else {m.claim_id: m.sealed_host for m in state.members}
            )
            restored = [
                restored_row(zone, claim, receipt, sealed_hosts.get(claim.claim_id, ''))
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
                'restored, and "gantt-manage audit" counts them: zone=%s claims=%d',
                zone.name,
                len(rows),
            )
            self._claims.restore(rows, answers)
        return undecided

    def _log_unrequested(self, zone: ZoneRecord, number: int) -> None:
        """Log once for each zone that it reports claims which were never requested."""
        if number and zone.uuid not in self._zones_complained_of:
            LOG.error(
                'Zone reports claims that it was never requested to make; they are ignored, and '
                '"gantt-manage audit" lists them: zone=%s claims=%d',
                zone.name,
                number,
            )
            self._zones_complained_of.add(zone.uuid)

    def _begin_complete_list(self, zone: ZoneRecord) -> CompleteClaimList:
        """Return a list still to be read, with the claims held by now.

        Claims created while it is read need not be in it.
        """
        return CompleteClaimList({row.claim_id for row in self._live_claims(zone)}, set())

    def _live_claims(self, zone: ZoneRecord) -> list[ChildClaim]:
        return [row for row in self._child_claims.find(child=zone.uuid) if row.state in LIVE_STATES]

    def _lost_claims(self, zone: ZoneRecord, complete_list: CompleteClaimList) -> list[str]:
        """Return the claims that the zone does not know any more.

        A guest that runs there is found by its host, and becomes that zone's own; an operator has
        to resolve that.
        """
        if complete_list.held <= complete_list.listed:
            return []
        missing = complete_list.held - complete_list.listed
        lost = [row.claim_id for row in self._live_claims(zone) if row.claim_id in missing]
        if lost:
            LOG.error(
                'Zone no longer knows claims of this zone: zone=%s claims=%d', zone.name, len(lost)
            )
        return lost


def restored_row(
    zone: ZoneRecord, claim: ClaimBelow, receipt: Receipt, sealed_host: str
) -> ChildClaim:
    """Return the row of a claim in a child zone that was forgotten here, to be stored again.

    Its content comes from the receipt, its state from the zone.  The request of the claim is
    unknown by now, and its caller too: the claim gets a request of its own, whose id is the key
    that the zone has for it, by which it can be cancelled.

    :param sealed_host: encrypted by the zone; '': it did not report it
    """
    return ChildClaim(
        claim_id=claim.claim_id,
        child=zone.uuid,
        request_id=claim.key,
        key=claim.key,
        consumer=claim.consumer,
        purpose=receipt.purpose,
        project_id=receipt.project_id,
        state=claim.state,
        sealed_host=sealed_host,
        group=receipt.group,
        restored=True,
        resources=receipt.resources,
        user_id=receipt.user_id,
        consumer_type=receipt.consumer_type,
    )


def restored_answer(zone: ZoneRecord, key: str, rows: Sequence[ChildClaim]) -> bytes:
    """Return the packed answer of the request that restored rows get."""
    selections = [
        [
            child_selection(
                row.consumer, zone.name, claim_id=row.claim_id, sealed_host=row.sealed_host
            )
        ]
        for row in rows
    ]
    answer = Answer(
        request_id=key,
        decision_id=derived_id('restored', key),
        outcome=Outcome.PLACED,
        selections=selections,
    )
    return pack(answer)
