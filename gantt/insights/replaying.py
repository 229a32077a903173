# SPDX-License-Identifier: Apache-2.0
"""Replay of stored decisions: on the table that they used, with the same or other settings.

The table is rebuilt from the log of the scheduler that decided (``table_log``); past the log's
retention there is no table, and the answer states so.
"""

import functools
import threading
from typing import Annotated

import msgspec
from msgspec.structs import replace

from gantt import exceptions, plugin_loader
from gantt.core.groups import take_reservations
from gantt.core.messages.base import Message, Name, Text
from gantt.core.messages.request import Names, SelectDestinations
from gantt.core.pause import AskPause
from gantt.core.placement.host_trace import HostStep, steps_of
from gantt.core.placement.pipeline import Pipeline
from gantt.core.placement.place import place
from gantt.core.records.decision import Decision, MemberDecision, Outcome
from gantt.core.records.decision_codec import StoredDecision
from gantt.core.table.host_table import HostTable
from gantt.insights.explain import wording
from gantt.scheduler import table_log
from gantt.scheduler.ports import TableLogs

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


class Gone(exceptions.NotFound):
    """Error for a replay whose records are no longer stored, or not yet written."""

    code = 'gantt.replay.gone'
    template = (
        'decision {name} can be explained but not replayed: the table that it saw is no longer '
        'kept, or its log is not written yet'
    )


class Replayer:
    """A replayer of decisions that remembers the last table it built, and its checkpoint."""

    def __init__(self, table_logs: TableLogs, pipeline: Pipeline, default_zone: str) -> None:
        self.pipeline = pipeline
        self._table_logs = table_logs
        self._default_zone = default_zone
        self._lock = threading.Lock()
        self._built = functools.lru_cache(1)(self._build)
        self._began: tuple[tuple[str, int], HostTable] | None = None

    def table_of(self, decision: Decision) -> HostTable:
        """Return a writable copy of the table that a decision used.

        :raises Gone: it cannot be built any more
        """
        with self._lock:
            table = self._built(decision.worker, decision.table_seq)
            if table is None:
                self._built.cache_clear()
                raise Gone(kind='table', name=decision.id)
            return table.copy()

    def _build(self, worker: str, seq: int) -> HostTable | None:
        events = table_log.read(self._table_logs.load_table_log(worker, seq))
        return table_log.rebuild(events, seq, made=functools.partial(self._made, worker))

    def _made(self, worker: str, at: int, checkpoint: table_log.Checkpoint) -> HostTable:
        """Return the table of a checkpoint, which decisions of some minutes share."""
        if self._began is None or self._began[0] != (worker, at):
            self._began = (worker, at), checkpoint.table(self._default_zone)
        return self._began[1].copy()

    def again(
        self, stored: StoredDecision, otherwise: Otherwise, pause: AskPause | None = None
    ) -> Decision:
        """Make a decision again.

        :param pause: see ``place.place``
        :raises Gone: see :meth:`table_of`
        :raises InvalidMessage: the settings name a plugin or option that is not there, or a
            value that cannot be
        """
        decision, request = stored.decision, _request_of(stored)
        pipeline = self.pipeline_for(decision, otherwise)
        seed = decision.seed if otherwise.seed is None else otherwise.seed
        members = _planned(decision, len(request.consumers))
        table = self.table_of(decision)
        return _place(table, decision, request, pipeline, seed, members, pause)

    def scores(self, stored: StoredDecision, pause: AskPause | None = None) -> Decision:
        """Decide again as it was, with the scores of all hosts that no filter removed.

        :param pause: see ``place.place``
        :raises Gone: see :meth:`table_of`
        """
        decision, table = stored.decision, self.table_of(stored.decision)
        request = _request_of(stored)
        count = len(table.of_kind(request.spec.kind))
        request = msgspec.structs.replace(request, alternates=count)
        members = _planned(decision, len(request.consumers))
        pipeline = self.pipeline_for(decision, Otherwise())
        return _place(table, decision, request, pipeline, decision.seed, members, pause)

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
            return plugin_loader.changed(
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

        :raises Gone: see :meth:`table_of`
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
                _place(table, decision, request, pipeline, decision.seed, before)
        member = decision.members[at]
        pipeline = pipeline.of_kind(request.spec.kind)
        return steps_of(seen, request.spec, member.consumer, pipeline, row)


def _planned(decision: Decision, count: int) -> list[int]:
    """Return the members that were to be placed: those decided, then as many others as remained."""
    decided = [member.member for member in decision.members]
    undecided = [number for number in range(count) if number not in set(decided)]
    return decided + undecided[: max(0, decision.planned - len(decided))]


def _place(
    table: HostTable,
    decision: Decision,
    request: SelectDestinations,
    pipeline: Pipeline,
    seed: int,
    members: list[int],
    pause: AskPause | None = None,
) -> Decision:
    seen = decision.places
    if seen is not None and not seen.replaces:
        return take_reservations.decide(
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
    with take_reservations.left_out(table, seen):
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
    return take_reservations.planned_anew(decided, seen, request)


def _request_of(stored: StoredDecision) -> SelectDestinations:
    # A dry run leaves no picks on its table; here nobody else uses the table.
    return replace(stored.request, dry_run=False)


def differences(then: Decision, again: Decision) -> list[str]:
    """Return the differences of two decisions of one request, by the bytes; [] for none."""
    names = ['hosts', 'weighers', 'nearest', 'relaxed']
    # "Do not know" was found out after placing, by the age of the table.
    if then.outcome is not Outcome.UNKNOWN:
        names = ['outcome', 'reason', *names]
    pairs = [(name, getattr(then, name), getattr(again, name)) for name in names]
    differing = [f'{name} {now!r}, then {was!r}' for name, was, now in pairs if _differ(was, now)]
    if len(then.members) != len(again.members):
        differing.append(f'{wording.count(len(again.members), "member")}, {len(then.members)} then')
    for before, after in zip(then.members, again.members, strict=False):
        differing += _member(before, after)
    return differing


def _member(one: MemberDecision, two: MemberDecision) -> list[str]:
    one, two = (_without_claim(m) for m in (one, two))
    differing = []
    for name in one.__struct_fields__:
        was, now = getattr(one, name), getattr(two, name)
        if _differ(was, now):
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


def _differ(was: object, now: object) -> bool:
    return _encode(was) != _encode(now)
