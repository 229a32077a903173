# SPDX-License-Identifier: Apache-2.0
"""Replay of stored decisions: on the table that they used, with the same or other settings.

The table is rebuilt from the log of the scheduler that decided (``table_log``); past the log's
retention there is no table, and the answer states so.

Two explanations of one request are written side by side: then and again, as it is and what if.
"""

import functools
import threading
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Annotated, Protocol

import msgspec
from msgspec.structs import replace

from gantt import exceptions, plugin_loader
from gantt.core.messages.base import Message, Name, Text
from gantt.core.messages.request import Names, SelectDestinations
from gantt.core.pause import AskPause
from gantt.core.placement.host_trace import HostStep, steps_of
from gantt.core.placement.pipeline import Pipeline
from gantt.core.placement.place import place
from gantt.core.records.decision import Decision, MemberDecision, OfferedReservations, Outcome
from gantt.core.records.decision_codec import StoredDecision
from gantt.core.table.host_table import HostTable
from gantt.insights.explain import wording
from gantt.insights.views import Explanation, MemberExplanation
from gantt.scheduler import table_log
from gantt.scheduler.ports.records import TableLogs

_encode = msgspec.msgpack.Encoder().encode

Value = bool | int | float | Text


class Otherwise(Message, frozen=True, kw_only=True):
    """Settings that a replay has instead of those in force; nothing: the very same.

    :ivar options: options of filters and weighers, by name
    """

    filters: Names | None = None
    weighers: Names | None = None
    options: Annotated[dict[Name, Value], msgspec.Meta(max_length=256)] = {}
    host_subset_size: Annotated[int, msgspec.Meta(ge=1, le=100_000)] | None = None
    shuffle_best: bool | None = None
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**62)] | None = None

    def words(self) -> list[str]:
        """Return the changed settings, a line each."""
        texts = [f'{name} {value}' for name, value in self.options.items()]
        for name in ('filters', 'weighers'):
            listed = getattr(self, name)
            if listed is not None:
                texts.append(f'{name} {", ".join(listed) or "none"}')
        for name in ('host_subset_size', 'shuffle_best', 'seed'):
            value = getattr(self, name)
            if value is not None:
                texts.append(f'{name} {value}')
        return texts


class RecordsGone(exceptions.NotFound):
    """Error for a replay whose records are no longer stored, or not yet written."""

    code = 'gantt.replay.gone'
    template = (
        'decision {name} can be explained but not replayed: the table that it saw is no longer '
        'kept, or its log is not written yet'
    )


class ReservationDecisions(Protocol):
    """Decisions about creates that were offered reservations of a planned group."""

    def decide_create(
        self,
        table: HostTable,
        request: SelectDestinations,
        seen: OfferedReservations,
        *,
        decision_id: str,
        members: Sequence[int],
        attempt: int,
        worker: str,
        config_digest: str,
        seed: int,
        spread: int,
    ) -> Decision:
        """Return the decision about a create that takes over reservations, or is refused."""

    def without_replaced_claims(
        self, table: HostTable, seen: OfferedReservations | None
    ) -> AbstractContextManager[None]:
        """Leave reservations out of the table that end with the claims of the create."""

    def with_new_reservations(
        self, decision: Decision, seen: OfferedReservations | None, request: SelectDestinations
    ) -> Decision:
        """Return a decision of filters and weighers about a create that differs from its plan."""


class Replayer:
    """A replayer of decisions that remembers the last table it built, and its checkpoint."""

    def __init__(
        self,
        table_logs: TableLogs,
        pipeline: Pipeline,
        default_zone: str,
        reservations: ReservationDecisions,
    ) -> None:
        self.pipeline = pipeline
        self._reservations = reservations
        self._table_logs = table_logs
        self._default_zone = default_zone
        self._lock = threading.Lock()
        self._last_table = functools.lru_cache(1)(self._build_table)
        self._began: tuple[tuple[str, int], HostTable] | None = None

    def table_of(self, decision: Decision) -> HostTable:
        """Return a writable copy of the table that a decision used.

        :raises RecordsGone: it cannot be built any more
        """
        with self._lock:
            table = self._last_table(decision.worker, decision.table_seq)
            if table is None:
                self._last_table.cache_clear()
                raise RecordsGone(kind='table', name=decision.id)
            return table.copy()

    def _build_table(self, worker: str, seq: int) -> HostTable | None:
        events = table_log.read_events(self._table_logs.load_table_log(worker, seq))
        return table_log.table_at(
            events, seq, made=functools.partial(self._table_of_checkpoint, worker)
        )

    def _table_of_checkpoint(
        self, worker: str, at: int, checkpoint: table_log.Checkpoint
    ) -> HostTable:
        """Return the table of a checkpoint, which decisions of some minutes share."""
        if self._began is None or self._began[0] != (worker, at):
            self._began = (worker, at), checkpoint.table(self._default_zone)
        return self._began[1].copy()

    def again(
        self, stored: StoredDecision, otherwise: Otherwise, pause: AskPause | None = None
    ) -> Decision:
        """Make a decision again.

        :param pause: see ``place.place``
        :raises RecordsGone: see :meth:`table_of`
        :raises InvalidMessage: the settings name a plugin or option that is not there, or a
            value that cannot be
        """
        decision, request = stored.decision, _request_of(stored)
        pipeline = self.pipeline_for(decision, otherwise)
        seed = decision.seed if otherwise.seed is None else otherwise.seed
        members = _planned_members(decision, len(request.consumers))
        table = self.table_of(decision)
        return self._decide(table, decision, request, pipeline, seed, members, pause)

    def scores(self, stored: StoredDecision, pause: AskPause | None = None) -> Decision:
        """Decide again as it was, with the scores of all hosts that no filter removed.

        :param pause: see ``place.place``
        :raises RecordsGone: see :meth:`table_of`
        """
        decision, table = stored.decision, self.table_of(stored.decision)
        request = _request_of(stored)
        count = len(table.of_kind(request.spec.kind))
        request = msgspec.structs.replace(request, alternates=count)
        members = _planned_members(decision, len(request.consumers))
        pipeline = self.pipeline_for(decision, Otherwise())
        return self._decide(table, decision, request, pipeline, decision.seed, members, pause)

    def pipeline_for(self, decision: Decision, otherwise: Otherwise) -> Pipeline:
        """Return the pipeline in force, its filters in the order of then, or another."""
        if otherwise == Otherwise():
            filter_order = (
                [count.name for count in decision.members[0].filters] if decision.members else []
            )
            return self.pipeline.in_order(filter_order)
        settings = {
            'subset_size': otherwise.host_subset_size,
            'shuffle_best': otherwise.shuffle_best,
        }
        try:
            return plugin_loader.changed_pipeline(
                self.pipeline,
                otherwise.filters,
                otherwise.weighers,
                otherwise.options,
                **{name: value for name, value in settings.items() if value is not None},
            )
        except exceptions.InvalidMessage as e:
            problem = str(e.kwargs['problem'])
            raise exceptions.invalid(f'body.{e.kwargs["field"]}', problem) from None

    def steps(self, stored: StoredDecision, host: int) -> list[HostStep] | None:
        """Return every filter's evaluation of a host, by provider id, for the member that failed.

        For a placed request: for its first member.  None: the host was not
        there.

        :raises RecordsGone: see :meth:`table_of`
        """
        decision, request = stored.decision, _request_of(stored)
        table = self.table_of(decision)
        seen = table.of_kind(request.spec.kind)
        row = seen.row_of_id(host)
        if row is None or not decision.members:
            return None
        pipeline = self.pipeline_for(decision, Otherwise())
        at = next((i for i, m in enumerate(decision.members) if m.selection is None), 0)
        if decision.outcome is not Outcome.PLACED:
            at = len(decision.members) - 1  # the last one found no host
            before = [m.member for m in decision.members[:at]]
            if before:
                self._decide(table, decision, request, pipeline, decision.seed, before)
        member = decision.members[at]
        pipeline = pipeline.of_kind(request.spec.kind)
        return steps_of(seen, request.spec, member.consumer, pipeline, row)

    def _decide(
        self,
        table: HostTable,
        decision: Decision,
        request: SelectDestinations,
        pipeline: Pipeline,
        seed: int,
        members: list[int],
        pause: AskPause | None = None,
    ) -> Decision:
        seen = decision.places
        if seen is not None and seen.decides:
            return self._reservations.decide_create(
                table,
                request,
                seen,
                decision_id=decision.id,
                members=members,
                attempt=decision.attempt,
                worker=decision.worker,
                config_digest=pipeline.digest,
                seed=seed,
                spread=decision.spread,
            )
        with self._reservations.without_replaced_claims(table, seen):
            decided = place(
                table,
                request,
                pipeline,
                seed=seed,
                decision_id=decision.id,
                members=members or None,
                attempt=decision.attempt,
                worker=decision.worker,
                spread=decision.spread,
                pause=pause,
                held=decision.held,
            )
        return self._reservations.with_new_reservations(decided, seen, request)


def _planned_members(decision: Decision, count: int) -> list[int]:
    """Return the members to be placed: the decided ones, then as many more as remained."""
    decided = [member.member for member in decision.members]
    undecided = [number for number in range(count) if number not in set(decided)]
    return decided + undecided[: max(0, decision.planned - len(decided))]


def _request_of(stored: StoredDecision) -> SelectDestinations:
    # A dry run leaves no picks on its table; here nobody else uses the table.
    return replace(stored.request, dry_run=False)


def decision_differences(then: Decision, again: Decision) -> list[str]:
    """Return the differences of two decisions of one request, by the bytes; [] for none."""
    names = ['hosts', 'weighers', 'nearest', 'relaxed']
    # "Do not know" was found out after placing, by the age of the table.
    if then.outcome is not Outcome.UNKNOWN:
        names = ['outcome', 'reason', *names]
    pairs = [(name, getattr(then, name), getattr(again, name)) for name in names]
    differing = [
        f'{name} {now!r}, then {was!r}'
        for name, was, now in pairs
        if _differences_of_values(was, now)
    ]
    if len(then.members) != len(again.members):
        differing.append(
            f'{wording.counted_noun(len(again.members), "member")}, {len(then.members)} then'
        )
    for before, after in zip(then.members, again.members, strict=False):
        differing += _member_differences(before, after)
    return differing


def _member_differences(one: MemberDecision, two: MemberDecision) -> list[str]:
    one, two = (_without_claim(m) for m in (one, two))
    differing = []
    for name in one.__struct_fields__:
        was, now = getattr(one, name), getattr(two, name)
        if _differences_of_values(was, now):
            hosts = ''
            if name == 'selection':
                hosts = f': {now.host if now else "nowhere"}, then {was.host if was else "nowhere"}'
            differing.append(f'member {one.member}: other {name}{hosts}')
    return differing


def _without_claim(member: MemberDecision) -> MemberDecision:
    """Return a member without its claim id: a dry run keeps no claim, and the place counts."""
    if member.selection is None or member.selection.claim_id is None:
        return member
    return replace(member, selection=replace(member.selection, claim_id=None))


def _differences_of_values(was: object, now: object) -> bool:
    return _encode(was) != _encode(now)


_NAME_WIDTH_MAX = 26
_SIDE_WIDTH_MAX = 24
_HOSTS_SHOWN = 4
#: Members whose filters are compared line by line.
_MEMBERS_SHOWN = 5


def side_by_side(titles: tuple[str, str], one: Explanation, other: Explanation) -> list[str]:
    """Return a table of the main values; where both sides are the same the second is ``=``."""
    rows: list[tuple[str, str, str]] = [
        ('outcome', _outcome_text(one), _outcome_text(other)),
        ('placed on', _places_text(one.members), _places_text(other.members)),
        (f'{one.kind}s', str(one.hosts), str(other.hosts)),
    ]
    for first, second in list(zip(one.members, other.members, strict=False))[:_MEMBERS_SHOWN]:
        has_several = len(one.members) > 1
        if has_several:
            rows.append((f'member {first.member}', '', ''))
        rows.extend(_member_rows(one.kind, first, second, '  ' if has_several else ''))
    size = min(_NAME_WIDTH_MAX, max(len(name) for name, _, _ in rows))
    lines_shown = [f'  {"":<{size}}  {titles[0]:<{_SIDE_WIDTH_MAX}}  {titles[1]}']
    for name, one_text, other_text in rows:
        other_text = '=' if one_text and one_text == other_text else other_text
        lines_shown.append(
            f'  {name[:size]:<{size}}  {_cut_text(one_text):<{_SIDE_WIDTH_MAX}}  '
            f'{_cut_text(other_text)}'.rstrip()
        )
    return lines_shown


def comparison_summary(now: Explanation, then: Explanation) -> str:
    """Return what would become of the members, in a sentence: how many fit, how many elsewhere."""
    before = {member.member: member.host for member in now.members}
    after = {member.member: member.host for member in then.members}
    if now.outcome != 'placed':
        before = {}
    if then.outcome != 'placed':
        after = {}
    fitting_then = sum(host is not None for host in after.values())
    fitting_now = sum(host is not None for host in before.values())
    if not fitting_then:
        sentence = 'it would not fit' if then.count == 1 else f'the {then.count} would not fit'
        return f'{sentence}, {"as it is neither" if not fitting_now else "but as it is"}'
    moved = sum(host is not None and host != before.get(member) for member, host in after.items())
    if not fitting_now:
        return f'{"it" if then.count == 1 else f"all {fitting_then}"} would fit, but not as it is'
    if then.count == 1:
        where = f'on {next(iter(after.values()))} instead' if moved else f'on the same {then.kind}'
        return f'it still fits, {where}'
    return f'all {fitting_then} still fit; {moved} would be on another {then.kind}'


def _member_rows(
    kind: str, mine: MemberExplanation, its: MemberExplanation, indent: str
) -> Iterable[tuple[str, str, str]]:
    yield f'{indent}{kind}s that fit', str(mine.survivors), str(its.survivors)
    here = {step.filter: step.removed for step in mine.funnel}
    there = {step.filter: step.removed for step in its.funnel}
    for name in dict.fromkeys([*here, *there]):
        one_removed, other_removed = here.get(name), there.get(name)
        if one_removed or other_removed:
            yield f'{indent}{name}', _removed_text(one_removed), _removed_text(other_removed)
    if mine.scores or its.scores:
        yield f'{indent}best score', _best_text(mine), _best_text(its)


def _outcome_text(explanation: Explanation) -> str:
    return wording.outcome_text(explanation.outcome, explanation.kind)


def _places_text(members: Sequence[MemberExplanation]) -> str:
    names = list(dict.fromkeys(member.host for member in members if member.host))
    more = f' +{len(names) - _HOSTS_SHOWN}' if len(names) > _HOSTS_SHOWN else ''
    return ', '.join(names[:_HOSTS_SHOWN]) + more or 'nowhere'


def _removed_text(count: int | None) -> str:
    return 'does not run' if count is None else f'-{count}' if count else '0'


def _best_text(member: MemberExplanation) -> str:
    return f'{member.scores[0].total:.6g}' if member.scores else '-'


def _cut_text(text: str) -> str:
    return text if len(text) <= _SIDE_WIDTH_MAX else text[: _SIDE_WIDTH_MAX - 1] + '…'
