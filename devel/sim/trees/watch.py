# SPDX-License-Identifier: Apache-2.0
"""Checks in all zones after every write in one.

The amounts are those of the requests, not those that any zone has counted.
"""

import functools
from collections import Counter
from typing import Any, NamedTuple

from devel.sim.computes import VCPUS
from devel.sim.loop import Loop, ProcessClock
from devel.sim.plan import RELOAD_SECONDS, REPORT_SECONDS
from devel.sim.trees.databases import SqlDatabase
from gantt.core.claims.idempotency_keys import request_id_in_zone
from gantt.core.messages.request import Purpose, SelectDestinations
from gantt.core.records.decision import Answer
from gantt.zones.model.messages import scoped_id
from gantt.zones.service.offers.evaluate import FACTS_SECONDS

LIVE_CLAIMS = """
    SELECT claims.id, claims.consumer, claims.purpose, claims.state, claims.request_id,
           providers.name
    FROM claims JOIN providers ON providers.id = claims.provider_id WHERE claims.live = 1
"""


#: So long ago a change may have been that some table does not show yet.
UNSEEN_SECONDS = RELOAD_SECONDS + REPORT_SECONDS
#: So long a request may be at work on what it has claimed below, though its row is not open any
#: more: it was cancelled, or is another's.
REQUEST_SECONDS = 11.0
#: Interval of the check for claims that are known nowhere.
LOOK_SECONDS = 2.0
OPEN_LOCK_TOKENS = "SELECT token FROM requests WHERE state = 'open'"
ZONE_UUID = 'SELECT uuid FROM zone'
PENDING_RELEASES = 'SELECT request_key FROM zone_releases'
KNOWN_CHILD_CLAIMS = 'SELECT claim_id FROM child_claims'
CLAIMS_OF_PARENTS = """
    SELECT id, request_id, lease_until FROM claims
    WHERE live = 1 AND parent_key = ? AND state = 'reserved' AND created_at < ?
"""
OPEN_HOSTS = """
    SELECT name FROM providers WHERE over_committed = 0 AND sparse_classes = 0 AND reported_at >= ?
"""


class LiveClaim(NamedTuple):
    """A claim that lives in some zone."""

    zone: str
    id: str
    consumer: str
    purpose: str
    state: str
    request_id: str
    host: str

    @property
    def kind(self) -> tuple[str, str]:
        """The role that one live claim may have."""
        return self.consumer, 'move' if Purpose(self.purpose).is_move else self.purpose


class TreeWatch:
    """Observed state of a tree, and the violations that were seen.

    :ivar databases: by name of the zone; ``below``: names of its child zones
    :ivar broken: violations that were seen when they happened
    :ivar known: claim id -> request id of the answer that a caller got
    :ivar cancelled: request ids that a caller tried to cancel
    """

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.databases: dict[str, SqlDatabase] = {}
        self.broken: list[str] = []
        self.known: dict[str, str] = {}
        self.cancelled: set[str] = set()
        self.below: dict[str, list[str]] = {}
        self._received_at: dict[tuple[str, str, str], float] = {}
        self._freed: dict[str, float] = {}
        self._vcpus: dict[str, int] = {}
        self._given_back: dict[tuple[str, str], float] = {}
        self._live: dict[str, dict[str, LiveClaim]] = {}

    def add(self, name: str, above: str, database: SqlDatabase) -> None:
        """Check a zone as well."""
        self.databases[name] = database
        self.below[name] = []
        if above:
            self.below[above].append(name)
        database.on_write = functools.partial(self.wrote, name)

    # -- what is answered -----------------------------------------------------------------
    def note_request(self, root: str, request: SelectDestinations) -> None:
        """Note a request to a zone."""
        vcpus = request.spec.resources['VCPU']
        self._vcpus |= dict.fromkeys(request.consumers, vcpus)

    def answered(self, root: str, answer: Answer) -> None:
        """Note an answer with places."""
        for chosen, *_ in answer.selections:
            assert chosen.claim_id is not None
            self.known[chosen.claim_id] = answer.request_id
        self._check_single_claims()

    def received(self, above: str, below: str, request_id: str) -> None:
        self._received_at[above, below, request_id] = self.loop.now

    def refused(self, zone: str, request: SelectDestinations, since: float) -> None:
        group = request.spec.group
        is_bound = request.spec.purpose.is_move or (
            group is not None and group.policy == 'affinity'
        )
        if request.places or not request.hops or is_bound or self.restored:
            return
        silent = self._silent_children(zone, request.request_id, since)
        if silent:
            self._note_violation(
                f'Z9: {zone} has no room for {request.request_id[:8]}, and nothing was heard of '
                f'{", ".join(silent)}'
            )
        if len(request.consumers) == 1 and group is None:
            for host in self._hosts_with_room(zone, request.spec.resources['VCPU'], since):
                self._note_violation(
                    f'Z9: {zone} has no room for {request.request_id[:8]}, and {host} has'
                )

    def _silent_children(self, zone: str, request_id: str, since: float) -> list[str]:
        """Return child zones that did not answer, where their parents answer for them."""
        silent = []
        for below in self.below[zone]:
            answered_at = self._received_at.get((zone, below, request_id), -1.0)
            facts = self._received_at.get((zone, below, ''), -1.0)
            if answered_at >= since:
                silent += self._silent_children(below, request_id, since)
            elif facts < since - FACTS_SECONDS:
                silent.append(below)
        return silent

    def _hosts_with_room(self, zone: str, vcpus: int, since: float) -> list[str]:
        """Return hosts that had room all the time, and have reported their inventories."""
        long_ago = since - UNSEEN_SECONDS
        fresh = ProcessClock.START + since - REPORT_SECONDS
        hosts = []
        rows = self.databases[zone].rows(OPEN_HOSTS, fresh)
        for (host,) in rows:
            used = sum(
                self._vcpus.get(claim.consumer, 0)
                for claim in self._live.get(zone, {}).values()
                if claim.host == host
            )
            if vcpus <= VCPUS - used and self._freed.get(host, 0.0) < long_ago:
                hosts.append(host)
        for below in self.below[zone]:
            hosts += self._hosts_with_room(below, vcpus, since)
        return hosts

    # -- what is written ---------------------------------------------------------------
    def wrote(self, zone: str, who: str, name: str, args: tuple[Any, ...], result: Any) -> None:
        """Check all zones after a statement of a process had its effect."""
        before, now = self._live.get(zone, {}), self.live(zone)
        self._live[zone] = {claim.id: claim for claim in now}
        if name == 'cancel_request':
            self._given_back.setdefault((zone, args[0]), self.loop.now)
        if self.restored:
            return
        for claim in now:
            if claim.id not in before:
                self._check_new_claims(claim)
        for ended in before.values():
            if ended.id not in self._live[zone]:
                self._freed[ended.host] = self.loop.now
                self._check_ended_claims(ended, name)
        if {claim.id for claim in now} - before.keys() or name in (
            'confirm_claims',
            'apply_reports',
        ):
            self._check_single_claims()

    def live(self, zone: str) -> list[LiveClaim]:
        """Return the live claims of a zone."""
        return [LiveClaim(zone, *row) for row in self.databases[zone].rows(LIVE_CLAIMS)]

    @property
    def restored(self) -> bool:
        """True where some database was put back."""
        return any(database.restored for database in self.databases.values())

    def check_leaked_claims(self) -> None:
        """Check that each claim below is known, or is to end, while its lease runs."""
        self.loop.at(LOOK_SECONDS, self.check_leaked_claims)
        if self.restored:
            return
        for zone, below in (
            (zone, below) for zone, children in self.below.items() for below in children
        ):
            ((place,),) = self.databases[below].rows(ZONE_UUID)
            known_ids = {row[0] for row in self.databases[zone].rows(KNOWN_CHILD_CLAIMS)}
            to_end = {row[0] for row in self.databases[zone].rows(PENDING_RELEASES)}
            to_end |= {
                request_id_in_zone(row[0], place)
                for row in self.databases[zone].rows(OPEN_LOCK_TOKENS)
            }
            ending_keys = {scoped_id(zone, ending) for ending in to_end}
            before = ProcessClock.START + self.loop.now - REQUEST_SECONDS
            claims = self.databases[below].rows(CLAIMS_OF_PARENTS, zone, before)
            for claim_id, key, until in claims:
                if claim_id not in known_ids and key not in ending_keys:
                    remaining = f'{until - ProcessClock.START - self.loop.now:.0f} s'
                    self._note_violation(
                        f'Z6: nobody has {claim_id[:8]} in {below}, for {remaining} still'
                    )

    # -- what must hold ------------------------------------------------------------------
    def _check_new_claims(self, new: LiveClaim) -> None:
        key = new.zone, new.request_id
        if key in self._given_back:
            self._note_violation(
                f'Z5: {new.id[:8]} is claimed in {new.zone} after its key was given back'
            )
        vcpus = Counter[str]()
        for claim in self._live[new.zone].values():
            vcpus[claim.host] += self._vcpus.get(claim.consumer, 0)
        if vcpus[new.host] > VCPUS:
            self._note_violation(
                f'Z1: {vcpus[new.host]} VCPU of {VCPUS} are promised on {new.host}'
            )

    def _check_ended_claims(self, gone: LiveClaim, name: str) -> None:
        """Check that an answered claim ends only by time, its host, or its caller."""
        request_id = self.known.get(gone.id)
        if request_id is None or request_id in self.cancelled:
            return
        if name in ('cancel_request', 'open_request', 'finish_request', 'give_up'):
            self._note_violation(f'Z3: {name} in {gone.zone} took {gone.id[:8]} of an answer away')
        if name == 'commit' and gone.request_id != request_id:
            self._note_violation(
                f'Z3: another claim in {gone.zone} took {gone.id[:8]} of an answer away'
            )

    def _check_single_claims(self) -> None:
        """Check that a consumer never has two usable claims: confirmed, or known to its caller."""
        claim_of: dict[tuple[str, str], LiveClaim] = {}
        for claims in self._live.values():
            for claim in claims.values():
                if claim.state != 'confirmed' and claim.id not in self.known:
                    continue
                first = claim_of.setdefault(claim.kind, claim)
                if first.id != claim.id:
                    self._note_violation(
                        f'Z2: consumer {claim.consumer[:8]} has {first.id[:8]} in {first.zone} and '
                        f'{claim.id[:8]} in {claim.zone}'
                    )

    def _note_violation(self, what: str) -> None:
        if what not in self.broken:
            self.loop.write_trace('watch', f'broken: {what}')
            self.broken.append(what)
