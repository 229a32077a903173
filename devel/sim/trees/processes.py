# SPDX-License-Identifier: Apache-2.0
"""A process of a zone: its scheduler, and the interface for the parent zone."""

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

import msgspec

from devel.sim import network
from devel.sim.database import SimDatabase
from devel.sim.loop import Loop
from devel.sim.network import SimReply
from devel.sim.schedulers import LATE_SECONDS, SchedulerProcess
from devel.sim.tasks import TaskPool
from devel.sim.trees.links import LossyLinks, ZoneCall, ZoneReply
from gantt import exceptions
from gantt.cmd import policies
from gantt.core.messages.request import CancelClaims, ExtendClaims, SelectDestinations
from gantt.core.placement.pipeline import Pipeline
from gantt.core.records.decision import Answer, Outcome, error_of
from gantt.groups.insights import HOOKS
from gantt.http import errors, gates
from gantt.http.caller import Caller
from gantt.http.context import LocalAnswers
from gantt.http.settings import HttpSettings
from gantt.insights.read_model import Insights
from gantt.scheduler.settings import SchedulerSettings
from gantt.zones.http import requests as zones
from gantt.zones.http.context import ZoneHandlerContext
from gantt.zones.http.routes import ROUTES
from gantt.zones.model.messages import UnsealHost, ZoneAllocation, ZoneEvaluation, ZoneLease
from gantt.zones.model.strategies import ZoneStrategy
from gantt.zones.service import follow
from gantt.zones.service.context import ZoneContext
from gantt.zones.service.offers import summaries
from gantt.zones.service.offers.evaluate import ZoneSelection
from gantt.zones.service.place_over_zones import place_over_zones
from gantt.zones.service.share_claimer import RESOLVE_SECONDS

Handler = Callable[..., object]


def _changes(
    handler_context: ZoneHandlerContext, caller: Caller, since: float, after: str | None
) -> object:
    query = zones.ChangesQuery(since=since, after_claim=after)
    return zones.show_zone_changes(handler_context, caller, query)


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
    'unseal': (zones.unseal_host, UnsealHost),
}


class AnswerWatch(Protocol):
    """Hears of what zones answer."""

    def received(self, above: str, below: str, request_id: str) -> None:
        """Note an answer of a child zone to its parent about a request, or itself where ''."""

    def refused(self, zone: str, request: SelectDestinations, since: float) -> None:
        """Note that a zone and its child zones answer no room; it has evaluated since then."""


class TreeSurroundings(NamedTuple):
    """State that all processes of a tree share.

    :ivar networks: lines to each zone, by uuid
    :ivar watch: is notified of answers
    """

    strategies: Sequence[ZoneStrategy]
    networks: dict[str, network.Network]
    watch: AnswerWatch


class SimZoneProcess(SchedulerProcess):
    """One start of one process of a zone.

    :param zone: its name
    """

    idle_seconds = 5.0  # whatever it has to do wakes it
    # After its budget a request queries the state of an allocation, then has it end.
    late_seconds = LATE_SECONDS + 2 * RESOLVE_SECONDS

    def __init__(
        self,
        loop: Loop,
        database: SimDatabase,
        pipeline: Pipeline,
        settings: SchedulerSettings,
        zone: str,
        around: TreeSurroundings,
    ) -> None:
        super().__init__(loop, database, pipeline, settings)
        self.zone, self._watch = zone, around.watch
        stores = self.stores
        self.insights = Insights(stores, pipeline, HOOKS, settings, self.clock, max_age=0.0)
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
            ZoneSelection(around.strategies, random.Random(f'strategies of {self.name}')),
            lambda most, _: TaskPool(loop, self, most, self._requests.set),
        )
        # They are read by a task, and hosts by the caller for offers.
        self.parts.summaries.close()
        self.parts.refresher.close()
        self._follower = place_over_zones(stores, self.scheduler, self.parts).follower
        http = HttpSettings()
        self.handler_context = ZoneHandlerContext(
            self.insights,
            stores,
            ClientInside(self),  # type: ignore[arg-type]  # pools are not asked for
            self.recorder,  # type: ignore[arg-type]  # nothing is rendered
            http,
            {},
            policies.defaults(),
            gates.quota_gates(http),
            LocalAnswers(self.insights),  # nobody asks for any
            ROUTES,
            self.parts,
        )

    # -- its threads -----------------------------------------------------------------
    def _start(self) -> None:
        while True:
            try:
                self.parts.directory.refresh()
                self.parts.directory.identity()
                self.insights.refresh()
                break
            except exceptions.Unavailable:
                self.loop.sleep(1.0)
        super()._start()
        if self.parts.directory.children():
            self.loop.spawn(self, 'follower', self._follow)
            self.loop.spawn(self, 'summaries', self._read_summaries)

    def _follow(self) -> None:
        while True:
            self.loop.sleep(follow.ROUND_SECONDS)
            try:
                self._follower.step()
            except exceptions.Unavailable as e:
                self.loop.write_trace(self.name, f'follows nobody: {e.message[:60]}')

    def _read_summaries(self) -> None:
        while True:
            for zone in self.parts.directory.children():
                try:
                    self.parts.summaries.read(zone)
                except exceptions.GanttError as e:
                    self.loop.write_trace(
                        self.name, f'{zone.name} does not say what it has: {e.code}'
                    )
            self.loop.sleep(summaries.ROUND_SECONDS)

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
            result = handler(self.handler_context, Caller(user=call.parent), *words)
        except exceptions.GanttError as e:
            return ZoneReply(e.http_status, errors.body_of(e, '-'))
        return ZoneReply(200, msgspec.json.encode(result))


class ClientInside:
    """Requests of the parent zone, to the scheduler of the same process."""

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
