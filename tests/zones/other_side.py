# SPDX-License-Identifier: Apache-2.0
"""What may stand at the address of a zone instead of it: one that lies, or something broken."""

import contextlib
import http.server
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

#: (method, path, body) -> status and body.
Answer = Callable[[str, str, Any], tuple[int, Any]]


class Liar:
    """Speaks as a zone does, and says what it likes.

    :param uuid: whom it takes itself for
    :ivar heard: method and path of each call, in their order
    """

    def __init__(self, uuid: str, answer: Answer) -> None:
        self.uuid, self.answer = uuid, answer
        self.heard: list[tuple[str, str]] = []
        liar = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = 'HTTP/1.1'

            def handle_one_request(self) -> None:
                with contextlib.suppress(OSError):
                    super().handle_one_request()

            def _answer(self) -> None:
                size = int(self.headers.get('Content-Length', 0))
                body = json.loads(self.rfile.read(size)) if size else None
                path = self.path.removeprefix('/zone/v1')
                liar.heard.append((self.command, path))
                status, answer = liar.answer(self.command, path, body)
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header('Gantt-Zone', liar.uuid)
                self.send_header('Content-Length', str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_DELETE = _answer

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
        self._server.daemon_threads = True
        self.url = f'http://127.0.0.1:{self._server.server_port}'
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> 'Liar':
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextlib.contextmanager
def broken(say: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of a server that says something on each connection, then ends it."""
    listener = socket.create_server(('127.0.0.1', 0))
    listener.settimeout(0.05)
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    connection.settimeout(5.0)
                    connection.recv(65_536)
                    say(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f'http://127.0.0.1:{listener.getsockname()[1]}'
    finally:
        ended.set()
        thread.join()
        listener.close()
