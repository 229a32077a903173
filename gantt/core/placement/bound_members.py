# SPDX-License-Identifier: Apache-2.0
"""Placement of members of one request in one domain where all of them fit.

Members are placed one after the other.  Under affinity, Nova's or at any level, the first one
decides for all, and the domain of the host that is best for one need not take the others.  Where
that ends without a place, or with a policy given up, the domains that have room for all are
evaluated alone: these are counted for all hosts at once, so that this is no search.

Members bound by ``near`` to one that has no place yet bind each other to nothing, as several may
come.  They are kept together where they can be, if there is with room for as many more as are to
come, so that each of these is near to all of them.  A member that others are to be near to goes
where there is room for these.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gantt.core.filters.affinity import ServerGroupAffinityFilter
from gantt.core.filters.base import Filter
from gantt.core.filters.group_policy import GroupPolicyFilter
from gantt.core.group_policies.levels import UNKNOWN_DOMAIN
from gantt.core.group_policies.one_member import domains_to_choose, joined_domains, members_to_come
from gantt.core.messages.request import Policy
from gantt.core.placement import capacity, older_claims
from gantt.core.placement.evaluation import FilterRun
from gantt.core.placement.run import Run
from gantt.core.records.decision import PASSED_VERDICT
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.usage import Pick

#: Members placed in further passes, at most; the first pass always runs.  Several passes are
#: needed by rules that count something else than room, as the guests of a host.
REPLACED_MEMBERS_MAX = 256
#: Layouts searched while hosts are counted; beyond it a host counts by amounts alone.
LAYOUT_SEARCHES_MAX = 64
#: In place of the number of placed members: the caller no longer waits.
OUT_OF_TIME = -1
#: Places members by a run, one after the other; returns how many have a place, or ``OUT_OF_TIME``.
PlaceMembers = Callable[[Run, Sequence[int]], int]


def place_in_one_domain(run: Run, members: Sequence[int], place: PlaceMembers) -> Run | None:
    """Return a run with all members in one domain, None where there is none or it is not needed.

    :param run: run of the members; where it has not placed all of them its picks are given back
    :param members: the members
    """
    if run.request.spec.group is None or not run.chosen or len(run.chosen) >= len(members):
        return None
    run.withdraw()
    with older_claims.without_older_claims(run.table, run.request, run.attempt):
        domains, filter_class = _chosen_domains(run)
        if domains is None or len(set(domains[run.chosen].tolist())) > 1:
            return None  # a member placed earlier bound them to it
        return next(_runs_by_domain(run, members, domains, filter_class, place), None)


def place_with_fewer_steps_given_up(run: Run, members: Sequence[int], place: PlaceMembers) -> Run:
    """Return a run that gives up fewer steps; where none does, one as it was.

    :param run: run that has placed all members; kept where the budget ends before another has
    """
    group, given_up = run.request.spec.group, _steps_given_up(run)
    if group is None or group.policies is None or not group.policies.has_steps:
        return run
    if len(members) < 2 or not any(given_up):
        return run
    picks = run.remove_picks()
    levels = domains_to_choose(run.table, run.request.spec, ('hard', 'drop'))
    if levels:
        for attempt in _runs_by_domain(
            run, members, joined_domains(levels), GroupPolicyFilter, place
        ):
            if _steps_given_up(attempt) < given_up:
                return attempt
    return _repeated_run(run, picks, members, place)


class GatheringDomains(NamedTuple):
    """Domains with room for members and the later members that ``near`` binds to these.

    :ivar domains: domain by row; all members are to be in one if they are to be ``together``
    :ivar takers: masks of the hosts with room, the best domains first
    """

    domains: IntArray
    takers: list[BoolArray]
    together: bool

    def are_together(self, rows: Sequence[int]) -> bool:
        """Return whether rows are in one domain, where they are to be together."""
        return not self.together or len(set(self.domains[rows].tolist())) == 1


def gathering_domains(run: Run, members: Sequence[int]) -> GatheringDomains | None:
    """Return the domains to gather in; None: no later member is expected, or none has room.

    :param run: a run that has not begun
    """
    consumer = run.request.consumers[members[0]]
    waits = members_to_come(run.table, run.request.spec, consumer)
    if waits is None or run.requested_rows:  # an order of hosts is the caller's choice
        return None
    # Nothing else is known of later members: each counts as one of these.
    count = len(members)
    rooms = [count + waits.coming, count] if waits.together else [1 + waits.coming]
    takers = [waits.may & _hosts_with_room(run, members, waits.domains, room) for room in rooms]
    takers = [hosts for hosts in takers if hosts.any()]
    return GatheringDomains(waits.domains, takers, waits.together) if takers else None


def place_gathered(
    run: Run, members: Sequence[int], place: PlaceMembers, gathering: GatheringDomains
) -> Run:
    """Return a run that places all where they can wait; where none does, one as it was.

    :param run: run that has placed all members; kept where the budget ends before another has
    """
    if gathering.takers[0][run.chosen].all() and gathering.are_together(run.chosen):
        return run
    picks = run.remove_picks()
    domains, attempt = gathering.domains, run
    for takers in gathering.takers:
        for _ in range(max(1, REPLACED_MEMBERS_MAX // len(members))):
            # Where the previous run chose none of them, a run over all of them finds the best.
            best = next((row for row in attempt.chosen if takers[row]), None)
            is_any = best is None or not gathering.together
            eligible = takers if is_any else takers & (domains == domains[best])
            if not eligible.any():
                break
            attempt = run.new_run()
            attempt.filter_run.keep_to(GroupPolicyFilter, eligible)
            placed = _place_or_remove_picks(attempt, members, place)
            if placed == len(members) and gathering.are_together(attempt.chosen):
                return attempt
            attempt.remove_picks()
            if placed == OUT_OF_TIME:
                break
            if best is not None:
                takers = takers & ~eligible
            elif not attempt.chosen:
                break
    return _repeated_run(run, picks, members, place)


def _repeated_run(
    run: Run, picks: Sequence[Pick], members: Sequence[int], place: PlaceMembers
) -> Run:
    """Return the run repeated, as the table may have changed; itself where time is over."""
    repeated = run.new_run()
    if _place_or_remove_picks(repeated, members, place) != OUT_OF_TIME:
        return repeated
    repeated.remove_picks()
    run.restore_picks(picks)
    return run


def _place_or_remove_picks(run: Run, members: Sequence[int], place: PlaceMembers) -> int:
    """Place members; give back all picks where that raises."""
    try:
        return place(run, members)
    except BaseException:
        run.remove_picks()
        raise


def _steps_given_up(run: Run) -> list[int]:
    """Return the highest step that each member had to give up, the highest first."""
    return sorted(
        (evaluation.level for evaluation in run.members.evaluations for _ in evaluation.members),
        reverse=True,
    )


def _chosen_domains(run: Run) -> tuple[IntArray | None, type[Filter]]:
    """Return the domain by row of which the first member chooses one for all, and its filter.

    None in place of the domains: the first member chooses for itself alone.
    """
    table, spec = run.table, run.request.spec
    if spec.group is not None and spec.group.policy is Policy.AFFINITY:
        decides = capacity.first_member_decides_host(table, spec)
        return np.arange(len(table)) if decides else None, ServerGroupAffinityFilter
    levels = domains_to_choose(table, spec)
    return joined_domains(levels) if levels else None, GroupPolicyFilter


def _runs_by_domain(
    run: Run, members: Sequence[int], domains: IntArray, by: type[Filter], place: PlaceMembers
) -> Iterator[Run]:
    """Yield runs with all members, each in an untried domain; give back picks of the others.

    :param run: run that began with the domain of its first member
    """
    takers, tried = (
        _hosts_with_room(run, members, domains, len(members)),
        domains.item(run.chosen[0]),
    )
    for _ in range(max(1, REPLACED_MEMBERS_MAX // len(members))):
        takers = takers & (domains != tried)
        if not takers.any():
            return
        attempt = run.new_run()
        attempt.filter_run.keep_to(by, takers)
        try:
            placed = place(attempt, members)
            if placed == len(members):
                attempt.add_alternates()
        except BaseException:
            attempt.remove_picks()
            raise
        if placed == len(members):
            yield attempt
        attempt.remove_picks()
        if placed == OUT_OF_TIME or not attempt.chosen:
            return
        tried = domains.item(attempt.chosen[0])


def _hosts_with_room(run: Run, members: Sequence[int], domains: IntArray, many: int) -> BoolArray:
    """Return a mask of hosts in domains with room for ``many`` members."""
    table, spec, pipeline = run.table, run.request.spec, run.pipeline
    filter_run = FilterRun(table, spec, pipeline)
    filter_run.evaluate(run.request.consumers[members[0]])
    # A host removed in favour of hosts that meet more of the request may be suitable.
    rows = np.flatnonzero(filter_run.verdict >= min(pipeline.relaxable, default=PASSED_VERDICT))
    rows = rows[domains[rows] != UNKNOWN_DOMAIN]
    counts = capacity.counts_by_host(table, spec, rows, many, pipeline.inside, LAYOUT_SEARCHES_MAX)
    by_domain = np.bincount(domains[rows], counts, minlength=1)
    takers = np.zeros(len(table), np.bool_)
    takers[rows[by_domain[domains[rows]] >= many]] = True
    return takers
