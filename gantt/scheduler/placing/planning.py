# SPDX-License-Identifier: Apache-2.0
"""From a call to a plan: place it, and say it as claims, answer and record.

A plan is one pass over (some of) the members of a request.  Its picks stand on
the working table until ``undo`` or ``apply_commit``; its draft is what the store is asked for.
"""

import contextlib
import functools
import hashlib
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

import msgspec

from gantt import exceptions
from gantt.core.claims.claim import longest
from gantt.core.claims.commit import (
    ClaimColumns,
    CommitResult,
    CommitStatus,
    DecisionRecord,
    GroupSwap,
    RefusalKind,
    RequestDraft,
    RequestOutcome,
)
from gantt.core.claims.quota import Excess
from gantt.core.claims.request_state import seed_of
from gantt.core.messages.base import derived_id
from gantt.core.messages.request import (
    Lifecycle,
    Policy,
    Purpose,
    RequestKind,
    SelectDestinations,
)
from gantt.core.placement.pipeline import Pipeline
from gantt.core.placement.place import Pause, Seen, place
from gantt.core.records import decision_codec
from gantt.core.records.decision import (
    Answer,
    Decision,
    FilterCount,
    Outcome,
    Selection,
)
from gantt.core.records.members import (
    AnswerReference,
    MemberColumns,
    answer_of,
    pack,
    selections_of,
)
from gantt.core.resources import group_rule
from gantt.core.resources.group_rule import GroupRule
from gantt.core.table.host_table import HostTable
from gantt.scheduler import table_log
from gantt.scheduler.host_cache import HostCache
from gantt.scheduler.placing import drafts
from gantt.scheduler.placing.admission import PendingRequest
from gantt.scheduler.placing.contention import SPREAD_MOST, Contention
from gantt.scheduler.ports import Recorder, Store
from gantt.scheduler.settings import SchedulerSettings

LOG = logging.getLogger(__name__)
STEP_WRONG = (
    'says wrongly what a pick adds to its raw value (its step): from now on it is asked for each '
    'member, which takes longer. See its conformance test, gantt.testing.conformance'
)
#: Who finds a request begun by another worker waits for so long since that one's last pass:
#: passes of one that lives follow each other at once.
BEGUN_SECONDS = 10.0
#: A request that lost races picks among 2, 4, 8 ... times as many as others do, at most.
OWN_SPREAD_MOST = 16


#: A refusal of these says that what is known here of a host or a pool is not so any more.
FACTS_CHANGED = (RefusalKind.UNITS, RefusalKind.APART)
#: The claims of a plan that makes none.
NOTHING = ClaimColumns()


class Done(NamedTuple):
    """What the answer says of a member that is claimed.

    :ivar selections: the chosen host, then its alternates
    :ivar level: of the soft rules that gave way, the highest
    :ivar given_up: these rules
    """

    selections: list[Selection]
    level: int
    given_up: list[str]


class Plan:
    """One pass of a call.

    :ivar request: the call's request, its group's rule filled in
    :ivar members: the members of this pass, in order
    :ivar drafts: their claims, in the same order
    :ivar claims_nothing: a dry run, or a rebuild on the host where the consumer is
    :ivar final_answer: the whole answer, valid where the draft completes the request
    """

    __slots__ = (
        'call',
        'claims_nothing',
        'completes',
        'decision',
        'drafts',
        'final_answer',
        'group',
        'is_placed',
        'lease',
        'members',
        'request',
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
    ) -> None:
        self.call = call
        self.request = request
        self.decision = decision
        self.members = members
        self.group = group
        self.lease = lease
        self.is_placed = decision.outcome is Outcome.PLACED
        self.claims_nothing = request.dry_run or request.spec.purpose is Purpose.REBUILD
        self.whole = group is not None and len(members) > 1
        self.completes = len(members) == len(call.attempt.todo)
        self.drafts = NOTHING
        self.final_answer = Answer(
            request_id=request.request_id, decision_id=decision.id, outcome=decision.outcome
        )

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
    def removed(self) -> list[FilterCount]:
        """The filters that removed hosts for the member that found none."""
        return [
            rule for member in self.decision.members[-1:] for rule in member.filters if rule.removed
        ]

    @property
    def age_seconds(self) -> float:
        """The state of the table that it was decided on, as answers show it."""
        return round(self.decision.age_seconds, 3)

    def answer(self) -> Answer:
        """The whole answer: members of earlier passes and of this one."""
        answer = answer_of(
            self.decision,
            self.lease,
            claims=not self.claims_nothing,
            dry_run=self.request.dry_run,
        )
        before = self.call.attempt.done
        if not before:
            return answer
        done = {**before, **self._done()}
        return msgspec.structs.replace(
            answer,
            selections=[done[i].selections for i in sorted(done)],
            level=max((one.level for one in done.values()), default=0),
            given_up=list(dict.fromkeys(rule for one in done.values() for rule in one.given_up)),
        )

    @property
    def looks(self) -> int:
        """How many of its members took a look at all hosts."""
        return len(self.columns.looks) - self.columns.goes_on

    @property
    def columns(self) -> MemberColumns:
        members = self.decision.members
        assert isinstance(members, MemberColumns), 'it was just decided'
        return members

    def _done(self) -> dict[int, Done]:
        """The members of this pass."""
        members = self.columns
        looks = {m: look for look in members.looks for m in look.members}
        selections = selections_of(members, self.lease, claims=not self.claims_nothing)
        return {
            member: Done(of, looks[member].level, looks[member].given_up)
            for member, of in zip(sorted(looks), selections, strict=True)
        }

    def draft(self, owner: str, now: float, *, may_refer: bool) -> RequestDraft:
        """What the store is asked for.

        :param now: monotonic time, for what is left of the budget
        :param may_refer: its answer may be stored as a reference to its decision
        """
        request, attempt = self.request, self.call.attempt
        if self.completes:
            # Made of all members, those of earlier passes too: not once for each pass.
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
            answer=self._stored_answer(may_refer) if self.completes else b'',
            refers=may_refer,
            decision=self.record(),
        )

    def _stored_answer(self, may_refer: bool) -> bytes:
        """The answer for a repeat; by reference where its decision has all members."""
        if may_refer and not self.call.attempt.done:
            return pack(AnswerReference(self.decision.id, self.lease))
        return pack(self.final_answer)

    def providers(self, accepted: Sequence[int] | None = None) -> set[int]:
        """The providers that its claims touch, or the accepted ones of them."""
        return self.drafts.touched(accepted)

    def evitable(self, outcome: RequestOutcome) -> int:
        """How many members lost a race for a host that had others to go to.

        Not those of a group that has changed: that race is for the group.
        """
        if outcome.outcome not in (CommitStatus.PARTIAL, CommitStatus.DROPPED):
            return 0
        taken, spread = set(outcome.accepted), self.decision.spread
        survivors = [look.survivors for look in self.columns.looks for _ in look.members]
        return sum(i not in taken and left > spread for i, left in enumerate(survivors))

    def outcome(self, outcome: RequestOutcome) -> tuple[dict[int, Done], list[str]]:
        """What a commit that did not complete the request has claimed, as ``Attempt.done``.

        :returns: that, and the hosts of the members that lost a race
        """
        accepted = {self.members[i] for i in outcome.accepted}
        done = self._done() if accepted else {}
        made = {member: done[member] for member in accepted}
        return made, [one.host.host for one in self.columns.placed() if one.member not in accepted]


@functools.lru_cache(maxsize=8)
def _digest_of(ids: bytes) -> str:
    """The digest of a list of hosts, the very same object until a host comes or goes."""
    return hashlib.blake2b(ids, digest_size=16).hexdigest()


class Planner:
    """Lays plans over the working table, and takes what is not committed back from it."""

    def __init__(self, store: Store, cache: HostCache, settings: SchedulerSettings) -> None:
        self._store = store
        self._cache = cache
        self._settings = settings
        self._worker = cache.log.worker if cache.log else settings.worker
        self._serial = 0
        self.contention = Contention(cache.clock)
        self._seen = Seen()
        self._distrusted: set[str] = set()  # weighers, as far as that was logged

    def plan(
        self,
        call: PendingRequest,
        pipeline: Pipeline,
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
        attempt = call.attempt
        many = len(attempt.todo) if call.is_whole else self._settings.claims_per_commit
        tries, position, spread = attempt.tries, self._cache.position, self._spread(call)
        decision = place(
            table,
            request,
            pipeline,
            seed=seed_of(request.request_id, tries),
            decision_id=self._decision_id(request.request_id, tries),
            members=attempt.todo[:many],
            attempt=attempt.number,
            worker=self._worker,
            spread=spread,
            pause=pause,
            seen=self._seen,
            held=drafts.held(self._store, table, request),
        )
        decision = msgspec.structs.replace(
            decision,
            table_seq=position,
            attempts=tries,
            conflicts=list(attempt.conflicts),
            age_seconds=max(decision.age_seconds, self._cache.age_seconds),
            project_id=request.spec.project_id,
            zones=list(call.zones),
        )
        if decision.outcome is Outcome.NO_VALID_HOST and request.spec.kind is RequestKind.HOST:
            decision = self._room_or_unknown(table, decision)
        members = list(attempt.todo[: decision.planned])
        plan = Plan(call, request, decision, members, group, self._lease(request))
        if plan.is_placed and not plan.claims_nothing:
            plan.drafts = drafts.claims_of(table, request, attempt.number, decision)
            self._cache.note_picks(plan.drafts)
        return plan

    def refused(self, call: PendingRequest, pipeline: Pipeline, excess: Excess) -> DecisionRecord:
        """The decision about a call that a quota ends: no host was looked at."""
        request, tries = call.request, call.attempt.tries
        decision = Decision(
            id=self._decision_id(request.request_id, tries),
            request_id=request.request_id,
            outcome=Outcome.REFUSED,
            hosts=0,
            members=[],
            table_seq=self._cache.position,
            age_seconds=self._cache.age_seconds,
            config_digest=pipeline.digest,
            attempts=tries,
            reason=excess.line,
            cause=excess.cause,
            worker=self._worker,
            created_at=self._cache.working.now,
            project_id=request.spec.project_id,
            attempt=call.attempt.number,
        )
        return Plan(call, request, decision, [], None, 0.0).record()

    def _decision_id(self, request_id: str, tries: int) -> str:
        self._serial += 1
        return derived_id('decision', request_id, self._worker, self._serial, tries)

    def drafts(self, plans: Iterable[Plan], owner: str, now: float) -> list[RequestDraft]:
        """What the store is asked for, see ``Plan.draft``."""
        may_refer = self._store.may_refer
        return [plan.draft(owner, now, may_refer=may_refer) for plan in plans]

    # -- the table -----------------------------------------------------------
    def undo(self, plan: Plan, keep: Collection[int] = ()) -> None:
        """Take the picks back from the table, those at ``keep`` excepted."""
        if len(keep) < len(plan.drafts.ids):
            self._cache.do(table_log.taken_back(plan.drafts, keep))

    def apply_commit(self, plans: list[Plan], result: CommitResult) -> None:
        """Bring the table in line with a commit: nothing else writes what one has changed.

        Afterwards the table shows, of all that these plans had laid over it, what was committed
        and nothing else; it never shows more room, or an older group, than it may rely on:

        - picks that were not accepted are gone, before any host is settled;
        - a host that these claims are on, and none has left, is settled as written by us; of
          any other host that was read back only the usage is taken over, the feed has the rest;
        - the generation of a group comes to the table only with all hosts that its members are
          on, and were on as far as is known here; else its next commit fails and reads it.
        """
        self._seen.forget()
        written, claims = set[int](), set[str]()
        for plan, outcome in zip(plans, result.outcomes, strict=True):
            self.undo(plan, outcome.accepted)
            written |= plan.providers(outcome.accepted)
            claims.update(map(plan.drafts.ids.__getitem__, outcome.accepted))
        self._cache.commit_applied(
            result.hosts, written - set(result.freed), claims, result.stepped, result.pools
        )
        if result.groups or any(plan.group is not None for plan in plans):
            self._apply_groups(plans, result)
        # What a commit reads back of a host is its usage, not who has which of its cores, and not
        # its units, nor which pools serve it.
        if any(outcome.refused in FACTS_CHANGED for outcome in result.outcomes) or any(
            plan.drafts.kinds[kind].claim.layout is not None and i not in outcome.accepted
            for plan, outcome in zip(plans, result.outcomes, strict=True)
            if outcome.outcome in (CommitStatus.DROPPED, CommitStatus.PARTIAL)
            for i, kind in enumerate(plan.drafts.kind)
        ):
            # It was planned beside claims, or on facts, that are not what is known here.
            with contextlib.suppress(exceptions.Unavailable):
                self._cache.fetch_news()

    def note_races(self, plans: list[Plan], result: CommitResult) -> bool:
        """Pick among more hosts in the next batch where this one lost races, and fewer else.

        :returns: whether that changes among how many
        """
        return self.contention.note(
            placed=sum(len(outcome.accepted) for outcome in result.outcomes),
            lost=sum(plan.evitable(f) for plan, f in zip(plans, result.outcomes, strict=True)),
        )

    def _apply_groups(self, plans: list[Plan], result: CommitResult) -> None:
        """Take over the groups of a batch, and read those back whose swap failed."""
        changed: set[str] = set()
        for plan, outcome in zip(plans, result.outcomes, strict=True):
            group = plan.group
            if group is None:
                continue
            if outcome.outcome is CommitStatus.GROUP_CHANGED:
                changed.add(group.uuid)
            elif group.makes and outcome.outcome in (CommitStatus.PLACED, CommitStatus.PARTIAL):
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

    def count_planned(self, plans: list[Plan], pipeline: Pipeline, recorder: Recorder) -> None:
        """Count the two ways of planning and the search for layouts; report wrong steps."""
        looked = sum(plan.looks for plan in plans)
        members = sum(len(plan.members) for plan in plans)
        recorder.count('gantt_members_planned_total', looked, way='looked')
        recorder.count('gantt_members_planned_total', members - looked, way='alike')
        while pipeline.layout_hosts:
            result, hosts = pipeline.layout_hosts.popitem()
            recorder.count('gantt_layout_hosts_total', hosts, result=result)
        for name in pipeline.distrusted - self._distrusted:
            recorder.count('gantt_steps_wrong_total', weigher=name)
            LOG.error('Weigher %s %s', name, STEP_WRONG)
            self._distrusted.add(name)

    # -- parts ---------------------------------------------------------------
    def _spread(self, call: PendingRequest) -> int:
        """Among how many best to pick: by what all have lost of late, and this one itself."""
        own = min(2 ** len(call.attempt.conflicts), OWN_SPREAD_MOST)
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
