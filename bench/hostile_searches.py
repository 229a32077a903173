# SPDX-License-Identifier: Apache-2.0
"""Measure one group at the planner beyond its budget, and one query at the lock of candidates.

Both are sought as :mod:`bench.hostile` seeks requests: by hypothesis, the worst that were ever
found first.  Times are those of the processor that the thread had, so that neighbours of the
machine are not in them.
"""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import hypothesis
import hypothesis.strategies as st
import msgspec

from bench.hostile_requests import GROUPS, devices_of_trees, trees
from devel.doubles import MemoryRecorder
from gantt import exceptions
from gantt.core.candidates.query import CandidatesQuery, GroupQuery
from gantt.core.candidates.table import ProviderEntry, ProviderTable
from gantt.core.messages import base
from gantt.core.placement.pipeline import Pipeline
from gantt.groups.model.place_group import PlaceGroup
from gantt.groups.service.planner import GroupPlanner
from gantt.insights.candidates import ProviderTableReader
from gantt.scheduler.clock import SystemClock
from gantt.scheduler.ports.providers import ProviderNews
from gantt.scheduler.settings import SchedulerSettings

#: Budget in which each group is to be answered, and planned.
BUDGET_MS, PLAN_MS = 1000, 10


def plans() -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy of groups: few members or many, plain ones and such as take of trees."""
    plain = st.fixed_dictionaries(
        {
            'resources': st.fixed_dictionaries(
                {'VCPU': st.sampled_from([1, 2, 8]), 'MEMORY_MB': st.sampled_from([64, 4096])}
            )
        }
    )
    spec = st.one_of(
        plain,
        st.builds(lambda one, tree: one | {'tree': tree}, plain, trees()),
        st.builds(
            lambda one, nodes: (
                one | {'flavor': {'name': 'f', 'extra_specs': {'hw:numa_nodes': nodes}}}
            ),
            plain,
            st.sampled_from(['1', '2', '4']),
        ),
    )
    member = st.tuples(st.sampled_from([1, 1, 3, 20, 150, 400]), spec, st.lists(spec, max_size=2))
    policy = st.one_of(
        st.sampled_from(['anti-affinity', 'affinity', 'soft-anti-affinity', 'soft-affinity']),
        st.fixed_dictionaries(
            {
                'policy': st.sampled_from(['affinity', 'anti-affinity']),
                'level': st.sampled_from(['rack', 'room']),
            }
        ),
    )
    return st.builds(
        lambda members, policies: {
            'policies': policies,
            'members': [
                {'name': f'm{n}', 'count': count, 'spec': spec, 'alternatives': others}
                for n, (count, spec, others) in enumerate(members)
            ],
        },
        st.lists(member, min_size=1, max_size=6),
        st.lists(policy, max_size=3),
    )


class Planning:
    """A planner that is stepped by us, over the hosts of a site."""

    def __init__(self, store: Any, pipeline: Pipeline, clock: SystemClock) -> None:
        settings = SchedulerSettings(
            worker='hostile-planner', stale_after_seconds=1e9, unknown_after_seconds=1e9
        )
        recorder = MemoryRecorder()
        self._planner = GroupPlanner(store, pipeline, recorder, settings, clock=clock)
        self._planner.cache.fetch()
        self._serial = 0

    def cost(self, group: dict[str, Any]) -> float | None:
        """Return milliseconds of the planner's thread; None: it is refused before it gets there."""
        self._serial += 1
        body = {
            'request_id': base.derived_id('hostile plan', self._serial),
            'group': group,
            'dry_run': True,
            'budget_ms': BUDGET_MS,
            'plan_ms': PLAN_MS,
        }
        if len(msgspec.json.encode(body)) > base.REQUEST_BYTES_MAX:
            return None
        try:
            future = self._planner.submit(base.decode(body, PlaceGroup, inside='request'))
        except exceptions.GanttError:
            return None
        began = time.thread_time()
        self._planner.step()
        spent = 1000 * (time.thread_time() - began)
        assert future.done()
        return spent


class _Providers:
    """A source of providers that do not change, as readers of candidates see it."""

    connections_lost = 0

    def __init__(self, entries: list[ProviderEntry]) -> None:
        self._entries = entries

    def load_provider_entries(self) -> ProviderNews:
        return ProviderNews(position=1, incarnation=1, entries=self._entries, whole=True)

    def poll_provider_entries(self, known: ProviderNews) -> ProviderNews:
        """Return a change of one provider on each poll."""
        changed = msgspec.structs.replace(self._entries[0], version=known.position + 1)
        return ProviderNews(position=known.position + 1, incarnation=1, entries=[changed])

    def unknown_names(self, classes: Any, traits: Any) -> Any:
        return (), ()


class Asking:
    """Candidates requested while the table is searched for another query already."""

    def __init__(self, entries: list[ProviderEntry]) -> None:
        self._candidates = ProviderTableReader(_Providers(entries))
        self._candidates.read_all(lambda table: None)

    def cost(self, groups: list[dict[str, int]], limit: int | None) -> tuple[float, float]:
        """Return milliseconds for which others wait for a query, and all that it takes."""
        query = CandidatesQuery(
            groups=tuple(
                GroupQuery(suffix=f'{n}', resources=group) for n, group in enumerate(groups)
            ),
            limit=limit,
        )
        began = time.thread_time()
        waited = [0.0]

        def beside(_: ProviderTable) -> None:
            nonlocal began
            began = time.thread_time()
            self._candidates.read_all(lambda table: waited.append(time.thread_time() - began))

        self._candidates.read_all(beside)
        whole = time.thread_time()
        with contextlib.suppress(exceptions.SearchOutOfBudget):
            self._candidates.answer(query, lambda table, candidates: len(candidates.rows))
        return 1000 * max(waited), 1000 * (time.thread_time() - whole)


def queries() -> st.SearchStrategy[tuple[list[dict[str, int]], int | None]]:
    """Return a strategy of groups of one device each, and the number of answers requested."""
    return st.tuples(
        devices_of_trees(GROUPS).map(
            lambda devices: [{device['resource_class']: device['amount']} for device in devices]
        ),
        st.sampled_from([None, 1, 1000]),
    )


def worst(
    of: st.SearchStrategy[Any], cost: Callable[[Any], float | None], examples: int, seed: int
) -> list[tuple[float, Any]]:
    """Return the costliest inputs, the worst first."""
    costs: list[tuple[float, Any]] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=(hypothesis.Phase.generate, hypothesis.Phase.target),
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(of)
    def tried(body: Any) -> None:
        value = cost(body)
        hypothesis.target(value or 0.0)
        if value is not None:
            costs.append((value, body))

    tried()
    return sorted(costs, key=lambda cost: -cost[0])
