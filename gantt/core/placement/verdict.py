# SPDX-License-Identifier: Apache-2.0
"""Texts of a decision about itself: the one-line verdict, the nearest feasible changes."""

from itertools import islice

import numpy as np

from gantt.core.filters.base import Filter
from gantt.core.messages.near import nearest_names
from gantt.core.messages.request import Purpose
from gantt.core.placement.evaluation import FilterRun
from gantt.core.records.decision import FilterCount, MemberDecision
from gantt.core.table.columns import BoolArray, IntArray

#: Hosts that a per-host filter evaluates to find the nearest feasible.
_REQUESTED_MAX = 256
#: Nearest feasible changes that a decision names.
_NEAREST_CHANGES_MAX = 5
#: Unknown names that a decision reports, and names that each is compared with: a request with
#: many of them does not delay others.
_UNKNOWN_NAMES_MAX = 3
_COMPARED_HOSTS_MAX = 1000


def removal_counts(counts: list[FilterCount]) -> list[tuple[int, str]]:
    """Return (count, reason) of all removals, biggest first; the counts add up.

    In words for the caller: what only operators may read is in the detail.
    """
    parts: list[tuple[int, str]] = []
    for count in counts:
        if not count.removed:
            continue
        split = count.detail.get('parts')
        if split and sum(split.values()) == count.removed:
            texts_by_part = count.detail.get('public_parts', {})
            parts.extend((number, texts_by_part.get(text, text)) for text, number in split.items())
        else:
            parts.append((count.removed, count.reason))
    return sorted(parts, key=lambda part: -part[0])


def refusal_of(member: MemberDecision, filter_run: FilterRun) -> tuple[str, str]:
    """Return why a member found no host, and in short its cause.

    ``0/412 hosts fit: 230 too little free MEMORY_MB (…), 121 …``; where one host was requested only
    the problem of that one, ``cmp-4 is disabled: new memory``.  Unknown names come first: ``unknown
    trait CUSTOM_SDD (did you mean CUSTOM_SSD?); …``.

    :param filter_run: after the evaluation that left no host
    :returns: the line, and its cause, which is the same for all refusals decided by the same
    """
    hosts, kind = len(filter_run.table), filter_run.spec.kind.value
    if not hosts:
        return f'no {kind} is known', ''
    unknown = _unknown_names_text(filter_run)
    largest = max(member.filters, key=lambda count: count.removed, default=None)
    cause = largest.name if largest is not None else ''
    row = _requested_host(filter_run)
    problem = '' if row is None else filter_run.of_host(row)
    if row is not None and problem:
        # The caller of a rebuild did not name the host, and need not know its name.
        name = (
            'its host'
            if filter_run.spec.purpose is Purpose.REBUILD
            else filter_run.table.names[row]
        )
        cause = f'{name} {filter_run.pipeline.filters[filter_run.verdict[row]].name}'
        lines = [f'{name}{problem}', *unknown.values()]
    else:
        counts = ', '.join(f'{number} {text}' for number, text in removal_counts(member.filters))
        lines = [*unknown.values(), f'{member.survivors}/{hosts} {kind}s fit: {counts}']
    return '; '.join(lines), next(iter(unknown), cause)


def _unknown_names_text(filter_run: FilterRun) -> dict[str, str]:
    """Return names in the request that no host has -> the same with names that may be meant."""
    problem: dict[str, str] = {}
    for unknown_name in filter_run.unknown(_UNKNOWN_NAMES_MAX):
        title = f'unknown {unknown_name.kind} {unknown_name.name}'
        names = nearest_names(unknown_name.name, islice(unknown_name.known, _COMPARED_HOSTS_MAX))
        problem[title] = f'{title} (did you mean {" or ".join(names)}?)' if names else title
    return problem


def _requested_host(filter_run: FilterRun) -> int | None:
    """Return the row of the host that the request names; None where it names not just one."""
    table, spec = filter_run.table, filter_run.spec
    named: list[list[int]] = []
    if spec.destination is not None and spec.destination.host is not None:
        named.append(table.rows_of_host(spec.destination.host))
    if spec.destination is not None and spec.destination.node is not None:
        named.append(table.rows_of_nodes([spec.destination.node]))
    if spec.force_hosts:
        named.append(table.rows_of_names(spec.force_hosts))
    if spec.force_nodes:
        named.append(table.rows_of_nodes(spec.force_nodes))
    rows = set(named[0]).intersection(*named[1:]) if named else set()
    return rows.pop() if len(rows) == 1 else None


def fewer_members_line(requested: int, placed: int) -> list[str]:
    """Return a line that a request for fewer members fits, where some were placed."""
    if not placed:
        return []
    unplaced = requested - placed
    return [f'fits with {"one member" if unplaced == 1 else f"{unplaced} members"} fewer']


def nearest_changes(filter_run: FilterRun, consumer: str) -> tuple[list[str], list[str]]:
    """Return the smallest changes that would let some host pass, one line per filter.

    Evaluates every filter on its own: a host that one filter alone removes is one change away.
    Where there is none, reports how far the nearest host is.

    :returns: the lines, and the first hosts that fit once they report again
    """
    table, pipeline = filter_run.table, filter_run.pipeline
    if not len(table) or filter_run.has_passed:
        return [], []  # no filter alone keeps a host out
    failing = np.zeros(len(table), np.int64)
    masks: dict[int, BoolArray] = {}
    for k in range(len(pipeline.filters)):
        mask = None if k in pipeline.per_host_filters else filter_run.mask_of(k, consumer)
        if mask is not None:
            masks[k] = mask
            failing += ~mask
    _evaluate_per_host(filter_run, failing, masks)
    least = int(failing.min())
    if not least:
        return [], []  # only other members keep it out
    if least > 1:
        rows = np.flatnonzero(failing == least)
        row = int(rows[0])
        names = [pipeline.filters[k].name for k, mask in masks.items() if not mask[row]]
        line = f'no single change is enough; nearest is {table.names[row]}: {" and ".join(names)}'
        return [line], []
    lines, silent = [], []
    for k, mask in masks.items():
        rows = np.flatnonzero((failing == 1) & ~mask)
        if len(rows):
            rows = _passing_with_remedy(filter_run, pipeline.filters[k], rows, consumer)
        if len(rows):
            line = pipeline.filters[k].remedy(table, filter_run.spec, rows)
            lines.append((len(rows), line))
            silent += pipeline.filters[k].silent(table, filter_run.spec, rows)
    lines.sort(key=lambda line: -line[0])
    return [line for _, line in lines[:_NEAREST_CHANGES_MAX]], silent


def _passing_with_remedy(
    filter_run: FilterRun, rule: Filter, rows: IntArray, consumer: str
) -> IntArray:
    """Return which of ``rows``, removed by one filter alone, pass with its remedy."""
    spec = rule.relaxed(filter_run.spec)
    if spec is None:
        return rows
    relaxed_run = FilterRun(filter_run.table, spec, filter_run.pipeline)
    relaxed_run.evaluate(consumer)
    return rows[relaxed_run.alive.take(rows)]


def _evaluate_per_host(
    filter_run: FilterRun, failing: np.ndarray, masks: dict[int, BoolArray]
) -> None:
    """Run per-host filters on the hosts nearest so far; the others count as failing."""
    for k in filter_run.pipeline.per_host_filters:
        rows = np.argsort(failing, kind='stable')[:_REQUESTED_MAX]
        passes = filter_run.mask_of(k, '', rows)
        if passes is None:
            continue
        mask = np.zeros(len(failing), np.bool_)
        mask[rows] = passes
        masks[k] = mask
        failing += ~mask
