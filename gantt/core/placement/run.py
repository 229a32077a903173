# SPDX-License-Identifier: Apache-2.0
"""What place() does, member by member, and how it is taken back."""

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from gantt.core.claims.claim import claim_id
from gantt.core.messages import image_properties
from gantt.core.messages.base import topic_of
from gantt.core.messages.layout import Layout, plain
from gantt.core.messages.request import Purpose, SelectDestinations, name_of
from gantt.core.placement import verdict
from gantt.core.placement.evaluation import FilterRun
from gantt.core.placement.layout_choice import Fitting
from gantt.core.placement.pipeline import Pipeline
from gantt.core.placement.ranking import Ranking, top
from gantt.core.records.decision import (
    CHOSEN,
    PASSED,
    FilterCount,
    MemberDecision,
    Score,
    Selection,
)
from gantt.core.resources.host import Placed
from gantt.core.table.host_table import HostTable

#: Finalists whose scores a decision keeps, at least.
FINALISTS = 5
#: Verdict bytes kept per decision; members beyond it have none.
VERDICT_BYTES_MAX = 1 << 22


class Run:
    """See the module docstring.

    :ivar decisions: of the members so far, in order
    """

    def __init__(
        self,
        table: 'HostTable',
        request: SelectDestinations,
        pipeline: Pipeline,
        seed: int,
        attempt: int,
        spread: int,
    ) -> None:
        self.table, self.request, self.pipeline = table, request, pipeline
        self.seed, self.attempt = seed, attempt
        self.spread, self.subset = spread, max(pipeline.subset_size, spread)
        self.filter_run = FilterRun(table, request.spec, pipeline)
        spec = request.spec
        wish = pipeline.inside.wish(spec) if spec.may_need_topology else None
        self.fitting = (
            None if wish is None else Fitting(table, wish, pipeline.inside, self.filter_run)
        )
        image, flavor = request.spec.image, request.spec.flavor
        self.image = image_properties.text_of(image) if image.properties else None
        self.flavor = name_of(flavor) if flavor.name else None
        self.decisions: list[MemberDecision] = []
        self.taken: list[tuple[int, str]] = []
        self.chosen: list[int] = []
        self.ranking: Ranking | None = None
        self._scores: dict[int, Score] = {}  # by row, as the ranking is now
        self.finalists: list[int] = []
        self.oldest = table.now
        self._verdict_bytes = 0

    @property
    def age_seconds(self) -> float:
        """Age of the oldest report among the finalists."""
        return max(0.0, self.table.now - self.oldest)

    def another(self) -> 'Run':
        """A run of the same request that has not begun."""
        return Run(self.table, self.request, self.pipeline, self.seed, self.attempt, self.spread)

    @contextlib.contextmanager
    def without_older(self) -> Iterator[None]:
        """Leave out the older claims of a group's members while these are placed anew together.

        They give way to the new ones, so that nobody is placed beside them.  Those of
        a move stay: its source is there until the guest has arrived.
        """
        request, index = self.request, self.table.placed
        group, older = request.spec.group, list[Placed]()
        hard = group is not None and group.policy is not None and group.policy.is_hard
        if group and hard and len(request.consumers) > 1 and not request.spec.purpose.is_move:
            many = range(len(request.consumers))
            new = {claim_id(request.request_id, self.attempt, i) for i in many}
            older = [
                placed
                for consumer in request.consumers
                for provider_id in sorted(set(index.where(consumer)))
                for placed in index.on(provider_id).values()
                if placed.consumer == consumer
                and placed.group == group.uuid
                and placed.claim_id not in new
            ]
        for placed in older:
            index.remove(placed.provider_id, placed.claim_id)
        try:
            yield
        finally:
            for placed in older:
                index.add(placed)

    def look_anew(self) -> None:
        """The usage of hosts has changed since the last member: nothing that was seen holds.

        The hosts themselves, and their rows, are the same.
        """
        barred = [] if self.fitting is None else self.fitting.unfit
        self.filter_run = self.filter_run.anew(self.request.spec)
        if self.fitting is not None:
            self.fitting = self.fitting.on(self.filter_run)
            self.fitting.unfit.update(barred)
        self.ranking = None
        self._scores.clear()

    def place(self, member: int, last: bool, fresh: bool = False) -> bool:
        """One member; False where no host is left.

        :param fresh: look at all hosts, whatever was seen of the member before
        """
        consumer = self.request.consumers[member]
        counts = None if fresh else self.filter_run.look_again(consumer)
        again = counts is not None
        if counts is None:
            # Where layouts are to be found a second look may follow the last one.
            counts = self.filter_run.look(consumer, last and self.fitting is None)
        if not self.filter_run.left:
            self._decide(member, counts, None, [], 0)
            return False
        ranking = self._rank(again)
        if self.fitting is None:
            (finalists, pick), layout = self._pick(ranking, member), None
        else:
            found = self.fitting.choose(ranking, lambda: self._pick(ranking, member))
            if found is None:
                return self._look_further(member, last)
            finalists, pick, layout = found
        row = int(ranking.rows[pick])
        self.finalists = finalists
        scores = self._scores_of(ranking, finalists)
        self.filter_run.verdict[row] = CHOSEN
        # Before the pick is laid over the host: it may change what the host meets.
        claims = self.request.spec.purpose is not Purpose.REBUILD
        given_up = self.filter_run.picked(row, claims)
        selection = self._take(member, consumer, row, layout)
        self._decide(
            member, self.filter_run.counts, selection, scores, self.filter_run.left, given_up
        )
        return True

    def _look_further(self, member: int, last: bool) -> bool:
        """None of the survivors has a layout: those who gave way to them may have one."""
        if self.pipeline.closing:
            return self.place(member, last, fresh=True)
        self._decide(member, self.filter_run.counts, None, [], 0)
        return False

    def _rank(self, again: bool) -> Ranking:
        """The survivors weighed; ``again``: they are those of the member before."""
        if again and self.ranking is not None:
            moved = self.filter_run.rank_again(self.ranking)
            if moved is not None:
                if moved:
                    self._scores.clear()
                else:
                    self._scores.pop(self.chosen[-1], None)
                return self.ranking
        self._scores.clear()
        self.ranking = self.filter_run.rank()
        return self.ranking

    def _scores_of(self, ranking: Ranking, finalists: list[int]) -> list[Score]:
        rows = ranking.rows.take(finalists).tolist()
        known, found = self._scores, []
        for i, row in zip(finalists, rows, strict=True):
            score = known.get(row)
            if score is None:
                score = known[row] = ranking.score(self.table, i)
                self.oldest = min(self.oldest, self.table.reported_at.item(row))
            found.append(score)
        return found

    def _pick(self, ranking: Ranking, member: int) -> tuple[list[int], int]:
        """Indices of the finalists, best first, and of the chosen one."""
        pipeline, total = self.pipeline, ranking.total
        count = max(self.request.alternates + 1, FINALISTS, pipeline.subset_size)
        best = ranking.best(max(count, self.subset))
        pick, among = best[0], best[: self.subset]
        # Others who lose races find the same hosts equal, and in the same order.
        shuffles = pipeline.shuffle_best or (self.spread > 1 and self.subset > 1)
        if shuffles and total[among[-1]] == total[pick]:
            equal = np.flatnonzero(total == total[pick])
            pick = int(equal[_mix(self.seed, member) % len(equal)])
        elif self.subset > 1:
            pick = among[_mix(self.seed, member) % len(among)]
        best = best[:count]
        if pick not in best:
            best = [pick, *best[:-1]] if total[pick] == total[best[0]] else [*best[:-1], pick]
        return best, pick

    def _take(self, member: int, consumer: str, row: int, layout: Layout | None) -> Selection:
        request, spec = self.request, self.request.spec
        identity: str | None = None
        if spec.purpose is not Purpose.REBUILD:
            identity = claim_id(request.request_id, self.attempt, member)
            provider_id = self.table.hosts[row].id
            group = spec.group.uuid if spec.group else None
            placed = Placed(identity, consumer, provider_id, group, layout, self.image, self.flavor)
            self.table.take(provider_id, spec.resources, placed)
            self.taken.append((provider_id, identity))
        self.chosen.append(row)
        return self._selection(row, consumer, None if request.dry_run else identity, layout)

    def _selection(
        self, row: int, consumer: str, identity: str | None, layout: Layout | None = None
    ) -> Selection:
        host = self.table.hosts[row]
        return Selection(
            host=host.name,
            node=host.node or host.name,
            uuid=host.uuid,
            provider_id=host.id,
            consumer=consumer,
            claim_id=identity,
            cell=host.cell,
            zone=self.table.zone_name(row),
            build_topic=topic_of(host.name),
            resources=self.request.spec.resources,
            layout=None if layout is None else plain(layout),
        )

    def _decide(
        self,
        member: int,
        counts: list[FilterCount],
        selection: Selection | None,
        scores: list[Score],
        survivors: int,
        given_up: Sequence[tuple[int, str]] = (),
    ) -> None:
        bytes_ = b''
        self._verdict_bytes += len(self.filter_run.verdict)
        # Of a request of many members the first few say it all, and the one that failed.
        if self._verdict_bytes <= VERDICT_BYTES_MAX or not self.decisions or selection is None:
            bytes_ = self.filter_run.verdict.tobytes()
        self.decisions.append(
            MemberDecision(
                member=member,
                consumer=self.request.consumers[member],
                selection=selection,
                filters=counts,
                survivors=survivors,
                scores=scores,
                verdicts=bytes_,
                level=max((step for step, _ in given_up), default=0),
                given_up=[rule for _, rule in given_up],
            )
        )

    def add_alternates(self) -> None:
        """Give every selection its alternates: same cell, nobody's selection, unclaimed."""
        wanted, ranking = self.request.alternates, self.ranking
        if not wanted or ranking is None:
            return
        # Members of one cell have the same ones, but for whom they are.
        chosen, by_cell = set(self.chosen), dict[int, list[Selection]]()
        for i, row in enumerate(self.chosen):
            cell = int(self.table.cell[row])
            if cell not in by_cell:
                best = self._best_of_cell(ranking, chosen, cell, wanted)
                by_cell[cell] = [self._selection(r, '', None) for r in best]
            if by_cell[cell]:
                decision = self.decisions[i]
                alternates = [replace(a, consumer=decision.consumer) for a in by_cell[cell]]
                self.decisions[i] = replace(decision, alternates=alternates)

    def _best_of_cell(
        self, ranking: Ranking, chosen: set[int], cell: int, wanted: int
    ) -> list[int]:
        cells = self.table.cell
        # Mostly the finalists are enough; they need not be.
        rows = ranking.rows.take(self.finalists).tolist()
        near = [r for r in rows if r not in chosen and cells[r] == cell and self._has_layout(r)]
        if len(near) >= wanted or len(rows) == len(ranking.rows):
            return near[:wanted]
        total = np.where(cells.take(ranking.rows) == cell, ranking.total, -np.inf)
        taken = np.searchsorted(ranking.rows, self.chosen)
        for index, row in zip(taken.tolist(), self.chosen, strict=True):
            if index < len(total) and ranking.rows[index] == row:
                total[index] = -np.inf
        best = top(total, min(wanted if self.fitting is None else wanted + FINALISTS, len(total)))
        found = [int(ranking.rows[i]) for i in dict.fromkeys(best.tolist()) if total[i] > -np.inf]
        return [row for row in found if self._has_layout(row)][:wanted]

    def _has_layout(self, row: int) -> bool:
        """Whether a host that is not picked would do."""
        return self.fitting is None or self.fitting.lay(row) is not None

    def failure(self, wanted: int) -> tuple[str, str]:
        """The one-line verdict of the member that found no host, and what decided it."""
        failed = self.decisions[-1]
        line, cause = verdict.refused(failed, self.filter_run)
        if wanted > 1:
            who = f'member {failed.member + 1} of {wanted}, with {len(self.taken)} before it placed'
            line = f'{who}: {line}'
        return line, cause

    def give_back(self) -> None:
        """Take every pick back from the table."""
        for provider_id, identity in self.taken:
            self.table.give(provider_id, self.request.spec.resources, identity)
        self.taken = []

    def withdraw(self) -> None:
        """No selection is returned and nothing stays taken."""
        self.give_back()
        self.decisions = [
            d
            if d.selection is None
            else replace(
                d,
                selection=None,
                alternates=[],
                level=0,
                given_up=[],
                verdicts=d.verdicts.replace(bytes([CHOSEN]), bytes([PASSED])),
            )
            for d in self.decisions
        ]


def _mix(seed: int, member: int) -> int:
    """A number that looks random and depends on seed and member only."""
    z = (seed * 0x9E3779B97F4A7C15 + (member + 1) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return z ^ (z >> 31)
