# SPDX-License-Identifier: Apache-2.0
"""Conductors under load, and what they were told held against the database.

Each logical request keeps its request id, whatever becomes of the calls that
carry it; the library repeats those within the budget.
"""

import abc
import collections
import queue
import random
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from gantt import client, exceptions
from gantt.client.calls import ServerCaller
from gantt.core.claims.claim import Claim
from gantt.core.messages import base
from gantt.core.messages.request import CancelClaims, RequestSpec, SelectDestinations
from gantt.core.records.decision import Answer, Outcome, error_of
from gantt.rpc import wire
from gantt.scheduler.service import Scheduler
from gantt.stores import SqlStores
from tests.rpc.bus import a_conf

#: Errors after which nobody knows what became of a request.
UNKNOWN = (exceptions.Unavailable,)


def new_uuid(rng: random.Random) -> str:
    """One that follows from the generator."""
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def a_request(
    rng: random.Random, members: int = 1, *, budget_ms: int = 60_000, lease: int = 600, **spec: Any
) -> SelectDestinations:
    """A request whose ids follow from the generator; ``spec`` as of a RequestSpec."""
    spec.setdefault('resources', {'VCPU': 1})
    return SelectDestinations(
        request_id=new_uuid(rng),
        spec=RequestSpec(**spec),
        consumers=[new_uuid(rng) for _ in range(members)],
        budget_ms=budget_ms,
        lease_seconds=lease,
        alternates=0,
    )


class CallRecord(msgspec.Struct):
    """Answer or error that a conductor got for a request.

    :ivar cancelled: it cancelled the request afterwards, which was acknowledged
    """

    request: SelectDestinations
    answer: Answer | None = None
    error: exceptions.GanttError | None = None
    cancelled: bool = False

    @property
    def claims(self) -> dict[str, tuple[str, str]]:
        """Consumer and host by claim id."""
        chosen = [s[0] for s in self.answer.selections] if self.answer else []
        return {s.claim_id or '': (s.consumer, s.host) for s in chosen}


class Callers(abc.ABC):
    """Whatever answers one request."""

    @abc.abstractmethod
    def select(self, request: SelectDestinations) -> Answer:
        """The answer to one request.

        :raises GanttError: it is not placed
        """

    @abc.abstractmethod
    def cancel(self, record: CallRecord) -> None:
        """Take a placed request back."""

    def ask(self, request: SelectDestinations) -> CallRecord:
        """One request to its end."""
        try:
            return CallRecord(request, answer=self.select(request))
        except exceptions.GanttError as e:
            return CallRecord(request, error=e)

    def start(
        self,
        requests: Iterable[SelectDestinations],
        threads: int,
        then: Callable[[CallRecord], None] | None = None,
    ) -> 'Asking':
        """Ask from so many threads, and come back at once.

        :param then: called with each end, in its thread
        """
        return Asking(self, requests, threads, then)

    def ask_all(
        self,
        requests: Iterable[SelectDestinations],
        threads: int,
        then: Callable[[CallRecord], None] | None = None,
    ) -> list[CallRecord]:
        """All of them; returns when all have ended."""
        return self.start(requests, threads, then).wait()


class Conductors(Callers):
    """Processes on the broker; one connection for calls and one for answers.

    :param attempt_seconds: until a call counts as lost and is sent again
    :param impatience: in place of the library's patience: ask up to ``TRIES`` times,
        each time for so many seconds
    """

    TRIES = 5

    def __init__(
        self, broker: str, *, attempt_seconds: float | None = 2.0, impatience: float = 0.0
    ) -> None:
        self.carrier = client.get_transport(a_conf(broker))
        self.scheduler = client.SchedulerClient(self.carrier, attempt_seconds=attempt_seconds)
        self._impatience = impatience
        self._raw = ServerCaller(self.carrier, wire.SCHEDULER_TOPIC)

    def select(self, request: SelectDestinations) -> Answer:
        """See there."""
        if not self._impatience:
            return self.scheduler.select_destinations(request)
        body = base.to_builtins(request)
        for tries_left in range(self.TRIES - 1, -1, -1):
            try:
                reply = self._raw.call('select_destinations', self._impatience, request=body)
                return wire.read_answer(reply)
            except exceptions.Unavailable:
                if not tries_left:
                    raise
        raise AssertionError('the last try answers or raises')

    def cancel(self, record: CallRecord) -> None:
        """See there."""
        self.scheduler.cancel_claims(record.request.request_id, timeout=60)
        record.cancelled = True

    def close(self) -> None:
        """Let go of the connections."""
        self.carrier.cleanup()


class InProcess(Callers):
    """Threads beside a scheduler, without a broker."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def select(self, request: SelectDestinations) -> Answer:
        """See there."""
        answer = self._scheduler.select(request)
        if answer.outcome is not Outcome.PLACED:
            raise error_of(answer)
        return answer

    def cancel(self, record: CallRecord) -> None:
        """See there."""
        self._scheduler.cancel(CancelClaims(request_id=record.request.request_id))
        record.cancelled = True


class Asking:
    """Requests under way."""

    def __init__(
        self,
        conductors: Callers,
        requests: Iterable[SelectDestinations],
        threads: int,
        then: Callable[[CallRecord], None] | None = None,
    ) -> None:
        self._conductors = conductors
        self._then = then
        self._work: queue.SimpleQueue[SelectDestinations | None] = queue.SimpleQueue()
        for request in requests:
            self._work.put(request)
        self.records: list[CallRecord] = []
        self._problems: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        try:
            while (request := self._work.get()) is not None:
                call = self._conductors.ask(request)
                if self._then is not None:
                    self._then(call)
                self.records.append(call)
        except BaseException as e:
            self._problems.append(e)

    def wait(self, seconds: float = 3500.0) -> list[CallRecord]:
        """Everything that was told.

        :raises AssertionError: a thread of ours failed, or is still waiting
        """
        for thread in self._threads:
            thread.join(seconds)
        assert not self._problems, self._problems
        assert not any(thread.is_alive() for thread in self._threads)
        return self.records


def live_claims(store: SqlStores) -> dict[str, list[Claim]]:
    """Live claims of the database, by request."""
    by_request: dict[str, list[Claim]] = collections.defaultdict(list)
    for state in ('reserved', 'confirmed'):
        marker = None
        while page := store.claims.list_claims(state=state, limit=1000, marker=marker):
            for claim in page:
                by_request[claim.request_id].append(claim)
            marker = page[-1].id
    return by_request


def broken_promises(store: SqlStores, records: Sequence[CallRecord]) -> list[str]:
    """Where the database does not have what was told, a line each.

    An acknowledged request has its claims and no others; a refused one has
    none; one that nobody knows the end of has all of its claims or none.
    """
    by_request = live_claims(store)
    problems = []
    for call in records:
        key = call.request.request_id
        have = {c.id: (c.consumer, c.host) for c in by_request.pop(key, [])}
        if call.answer is not None:
            want = {} if call.cancelled else call.claims
            if have != want:
                problems.append(f'request {key}: told {want}, there is {have}')
            if len(call.claims) != len(call.request.consumers):
                problems.append(f'request {key}: {len(call.claims)} claims told')
        elif have and not isinstance(call.error, UNKNOWN):
            problems.append(f'request {key}: {call.error!r}, yet there is {have}')
        elif len(have) not in (0, len(call.request.consumers)):
            problems.append(f'request {key}: in part, {have}')
    problems += [f'request {key}: nobody asked, there is {c}' for key, c in by_request.items()]
    return problems


def unlike(first: Sequence[CallRecord], again: Sequence[CallRecord]) -> list[str]:
    """Requests whose repeat was told something else than they were."""
    before = {call.request.request_id: call.claims for call in first}
    return [
        f'{call.request.request_id}: {before[call.request.request_id]}, then {call.claims}'
        for call in again
        if call.claims != before[call.request.request_id]
    ]
