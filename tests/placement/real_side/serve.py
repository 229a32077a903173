# SPDX-License-Identifier: Apache-2.0
"""Placement in a WSGI server; runs in the environment that has it, and imports nothing of ours.

``python serve.py FOLDER THREADS``, where the folder has a ``placement.conf``.  The port is chosen
here and written to the file ``port`` there, once the server listens.  It ends with its standard
input, so that none is left when the runner was killed.
"""

import json
import os
import pathlib
import signal
import sys
import threading

import waitress.server
from placement import policies

#: The name of a rule that others are made from; it belongs to no request.
BASE_RULES = {'admin_api'}


def open_policies() -> str:
    """A policy file that lets everybody do everything."""
    names = {rule.name for rule in policies.list_rules()} - BASE_RULES
    return json.dumps(dict.fromkeys(sorted(names), '@'))


def end_with_input() -> None:
    """Nothing is sent here: the end of it is the end of the runner."""
    sys.stdin.buffer.read()
    os._exit(0)


def main() -> None:
    threading.Thread(target=end_with_input, daemon=True).start()
    folder, threads = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    if (folder / 'open').exists():
        (folder / 'policy.yaml').write_text(open_policies())
    os.environ['OS_PLACEMENT_CONFIG_DIR'] = str(folder)
    # oslo.config reads the command line.
    sys.argv = sys.argv[:1]
    from placement.wsgi import api

    server = waitress.server.create_server(
        api.application, host='127.0.0.1', port=0, threads=threads, ident=''
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    new = folder / 'port.new'
    new.write_text(str(server.effective_port))
    new.rename(folder / 'port')
    server.run()


if __name__ == '__main__':
    main()
