# SPDX-License-Identifier: Apache-2.0
"""A way to a server that a test can slow down, cut, close and hold.

    proxy = Proxy('127.0.0.1', 5672)
    proxy.port                # connect here instead
    proxy.cut()               # open connections break, new ones are taken
    proxy.refuse()            # open connections break, new ones are closed at once
    proxy.hold()              # nothing passes, nothing breaks: a partition
    proxy.mend()              # back to normal

What knows a protocol is a ``Passage``, one for each connection: it sees what
comes from both ends and says what goes on.  Two threads for each connection.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

CHUNK = 1 << 16
#: The longest that ``hold`` keeps bytes, seconds; a test that forgets ``mend`` still ends.
HELD_MAX = 600.0


class Link:
    """One connection, both halves of it."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self._near, self._far = near, far
        self._locks = {near: threading.Lock(), far: threading.Lock()}

    def to_client(self, data: bytes) -> None:
        """Whole messages, so that another thread may say something in between."""
        self._send(self._near, data)

    def to_server(self, data: bytes) -> None:
        """Likewise, to the other end."""
        self._send(self._far, data)

    def _send(self, end: socket.socket, data: bytes) -> None:
        if data:
            with self._locks[end]:
                end.sendall(data)

    def cut(self) -> None:
        """Break both halves."""
        for end in (self._near, self._far):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the sockets, once nobody reads them."""
        self.cut()
        self._near.close()
        self._far.close()


class Passage:
    """Lets everything through."""

    def from_client(self, link: Link, data: bytes) -> None:
        """Called in the thread that reads the client."""
        link.to_server(data)

    def from_server(self, link: Link, data: bytes) -> None:
        """Called in the thread that reads the server."""
        link.to_client(data)


class Proxy:
    """Listens on a port of its own and connects through to a server.

    :param passage: makes what handles one connection
    """

    def __init__(self, host: str, port: int, passage: Callable[[], Passage] = Passage) -> None:
        self._to = (host, port)
        self._passage = passage
        self._listener = socket.create_server(('127.0.0.1', 0), backlog=256)
        self.port = self._listener.getsockname()[1]
        self.links: list[Link] = []
        self.delay = 0.0
        #: Bytes that came while it held, and that pass or break with their connection.
        self.held_bytes = 0
        self._takes = True
        self._passes = threading.Event()
        self._passes.set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, name='proxy', daemon=True).start()

    @classmethod
    def of(cls, url: str, passage: Callable[[], Passage] = Passage) -> 'Proxy':
        """To the server that a URL names."""
        parts = urlsplit(url)
        defaults = {'rabbit': 5672, 'postgresql': 5432, 'mysql': 3306}
        port = parts.port or defaults[parts.scheme.partition('+')[0]]
        return cls(parts.hostname or '127.0.0.1', port, passage)

    def url(self, url: str) -> str:
        """The same URL by way of here."""
        parts = urlsplit(url)
        login = parts.netloc.rpartition('@')[0]
        return parts._replace(netloc=f'{login}@127.0.0.1:{self.port}').geturl()

    # -- what a test does to it ---------------------------------------------------------
    def cut(self) -> None:
        """Break what is open; what comes anew is taken."""
        with self._lock:
            links, self.links = self.links, []
        for link in links:
            link.cut()

    def refuse(self) -> None:
        """The server is away."""
        self._takes = False
        self.cut()

    def hold(self) -> None:
        """Keep bytes back, both ways."""
        self._passes.clear()

    def mend(self) -> None:
        """Everything passes."""
        self._takes = True
        self._passes.set()

    def close(self) -> None:
        """Break everything and listen no more."""
        self._takes = False
        self._passes.set()
        with contextlib.suppress(OSError):
            # Closing alone would leave the thread in accept().
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    # -- threads ------------------------------------------------------------------------
    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                if not self._takes:
                    raise ConnectionRefusedError
                far = socket.create_connection(self._to, 10)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link, passage = Link(near, far), self._passage()
            with self._lock:
                self.links.append(link)
            ended = threading.Barrier(2)
            for source, handle in ((near, passage.from_client), (far, passage.from_server)):
                threading.Thread(
                    target=self._copy, args=(link, source, handle, ended), daemon=True
                ).start()

    def _copy(
        self,
        link: Link,
        source: socket.socket,
        handle: Callable[[Link, bytes], None],
        ended: threading.Barrier,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                if not self._passes.is_set():
                    self.held_bytes += len(data)
                self._passes.wait(HELD_MAX)
                if self.delay:
                    time.sleep(self.delay)
                handle(link, data)
        link.cut()
        with contextlib.suppress(threading.BrokenBarrierError):
            ended.wait(HELD_MAX)
        with self._lock:
            if link in self.links:
                self.links.remove(link)
        link.close()
