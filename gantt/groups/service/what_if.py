# SPDX-License-Identifier: Apache-2.0
"""The cost of each policy of a group: planned once more without it, and the plans compared.

The plan with all policies is valid without any of them as well, so that each search begins with it:
leaving out a policy can only be a gain, however short the time was.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from gantt.core.messages.policy_set import strength
from gantt.core.placement.pipeline import Pipeline
from gantt.core.table.host_table import HostTable
from gantt.groups.model.group_description import GroupDescription
from gantt.groups.model.group_plan import GroupPlan, WithoutPolicy
from gantt.groups.model.group_table import IsOver, never_over
from gantt.groups.model.model import FailureRecordingSolver, GroupSolver
from gantt.groups.model.plan_group import goals_of_known_plan, plan_group
from gantt.groups.model.problem import WEIGHT_UNIT

#: Maximum number of policies, each with one subject, that a group is planned without.
POLICIES_MAX = 32


class _LeftOut(NamedTuple):
    """A policy with one of its subjects, and the group without it."""

    line: WithoutPolicy
    group: GroupDescription


def plans_without_each_policy(
    table: HostTable,
    group: GroupDescription,
    plan: GroupPlan,
    pipeline: Pipeline,
    *,
    clock: Callable[[], float],
    seconds: float,
    seed: int,
    solver: GroupSolver | None = None,
    members: Mapping[str, str] | None = None,
    placed: Mapping[str, str] | None = None,
    over: IsOver = never_over,
) -> list[WithoutPolicy]:
    """Return a line for each policy and each of its subjects, in the order of the description.

    :param plan: plan of the group with all policies
    :param clock: seconds, of any origin
    :param seconds: time for all plans, each an equal share of what is left
    :param members: see ``plan_group``, as ``placed`` and ``over``
    """
    cases = list(_groups_without_policy(group))
    ends, beyond = clock() + seconds, 0.0
    # One that has failed is not called again for the next policy.
    noted = None if solver is None else FailureRecordingSolver(solver)
    lines = []
    for number, case in enumerate(cases):
        if number >= POLICIES_MAX:
            lines.append(msgspec.structs.replace(case.line, outcome='not_looked_at'))
            continue
        began = clock()
        remaining = ends - began
        # The first plan and its checks run in any case: the time they took beyond their share.
        if remaining <= beyond:
            lines.append(msgspec.structs.replace(case.line, outcome='no_time'))
            continue
        share = remaining / (min(len(cases), POLICIES_MAX) - number)
        other = plan_group(
            table,
            case.group,
            pipeline,
            clock=clock,
            seconds=share,
            seed=seed,
            solver=noted,
            members=members,
            placed=placed,
            known=plan.members,
            over=over,
        )
        reached = goals_of_known_plan(
            table, group, pipeline, other.members, members=members, placed=placed, over=over
        )
        beyond = max(beyond, clock() - began - share)
        keeps_it = reached is not None and reached <= plan.goals
        lines.append(_comparison_line(case.line, plan, other, keeps_it))
    return lines


def _groups_without_policy(group: GroupDescription) -> Iterator[_LeftOut]:
    policies = group.full_policies
    for index, policy in enumerate(policies):
        for at, subject in enumerate(policy.subjects):
            rest = [*policies[:index], *policies[index + 1 :]]
            others = [*policy.subjects[:at], *policy.subjects[at + 1 :]]
            if others:
                names = [name for name in others if name is not None]
                rest.insert(index, msgspec.structs.replace(policy, of=names))
            path = f'policies[{index}]'
            line = WithoutPolicy(
                path=f'{path}.of[{at}]' if isinstance(policy.of, list) else path,
                line=f'{policy.line(subject)}{strength(policy)}',
                strength=policy.strength,
                outcome='planned',
            )
            yield _LeftOut(line, msgspec.structs.replace(group, policies=rest))


def _comparison_line(
    line: WithoutPolicy, plan: GroupPlan, other: GroupPlan, keeps_it: bool
) -> WithoutPolicy:
    placed, others = (Counter(place.member for place in each.members) for each in (plan, other))
    return msgspec.structs.replace(
        line,
        status=other.status,
        placed=len(other.members),
        missing=len(other.missing),
        makes_feasible=bool(plan.missing) and not other.missing,
        score_change=other.score - plan.score if placed == others else None,
        weight_change=(other.goals.weight - plan.goals.weight) / WEIGHT_UNIT,
        moved=_moved_members(plan, other),
        keeps_it=keeps_it,
        gap=other.gap,
        is_proven=other.status in ('optimal', 'infeasible'),
    )


def _moved_members(plan: GroupPlan, other: GroupPlan) -> dict[str, int]:
    """Return name of a description -> number of its members that are on other hosts."""
    hosts: dict[str, tuple[Counter[int], Counter[int]]] = {}
    for at, each in enumerate((plan, other)):
        for place in each.members:
            hosts.setdefault(place.member, (Counter(), Counter()))[at][place.provider_id] += 1
    counts = {
        name: min(before.total(), after.total()) - (before & after).total()
        for name, (before, after) in hosts.items()
    }
    return {name: count for name, count in sorted(counts.items()) if count}
