# SPDX-License-Identifier: Apache-2.0
"""The hard policies of a server group at any level.

Nova's four have filters of their own, see ``server_group``; policies that are given up in order
are steps of the ladder, see ``rules``, and soft ones are weighed.  Members count through
Gantt's own claims of the group and through those that the caller names.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gantt.core.filters.affinity import WHOLE_GROUP_TEXT
from gantt.core.filters.base import RelaxableFilter, grouped_by_problem
from gantt.core.group_policies import levels, one_member
from gantt.core.group_policies.one_member import PolicyCost, costs_of_policies
from gantt.core.messages.policy_set import GroupPolicyKind
from gantt.core.messages.request import RequestSpec
from gantt.core.records.decision import GROUP_SOURCE, Contradiction
from gantt.core.rules.layers import minimal_conflict
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.host_table import HostTable

COLUMNS = tuple(sorted({'placed', 'instances', *levels.LEVEL_COLUMNS}))


class GroupPolicyFilter(RelaxableFilter):
    """Meets every hard policy of the server group that is about the member."""

    reason = 'against the policies of the server group'
    public_reason = 'the policies of the server group'
    columns = COLUMNS
    always = True
    pairwise = True
    local = False

    def concerns(self, spec: RequestSpec) -> bool:
        return spec.group is not None and spec.group.policies is not None

    def mask_for(
        self, hosts: HostTable, spec: RequestSpec, could: BoolArray | None, consumer: str
    ) -> BoolArray | None:
        if not self.concerns(spec):
            return None
        # Never None: a pick changes more than its own row.
        mask = np.ones(len(hosts), np.bool_)
        for cost in costs_of_policies(hosts, spec, consumer, could=could, strengths=('hard',)):
            mask &= cost.met
        return mask

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        return self.mask_for(hosts, spec, None, '')

    def mask_among(self, hosts: HostTable, spec: RequestSpec, alive: BoolArray) -> BoolArray | None:
        return self.mask_for(hosts, spec, alive, '')

    def mask_among_for(
        self, hosts: HostTable, spec: RequestSpec, alive: BoolArray, consumer: str
    ) -> BoolArray | None:
        return self.mask_for(hosts, spec, alive, consumer)

    def counted_if_full(self, hosts: HostTable, spec: RequestSpec, consumer: str) -> IntArray:
        return one_member.rows_with_guests_under_skew(hosts, spec, consumer)

    # -- why ---------------------------------------------------------------------

    def detail(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> dict[str, Any]:
        return self._parts(spec, costs_of_policies(hosts, spec, strengths=('hard',)), rows)

    def detail_for(
        self, hosts: HostTable, spec: RequestSpec, rows: IntArray, alive: BoolArray, consumer: str
    ) -> dict[str, Any]:
        policy_costs = costs_of_policies(hosts, spec, consumer, could=alive, strengths=('hard',))
        return self._parts(spec, policy_costs, rows)

    def _parts(
        self, spec: RequestSpec, found: Sequence[PolicyCost], rows: IntArray
    ) -> dict[str, Any]:
        """Return parts that count each host for the first policy that it does not meet."""
        parts: dict[str, int] = {}
        for cost in found:
            met = cost.met.take(rows)
            if not met.all():
                binds = spec.purpose.is_move and cost.policy.policy is GroupPolicyKind.AFFINITY
                text = f'against {cost.line}' + (f', {WHOLE_GROUP_TEXT}' if binds else '')
                parts[text] = parts.get(text, 0) + int(np.count_nonzero(~met))
                rows = rows[met]
        if len(rows):
            parts[self.reason] = len(rows)
        return {'parts': parts}

    def given_up_for(
        self, hosts: HostTable, spec: RequestSpec, row: int, alive: BoolArray, consumer: str
    ) -> list[tuple[int, str]]:
        """Return the costs of soft policies, as step 0: no step of the ladder."""
        return [
            (
                0,
                f'soft {cost.policy.soft:g}: {cost.line}, costs {_cost_at(cost, row):g} '
                f'({GROUP_SOURCE})',
            )
            for cost in costs_of_policies(hosts, spec, consumer, could=alive, strengths=('soft',))
            if cost.by_row[row] > 0
        ]

    def facts(self, hosts: HostTable, spec: RequestSpec, row: int) -> list[str]:
        return [_fact_text(cost, row) for cost in costs_of_policies(hosts, spec)]

    def remedy(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> str:
        wrong = [
            (cost.line, ~cost.met.take(rows))
            for cost in costs_of_policies(hosts, spec, strengths=('hard',))
        ]
        return grouped_by_problem(hosts, rows, wrong, 'fits on {where} but for: {what}')

    def contradiction(
        self, hosts: HostTable, spec: RequestSpec, alive: BoolArray
    ) -> Contradiction | None:
        if not alive.any() or spec.purpose.is_move:
            return None  # the present claims of a moving member would be counted
        policy_costs = costs_of_policies(hosts, spec, could=alive, strengths=('hard',))
        masks = [cost.met for cost in policy_costs]
        if not masks or (alive & np.logical_and.reduce(masks)).any():
            return None
        rules = [f'{policy_costs[i].line} ({GROUP_SOURCE})' for i in minimal_conflict(alive, masks)]
        count = int(np.count_nonzero(alive))
        fit = 'the one host that fits' if count == 1 else f'the {count} hosts that fit'
        subject = 'this policy' if len(rules) == 1 else 'all of these policies'
        return Contradiction(says=f'of {fit} otherwise none meets {subject}', rules=rules)


def _cost_at(cost: PolicyCost, row: int) -> float:
    return (cost.policy.soft or 1.0) * float(cost.by_row[row])


def _fact_text(cost: PolicyCost, row: int) -> str:
    if cost.by_row[row] <= 0:
        return f'meets {cost.line}'
    if cost.policy.soft is not None:
        return f'costs {_cost_at(cost, row):g} by {cost.line}'
    return f'does not meet {cost.line}'
