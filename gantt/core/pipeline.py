# SPDX-License-Identifier: Apache-2.0
"""place(): filter, weigh, pick, lay the pick over the table; then the next member.

Pure and deterministic: the same table, request, pipeline and seed give the same
decision.  A failed request leaves the table as it was; a placed one leaves its
picks on it, until ``undo`` or the truth after the commit takes their place.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gantt import exceptions
from gantt.core import verdict
from gantt.core.claim import claim_id
from gantt.core.decision import (
    CHOSEN,
    PASSED,
    Decision,
    FilterCount,
    MemberDecision,
    Outcome,
    Score,
    Selection,
)
from gantt.core.filters.base import Filter
from gantt.core.group import without_older
from gantt.core.host import Placed
from gantt.core.request import Purpose, RequestSpec, SelectDestinations
from gantt.core.survey import Ranking, Survey, is_volatile, top
from gantt.core.weighers.base import Weigher, check_multiplier

if TYPE_CHECKING:
    from gantt.core.host_table import HostTable

#: Finalists whose scores a decision keeps, at least.
FINALISTS = 5
#: Verdict bytes kept per decision; members beyond it have none.
VERDICT_BYTES_MAX = 1 << 22


class Pipeline:
    """Filters in order, weighers, and how the pick is made.

    :ivar subset_size: pick at random, by the seed, among so many best
    :ivar shuffle_best: pick by the seed among hosts of the very same best
        weight, instead of the first of them in table order
    :ivar default_zone: what the zone of a host in no zone is called; None: as
        the table says
    :ivar skip_failing: leave out a plugin that raises, and say so in the
        decision, instead of failing the decision
    :ivar detailed: ask filters for the numbers behind their removals where a
        host was found as well; where none was they are always asked
    """

    def __init__(
        self,
        filters: Sequence[Filter],
        weighers: Sequence[Weigher],
        subset_size: int = 1,
        shuffle_best: bool = False,
        default_zone: str | None = None,
        skip_failing: bool = False,
        detailed: bool = False,
    ) -> None:
        if len(filters) >= PASSED:
            raise exceptions.Misconfigured(
                option='enabled_filters', problem=f'{len(filters)} filters', fix='Use at most 253'
            )
        for plugin in (*filters, *weighers):
            plugin.check_columns()
        for weigher in weighers:
            check_multiplier(weigher)
        self.filters = list(filters)
        # Without a multiplier a weigher has no say and need not be asked.
        self.weighers = [
            w for w in weighers
            if w.multiplier or type(w).multipliers is not Weigher.multipliers
        ]  # fmt: skip
        self.weigher_names = [w.name for w in self.weighers]
        self.subset_size = max(1, subset_size)
        self.shuffle_best = shuffle_best
        self.default_zone = default_zone
        self.skip_failing = skip_failing
        self.detailed = detailed
        self.volatile = [is_volatile(f) for f in self.filters]
        self.explains = [type(f).detail is not Filter.detail for f in self.filters]
        self.general = [_general(f) for f in self.filters]
        self.unmoved = [FilterCount(f.name, 0, '') for f in self.filters]
        self._asked = (list(filters), list(weighers))
        self.digest = self._digest()

        self._applying: dict[tuple[Purpose, bool], list[bool]] = {}

    def applying(self, purpose: Purpose, forced: bool) -> list[bool]:
        """Per filter whether it runs for such requests."""
        found = self._applying.get((purpose, forced))
        if found is None:
            found = [purpose in f.purposes and (f.always or not forced) for f in self.filters]
            self._applying[purpose, forced] = found
        return found

    def described(self) -> dict[str, Any]:
        """Everything that decides an outcome besides table and request."""
        filters, weighers = self._asked
        return {
            'filters': {f.name: f.settings() for f in filters},
            'weighers': {w.name: w.settings() for w in weighers},
            'subset_size': self.subset_size,
            'shuffle_best': self.shuffle_best,
            'default_zone': self.default_zone,
            'skip_failing': self.skip_failing,
            'detailed': self.detailed,
        }

    def _digest(self) -> str:
        body = {
            k: list(v.items()) if isinstance(v, dict) else v for k, v in self.described().items()
        }
        return hashlib.blake2b(repr(body).encode(), digest_size=8).hexdigest()


def _general(rule: Filter) -> str:
    """The reason of a filter without the numbers that only its ``detail`` knows."""
    said = re.sub(r'\s*\([^()]*{[^()]*\)', '', rule.reason)
    return rule.name if '{' in said else said


def place(
    table: 'HostTable',
    request: SelectDestinations,
    pipeline: Pipeline,
    *,
    seed: int,
    decision_id: str,
    members: list[int] | None = None,
    attempt: int = 1,
    worker: str = '',
) -> Decision:
    """Choose a host for each of ``members`` (indices into the consumers; None: all).

    All or none: where one member finds no host, what was taken for those
    before it is given back and no selection is returned.

    :raises InvalidMessage: the request names a group without its rule
    """
    _check_group(request.spec)
    if pipeline.default_zone is not None:
        table.default_zone = pipeline.default_zone
    run = _Run(table, request, pipeline, seed, attempt)
    wanted = range(len(request.consumers)) if members is None else members
    seq = table.seq
    outcome, reason, nearest = Outcome.PLACED, '', []
    try:
        with without_older(table, request, attempt):
            for position, member in enumerate(wanted):
                if not run.place(member, position == len(wanted) - 1):
                    outcome = Outcome.NO_VALID_HOST
                    reason = run.failure(len(wanted))
                    nearest = verdict.nearest(run.survey, request.consumers[member])
                    break
            else:
                run.add_alternates()
                reason = verdict.placed_line(run.decisions, len(table))
    except exceptions.PluginError as e:
        outcome, reason = Outcome.FAILED, e.message
    except BaseException:
        run.give_back()
        raise
    if outcome is not Outcome.PLACED:
        run.withdraw()
    if request.dry_run:
        run.give_back()
    return Decision(
        id=decision_id,
        request_id=request.request_id,
        outcome=outcome,
        hosts=len(table),
        members=run.decisions,
        weighers=pipeline.weigher_names,
        seed=seed,
        table_seq=seq,
        age_seconds=run.age_seconds,
        config_digest=pipeline.digest,
        relaxed=run.survey.skipped,
        reason=reason,
        nearest=nearest,
        provider_ids=table.provider_ids_bytes(),
        worker=worker,
        created_at=table.now,
        project_id=request.spec.project_id,
    )


def undo(table: 'HostTable', decision: Decision, request: SelectDestinations) -> None:
    """Take the picks of a decision back from the table; once or more often."""
    for member in decision.members:
        chosen = member.selection
        if chosen is not None and chosen.claim_id is not None:
            table.give(chosen.provider_id, request.spec.resources, chosen.claim_id)


def _check_group(spec: RequestSpec) -> None:
    if spec.group is not None and spec.group.policy is None:
        raise exceptions.InvalidMessage(
            field='request.spec.group.policy',
            problem='expected the rule of the group, which is not known here',
        )


class _Run:
    """What place() does, step by step, and how it is taken back."""

    def __init__(
        self,
        table: 'HostTable',
        request: SelectDestinations,
        pipeline: Pipeline,
        seed: int,
        attempt: int,
    ) -> None:
        self.table, self.request, self.pipeline = table, request, pipeline
        self.seed, self.attempt = seed, attempt
        self.survey = Survey(table, request.spec, pipeline)
        self.decisions: list[MemberDecision] = []
        self.taken: list[tuple[int, str]] = []
        self.chosen: list[int] = []
        self.ranking: Ranking | None = None
        self.finalists: list[int] = []
        self.oldest = table.now
        self._verdict_bytes = 0

    @property
    def age_seconds(self) -> float:
        """Age of the oldest report among the finalists."""
        return max(0.0, self.table.now - self.oldest)

    def place(self, member: int, last: bool) -> bool:
        """One member; False where no host is left."""
        consumer = self.request.consumers[member]
        counts = self.survey.look(consumer, last)
        if not self.survey.left:
            self._decide(member, counts, None, [], 0)
            return False
        self.ranking = ranking = self.survey.rank()
        finalists, pick = self._pick(ranking, member)
        row = int(ranking.rows[pick])
        self.finalists = finalists
        scores = ranking.scores(self.table, finalists)
        reports = self.table.reported_at.take(ranking.rows.take(finalists))
        self.oldest = min(self.oldest, *reports.tolist())
        self.survey.verdict[row] = CHOSEN
        selection = self._take(member, consumer, row)
        self._decide(member, counts, selection, scores, len(ranking.rows))
        return True

    def _pick(self, ranking: Ranking, member: int) -> tuple[list[int], int]:
        """Indices of the finalists, best first, and of the chosen one."""
        pipeline, total = self.pipeline, ranking.total
        count = max(self.request.alternates + 1, FINALISTS, pipeline.subset_size)
        best: list[int] = top(total, min(count, len(total))).tolist()
        pick = best[0]
        if pipeline.subset_size > 1:
            among = best[: pipeline.subset_size]
            pick = among[_mix(self.seed, member) % len(among)]
        elif pipeline.shuffle_best:
            equal = np.flatnonzero(total == total[pick])
            pick = int(equal[_mix(self.seed, member) % len(equal)])
        if pick not in best:
            best = [pick, *best[:-1]]
        return best, pick

    def _take(self, member: int, consumer: str, row: int) -> Selection:
        request, spec = self.request, self.request.spec
        identity: str | None = None
        if spec.purpose is not Purpose.REBUILD:
            identity = claim_id(request.request_id, self.attempt, member)
            provider_id = self.table.hosts[row].id
            group = spec.group.uuid if spec.group else None
            self.table.take(
                provider_id, spec.resources, Placed(identity, consumer, provider_id, group)
            )
            self.taken.append((provider_id, identity))
            self.survey.picked(row)
        self.chosen.append(row)
        return self._selection(row, consumer, None if request.dry_run else identity)

    def _selection(self, row: int, consumer: str, identity: str | None) -> Selection:
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
            build_topic=host.build_topic,
            resources=self.request.spec.resources,
        )

    def _decide(
        self,
        member: int,
        counts: list[FilterCount],
        selection: Selection | None,
        scores: list[Score],
        survivors: int,
    ) -> None:
        bytes_ = b''
        self._verdict_bytes += len(self.table)
        # Of a request of many members the first few say it all, and the one that failed.
        if self._verdict_bytes <= VERDICT_BYTES_MAX or not self.decisions or selection is None:
            bytes_ = self.survey.verdict.tobytes()
        self.decisions.append(
            MemberDecision(
                member=member,
                consumer=self.request.consumers[member],
                selection=selection,
                filters=counts,
                survivors=survivors,
                scores=scores,
                verdicts=bytes_,
            )
        )

    def add_alternates(self) -> None:
        """Give every selection its alternates: same cell, nobody's selection, unclaimed."""
        wanted, ranking = self.request.alternates, self.ranking
        if not wanted or ranking is None:
            return
        chosen, by_cell = set(self.chosen), dict[int, list[int]]()
        for i, row in enumerate(self.chosen):
            cell = int(self.table.cell[row])
            if cell not in by_cell:
                by_cell[cell] = self._best_of_cell(ranking, chosen, cell, wanted)
            if by_cell[cell]:
                decision = self.decisions[i]
                alternates = [self._selection(r, decision.consumer, None) for r in by_cell[cell]]
                self.decisions[i] = msgspec.structs.replace(decision, alternates=alternates)

    def _best_of_cell(
        self, ranking: Ranking, chosen: set[int], cell: int, wanted: int
    ) -> list[int]:
        cells = self.table.cell
        # Mostly the finalists are enough; they need not be.
        rows = ranking.rows.take(self.finalists).tolist()
        near = [row for row in rows if row not in chosen and cells[row] == cell]
        if len(near) >= wanted or len(rows) == len(ranking.rows):
            return near[:wanted]
        total = np.where(cells.take(ranking.rows) == cell, ranking.total, -np.inf)
        taken = np.searchsorted(ranking.rows, self.chosen)
        for index, row in zip(taken.tolist(), self.chosen, strict=True):
            if index < len(total) and ranking.rows[index] == row:
                total[index] = -np.inf
        best = top(total, min(wanted, len(total)))
        return [int(ranking.rows[i]) for i in best if total[i] > -np.inf]

    def failure(self, wanted: int) -> str:
        """The one-line verdict of the member that found no host."""
        failed = self.decisions[-1]
        line = verdict.refused_line(failed, len(self.table))
        if wanted == 1:
            return line
        before = len(self.taken)
        return f'member {failed.member + 1} of {wanted}, with {before} before it placed: {line}'

    def give_back(self) -> None:
        """Take every pick back from the table."""
        for provider_id, identity in self.taken:
            self.table.give(provider_id, self.request.spec.resources, identity)
        self.taken = []

    def withdraw(self) -> None:
        """No selection is returned and nothing stays taken."""
        self.give_back()
        self.decisions = [
            d if d.selection is None else msgspec.structs.replace(
                d,
                selection=None,
                alternates=[],
                verdicts=d.verdicts.replace(bytes([CHOSEN]), bytes([PASSED])),
            )
            for d in self.decisions
        ]  # fmt: skip


def _mix(seed: int, member: int) -> int:
    """A number that looks random and depends on seed and member only."""
    z = (seed * 0x9E3779B97F4A7C15 + (member + 1) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return z ^ (z >> 31)
