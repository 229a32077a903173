# SPDX-License-Identifier: Apache-2.0
"""The stable interface for authors of report sources: one module to import from.

from gantt.plugin_api.report_sources import HostAgent, HostReadings, ReportSource
"""

from gantt.client import get_transport
from gantt.compute.agent.host_agent import HostAgent, HostAgentSettings
from gantt.compute.agent.runner import PeriodicTasks, Runner
from gantt.compute.agent.running_guests import GuestInventory
from gantt.compute.agent.session import Session
from gantt.compute.over_rpc import RpcSchedulerPort
from gantt.compute.ports import HostReadings, ReportSource
from gantt.core.messages.report import (
    DevicePool,
    Hypervisor,
    NumaCell,
    RegisterHost,
    ReportedMetric,
    Running,
)
from gantt.core.messages.resource_classes import Inventory
from gantt.exceptions import Misconfigured, Unavailable
from gantt.rpc.amqp.transport import wait_for_broker

__all__ = [
    'DevicePool',
    'GuestInventory',
    'HostAgent',
    'HostAgentSettings',
    'HostReadings',
    'Hypervisor',
    'Inventory',
    'Misconfigured',
    'NumaCell',
    'RpcSchedulerPort',
    'PeriodicTasks',
    'RegisterHost',
    'ReportSource',
    'ReportedMetric',
    'Runner',
    'Running',
    'Session',
    'Unavailable',
    'get_transport',
    'wait_for_broker',
]
