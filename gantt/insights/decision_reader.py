# SPDX-License-Identifier: Apache-2.0
"""Stored decisions for readers: listed, explained, replayed."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from gantt import exceptions
from gantt.core.pause import Pause
from gantt.core.placement.host_trace import HostStep, steps_of
from gantt.core.placement.pipeline import Pipeline
from gantt.core.records.decision import MemberDecision, Outcome, Score
from gantt.core.records.decision_codec import ID_PREFIX_MIN, StoredDecision, unpack
from gantt.core.table.host_table import HostTable
from gantt.insights import replaying, views
from gantt.insights.explain import explaining, redacting
from gantt.insights.host_views import HostReader
from gantt.insights.replaying import (
    Otherwise,
    RecordsGone,
    Replayer,
    ReservationDecisions,
    decision_differences,
)
from gantt.insights.views import DecisionSummary, Explanation, View
from gantt.scheduler.ports.records import Records, TableLogs
from gantt.scheduler.settings import SchedulerSettings

#: Time limit of a replay in seconds; reading the log of the table comes before.
SECONDS_MAX = 10.0
#: Maximum number of differences in the lines of a replay.
_DIFFERENCES_SHOWN = 8


class Replayed(View, frozen=True, kw_only=True):
    """Decision that was made again, on the table that the original decision used.

    :ivar same: every byte of it is the same, ids of claims aside
    :ivar otherwise: settings that were changed for it, a line each
    :ivar config_then: digest of the settings that it was made with; ``config_again``: now
    """

    decision_id: str
    same: bool
    otherwise: list[str]
    differences: list[str]
    config_then: str
    config_again: str
    then: Explanation
    again: Explanation
    lines: list[str]


@dataclasses.dataclass(eq=False)
class DecisionReader:
    """A reader of decisions.

    :ivar table: the hosts as they are now
    """

    records: Records
    table_logs: TableLogs
    pipeline: dataclasses.InitVar[Pipeline]
    settings: SchedulerSettings
    table: Callable[[], HostTable]
    reservations: dataclasses.InitVar[ReservationDecisions]

    def __post_init__(self, pipeline: Pipeline, reservations: ReservationDecisions) -> None:
        self._replayer = Replayer(
            self.table_logs, pipeline, self.settings.default_zone, reservations
        )
        self._public = redacting.public_texts(pipeline.filters)

    def summaries(self, **query: Any) -> list[DecisionSummary]:
        """Return decisions, newest first; the query is that of ``Records.list_decisions``."""
        now = self.table().now
        return [
            views.view_of(
                DecisionSummary,
                record,
                created_at=views.utc_text(record.created_at),
                age_seconds=views.age_seconds(now, record.created_at),
            )
            for record in self.records.list_decisions(**query)
        ]

    def is_decision(self, decision_id: str, project: str | None = None) -> bool:
        """Return whether a decision of just this id is stored; of one project, or of any."""
        record = self.records.load_decision(decision_id, project)
        return record is not None and unpack(record[0]).decision.id == decision_id

    def explain(
        self,
        decision_id: str,
        host: str | None = None,
        public: bool = False,
        project: str | None = None,
    ) -> Explanation:
        """Return the explanation of a decision; by its id, a request id, or a unique prefix.

        Else by the id that its request has elsewhere, or by one of its consumers: the newest.

        :param host: include the verdict of this host, and each filter's evaluation of it
        :param public: only what every user may know
        :param project: only a decision of this project
        :raises NotFound: no such decision, or no longer kept
        :raises InvalidMessage: too short a prefix
        """
        stored, provider_ids, created_at = self._load(decision_id, project)
        table = self.table()
        if public:
            explanation = explaining.explain(stored, created_at, table.now, provider_ids)
            return redacting.redacted_explanation(explanation, self._public)
        if host is None:
            return explaining.explain(stored, created_at, table.now, provider_ids)
        table = table.of_kind(stored.request.spec.kind)
        reader = HostReader(table, self.settings.stale_after_seconds)
        row = reader.row(host)
        requested_host = (host, table.hosts[row].id)
        steps = self._host_steps(stored, table, row)
        return explaining.explain(
            stored,
            created_at,
            table.now,
            provider_ids,
            requested_host,
            steps=steps,
            scores=self._all_scores(stored),
        )

    def scores(self, decision_id: str, member: int) -> list[Score]:
        """Return the scores of all hosts that no filter removed for a member, best first.

        Empty where the table that the decision used is not stored any more.

        :raises NotFound: see :meth:`explain`
        """
        stored, _, _ = self._load(decision_id)
        again = self._all_scores(stored)
        return next((decided.scores for decided in again if decided.member == member), [])

    def _all_scores(self, stored: StoredDecision) -> Sequence[MemberDecision]:
        """Return the members with the scores of all hosts that no filter removed.

        None where the table is not stored any more, or that takes longer than a trial may.
        """
        end = time.monotonic() + SECONDS_MAX
        try:
            again = self._replayer.scores(
                stored, lambda _: Pause.OVER if time.monotonic() >= end else Pause.GO_ON
            )
        except (exceptions.NotFound, exceptions.PluginError):
            return ()
        return again.members

    def replay(self, decision_id: str, otherwise: Otherwise | None = None) -> Replayed:
        """Return a decision made again on the table that it used.

        :param otherwise: settings to change; nothing: with those in force, and then it
            is the same unless these have changed since
        :raises NotFound: see :meth:`explain`; ``RecordsGone`` where only the table is missing
        :raises PluginError: a setting that does not exist
        :raises Expired: it takes longer than a trial may
        """
        stored, provider_ids, created_at = self._load(decision_id)
        otherwise = otherwise or Otherwise()
        end = time.monotonic() + SECONDS_MAX
        again = self._replayer.again(
            stored, otherwise, lambda _: Pause.OVER if time.monotonic() >= end else Pause.GO_ON
        )
        if again.outcome is Outcome.EXPIRED:
            raise exceptions.Expired(again.reason)
        differing, now = decision_differences(stored.decision, again), self.table().now
        then = explaining.explain(stored, created_at, now, provider_ids)
        replayed_decision = StoredDecision(again, stored.request)
        anew = explaining.explain(
            replayed_decision, created_at, now, again.provider_ids, is_stored=False
        )
        replayed = Replayed(
            decision_id=stored.decision.id,
            same=not differing,
            otherwise=otherwise.words(),
            differences=differing,
            config_then=stored.decision.config_digest,
            config_again=again.config_digest,
            then=then,
            again=anew,
            lines=[],
        )
        return msgspec.structs.replace(replayed, lines=_replay_lines(replayed))

    def _load(
        self, decision_id: str, project: str | None = None
    ) -> tuple[StoredDecision, bytes, float]:
        if len(decision_id) < ID_PREFIX_MIN:
            raise exceptions.invalid(
                'decision id', f'expected at least {ID_PREFIX_MIN} characters of it'
            )
        record = self.records.load_decision(decision_id, project)
        if record is None:
            raise exceptions.NotFound(
                f'decision {decision_id!r} was not found: it is no decision or request id, '
                'not enough of one, no consumer (server) and no request of Nova (req-...) that '
                'was decided here, or past the time that decisions are kept',
                kind='decision',
                name=decision_id,
            )
        packed, provider_ids, created_at = record
        return unpack(packed), provider_ids, created_at

    def _host_steps(
        self, stored: StoredDecision, table: HostTable, row: int
    ) -> tuple[str, list[HostStep]] | None:
        """Return the evaluation of a host as it was, else as it is now."""
        if not stored.decision.members:
            return None
        try:
            steps = self._replayer.steps(stored, table.hosts[row].id)
            return None if steps is None else ('then', steps)
        except RecordsGone:
            consumer = stored.decision.members[-1].consumer
            pipeline = self._replayer.pipeline.of_kind(stored.request.spec.kind)
            return 'now', steps_of(table, stored.request.spec, consumer, pipeline, row)
        except exceptions.PluginError:
            return None


def _replay_lines(replayed: Replayed) -> list[str]:
    lines = []
    if replayed.otherwise:
        lines += explaining.wrapped_lines(f'replayed with {"; ".join(replayed.otherwise)}')
    elif replayed.config_then != replayed.config_again:
        lines += explaining.wrapped_lines(
            f'the configuration has changed since: {replayed.config_then} then, '
            f'{replayed.config_again} now'
        )
    if replayed.same:
        lines.append('the same, bit for bit')
    else:
        lines.append('it comes out otherwise:')
        for line in replayed.differences[:_DIFFERENCES_SHOWN]:
            lines += explaining.wrapped_lines(f'  {line}', 4)
        more = len(replayed.differences) - _DIFFERENCES_SHOWN
        if more > 0:
            lines.append(f'  and {more} more; -f json has them all')
    lines += ['', *replaying.side_by_side(('then', 'replayed'), replayed.then, replayed.again), '']
    lines.append(f'decision {replayed.decision_id}')
    return lines
