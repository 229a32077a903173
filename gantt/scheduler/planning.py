# SPDX-License-Identifier: Apache-2.0
"""From a call to a plan: place it, and say it as claims, answer and record.

A plan is one pass over (some of) the members of a request.  Its picks stand on
the working table until ``undo``; its draft is what the store is asked for.
"""

import hashlib

import msgspec

from gantt import exceptions
from gantt.core import claim as claims
from gantt.core.commit import (
    ClaimDraft,
    CommitResult,
    DecisionRecord,
    Fate,
    GroupSwap,
    RequestDraft,
    RequestFate,
)
from gantt.core.decision import Answer, Decision, MemberDecision, Outcome, Selection
from gantt.core.host import Placed
from gantt.core.host_table import HostTable
from gantt.core.message import derived_id
from gantt.core.pipeline import Pipeline, place
from gantt.core.request import Lifecycle, Purpose, SelectDestinations
from gantt.scheduler import table_log
from gantt.scheduler.admission import Call
from gantt.scheduler.host_cache import HostCache
from gantt.scheduler.ports import Store
from gantt.scheduler.settings import Settings

_pack = msgspec.msgpack.Encoder().encode
_unpack_answer = msgspec.msgpack.Decoder(Answer).decode

GROUPS_REMEMBERED = 10_000


class Plan:
    """One pass of a call.

    :ivar request: the call's request, its group's rule filled in
    :ivar members: the members of this pass, in order
    :ivar drafts: their claims, in the same order
    :ivar final_answer: the whole answer, valid where the draft completes the request
    """

    __slots__ = ('call', 'completes', 'decision', 'drafts', 'final_answer', 'group', 'lease',
                 'members', 'request', 'whole')  # fmt: skip

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
            packed=_pack(
                {
                    'decision': msgspec.structs.replace(decision, provider_ids=b''),
                    'request': self.request,
                }
            ),
            host_set=hashlib.blake2b(ids, digest_size=16).hexdigest(),
            provider_ids=ids,
        )

    def answer(self) -> Answer:
        """The whole answer: members of earlier passes and of this one."""
        done = dict(self.call.done)
        done.update((m.member, m) for m in self.decision.members)
        return Answer(
            request_id=self.request.request_id,
            decision_id=self.decision.id,
            outcome=self.decision.outcome,
            selections=[self._selections(done[i]) for i in sorted(done)],
            reason=self.decision.reason,
            age_seconds=round(self.decision.age_seconds, 3),
            dry_run=self.request.dry_run,
        )

    def _selections(self, member: MemberDecision) -> list[Selection]:
        chosen = member.selection
        if chosen is None:
            return []
        claims_nothing = self.claims_nothing
        return [
            msgspec.structs.replace(
                chosen,
                lease_seconds=0.0 if claims_nothing else self.lease,
                claim_id=None
                if claims_nothing
                else claims.claim_id(self.request.request_id, self.call.attempt, member.member),
            ),
            *member.alternates,
        ]

    def draft(self, owner: str, now: float) -> RequestDraft:
        """What the store is asked for.

        :param now: monotonic time, for what is left of the budget
        """
        request = self.request
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
            budget_seconds=max(1.0, self.call.deadline - now),
            lease_seconds=self.lease,
            project_id=request.spec.project_id,
            claims=self.drafts,
            group=self.group,
            answer=_pack(self.final_answer),
            decision=self.record(),
        )

    def providers(self, accepted: list[int]) -> set[int]:
        """The providers that the accepted claims touch."""
        return {pid for i in accepted for pid in self.drafts[i].claim.allocations}

    def keep(self, fate: RequestFate) -> None:
        """Note what a commit that did not complete the request has claimed."""
        call = self.call
        by_member = {m.member: m for m in self.decision.members}
        accepted = {self.members[i] for i in fate.accepted}
        for member in accepted:
            call.done[member] = by_member[member]
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


class Planner:
    """Places calls with one pipeline and one configuration."""

    def __init__(
        self, store: Store, cache: HostCache, pipeline: Pipeline, settings: Settings
    ) -> None:
        self.pipeline = pipeline
        self._store = store
        self._cache = cache
        self._settings = settings
        self._worker = cache.log.worker if cache.log else settings.worker
        self._groups: dict[str, tuple[str, int]] = {}
        self._serial = 0

    def plan(self, call: Call) -> Plan:
        """Place (some of) the members of ``call`` that are not claimed yet.

        The picks stay on the working table; a decision that is not placed
        leaves none.

        :raises NotFound: the request names a group without a rule, and none is known
        """
        table = self._cache.working
        request = self._with_rule(call.request)
        group = _swap(table, request)
        many = len(call.todo) if group else self._settings.claims_per_commit
        self._serial += 1
        position = self._cache.position
        decision = place(
            table,
            request,
            self.pipeline,
            seed=_seed(request.request_id, call.tries),
            decision_id=derived_id(
                'decision', request.request_id, self._worker, self._serial, call.tries
            ),
            members=call.todo[:many],
            attempt=call.attempt,
            worker=self._worker,
        )
        decision = msgspec.structs.replace(
            decision,
            table_seq=position,
            attempts=call.tries,
            conflicts=list(call.conflicts),
            age_seconds=max(decision.age_seconds, self._cache.age_seconds),
            project_id=request.spec.project_id,
        )
        if not decision.is_placed:
            decision = self._room_or_unknown(table, decision)
        plan = Plan(call, request, decision, call.todo[:many], group, self._lease(request))
        if decision.is_placed and not plan.claims_nothing:
            plan.drafts = [_draft(table, plan, m) for m in decision.members]
            self._cache.note(table_log.Picks(True, _picks(plan, set())))
        return plan

    def undo(self, plan: Plan, keep: list[int] | None = None) -> None:
        """Take the picks back from the table, those at ``keep`` excepted."""
        picks = _picks(plan, set(keep or ()))
        if picks:
            self._cache.do(table_log.Picks(False, picks))

    def refresh_groups(self, plans: list[Plan], result: CommitResult) -> None:
        """Read back the groups whose swap failed, then the hosts of their members."""
        changed = {
            plan.group.uuid
            for plan, fate in zip(plans, result.fates, strict=True)
            if fate.fate is Fate.GROUP_CHANGED and plan.group
        }
        try:
            # Generations first: members read after them can only be newer, and
            # then the next swap fails again instead of missing a member.
            generations = {}
            for uuid in sorted(changed):
                group = self._store.load_group(uuid)
                generations[uuid] = group.generation if group else 0
            self._cache.fetch()
        except exceptions.Unavailable:
            return
        self._cache.fold()
        self._cache.set_groups(generations)

    @staticmethod
    def stored(packed: bytes) -> Answer:
        """An answer as it was stored with its request."""
        return _unpack_answer(packed)

    # -- parts ---------------------------------------------------------------
    def _with_rule(self, request: SelectDestinations) -> SelectDestinations:
        group = request.spec.group
        if group is None or group.policy is not None:
            return request
        rule = self._groups.get(group.uuid)
        if rule is None:
            known = self._store.load_group(group.uuid)
            if known is None:
                raise exceptions.NotFound(
                    f'request.spec.group: server group {group.uuid!r} is not known here; '
                    'name its policy, or create it first',
                    kind='server group',
                    name=group.uuid,
                )
            if len(self._groups) >= GROUPS_REMEMBERED:
                self._groups.clear()
            rule = self._groups[group.uuid] = (known.policy, known.max_per_host)
        ruled = msgspec.convert(
            {
                'uuid': group.uuid,
                'policy': rule[0],
                'max_per_host': rule[1],
                'members': group.members,
                'hosts': group.hosts,
            },
            type(group),
        )
        return msgspec.structs.replace(
            request, spec=msgspec.structs.replace(request.spec, group=ruled)
        )

    def _lease(self, request: SelectDestinations) -> float:
        wanted = request.lease_seconds or self._settings.lease_seconds
        if request.lifecycle is Lifecycle.HOST:
            return min(float(wanted), self._settings.lease_seconds_max)
        return float(wanted)

    def _room_or_unknown(self, table: HostTable, decision: Decision) -> Decision:
        """ "No room" and "do not know" are different answers."""
        problem = ''
        age = self._cache.age_seconds
        if age > self._settings.unknown_after_seconds:
            problem = f'the table is {age:.0f} s old and the database does not answer'
        elif len(table) and table.count_stale(self._settings.stale_after_seconds) == len(table):
            problem = (
                f'none of {len(table)} hosts has reported within '
                f'{self._settings.stale_after_seconds:.0f} s'
            )
        if not problem:
            return decision
        return msgspec.structs.replace(decision, outcome=Outcome.UNKNOWN, reason=problem)


def _swap(table: HostTable, request: SelectDestinations) -> GroupSwap | None:
    group = request.spec.group
    if group is None or group.policy is None or not group.policy.is_hard:
        return None
    return GroupSwap(
        uuid=group.uuid,
        generation=table.group_generation(group.uuid),
        policy=group.policy.value,
        max_per_host=group.max_per_host,
    )


def _picks(plan: Plan, keep: set[int]) -> list[tuple[dict[str, int], Placed]]:
    """The picks of a plan as they stand on the table, those at ``keep`` left out."""
    amounts = plan.request.spec.resources
    return [
        (amounts, Placed(claim.id, claim.consumer, claim.provider_id, claim.group))
        for i, claim in enumerate(draft.claim for draft in plan.drafts)
        if i not in keep
    ]


def _draft(table: HostTable, plan: Plan, member: MemberDecision) -> ClaimDraft:
    """What the elected host's ``instance_claim`` or ``resize_claim`` says, to be committed."""
    chosen = member.selection
    assert chosen is not None, 'a placed decision has a selection for every member'
    host = table.host_state(chosen.host)
    claim = host.claim(plan.request, member.member, plan.call.attempt)
    if chosen.layout is None:
        return ClaimDraft(claim=claim)
    return ClaimDraft(
        claim=msgspec.structs.replace(claim, layout=chosen.layout), generation=host.generation
    )


def _seed(request_id: str, tries: int) -> int:
    """The tie-break seed: the same for a replay, another for another try."""
    body = f'{request_id} {tries}'.encode()
    return int.from_bytes(hashlib.blake2b(body, digest_size=4).digest(), 'big')
