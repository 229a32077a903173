# SPDX-License-Identifier: Apache-2.0
"""A what-if planner: a request placed on a copy of the host table, and nothing claimed.

The planner, the pipeline and the tie-break seed are the schedulers' own, so that the answer is what
a real request would get on the same table.
"""

import collections
import dataclasses
from collections.abc import Callable

import msgspec
import numpy as np

from gantt import exceptions
from gantt.core.messages import request as requests
from gantt.core.messages.base import derived_id
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.core.placement import capacity as counting
from gantt.core.placement import what_if_edits as edits
from gantt.core.placement.pipeline import Pipeline
from gantt.core.placement.what_if_edits import HostEdits
from gantt.core.records.decision import (
    CHOSEN_VERDICT,
    PASSED_VERDICT,
    Answer,
    Decision,
    Outcome,
    error_of,
)
from gantt.core.records.decision_codec import StoredDecision
from gantt.core.records.members import encodable_answer
from gantt.core.table.host_table import HostTable
from gantt.core.topology.read import LayoutSettings
from gantt.insights import replaying
from gantt.insights.explain import explaining, redacting, wording
from gantt.insights.views import Capacity, Explanation, RoomView, View
from gantt.scheduler.host_cache import HostCache
from gantt.scheduler.ports.stores import Stores
from gantt.scheduler.quotas import QuotaChecks
from gantt.scheduler.request.planner import MakePlanningHook, Plan, plan_dry_run
from gantt.scheduler.settings import SchedulerSettings

#: Maximum of members times hosts of one trial.
HOST_CHECKS_MAX = 20_000_000
#: Maximum number of hosts whose room is listed.
HOSTS_SHOWN = 100


class WhatIfAnswer(View, frozen=True, kw_only=True):
    """A request placed as it is and with hosts edited, side by side.

    :ivar edits: changes of the hosts, a line each
    """

    edits: list[str]
    now: Explanation
    then: Explanation
    lines: list[str]


@dataclasses.dataclass(eq=False)
class WhatIfPlanner:
    """A planner on copies of a table; it keeps nothing.

    :ivar table: the hosts as they are now
    :ivar make_hook: of requests for members of groups
    """

    stores: Stores
    table: Callable[[], HostTable]
    make_hook: MakePlanningHook
    cache: HostCache
    pipeline: Pipeline
    settings: SchedulerSettings
    quotas: QuotaChecks

    def dry_run(
        self,
        request: SelectDestinations,
        public: bool = False,
        is_own_caller: bool = False,
        zones_not_queried: Callable[[SelectDestinations], list[str]] | None = None,
    ) -> tuple[Answer, Explanation]:
        """Place a request on a copy of the table and claim nothing.

        :param public: include only what every user may know
        :param zones_not_queried: names of child zones that may have room all the same
        :param is_own_caller: the project would claim by itself: default limits bind it
        :raises QuotaExceeded: so would the request be
        :raises GanttError: it is no placement, as for a real request; the
            explanation's lines travel in the error's details
        """
        requests.check(request, self.cache.declared_classes(request.spec.classes))
        self.quotas.check(request, is_own_caller)
        answer, explanation = self._explained_placement(
            self.table(), request, public, zones_not_queried
        )
        if public:
            public_words = redacting.public_texts(self.pipeline.filters)
            explanation = redacting.redacted_explanation(explanation, public_words)
            answer = msgspec.structs.replace(answer, reason=explanation.reason)
        error = error_of(answer)
        if public and isinstance(error, exceptions.NotKnownHere):
            error = redacting.redacted_error(error)
        if error is not None:
            # The decision is not stored: its explanation goes with the refusal.
            error.kwargs.pop('decision_id', None)
            error.kwargs['nearest'] = explanation.nearest
            error.kwargs['explanation'] = explanation.lines
            raise error
        return answer, explanation

    def compare(self, request: SelectDestinations, hosts: HostEdits) -> WhatIfAnswer:
        """Place a request on the table as it is, and with hosts added, removed or changed.

        :raises InvalidMessage, NotFound: the request or an edit cannot be
        """
        requests.check(request, self.cache.declared_classes(request.spec.classes))
        table = self.table()
        other = table.copy()
        named = {
            name
            for edit in (*hosts.add.values(), *hosts.change.values())
            for name in (*edit.resources, *edit.reserved, *edit.allocation_ratios)
        }
        declared = self.cache.declared_classes(named)
        edited = edits.apply_edits(other, hosts, declared, request.spec.kind)
        _, now = self._explained_placement(table, request)
        _, then = self._explained_placement(other, request)
        lines = explaining.wrapped_lines(replaying.comparison_summary(now, then))
        lines += ['', *(line for text in edited for line in explaining.wrapped_lines(text))]
        lines += ['', *replaying.side_by_side(('as it is', 'what if'), now, then), '']
        lines += ['what if:', *(f'  {line}'.rstrip() for line in then.lines)]
        return WhatIfAnswer(edits=edited, now=now, then=then, lines=lines)

    def _explained_placement(
        self,
        table: HostTable,
        request: SelectDestinations,
        public: bool = False,
        zones_not_queried: Callable[[SelectDestinations], list[str]] | None = None,
    ) -> tuple[Answer, Explanation]:
        dry = msgspec.structs.replace(request, dry_run=True)
        plan = self._plan(table, dry, public, zones_not_queried)
        stored = StoredDecision(plan.decision, plan.request)
        now = self.cache.database_now
        ids = plan.decision.provider_ids
        return encodable_answer(plan.answer()), explaining.explain(
            stored, now, now, ids, is_stored=False
        )

    def capacity(self, spec: RequestSpec) -> Capacity:
        """Return how many more of a shape fit now, where, and what runs out first.

        :raises HostsUnknown: too little is known of the hosts
        """
        consumer = derived_id('capacity', 'consumer')
        request = SelectDestinations(
            request_id=derived_id('capacity'),
            spec=spec,
            consumers=[consumer],
            alternates=0,
            dry_run=True,
        )
        requests.check(request, self.cache.declared_classes(spec.classes))
        table = self.table()
        plan = self._plan(table, request)
        if plan.decision.outcome not in (Outcome.PLACED, Outcome.NO_VALID_HOST):
            error = error_of(plan.answer())
            if error is not None:
                raise error
        age, inside = self.cache.age_seconds, self.pipeline.inside
        return capacity_view(
            table.of_kind(spec.kind), plan.request.spec, plan.decision, age, inside
        )

    def _plan(
        self,
        table: HostTable,
        request: SelectDestinations,
        public: bool = False,
        zones_not_queried: Callable[[SelectDestinations], list[str]] | None = None,
    ) -> Plan:
        """Plan as a scheduler would, on a copy of ``table``.

        :param public: leave out the number of hosts
        """
        count = len(table.of_kind(request.spec.kind))
        if count * len(request.consumers) > HOST_CHECKS_MAX:
            limit_text = f'at most {HOST_CHECKS_MAX // count} for a trial on {count} hosts'
            expected = 'fewer for a trial' if public else limit_text
            raise exceptions.invalid(
                'request.consumers', f'expected {expected}, got {len(request.consumers)}'
            )
        try:
            return plan_dry_run(
                self.stores,
                table,
                request,
                self.cache,
                self.pipeline,
                self.settings,
                self.make_hook,
                zones_not_queried,
            )
        except exceptions.NotFound as e:
            # A scheduler answers with the reason alone, and nothing that a path names is missing.
            raise exceptions.Refused(e.message, request_id=request.request_id) from None


def capacity_view(
    table: HostTable,
    spec: RequestSpec,
    decision: Decision,
    age: float,
    inside: LayoutSettings | None = None,
) -> Capacity:
    """Return how many of ``spec`` fit on the hosts that pass the filters.

    Plain arithmetic over what is free there, and layouts where the request needs any.

    :param decision: of one member, on this very table
    :param age: seconds since the table was current
    :param inside: how the pipeline of the decision lays requests out
    """
    member = decision.members[0]
    verdicts = np.frombuffer(member.verdicts, np.uint8)
    rows = np.flatnonzero((verdicts == PASSED_VERDICT) | (verdicts == CHOSEN_VERDICT))
    counted = counting.free_capacity(table, spec, rows, inside)
    by_row = list(zip(rows.tolist(), counted.counts.tolist(), strict=True))
    by_host = sorted(
        (RoomView(name=table.names[row], count=count) for row, count in by_row if count),
        key=lambda room: (-room.count, room.name),
    )
    by_zone: collections.Counter[str] = collections.Counter()
    by_aggregate: collections.Counter[str] = collections.Counter()
    for row, count in by_row:
        by_zone[table.zone_name(row)] += count
        for aggregate in table.host_state(row).aggregates:
            by_aggregate[aggregate.name] += count
    return Capacity(
        shape=wording.needs_text(spec),
        resources=spec.resources,
        count=counted.total,
        hosts=len(table),
        eligible=len(rows),
        by_zone=_counts_by_name(by_zone),
        by_aggregate=_counts_by_name(by_aggregate),
        by_host=by_host[:HOSTS_SHOWN],
        by_host_truncated=len(by_host) > HOSTS_SHOWN,
        runs_out=counted.bound_counts(),
        uncounted=counted.uncounted,
        funnel=explaining.funnel(decision.hosts, member),
        verdict='' if len(rows) else decision.reason,
        nearest=[] if len(rows) else decision.nearest,
        table_age_seconds=round(age, 3),
    )


def _counts_by_name(counts: collections.Counter[str]) -> list[RoomView]:
    return [
        RoomView(name=name, count=count)
        for name, count in sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    ]
