# SPDX-License-Identifier: Apache-2.0
"""A process of a zone: its scheduler, and the interface for the zone above."""

import collections
import functools
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol, cast

import msgspec

from devel.sim import network
from devel.sim.loop import Loop, Process, SimSignal
from devel.sim.network import SimReply
from devel.sim.schedulers import LATE_SECONDS, SchedulerProcess
from devel.sim.trees.databases import ZoneDatabase
from devel.sim.trees.links import LossyLinks, ZoneCall, ZoneReply
from devel.sim.zones.runner import TaskRunner
from gantt import exceptions, plugin_loader
from gantt.core.messages.request import CancelClaims, ExtendClaims, SelectDestinations
from gantt.core.records.decision import Answer, Outcome, error_of
from gantt.core.zones.messages import Redeem, ZoneAllocation, ZoneEvaluation, ZoneLease
from gantt.core.zones.strategy import ZoneStrategy
from gantt.http import errors, gates, policy
from gantt.http.caller import Caller
from gantt.http.context import HandlerContext
from gantt.http.handlers import zones
from gantt.http.settings import HttpSettings
from gantt.insights.read_model import Insights
from gantt.scheduler.settings import SchedulerSettings
from gantt.scheduler.waiter import Signal, Waiter
from gantt.scheduler.zones import follow
from gantt.scheduler.zones.context import ZoneConcurrency, ZoneContext
from gantt.scheduler.zones.offers import summaries
from gantt.scheduler.zones.offers.evaluate import ZoneChoosing

Handler = Callable[..., object]


def _changes(world: HandlerContext, caller: Caller, since: float, behind: str | None) -> object:
    query = zones.ChangesQuery(since=since, behind=behind)
    return zones.show_zone_changes(world, caller, query)


#: Requests of a parent zone, or of a conductor of this one, with the type of the body.
CALLS: Mapping[str, tuple[Handler, Any]] = {
    'zone discover': (zones.discover_zone, None),
    'zone summary': (zones.summarize_zone, None),
    'zone evaluate': (zones.evaluate_zone, ZoneEvaluation),
    'zone allocate': (zones.allocate_in_zone, ZoneAllocation),
    'zone allocation': (zones.show_zone_allocation, None),
    'zone release': (zones.release_zone_allocation, None),
    'zone extend': (zones.extend_zone_lease, ZoneLease),
    'zone changes': (_changes, None),
    'redeem': (zones.redeem_place, Redeem),
}


class AnswerWatch(Protocol):
    """Hears of what zones answer."""

    def received(self, above: str, below: str, request_id: str) -> None:
        """Note an answer of a child zone to its parent about a request, or itself where ''."""

    def refused(self, zone: str, request: SelectDestinations, since: float) -> None:
        """Note that a zone and its child zones answer no room; it has evaluated since then."""


class TreeSurroundings(NamedTuple):
    """The parts that all processes of a tree share.

    :ivar networks: lines to each zone, by uuid
    :ivar watch: is notified of answers
    """

    loop: Loop
    strategies: Sequence[ZoneStrategy]
    networks: Mapping[str, network.Network]
    watch: 'AnswerWatch'


class SimZoneProcess(SchedulerProcess):
    """One start of one process of a zone.

    :param zone: its name
    """

    idle_seconds = 5.0  # whatever it has to do wakes it

    def __init__(
        self,
        around: TreeSurroundings,
        name: str,
        zone: str,
        database: ZoneDatabase,
        settings: SchedulerSettings,
    ) -> None:
        loop, pipeline = around.loop, plugin_loader.load_pipeline()
        super().__init__(loop, name, database, pipeline, settings)
        self.zone, self._watch = zone, around.watch
        stores = self.scheduler.stores
        self.insights = Insights(stores, pipeline, settings, self.clock, max_age=0.0)
        links = LossyLinks(
            zone,
            lambda: self.parts.directory.own_uuid(),
            around.networks,
            functools.partial(around.watch.received, zone),
        )
        self.parts = ZoneContext(
            stores,
            links,
            self.insights.cache,
            lambda: pipeline,
            settings,
            self.recorder.count,
            ZoneChoosing(around.strategies, random.Random(f'strategies of {name}')),
            ZoneConcurrency(
                TaskRunner(loop, self),
                lambda most, what: TaskThreads(loop, self, self._requests.set, most, what),
            ),
        )
        # They are read by a task, and hosts by the caller for offers.
        self.parts.summaries.close()
        self.parts.refresher.close()
        self.scheduler.speak_with(self.parts)
        http = HttpSettings()
        self.world = HandlerContext(
            self.insights,
            stores,
            ClientInside(self),  # type: ignore[arg-type]  # pools are not asked for
            self.recorder,  # type: ignore[arg-type]  # nothing is rendered
            http,
            {},
            policy.defaults(),
            gates.gates(http),
            self.parts,
        )

    # -- its threads -----------------------------------------------------------------
    def _start(self) -> None:
        while True:
            try:
                self.parts.directory.refresh()
                self.parts.directory.identity()
                self.insights.freshen()
                break
            except exceptions.Unavailable:
                self.loop.sleep(1.0)
        super()._start()
        if self.parts.directory.children():
            self.loop.spawn(self, 'follower', self._follow)
            self.loop.spawn(self, 'summaries', self._read_summaries)

    def _follow(self) -> None:
        follower = self.scheduler.follower
        assert follower is not None
        while True:
            self.loop.sleep(follow.EACH_SECONDS)
            try:
                follower.step()
            except exceptions.Unavailable as e:
                self.loop.say(self.name, f'follows nobody: {e.message[:60]}')

    def _read_summaries(self) -> None:
        while True:
            for zone in self.parts.directory.children():
                try:
                    self.parts.summaries.read(zone)
                except exceptions.GanttError as e:
                    self.loop.say(self.name, f'{zone.name} does not say what it has: {e.code}')
            self.loop.sleep(summaries.EACH_SECONDS)

    # -- its door --------------------------------------------------------------------
    def _handle(self, method: str, message: Any, answer: network.Answer) -> None:
        if method in CALLS:
            answer(self._requested(method, message), None)
        else:
            super()._handle(method, message, answer)

    def send(self, answers: Sequence[tuple[object, Answer]]) -> None:
        for _, answer in answers:
            if answer.outcome is Outcome.NO_VALID_HOST:
                self._look_at_refusal(answer.request_id)
        super().send(answers)

    send_soon = send

    def _look_at_refusal(self, request_id: str) -> None:
        waiting = [
            (seen.taken_at, seen.request)
            for seen in self.requests_seen
            if seen.request.request_id == request_id and seen.answered_at is None
        ]
        if waiting:
            since, request = waiting[0]
            self._watch.refused(self.zone, request, since)

    def _requested(self, method: str, call: ZoneCall) -> ZoneReply:
        handler, body = CALLS[method]
        words = call.words
        if body is not None:
            words = (*words, msgspec.json.decode(call.body, type=body))
        try:
            result = handler(self.world, Caller(user=call.parent), *words)
        except exceptions.GanttError as e:
            return ZoneReply(e.http_status, errors.body_of(e, '-'))
        return ZoneReply(200, msgspec.json.encode(result))


class ClientInside:
    """Requests of the zone above, to the scheduler of the same process."""

    def __init__(self, process: SimZoneProcess) -> None:
        self._process = process

    def select_destinations(self, request: SelectDestinations) -> Answer:
        process = self._process
        reply = SimReply(process.loop)
        process._select(request, reply.finish)
        if not reply.signal.wait(request.budget_ms / 1000 + LATE_SECONDS):
            raise exceptions.Unavailable('the scheduler has not answered')
        if reply.error is not None:
            raise reply.error
        answer = cast(Answer, reply.value)
        error = error_of(answer)
        if error is not None:
            raise error
        return answer

    def cancel_claims(self, request_id: str, reason: str = '') -> object:
        scheduler = self._process.scheduler
        return scheduler.cancel(CancelClaims(request_id=request_id, reason=reason))

    def extend_claims(self, request_id: str, seconds: int) -> object:
        scheduler = self._process.scheduler
        return scheduler.extend(ExtendClaims(request_id=request_id, seconds=seconds))


_Job = tuple[Callable[..., Any], tuple[Any, ...], 'Future[Any]']


class TaskThreads:
    """See ``scheduler.zones.threads``.

    :param most: jobs at once
    :param wake: is called when a job is about to wait for the thread that places
    """

    def __init__(
        self, loop: Loop, process: Process, wake: Callable[[], None], most: int, name: str
    ) -> None:
        self._loop, self._process, self._wake = loop, process, wake
        self._most, self._name = most, name
        self._running = 0
        self._waiting: collections.deque[_Job] = collections.deque()

    def begin(self, job: Callable[..., Any], *args: Any) -> 'Future[Any]':
        future: Future[Any] = Future()
        self._waiting.append((job, args, future))
        self._next()
        return future

    def wait(self, begun: 'Collection[Future[Any]]', seconds: float) -> None:
        end = self._loop.now + seconds
        signal = SimSignal(self._loop)
        for future in begun:
            future.add_done_callback(lambda _: signal.set())
        while not all(future.done() for future in begun) and self._loop.now < end:
            signal.wait(end - self._loop.now)
            signal.clear()

    def waiter(self) -> Waiter:
        self._wake()
        return Waiter(cast(Signal, SimSignal(self._loop)))

    def close(self) -> None:
        self._waiting.clear()

    def _next(self) -> None:
        while self._waiting and self._running < self._most:
            self._running += 1
            self._loop.spawn(self._process, self._name, self._do, *self._waiting.popleft())

    def _do(self, job: Callable[..., Any], args: tuple[Any, ...], found: 'Future[Any]') -> None:
        try:
            found.set_result(job(*args))
        except Exception as e:
            found.set_exception(e)
        finally:
            self._running -= 1
            self._next()
