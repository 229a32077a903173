# SPDX-License-Identifier: Apache-2.0
"""The RPC side of a process with all capabilities."""

from typing import Any

from gantt.groups.rpc import PlannerMethods
from gantt.nova.wire.service import NovaTopic, source_methods
from gantt.rpc import wire
from gantt.rpc.amqp.replies import Count
from gantt.rpc.service import RpcExtensions, RpcService


def rpc_service(
    conf: Any,
    scheduler: Any | None,
    *,
    nova: Any | None = None,
    planner: Any | None = None,
    count: Count,
    url: str | None = None,
    **options: Any,
) -> RpcService:
    """Return the RPC side of a process, see ``RpcService``.

    :param scheduler: the facade, ``gantt.scheduler.service.Scheduler``; None: it only plans groups
    :param nova: ``gantt.nova.service.facade.NovaFacade`` of this scheduler
    :param planner: ``gantt.groups.service.planner.GroupPlanner``; None: other processes plan
    """
    is_of_nova = conf.rpc.nova_enabled and nova is not None
    extensions = RpcExtensions(
        topics={} if planner is None else {wire.PLANNER_TOPIC: PlannerMethods(planner).interface},
        stats_methods={} if nova is None else source_methods(nova),
        peer=NovaTopic(conf, nova, count, url) if is_of_nova else None,
    )
    return RpcService(conf, scheduler, extensions=extensions, count=count, url=url, **options)
