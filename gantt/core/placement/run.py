# SPDX-License-Identifier: Apache-2.0
"""Placement of the members of one request: evaluation of all hosts, picks, claims, rollback.

The first member of an evaluation is placed by running every filter and every weigher.  Members
after it that are alike continue from there: the pick before changed its own host alone, by the
steps of the weighers and as often as the filters allow, so that neither is run again and the table
is written for all of them together.  The picks are the same, bit for bit.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gantt.core.claims.claim import claim_id, claim_ids
from gantt.core.filters.base import Ceiling
from gantt.core.messages import image_properties
from gantt.core.messages.keys.topology_settings import pmem_class, refuse
from gantt.core.messages.layout import Layout, layout_json
from gantt.core.messages.request import Purpose, RequestSpec, SelectDestinations, name_of
from gantt.core.messages.resource_classes import Inventory
from gantt.core.messages.topology_request import TopologyRequest
from gantt.core.pause import AskPause
from gantt.core.placement import verdict
from gantt.core.placement.evaluation import FilterRun
from gantt.core.placement.layout_choice import LayoutChoice
from gantt.core.placement.pipeline import Pipeline
from gantt.core.placement.ranking import Ranking, indices_of_largest
from gantt.core.placement.tree_choice import GroupShare, TreeChoice
from gantt.core.records.decision import (
    CHOSEN_VERDICT,
    PASSED_VERDICT,
    FilterCount,
    MemberDecision,
    ProviderAllocation,
    Selection,
)
from gantt.core.records.members import MemberColumns, MemberEvaluation, total_of
from gantt.core.resources.host import Placed
from gantt.core.table.host_table import HostTable
from gantt.core.table.pools import NO_SHARES, Shares
from gantt.core.table.usage import Pick

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable


#: No consumer holds anything of pools yet.
NO_HELD_SHARES: Mapping[str, Shares] = {}
#: Least number of finalists whose scores a decision keeps.
FINALISTS = 5
#: One in so many runs has what it reuses compared with a whole evaluation.
CHECK_EVERY = 16
#: Members placed by steps between two writes of the table.
MEMBERS_BY_STEPS_MAX = 32


class HostDraw(NamedTuple):
    """Draw of one host among the best.

    :ivar seed: of its pseudo-random numbers
    :ivar spread: number of best hosts to pick among at least
    """

    seed: int
    spread: int

    def position(self, member: int, count: int) -> int:
        """Return the position drawn out of ``count``, which seed and member alone decide."""
        z = (self.seed * 0x9E3779B97F4A7C15 + (member + 1) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
        return (z ^ (z >> 31)) % count


class Run:
    """Placement attempt for the members of one request, whose picks lie on the table.

    :ivar members: decisions on members so far, in order
    :ivar is_cut_short: True where the budget ended during the search for a better run
    """

    def __init__(
        self,
        table: 'HostTable',
        request: SelectDestinations,
        pipeline: Pipeline,
        draw: HostDraw,
        attempt: int,
        before: 'Run | None' = None,
        held: Mapping[str, Shares] = NO_HELD_SHARES,
        pause: AskPause | None = None,
    ) -> None:
        self.table = table
        self.request = request
        self.pipeline = pipeline
        self.draw = draw
        self.attempt = attempt
        self.held = held
        self.pause = pause
        self.subset = max(pipeline.settings.subset_size, draw.spread)
        spec = request.spec
        self.filter_run: FilterRun = (
            FilterRun(table, spec, pipeline) if before is None else before.filter_run
        )
        wish = pipeline.inside.wish(spec) if spec.may_need_topology else None
        if wish is not None and spec.max_resources:
            check_topology_request(spec, wish)
        self.layout_choice = (
            None if wish is None else LayoutChoice(table, wish, pipeline.inside, self.filter_run)
        )
        self.claims = spec.purpose is not Purpose.REBUILD
        is_of_trees = self.claims and self.filter_run.is_of_trees
        self.tree_choice = TreeChoice.of(table, self.filter_run, pause) if is_of_trees else None
        #: Rows of the hosts to try in this order; empty: the scores decide.
        self.requested_rows = _rows_in_requested_order(table, request)
        image, flavor = request.spec.image, request.spec.flavor
        self.image = image_properties.text_of(image) if image.properties else None
        self.flavor = name_of(flavor) if flavor.name else None
        self.members = MemberColumns(
            request.request_id,
            attempt,
            request.consumers,
            len(self.filter_run.weighing.weighers),
            self.claims and not request.dry_run,
        )
        self.taken: list[tuple[int, str]] = []
        self.is_cut_short = False
        self.chosen: list[int] = []
        self.ranking: Ranking | None = None
        self._finalist_lines: dict[
            int, int
        ] = {}  # of the evaluation: index in the current ranking -> line
        self._steps: bool | None = None  # whether the members are alike; None: not computed
        self._picks_left_by_row: dict[int, int] = {}  # row -> how many more members it takes
        self._last_pick: int | None = None  # row of the last pick
        self._shares: Shares = NO_SHARES  # amounts that the last pick took of pools
        #: Last evaluation of the previous run, until the first member is placed.
        self._previous_evaluation: MemberEvaluation | None = None
        self.finalists: list[int] = []
        if before is not None:
            self.ranking = before.ranking
            self._steps = before._steps
            self._picks_left_by_row = before._picks_left_by_row
            self._last_pick = before._last_pick
            self._previous_evaluation = before.members.evaluations[-1]

    @property
    def age_seconds(self) -> float:
        """Age in seconds of the oldest report among the finalists."""
        return self.table.oldest_report_seconds(list(self.members.hosts))

    def may_go_on(self, request: SelectDestinations) -> bool:
        """Return whether the first member of ``request`` is alike to the last member of this run.

        Only valid while nothing else has changed the table since.
        """
        spec, ranking, last = self.request.spec, self.ranking, self._last_pick
        if ranking is None or last is None or spec.group is not None or request.spec != spec:
            return False
        return self._is_alike(ranking, last)

    def new_run(self) -> 'Run':
        """Return a run of the same request that has not begun."""
        return Run(
            self.table,
            self.request,
            self.pipeline,
            self.draw,
            self.attempt,
            held=self.held,
            pause=self.pause,
        )

    def reset_evaluation(self) -> None:
        """Discard cached evaluations after the usage of hosts has changed since the last member.

        The hosts themselves, and their rows, are the same.
        """
        self.filter_run = self.filter_run.anew(self.request.spec)
        if self.layout_choice is not None:
            self.layout_choice = self.layout_choice.for_filter_run(self.filter_run)
        if self.tree_choice is not None:
            self.tree_choice = self.tree_choice.for_filter_run(self.filter_run)
        self.ranking = None

    def place(self, member: int, last: bool, fresh: bool = False) -> bool:
        """Place one member; return False where no host is left.

        :param fresh: evaluate all hosts, without results of the member before
        :raises Interrupted: the member has no place yet, and its evaluation is no longer valid
        """
        held = self.held.get(self.request.consumers[member])
        if held is None:
            return self._place(member, last, fresh)
        # A consumer that moves keeps what it holds of pools: it does not need it twice.
        with self.table.pools.with_returned_shares(held):
            return self._place(member, last, fresh)

    def _place(self, member: int, last: bool, fresh: bool) -> bool:
        consumer = self.request.consumers[member]
        if self.filter_run.is_distrusting:
            self.reset_evaluation()
        counts = None if fresh else self.filter_run.reevaluate(consumer)
        is_repeat = counts is not None
        if counts is None:
            if self.filter_run.is_last:
                self.reset_evaluation()
            # Where layouts are searched, another evaluation may follow the last one.
            may_repeat = self.layout_choice is not None or self.tree_choice is not None
            counts = self.filter_run.evaluate(consumer, last and not may_repeat)
        self._steps = None
        self._picks_left_by_row = {}
        if not self.filter_run.left:
            self._record_failure(member, counts)
            return False
        ranking = self._rank(is_repeat)
        if is_repeat and not self._is_consistent(ranking):
            self.reset_evaluation()
            return self._place(member, last, fresh=True)
        choice = self._choose(ranking, member)
        if choice is None:
            return self._evaluate_relaxed(member, last)
        finalists, pick, layout = choice
        row = int(ranking.rows[pick])
        self.finalists = finalists
        self._previous_evaluation = None
        evaluation = MemberEvaluation(
            self.filter_run.counts,
            self.filter_run.left,
            self.filter_run.verdict.copy(),
            ranking.used,
        )
        self._finalist_lines = {}
        self._record_pick(evaluation, ranking, member, row, finalists)
        self.filter_run.verdict[row] = CHOSEN_VERDICT
        # Before the pick is applied to the host: it may change which rules the host meets.
        given_up = self.filter_run.picked(row, self.claims)
        evaluation.level = max((step for step, _ in given_up), default=0)
        evaluation.given_up = [rule for _, rule in given_up]
        if layout is not None:
            evaluation.layout = layout_json(layout)
        self.members.evaluations.append(evaluation)
        self._apply_pick(member, consumer, row, layout)
        return True

    def _choose(self, ranking: Ranking, member: int) -> tuple[list[int], int, Layout | None] | None:
        """Return finalists, the pick and its layout; None: no survivor has a layout or tree."""
        if self.layout_choice is None and self.tree_choice is None:
            return (*self._pick(ranking, member), None)

        def pick_one() -> tuple[list[int], int, Layout | None] | None:
            if self.layout_choice is None:
                return (*self._pick(ranking, member), None)
            return self.layout_choice.choose(ranking, lambda: self._pick(ranking, member))

        return (
            pick_one() if self.tree_choice is None else self.tree_choice.choose(ranking, pick_one)
        )

    def go_on(self, members: Sequence[int]) -> int:
        """Place members that are alike to the one before, from its evaluation.

        :returns: number of members placed; the next one, if any, needs an evaluation
        """
        ranking, row = self.ranking, self._last_pick
        if not members or ranking is None or row is None or not self._is_alike(ranking, row):
            return 0
        table, picks_left, verdict = self.table, self._picks_left_by_row, self.filter_run.verdict
        if not picks_left[row]:
            return 0
        if self._previous_evaluation is not None:
            previous, self._previous_evaluation = self._previous_evaluation, None
            self.members.goes_on = True
            self.members.evaluations.append(
                MemberEvaluation(
                    previous.filters, previous.survivors, previous.verdicts, previous.used
                )
            )
        evaluation = self.members.evaluations[-1]
        batch = members[:MEMBERS_BY_STEPS_MAX]
        ids = claim_ids(self.request.request_id, self.attempt, batch)
        consumers, (of_group, of_member) = self.request.consumers, _group_of(self.request.spec)
        as_what = (self.image, self.flavor, of_member)
        placed: list[Placed] = []
        rows: list[int] = []
        shares: list[Shares] = []
        verdict[row] = PASSED_VERDICT
        pick = int(np.searchsorted(ranking.rows, row))
        for member, identity in zip(batch, ids, strict=True):
            if not (picks_left[row] and self._steps and self._step(ranking, pick)):
                break
            self.finalists, pick = self._pick(ranking, member)
            row = ranking.rows.item(pick)
            self._record_pick(evaluation, ranking, member, row, self.finalists)
            host = table.hosts[row].id
            if row not in picks_left:
                picks_left[row] = self.filter_run.picks_left(row)
            # As in ``_apply_pick``: the next member needs an evaluation.
            picks_left[row] = (
                0 if identity in table.placed.on_provider(host) else max(picks_left[row] - 1, 0)
            )
            placed.append(Placed(identity, consumers[member], host, of_group, None, *as_what))
            rows.append(row)
            shares += self._apply_to_pools(evaluation, row, identity)
        if not evaluation.members:
            self.members.evaluations.pop()
            self.members.goes_on = False
        evaluation.claim_ids += ids[: len(rows)]
        verdict[row] = CHOSEN_VERDICT
        table.add_equal_picks(self.request.spec.resources, placed, rows, shares)
        self.taken += [(claim.provider_id, claim.claim_id) for claim in placed]
        self.chosen += rows
        self._last_pick = row
        self.filter_run.stepped(rows)
        # A claim that was found again has not changed its host: then no pick is left.
        is_alike = picks_left[row] > 0 and self._steps and self.ranking is ranking
        if rows and is_alike and not self._is_consistent(ranking, row):
            self.reset_evaluation()
        return len(rows)

    def _is_consistent(self, ranking: Ranking, row: int | None = None) -> bool:
        """Return False where a sampled comparison with a whole evaluation finds a wrong plugin.

        :param row: row of a pick that the ranking does not follow yet
        """
        return self.draw.seed % CHECK_EVERY > 0 or self.filter_run.is_consistent(ranking, row)

    def _step(self, ranking: Ranking, pick: int) -> bool:
        """Update the ranking for the last pick by the steps of the weighers; False: rank anew."""
        try:
            moved = ranking.step(pick)
        except ValueError:  # the new ranking finds the failing weigher and handles it
            self.ranking = None
            return False
        if moved:
            self._finalist_lines.clear()
        else:
            self._finalist_lines.pop(pick, None)
        return True

    def _is_alike(self, ranking: Ranking, row: int) -> bool:
        """Return whether the members after the last one, on ``row``, are alike to it.

        True where the effect of a pick is known for all filters and weighers without running them.
        """
        if self.filter_run.is_distrusting:
            return False
        if self._steps is None:
            run = self.filter_run
            can_step = (
                self.claims
                and self.layout_choice is None
                and self.tree_choice is None
                and not self.held
            )
            can_step = can_step and not self.requested_rows
            self._steps = can_step and not self.request.spec.max_resources and run.may_step(ranking)
        if self._steps and row not in self._picks_left_by_row:
            self._picks_left_by_row[row] = self.filter_run.picks_left(row)
        return self._steps

    def _record_pick(
        self,
        evaluation: MemberEvaluation,
        ranking: Ranking,
        member: int,
        row: int,
        finalists: list[int],
    ) -> None:
        """Add a pick to an evaluation, with the lines of finalists that have none yet."""
        lines = self._finalist_lines
        for i in finalists:
            line = lines.get(i)
            if line is None:
                line = lines[i] = len(evaluation.line_rows)
                evaluation.line_rows.append(ranking.rows.item(i))
                evaluation.lines += ranking.line(i)
            evaluation.finalists.append(line)
        evaluation.members.append(member)
        evaluation.rows.append(row)

    def _evaluate_relaxed(self, member: int, last: bool) -> bool:
        """Evaluate anew hosts that relaxable filters removed: no survivor has a layout."""
        if self.filter_run.may_relax:
            return self._place(member, last, fresh=True)
        self._record_failure(member, self.filter_run.counts)
        return False

    def _rank(self, again: bool) -> Ranking:
        """Return the weighed survivors.

        :param again: they are those of the member before, whose weights are reused
        """
        if not (again and self.ranking is not None and self.filter_run.rank_again(self.ranking)):
            self.ranking = self.filter_run.rank()
        if self.requested_rows:
            self.ranking.prefer(self.requested_rows)
        return self.ranking

    def _pick(self, ranking: Ranking, member: int) -> tuple[list[int], int]:
        """Return indices of the finalists, best first, and the index of the chosen host."""
        settings, total = self.pipeline.settings, ranking.total
        count = max(self.request.alternates + 1, FINALISTS, settings.subset_size)
        best = ranking.best(max(count, self.subset))
        if self.subset == 1 and not settings.shuffle_best:
            return best, best[0]
        pick, among = best[0], best[: self.subset]
        # Workers that lose races see the same hosts equal, and in the same order.
        shuffles = settings.shuffle_best or self.draw.spread > 1
        if shuffles and total[among[-1]] == total[pick]:
            equal = np.flatnonzero(total == total[pick])
            pick = int(equal[self.draw.position(member, len(equal))])
        elif self.subset > 1:
            pick = among[self.draw.position(member, len(among))]
        best = best[:count]
        if pick not in best:
            best = [pick, *best[:-1]] if total[pick] == total[best[0]] else [*best[:-1], pick]
        return best, pick

    def _apply_pick(self, member: int, consumer: str, row: int, layout: Layout | None) -> None:
        request, spec = self.request, self.request.spec
        if self.claims:
            identity = claim_id(request.request_id, self.attempt, member)
            provider_id = self.table.hosts[row].id
            group, member_of = _group_of(spec)
            as_what = (self.image, self.flavor, member_of)
            placed = Placed(identity, consumer, provider_id, group, layout, *as_what)
            if identity in self.table.placed.on_provider(provider_id):
                # A repeated request finds its own claim, which is not counted twice.
                self._steps = False
            members_after = len(request.consumers) - member - 1
            if self.tree_choice is not None:
                self._apply_to_tree(row, placed, members_after)
                self.chosen.append(row)
                self._last_pick = row
                return
            held_shares = self.held.get(consumer, NO_SHARES)
            amounts, self._shares = self._apply_to_host(row, placed, members_after, held_shares)
            self.taken.append((provider_id, identity))
            self.members.evaluations[-1].claim_ids.append(identity)
            if self.filter_run.is_pooled or spec.max_resources:
                evaluation = self.members.evaluations[-1]
                evaluation.allocations.append(
                    allocations_by_provider(self.table, spec, row, amounts, self._shares)
                )
                if self.filter_run.is_pooled:
                    self._reevaluate_after(self._shares)
        self.chosen.append(row)
        self._last_pick = row

    def _apply_to_tree(self, row: int, placed: Placed, members_after: int) -> None:
        """Apply a pick to its host and to the providers of or beside its tree that it takes from.

        :param members_after: members of the request that may be placed after it
        """
        assert self.tree_choice is not None
        spec = self.request.spec
        solution = self.tree_choice.solve(row)
        assert solution is not None, 'it was chosen for it'
        groups = self.tree_choice.shares(row, solution)
        shares = self.tree_choice.amounts(row, solution)
        if spec.max_resources:  # then there are no groups but the one
            ceilings = self.filter_run.ceilings(row)
            shares = ranged_shares(self.table, row, spec, shares, members_after, ceilings)
            groups = [GroupShare('', pid, dict(amounts)) for pid, amounts in shares.items()]
        parts = allocations_by_group(self.table, row, groups)
        host_amounts = shares.pop(placed.provider_id)
        self.table.add_pick(placed.provider_id, host_amounts, placed, shares)
        self._shares = shares
        self.taken.append((placed.provider_id, placed.claim_id))
        evaluation = self.members.evaluations[-1]
        evaluation.claim_ids.append(placed.claim_id)
        evaluation.allocations.append(parts)

    def _apply_to_host(
        self, row: int, placed: Placed, members_after: int, held: Shares
    ) -> tuple[dict[str, int], Shares]:
        """Apply a pick to its host.

        :param members_after: members of the request that may be placed after it
        :param held: amounts that its consumer holds of pools already, and does not take again
        :returns: all amounts that it gets, and those of pools
        """
        table, spec = self.table, self.request.spec
        if not (held or spec.max_resources):
            return spec.resources, table.add_pick(placed.provider_id, spec.resources, placed)
        shares = table.providers_of(row, spec.resources)
        if spec.max_resources:
            ceilings = self.filter_run.ceilings(row)
            shares = ranged_shares(table, row, spec, shares, members_after, ceilings)
        of_class = {name: n for amounts in shares.values() for name, n in amounts.items()}
        all_amounts = {name: of_class[name] for name in spec.resources}
        host_amounts = shares.pop(placed.provider_id)
        pool_amounts = {
            pool: {
                name: amount - held.get(pool, {}).get(name, 0)
                for name, amount in amounts.items()
                if amount > held.get(pool, {}).get(name, 0)
            }
            for pool, amounts in shares.items()
        }
        table.add_pick(placed.provider_id, host_amounts, placed, pool_amounts)
        return all_amounts, shares

    def _apply_to_pools(
        self, evaluation: MemberEvaluation, row: int, identity: str
    ) -> list[Shares]:
        """Apply what a host does not have itself to the pools that it takes it from.

        :returns: these amounts; empty where no pool has anything of the request
        """
        if not self.filter_run.is_pooled:
            return []
        table, host = self.table, self.table.hosts[row].id
        shares = table.providers_of(row, self.request.spec.resources)
        del shares[host]
        table.pools.add_shares(host, identity, shares)
        self._shares = shares
        evaluation.allocations.append(
            allocations_by_provider(
                table, self.request.spec, row, self.request.spec.resources, shares
            )
        )
        self._reevaluate_after(shares)
        return [shares]

    def _reevaluate_after(self, shares: Shares) -> None:
        """Require an evaluation for the next member where these shares make it differ.

        A pool has no more for another member, or a host took of itself what others take of pools.
        """
        pools, requested = self.table.pools, self.request.spec.resources
        pooled = {name for amounts in shares.values() for name in amounts}
        has_more = all(
            pools.fit_count(pool, name, requested[name])
            for pool, amounts in shares.items()
            for name in amounts
        )
        if not has_more or any(n in pools.of_class and n not in pooled for n in requested):
            self._steps = False

    def _alternate_allocations(self, row: int) -> list[ProviderAllocation]:
        """Return the allocations on a host that is taken in place of the last pick."""
        table, requested = self.table, self.request.spec.resources
        if self.tree_choice is not None:
            with table.pools.with_returned_shares(table.pools.shared_part(self._shares)):
                solution = self.tree_choice.solve(row)
                shares = [] if solution is None else self.tree_choice.shares(row, solution)
            return allocations_by_group(table, row, shares)
        if not (table.pools.of_class and table.pools.have_any(requested)):
            return []
        with table.pools.with_returned_shares(self._shares):
            pool_shares = table.providers_of(row, requested)
        del pool_shares[table.hosts[row].id]
        return allocations_by_provider(table, self.request.spec, row, requested, pool_shares)

    def _selection_of_row(self, row: int, zone: str, *, is_alternate: bool) -> Selection:
        """Return a host as a selection, without the fields of the member."""
        host = self.table.hosts[row]
        parts = self._alternate_allocations(row) if is_alternate else []
        requested = self.request.spec.resources
        return Selection(
            host=host.name,
            node=host.node or host.name,
            uuid=host.uuid,
            provider_id=host.id,
            consumer='',
            cell=host.cell,
            zone=zone,
            build_topic=host.build_topic,
            resources=total_of(parts) if self.tree_choice is not None and parts else requested,
            allocations=parts,
        )

    def _record_failure(self, member: int, counts: list[FilterCount]) -> None:
        """Record that no host is left for a member."""
        self.members.failed = MemberDecision(
            member=member,
            consumer=self.request.consumers[member],
            selection=None,
            filters=counts,
            verdicts=self.filter_run.verdict.tobytes(),
        )

    def name_hosts(self) -> None:
        """Record names and ids of the hosts of the decision, before the table changes."""
        members, hosts = self.members, self.table.hosts
        chosen = set(self.chosen)
        rows = list(dict.fromkeys(self.chosen))
        rows += dict.fromkeys(
            row for alternates in members.alternates.values() for row in alternates
        )
        members.places = {
            row: self._selection_of_row(row, zone, is_alternate=row not in chosen)
            for row, zone in zip(rows, self.table.zone_names(rows), strict=True)
        }
        members.hosts = {
            row: (self.table.names[row], hosts[row].id)
            for evaluation in members.evaluations
            for row in evaluation.line_rows
        }

    def add_alternates(self) -> None:
        """Add alternates to every selection: same cell, no member's selection, unclaimed."""
        alternates, ranking = self.request.alternates, self.ranking
        if not alternates or ranking is None:
            return
        chosen, by_cell = set(self.chosen), dict[int, list[int]]()
        for row in dict.fromkeys(self.chosen):
            cell = int(self.table.cell[row])
            if cell not in by_cell:
                by_cell[cell] = self._best_of_cell(ranking, chosen, cell, alternates)
            self.members.alternates[row] = by_cell[cell]

    def _best_of_cell(self, ranking: Ranking, chosen: set[int], cell: int, count: int) -> list[int]:
        cells = self.table.cell
        # The finalists usually suffice, but not always.
        rows = ranking.rows.take(self.finalists).tolist()
        near = (r for r in rows if r not in chosen and cells[r] == cell and self._has_layout(r))
        first = list(islice(near, count))
        if len(first) >= count or len(rows) == len(ranking.rows):
            return first
        total = np.where(cells.take(ranking.rows) == cell, ranking.total, -np.inf)
        taken = np.searchsorted(ranking.rows, self.chosen)
        for index, row in zip(taken.tolist(), self.chosen, strict=True):
            if index < len(total) and ranking.rows[index] == row:
                total[index] = -np.inf
        plain = self.layout_choice is None and self.tree_choice is None
        best = indices_of_largest(total, min(count if plain else count + FINALISTS, len(total)))
        candidates = [
            int(ranking.rows[i]) for i in dict.fromkeys(best.tolist()) if total[i] > -np.inf
        ]
        return list(islice((row for row in candidates if self._has_layout(row)), count))

    def _has_layout(self, row: int) -> bool:
        """Return whether a host that is not picked has a layout and fits the groups."""
        fits = self.layout_choice is None or self.layout_choice.fits(row)
        return fits and (self.tree_choice is None or self.tree_choice.solve(row) is not None)

    def failure(self, requested: int) -> tuple[str, str]:
        """Return the one-line verdict of the member that has no host, and its cause."""
        failed = self.members.failed
        assert failed is not None, 'a member that found no host ends the run'
        line, cause = verdict.refusal_of(failed, self.filter_run)
        if requested > 1:
            before = len(self.taken)
            member = f'member {failed.member + 1} of {requested}, with {before} before it placed'
            line = f'{member}: {line}'
        return line, cause

    def remove_picks(self) -> list[Pick]:
        """Remove every pick from the table, and return the removed picks."""
        requested = self.request.spec.resources
        picks = [self.table.remove_pick(host, requested, identity) for host, identity in self.taken]
        self.taken = []
        return [pick for pick in picks if pick is not None]

    def restore_picks(self, picks: Sequence[Pick]) -> None:
        """Apply picks again that were given back: the caller no longer waits for better ones."""
        for pick in picks:
            placed = pick.placed
            self.table.add_pick(placed.provider_id, pick.amounts, placed, pick.shares or NO_SHARES)
            self.taken.append((placed.provider_id, placed.claim_id))
        self.is_cut_short = True

    def withdraw(self) -> None:
        """Give back all picks and mark the members withdrawn: no selection is returned."""
        self.remove_picks()
        self.members.is_withdrawn = True


def _group_of(spec: RequestSpec) -> tuple[str | None, str | None]:
    """Return the group of a request, and its member of it."""
    return (spec.group.uuid, spec.group.member) if spec.group else (None, None)


def _rows_in_requested_order(table: HostTable, request: SelectDestinations) -> list[int]:
    """Return rows of the known hosts that a destination lists, in its order.

    Several members are spread over them by their scores: the first host would get them all.
    """
    destination = request.spec.destination
    names = destination.hosts if destination is not None and len(request.consumers) == 1 else ()
    return [row for name in names if (row := table.row_of(name)) is not None]


def allocations_by_provider(
    table: HostTable, spec: RequestSpec, row: int, wanted: dict[str, int], shares: Shares
) -> list[ProviderAllocation]:
    """Return the allocations by provider: the host first, then pools by id.

    Empty where all is the host's own, unless amounts differ by member.
    """
    if not (shares or spec.max_resources):
        return []
    pooled = {name for pool_amounts in shares.values() for name in pool_amounts}
    host_amounts = {name: amount for name, amount in wanted.items() if name not in pooled}
    host = table.hosts[row].id
    group_shares = [GroupShare('', host, host_amounts)]
    group_shares += [GroupShare('', pool, dict(shares[pool])) for pool in sorted(shares)]
    return allocations_by_group(table, row, group_shares)


def allocations_by_group(
    table: HostTable, row: int, shares: Sequence[GroupShare]
) -> list[ProviderAllocation]:
    """Return the allocations by group and provider, in the order of ``shares``."""
    host, pools = table.hosts[row], table.pools.by_id
    allocations = []
    for share in shares:
        provider = host if share.provider_id == host.id else pools[share.provider_id]
        allocations.append(
            ProviderAllocation(
                provider_id=provider.id,
                uuid=provider.uuid,
                name=provider.name,
                resources=share.resources,
                group=share.suffix,
            )
        )
    return allocations


# -- amounts that are ranges ---------------------------------------------------
#: Classes that NUMA cells of a guest consist of.
_CELL_CLASSES = ('VCPU', 'PCPU', 'MEMORY_MB')
_NO_CEILINGS: Mapping[str, Ceiling] = {}


def check_topology_request(spec: RequestSpec, wish: TopologyRequest) -> None:
    """Check that no range is requested of a class that is laid out inside of a host.

    :param wish: topology to lay out inside of a host
    :raises InvalidMessage: a range of a laid-out class: amounts above the least have no place
    """
    laid_out = {*(_CELL_CLASSES if wish.cells else ()), *map(pmem_class, wish.pmem)}
    for name in spec.max_resources:
        if name in laid_out:
            refuse(
                f'request.spec.max_resources.{name}',
                'the request has it laid out in cells of the host; expected one amount, no range',
            )


def ranged_shares(
    table: 'HostTable',
    row: int,
    spec: RequestSpec,
    shares: dict[int, dict[str, int]],
    members_after: int,
    ceilings: Mapping[str, Ceiling] = _NO_CEILINGS,
) -> dict[int, dict[str, int]]:
    """Return the amounts by provider, each as large as its provider has room for.

    Filters and weighers see the least, so that a range removes no host that the least would not,
    and leads nowhere else.  The chosen provider then gives as much as it has: at most ``most``, in
    one piece by the rules about its units, and no more than a rule of the pipeline allows there.
    Members are placed in order.  Each leaves the least for as many of those behind as can still
    come to the same place, so that members that fit with the least are never refused for what the
    first of them got.

    The provider of an amount follows from the least, see ``core.table.pools``.

    :param shares: the least by provider: provider id -> class -> amount
    :param members_after: members of the request that are placed after this one
    :param ceilings: room that rules of the pipeline leave of the chosen host's own classes
    """
    host, pools = int(table.ids[row]), table.pools
    host_room = {name: _free_on_host(table, row, name, ceilings) for name in shares[host]}
    # Members may come here without taking of the host a class that other providers have as well.
    others_have = pools.of_class.keys() | pools.nested.of_class.keys()
    times = [room // spec.resources[n] for n, room in host_room.items() if n not in others_have]
    fits_here = min(times, default=members_after + 1)
    for provider, amounts in shares.items():
        for name in amounts.keys() & spec.max_resources.keys():
            least, piece = amounts[name], None
            if provider == host:
                inventory, room, capacity = (
                    table.hosts[row].facts.inventories[name],
                    host_room[name],
                    fits_here,
                )
                piece = ceilings[name].piece if name in ceilings else None
            else:
                inventory = pools.by_id[provider].inventories[name]
                room, capacity = pools.free(provider, name), members_after + 1
            reserved_members = max(min(members_after, capacity - 1, room // least - 1), 0)
            amounts[name] = _largest_piece(
                inventory, least, spec.max_resources[name], room - reserved_members * least, piece
            )
    return shares


def _free_on_host(table: 'HostTable', row: int, name: str, ceilings: Mapping[str, Ceiling]) -> int:
    """Return the room left of a class on the chosen host itself."""
    code = table.class_code(name)
    assert code is not None, 'a filter has found it'
    free = table.free.item(code, row)
    return min(free, ceilings[name].room) if name in ceilings else free


def _largest_piece(
    inventory: Inventory, least: int, most: int, room: int, piece: int | None
) -> int:
    """Return the largest amount allowed in one piece, at least ``least``."""
    amount = min(most, room, inventory.largest)
    if piece is not None:
        amount = min(amount, piece)
    return max(least, amount - amount % inventory.step_size)
