# SPDX-License-Identifier: Apache-2.0
"""Stands before Placement, passes every GET on, and keeps the reader of a list waiting if asked.

While the file FLAG exists, who asks for the list of providers waits; FLAG with ``.waits`` behind
its name is there from the first such request on.  Each list that was passed on adds a byte to FLAG
with ``.passed`` behind its name.

``python held.py PORT URL FLAG``
"""

import http.client
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

#: Nobody waits for longer, whatever becomes of the file.
WAIT_SECONDS = 600.0
FLAG = Path(sys.argv[3]) if len(sys.argv) > 3 else Path()


class Handler(BaseHTTPRequestHandler):
    """One connection of the reader."""

    protocol_version = 'HTTP/1.1'

    def do_GET(self):
        is_list = urlsplit(self.path).path.rstrip('/') == '/resource_providers'
        if is_list and FLAG.exists():
            FLAG.with_suffix('.waits').touch()
            end = time.monotonic() + WAIT_SECONDS
            while FLAG.exists() and time.monotonic() < end:
                time.sleep(0.2)
        behind = urlsplit(sys.argv[2])
        connection = http.client.HTTPConnection(behind.hostname, behind.port, timeout=60)
        named = {k: v for k, v in self.headers.items() if k.lower() not in ('host', 'connection')}
        connection.request('GET', self.path, headers=named)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ('content-length', 'transfer-encoding', 'connection'):
                self.send_header(name, value)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        if is_list:
            with open(FLAG.with_suffix('.passed'), 'ab') as passed:
                passed.write(b'.')

    def log_message(self, *_):
        """Nothing."""


if __name__ == '__main__':
    with ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), Handler) as server:
        server.daemon_threads = True
        server.serve_forever()
