# SPDX-License-Identifier: Apache-2.0
"""[report_source]: what gantt-report-source has beside the options of its plugin."""

from oslo_config import cfg

from gantt.conf import listeners

GROUP = cfg.OptGroup(
    'report_source',
    title='Report sources',
    help='Read by gantt-report-source only, where the plugin has no group for it of its own.',
)

OPTS = [listeners.metrics_port_opt('gantt-report-source')]
