# SPDX-License-Identifier: Apache-2.0
"""Which providers of a host's tree give what: the best ranked hosts are searched until one has it.

The search is that of candidates (:mod:`gantt.core.candidates.tree_search`), on the tree of one host
as the table has it with all picks: the host, what is nested below it, and the pools that serve it.
What a tree has follows from its numbers alone, so that equal trees are searched once.  A host whose
groups do not go together is no survivor: the filter of amounts removes it after all.

What is searched for one member is bounded by steps, each of which is about a microsecond, and by
trees, so that a replay comes out the same.  Beyond, it is not known whether there is room, which is
not "no room".  In between whoever else waits is placed, and who has asked may have waited enough.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np

from gantt import exceptions
from gantt.core.candidates.columns import ClassInventory
from gantt.core.candidates.one_tree import OneTreeSearch
from gantt.core.candidates.table import ProviderEntry
from gantt.core.candidates.tree_search import PAUSED_EACH
from gantt.core.filters import tree_room
from gantt.core.filters.resources import ResourcesFilter
from gantt.core.messages.request import RequestSpec
from gantt.core.pause import AskPause, Interrupted, Pause
from gantt.core.placement.evaluation import FilterRun
from gantt.core.placement.ranking import Ranking
from gantt.core.resources.shared_pool import SHARES
from gantt.core.table.nested import as_inventory
from gantt.core.table.pools import NO_SHARES

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable

T = TypeVar('T')

#: For one member: steps of all searches, of one of them, and trees that differ.
STEPS_MAX, TREE_STEPS_MAX, TREES_MAX = 400_000, 100_000, 512
#: Steps that it takes to look at a tree, and at each provider in it, before anything is searched.
TREE_STEPS, ENTRY_STEPS = 64, 8
#: Answers that are stored for trees to come.
ANSWERS_MAX = 4096
#: Of a tree: for each part the number of its provider in it; or that there is none.
_Answer = tuple[int, ...] | None
#: Instead of an answer: none was found in as many steps.
_UNKNOWN = 'unknown'


class GroupShare(msgspec.Struct, frozen=True):
    """What one provider gives to one group; without a suffix: of what the spec asks for."""

    suffix: str
    provider_id: int
    resources: dict[str, int]


class TreeSolution(msgspec.Struct, frozen=True):
    """Who gives what on one host.  For weighers of what is left on devices, too.

    :ivar groups: those of the query; what else is asked for is not among it
    """

    groups: list[GroupShare]

    def by_provider(self) -> dict[int, dict[str, int]]:
        """Provider id -> class -> amount."""
        found: dict[int, dict[str, int]] = {}
        for one in self.groups:
            here = found.setdefault(one.provider_id, {})
            for name, amount in one.resources.items():
                here[name] = here.get(name, 0) + amount
        return found


class TreeChoice:
    """One request, for one look at the hosts after the other.

    :ivar rest: class -> amount, of what is no matter of the search
    :ivar unfit: hosts that have no choice; they are not looked at again
    :ivar given_up: of these the ones that were not searched to the end
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
        """
        :param filter_run: whose survivors are searched; None: none
        :param pause: asked how to go on in long searches
        :param steps: ``trees``: as many as may be taken, and searched; None: as for one look
        """
        self._table, self._filter_run = table, filter_run
        self.query = tree_room.query(table, spec)
        self._search = OneTreeSearch(self.query)
        self._parts = self._search.parts
        self.rest = {
            name: amount
            for name, amount in spec.resources.items()
            if not any(
                name == one for part in self._parts if not part.suffix for one, _ in part.amounts
            )
        }
        groups = self.query.groups
        self._classes = sorted({name for group in groups for name in group.resources})
        self._traits = frozenset({SHARES}).union(*(group.traits for group in groups))
        self._aggregates = frozenset[str]().union(
            *(names for group in groups for names in (*group.member_of, group.forbidden_aggregates))
        )
        self._in_tree = any(group.in_tree is not None for group in groups)
        self._key = (
            msgspec.msgpack.encode((spec.resources, spec.tree, self._classes)),
            *((group.member_of, group.forbidden_aggregates) for group in groups),
        )
        self._may = STEPS_MAX if steps is None else steps, TREES_MAX if trees is None else trees
        self._steps, self._trees = self._may
        self._pause_at = self._steps - PAUSED_EACH
        self._pause = pause
        self._how = Pause.GO_ON
        self._found: dict[int, TreeSolution | None] = {}
        self._seen: set[object] = set()
        self._seq = -1
        self.unfit: set[int] = set()
        self.given_up: set[int] = set()

    @staticmethod
    def of(
        table: 'HostTable', filter_run: FilterRun, pause: AskPause | None = None
    ) -> 'TreeChoice | None':
        """None: the request asks nothing of trees."""
        if not tree_room.concerns(table, filter_run.spec):
            return None
        return TreeChoice(table, filter_run.spec, filter_run, pause)

    def on(self, filter_run: FilterRun) -> 'TreeChoice':
        """The same for hosts that are looked at anew, with the steps that are left."""
        other = TreeChoice(self._table, filter_run.spec, filter_run, self._pause)
        other._steps, other._trees, other._seen = self._steps, self._trees, self._seen
        other._pause_at = self._steps - PAUSED_EACH
        other.unfit, other.given_up = self.unfit, self.given_up
        return other

    def choose(
        self,
        ranking: Ranking,
        pick_one: Callable[[], tuple[list[int], int, T] | None],
    ) -> tuple[list[int], int, T] | None:
        """Finalists, the pick and what goes with it; None: nobody has a choice.

        :param pick_one: these by the ranking as it is; None: nobody is left
        :raises Interrupted: the search is over, or was on a table that has changed since
        """
        failed: list[int] = []
        if self.unfit:
            known = np.flatnonzero(np.isin(ranking.rows, list(self.unfit)))
            ranking.strike(known.tolist())
            # Where hosts are looked at anew, filters have let these pass again.
            failed += [row for row in ranking.rows[known].tolist() if self._passes(row)]
        while True:
            found = pick_one()
            if found is None:
                self._bar(failed)
                return None
            finalists, pick, more = found
            if ranking.total[pick] == -np.inf:
                pick = finalists[0]
            if ranking.total[pick] == -np.inf:
                self._bar(failed)
                return None
            solution = self.solve(int(ranking.rows[pick]))
            self.check()
            if solution is not None:
                self._bar(failed)
                self.begin_anew()
                left = [i for i in dict.fromkeys(finalists) if ranking.total[i] > -np.inf]
                return left, pick, more
            failed.append(int(ranking.rows[pick]))
            self.unfit.add(failed[-1])
            ranking.strike([pick])
            if self._steps < self._pause_at:
                self._ask()
                self.check()

    def solve(self, row: int) -> TreeSolution | None:
        """Who gives what on a host as it is now; None: nobody, or it is not known, see above."""
        if self._how is Pause.OVER:
            return None
        if self._seq != self._table.seq:
            self._found, self._seq = {}, self._table.seq
        if self._table.pools.is_giving_back:
            return self._solve(row)
        if row not in self._found:
            self._found[row] = self._solve(row)
        return self._found[row]

    def _solve(self, row: int) -> TreeSolution | None:
        entries, wholes = self._entries(row)
        ids = [entry.id for entry in entries]
        stored = self._table.pools.searched
        key = (self._key, _signature(entries), entries[0].uuid if self._in_tree else '')
        # What is charged is the same whether an answer is stored or not: a replay has other ones.
        is_new = key not in self._seen
        self._steps -= TREE_STEPS + ENTRY_STEPS * len(entries)
        if self._steps <= 0 or (is_new and self._trees <= 0):
            self.given_up.add(row)
            return None
        self._trees -= is_new
        self._seen.add(key)
        most = min(self._steps, TREE_STEPS_MAX)
        answer, steps = stored.get(key, (_UNKNOWN, -1))
        if steps < 0 or (answer is _UNKNOWN and steps < most):
            try:
                answer, steps = self._search.best(entries, most, self._pausing)
            except exceptions.SearchOutOfBudget:
                answer, steps = _UNKNOWN, most
            if self._how is not Pause.OVER:
                if len(stored) >= ANSWERS_MAX:
                    stored.clear()
                stored[key] = (answer, steps)
        if is_new:
            self._steps -= min(steps, most)
        if answer is _UNKNOWN or steps > most:
            self.given_up.add(row)
            return None
        return self._solution(answer, ids, wholes)

    def _pausing(self) -> None:
        """Called now and then in a search, which is of what was there when it began."""
        self._ask()
        if self._how is Pause.OVER:
            raise exceptions.SearchOutOfBudget(steps=self._steps)

    def _ask(self) -> None:
        """How to go on."""
        self._pause_at = self._steps - PAUSED_EACH
        if self._pause is None or self._how is Pause.OVER:
            return
        with self._table.pools.giving_back(NO_SHARES):  # that is between us and this member
            how = self._pause(True)
        if how is not Pause.GO_ON:
            self._how = how

    def check(self) -> None:
        """
        :raises Interrupted: the search is over, or was on a table that has changed since
        """
        if self._how is not Pause.GO_ON:
            raise Interrupted(self._how)

    def begin_anew(self) -> None:
        """One has its place; the next may take as many steps."""
        self._steps, self._trees = self._may
        self._pause_at = self._steps - PAUSED_EACH
        self._seen.clear()

    def amounts(self, row: int, solution: TreeSolution) -> dict[int, dict[str, int]]:
        """Provider id -> class -> amount, of all that the request asks for; the host is in it."""
        found = self._table.providers_of(row, self.rest)
        for pid, amounts in solution.by_provider().items():
            here = found.setdefault(pid, {})
            for name, amount in amounts.items():
                here[name] = here.get(name, 0) + amount
        return found

    def shares(self, row: int, solution: TreeSolution) -> list[GroupShare]:
        """The same by group: the host first, then by provider; groups in their order."""
        found = [
            GroupShare('', pid, dict(amounts))
            for pid, amounts in self._table.providers_of(row, self.rest).items()
        ]
        for one in solution.groups:
            same = [
                n
                for n, known in enumerate(found)
                if not one.suffix and (known.suffix, known.provider_id) == ('', one.provider_id)
            ]
            if same:
                found[same[0]].resources.update(one.resources)
            elif one.resources:
                found.append(GroupShare(one.suffix, one.provider_id, dict(one.resources)))
        return found

    def problem(self) -> str:
        """Why it is not known whether there is room; '' where it is."""
        if not self.given_up:
            return ''
        return (
            f'the search was ended on {len(self.given_up)} hosts after {self._may[0]} steps or '
            f'{self._may[1]} different trees: whether the groups go together there is not known; '
            'ask for fewer groups, or for more that are alike'
        )

    # -- inside ------------------------------------------------------------------------
    def _passes(self, row: int) -> bool:
        return self._filter_run is not None and bool(self._filter_run.alive[row])

    def _bar(self, failed: list[int]) -> None:
        if not failed or self._filter_run is None:
            return
        filters = self._filter_run.pipeline.filters
        if filters:
            at = [k for k, rule in enumerate(filters) if isinstance(rule, ResourcesFilter)]
            self._filter_run.bar(at[0] if at else len(filters) - 1, failed)

    def _solution(
        self, answer: _Answer, ids: list[int], wholes: list[Mapping[str, int]]
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
        """The providers of the tree of a host, as far as they matter, the host first.

        And how much each may give in all, by class.
        """
        table = self._table
        host, pools = table.hosts[row], table.pools
        shares = pools.have_any(self._classes)
        inventories = {}
        for name in self._classes:
            code, known = table.class_code(name), host.facts.inventories.get(name)
            if code is not None and known is not None:
                cap = min(known.cap, 2**62 - 1)
                inventories[name] = ClassInventory(
                    cap=cap,
                    used=cap - int(table.free.item(code, row)),
                    min_unit=known.min_unit,
                    max_unit=known.largest,
                    step_size=known.step_size,
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
        beside = pools.of_host(host.id) if shares else ()
        for pid in (*nested, *(one for one in beside if one not in nested)):
            pool = pools.of_id[pid]
            is_below = pool.root == host.id
            found = {
                name: as_inventory(pool, name, pools.laid_on(pid, name))
                for name in self._classes
                if name in pool.inventories
            }
            if not is_below and not found:
                continue
            traits = pool.traits if is_below else {*pool.traits, SHARES}
            place = (
                (pool.id, pool.uuid, host.id, pool.parent)
                if is_below
                else (pool.id, pool.uuid, pool.id, None)
            )
            others = [name for name in pool.traits if name not in self._traits]
            if len(pool.inventories) > len(found):
                classes = pool.inventories.items()
                others += [name for name, one in classes if name not in found and one.cap > 0]
            entries.append(
                self._entry(place, traits, pool.aggregates, found, others, keeps=SHARES in traits)
            )
        wholes: list[Mapping[str, int]] = [
            {name: one.cap for name, one in entry.inventories.items()} for entry in entries
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
        """
        :param others: traits and classes that the request says nothing of
        :param keeps: all of its aggregates matter: by them pools are shared
        """
        pid, uuid, root, parent = place
        return ProviderEntry(
            id=pid,
            uuid=uuid,
            root_id=root,
            parent_id=parent,
            traits=tuple(sorted(self._traits.intersection(traits))),
            aggregates=tuple(sorted(one for one in aggregates if keeps or one in self._aggregates)),
            inventories=inventories,
            others=tuple(sorted(others)),
        )


def _signature(entries: list[ProviderEntry]) -> object:
    """The same of trees that differ in nothing but their ids, and names that are not looked at."""
    at = {entry.id: n for n, entry in enumerate(entries)}
    others = {names: n for n, names in enumerate(sorted({entry.others for entry in entries}))}
    return tuple(
        (
            at[entry.root_id],
            None if entry.parent_id is None else at.get(entry.parent_id, -1),
            entry.traits,
            entry.aggregates,
            len(entry.others),
            others[entry.others],
            tuple((n, *msgspec.structs.astuple(one)) for n, one in entry.inventories.items()),
        )
        for entry in entries
    )
