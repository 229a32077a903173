# SPDX-License-Identifier: Apache-2.0
"""Necessary conditions of a request on the trees of hosts, over columns.

Each group by itself, and as often as its likes are apart, is searched on the host, on providers
nested below it, and on the pools that serve it.  For a host with nothing below it and one group
that is exact; whether several fit together is decided by the search on the best survivors.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from gantt.core.candidates.query import CandidatesQuery, Part
from gantt.core.filters.base import has_any
from gantt.core.messages.request import RequestSpec
from gantt.core.messages.resource_classes import format_amount
from gantt.core.resources.provider import SharedPool
from gantt.core.table.columns import BoolArray, IntArray, words_of
from gantt.core.table.host_table import HostTable

#: Reason for removing a host that meets all conditions.
NOT_TOGETHER_REASON = 'no choice of providers that all groups go together on'


class TreeCondition(NamedTuple):
    """A condition that a host has to meet.

    :ivar counts: number of providers that may have the part, by host; ``least``: number needed
    :ivar part: the part; None for a condition on the root or the tree as such
    :ivar text: why a host does not meet it, where it has no part
    """

    counts: IntArray
    least: int
    text: str
    part: Part | None = None


def needs_tree(hosts: HostTable, spec: RequestSpec) -> bool:
    """Return whether a request has more than amounts of the host itself and of shared pools."""
    return spec.tree is not None or hosts.pools.nested.have_any(spec.resources)


def tree_query(hosts: HostTable, spec: RequestSpec) -> CandidatesQuery:
    """Return the query for the tree of each host."""
    return hosts.tree_query(spec)


def mask(hosts: HostTable, spec: RequestSpec) -> BoolArray:
    """Return hosts that meet all conditions."""
    meets_all = np.ones(len(hosts), np.bool_)
    for condition in conditions(hosts, spec):
        meets_all &= condition.counts >= condition.least
    return meets_all


def conditions(hosts: HostTable, spec: RequestSpec) -> Iterator[TreeCondition]:
    """Yield all conditions, those on the root first."""
    tree = spec.tree
    if tree is not None:
        for name in tree.root_required:
            has_trait = _hosts_with_traits(hosts, [name])
            yield TreeCondition(has_trait.astype(np.int64), 1, f'no trait {name} of the root')
        for name in tree.root_forbidden:
            lacks = ~_hosts_with_traits(hosts, [name])
            yield TreeCondition(lacks.astype(np.int64), 1, f'forbidden trait {name} of the root')
    query = tree_query(hosts, spec)
    keys: set[object] = set()
    isolated = [
        Counter(_part_key(part) for part in query.parts() if part.suffix in names)
        for names in query.apart
    ]
    for part in query.parts():
        key = _part_key(part)
        if key in keys:
            continue
        keys.add(key)
        least = max([1, *(likes[key] for likes in isolated)])
        if part.group.in_tree is not None:
            inside = _hosts_of_tree(hosts, part.group.in_tree)
            yield TreeCondition(inside, 1, f'not the tree of {part.group.in_tree}')
        if part.amounts:
            yield TreeCondition(_provider_counts(hosts, part), least, '', part)


def detail(hosts: HostTable, spec: RequestSpec, rows: IntArray) -> dict[str, Any]:
    """Return parts that count each removed host for the first condition that it does not meet."""
    parts: dict[str, int] = {}
    for condition in conditions(hosts, spec):
        short = condition.counts.take(rows) < condition.least
        count = int(np.count_nonzero(short))
        if count:
            text = condition.text or _text(condition.part, condition.least)
            text += _largest_amount_text(hosts, condition.part, rows[short])
            parts[text] = parts.get(text, 0) + count
            rows = rows[~short]
    if len(rows):
        parts[NOT_TOGETHER_REASON] = len(rows)
    return {'parts': parts} if parts else {}


def _largest_amount_text(hosts: HostTable, part: Part | None, rows: IntArray) -> str:
    """Return a text of the largest amount of the requested class on these hosts."""
    if part is None or len(part.amounts) != 1:
        return ''
    (name, _), code = part.amounts[0], hosts.class_code(part.amounts[0][0])
    largest = hosts.nested_most(name).take(rows)
    if code is not None:
        largest = np.maximum(largest, hosts.free[code].take(rows))
    return f' (best has {format_amount(name, max(int(largest.max(initial=0)), 0))})'


def _text(part: Part | None, least: int) -> str:
    assert part is not None, 'what is about none has its text'
    amounts = ' and '.join(format_amount(name, amount) for name, amount in part.amounts)
    group = part.group
    named = [f'trait {" or ".join(sorted(names))}' for names in group.required]
    named += [f'without trait {name}' for name in sorted(group.forbidden)]
    if group.member_of or group.forbidden_aggregates:
        named.append('in the aggregates asked for')
    of_kind = f' ({", ".join(named)})' if named else ''
    if least == 1:
        return f'no one provider with {_left_text(amounts, part.whole)}{of_kind}'
    return f'fewer than {least} providers with {_left_text(amounts, part.whole)} on each{of_kind}'


def _left_text(amounts: str, whole: bool) -> str:
    return f'at least {amounts} and all of it free' if whole else f'{amounts} left'


def _part_key(part: Part) -> object:
    """Return a key equal for parts that the same providers may give."""
    group = part.group
    return (
        *(part.amounts, part.whole, bool(part.suffix), group.required, group.forbidden),
        *(group.member_of, group.forbidden_aggregates, group.in_tree),
    )


def _provider_counts(hosts: HostTable, part: Part) -> IntArray:
    """Return how many providers may give a part to each host, by itself."""
    counts = hosts.nested_counts(part)
    own_mask = _hosts_able_to_supply(hosts, part)
    if own_mask is not None:
        counts = counts + own_mask
    pools = hosts.pools
    names = [name for name, _ in part.amounts]
    if pools.of_class and all(name in pools.of_class for name in names):
        for pool in pools.of_class[names[0]]:
            if _can_pool_supply(hosts, pools.by_id[pool], part):
                served = np.zeros(len(hosts), np.int64)
                served[pools.rows_of(pool)] = 1
                counts = counts + served
    return counts


def _hosts_able_to_supply(hosts: HostTable, part: Part) -> BoolArray | None:
    """Return hosts that may give a part themselves; None: no host has one of the classes."""
    codes = [hosts.class_code(name) for name, _ in part.amounts]
    if any(code is None or not hosts.anybody_has(code) for code in codes):
        return None
    fits = np.ones(len(hosts), np.bool_)
    for name, amount in part.amounts:
        code = hosts.class_code(name)
        if code is None:
            return np.zeros(len(hosts), np.bool_)
        free, cap = hosts.free[code], hosts.cap[code]
        taken = cap if part.whole else amount
        fits &= (free == cap) & (cap >= amount) if part.whole else free >= amount
        if not fits.any():
            return fits
        fits &= (hosts.largest[code] >= taken) & (hosts.min_unit[code] <= taken)
        fits &= taken % np.maximum(hosts.step[code], 1) == 0
    group = part.group
    for names in group.required:
        fits &= _hosts_with_traits(hosts, names)
    if group.forbidden:
        fits &= ~_hosts_with_traits(hosts, group.forbidden)
    if part.suffix:
        for names in group.member_of:
            fits &= has_any(hosts.aggregates, hosts.aggregate_bits(names))
        if group.forbidden_aggregates:
            bits = hosts.aggregate_bits(group.forbidden_aggregates)
            fits &= ~has_any(hosts.aggregates, bits)
    return fits


def _can_pool_supply(hosts: HostTable, pool: SharedPool, part: Part) -> bool:
    """Return whether a pool may give a part."""
    group, traits, aggregates = part.group, set(pool.traits), set(pool.aggregates)
    if not all(
        name in pool.inventories and hosts.pools.can_supply(pool.id, name, amount, part.whole)
        for name, amount in part.amounts
    ):
        return False
    if any(traits.isdisjoint(names) for names in group.required):
        return False
    if not traits.isdisjoint(group.forbidden):
        return False
    return not part.suffix or (
        not any(aggregates.isdisjoint(names) for names in group.member_of)
        and aggregates.isdisjoint(group.forbidden_aggregates)
    )


def _hosts_with_traits(hosts: HostTable, names: Any) -> BoolArray:
    """Return hosts that have one of the named traits."""
    codes = map(hosts.trait_codes.get, names)
    return has_any(hosts.traits, words_of(code for code in codes if code is not None))


def _hosts_of_tree(hosts: HostTable, uuid: str) -> IntArray:
    """Return the host whose tree has a provider, or the hosts that it serves as a pool."""
    inside = np.zeros(len(hosts), np.int64)
    pool = next(
        (candidate for candidate in hosts.pools.by_id.values() if candidate.uuid == uuid), None
    )
    if pool is not None and pool.is_shared:
        inside[hosts.pools.rows_of(pool.id)] = 1
    row = hosts.row_of_id(pool.root) if pool is not None and pool.root else None
    if row is None and pool is None:
        row = next((n for n, host in enumerate(hosts.hosts) if host.uuid == uuid), None)
    if row is not None:
        inside[row] = 1
    return inside
