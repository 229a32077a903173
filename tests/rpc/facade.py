# SPDX-License-Identifier: Apache-2.0
"""A small scheduler behind the facade that RPC talks to.

It really places: hosts have room, a request takes it, a repeat gets the first
answer, a host speaks with an epoch.  One thread answers, as in the service.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from gantt import exceptions
from gantt.core.claims.claim import claim_id
from gantt.core.messages import request as requests
from gantt.core.messages import resource_classes
from gantt.core.messages.base import derived_id
from gantt.core.messages.report import Registered, check
from gantt.core.records.decision import Answer, Outcome, Selection
from gantt.core.resources.host_keys import HostKey, SigningModes
from gantt.scheduler.host_signatures import HostSignatures
from gantt.scheduler.ports.hosts import ReportOutcome
from gantt.scheduler.ports.requests import ClaimOutcome
from gantt.scheduler.request.queue import WakeableInbox

CELL = '3f08903e-ffa4-442a-bd00-09d817a78499'


class Facade:
    """Hosts ``compute-001`` and so on, each with the same room."""

    def __init__(self, hosts: int = 5, queue_limit: int = 100, **room: int) -> None:
        self.room = {
            f'compute-{n:03}': {'VCPU': 16, 'PCPU': 4, 'MEMORY_MB': 32768, 'DISK_GB': 200} | room
            for n in range(1, hosts + 1)
        }
        self.groups: dict[str, set[str]] = {}
        self.seen: list[requests.SelectDestinations] = []
        self.placed: dict[str, tuple[str, Answer]] = {}
        self.cancelled: set[str] = set()
        self.claims: dict[str, tuple[str, str]] = {}
        self.epochs: dict[str, int] = {}
        self.nonces: dict[str, str] = {}
        self.reports: list[Any] = []
        self.events: list[Any] = []
        #: Where the guests of requests were said to be.
        self.sources: list[str | None] = []
        #: What to say in place of the next answers, by outcome.
        self.moods: list[Outcome] = []
        #: Since when the database does not answer (monotonic seconds); 0: it does.
        self.silent_since = 0.0
        #: Other questions than those that wait are answered all the same.
        self.answers_pings = False
        #: Why what was not begun was to be given back.
        self.given_back: list[str] = []
        #: Keys of hosts, by name.
        self.keys: dict[str, HostKey] = {}
        self.signatures = HostSignatures(
            self.keys.get,
            self.keys.get,
            SigningModes,
            lambda name, value=1, **labels: None,
            time.monotonic,
        )
        self.hold = threading.Event()
        self.hold.set()
        self._queue: queue.Queue = queue.Queue(queue_limit)
        self._inbox: Any = WakeableInbox()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.hold.set()
        self._queue.put(None)
        self._inbox.wake()
        self._thread.join(30)
        assert not self._thread.is_alive(), 'its pipe would be closed under it'
        self._inbox.close()

    # -- placing -----------------------------------------------------------
    def has_classes(self, names) -> bool:
        return all(
            n in resource_classes.STANDARD_CLASSES or n in self.declared_classes() for n in names
        )

    def read_from(self, inbox: Any) -> None:
        self._inbox, before = inbox, self._inbox
        before.wake()

    def submit(
        self,
        request: requests.SelectDestinations,
        handle: Any,
        replies: Any,
        spent_ms: float = 0.0,
        *,
        stays: bool = False,
    ) -> None:
        requests.check(request, self.declared_classes())
        item = (request, handle, replies, time.monotonic() + (request.budget_ms - spent_ms) / 1000)
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            replies.send([(handle, self._no(request, Outcome.BUSY, 'the queue is full', 50))])
        self._inbox.wake()

    def _next(self) -> Any:
        while True:
            self._inbox.read()
            with contextlib.suppress(queue.Empty):
                return self._queue.get_nowait()
            self._inbox.wait(0.5)

    def _run(self) -> None:
        while (item := self._next()) is not None:
            self.hold.wait()
            request, handle, replies, deadline = item
            if time.monotonic() > deadline:
                answer = self._no(request, Outcome.EXPIRED, 'the budget was spent')
            else:
                answer = self._decide(request)
            replies.send([(handle, answer)])

    @staticmethod
    def _no(request: Any, outcome: Outcome, reason: str, retry: int | None = None) -> Answer:
        return Answer(
            request_id=request.request_id,
            decision_id='',
            outcome=outcome,
            reason=reason,
            retry_after_ms=retry,
        )

    def _decide(self, request: requests.SelectDestinations) -> Answer:
        self.seen.append(request)
        if self.moods:
            return self._no(request, self.moods.pop(0), 'not just now', 50)
        if request.request_id in self.cancelled:
            return self._no(request, Outcome.CANCELLED, 'cancelled')
        fingerprint, answer = self.placed.get(request.request_id, ('', None))
        if answer is not None:
            same = fingerprint == request.fingerprint
            return answer if same else self._no(request, Outcome.REUSED, 'another body')
        return self._place(request)

    def _place(self, request: requests.SelectDestinations) -> Answer:
        spec = request.spec
        taken = set(spec.group.hosts) if spec.group else set()
        if spec.group:
            taken |= self.groups.setdefault(spec.group.uuid, set())
        selections = []
        for member, consumer in enumerate(request.consumers):
            fit = self._fit(spec, taken)
            if not fit:
                reason = f'0/{len(self.room)} hosts fit: too little room'
                return self._no(request, Outcome.NO_VALID_HOST, reason)
            if spec.group:
                taken.add(fit[0])
                self.groups[spec.group.uuid].add(fit[0])
            for name, amount in spec.resources.items():
                self.room[fit[0]][name] -= amount
            chosen = self._selection(
                request, fit[0], consumer, claim_id(request.request_id, 1, member)
            )
            self.claims[chosen.claim_id] = (fit[0], 'reserved')
            others = [self._selection(request, h, consumer, None) for h in fit[1:]]
            selections.append([chosen, *others[: request.alternates]])
        answer = Answer(
            request_id=request.request_id,
            decision_id=derived_id('decision', request.request_id),
            outcome=Outcome.PLACED,
            selections=selections,
        )
        self.placed[request.request_id] = (request.fingerprint, answer)
        return answer

    def _fit(self, spec: Any, taken: set[str]) -> list[str]:
        def usable(host: str) -> bool:
            room = self.room[host]
            return (
                all(room.get(name, 0) >= amount for name, amount in spec.resources.items())
                and host not in spec.ignore_hosts
                and host not in taken
                and (not spec.force_hosts or host in spec.force_hosts)
                and (
                    spec.destination is None
                    or spec.destination.host is None
                    or spec.destination.host == host
                )
            )

        hosts = [h for h in self.room if usable(h)]
        return sorted(hosts, key=lambda h: (-self.room[h]['MEMORY_MB'], h))

    @staticmethod
    def _selection(request: Any, host: str, consumer: str, claim: str | None) -> Selection:
        return Selection(
            host=host,
            node=host,
            uuid=derived_id('host', host),
            provider_id=int(host[-3:]),
            consumer=consumer,
            claim_id=claim,
            cell=CELL,
            zone='nova',
            build_topic=f'gantt-compute.{host}',
            resources=dict(request.spec.resources),
            lease_seconds=120.0 if claim else 0.0,
        )

    def get_request(self, message: requests.GetRequest) -> Answer:
        if message.request_id not in self.placed:
            raise exceptions.NotFound(kind='request', name=message.request_id)
        return self.placed[message.request_id][1]

    def cancel(self, message: requests.CancelClaims) -> dict[str, object]:
        self.cancelled.add(message.request_id)
        return {'request_id': message.request_id, 'state': 'cancelled', 'released': []}

    def extend(self, message: requests.ExtendClaims) -> dict[str, object]:
        return {'request_id': message.request_id, 'seconds': message.seconds}

    def confirm_request(self, message: requests.ConfirmRequest) -> dict[str, object]:
        return {'request_id': message.request_id, 'consumers': message.consumers}

    def release_request(self, message: requests.ReleaseRequest) -> dict[str, object]:
        return {'request_id': message.request_id, 'reason': message.reason}

    # -- hosts ----------------------------------------------------------------
    def database_now(self):
        return time.time()

    def register_host(self, message: Any) -> Registered:
        if message.boot_nonce == 'late':
            raise exceptions.StaleRegistration(
                host=message.name, count=message.journal_count, current=9
            )
        if self.nonces.get(message.name) != message.boot_nonce:
            self.nonces[message.name] = message.boot_nonce
            self.epochs[message.name] = self.epochs.get(message.name, 0) + 1
        return Registered(
            name=message.name,
            uuid=message.uuid or derived_id('host', message.name),
            epoch=self.epochs[message.name],
            incarnation=1,
            report_seconds=60,
        )

    def register_soon(self, message: Any) -> Future:
        return _future(lambda: self.register_host(message))

    def report_soon(self, report: Any) -> Future:
        check(report, self.declared_classes())
        return _future(lambda: self.report(report, 1.0))

    @staticmethod
    def report_outcome(report: Any, fate: ReportOutcome) -> ReportOutcome:
        return fate

    def report(self, report: Any, wait_seconds: float | None = None) -> ReportOutcome | None:
        check(report, self.declared_classes())
        if wait_seconds is not None:
            if report.name not in self.epochs:
                raise exceptions.NotFound(kind='host', name=report.name)
            current = self.epochs[report.name]
            if report.epoch != current:
                raise exceptions.StaleEpoch(host=report.name, epoch=report.epoch, current=current)
            last = [r.sequence for r in self.reports if r.name == report.name]
            if last and report.sequence <= last[-1]:
                return ReportOutcome(name=report.name, outcome='stale', current_sequence=last[-1])
        self.reports.append(report)
        return (
            ReportOutcome(name=report.name, outcome='applied') if wait_seconds is not None else None
        )

    def _words(self, words: Any, state: str) -> list[ClaimOutcome]:
        current = self.epochs.get(words.name, 0)
        if words.epoch != current:
            raise exceptions.StaleEpoch(host=words.name, epoch=words.epoch, current=current)
        fates = []
        for claim in words.claim_ids:
            host, _ = self.claims.get(claim, ('', ''))
            if host == words.name:
                self.claims[claim] = (host, state)
            fate = 'ok' if host == words.name else 'gone'
            fates.append(
                ClaimOutcome(claim_id=claim, outcome=fate, state=state if fate == 'ok' else '')
            )
        return fates

    def confirm(self, words: Any) -> list[ClaimOutcome]:
        return self._words(words, 'confirmed')

    def refuse(self, words: Any) -> list[ClaimOutcome]:
        return self._words(words, 'refused')

    def release(self, words: Any) -> list[ClaimOutcome]:
        return self._words(words, 'released')

    def declared_classes(self) -> frozenset[str]:
        return frozenset({'CUSTOM_LICENSE'})

    def silent_for(self) -> float:
        return time.monotonic() - self.silent_since if self.silent_since else 0.0

    def ping(self) -> None:
        while self.silent_since and not self.answers_pings:
            time.sleep(0.01)

    def refuse_unstarted(self, reason: str) -> int:
        self.given_back.append(reason)
        count = 0
        with contextlib.suppress(queue.Empty):
            while (item := self._queue.get_nowait()) is not None:
                request, handle, replies, _ = item
                replies.send([(handle, self._no(request, Outcome.BUSY, reason, 50))])
                count += 1
        return count

    def submit_move(self, request: Any, source: str | None, then: Any) -> None:
        self.sources.append(source)
        then()

    def host_row(self, provider_id: int) -> None:
        return None

    def nova_event(self, event: Any) -> None:
        self.events.append(event)


def until(happened: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Wait for something to become true; what it became."""
    end = time.monotonic() + seconds
    while not (value := happened()):
        assert time.monotonic() < end, 'it did not happen in time'
        time.sleep(0.01)
    return value


def _future(work: Callable[[], Any]) -> Future:
    future: Future = Future()
    try:
        future.set_result(work())
    except Exception as e:
        future.set_exception(e)
    return future
