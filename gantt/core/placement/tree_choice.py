# SPDX-License-Identifier: Apache-2.0
"""Allocations over the providers of a host's tree: hosts are searched best first until one fits.

The search is that of candidates (:mod:`gantt.core.candidates.tree_search`), on the tree of one host
as the table has it with all picks: the host, providers nested below it, and the pools that serve
it.  The result follows from the numbers of a tree alone, so that equal trees are searched once.  A
host whose groups do not fit together is no survivor: the filter of amounts removes it after all.

The search for one member is bounded by steps, each of about a microsecond, and by trees, so that a
replay has the same result.  Beyond the bounds the result is unknown, which is not "no room".
Between steps other waiting requests are placed, and the caller may stop waiting.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np

from gantt import exceptions
from gantt.core.candidates.one_tree import OneTreeSearch
from gantt.core.candidates.table import ClassInventory, ProviderEntry
from gantt.core.candidates.tree_search import PAUSE_EVERY_STEPS
from gantt.core.filters import tree_room
from gantt.core.filters.resources import ResourcesFilter
from gantt.core.messages.request import RequestSpec
from gantt.core.pause import AskPause, Interrupted, Pause
from gantt.core.placement.evaluation import FilterRun
from gantt.core.placement.ranking import Ranking
from gantt.core.resources.amounts import add_allocations
from gantt.core.resources.provider import SHARES_TRAIT
from gantt.core.table.nested import as_inventory
from gantt.core.table.pools import NO_SHARES

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable

T = TypeVar('T')

#: Limits for one member: steps of all searches, of one search, and different trees.
SEARCH_STEPS_MAX, TREE_STEPS_MAX, TREES_MAX = 400_000, 100_000, 512
#: Steps charged for reading a tree, and each provider in it, before any search.
STEPS_PER_TREE, STEPS_PER_ENTRY = 64, 8
#: Cached results of searches.
CACHED_RESULTS_MAX = 4096
#: Result for a tree: for each part the index of its provider; None: there is no solution.
_SearchResult = tuple[int, ...] | None
#: In place of a result: the search ended without one after as many steps.
_UNKNOWN = 'unknown'


class GroupShare(msgspec.Struct, frozen=True):
    """Amounts from one provider for one group; without a suffix: for the resources of the spec."""

    suffix: str
    provider_id: int
    resources: dict[str, int]


class TreeSolution(msgspec.Struct, frozen=True):
    """Choice of providers on one host; also for weighers of free devices.

    :ivar groups: amounts for the groups of the query; other requested amounts are not included
    """

    groups: list[GroupShare]

    def by_provider(self) -> dict[int, dict[str, int]]:
        """Return provider id -> class -> amount."""
        by_id: dict[int, dict[str, int]] = {}
        add_allocations(by_id, ((share.provider_id, share.resources) for share in self.groups))
        return by_id


class TreeChoice:
    """A search for allocations of one request in trees, for successive evaluations of the hosts.

    :ivar resources_of_host: class -> amount, of classes outside the search
    :ivar unfit: hosts without a solution; they are not searched again
    :ivar given_up: those of them whose search was not finished
    """

    def __init__(
        self,
        table: 'HostTable',
        spec: RequestSpec,
        filter_run: FilterRun | None = None,
        pause: AskPause | None = None,
        *,
        steps: int | None = None,
        trees: int | None = None,
    ) -> None:
        """Prepare the search of one request.

        :param filter_run: run whose survivors are searched; None: none
        :param pause: called in long searches, returns how to go on
        :param steps: ``trees``: limits of steps and of searched trees; None: as for one evaluation
        """
        self._table = table
        self._filter_run = filter_run
        self.query = tree_room.tree_query(table, spec)
        self._search = OneTreeSearch(self.query)
        self._parts = self._search.parts
        self.resources_of_host = {
            name: amount
            for name, amount in spec.resources.items()
            if not any(
                name == class_name
                for part in self._parts
                if not part.suffix
                for class_name, _ in part.amounts
            )
        }
        groups = self.query.groups
        self._classes = sorted({name for group in groups for name in group.resources})
        self._traits = frozenset({SHARES_TRAIT}).union(*(group.traits for group in groups))
        self._aggregates = frozenset[str]().union(
            *(names for group in groups for names in (*group.member_of, group.forbidden_aggregates))
        )
        self._in_tree = any(group.in_tree is not None for group in groups)
        self._key = (
            msgspec.msgpack.encode((spec.resources, spec.tree, self._classes)),
            *((group.member_of, group.forbidden_aggregates) for group in groups),
        )
        self._limits = (
            SEARCH_STEPS_MAX if steps is None else steps,
            TREES_MAX if trees is None else trees,
        )
        self._steps, self._trees = self._limits
        self._pause_at = self._steps - PAUSE_EVERY_STEPS
        self._pause = pause
        self._directive = Pause.GO_ON
        self._solutions_found: dict[int, TreeSolution | None] = {}
        self._trees_seen: set[object] = set()
        self._seq = -1
        self.unfit: set[int] = set()
        self.given_up: set[int] = set()

    @staticmethod
    def of(
        table: 'HostTable', filter_run: FilterRun, pause: AskPause | None = None
    ) -> 'TreeChoice | None':
        """Return the search for a request; None: it takes nothing of trees."""
        if not tree_room.needs_tree(table, filter_run.spec):
            return None
        return TreeChoice(table, filter_run.spec, filter_run, pause)

    def for_filter_run(self, filter_run: FilterRun) -> 'TreeChoice':
        """Return a search for hosts that are evaluated anew, with the remaining steps."""
        search = TreeChoice(self._table, filter_run.spec, filter_run, self._pause)
        search._steps = self._steps
        search._trees = self._trees
        search._trees_seen = self._trees_seen
        search._pause_at = self._steps - PAUSE_EVERY_STEPS
        search.unfit = self.unfit
        search.given_up = self.given_up
        return search

    def choose(
        self,
        ranking: Ranking,
        pick_one: Callable[[], tuple[list[int], int, T] | None],
    ) -> tuple[list[int], int, T] | None:
        """Return finalists, the pick and the caller's data; None: no survivor has a solution.

        :param pick_one: returns these by the current ranking; None: no host is left
        :raises Interrupted: the search is over, or the table has changed since it began
        """
        failed: list[int] = []
        if self.unfit:
            unfit_indices = np.flatnonzero(np.isin(ranking.rows, list(self.unfit)))
            ranking.strike(unfit_indices)
            # After a new evaluation, filters have let these pass again.
            failed += [row for row in ranking.rows[unfit_indices].tolist() if self._passes(row)]
        while True:
            choice = pick_one()
            if choice is None:
                self._exclude_failed(failed)
                return None
            finalists, pick, extra = choice
            if ranking.total[pick] == -np.inf:
                pick = finalists[0]
            if ranking.total[pick] == -np.inf:
                self._exclude_failed(failed)
                return None
            solution = self.solve(int(ranking.rows[pick]))
            self.check()
            if solution is not None:
                self._exclude_failed(failed)
                self.start_again()
                finalists_left = [i for i in dict.fromkeys(finalists) if ranking.total[i] > -np.inf]
                return finalists_left, pick, extra
            failed.append(int(ranking.rows[pick]))
            self.unfit.add(failed[-1])
            ranking.strike(np.array([pick]))
            if self._steps < self._pause_at:
                self._call_pause()
                self.check()

    def solve(self, row: int) -> TreeSolution | None:
        """Return the solution on a host as it is now; None: none, or unknown, see above."""
        if self._directive is Pause.OVER:
            return None
        if self._seq != self._table.seq:
            self._solutions_found = {}
            self._seq = self._table.seq
        if self._table.pools.has_returned_shares:
            return self._solve(row)
        if row not in self._solutions_found:
            self._solutions_found[row] = self._solve(row)
        return self._solutions_found[row]

    def _solve(self, row: int) -> TreeSolution | None:
        entries, wholes = self._entries(row)
        ids = [entry.id for entry in entries]
        stored = self._table.pools.tree_search_results
        key = (self._key, _signature(entries), entries[0].uuid if self._in_tree else '')
        # The charge is the same whether a result is cached or not: a replay has another cache.
        is_new = key not in self._trees_seen
        self._steps -= STEPS_PER_TREE + STEPS_PER_ENTRY * len(entries)
        if self._steps <= 0 or (is_new and self._trees <= 0):
            self.given_up.add(row)
            return None
        self._trees -= is_new
        self._trees_seen.add(key)
        limit = min(self._steps, TREE_STEPS_MAX)
        answer, steps = stored.get(key, (_UNKNOWN, -1))
        if steps < 0 or (answer is _UNKNOWN and steps < limit):
            try:
                answer, steps = self._search.best_solution(entries, limit, self._pausing)
            except exceptions.SearchOutOfBudget:
                answer, steps = _UNKNOWN, limit
            if self._directive is not Pause.OVER:
                if len(stored) >= CACHED_RESULTS_MAX:
                    stored.clear()
                stored[key] = (answer, steps)
        if is_new:
            self._steps -= min(steps, limit)
        if answer is _UNKNOWN or steps > limit:
            self.given_up.add(row)
            return None
        return self._solution(answer, ids, wholes)

    def _pausing(self) -> None:
        """Pause in a search; end it where the caller no longer waits."""
        self._call_pause()
        if self._directive is Pause.OVER:
            raise exceptions.SearchOutOfBudget(steps=self._steps)

    def _call_pause(self) -> None:
        """Call the pause and store how to go on."""
        self._pause_at = self._steps - PAUSE_EVERY_STEPS
        if self._pause is None or self._directive is Pause.OVER:
            return
        with self._table.pools.with_returned_shares(NO_SHARES):  # that belongs to this member alone
            directive = self._pause(True)
        if directive is not Pause.GO_ON:
            self._directive = directive

    def check(self) -> None:
        """Check that the search may go on.

        :raises Interrupted: the search is over, or the table has changed since it began
        """
        if self._directive is not Pause.GO_ON:
            raise Interrupted(self._directive)

    def start_again(self) -> None:
        """Reset the limits: a member has its place, and the next may take as many steps."""
        self._steps, self._trees = self._limits
        self._pause_at = self._steps - PAUSE_EVERY_STEPS
        self._trees_seen.clear()

    def amounts(self, row: int, solution: TreeSolution) -> dict[int, dict[str, int]]:
        """Return provider id -> class -> amount of the whole request; the host is included."""
        by_id = self._table.providers_of(row, self.resources_of_host)
        add_allocations(by_id, solution.by_provider().items())
        return by_id

    def shares(self, row: int, solution: TreeSolution) -> list[GroupShare]:
        """Return the amounts by group: the host first, then by provider; groups in their order."""
        group_shares = [
            GroupShare('', pid, dict(amounts))
            for pid, amounts in self._table.providers_of(row, self.resources_of_host).items()
        ]
        for share in solution.groups:
            matching = [
                n
                for n, earlier in enumerate(group_shares)
                if not share.suffix
                and (earlier.suffix, earlier.provider_id) == ('', share.provider_id)
            ]
            if matching:
                group_shares[matching[0]].resources.update(share.resources)
            elif share.resources:
                group_shares.append(
                    GroupShare(share.suffix, share.provider_id, dict(share.resources))
                )
        return group_shares

    def problem(self) -> str:
        """Return why it is unknown whether there is room; '' where it is known."""
        if not self.given_up:
            return ''
        return (
            f'the search was ended on {len(self.given_up)} hosts after {self._limits[0]} steps '
            f'or {self._limits[1]} different trees: whether the groups go together there is not '
            'known; ask for fewer groups, or for more that are alike'
        )

    # -- inside ------------------------------------------------------------------------
    def _passes(self, row: int) -> bool:
        return self._filter_run is not None and bool(self._filter_run.alive[row])

    def _exclude_failed(self, failed: list[int]) -> None:
        if not failed or self._filter_run is None:
            return
        filters = self._filter_run.pipeline.filters
        if filters:
            at = [k for k, rule in enumerate(filters) if isinstance(rule, ResourcesFilter)]
            self._filter_run.exclude(at[0] if at else len(filters) - 1, np.array(failed))

    def _solution(
        self, answer: _SearchResult, ids: list[int], wholes: list[Mapping[str, int]]
    ) -> TreeSolution | None:
        if answer is None:
            return None
        groups = []
        for part, at in zip(self._parts, answer, strict=True):
            amounts = dict(part.amounts)
            if part.whole:
                amounts = {name: wholes[at][name] for name in amounts}
            if amounts:
                groups.append(GroupShare(part.suffix, ids[at], amounts))
        return TreeSolution(groups)

    def _entries(self, row: int) -> tuple[list[ProviderEntry], list[Mapping[str, int]]]:
        """Return the relevant providers of the tree of a host, the host first.

        And the total that each may give, by class.
        """
        table = self._table
        host, pools = table.hosts[row], table.pools
        shares = pools.have_any(self._classes)
        inventories = {}
        for name in self._classes:
            code, inventory = table.class_code(name), host.facts.inventories.get(name)
            if code is not None and inventory is not None:
                cap = min(inventory.cap, 2**62 - 1)
                inventories[name] = ClassInventory(
                    cap=cap,
                    used=cap - int(table.free.item(code, row)),
                    min_unit=inventory.min_unit,
                    max_unit=inventory.largest,
                    step_size=inventory.step_size,
                )
        entries = [
            self._entry(
                (host.id, host.uuid, host.id, None),
                host.facts.traits,
                table.aggregates_of(host) if self._aggregates or shares else (),
                inventories,
                keeps=True,
            )
        ]
        nested = pools.nested.of_host(host.id)
        nested_ids = pools.of_host(host.id) if shares else ()
        for pid in (*nested, *(pool_id for pool_id in nested_ids if pool_id not in nested)):
            pool = pools.by_id[pid]
            is_below = pool.root == host.id
            pool_inventories = {
                name: as_inventory(pool, name, pools.picked_amount(pid, name))
                for name in self._classes
                if name in pool.inventories
            }
            if not is_below and not pool_inventories:
                continue
            traits = pool.traits if is_below else {*pool.traits, SHARES_TRAIT}
            place = (
                (pool.id, pool.uuid, host.id, pool.parent)
                if is_below
                else (pool.id, pool.uuid, pool.id, None)
            )
            unrequested = [name for name in pool.traits if name not in self._traits]
            if len(pool.inventories) > len(pool_inventories):
                classes = pool.inventories.items()
                unrequested += [
                    name
                    for name, provided in classes
                    if name not in pool_inventories and provided.cap > 0
                ]
            entries.append(
                self._entry(
                    place,
                    traits,
                    pool.aggregates,
                    pool_inventories,
                    unrequested,
                    keeps=SHARES_TRAIT in traits,
                )
            )
        wholes: list[Mapping[str, int]] = [
            {name: provided.cap for name, provided in entry.inventories.items()}
            for entry in entries
        ]
        return entries, wholes

    def _entry(
        self,
        place: tuple[int, str, int, int | None],
        traits: 'list[str] | set[str]',
        aggregates: 'list[str] | tuple[str, ...]',
        inventories: dict[str, ClassInventory],
        others: Sequence[str] = (),
        *,
        keeps: bool,
    ) -> ProviderEntry:
        """Return one provider as the search reads it.

        :param others: traits and classes that the request does not name
        :param keeps: all of its aggregates matter: pools are shared by them
        """
        pid, uuid, root, parent = place
        return ProviderEntry(
            id=pid,
            uuid=uuid,
            root_id=root,
            parent_id=parent,
            traits=tuple(sorted(self._traits.intersection(traits))),
            aggregates=tuple(
                sorted(
                    aggregate for aggregate in aggregates if keeps or aggregate in self._aggregates
                )
            ),
            inventories=inventories,
            others=tuple(sorted(others)),
        )


def _signature(entries: list[ProviderEntry]) -> object:
    """Return a key equal for trees that differ only in ids and in names not requested."""
    at = {entry.id: n for n, entry in enumerate(entries)}
    number_of = {names: n for n, names in enumerate(sorted({entry.others for entry in entries}))}
    return tuple(
        (
            at[entry.root_id],
            None if entry.parent_id is None else at.get(entry.parent_id, -1),
            entry.traits,
            entry.aggregates,
            len(entry.others),
            number_of[entry.others],
            tuple(
                (n, *msgspec.structs.astuple(inventory))
                for n, inventory in entry.inventories.items()
            ),
        )
        for entry in entries
    )
