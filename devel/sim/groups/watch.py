# SPDX-License-Identifier: Apache-2.0
"""What is looked at after every write: places, plans and their members, before and after it.

A line of a violation begins with its promise, see the handbook of the simulator.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from devel.sim.database import SimDatabase
from devel.sim.groups.descriptions import PlacedUnit, broken_policies
from gantt.core.claims.claim import Claim, State, guest_of
from gantt.core.claims.commit import CommitStatus, RequestDraft, RequestOutcome
from gantt.core.claims.places import GroupPlanRecord, is_of_plan
from gantt.core.groups import group_answer
from gantt.core.groups.group_answer import GroupAnswer
from gantt.core.groups.plan_view import member_of
from gantt.core.messages.group_description import GroupDescription

#: Of two sums of the same seconds.
_ROUNDING = 0.001
_read = msgspec.json.Decoder(GroupDescription).decode

Claims = Mapping[str, Claim]
Drafts = Sequence[tuple[RequestDraft, RequestOutcome]]


class GroupWatch:
    """See the module docstring.

    :ivar answers: request id -> what was committed as its answer
    :ivar broken: violations that were seen when they happened
    """

    def __init__(self, database: SimDatabase) -> None:
        self.answers: dict[str, GroupAnswer] = {}
        self.broken: list[str] = []
        self._database = database
        self._known: dict[str, Claim] = {}
        self._lost: set[str] = set()  # guests that were given up with their hosts
        self._moved: set[str] = set()  # groups of which a guest was on its way
        self._revisions: dict[str, int] = {}
        database.on_write = self.wrote

    def wrote(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        """A statement had its effect."""
        if self._database.restored:
            return  # what was known of before may be forgotten
        before, self._known = self._known, self._members()
        drafts: Drafts = ()
        if name == 'commit':
            drafts = list(zip(args[0], result.outcomes, strict=True))
        for draft, outcome in drafts:
            if draft.plan is not None:
                self._look_at_plan(draft, outcome)
        if name == 'release_plan':
            self._revisions.pop(args[0], None)
        self._look_at_ended(before, name, args, drafts)
        self._look_at_new(before, drafts)
        self._look_at_held()
        if before != self._known:
            self._look_for_two()
            self._look_at_policies(before)
        self._look_at_usage()

    # -- what there is --------------------------------------------------------------------
    def _members(self) -> dict[str, Claim]:
        """Claims of members, ended ones too, by id."""
        claims = self._database.store._tables.claims
        return {one.id: one for one in claims.values() if one.member_name is not None}

    @property
    def _plans(self) -> Mapping[str, GroupPlanRecord]:
        return self._database.store._tables.plans

    def _live(self, group: str) -> list[Claim]:
        """Live claims of members of a group, without those that were given up for lost."""
        return [
            one
            for one in self._known.values()
            if one.group == group and one.is_live and guest_of(one) not in self._lost
        ]

    # -- what must hold ------------------------------------------------------------------
    def _look_at_plan(self, draft: RequestDraft, outcome: RequestOutcome) -> None:
        """All of a group has its places, or none; and the answer says what the claims say."""
        assert draft.plan is not None
        uuid = draft.plan.group_uuid
        if outcome.outcome is not CommitStatus.PLACED:
            ids = {made.claim.id for made in draft.claims}
            done = self.answers.get(draft.id)
            if done is None and ids & self._known.keys():
                self._break(f'G1: {outcome.outcome.value} left claims of request {draft.id}')
            return
        self._lost.update(guest_of(self._known[one]) for one in draft.lost_claims)
        answer = group_answer.unpack(draft.answer)
        assert answer is not None
        self.answers[draft.id] = answer
        if answer.revision != self._revisions.get(uuid, 0) + 1:
            self._break(f'G5: revision {answer.revision} of {uuid} follows another than it says')
        self._revisions[uuid] = answer.revision
        group, live = _read(draft.plan.description), self._live(uuid)
        names = {one.member_name or '' for one in live}
        # Who stood when it was planned may have ended since, and be told to stay.
        counts = Counter(member_of(group, name) for name in names.union(answer.stayed))
        for one in group.members:
            if counts[one.name] < one.least:
                self._break(f'G1: {uuid} was planned with {counts[one.name]} {one.name}')
        planned = [] if answer.plan is None else answer.plan.members
        told = {*answer.stayed, *(one.name for one in planned)}
        ever = {one.member_name for one in self._known.values() if one.group == uuid}
        if not names <= told <= ever:
            self._break(f'G5: {uuid} was told to have {sorted(told)}, and has others')
        for place in planned:
            claim = self._known.get(place.claim_id)
            if claim is None or (claim.host, claim.allocations, claim.consumer) != (
                place.host,
                place.amounts,
                place.consumer,
            ):
                self._break(f'G5: {place.name} of {uuid} was told a place that it has not')

    def _look_at_ended(
        self, before: Claims, name: str, args: tuple[Any, ...], drafts: Drafts
    ) -> None:
        """A place is one create's at most, and ends with its guest or its plan."""
        now = self._database.store.ping()
        for old in (one for one in before.values() if one.is_live and is_of_plan(one)):
            new = self._known[old.id]
            what = f'{old.member_name} of {old.group} ({old.id[:8]})'
            if new.is_live and is_of_plan(new):
                if old.is_taken and new.consumer != old.consumer:
                    self._break(f'G2: {name} gave the place of {what} to another server')
                continue
            if new.state is State.CONFIRMED:
                if old.is_free_place:
                    self._break(f'G2: {name} confirmed the place of {what}, which nobody has')
                continue
            if name == 'release_plan' and args[0] == old.group:
                if old.is_taken and not new.is_live:
                    self._break(f'G4: the release of its plan ended a create of {what}')
                continue
            held = old.lease_until if old.planned is None else old.planned.lease_until
            if held <= now or self._lives_on(old, before, drafts):
                continue
            if old.is_taken or not _gave_back(old, name, args, drafts):
                self._break(f'G4: {name} ended the place of {what}, held {held - now:.0f} s more')

    def _lives_on(self, old: Claim, before: Claims, drafts: Drafts) -> bool:
        """Whether its member has the same place, or got another one by a commit."""
        heirs = [
            one
            for one in self._known.values()
            if one.is_live
            and (one.group, one.member_name) == (old.group, old.member_name)
            and one.id != old.id
            and not _was_live(before, one)
        ]
        same = [one for one in heirs if (one.host, one.allocations) == (old.host, old.allocations)]
        return bool(same or (drafts and heirs))

    def _look_at_new(self, before: Claims, drafts: Drafts) -> None:
        """A free place is one that was planned, or that a create has left."""
        planned = {
            made.claim.id
            for draft, outcome in drafts
            if draft.plan is not None and outcome.outcome is CommitStatus.PLACED
            for made in draft.claims
        }
        for one in self._known.values():
            if not one.is_free_place or _was_live(before, one) or one.id in planned:
                continue
            left = [
                old
                for old in before.values()
                if old.is_taken
                and not self._known[old.id].is_live
                and (old.group, old.member_name, old.host, old.allocations)
                == (one.group, one.member_name, one.host, one.allocations)
            ]
            if not left:
                self._break(f'G4: a place of {one.member_name} of {one.group} is from nowhere')

    def _look_at_held(self) -> None:
        """No place outlives its plan."""
        for one in self._known.values():
            if not one.is_live or not is_of_plan(one):
                continue
            record = self._plans.get(one.group or '')
            held = one.lease_until if one.planned is None else one.planned.lease_until
            if record is None:
                self._break(f'G4: {one.id[:8]} is a place of {one.group}, whose plan has ended')
            elif held > record.lease_until + _ROUNDING:
                self._break(f'G4: {one.id[:8]} is held longer than the plan of {one.group}')

    def _look_for_two(self) -> None:
        """A member has one live claim, or is one guest that moves.

        One that was found without a claim may be there beside another: the audit has them.
        """
        guests: dict[tuple[str | None, str | None], set[str]] = {}
        for one in self._known.values():
            if one.is_live and not one.adopted and guest_of(one) not in self._lost:
                guests.setdefault((one.group, one.member_name), set()).add(guest_of(one))
        for (group, member), found in guests.items():
            if len(found) > 1:
                self._break(f'G3: {member} of {group} has claims of {len(found)} consumers')

    def _look_at_policies(self, before: Claims) -> None:
        """Hard policies hold over places and guests.

        Where a guest has come back that was given up with its host, its group is in two places.
        Who joins a guest that is on its way may join the end that it does not stay at.
        """
        for uuid, record in self._plans.items():
            group = _read(record.description)
            claims = list(self._of_group(uuid))
            units = [self._unit(group, one) for one in claims]
            if max(Counter(one.guest for one in units).values(), default=0) > 1:
                self._moved.add(uuid)
            has_lost = any(
                guest_of(one) in self._lost and one.is_live
                for one in self._known.values()
                if one.group == uuid
            )
            stood = {(one.member_name, one.host) for one in before.values() if one.is_live}
            joined = [
                unit
                for one, unit in zip(claims, units, strict=True)
                if one.member_name is not None and (one.member_name, one.host) not in stood
            ]
            is_apart = has_lost or uuid in self._moved
            for line in broken_policies(
                group, units, affinity=not is_apart, joined=() if has_lost else joined
            ):
                self._break(f'G6: {uuid}: {line}')

    def _unit(self, group: GroupDescription, one: Claim) -> PlacedUnit:
        row = self._database.store._tables.hosts[one.provider_id]
        member = member_of(group, one.member_name or '')
        return PlacedUnit(member, guest_of(one), one.host, row.facts.location or one.host)

    def _of_group(self, uuid: str) -> Iterable[Claim]:
        for one in self._database.live():
            is_member = one.group == uuid and not one.adopted
            if is_member and guest_of(one) not in self._lost:
                yield one

    def _look_at_usage(self) -> None:
        """What is used of each host is the sum of its claims, places among them."""
        used: dict[int, Counter[str]] = {}
        for one in self._database.live():
            for provider_id, amounts in one.allocations.items():
                used.setdefault(provider_id, Counter()).update(amounts)
        for row in self._database.store._tables.hosts.values():
            there = {name: amount for name, amount in row.used.items() if amount}
            if there != dict(used.get(row.id, {})):
                self._break(f'G7: {row.name} counts {there}, its claims take others')

    def _break(self, what: str) -> None:
        if what in self.broken:
            return
        self._database.loop.say('watch', f'broken: {what}')
        self.broken.append(what)


def _was_live(before: Claims, one: Claim) -> bool:
    old = before.get(one.id)
    return old is not None and old.is_live


def _gave_back(place: Claim, name: str, args: tuple[Any, ...], drafts: Drafts) -> bool:
    """Whether somebody who may has given a free place back."""
    if name == 'cancel_request':
        return args[0] == place.request_id
    return any(
        place.id == one.claim_id
        for draft, outcome in drafts
        if outcome.outcome is CommitStatus.PLACED
        for one in draft.ends_places
    )
