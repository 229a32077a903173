# SPDX-License-Identifier: Apache-2.0
"""``gantt.wsgi.api:application``, for uWSGI, gunicorn and mod_wsgi.

The configuration is read from the usual files, or from those that
``OS_GANTT_CONFIG_FILE`` names, with ":" between them: a WSGI server's own arguments are
not ours.
"""

from gantt.cmd import wiring
from gantt.cmd.api import compose

application = compose(wiring.parse([], 'gantt-api'))
