# SPDX-License-Identifier: Apache-2.0
"""From a call to a plan: place it, and say it as claims, answer and record.

A plan is one pass over (some of) the members of a request.  Its picks stand on
the working table until ``undo``; its draft is what the store is asked for.
"""

import contextlib
from collections.abc import Callable, Sequence

import msgspec

from gantt import exceptions
from gantt.core.claims.claim import Claim, longest
from gantt.core.claims.commit import ClaimDraft, CommitResult, DecisionRecord, Fate, GroupSwap
from gantt.core.claims.quota import Excess
from gantt.core.messages.base import derived_id
from gantt.core.messages.layout import unsettled
from gantt.core.messages.request import Lifecycle, Policy, SelectDestinations
from gantt.core.placement.pipeline import Pipeline
from gantt.core.placement.place import Pause, place
from gantt.core.records.decision import Answer, Decision, MemberDecision, Outcome
from gantt.core.resources import group_rule
from gantt.core.resources.group_rule import GroupRule
from gantt.core.resources.host import Placed
from gantt.core.table.host_table import HostTable
from gantt.scheduler import table_log
from gantt.scheduler.host_cache import HostCache
from gantt.scheduler.placing.admission import Call
from gantt.scheduler.placing.contention import SPREAD_MOST, Contention
from gantt.scheduler.placing.ordering import Ordering
from gantt.scheduler.placing.plan import Plan, seed_of
from gantt.scheduler.placing.slices import is_whole
from gantt.scheduler.ports import Store
from gantt.scheduler.settings import Settings

_unpack_answer = msgspec.msgpack.Decoder(Answer).decode

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
        self._serial = 0
        self.contention = Contention(cache.clock)
        self._ordering = Ordering(cache.clock)

    def plan(
        self,
        call: Call,
        pause: Callable[[], Pause] | None = None,
        without: Sequence[str] = (),
    ) -> Plan:
        """Place (some of) the members of ``call`` that are not claimed yet.

        The picks stay on the working table; a decision that is not placed
        leaves none.

        :param pause: see :func:`gantt.core.placement.place.place`
        :param without: names of hosts that it does not get, whatever it asks for
        :raises NotFound: the request names a group without a rule, and none is known
        :raises Refused: it names another rule than the group has
        """
        table = self._cache.working
        request = _ignoring(self._with_rule(call.request), without)
        group = self._swap(request)
        many = len(call.todo) if is_whole(request) else self._settings.claims_per_commit
        self._serial += 1
        position = self._cache.position
        if self._settings.order_by_cost:
            self.pipeline = self._ordering.follow(table, request, self.pipeline)
        decision = place(
            table,
            request,
            self.pipeline,
            seed=seed_of(request.request_id, call.tries),
            decision_id=self._decision_id(call),
            members=call.todo[:many],
            attempt=call.attempt,
            worker=self._worker,
            spread=self._spread(call),
            pause=pause,
        )
        decision = msgspec.structs.replace(
            decision,
            table_seq=position,
            attempts=call.tries,
            conflicts=list(call.conflicts),
            age_seconds=max(decision.age_seconds, self._cache.age_seconds),
            project_id=request.spec.project_id,
        )
        if decision.outcome is Outcome.NO_VALID_HOST:
            decision = self._room_or_unknown(table, decision)
        members = call.todo[: decision.planned]
        plan = Plan(call, request, decision, members, group, self._lease(request))
        if decision.is_placed and not plan.claims_nothing:
            plan.drafts = [_draft(table, plan, m) for m in decision.members]
            self._cache.note(table_log.Picks(True, _picks(plan, set())))
        return plan

    def refused(self, call: Call, excess: Excess) -> DecisionRecord:
        """The decision about a call that a quota ends: no host was looked at."""
        request = call.request
        self._serial += 1
        decision = Decision(
            id=self._decision_id(call),
            request_id=request.request_id,
            outcome=Outcome.REFUSED,
            hosts=0,
            members=[],
            table_seq=self._cache.position,
            age_seconds=self._cache.age_seconds,
            config_digest=self.pipeline.digest,
            attempts=call.tries,
            reason=excess.line,
            cause=excess.cause,
            worker=self._worker,
            created_at=self._cache.working.now,
            project_id=request.spec.project_id,
            attempt=call.attempt,
        )
        return Plan(call, request, decision, [], None, 0.0).record()

    def _decision_id(self, call: Call) -> str:
        request_id = call.request.request_id
        return derived_id('decision', request_id, self._worker, self._serial, call.tries)

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
        for plan, fate in zip(plans, result.fates, strict=True):
            group = plan.group
            if group and group.makes and fate.fate in (Fate.PLACED, Fate.PARTIAL):
                rule = GroupRule(group.policy, group.max_per_host)
                self._cache.set_rules([group.uuid], {group.uuid: rule})
        if not result.freed:
            # Who is gone from there only the feed says; until then the next swap has to fail.
            self._cache.set_groups({u: g for u, g in result.groups.items() if u not in changed})
        if not changed:
            return
        placed = self._cache.working.placed
        were = {pid for uuid in changed for pid in placed.in_group(uuid)}
        known = self._cache.versions
        try:
            rules, hosts = self._store.read_groups(changed, were)
        except exceptions.Unavailable:
            return
        if self._cache.is_behind(hosts, known):
            return  # the table would not take these hosts: the next swap has to fail
        self._cache.offer(hosts)
        self._cache.fold()
        self._cache.set_rules(changed, rules)
        self._cache.set_groups({u: rules[u].generation if u in rules else 0 for u in changed})

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
                self._cache.fetch_news()

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
        """The request with the rule of its group, as far as that is known here."""
        group = request.spec.group
        if group is None:
            return request
        rule = self._cache.rules.get(group.uuid)
        if group.policy is not None:
            if rule is not None:
                group_rule.check(group.uuid, group, rule)
            return request
        if rule is None:
            known = self._store.load_group(group.uuid)
            if known is None:
                raise exceptions.NotFound(
                    f'request.spec.group: server group {group.uuid!r} is not known here; '
                    'name its policy, or create it first',
                    kind='server group',
                    name=group.uuid,
                )
            rule = known.rule
            self._cache.set_rules([group.uuid], {group.uuid: rule})
        ruled = msgspec.structs.replace(
            group, policy=Policy(rule.policy), max_per_host=rule.max_per_host
        )
        return msgspec.structs.replace(
            request, spec=msgspec.structs.replace(request.spec, group=ruled)
        )

    def _swap(self, request: SelectDestinations) -> GroupSwap | None:
        """What the commit compares of the group that a request is planned with."""
        group = request.spec.group
        if group is None or group.policy is None:
            return None
        hard = group.policy.is_hard
        return GroupSwap(
            uuid=group.uuid,
            generation=self._cache.working.group_generation(group.uuid) if hard else None,
            policy=group.policy.value,
            max_per_host=group.max_per_host,
            makes=group.uuid not in self._cache.rules,
        )

    def _lease(self, request: SelectDestinations) -> float:
        """Seconds; bounded for every lifecycle."""
        settings = self._settings
        is_plan = request.lifecycle is Lifecycle.PLAN
        usual = settings.plan_lease_seconds if is_plan else settings.lease_seconds
        most = longest(
            request.lifecycle, settings.lease_seconds_max, settings.plan_lease_seconds_max
        )
        return min(float(request.lease_seconds or usual), most)

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
        elif decision.silent:
            problem = self._unheard(table, decision.silent)
        if not problem:
            return decision
        return msgspec.structs.replace(decision, outcome=Outcome.UNKNOWN, reason=problem)

    def _unheard(self, table: HostTable, names: Sequence[str]) -> str:
        """Why it is not known whether there is room; '' where it is.

        :param names: hosts that fit but for their silence
        """
        down = self._settings.stale_after_seconds
        window = self._cache.look_for_silence(down)
        if window is None:
            return ''
        rows = [row for row in map(table.row_of, names) if row is not None]
        fits = [row for row in rows if window[0] <= table.reported_at[row] <= window[1]]
        if not fits:
            return ''
        return (
            f'{len(fits)} hosts that would fit, such as {table.names[fits[0]]}, fell silent '
            f'together with most others, {table.now - window[1]:.0f} s ago: their reports may '
            'not reach us'
        )


def _ignoring(request: SelectDestinations, hosts: Sequence[str]) -> SelectDestinations:
    """The request, as if it ruled out these hosts as well: a replay finds it so."""
    if not hosts:
        return request
    ignored = list(dict.fromkeys((*request.spec.ignore_hosts, *hosts)))
    spec = msgspec.structs.replace(request.spec, ignore_hosts=ignored)
    return msgspec.structs.replace(request, spec=spec)


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
