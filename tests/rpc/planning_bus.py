# SPDX-License-Identifier: Apache-2.0
"""A scheduler and who plans groups on one broker in the process."""

from devel.doubles import MemoryRecorder
from devel.memory_store.stores import memory_stores
from gantt import client, plugin_loader
from gantt.core.messages.report import RegisterHost
from gantt.groups.service.group_members import GroupMembers
from gantt.groups.service.planner import GroupPlanner
from gantt.groups.service.settings import PlannerSettings
from gantt.scheduler.service import Scheduler
from gantt.scheduler.settings import SchedulerSettings
from tests.rpc.bus import Bus
from tests.rpc.facade import until
from tests.rpc.test_whole_service import HOSTS, a_report


class PlanningBus(Bus):
    """A scheduler with hosts and who plans groups, both on one in-process broker.

    :param runs: whether groups are planned that come
    """

    def __init__(self, runs: bool = True, **bounds):
        self.store, pipeline = memory_stores(), plugin_loader.load_pipeline()
        self.scheduler_ = Scheduler(
            self.store, pipeline, MemoryRecorder(), SchedulerSettings(), make_hook=GroupMembers
        )
        self.recorder = MemoryRecorder()
        self.planner = GroupPlanner(
            self.store,
            pipeline,
            self.recorder,
            SchedulerSettings(worker='planner'),
            PlannerSettings(plan_seconds=0.2, **bounds),
        )
        self.scheduler_.start()
        if runs:
            self.planner.start()
        super().__init__(facade=self.scheduler_, planner=self.planner)
        claims = client.ClaimsClient(self.carrier())
        stats = client.StatsClient(self.carrier())
        for name in HOSTS:
            registered = claims.register_host(RegisterHost(name=name, boot_nonce='n', zone='nova'))
            stats.update_resource_stats(a_report(name, registered.epoch, 1))
        until(lambda: len(self.scheduler_.cache.working) == len(HOSTS))

    def close(self) -> None:
        super().close()
        self.planner.stop(5.0)
        self.scheduler_.stop(5.0)
