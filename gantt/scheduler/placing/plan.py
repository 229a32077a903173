# SPDX-License-Identifier: Apache-2.0
"""One pass over (some of) the members of a request: its picks, its claims, its answer."""

import functools
import hashlib
import itertools
from collections.abc import Iterable

import msgspec

from gantt.core.claims.commit import (
    ClaimDraft,
    DecisionRecord,
    Fate,
    GroupSwap,
    RequestDraft,
    RequestFate,
)
from gantt.core.messages.request import Purpose, SelectDestinations
from gantt.core.records import decision_codec
from gantt.core.records.decision import Answer, Decision, MemberDecision, Selection
from gantt.scheduler.placing.admission import Call, Done

_pack = msgspec.msgpack.Encoder().encode

#: Who finds a request begun by another worker waits for so long since that one's last pass:
#: passes of one that lives follow each other at once.
BEGUN_SECONDS = 10.0
#: Seconds to wait after the second lost race, and at most; in between they double.
BACK_OFF_FIRST, BACK_OFF_MOST = 0.005, 0.1


class Plan:
    """One pass of a call.

    :ivar request: the call's request, its group's rule filled in
    :ivar members: the members of this pass, in order
    :ivar drafts: their claims, in the same order
    :ivar final_answer: the whole answer, valid where the draft completes the request
    """

    __slots__ = (
        'call',
        'completes',
        'decision',
        'drafts',
        'final_answer',
        'group',
        'lease',
        'members',
        'request',
        'whole',
    )

    def __init__(
        self,
        call: Call,
        request: SelectDestinations,
        decision: Decision,
        members: list[int],
        group: GroupSwap | None,
        lease: float,
    ) -> None:
        self.call = call
        self.request = request
        self.decision = decision
        self.members = members
        self.group = group
        self.lease = lease
        self.whole = group is not None and len(members) > 1
        self.completes = len(members) == len(call.todo)
        self.drafts: list[ClaimDraft] = []
        self.final_answer = Answer(
            request_id=request.request_id, decision_id=decision.id, outcome=decision.outcome
        )

    @property
    def claims_nothing(self) -> bool:
        """A dry run, or a rebuild on the host where the consumer is."""
        return self.request.dry_run or self.request.spec.purpose is Purpose.REBUILD

    def record(self) -> DecisionRecord:
        """The decision as it is kept."""
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
    def age_seconds(self) -> float:
        """Of what it was decided on, as answers say it."""
        return round(self.decision.age_seconds, 3)

    def answer(self) -> Answer:
        """The whole answer: members of earlier passes and of this one."""
        done = self.call.done | self._done()
        return Answer(
            request_id=self.request.request_id,
            decision_id=self.decision.id,
            outcome=self.decision.outcome,
            selections=[done[i].selections for i in sorted(done)],
            reason=self.decision.reason,
            age_seconds=self.age_seconds,
            level=max((one.level for one in done.values()), default=0),
            given_up=list(dict.fromkeys(rule for one in done.values() for rule in one.given_up)),
            dry_run=self.request.dry_run,
        )

    def _done(self) -> dict[int, Done]:
        """The members of this pass."""
        claim_ids: Iterable[str | None] = (draft.claim.id for draft in self.drafts)
        if self.claims_nothing:
            claim_ids = itertools.repeat(None, len(self.decision.members))
        pairs = zip(self.decision.members, claim_ids, strict=True)
        return {
            member.member: Done(self._selections(member, claim_id), member.level, member.given_up)
            for member, claim_id in pairs
        }

    def _selections(self, member: MemberDecision, claim_id: str | None) -> list[Selection]:
        chosen = member.selection
        if chosen is None:
            return []
        lease = 0.0 if claim_id is None else self.lease
        chosen = msgspec.structs.replace(chosen, lease_seconds=lease, claim_id=claim_id)
        return [chosen, *member.alternates]

    def draft(self, owner: str, now: float) -> RequestDraft:
        """What the store is asked for.

        :param now: monotonic time, for what is left of the budget
        """
        request = self.request
        if self.completes:
            # Made of all members, those of earlier passes too: not once for each pass.
            self.final_answer = self.answer()
        return RequestDraft(
            id=request.request_id,
            fingerprint=self.call.fingerprint,
            owner=owner,
            attempt=self.call.attempt,
            continues=self.call.continues,
            takes_over=self.call.takes_over,
            whole=self.whole,
            completes=self.completes,
            budget_seconds=max(1.0, min(self.call.deadline - now, BEGUN_SECONDS)),
            lease_seconds=self.lease,
            project_id=request.spec.project_id,
            only_project=request.only_project,
            claims=self.drafts,
            group=self.group,
            answer=_pack(self.final_answer) if self.completes else b'',
            decision=self.record(),
        )

    def providers(self, accepted: list[int]) -> set[int]:
        """The providers that the accepted claims touch."""
        return {pid for i in accepted for pid in self.drafts[i].claim.allocations}

    def all_providers(self) -> set[int]:
        """The providers that its claims would touch."""
        return {pid for made in self.drafts for pid in made.claim.allocations}

    def evitable(self, fate: RequestFate) -> int:
        """How many members lost a race for a host that had others to go to.

        Not those of a group that has changed: that race is for the group.
        """
        if fate.fate not in (Fate.PARTIAL, Fate.DROPPED):
            return 0
        taken, spread = set(fate.accepted), self.decision.spread
        return sum(
            i not in taken and member.survivors > spread
            for i, member in enumerate(self.decision.members)
        )

    def keep(self, fate: RequestFate) -> int:
        """Note what a commit that did not complete the request has claimed.

        :returns: how many members lost a race
        """
        call = self.call
        by_member = {m.member: m for m in self.decision.members}
        accepted = {self.members[i] for i in fate.accepted}
        if accepted:
            made = self._done()
            call.done.update((member, made[member]) for member in accepted)
        call.todo = [m for m in call.todo if m not in accepted]
        if fate.fate is Fate.PARTIAL:
            call.continues = True
            call.takes_over = None
        if len(accepted) == len(self.members):
            call.tries -= 1  # a large request goes in several commits; that is no conflict
        else:
            lost = (by_member[m].selection for m in self.members if m not in accepted)
            hosts = sorted({selection.host for selection in lost if selection})
            call.conflicts.append(f'{fate.fate.value}: {", ".join(hosts[:5])}')
        return len(self.members) - len(accepted)


@functools.lru_cache(maxsize=8)
def _digest_of(ids: bytes) -> str:
    """The digest of a list of hosts, the very same object until a host comes or goes."""
    return hashlib.blake2b(ids, digest_size=16).hexdigest()


def back_off(call: Call) -> float:
    """Seconds until a call is to be planned again that lost races; 0 after the first.

    Between half and all of what doubles with each, by the seed of its next try:
    who lost together does not come back together.
    """
    lost = len(call.conflicts)
    if lost < 2:
        return 0.0
    most = min(BACK_OFF_FIRST * 2 ** (lost - 2), BACK_OFF_MOST)
    return most * (0.5 + seed_of(call.request.request_id, call.tries + 1) / 2**33)


def seed_of(request_id: str, tries: int) -> int:
    """The tie-break seed: the same for a replay, another for another try."""
    body = f'{request_id} {tries}'.encode()
    return int.from_bytes(hashlib.blake2b(body, digest_size=4).digest(), 'big')
