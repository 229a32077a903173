# SPDX-License-Identifier: Apache-2.0
"""Results of every filter for one host, with the facts that it read.

The funnel of a decision counts a host for the first filter that removed it; here each filter is run
on its own, so that all obstacles are visible at once.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gantt.core.filters import tree_room
from gantt.core.filters.base import names_of, removal_reason
from gantt.core.filters.resources import ResourcesFilter
from gantt.core.messages.request import Purpose, RequestSpec
from gantt.core.messages.resource_classes import format_amount
from gantt.core.placement.evaluation import FilterRun
from gantt.core.placement.tree_choice import TreeChoice
from gantt.core.table.host_state import HostState

if TYPE_CHECKING:
    from gantt.core.placement.pipeline import Pipeline
    from gantt.core.table.host_table import HostTable


class HostStep(msgspec.Struct, frozen=True, kw_only=True):
    """One filter about one host.

    :ivar passes: None where the filter does not concern the request
    :ivar why: why the host is removed, with its own numbers; empty where it is not
    :ivar facts: facts of the host that the filter reads, e.g. ``zone nova``
    """

    filter: str
    passes: bool | None
    why: str
    facts: list[str]


def steps_of(
    table: 'HostTable', spec: RequestSpec, consumer: str, pipeline: 'Pipeline', row: int
) -> list[HostStep]:
    """Return the result of every filter for one row, in the order of running.

    :raises PluginError: a filter raised, unless the pipeline skips those
    """
    filter_run = FilterRun(table, spec, pipeline)
    return [_step(filter_run, k, consumer, row) for k in range(len(pipeline.filters))]


def _step(filter_run: FilterRun, k: int, consumer: str, row: int) -> HostStep:
    table, spec, rule = filter_run.table, filter_run.spec, filter_run.pipeline.filters[k]
    mask = filter_run.mask_of(k, consumer, np.array([row]))
    if mask is None:
        return HostStep(filter=rule.name, passes=None, why='', facts=[])
    passes = bool(mask[row] if len(mask) == len(table) else mask[0])
    tree_problem = ''
    if passes and filter_run.is_of_trees and isinstance(rule, ResourcesFilter):
        tree_problem = _why_no_tree_solution(filter_run, row)
    facts = rule.facts(table, spec, row)
    if facts is None:
        facts = facts_of(table.host_state(row), spec, rule.columns)
    return HostStep(
        filter=rule.name,
        passes=passes and not tree_problem,
        why=tree_problem if passes else removal_reason(rule, table, spec, row),
        facts=facts,
    )


def _why_no_tree_solution(filter_run: FilterRun, row: int) -> str:
    """Return why the tree of a host that meets all conditions has no solution; '' where it has."""
    if filter_run.spec.purpose is Purpose.REBUILD:
        return ''
    trees = TreeChoice(filter_run.table, filter_run.spec)
    if trees.solve(row) is not None:
        return ''
    return trees.problem() or tree_room.NOT_TOGETHER_REASON


def facts_of(host: HostState, spec: RequestSpec, columns: tuple[str, ...]) -> list[str]:
    """Return the values in the columns of a host as text; columns of many values are left out."""
    fact_texts = (_FACTS[column](host, spec) for column in columns if column in _FACTS)
    return [fact for fact in fact_texts if fact]


def _age(host: HostState, spec: RequestSpec) -> str:
    age = host.age_seconds
    return 'never reported' if age is None else f'reported {age:.0f} s ago'


def _enabled(host: HostState, spec: RequestSpec) -> str:
    return 'enabled' if host.is_enabled else f'disabled: {host.disabled_reason}'


def _free(host: HostState, spec: RequestSpec) -> str:
    fact_texts = ((name, format_amount(name, host.free(name))) for name in spec.resources)
    return ', '.join(
        f'{amount} {name} free' if name in ('MEMORY_MB', 'DISK_GB') else f'{amount} free'
        for name, amount in fact_texts
    )


def _aggregates(host: HostState, spec: RequestSpec) -> str:
    return f'aggregates {names_of([a.name for a in host.aggregates]) or "none"}'


def _group(host: HostState, spec: RequestSpec) -> str:
    if spec.group is None:
        return f'{host.instances} claims'
    return f'{len(host.instances_of(spec.group.uuid))} of the server group'


def _traits(host: HostState, spec: RequestSpec) -> str:
    named = {*spec.required_traits, *spec.forbidden_traits}.union(*spec.any_traits)
    return f'has {names_of(sorted(named & host.traits)) or "none"} of the traits named'


def _metrics(host: HostState, spec: RequestSpec) -> str:
    names = sorted(host.metrics)[:4]
    return ', '.join(f'{name} {host.metrics[name].value:g}' for name in names)


def _platform(host: HostState, spec: RequestSpec) -> str:
    runs = names_of([' '.join(kind) for kind in host.hypervisor.supported])
    kind = f'hypervisor {host.hypervisor.type or "unknown"}'
    return f'{kind}, runs {runs}' if runs else kind


_FACTS: dict[str, Callable[[HostState, RequestSpec], str]] = {
    'names': lambda host, spec: f'host {host.name}',
    'nodes': lambda host, spec: f'node {host.node}',
    'zone': lambda host, spec: f'zone {host.zone}',
    'cell': lambda host, spec: f'cell {host.cell or "none"}',
    'location': lambda host, spec: f'location {host.location or "unknown"}',
    'enabled': _enabled,
    'over_committed': lambda host, spec: 'over-committed' if host.over_committed else '',
    'reported_at': _age,
    'free': _free,
    'instances': lambda host, spec: f'{host.instances} claims',
    'placed': _group,
    'aggregates': _aggregates,
    'traits': _traits,
    'metrics': _metrics,
    'hypervisor_version': lambda host, spec: f'hypervisor version {host.hypervisor.version}',
    'platform': _platform,
    'address': lambda host, spec: f'address {host.hypervisor.host_ip or "unknown"}',
}
