# SPDX-License-Identifier: Apache-2.0
"""After a conflict: who may stay where it was planned, on the table as it is now."""

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
    :ivar planned: they, by what they take there now
    :ivar lost: names of those who have to go elsewhere
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

    :param consumer_of: from the name of a member to the consumer that stands for it
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
    of_name = {one.name: one for one in planned}
    found, copied = [], table.copy()
    for unit in np.flatnonzero(trial.plan.rows >= 0).tolist():
        one, laid = of_name[problem.names[unit]], trial.laid[unit]
        amounts = {provider: dict(of) for provider, of in laid.amounts.items()}
        layout = None if laid.layout is None else plain(laid.layout)
        shares = shares_of(amounts)
        found.append(msgspec.structs.replace(one, allocations=shares, layout=layout))
        spec = problem.choices[trial.plan.choices[unit]].spec
        consumer = consumer_of(one.name)
        image = image_properties.text_of(spec.image) if spec.image.properties else None
        guest = Placed(
            consumer,
            consumer,
            one.provider_id,
            description.uuid,
            laid.layout,
            image,
            name_of(spec.flavor),
        )
        own = amounts.pop(one.provider_id, {})
        copied.take(one.provider_id, own, guest, amounts)
    stays = {one.name for one in found}
    return Remaining(copied, found, [one.name for one in planned if one.name not in stays])


def _assignment(
    table: HostTable, problem: GroupProblem, planned: Sequence[PlannedMember]
) -> Assignment:
    plan = Assignment.empty(problem)
    unit_of = {name: unit for unit, name in enumerate(problem.names)}
    for one in planned:
        unit, row = unit_of.get(one.name), table.row_of_id(one.provider_id)
        if unit is None or row is None:
            continue
        choice = problem.choices_of[problem.kinds[unit]][one.alternative]
        if problem.choices[choice].mask[row]:
            plan.rows[unit], plan.choices[unit] = row, choice
    return plan
