# SPDX-License-Identifier: Apache-2.0
"""What authors of report sources import; it stays where it is when the rest moves.

from gantt.plugin_api.report_sources import Facts, HostAgent, ReportSource
"""

from gantt.client import get_transport
from gantt.compute.agent.running_guests import GuestInventory as RunningGuests
from gantt.compute.agent.session import Session
from gantt.compute.farm.host_agent import HostAgent as HostAgent
from gantt.compute.farm.host_agent import HostAgentSettings
from gantt.compute.farm.runner import Runner
from gantt.compute.over_rpc import OverRpc
from gantt.compute.ports import HostReadings
from gantt.compute.sources.report_source import ReportSource
from gantt.core.messages.report import RegisterHost
from gantt.core.messages.resource_classes import Inventory
from gantt.exceptions import Misconfigured, Unavailable
from gantt.moved import renamed
from gantt.rpc.amqp.transport import wait_for_broker

__all__ = [
    'HostReadings',
    'HostAgent',
    'Inventory',
    'Misconfigured',
    'OverRpc',
    'RegisterHost',
    'ReportSource',
    'Runner',
    'RunningGuests',
    'Session',
    'HostAgentSettings',
    'Unavailable',
    'get_transport',
    'wait_for_broker',
]

__getattr__ = renamed(__name__, {'Facts': 'HostReadings', 'Settings': 'HostAgentSettings'})
