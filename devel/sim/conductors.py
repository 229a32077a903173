# SPDX-License-Identifier: Apache-2.0
"""The callers: each story is one intent of a caller, and what goes wrong with it.

A request is repeated until it has an answer that ends it; what is placed is
built, or cancelled, extended, forgotten; what runs is moved or deleted.
"""

import dataclasses
import random
import uuid
from collections.abc import Callable

import msgspec

from devel.sim import plan
from devel.sim.loop import Loop, Process
from devel.sim.network import Network
from gantt import exceptions
from gantt.core.messages.build import Build, Delete
from gantt.core.messages.request import (
    CancelClaims,
    ExtendClaims,
    GroupRef,
    Policy,
    Purpose,
    RequestSpec,
    SelectDestinations,
)
from gantt.core.records.decision import Answer, Outcome, Selection

TRIES = 5
BUDGETS_MS = (2_000, 5_000, 5_000, 8_000)
#: They do not end a request, placed or not: repeat it after one of these.
RETRIED_OUTCOMES = {
    Outcome.BUSY,
    Outcome.FAILED,
    Outcome.EXPIRED,
    Outcome.UNKNOWN,
    Outcome.CONFLICT,
}

#: Delivers a message to the agent of a host; returns whether there was one.
Deliver = Callable[[str, Build | Delete], bool]


@dataclasses.dataclass
class AnswerReceived:
    """An answer as a caller got it; times in virtual seconds."""

    sent_at: float
    answered_at: float
    answer: Answer


class Conductors:
    """All stories of a run, in one process that never dies.

    :ivar heard: request id -> every answer to it, in order of arrival
    :ivar cancelled: request ids that a caller tried to cancel
    :ivar reuses: whether ids are used with another body.  Not where a backup may be put back:
        claim ids follow from request ids, and a body that is forgotten cannot be told apart
    :ivar reused: request ids that were used with another body as well
    :ivar broken: violations that were seen when they happened
    :ivar under_way: how many stories have not ended
    """

    def __init__(self, loop: Loop, network: Network, rng: random.Random, deliver: Deliver) -> None:
        self.answers_received: dict[str, list[AnswerReceived]] = {}
        self.cancelled: set[str] = set()
        self.reuses = True
        self.reused: set[str] = set()
        self.broken: list[str] = []
        self.under_way = 0
        self._loop = loop
        self._network = network
        self._rng = rng
        self._deliver = deliver
        self._process = Process(loop, 'conductor')
        groups = [
            GroupRef(uuid=self._uuid(), policy=policy, max_per_host=per_host)
            for policy, per_host in (
                (Policy.ANTI_AFFINITY, 1),
                (Policy.ANTI_AFFINITY, 2),
                (Policy.AFFINITY, 1),
                (Policy.SOFT_ANTI_AFFINITY, 1),
                (Policy.SOFT_AFFINITY, 1),
            )
        ]
        self._groups = rng.sample(groups, rng.choice((1, 2, 5)))

    def begin(self, stories: int) -> None:
        """Let the stories begin: spread over the trouble, or many at a time."""
        moments = [self._rng.uniform(1.0, plan.TROUBLE_SECONDS - 10) for _ in range(stories)]
        if self._rng.random() < 0.5:
            moments = [self._rng.choice(moments[:2]) + self._rng.uniform(0, 0.05) for _ in moments]
        for moment in moments:
            self._spawn(self._story, moment)

    def _spawn(self, job: Callable[..., object], *args: object) -> None:
        self.under_way += 1

        def counted() -> None:
            try:
                job(*args)
            finally:
                self.under_way -= 1

        self._loop.spawn(self._process, 'story', counted)

    # -- the stories -------------------------------------------------------------------
    def _story(self, begin: float) -> None:
        self._loop.sleep(begin)
        request = self._request()
        if self._rng.random() < 0.2:  # somebody is impatient and asks twice at a time
            self._spawn(self._send, request)
        elif self._rng.random() < 0.1:  # or forgets that it has asked, under another id
            self._spawn(self._send, self._renamed(request))
        placed = self._send(request)
        if placed is None:
            placed = self._handle_refusal(request)
        if placed is None:
            return
        lucky = self._rng.random() >= 0.1
        if placed.request_id == request.request_id and self.reuses and not lucky:
            self._reuse(request)
        self._use_places(placed)

    def _reuse(self, request: SelectDestinations) -> None:
        """Send another body under the id of a request that was placed."""
        self.reused.add(request.request_id)
        changed = msgspec.structs.replace(request, consumers=[self._uuid()])
        answer = self._send_once(changed, keep=False)
        if answer is not None and answer.outcome is Outcome.PLACED:
            self.broken.append(f'P4: another body under {request.request_id} was placed')

    def _handle_refusal(self, request: SelectDestinations) -> Answer | None:
        """Handle a refusal: leave it, cancel it, or request the same consumers under another id."""
        luck = self._rng.random()
        if luck < 0.3:
            self._cancel(request.request_id)
        elif luck < 0.7:
            return self._send(self._renamed(request))
        return None

    def _use_places(self, placed: Answer) -> None:
        luck = self._rng.random()
        if luck < 0.1:
            return  # forgotten: the lease ends it
        if luck < 0.2:
            self._cancel(placed.request_id)
            if self._rng.random() < 0.5:
                return  # else the builds are sent all the same
        elif luck < 0.35:
            self._extend(placed.request_id)
        chosen = [selections[0] for selections in placed.selections if selections]
        for selection in chosen:
            self._build(selection)
        self._loop.sleep(self._rng.uniform(3, 15))
        if self._rng.random() < 0.1:
            self._cancel(placed.request_id)  # too late for what runs
        for selection in chosen:
            luck = self._rng.random()
            if luck < 0.3:
                self._delete(selection)
            elif luck < 0.5:
                self._spawn(self._move, selection)

    def _move(self, source: Selection) -> None:
        purpose = self._rng.choice((Purpose.RESIZE, Purpose.MIGRATE, Purpose.LIVE_MIGRATE))
        spec = RequestSpec(
            resources=source.resources,
            purpose=purpose,
            ignore_hosts=[source.host],
            move_id=self._uuid(),
            group=self._group_of_guest(source.consumer),
        )
        placed = self._send(
            SelectDestinations(
                request_id=self._uuid(),
                spec=spec,
                consumers=[source.consumer],
                budget_ms=self._rng.choice(BUDGETS_MS),
            )
        )
        if placed is None:
            return
        target = placed.selections[0][0]
        self._build(target)
        self._loop.sleep(self._rng.uniform(3, 8))
        # Usually the source goes; now and then it was reverted.
        self._delete(target if self._rng.random() < 0.25 else source)

    def _group_of_guest(self, consumer: str) -> GroupRef | None:
        """Return the group that a move of a guest refers to."""
        return None

    # -- messages ------------------------------------------------------------------------
    def _send(self, request: SelectDestinations) -> Answer | None:
        """Repeat the request until an answer ends it; return the answer where it is placed."""
        for _ in range(TRIES):
            answer = self._send_once(request)
            if answer is not None and answer.outcome not in RETRIED_OUTCOMES:
                # A repeat after the answer must hear the same.
                if self._rng.random() < 0.3:
                    self._loop.sleep(self._rng.uniform(0, 5))
                    self._send_once(request)
                return answer if answer.outcome is Outcome.PLACED else None
            self._loop.sleep(self._rng.uniform(0.1, 1.0))
            # Nobody knows what becomes of the copy that was sent.
            request = msgspec.structs.replace(request, repeat=True)
        return None

    def _send_once(self, request: SelectDestinations, keep: bool = True) -> Answer | None:
        sent_at = self._loop.now
        short = request.request_id[:8]
        try:
            answer: Answer = self._network.call(
                'conductor', 'select_destinations', request, request.budget_ms / 1000 + 1.0
            )
        except exceptions.GanttError as e:
            self._loop.write_trace('conductor', f'{short}: {type(e).__name__}')
            return None
        self._loop.write_trace('conductor', f'{short}: {answer.outcome.value}')
        if keep:
            self.answers_received.setdefault(request.request_id, []).append(
                AnswerReceived(sent_at, self._loop.now, answer)
            )
        return answer

    def _cancel(self, request_id: str) -> None:
        self.cancelled.add(request_id)
        self._send_message('cancel', CancelClaims(request_id=request_id, reason='not wanted'))

    def _extend(self, request_id: str) -> None:
        self._send_message('extend', ExtendClaims(request_id=request_id, seconds=25))

    def _send_message(self, method: str, message: CancelClaims | ExtendClaims) -> None:
        try:
            self._network.call('conductor', method, message, plan.CALL_SECONDS)
        except exceptions.GanttError as e:
            self._loop.write_trace(
                'conductor', f'{method} {message.request_id[:8]}: {type(e).__name__}'
            )

    def _build(self, selection: Selection) -> None:
        build = selection.build()
        self._post(build)
        if self._rng.random() < 0.3:  # nobody heard of it: once more
            self._loop.at(self._rng.uniform(1, 20), self._post, build)

    def _delete(self, selection: Selection) -> None:
        self._post(
            Delete(
                consumer=selection.consumer,
                host=selection.host,
                claim_id=selection.claim_id,
                reason='not wanted any more',
            )
        )

    def _post(self, message: Build | Delete) -> None:
        description = f'{type(message).__name__.lower()} {(message.claim_id or "-")[:8]}'
        host = message.host
        self._network.post('conductor', host, description, lambda: self._deliver(host, message))

    # -- requests -------------------------------------------------------------------------------
    def _request(self) -> SelectDestinations:
        rng = self._rng
        group = rng.choice(self._groups) if rng.random() < 0.4 else None
        count = rng.choice((1, 1, 1, 2, 3))
        return SelectDestinations(
            request_id=self._uuid(),
            spec=RequestSpec(resources=self._resources(), group=group),
            consumers=[self._uuid() for _ in range(count)],
            budget_ms=rng.choice(BUDGETS_MS),
        )

    def _renamed(self, request: SelectDestinations) -> SelectDestinations:
        return msgspec.structs.replace(request, request_id=self._uuid())

    def _resources(self) -> dict[str, int]:
        vcpu = self._rng.choice((1, 2, 3, 4))
        return {'VCPU': vcpu, 'MEMORY_MB': 1024 * vcpu, 'DISK_GB': 10}

    def _uuid(self) -> str:
        return str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
