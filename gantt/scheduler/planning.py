# SPDX-License-Identifier: Apache-2.0
"""From a call to a plan: place it, and say it as claims, answer and record.

A plan is one pass over (some of) the members of a request.  Its picks stand on
the working table until ``undo``; its draft is what the store is asked for.
"""

import contextlib

import msgspec

from gantt import exceptions
from gantt.core.claim import Claim
from gantt.core.commit import ClaimDraft, CommitResult, Fate, GroupSwap
from gantt.core.decision import Answer, Decision, MemberDecision, Outcome
from gantt.core.host import Placed
from gantt.core.host_table import HostTable
from gantt.core.message import derived_id
from gantt.core.pipeline import Pipeline, place
from gantt.core.request import Lifecycle, SelectDestinations
from gantt.core.topology.layout import unsettled
from gantt.scheduler import table_log
from gantt.scheduler.admission import Call
from gantt.scheduler.contention import SPREAD_MOST, Contention
from gantt.scheduler.host_cache import HostCache
from gantt.scheduler.ordering import Ordering
from gantt.scheduler.plan import Plan, seed_of
from gantt.scheduler.ports import Store
from gantt.scheduler.settings import Settings

_unpack_answer = msgspec.msgpack.Decoder(Answer).decode

GROUPS_REMEMBERED = 10_000
#: A request that lost races picks among 2, 4, 8 ... times as many as others do, at most.
OWN_SPREAD_MOST = 16


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
        self.contention = Contention(cache.clock)
        self._ordering = Ordering(cache.clock)

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
        if self._settings.order_by_cost:
            self.pipeline = self._ordering.follow(table, request, self.pipeline)
        decision = place(
            table,
            request,
            self.pipeline,
            seed=seed_of(request.request_id, call.tries),
            decision_id=derived_id(
                'decision', request.request_id, self._worker, self._serial, call.tries
            ),
            members=call.todo[:many],
            attempt=call.attempt,
            worker=self._worker,
            spread=self._spread(call),
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
        """Take over the groups of a batch, and read those back whose swap failed.

        A generation comes to the table only with all hosts that its members are on,
        and those that they were on as far as is known here.
        """
        changed = {
            plan.group.uuid
            for plan, fate in zip(plans, result.fates, strict=True)
            if fate.fate is Fate.GROUP_CHANGED and plan.group
        }
        if not result.freed:
            # Who is gone from there only the feed says; until then the next swap has to fail.
            self._cache.set_groups({u: g for u, g in result.groups.items() if u not in changed})
        if not changed:
            return
        placed = self._cache.working.placed
        were = {pid for uuid in changed for pid in placed.in_group(uuid)}
        try:
            generations, hosts = self._store.read_groups(changed, were)
        except exceptions.Unavailable:
            return
        self._cache.offer(hosts)
        self._cache.fold()
        self._cache.set_groups(generations)

    def refresh_layouts(self, plans: list[Plan], result: CommitResult) -> None:
        """Read the feed where a layout was refused: it was planned beside claims unknown here.

        What a commit reads back of a host is its usage, not who has which of its cores.
        """
        refused = any(
            draft.claim.layout is not None and i not in fate.accepted
            for plan, fate in zip(plans, result.fates, strict=True)
            for i, draft in enumerate(plan.drafts)
            if fate.fate in (Fate.DROPPED, Fate.PARTIAL)
        )
        if refused:
            with contextlib.suppress(exceptions.Unavailable):
                self._cache.fetch()

    @staticmethod
    def stored(packed: bytes) -> Answer:
        """An answer as it was stored with its request."""
        return _unpack_answer(packed)

    @staticmethod
    def packed(answer: Answer) -> bytes:
        """An answer as it is stored."""
        return msgspec.msgpack.encode(answer)

    # -- parts ---------------------------------------------------------------
    def _spread(self, call: Call) -> int:
        """Among how many best to pick: by what all have lost of late, and this one itself."""
        own = min(2 ** len(call.conflicts), OWN_SPREAD_MOST)
        return min(own * self.contention.spread, SPREAD_MOST)

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
        (amounts, _placed(claim))
        for i, claim in enumerate(draft.claim for draft in plan.drafts)
        if i not in keep
    ]


def _placed(claim: Claim) -> Placed:
    layout = unsettled(claim.layout)
    host, group = claim.provider_id, claim.group
    return Placed(claim.id, claim.consumer, host, group, layout, claim.image, claim.flavor)


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
