# SPDX-License-Identifier: Apache-2.0
"""What reports for hosts that have no agent of ours: a plugin of ``gantt-report-source``.

A report source is a class in the entry-point group ``gantt.report_sources``.  It runs in
a process of its own, never in a scheduler: it may wait for others, and holds credentials.
What it has for its work is what an agent has: :class:`~gantt.compute.over_rpc.OverRpc`,
:class:`~gantt.compute.farm.host_agent.HostAgent`, :class:`~gantt.compute.farm.runner.Runner`.
"""

import abc
import threading
from collections.abc import Callable
from typing import Any

#: Called with a metric's name, how much, and labels.
Count = Callable[..., None]


class ReportSource(abc.ABC):
    """The base of all of them; see ``doc/source/contributor/write-a-report-source.rst``.

    :cvar metrics_group: of options, the one whose ``metrics_port`` says where metrics are shown
    :ivar stopping: set by the handler of a signal: begin nothing new
    """

    metrics_group = 'report_source'

    def __init__(self) -> None:
        self.stopping = threading.Event()

    @classmethod  # noqa: B027 - most will have none of their own
    def register_opts(cls, conf: Any) -> None:
        """Register its groups of options; none unless it says so.

        :param conf: a ``ConfigOpts`` that has read its files
        """

    @classmethod
    @abc.abstractmethod
    def from_conf(cls, conf: Any, count: Count, gauge: Count) -> 'ReportSource':
        """One as it is configured; nothing is said yet.

        :param conf: the process's global configuration object, as oslo.messaging needs it
        :param count: counts something that happened
        :param gauge: says how much there is of something now
        :raises GanttError: what is wrong, e.g. an option, or the broker that is away
        """

    @abc.abstractmethod
    def start(self) -> None:
        """Begin; returns when all is known to work.

        :raises GanttError: it does not, and waiting will not mend it
        """

    @abc.abstractmethod
    def stop(self, seconds: float) -> bool:
        """End; whether what was under way was finished in time."""

    def status(self) -> dict[str, object]:
        """How things stand, for the log."""
        return {}
