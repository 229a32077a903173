# SPDX-License-Identifier: Apache-2.0
"""place(): filter, weigh, pick, apply the pick to the table; then the next member.

Pure and deterministic: the same table, request, pipeline and seed give the same decision.  A failed
request leaves the table as it was; a placed one leaves its picks on it, until ``undo_decision``,
or until the committed state replaces them.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from gantt import exceptions
from gantt.core.filters.group_policy import GroupPolicyFilter
from gantt.core.filters.rules import RulesFilter
from gantt.core.group_policies import levels
from gantt.core.messages.policy_set import PolicySet
from gantt.core.messages.request import RequestKind, RequestSpec, SelectDestinations
from gantt.core.pause import AskPause, Interrupted, Pause
from gantt.core.placement import bound_members, older_claims, verdict
from gantt.core.placement.pipeline import Pipeline
from gantt.core.placement.run import MEMBERS_BY_STEPS_MAX, NO_HELD_SHARES, HostDraw, Run
from gantt.core.records.decision import Contradiction, Decision, Outcome
from gantt.core.records.members import MemberColumns, placed_of
from gantt.core.table.facts import LOCATION_PARTS
from gantt.core.table.host_table import HostTable
from gantt.core.table.pools import Shares

#: Hosts named in the line of a placed request.
_NAMED_HOSTS_MAX = 4


class LastRequest:
    """State of the last request: an equal request continues from there.

    For requests that are planned in a row on a table that nothing else changes meanwhile.
    """

    def __init__(self) -> None:
        self._run: Run | None = None
        self._state: tuple[object, ...] = ()

    def before(
        self, table: HostTable, request: SelectDestinations, pipeline: Pipeline
    ) -> Run | None:
        """Return the run that this request continues from; None: it starts its own."""
        before, self._run = self._run, None
        is_same = before is not None and self._state == _state(table, pipeline)
        return before if before and is_same and before.may_go_on(request) else None

    def forget(self) -> None:
        """Drop the stored run: the table changes."""
        self._run = None

    def note(self, run: Run) -> None:
        """Store a run that has ended with its picks on the table."""
        self._run = run
        self._state = _state(run.table, run.pipeline)


def _state(table: HostTable, pipeline: Pipeline) -> tuple[object, ...]:
    distrusted = len(pipeline.distrusted)
    state = table.seq, table.facts_seq, table.now, table.default_zone
    return id(table), *state, id(pipeline), distrusted


def place(
    table: HostTable,
    request: SelectDestinations,
    pipeline: Pipeline,
    *,
    seed: int,
    decision_id: str,
    members: Sequence[int] | None = None,
    attempt: int = 1,
    worker: str = '',
    spread: int = 1,
    pause: AskPause | None = None,
    seen: LastRequest | None = None,
    held: Mapping[str, Shares] = NO_HELD_SHARES,
) -> Decision:
    """Choose a host for each of ``members`` (indices into the consumers; None: all).

    All or none: where one member finds no host, amounts taken for those before it are given back
    and no selection is returned.

    :param pause: called before each member but the first, and once for some of those that are
        alike, and now and then in a long search; returns how to go on.  Where it ends the pass, the
        decision is about the members before, and ``planned`` is their number
    :param spread: pick among so many best at least, and all that equal the best one, whatever the
        setting of the pipeline: where races for the best one are lost
    :param seen: state of the requests planned before on this table; the outcome is the same without
        it
    :param held: consumer -> pool -> class -> amount that members of a move hold already
    :raises InvalidMessage: the request names a group without its rule, or has a value that a filter
        does not understand
    """
    table, pipeline = _of_kind(request.spec.kind, table, pipeline)
    _check(request.spec, pipeline)
    pipeline.set_site_names(table)
    before = None if seen is None else seen.before(table, request, pipeline)
    run = Run(table, request, pipeline, HostDraw(seed, spread), attempt, before, held, pause)
    to_place: Sequence[int] = range(len(request.consumers)) if members is None else members
    seq, hosts = table.seq, len(run.filter_run.verdict)
    outcome, reason, cause, contradiction = Outcome.PLACED, '', '', None
    nearest: list[str] = []
    silent: list[str] = []
    try:
        grouped = request.spec.group is not None
        no_claims = older_claims.NO_OLDER_CLAIMS
        with older_claims.without_older_claims(table, request, attempt) if grouped else no_claims:
            gathering = bound_members.gathering_domains(run, to_place) if grouped else None
            outcome, position = _place_each(run, to_place, before is not None)
            run, outcome, position = _improved_run(run, to_place, (outcome, position), gathering)
            if outcome is Outcome.NO_VALID_HOST:
                (reason, cause), nearest, silent, contradiction = _why_not(run, to_place, position)
            elif outcome is Outcome.PLACED:
                to_place = to_place[:position]
                run.add_alternates()
        second_run, outcome = _retry_in_one_domain(run, to_place, outcome)
        if second_run is not None:
            run, cause, nearest, silent, contradiction = second_run, '', [], [], None
        if outcome is Outcome.EXPIRED:
            reason = f'its budget ended before all of {len(to_place)} members were planned'
        if outcome is Outcome.PLACED:
            reason = _placed_line(run, hosts)
        elif outcome is Outcome.NO_VALID_HOST and run.tree_choice is not None:
            problem = run.tree_choice.problem()
            if problem:  # "no room" and "unknown" are different outcomes
                outcome, reason = Outcome.UNKNOWN, problem
    except exceptions.PluginError as e:
        outcome, reason = Outcome.FAILED, e.message
    except BaseException:
        run.remove_picks()
        raise
    _finish_run(run, outcome is Outcome.PLACED, seen)
    return Decision(
        id=decision_id,
        request_id=request.request_id,
        outcome=outcome,
        hosts=hosts,
        members=run.members,
        weighers=run.filter_run.weighing.names,
        seed=seed,
        spread=spread,
        table_seq=seq,
        age_seconds=run.age_seconds,
        provider_ids=table.provider_ids_bytes(),
        config_digest=pipeline.digest,
        relaxed=[*_given_up(run.members), *run.filter_run.skipped],
        added=run.filter_run.added,
        reason=reason,
        cause=cause,
        nearest=nearest,
        silent=silent,
        contradiction=contradiction,
        worker=worker,
        created_at=table.now,
        project_id=request.spec.project_id,
        attempt=attempt,
        planned=len(to_place),
        held={c: {p: dict(of) for p, of in shares.items()} for c, shares in held.items()},
    )


def _of_kind(kind: RequestKind, table: HostTable, pipeline: Pipeline) -> tuple[HostTable, Pipeline]:
    """Return the table and the pipeline for requests of a kind."""
    if kind is RequestKind.HOST:
        return table, pipeline
    return table.of_kind(kind), pipeline.of_kind(kind)


def _finish_run(run: Run, is_placed: bool, seen: LastRequest | None) -> None:
    """Settle the table after a run, and record the hosts of the decision."""
    if not is_placed:
        run.withdraw()
    run.name_hosts()
    if run.request.dry_run:
        run.remove_picks()
    elif seen is not None and is_placed:
        seen.note(run)


def _why_not(
    run: Run, members: Sequence[int], position: int
) -> tuple[tuple[str, str], list[str], list[str], Contradiction | None]:
    """Return the verdict where a member has no place, nearest changes, and contradicting rules.

    The verdict comes with its cause.
    """
    reason, cause = run.failure(len(members))
    lines, silent = verdict.nearest_changes(
        run.filter_run, run.request.consumers[members[position]]
    )
    contradiction = run.filter_run.contradiction()
    if contradiction is not None:
        reason = f'{reason}; {contradiction.line}'
    nearest = [*verdict.fewer_members_line(len(members), position), *lines]
    return (reason, cause), nearest, silent, contradiction


def _place_each(run: Run, members: Sequence[int], goes_on: bool = False) -> tuple[Outcome, int]:
    """Place one member after the other; return the outcome, and how many have a place.

    :param goes_on: the first may be alike to the last one of another request
    """
    position, pause = 0, run.pause
    while position < len(members):
        directive = Pause.GO_ON if pause is None or not position else pause(False)
        if directive is Pause.ENOUGH:
            return Outcome.PLACED, position
        if directive is Pause.OVER:
            return Outcome.EXPIRED, position
        if directive is Pause.REEVALUATE:
            run.reset_evaluation()
        alike = (
            run.go_on(members[position : position + MEMBERS_BY_STEPS_MAX])
            if position or goes_on
            else 0
        )
        try:
            if not alike and not run.place(members[position], position == len(members) - 1):
                return Outcome.NO_VALID_HOST, position
        except Interrupted as e:
            if e.directive is Pause.OVER:
                return Outcome.EXPIRED, position
            run.reset_evaluation()
            continue
        position += alike or 1
    return Outcome.PLACED, len(members)


def _retry_in_one_domain(
    run: Run, members: Sequence[int], outcome: Outcome
) -> tuple[Run | None, Outcome]:
    """Return a run that places members that the first could not, and the outcome."""
    if outcome is not Outcome.NO_VALID_HOST:
        return None, outcome
    tries = _FurtherRuns()
    second_run = bound_members.place_in_one_domain(run, members, tries.place)
    if second_run is not None:
        return second_run, Outcome.PLACED
    return None, Outcome.EXPIRED if tries.last[0] is Outcome.EXPIRED else outcome


def _improved_run(
    run: Run,
    members: Sequence[int],
    ended: tuple[Outcome, int],
    gathering: bound_members.GatheringDomains | None,
) -> tuple[Run, Outcome, int]:
    """Return the run, or a better one with more lookahead, and its outcome as of ``_place_each``.

    Only policies of a group can be met better by another choice of hosts.
    """
    group = run.request.spec.group
    if group is None or group.policies is None:
        return (run, *ended)
    tries = _FurtherRuns()
    searches = [
        partial(bound_members.place_with_fewer_steps_given_up, members=members, place=tries.place)
    ]
    if gathering is not None:
        searches.append(
            partial(
                bound_members.place_gathered,
                members=members,
                place=tries.place,
                gathering=gathering,
            )
        )
    for search in searches:
        if ended == (Outcome.PLACED, len(members)) and not run.is_cut_short:
            improved = search(run)
            if improved is not run:
                run, ended = improved, tries.last
    return (run, *ended)


class _FurtherRuns:
    """Further runs of a request.

    :ivar last: outcome of the last one, and how many members have a place by it
    """

    def __init__(self) -> None:
        self.last = Outcome.NO_VALID_HOST, 0

    def place(self, run: Run, members: Sequence[int]) -> int:
        """Place members by a run, as ``bound_members.Place``."""
        self.last = _place_each(run, members)
        return bound_members.OUT_OF_TIME if self.last[0] is Outcome.EXPIRED else self.last[1]


def undo_decision(table: HostTable, decision: Decision, request: SelectDestinations) -> None:
    """Remove the picks of a decision from the table; may be repeated."""
    for placed in placed_of(decision):
        if placed.claim_id is not None:
            table.remove_pick(placed.host.provider_id, request.spec.resources, placed.claim_id)


def _placed_line(run: Run, hosts: int) -> str:
    """Return a line as ``placed on cmp-4; 31/412 hosts fit``."""
    evaluations, rows = run.members.evaluations, run.chosen
    names = [run.table.names[row] for row in dict.fromkeys(rows)]
    and_more = f' and {len(names) - _NAMED_HOSTS_MAX} more' if len(names) > _NAMED_HOSTS_MAX else ''
    count = f'{len(rows)} members ' if len(rows) > 1 else ''
    fit, kind = evaluations[-1].survivors if evaluations else 0, run.request.spec.kind.value
    shown_names = ', '.join(names[:_NAMED_HOSTS_MAX])
    line = f'{count}placed on {shown_names}{and_more}; {fit}/{hosts} {kind}s fit'
    return f'{line}; its budget ended before a better place was found' if run.is_cut_short else line


def _given_up(members: MemberColumns) -> list[str]:
    """Return rules that were given up, one line for each different set."""
    members_by_rules: dict[tuple[int, tuple[str, ...]], int] = {}
    for evaluation in members.evaluations:
        if evaluation.given_up and not members.is_withdrawn:
            key = (evaluation.level, tuple(evaluation.given_up))
            members_by_rules[key] = members_by_rules.get(key, 0) + len(evaluation.members)
    lines = []
    for (level, rules), count in members_by_rules.items():
        scope = f'for {count} members ' if len(members) > 1 else ''
        step = f'up to step {level}: ' if level else ''
        lines.append(f'{scope}{step}{"; ".join(rules)}')
    return lines


def _check(spec: RequestSpec, pipeline: Pipeline) -> None:
    if spec.group is not None and not spec.group.is_ruled:
        raise exceptions.InvalidMessage(
            field='request.spec.group.policy',
            problem='expected the policy of the group, as none is stored',
        )
    if spec.group is not None and spec.group.policies is not None:
        _check_policies(spec.group.policies, pipeline)
    for rule in pipeline.request_checkers:
        rule.check_request(spec)


def _check_policies(policies: PolicySet, pipeline: Pipeline) -> None:
    """Check that enabled filters enforce the policies.

    :raises InvalidMessage: no enabled filter reads them
    """
    field = 'request.spec.group.policies'
    levels.check_levels(
        policies.full_policies, pipeline.settings.location_parts or LOCATION_PARTS, field
    )
    needs = [
        (policies.is_hard, 'hard policies', GroupPolicyFilter),
        (policies.has_steps, 'policies that are given up in order', RulesFilter),
    ]
    for needed, title, kind in needs:
        if needed and not any(isinstance(rule, kind) for rule in pipeline.filters):
            raise exceptions.InvalidMessage(
                field=field,
                problem=f'expected none of {title}: the filter {kind.__name__} is not enabled',
            )
