# SPDX-License-Identifier: Apache-2.0
"""Replanning after a conflict: members that may stay where planned, on the present table."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from gantt.core.groups.build import build
from gantt.core.groups.group_plan import PlannedMember, shares_of
from gantt.core.groups.group_table import GroupTable, Over, never
from gantt.core.groups.plan_group import drop_broken
from gantt.core.groups.problem import Assignment, GroupProblem
from gantt.core.messages import image_properties
from gantt.core.messages.group_description import GroupDescription
from gantt.core.messages.layout import plain
from gantt.core.messages.request import name_of
from gantt.core.placement.pipeline import Pipeline
from gantt.core.resources.host import Placed
from gantt.core.table.host_table import HostTable


class Remaining(NamedTuple):
    """Members that stay where they were planned.

    :ivar table: a copy, with them on it as members of the group
    :ivar planned: these members, with their present amounts
    :ivar lost: names of members that have to go elsewhere
    """

    table: HostTable
    planned: list[PlannedMember]
    lost: list[str]


def remaining(
    table: HostTable,
    description: GroupDescription,
    pipeline: Pipeline,
    planned: Sequence[PlannedMember],
    consumer_of: Callable[[str], str],
    *,
    members: Mapping[str, str],
    placed: Mapping[str, str],
    over: Over = never,
) -> Remaining:
    """Try each planned member on its host once more.

    :param consumer_of: maps the name of a member to its placeholder consumer
    :param members: as of ``plan_group``; ``placed`` and ``over``: likewise
    :raises InvalidMessage: see there
    """
    problem = build(table, description, pipeline, members=members, placed=placed)
    plan = _assignment(table, problem, planned)
    drop_broken(problem, plan)
    trial = GroupTable(table, problem, pipeline, over)
    trial.refused(plan)
    plan = trial.plan.copy()
    if drop_broken(problem, plan):
        trial = GroupTable(table, problem, pipeline, over)
        trial.refused(plan)
    by_name = {member.name: member for member in planned}
    staying, copied = [], table.copy()
    for unit in np.flatnonzero(trial.plan.rows >= 0).tolist():
        member, placement = by_name[problem.names[unit]], trial.laid[unit]
        amounts = {
            provider: dict(class_amounts) for provider, class_amounts in placement.amounts.items()
        }
        layout = None if placement.layout is None else plain(placement.layout)
        shares = shares_of(amounts)
        staying.append(msgspec.structs.replace(member, allocations=shares, layout=layout))
        spec = problem.choices[trial.plan.choices[unit]].spec
        consumer = consumer_of(member.name)
        image = image_properties.text_of(spec.image) if spec.image.properties else None
        guest = Placed(
            consumer,
            consumer,
            member.provider_id,
            description.uuid,
            placement.layout,
            image,
            name_of(spec.flavor),
        )
        on_host = amounts.pop(member.provider_id, {})
        copied.take(member.provider_id, on_host, guest, amounts)
    staying_names = {member.name for member in staying}
    return Remaining(
        copied, staying, [member.name for member in planned if member.name not in staying_names]
    )


def _assignment(
    table: HostTable, problem: GroupProblem, planned: Sequence[PlannedMember]
) -> Assignment:
    plan = Assignment.empty(problem)
    unit_of = {name: unit for unit, name in enumerate(problem.names)}
    for member in planned:
        unit, row = unit_of.get(member.name), table.row_of_id(member.provider_id)
        if unit is None or row is None:
            continue
        choice = problem.choices_of[problem.kinds[unit]][member.alternative]
        if problem.choices[choice].mask[row]:
            plan.rows[unit], plan.choices[unit] = row, choice
    return plan
