# SPDX-License-Identifier: Apache-2.0
"""[report_source]: what gantt-report-source has beside the options of its plugin."""

from typing import Any

from oslo_config import cfg

from gantt.conf import groups, listeners

GROUP = cfg.OptGroup(
    'report_source',
    title='Report sources',
    help='Read by gantt-report-source only, where the plugin has no group for it of its own.',
)

OPTS = [listeners.metrics_port_opt('gantt-report-source')]


def register_opts(conf: Any) -> None:
    """Register the options of [report_source]."""
    groups.register(conf, GROUP, OPTS)


def list_opts() -> list[tuple[str | None, list[Any]]]:
    """For oslo.config's generator."""
    return [(GROUP.name, OPTS)]
