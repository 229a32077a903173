# SPDX-License-Identifier: Apache-2.0
"""Candidates by the plain product of everything with everything, and worlds to compare them in."""

import itertools
from collections.abc import Iterator, Mapping

from gantt.core.candidates.query import SHARES_TRAIT, CandidatesQuery, GroupQuery
from gantt.core.candidates.table import ProviderEntry

#: (uuid, class, amount) of all that is taken; (suffix, uuids) of all groups.
PlainCandidate = tuple[frozenset[tuple[str, str, int]], frozenset[tuple[str, frozenset[str]]]]


class PlainProviders:
    """Providers by id, and what follows from them."""

    def __init__(self, entries: Mapping[int, ProviderEntry]) -> None:
        self.entries = entries

    def anchors(self, entry: ProviderEntry) -> set[int]:
        """Roots of the trees that it may be used for."""
        roots = {entry.root_id}
        if SHARES_TRAIT in entry.traits:
            roots |= {
                other.root_id
                for other in self.entries.values()
                if set(other.aggregates) & set(entry.aggregates)
            }
        return roots

    def above(self, entry: ProviderEntry) -> set[int]:
        ids = {entry.id}
        while entry.parent_id is not None:
            entry = self.entries[entry.parent_id]
            ids.add(entry.id)
        return ids

    def root_of(self, uuid: str) -> int | None:
        return next((entry.root_id for entry in self.entries.values() if entry.uuid == uuid), None)


def has_amount(entry: ProviderEntry, name: str, amount: int) -> bool:
    there = entry.inventories.get(name)
    return (
        there is not None
        and there.used + amount <= there.cap
        and there.min_unit <= amount <= there.max_unit
        and amount % there.step_size == 0
    )


def _granular(world: PlainProviders, group: GroupQuery) -> Iterator[tuple[int, tuple]]:
    """(root it anchors at, providers) of a group that comes from one provider."""
    if not (group.resources or group.required or group.member_of):
        return
    for entry in world.entries.values():
        fits = (
            all(has_amount(entry, *item) for item in group.resources.items())
            and all(names & set(entry.traits) for names in group.required)
            and not group.forbidden & set(entry.traits)
            and all(uuids & set(entry.aggregates) for uuids in group.member_of)
            and not group.forbidden_aggregates & set(entry.aggregates)
        )
        if group.in_tree is not None and group.resources:
            fits = fits and world.root_of(group.in_tree) == entry.root_id
        if fits:
            for anchor in world.anchors(entry):
                yield anchor, (entry.id,)


def _spread(world: PlainProviders, group: GroupQuery) -> Iterator[tuple[int, tuple]]:
    """The same of a group whose classes may come from several providers of a tree."""
    for anchor in [entry for entry in world.entries.values() if entry.parent_id is None]:
        options = [
            [
                entry.id
                for entry in world.entries.values()
                if _may_give(world, group, item, entry, anchor)
            ]
            for item in group.resources.items()
        ]
        for ids in itertools.product(*options):
            traits = {name for pid in ids for name in world.entries[pid].traits}
            if all(names & traits for names in group.required) and not group.forbidden & traits:
                yield anchor.id, ids


def _may_give(
    world: PlainProviders,
    group: GroupQuery,
    item: tuple[str, int],
    entry: ProviderEntry,
    anchor: ProviderEntry,
) -> bool:
    own = entry.root_id == anchor.id
    if not has_amount(entry, *item) or anchor.id not in world.anchors(entry):
        return False
    if group.in_tree is not None and not (own and world.root_of(group.in_tree) == anchor.id):
        return False
    aggregates = set(entry.aggregates)
    with_root = aggregates | set(anchor.aggregates)

    def inside(uuids: set[str]) -> bool:
        return all(names & uuids for names in group.member_of)

    if own:
        good = inside(aggregates) or inside(set(anchor.aggregates))
    else:
        good = inside(aggregates)
    return good and not group.forbidden_aggregates & with_root


def candidates(world: PlainProviders, query: CandidatesQuery) -> dict[PlainCandidate, set[int]]:
    """All candidates, each with the roots that it may be anchored at."""
    by_root: dict[int, list[list[tuple]]] = {
        pid: [[] for _ in query.groups]
        for pid, entry in world.entries.items()
        if entry.parent_id is None
        and query.root_required <= set(entry.traits)
        and not query.root_forbidden & set(entry.traits)
    }
    for n, group in enumerate(query.groups):
        for anchor, ids in (_granular if group.suffix else _spread)(world, group):
            if anchor in by_root:
                by_root[anchor][n].append(ids)
    anchors: dict[PlainCandidate, set[int]] = {}
    for anchor, choices in by_root.items():
        for chosen in itertools.product(*choices):
            if _go_together(world, query, chosen):
                anchors.setdefault(_as_one(world, query, chosen), set()).add(anchor)
    return anchors


def _amounts(query: CandidatesQuery, chosen: tuple) -> dict[tuple[int, str], int]:
    amounts: dict[tuple[int, str], int] = {}
    for group, ids in zip(query.groups, chosen, strict=True):
        for n, (name, amount) in enumerate(group.resources.items()):
            pid = ids[0 if group.suffix else n]
            amounts[pid, name] = amounts.get((pid, name), 0) + amount
    return amounts


def _go_together(world: PlainProviders, query: CandidatesQuery, chosen: tuple) -> bool:
    granular = [ids[0] for g, ids in zip(query.groups, chosen, strict=True) if g.suffix]
    if query.isolate and len(set(granular)) < len(granular):
        return False
    for suffixes in query.same_subtree:
        ids = {i[0] for g, i in zip(query.groups, chosen, strict=True) if g.suffix in suffixes}
        common = set.intersection(*(world.above(world.entries[pid]) for pid in ids))
        if not common & ids:
            return False
    amounts = _amounts(query, chosen)
    for (pid, name), amount in amounts.items():
        there = world.entries[pid].inventories[name]
        if there.used + amount > there.cap or amount > there.max_unit:
            return False
    has_trees = any(entry.parent_id is not None for entry in world.entries.values())
    if not query.nested and has_trees:
        used = {pid for pid, _ in amounts}
        return len({world.entries[pid].root_id for pid in used}) == len(used)
    return True


def _as_one(world: PlainProviders, query: CandidatesQuery, chosen: tuple) -> PlainCandidate:
    uuid = {pid: entry.uuid for pid, entry in world.entries.items()}
    return (
        frozenset((uuid[p], name, n) for (p, name), n in _amounts(query, chosen).items()),
        frozenset(
            (group.suffix, frozenset(uuid[pid] for pid in ids))
            for group, ids in zip(query.groups, chosen, strict=True)
        ),
    )
