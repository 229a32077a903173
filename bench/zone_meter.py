# SPDX-License-Identifier: Apache-2.0
"""Between two zones: passes each call on, and counts them and their bytes."""

import collections
import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

#: Heads that are of a connection, not of a message.
OF_A_HOP = ('connection', 'keep-alive', 'transfer-encoding')
#: Calls that come with or without requests.
BY_THE_CLOCK = {'GET changes'}


class CallCounts:
    """Calls and bytes by the name of the call, over any number of links.

    :ivar calls: ``POST evaluations`` -> how many
    :ivar bytes: of heads and bodies, both ways
    """

    def __init__(self) -> None:
        self.calls: collections.Counter[str] = collections.Counter()
        self.bytes: collections.Counter[str] = collections.Counter()
        self._lock = threading.Lock()

    def add(self, method: str, path: str, size: int) -> None:
        """Count one call, ``/zone/v1/allocations/4f…`` as ``allocations``."""
        name = f'{method} {urlsplit(path).path.removeprefix("/zone/v1/").split("/")[0]}'
        with self._lock:
            self.calls[name] += 1
            self.bytes[name] += size

    def clear(self) -> None:
        """Count from nothing."""
        with self._lock:
            self.calls.clear()
            self.bytes.clear()

    def of_requests(self) -> 'CallCounts':
        """Return the counts now, without the calls that come by the clock."""
        counts = CallCounts()
        with self._lock:
            for name in self.calls.keys() - BY_THE_CLOCK:
                counts.calls[name], counts.bytes[name] = self.calls[name], self.bytes[name]
        return counts


class CountedLink:
    """A port of this process that is one zone for those above it.

    :param url: of that zone
    """

    def __init__(self, url: str, counts: CallCounts) -> None:
        self._server = ThreadingHTTPServer(('127.0.0.1', 0), _handler(url, counts))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """URL of the proxy."""
        return f'http://127.0.0.1:{self._server.server_address[1]}'

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()


def _handler(url: str, counts: CallCounts) -> type[BaseHTTPRequestHandler]:
    address = urlsplit(url).netloc

    class Handler(BaseHTTPRequestHandler):
        """One connection from above, and one of its own to the zone."""

        protocol_version = 'HTTP/1.1'

        def setup(self) -> None:
            super().setup()
            self._zone = http.client.HTTPConnection(address, timeout=60)

        def finish(self) -> None:
            self._zone.close()
            super().finish()

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get('Content-Length', 0)))
            heads = {k: v for k, v in self.headers.items() if k.lower() not in OF_A_HOP}
            self._zone.request(self.command, self.path, body or None, heads)
            answer = self._zone.getresponse()
            data = answer.read()
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in (*OF_A_HOP, 'content-length'):
                    self.send_header(name, value)
            self.send_header('Content-Length', str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            size = len(self.requestline) + len(bytes(self.headers)) + len(body) + len(data)
            counts.add(self.command, self.path, size + len(str(answer.msg)))

        do_GET = do_PUT = do_POST = do_DELETE = _pass_on

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
