# SPDX-License-Identifier: Apache-2.0
"""[audit_trail]: the file that records who changed what."""

from oslo_config import cfg

GROUP = cfg.OptGroup('audit_trail', title='Who changed what')

OPTS = [
    cfg.StrOpt(
        'file',
        default='',
        help='File that gantt-api and gantt-manage write a line of JSON to for everything that '
        'somebody changes by HTTP or by a command: who, what, for which project, and how it '
        'ended. "gantt-manage audit-trail" shows it. Empty: the line is in the log only, under '
        'the name gantt.audit_trail.',
    ),
    cfg.IntOpt(
        'file_bytes_max',
        default=10 << 20,
        min=4096,
        max=1 << 30,
        help='Size of the file in bytes from which on it is called .1, an older one .2, and so on.',
    ),
    cfg.IntOpt(
        'files_max',
        default=10,
        min=0,
        max=1000,
        help='How many older files stay. What is to be kept for longer is shipped away.',
    ),
]
