# SPDX-License-Identifier: Apache-2.0
"""What happens to COMMITs on their way: answers lost or late, for PostgreSQL and MariaDB.

The server has committed when its answer comes by here, so a lost answer is the
case that kill -9 hardly ever hits: it is done and nobody knows.
"""

import random
import struct
import threading
import time
from collections.abc import Callable

from tests.nemesis.proxy import Link, Passage, Proxy

SSL_REQUEST, GSS_REQUEST = 80877103, 80877104
WRITES = (b'INSERT', b'UPDATE', b'DELETE')
QUERY = b'\x03'
#: Seconds in which a server has carried out what it was sent, and waits for more.
CARRIED_OUT = 0.5
#: A packet of seven bytes, the first of its exchange: COM_QUERY and its text.
COMMIT = b'\x07\0\0\0\x03COMMIT'


class Commits:
    """What is to happen, and what did; shared by all connections of a proxy.

    :ivar rate: share of answers to COMMIT that are lost
    :ivar seconds: how long each answer is kept back
    :ivar seen: COMMITs that the server has carried out
    :ivar lost: how many of these the client was not told of
    :ivar on_answer: called with the number of each COMMIT that was carried out, before its
        answer goes on
    :ivar between: called once, with nothing, while a transaction that has written is open
        and the server waits for its next word, for COMMIT itself where that was sent with
        what was written; the client goes on when it returns
    """

    def __init__(self, seed: int = 1) -> None:
        self.rate = 0.0
        self.seconds = 0.0
        self.seen = 0
        self.lost = 0
        self.on_answer: Callable[[int], object] | None = None
        self.between: Callable[[], None] | None = None
        self._rng = random.Random(seed)
        self._lock = threading.Lock()

    def answer_is_lost(self) -> bool:
        """Called for each; after the wait that is asked for."""
        with self._lock:
            self.seen += 1
            number = self.seen
            lost = self._rng.random() < self.rate
            self.lost += lost
        if self.on_answer is not None:
            self.on_answer(number)
        if self.seconds:
            time.sleep(self.seconds)
        return lost

    def in_transaction(self) -> None:
        """The client speaks next, inside a transaction that has written."""
        with self._lock:
            between, self.between = self.between, None
        if between is not None:
            between()


class PostgreSQL(Passage):
    """The frontend/backend protocol, version 3, without TLS."""

    def __init__(self, commits: Commits) -> None:
        self._commits = commits
        self._opening = b''
        self._opened = False
        self._asked = b''
        self._writers: set[bytes] = set()  # names of prepared statements that write
        self._writing = False
        self._rest = b''
        self._wrote = False

    def from_client(self, link: Link, data: bytes) -> None:
        """Whole start-up packets until one really starts; then as it comes."""
        if self._opened:
            self._asked += data
            self._whole_messages(link)
            return
        self._opening += data
        while not self._opened and len(self._opening) >= 8:
            size, code = struct.unpack_from('!ii', self._opening)
            if code in (SSL_REQUEST, GSS_REQUEST):
                self._opening = self._opening[size:]
                link.to_client(b'N')
                continue
            self._opened = True
            link.to_server(self._opening)

    def _whole_messages(self, link: Link) -> None:
        """Message by message; what comes before a COMMIT in one pipeline may go on alone."""
        at = passed = 0
        while len(self._asked) - at >= 5:
            kind, size = struct.unpack_from('!ci', self._asked, at)
            end = at + 1 + size
            if len(self._asked) < end:
                break
            body = self._asked[at + 5 : end]
            if kind == b'P':
                name, text = body.split(b'\0', 2)[:2]
                if text == b'COMMIT' and self._writing and self._commits.between is not None:
                    link.to_server(self._asked[passed:at])
                    passed = at
                    time.sleep(CARRIED_OUT)
                    self._commits.in_transaction()
                words = text.split()
                if any(word in words for word in WRITES):
                    self._writers.add(name)
            elif kind == b'B':
                self._writing = self._writing or body.split(b'\0', 2)[1] in self._writers
            elif kind == b'S':
                self._writing = False
            at = end
        link.to_server(self._asked[passed:at])
        self._asked = self._asked[at:]

    def from_server(self, link: Link, data: bytes) -> None:
        """Message by message: a type, a length that counts itself, a body."""
        self._rest += data
        at = passed = 0
        while len(self._rest) - at >= 5:
            kind, size = struct.unpack_from('!ci', self._rest, at)
            end = at + 1 + size
            if len(self._rest) < end:
                break
            body = self._rest[at + 5 : end]
            if kind == b'C' and body == b'COMMIT\0' and self._commits.answer_is_lost():
                link.to_client(self._rest[passed:at])
                raise ConnectionResetError
            if kind == b'C' and body.split(b' ')[0] in WRITES:
                self._wrote = True
            elif kind == b'Z':
                if body == b'T' and self._wrote:
                    self._commits.in_transaction()
                self._wrote = self._wrote and body == b'T'
            at = end
        link.to_client(self._rest[passed:at])
        self._rest = self._rest[at:]


class MySQL(Passage):
    """The client/server protocol of MySQL and MariaDB, without TLS."""

    def __init__(self, commits: Commits) -> None:
        self._commits = commits
        self._asked = b''
        self._rest = b''
        self._committing = False
        self._wrote = False

    def from_client(self, link: Link, data: bytes) -> None:
        """Look for a COMMIT; the client waits for its answer, so it is the last packet."""
        self._asked = (self._asked + data)[-32:]
        if data[4:5] == QUERY and data[5:11].upper() in WRITES:
            self._wrote = True
        if self._asked.endswith(COMMIT):
            self._committing = True
            if self._wrote:
                self._commits.in_transaction()
            self._wrote = False
        link.to_server(data)

    def from_server(self, link: Link, data: bytes) -> None:
        """The first packet after a COMMIT is the answer to it; one that is no error counts."""
        if self._committing:
            self._rest += data
            if len(self._rest) < 5:
                return
            data, self._rest, self._committing = self._rest, b'', False
            if data[4] != 0xFF and self._commits.answer_is_lost():
                raise ConnectionResetError
        link.to_client(data)


def proxy(url: str, seed: int = 1) -> tuple[Proxy, Commits]:
    """A way to the database of a URL, and what happens on it."""
    commits = Commits(seed)
    protocol = PostgreSQL if url.startswith('postgresql') else MySQL
    return Proxy.of(url, lambda: protocol(commits)), commits
