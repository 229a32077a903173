# SPDX-License-Identifier: Apache-2.0
"""Nova's own client of its scheduler: one JSON order per line in, one answer out.

Started as a directory with the Python of the environment that has Nova, and
with the URL of a broker.  What is sent and heard passes ``nova.scheduler.rpcapi``
and Nova's own classes; see ``orders.py`` for what can be asked.
"""

import json
import logging
import sys
import tempfile
import traceback
import warnings

warnings.simplefilter('ignore')

import nova.conf
from nova import config, objects, rpc, version

objects.register_all()

import orders

OPTIONS = """
[DEFAULT]
transport_url = {url}
host = scheduler-1
[oslo_messaging_notifications]
driver = test
[notifications]
notification_format = both
"""


def main(url: str) -> None:
    """Answer until there are no more orders."""
    logging.disable(logging.CRITICAL)
    config.set_lib_defaults()
    rpc.set_defaults(control_exchange='nova')
    with tempfile.NamedTemporaryFile('w', suffix='.conf') as options:
        options.write(OPTIONS.format(url=url))
        options.flush()
        nova.conf.CONF([], project='nova', default_config_files=[options.name])
    rpc.init(nova.conf.CONF)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = orders.run(asked) if asked else {'version': version.version_string()}
        except Exception:
            answer = {'failed': traceback.format_exc()}
        sys.stdout.write(json.dumps(answer, default=str) + '\n')
        sys.stdout.flush()


main(sys.argv[1])
