# SPDX-License-Identifier: Apache-2.0
"""Interface of report sources, plugins of ``gantt-report-source`` for hosts without our agent.

A report source is a class in the entry-point group ``gantt.report_sources``.  It runs in
a process of its own, never in a scheduler: it may wait for others, and holds credentials.
It uses the same building blocks as an agent: :class:`~gantt.compute.over_rpc.OverRpc`,
:class:`~gantt.compute.farm.host_agent.HostAgent`, :class:`~gantt.compute.farm.runner.Runner`.
"""

import abc
import threading
from collections.abc import Callable
from typing import Any

#: Called with a metric's name, how much, and labels.
Count = Callable[..., None]


class ReportSource(abc.ABC):
    """Base class of report sources; see ``doc/source/contributor/write-a-report-source.rst``.

    :cvar metrics_group: group of options whose ``metrics_port`` is that of its metrics
    :ivar stopping: set by the handler of a signal: begin nothing new
    """

    metrics_group = 'report_source'

    def __init__(self) -> None:
        self.stopping = threading.Event()

    @classmethod  # noqa: B027 - most will have none of their own
    def register_opts(cls, conf: Any) -> None:
        """Register its groups of options; none by default.

        :param conf: a ``ConfigOpts`` that has read its files
        """

    @classmethod
    @abc.abstractmethod
    def from_conf(cls, conf: Any, count: Count, gauge: Count) -> 'ReportSource':
        """Return a source as configured, which has sent nothing yet.

        :param conf: the process's global configuration object, as oslo.messaging needs it
        :param count: counts an event
        :param gauge: sets a current amount
        :raises GanttError: e.g. an option is wrong, or the broker is away
        """

    @abc.abstractmethod
    def start(self) -> None:
        """Start; returns when all is known to work.

        :raises GanttError: it does not work, and waiting will not help
        """

    @abc.abstractmethod
    def stop(self, seconds: float) -> bool:
        """End; return whether what was under way was finished in time."""

    def status(self) -> dict[str, object]:
        """Return the state, for the log."""
        return {}
