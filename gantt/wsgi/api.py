# SPDX-License-Identifier: Apache-2.0
"""``gantt.wsgi.api:application``, for uWSGI, gunicorn and mod_wsgi.

The configuration is read from the usual files, or from the one that
``OS_GANTT_CONFIG_FILE`` names: a WSGI server's own arguments are not ours.
"""

import os

from gantt.cmd import wiring
from gantt.cmd.api import compose

_FILE = os.environ.get('OS_GANTT_CONFIG_FILE')

application = compose(wiring.parse(['--config-file', _FILE] if _FILE else [], 'gantt-api'))
