# SPDX-License-Identifier: Apache-2.0
"""[zones]: the zones below and above this one."""

from oslo_config import cfg

GROUP = cfg.OptGroup(
    'zones',
    title='Other zones',
    help='Read by gantt-scheduler and gantt-api. Zones are registered by "gantt zone add".',
)

OPTS = [
    cfg.StrOpt(
        'credentials_file',
        default='',
        help='A file with a section for each credential by which zones below are spoken to: '
        'auth_url, application_credential_id and application_credential_secret, of the identity '
        'service of that zone. Readable by these processes alone. Empty: zones on this machine '
        'only.',
    ),
]
