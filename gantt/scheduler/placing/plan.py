# SPDX-License-Identifier: Apache-2.0
"""A pass over (some of) the members of a request: its decision, its draft and its answer."""

import functools
import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from gantt.core.claims.commit import (
    ClaimColumns,
    CommitStatus,
    DecisionRecord,
    GroupSwap,
    RequestDraft,
    RequestOutcome,
)
from gantt.core.claims.places import PlaceLetGo, PlaceTaken
from gantt.core.messages.request import Purpose, SelectDestinations
from gantt.core.records import decision_codec
from gantt.core.records.decision import Answer, Decision, FilterCount, Outcome, Selection
from gantt.core.records.members import (
    AnswerReference,
    MemberColumns,
    answer_of,
    pack,
    selections_of,
)
from gantt.scheduler.placing.admission import PendingRequest

#: Seconds to wait for a request begun by another worker, counted from its last pass:
#: passes of a live worker follow each other at once.
BEGUN_SECONDS = 10.0
#: The claims of a plan without any.
NOTHING = ClaimColumns()


class Done(NamedTuple):
    """Answer data of a member that is claimed.

    :ivar selections: the chosen host, then its alternates
    :ivar level: highest of the soft rules that gave way
    :ivar given_up: these rules
    """

    selections: list[Selection]
    level: int
    given_up: list[str]


class Plan:
    """A plan: one pass of a call.

    :ivar request: the call's request, its group's rule filled in
    :ivar members: the members of this pass, in order
    :ivar drafts: their claims, in the same order
    :ivar takes: places of a plan that they take over instead
    :ivar lets_go: places of a plan that end with the commit of their claims
    :ivar ask_zones: names of child zones that may have room, and are not queried for such a request
    :ivar claims_nothing: a dry run, or a rebuild on the host where the consumer is
    :ivar final_answer: the whole answer, valid where the draft completes the request
    """

    __slots__ = (
        'ask_zones',
        'call',
        'claims_nothing',
        'completes',
        'decision',
        'drafts',
        'final_answer',
        'group',
        'is_placed',
        'lease',
        'lets_go',
        'members',
        'others',
        'request',
        'takes',
        'whole',
    )

    def __init__(
        self,
        call: PendingRequest,
        request: SelectDestinations,
        decision: Decision,
        members: list[int],
        group: GroupSwap | None,
        lease: float,
        others: tuple[GroupSwap, ...] = (),
        takes: tuple[PlaceTaken, ...] = (),
    ) -> None:
        self.call = call
        self.request = request
        self.decision = decision
        self.members = members
        self.group, self.others = group, others
        self.lease = lease
        self.is_placed = decision.outcome is Outcome.PLACED
        self.claims_nothing = request.dry_run or request.spec.purpose is Purpose.REBUILD
        self.takes = takes
        self.ask_zones: list[str] = []
        self.lets_go: tuple[PlaceLetGo, ...] = ()
        self.whole = (group is not None or bool(takes)) and len(members) > 1
        self.completes = len(members) == len(call.attempt.todo)
        self.drafts = NOTHING
        self.final_answer = Answer(
            request_id=request.request_id, decision_id=decision.id, outcome=decision.outcome
        )

    def record(self) -> DecisionRecord:
        """Return the decision as it is stored."""
        decision = self.decision
        ids = decision.provider_ids
        return DecisionRecord(
            id=decision.id,
            request_id=decision.request_id,
            outcome=decision.outcome.value,
            project_id=self.request.spec.project_id,
            reason=decision.reason,
            worker=decision.worker,
            table_seq=decision.table_seq,
            packed=decision_codec.pack(decision, self.request),
            host_set=_digest_of(ids),
            provider_ids=ids,
            origin=self.request.origin,
            consumers=self.request.consumers,
        )

    @property
    def removed(self) -> list[FilterCount]:
        """Filters that removed hosts for the member left without one."""
        return [
            rule for member in self.decision.members[-1:] for rule in member.filters if rule.removed
        ]

    @property
    def age_seconds(self) -> float:
        """Age of the table that the decision rests on, as answers show it."""
        return round(self.decision.age_seconds, 3)

    def answer(self) -> Answer:
        """Return the whole answer: members of earlier passes and of this one."""
        answer = answer_of(
            self.decision,
            self.lease,
            claims=not self.claims_nothing,
            dry_run=self.request.dry_run,
        )
        if self.ask_zones:
            answer = msgspec.structs.replace(answer, ask_zones=self.ask_zones)
        earlier = self.call.attempt.done
        if not earlier:
            return answer
        done = {**earlier, **self._done()}
        return msgspec.structs.replace(
            answer,
            selections=[done[member].selections for member in sorted(done)],
            level=max((done_member.level for done_member in done.values()), default=0),
            given_up=list(
                dict.fromkeys(
                    rule for done_member in done.values() for rule in done_member.given_up
                )
            ),
        )

    @property
    def looks(self) -> int:
        """Number of its members for which all hosts were evaluated."""
        return len(self.columns.looks) - self.columns.goes_on

    @property
    def columns(self) -> MemberColumns:
        members = self.decision.members
        assert isinstance(members, MemberColumns), 'it was just decided'
        return members

    def _done(self) -> dict[int, Done]:
        """Return the answer data of this pass's members."""
        members = self.columns
        looks = {member: look for look in members.looks for member in look.members}
        selections = selections_of(members, self.lease, claims=not self.claims_nothing)
        return {
            member: Done(member_selections, looks[member].level, looks[member].given_up)
            for member, member_selections in zip(sorted(looks), selections, strict=True)
        }

    def draft(self, owner: str, now: float, *, may_refer: bool) -> RequestDraft:
        """Return the input of the commit.

        :param now: monotonic time, for the rest of the budget
        :param may_refer: its answer may be stored as a reference to its decision
        """
        request, attempt = self.request, self.call.attempt
        may_refer = may_refer and not self.takes
        if self.completes:
            # Built from all members, those of earlier passes too: not once for each pass.
            self.final_answer = self.answer()
        return RequestDraft(
            id=request.request_id,
            fingerprint=self.call.fingerprint,
            owner=owner,
            attempt=attempt.number,
            continues=attempt.continues,
            takes_over=attempt.takes_over,
            whole=self.whole,
            completes=self.completes,
            budget_seconds=max(1.0, min(self.call.deadline - now, BEGUN_SECONDS)),
            lease_seconds=self.lease,
            project_id=request.spec.project_id,
            only_project=request.only_project,
            claims=self.drafts if len(self.drafts.ids) > 1 else list(self.drafts),
            group=self.group,
            groups=self.others,
            takes_places=self.takes,
            lets_go=self.lets_go,
            answer=self._stored_answer(may_refer) if self.completes else b'',
            decision=self.record(),
        )

    def _stored_answer(self, may_refer: bool) -> bytes:
        """Return the answer for a repeat; by reference where its decision has all members."""
        if may_refer and not self.call.attempt.done:
            return pack(AnswerReference(self.decision.id, self.lease))
        return pack(self.final_answer)

    def providers(self, accepted: Sequence[int] | None = None) -> set[int]:
        """Return the providers that its claims touch, or the accepted ones of them."""
        return self.drafts.touched(accepted)

    def needed(self) -> set[int]:
        """Return the providers whose rows its commit locks."""
        return self.providers().union(*(place.provider_ids for place in self.takes))

    def evitable(self, outcome: RequestOutcome) -> int:
        """Return how many members lost a race for a host although others had room.

        Members of a changed group do not count: that race is for the group.
        """
        if outcome.outcome not in (CommitStatus.PARTIAL, CommitStatus.DROPPED):
            return 0
        accepted, spread = set(outcome.accepted), self.decision.spread
        survivors = [look.survivors for look in self.columns.looks for _ in look.members]
        return sum(
            i not in accepted and hosts_left > spread for i, hosts_left in enumerate(survivors)
        )

    def outcome(self, outcome: RequestOutcome) -> tuple[dict[int, Done], list[str]]:
        """Return claims of a commit that did not complete the request, as ``Attempt.done``.

        :returns: these, and the hosts of the members that lost a race
        """
        accepted = {self.members[i] for i in outcome.accepted}
        done = self._done() if accepted else {}
        claimed = {member: done[member] for member in accepted}
        return claimed, [
            member.host.host for member in self.columns.placed() if member.member not in accepted
        ]


@functools.lru_cache(maxsize=8)
def _digest_of(ids: bytes) -> str:
    """Return the digest of a list of hosts, the same object until a host comes or goes."""
    return hashlib.blake2b(ids, digest_size=16).hexdigest()
