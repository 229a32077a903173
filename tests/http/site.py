# SPDX-License-Identifier: Apache-2.0
"""A small site behind the HTTP interface: the production scheduler, hosts and the application.

Time is in our hands; a request turns the world until it is answered.
"""

import threading
import uuid
from collections.abc import Sequence
from typing import Any

from gantt import plugin_loader
from gantt.cmd.http_app import make_app
from gantt.core.messages.report import NumaCell, ReportedMetric, Running
from gantt.core.messages.request import (
    CancelClaims,
    ConfirmRequest,
    ExtendClaims,
    ReleaseRequest,
    SelectDestinations,
)
from gantt.core.messages.resource_classes import Inventory
from gantt.core.records.decision import Answer, error_of
from gantt.groups.insights import HOOKS
from gantt.groups.model.group_answer import GroupAnswer
from gantt.groups.model.place_group import (
    ChangeGroup,
    ExtendGroupPlan,
    PlaceGroup,
    ReleaseGroupPlan,
)
from gantt.http.settings import HttpSettings
from gantt.insights.read_model import Insights
from gantt.scheduler.recorder import StoreRecorder
from gantt.scheduler.service import Scheduler
from gantt.telemetry.metrics import MetricRegistry
from tests.planner import a_planner, place
from tests.world import Host, World, sqlite_store


def fixed(number: int) -> str:
    """A uuid that is the same in every run; the first part already tells two apart."""
    return str(uuid.UUID(int=((number * 0x9E3779B1 & 0xFFFFFFFF) << 96) + number))


class RecordingWorld(World):
    """A world that keeps refused decisions in its store, as the service does."""

    def another_scheduler(self) -> Scheduler:
        if not isinstance(self.recorder, StoreRecorder):
            self.recorder = StoreRecorder(self.store.records, MetricRegistry(), 1000)
        return super().another_scheduler()

    def turn(self, seconds: float = 0.2, times: int = 1) -> None:
        super().turn(seconds, times)
        self.recorder.flush()


class DirectClient:
    """A requests client in the same process: the world turns until the answer is there."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.lock = threading.Lock()
        self.error: Exception | None = None

    def select_destinations(self, request: SelectDestinations) -> Answer:
        if self.error is not None:
            raise self.error
        with self.lock:
            answer = self.world.select(request)
        error = error_of(answer)
        if error is not None:
            raise error
        return answer

    def extend_claims(self, request_id: str, seconds: int) -> object:
        with self.lock:
            fates = self.world.scheduler.extend(
                ExtendClaims(request_id=request_id, seconds=seconds)
            )
            self.world.turn()
        return fates

    def confirm_request(self, request_id: str, consumers: Sequence[str] = ()) -> object:
        message = ConfirmRequest(request_id=request_id, consumers=list(consumers))
        with self.lock:
            fates = self.world.scheduler.confirm_request(message)
            self.world.turn()
        return fates

    def release_request(
        self, request_id: str, consumers: Sequence[str] = (), reason: str = ''
    ) -> object:
        message = ReleaseRequest(request_id=request_id, consumers=list(consumers), reason=reason)
        with self.lock:
            fates = self.world.scheduler.release_request(message)
            self.world.turn()
        return fates

    def cancel_claims(self, request_id: str, reason: str = '') -> object:
        if self.error is not None:
            raise self.error
        with self.lock:
            fates = self.world.scheduler.cancel(CancelClaims(request_id=request_id, reason=reason))
            self.world.turn()
        return fates


class DirectPlans:
    """A client of who plans groups, in the same process: what is queued is planned at once."""

    def __init__(self, world: World) -> None:
        self.world, self.lock = world, threading.Lock()
        self.planner = a_planner(world)

    def _placed(self, request: PlaceGroup | ChangeGroup) -> GroupAnswer:
        with self.lock:
            answer = place(self.planner, request)
            self.world.turn()
        return answer

    def place_group(self, request: PlaceGroup) -> GroupAnswer:
        return self._placed(request)

    def change_group(self, request: ChangeGroup) -> GroupAnswer:
        return self._placed(request)

    def extend_group_plan(
        self, group: str, seconds: int, *, only_project: str | None = None
    ) -> object:
        message = ExtendGroupPlan(group=group, seconds=seconds, only_project=only_project)
        with self.lock:
            return self.planner.extend(message)

    def release_group_plan(
        self,
        group: str,
        reason: str = '',
        *,
        only_project: str | None = None,
        planned_by: str | None = None,
    ) -> object:
        message = ReleaseGroupPlan(
            group=group, reason=reason, only_project=only_project, planned_by=planned_by
        )
        with self.lock:
            fates = self.planner.release(message)
            self.world.turn()
        return fates


class Site:
    """Six hosts: four plain ones, one small one in another zone, one that went silent.

    ``cmp-5`` is small and in zone ``az2``; ``cmp-6`` stops reporting.
    """

    def __init__(self, settings: HttpSettings | None = None, store: Any = None) -> None:
        self.world = RecordingWorld(store or sqlite_store)
        self.hosts: dict[str, Host] = {}
        for i in range(1, 7):
            self.hosts[f'cmp-{i}'] = self._host(f'cmp-{i}', i)
        for host in self.hosts.values():
            host.report()
        self.world.turn()
        self.silent = {'cmp-6'}
        for _ in range(4):
            self.pass_seconds(60)
        self.client = DirectClient(self.world)
        self.metrics = MetricRegistry()
        self.insights = Insights(
            self.world.store,
            plugin_loader.load_pipeline(),
            HOOKS,
            self.world.scheduler.settings,
            self.world.clock,
        )
        self.plans = DirectPlans(self.world)
        self.app = make_app(
            self.insights,
            self.world.store,
            self.client,
            self.metrics,
            settings,
            plans=self.plans,
        )

    def _host(self, name: str, number: int) -> Host:
        small = number == 5
        return Host(
            self.world,
            name,
            zone='az2' if small else 'az1',
            location=f'hall.r{number % 2}.{name}',
            inventories={
                'VCPU': Inventory(total=2 if small else 8, allocation_ratio=2.0),
                'MEMORY_MB': Inventory(total=4096 if small else 32_768, reserved=512),
                'DISK_GB': Inventory(total=500),
            },
            foreign={'VCPU': 1, 'MEMORY_MB': 1024} if number == 2 else {},
            traits=['CUSTOM_FAST', 'HW_CPU_X86_AVX2'] if number < 3 else ['HW_CPU_X86_AVX2'],
            metrics={'load': ReportedMetric(value=0.5)},
            numa=[NumaCell(id=0, cpus=list(range(8)), memory_mb=32_768)],
        )

    def pass_seconds(self, seconds: float) -> None:
        """Let time pass; every host that is not silent reports."""
        self.world.turn(seconds)
        for name, host in self.hosts.items():
            if name not in self.silent:
                host.report()
        self.world.turn()

    def run(self, name: str, consumer: str, claim_id: str | None, **resources: int) -> None:
        """A host says that it runs a consumer."""
        host = self.hosts[name]
        host.running[consumer] = Running(
            consumer=consumer, claim_id=claim_id, resources=dict(resources)
        )
        host.report()
        self.world.turn()

    def place(self, number: int, count: int = 1, **resources: int) -> Answer:
        """Place ``count`` consumers; ids derive from ``number``."""
        from gantt.core.messages.request import RequestSpec

        needs = resources or {'VCPU': 2, 'MEMORY_MB': 4096, 'DISK_GB': 20}
        return self.client.select_destinations(
            SelectDestinations(
                request_id=fixed(number),
                spec=RequestSpec(resources=needs),
                consumers=[fixed(number * 1000 + i) for i in range(count)],
            )
        )
