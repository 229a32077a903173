# SPDX-License-Identifier: Apache-2.0
"""Nova's scheduler on one side, ours in its shadow on the other: a scheduler in memory."""

from gantt import exceptions, plugin_loader
from gantt.core.records.decision import error_of
from gantt.core.records.shadow import ObservedGuests, ObservedRequest
from gantt.groups.insights import HOOKS
from gantt.insights.read_model import Insights
from gantt.insights.shadow import DECISION_STORED_SECONDS, ShadowComparison, ShadowSettings
from gantt.scheduler.recorder import StoreRecorder
from gantt.telemetry.metrics import MetricRegistry
from tests.world import World, a_request, sqlite_store


class Side:
    """Nova's scheduler on one side, ours in its shadow on the other."""

    def __init__(self, hosts: int = 3, **settings) -> None:
        self.world = World(sqlite_store, hosts=hosts)
        self.recorder = self.world.recorder = StoreRecorder(
            self.world.store.records, MetricRegistry(), 1000
        )
        self.scheduler = self.world.another_scheduler()
        self.insights = Insights(
            self.world.store,
            plugin_loader.load_pipeline(),
            HOOKS,
            clock=self.world.clock,
            max_age=0.0,
        )
        self.counts: dict[tuple, float] = {}
        self.error: exceptions.GanttError | None = None
        self.shadow = ShadowComparison(
            self.world.store.shadows,
            self.decide,
            self.insights.explain,
            self.insights.scores,
            self.count,
            self.world.clock,
            ShadowSettings(**settings),
        )

    def count(self, name, value=1, **labels):
        key = (name.removeprefix('gantt_shadow_'), *labels.values())
        self.counts[key] = self.counts.get(key, 0) + value

    def decide(self, request):
        """As a call over RPC: an answer, or an error."""
        if self.error:
            raise self.error
        answer = self.world.select(request, by=self.scheduler)
        error = error_of(answer)
        if error:
            raise error
        return answer

    def asked(self, count=1, source=None, origin='req-1', **spec):
        request = a_request(count, dry_run=True, **spec)
        self.shadow.receive(ObservedRequest(request=request, origin=origin, source=source))
        while self.shadow.decide_one():
            pass
        self.recorder.flush()
        return request

    def seen(self, host, *requests):
        for request in requests:
            self.shadow.receive(ObservedGuests(host=host, consumers=request.consumers))

    def look(self, seconds=DECISION_STORED_SECONDS):
        for host in self.world.hosts.values():
            host.report()
        self.world.turn(seconds)
        while self.shadow.compare_due():
            pass
        return self.world.store.shadows.list_shadows(None, 100)

    def one(self, seconds=DECISION_STORED_SECONDS):
        (comparison,) = self.look(seconds)
        return comparison


def ours_of(side, request):
    (pending,) = side.shadow._pending.values()
    return pending.gantt_hosts[request.consumers[0]]
