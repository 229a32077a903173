# SPDX-License-Identifier: Apache-2.0
"""Checks after every write of places, plans and their members, before and after it.

A line of a violation begins with its promise, see the handbook of the simulator.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from devel.sim.database import SimMemoryDatabase
from devel.sim.groups.descriptions import PlacedUnit, broken_policies
from gantt.core.claims.claim import Claim, State, guest_of
from gantt.core.claims.commit import CommitStatus, RequestDraft, RequestOutcome
from gantt.core.claims.reservations import GroupPlanRecord, is_reservation_of_plan
from gantt.groups.model import group_answer
from gantt.groups.model.group_answer import GroupAnswer, member_of
from gantt.groups.model.group_description import GroupDescription

#: Of two sums of the same seconds.
_ROUNDING = 0.001
_read = msgspec.json.Decoder(GroupDescription).decode

Claims = Mapping[str, Claim]
Drafts = Sequence[tuple[RequestDraft, RequestOutcome]]


class GroupWatch:
    """Observed state of groups, and the violations that were seen.

    :ivar answers: request id -> what was committed as its answer
    :ivar broken: violations that were seen when they happened
    """

    def __init__(self, database: SimMemoryDatabase) -> None:
        self.answers: dict[str, GroupAnswer] = {}
        self.broken: list[str] = []
        self._database = database
        self._known: dict[str, Claim] = {}
        self._lost: set[str] = set()  # guests that were given up with their hosts
        self._moved: set[str] = set()  # groups of which a guest was on its way
        self._revisions: dict[str, int] = {}
        database.on_write = self.wrote

    def wrote(self, who: str, name: str, args: tuple[Any, ...], result: Any) -> None:
        """Check the state after a statement had its effect."""
        if self._database.restored:
            return  # what was known of before may be forgotten
        before, self._known = self._known, self._members()
        drafts: Drafts = ()
        if name == 'commit':
            drafts = list(zip(args[0], result.outcomes, strict=True))
        for draft, outcome in drafts:
            if draft.plan is not None:
                self._check_plan(draft, outcome)
        if name == 'release_plan':
            self._revisions.pop(args[0], None)
        self._check_ended_places(before, name, args, drafts)
        self._check_new_places(before, drafts)
        self._check_held_places()
        if before != self._known:
            self._check_single_claims()
            self._check_policies(before)
        self._check_usage()

    # -- what there is --------------------------------------------------------------------
    def _members(self) -> dict[str, Claim]:
        """Return claims of members, ended ones too, by id."""
        claims = self._database.stores.database.tables.claims
        return {claim.id: claim for claim in claims.values() if claim.member_name is not None}

    @property
    def _plans(self) -> Mapping[str, GroupPlanRecord]:
        return self._database.stores.database.tables.plans

    def _live(self, group: str) -> list[Claim]:
        """Return live claims of members of a group, without those that were given up for lost."""
        return [
            claim
            for claim in self._known.values()
            if claim.group == group and claim.is_live and guest_of(claim) not in self._lost
        ]

    # -- what must hold ------------------------------------------------------------------
    def _check_plan(self, draft: RequestDraft, outcome: RequestOutcome) -> None:
        """Check that a group has all its places or none, and that the answer matches the claims."""
        assert draft.plan is not None
        uuid = draft.plan.group_uuid
        if outcome.outcome is not CommitStatus.PLACED:
            ids = {claim_draft.claim.id for claim_draft in draft.claims}
            done = self.answers.get(draft.id)
            if done is None and ids & self._known.keys():
                self._note_violation(
                    f'G1: {outcome.outcome.value} left claims of request {draft.id}'
                )
            return
        self._lost.update(guest_of(self._known[item]) for item in draft.lost_claims)
        answer = group_answer.unpack(draft.answer)
        assert answer is not None
        self.answers[draft.id] = answer
        if answer.revision != self._revisions.get(uuid, 0) + 1:
            self._note_violation(
                f'G5: revision {answer.revision} of {uuid} follows another than it says'
            )
        self._revisions[uuid] = answer.revision
        group, live = _read(draft.plan.description), self._live(uuid)
        names = {item.member_name or '' for item in live}
        # A member that was placed at planning may have ended since, and be reported to stay.
        counts = Counter(member_of(group, name) for name in names.union(answer.stayed))
        for item in group.members:
            if counts[item.name] < item.least:
                self._note_violation(f'G1: {uuid} was planned with {counts[item.name]} {item.name}')
        planned = [] if answer.plan is None else answer.plan.members
        answered = {*answer.stayed, *(item.name for item in planned)}
        all_names = {item.member_name for item in self._known.values() if item.group == uuid}
        if not names <= answered <= all_names:
            self._note_violation(
                f'G5: {uuid} was answered to have {sorted(answered)}, and has others'
            )
        for place in planned:
            claim = self._known.get(place.claim_id)
            if claim is None or (claim.host, claim.allocations, claim.consumer) != (
                place.host,
                place.amounts,
                place.consumer,
            ):
                self._note_violation(
                    f'G5: the answer for {place.name} of {uuid} differs from its claim'
                )

    def _check_ended_places(
        self, before: Claims, name: str, args: tuple[Any, ...], drafts: Drafts
    ) -> None:
        """Check that a place is one create's at most, and ends with its guest or its plan."""
        now = self._database.stores.database.ping()
        for old in (
            claim for claim in before.values() if claim.is_live and is_reservation_of_plan(claim)
        ):
            new = self._known[old.id]
            place = f'{old.member_name} of {old.group} ({old.id[:8]})'
            if new.is_live and is_reservation_of_plan(new):
                if old.is_taken and new.consumer != old.consumer:
                    self._note_violation(f'G2: {name} gave the place of {place} to another server')
                continue
            if new.state is State.CONFIRMED:
                if old.is_free_reservation:
                    self._note_violation(
                        f'G2: {name} confirmed the place of {place}, which nobody has'
                    )
                continue
            if name == 'release_plan' and args[0] == old.group:
                if old.is_taken and not new.is_live:
                    self._note_violation(f'G4: the release of its plan ended a create of {place}')
                continue
            held_until = (
                old.lease_until
                if old.former_reservation is None
                else old.former_reservation.lease_until
            )
            if held_until <= now or self._keeps_place(old, before, drafts):
                continue
            if old.is_taken or not _is_given_back(old, name, args, drafts):
                self._note_violation(
                    f'G4: {name} ended the place of {place}, held {held_until - now:.0f} s more'
                )

    def _keeps_place(self, old: Claim, before: Claims, drafts: Drafts) -> bool:
        """Return whether its member has the same place, or got another one by a commit."""
        heirs = [
            claim
            for claim in self._known.values()
            if claim.is_live
            and (claim.group, claim.member_name) == (old.group, old.member_name)
            and claim.id != old.id
            and not _was_live(before, claim)
        ]
        same = [
            claim
            for claim in heirs
            if (claim.host, claim.allocations) == (old.host, old.allocations)
        ]
        return bool(same or (drafts and heirs))

    def _check_new_places(self, before: Claims, drafts: Drafts) -> None:
        """Check that a free place is one that was planned, or that a create has left."""
        planned = {
            claim_draft.claim.id
            for draft, outcome in drafts
            if draft.plan is not None and outcome.outcome is CommitStatus.PLACED
            for claim_draft in draft.claims
        }
        for claim in self._known.values():
            if not claim.is_free_reservation or _was_live(before, claim) or claim.id in planned:
                continue
            origins = [
                old
                for old in before.values()
                if old.is_taken
                and not self._known[old.id].is_live
                and (old.group, old.member_name, old.host, old.allocations)
                == (claim.group, claim.member_name, claim.host, claim.allocations)
            ]
            if not origins:
                self._note_violation(
                    f'G4: a place of {claim.member_name} of {claim.group} is from nowhere'
                )

    def _check_held_places(self) -> None:
        """Check that no place outlives its plan."""
        for claim in self._known.values():
            if not claim.is_live or not is_reservation_of_plan(claim):
                continue
            record = self._plans.get(claim.group or '')
            held_until = (
                claim.lease_until
                if claim.former_reservation is None
                else claim.former_reservation.lease_until
            )
            if record is None:
                self._note_violation(
                    f'G4: {claim.id[:8]} is a place of {claim.group}, whose plan has ended'
                )
            elif held_until > record.lease_until + _ROUNDING:
                self._note_violation(
                    f'G4: {claim.id[:8]} is held longer than the plan of {claim.group}'
                )

    def _check_single_claims(self) -> None:
        """Check that a member has one live claim, or is one guest that moves.

        One that was found without a claim may be there beside another: the audit has them.
        """
        guests: dict[tuple[str | None, str | None], set[str]] = {}
        for claim in self._known.values():
            if claim.is_live and not claim.adopted and guest_of(claim) not in self._lost:
                guests.setdefault((claim.group, claim.member_name), set()).add(guest_of(claim))
        for (group, member), guests_of_member in guests.items():
            if len(guests_of_member) > 1:
                self._note_violation(
                    f'G3: {member} of {group} has claims of {len(guests_of_member)} consumers'
                )

    def _check_policies(self, before: Claims) -> None:
        """Check that hard policies hold over places and guests.

        Where a guest has come back that was given up with its host, its group is in two places.
        Who joins a guest that is on its way may join the end that it does not stay at.
        """
        for uuid, record in self._plans.items():
            group = _read(record.description)
            claims = list(self._of_group(uuid))
            units = [self._unit(group, item) for item in claims]
            if max(Counter(item.guest for item in units).values(), default=0) > 1:
                self._moved.add(uuid)
            has_lost = any(
                guest_of(item) in self._lost and item.is_live
                for item in self._known.values()
                if item.group == uuid
            )
            stood = {(item.member_name, item.host) for item in before.values() if item.is_live}
            joined = [
                unit
                for item, unit in zip(claims, units, strict=True)
                if item.member_name is not None and (item.member_name, item.host) not in stood
            ]
            is_apart = has_lost or uuid in self._moved
            for line in broken_policies(
                group, units, affinity=not is_apart, joined=() if has_lost else joined
            ):
                self._note_violation(f'G6: {uuid}: {line}')

    def _unit(self, group: GroupDescription, claim: Claim) -> PlacedUnit:
        row = self._database.stores.database.tables.hosts[claim.provider_id]
        member = member_of(group, claim.member_name or '')
        return PlacedUnit(member, guest_of(claim), claim.host, row.facts.location or claim.host)

    def _of_group(self, uuid: str) -> Iterable[Claim]:
        for claim in self._database.live():
            is_member = claim.group == uuid and not claim.adopted
            if is_member and guest_of(claim) not in self._lost:
                yield claim

    def _check_usage(self) -> None:
        """Check that what is used of each host is the sum of its claims, places among them."""
        used: dict[int, Counter[str]] = {}
        for claim in self._database.live():
            for provider_id, amounts in claim.allocations.items():
                used.setdefault(provider_id, Counter()).update(amounts)
        for row in self._database.stores.database.tables.hosts.values():
            counted = {name: amount for name, amount in row.used.items() if amount}
            if counted != dict(used.get(row.id, {})):
                self._note_violation(f'G7: {row.name} counts {counted}, its claims take others')

    def _note_violation(self, what: str) -> None:
        if what in self.broken:
            return
        self._database.loop.write_trace('watch', f'broken: {what}')
        self.broken.append(what)


def _was_live(before: Claims, claim: Claim) -> bool:
    old = before.get(claim.id)
    return old is not None and old.is_live


def _is_given_back(place: Claim, name: str, args: tuple[Any, ...], drafts: Drafts) -> bool:
    """Return whether an entitled caller has given a free place back."""
    if name == 'cancel_request':
        return args[0] == place.request_id
    return any(
        place.id == ended.claim_id
        for draft, outcome in drafts
        if outcome.outcome is CommitStatus.PLACED
        for ended in draft.released_reservations
    )
