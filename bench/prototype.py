# SPDX-License-Identifier: Apache-2.0
"""A scheduler with nearly everything left out: what the road itself can carry.

It takes ``select_destinations`` off the stock listener, places on four columns
with three weighers scored once per request, commits up to 150 claims by one
statement, and writes the answers of a batch on a channel of its own without
waiting for a confirm.  What it answers is durable and never over capacity.
What it lacks: filters, checks of messages, decisions, groups, repeats, a lost
reply's second try, hosts that change.

Run as a process of its own, on a virtual host and a database of its own:
``python -m bench.prototype --config-file FILE --database URL --hosts N``.
"""

import argparse
import os
import queue
import signal
import struct
import sys
import threading
import time
import uuid
from typing import Any
from urllib.parse import urlsplit

import amqp
import msgspec
import numpy as np
import psycopg
import sqlalchemy as sa
from oslo_config import cfg

import gantt.cmd  # noqa: F401  (chooses native threads, before oslo.messaging comes)
from gantt.rpc import wire

import oslo_messaging as om  # isort: skip
from oslo_messaging.rpc.server import RPCServer  # isort: skip

CLASSES = ('VCPU', 'MEMORY_MB', 'DISK_GB')
CAPACITY = (100_000, 100_000_000, 1_000_000, 0)
CLAIMS_PER_COMMIT = 150
WAIT_SECONDS = 0.002
ALTERNATES = 2

TABLES = """
    CREATE TABLE asked (id varchar(36) PRIMARY KEY, outcome varchar(16) NOT NULL);
    CREATE TABLE hosts (
        id integer PRIMARY KEY, generation bigint NOT NULL DEFAULT 0,
        cap_v bigint NOT NULL, cap_m bigint NOT NULL, cap_g bigint NOT NULL, cap_c bigint NOT NULL,
        v bigint NOT NULL DEFAULT 0, m bigint NOT NULL DEFAULT 0, g bigint NOT NULL DEFAULT 0,
        c bigint NOT NULL DEFAULT 0
    ) WITH (fillfactor = 50);
    CREATE TABLE taken (
        id varchar(36) PRIMARY KEY, request_id varchar(36) NOT NULL, member integer NOT NULL,
        host_id integer NOT NULL, v bigint NOT NULL, m bigint NOT NULL, g bigint NOT NULL,
        c bigint NOT NULL, state varchar(10) NOT NULL, lease_until bigint NOT NULL
    );
    CREATE INDEX ON taken (host_id);
    CREATE INDEX ON taken (request_id);
"""
#: Per host the whole batch or none: a host without room for all that it claims is left out.
COMMIT = """
    WITH q AS (
        SELECT * FROM unnest(%s::text[], %s::int[], %s::int[], %s::int[], %s::int[])
            AS q (id, v, m, g, c)
    ), r AS (
        INSERT INTO asked SELECT id, 'placed' FROM q ORDER BY id ON CONFLICT DO NOTHING
        RETURNING id
    ), n AS (
        SELECT t.*, q.v, q.m, q.g, q.c
          FROM unnest(%s::text[], %s::text[], %s::int[], %s::int[])
            AS t (id, request_id, member, host_id)
          JOIN r ON r.id = t.request_id JOIN q ON q.id = t.request_id
    ), d AS (
        SELECT host_id, sum(v) AS v, sum(m) AS m, sum(g) AS g, sum(c) AS c FROM n GROUP BY host_id
    ), l AS MATERIALIZED (
        SELECT id FROM hosts WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE
    ), u AS (
        UPDATE hosts h
           SET v = h.v + d.v, m = h.m + d.m, g = h.g + d.g, c = h.c + d.c,
               generation = h.generation + 1
          FROM l JOIN d ON d.host_id = l.id
         WHERE h.id = l.id AND h.v + d.v <= h.cap_v AND h.m + d.m <= h.cap_m
           AND h.g + d.g <= h.cap_g AND h.c + d.c <= h.cap_c
        RETURNING h.id
    ), i AS (
        INSERT INTO taken
        SELECT n.id, n.request_id, n.member, n.host_id, n.v, n.m, n.g, n.c, 'reserved', 0
          FROM n JOIN u ON u.id = n.host_id
        RETURNING 1
    )
    SELECT (SELECT count(*) FROM u), (SELECT count(*) FROM i)
"""
#: Host of each consumer, in the names that callers receive; for ``callers.broken``.
WHO = "SELECT id, 'cmp-' || lpad((host_id - 1)::text, 5, '0') FROM taken"
#: Hosts with more on them than fits, or with another sum than their rows state.
OVER = """
    SELECT count(*) FROM hosts h
     WHERE h.v > h.cap_v OR h.m > h.cap_m OR h.g > h.cap_g
        OR h.v <> (SELECT coalesce(sum(t.v), 0) FROM taken t WHERE t.host_id = h.id)
"""


def dsn(url: str) -> str:
    """Return a database URL as psycopg takes it."""
    return sa.make_url(url).set(drivername='postgresql').render_as_string(hide_password=False)


def make_tables(url: str, hosts: int) -> None:
    """Empty tables, and hosts as those of the benches are."""
    with psycopg.connect(dsn(url), autocommit=True) as connection:
        connection.execute(TABLES)
        connection.execute(
            'INSERT INTO hosts (id, cap_v, cap_m, cap_g, cap_c)'
            ' SELECT n, %s, %s - 1024 * ((n - 1) %% 97), %s, %s FROM generate_series(1, %s) AS n',
            (*CAPACITY, hosts),
        )
        connection.execute('VACUUM ANALYZE hosts')


class Request:
    """State of one request until it is answered."""

    __slots__ = ('amounts', 'consumers', 'id', 'ranked', 'reply')

    def __init__(self, body: dict[str, Any], reply: tuple[str, str]) -> None:
        resources = body['spec']['resources']
        self.id: str = body['request_id']
        self.consumers: list[str] = body['consumers']
        self.amounts = (*(resources.get(name, 0) for name in CLASSES), 0)
        self.reply = reply
        #: Per consumer rows of the table: the chosen, then alternates.
        self.ranked: list[list[int]] = []


class Table:
    """Free room by column; a row for each host."""

    def __init__(self, connection: psycopg.Connection) -> None:
        host_rows = connection.execute(
            'SELECT cap_v - v, cap_m - m, cap_g - g, cap_c - c FROM hosts ORDER BY id'
        ).fetchall()
        self.free = np.array(host_rows, dtype=np.float64).T.copy()
        self.names = [f'cmp-{row:05}' for row in range(len(host_rows))]
        self.uuids = [str(uuid.UUID(int=row + 1)) for row in range(len(host_rows))]

    def place(self, request: Request) -> None:
        """Rank hosts for each consumer and take the room of the first.

        :raises RuntimeError: no host has room
        """
        free, demand = self.free, np.array(request.amounts, dtype=np.float64)
        fits = (free >= demand[:, None]).all(0)
        if not fits.any():
            raise RuntimeError('no room')
        raw = free[:3] if fits.all() else free[:3, fits]
        low, high = raw.min(1), raw.max(1)
        weights = 1.0 / np.maximum(high - low, 1e-9)
        score = weights @ free[:3]
        score[~fits] = -np.inf
        for _ in request.consumers:
            best = []
            for _ in range(1 + ALTERNATES):
                row = int(score.argmax())
                best.append((row, score[row]))
                score[row] = -np.inf
            for row, value in best:
                score[row] = value
            ranked = [row for row, value in best if value > -np.inf]
            if not ranked:
                raise RuntimeError('no room')
            chosen = ranked[0]
            free[:, chosen] -= demand
            still = (free[:, chosen] >= demand).all()
            score[chosen] = weights @ free[:3, chosen] if still else -np.inf
            request.ranked.append(ranked)

    def answer(self, request: Request) -> dict[str, Any]:
        """Return the answer in the form of our own topic, in which each host stands once."""
        amounts = dict(zip(CLASSES, request.amounts, strict=False))

        index: dict[int, int] = {}
        members = []
        for consumer, ranked in zip(request.consumers, request.ranked, strict=True):
            places = [index.setdefault(row, len(index)) for row in ranked]
            members.append([consumer, places, consumer, 7200.0])
        hosts = [
            {
                'host': self.names[row],
                'node': self.names[row],
                'uuid': self.uuids[row],
                'provider_id': row + 1,
                'cell': '00000000-0000-0000-0000-000000000007',
                'build_topic': f'gantt-compute.{self.names[row]}',
                'resources': amounts,
            }
            for row in index
        ]
        return {
            'request_id': request.id,
            'decision_id': request.id,
            'outcome': 'placed',
            'hosts': hosts,
            'members': members,
        }


class ReplyPublisher:
    """A publisher of answers: frames built here, a batch in one write."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._connection = amqp.Connection(
            host=f'{parts.hostname}:{parts.port or 5672}',
            userid=parts.username,
            password=parts.password,
            virtual_host=parts.path[1:] or '/',
            heartbeat=0,
        )
        self._connection.connect()
        self._channel = self._connection.channel().channel_id
        self._most = (self._connection.frame_max or 131_072) - 8
        self._encode = msgspec.json.Encoder().encode

    def write(self, batch: list[tuple[tuple[str, str], Any]]) -> None:
        """Write ((reply queue, message id), result) of each call."""
        frames: list[bytes] = []
        for (reply_queue, message_id), result in batch:
            inner = self._encode(
                {
                    'result': result,
                    'failure': None,
                    'ending': True,
                    '_msg_id': message_id,
                    '_unique_id': uuid.uuid4().hex,
                }
            )
            body = self._encode({'oslo.version': '2.0', 'oslo.message': inner.decode()})
            key = reply_queue.encode()
            # basic.publish to the default exchange, neither mandatory nor immediate
            self._frame(frames, 1, struct.pack('>HHHBB', 60, 40, 0, 0, len(key)) + key + b'\x00')
            # content type, encoding, delivery mode, priority
            properties = b'\x10application/json\x05utf-8\x02\x00'
            self._frame(frames, 2, struct.pack('>HHQH', 60, 0, len(body), 0xD800) + properties)
            for start in range(0, len(body), self._most):
                self._frame(frames, 3, body[start : start + self._most])
        self._connection.transport.write(b''.join(frames))

    def _frame(self, frames: list[bytes], kind: int, payload: bytes) -> None:
        frames += (struct.pack('>BHI', kind, self._channel, len(payload)), payload, b'\xce')


class Prototype:
    """The one thread that places, commits and answers."""

    def __init__(self, url: str, outlet: ReplyPublisher) -> None:
        self.waiting: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._connection = psycopg.connect(dsn(url), autocommit=True)
        self._cursor = self._connection.cursor()
        self._table = Table(self._connection)
        self._outlet = outlet
        self._last = 1

    def run(self) -> None:
        """Commit batch after batch; any failure ends the process, and so the bench."""
        try:
            while True:
                batch = self._drain()
                for request in batch:
                    self._table.place(request)
                self._commit(batch)
                self._outlet.write([(r.reply, self._table.answer(r)) for r in batch])
        except BaseException as e:
            print(f'the prototype failed: {e!r}', flush=True)
            os._exit(1)

    def _drain(self) -> list[Request]:
        """Return the queued requests of one commit; wait a little where the last had several."""
        batch = [self.waiting.get()]
        claims = len(batch[0].consumers)
        end = time.monotonic() + (WAIT_SECONDS if self._last > 1 else 0.0)
        while claims < CLAIMS_PER_COMMIT:
            rest = end - time.monotonic() if len(batch) < self._last else 0.0
            try:
                batch.append(
                    self.waiting.get(timeout=rest) if rest > 0 else self.waiting.get_nowait()
                )
            except queue.Empty:
                break
            claims += len(batch[-1].consumers)
        self._last = len(batch)
        return batch

    def _commit(self, batch: list[Request]) -> None:
        """Commit the claims of a batch: one statement, one round trip.

        :raises RuntimeError: a host refused; with ample room and one writer none does
        """
        batch = sorted(batch, key=lambda request: request.id)
        rows = [
            (consumer, request.id, member, ranked[0] + 1)
            for request in batch
            for member, (consumer, ranked) in enumerate(
                zip(request.consumers, request.ranked, strict=True)
            )
        ]
        hosts = sorted({row[3] for row in rows})
        amounts = [list(column) for column in zip(*(r.amounts for r in batch), strict=True)]
        columns = [list(column) for column in zip(*rows, strict=True)]
        done = self._cursor.execute(
            COMMIT, ([r.id for r in batch], *amounts, *columns, hosts), prepare=True
        ).fetchone()
        if done != (len(hosts), len(rows)):
            raise RuntimeError(f'{done} of {len(hosts)} hosts and {len(rows)} claims')


def main() -> int:
    """Serve until a signal ends the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--config-file', required=True)
    parser.add_argument('--broker', required=True)
    parser.add_argument('--database', required=True)
    parser.add_argument('--hosts', type=int, required=True)
    given = parser.parse_args()
    cfg.CONF(['--config-file', given.config_file], project='gantt')
    make_tables(given.database, given.hosts)
    prototype = Prototype(given.database, ReplyPublisher(given.broker))

    class Deferred(RPCServer):
        """A server that hands over calls in the receiving thread; no thread waits for an answer."""

        def _on_incoming(self, incoming: Any) -> None:
            for message in incoming:
                body = message.message['args']['request']
                prototype.waiting.put(Request(body, (message.reply_q, message.msg_id)))

    server = om.get_rpc_server(
        om.get_rpc_transport(cfg.CONF, url=given.broker),
        om.Target(exchange=wire.EXCHANGE, topic=wire.SCHEDULER_TOPIC, server='prototype'),
        [],
        server_cls=Deferred,
    )
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    threading.Thread(target=prototype.run, daemon=True).start()
    server.start(override_pool_size=1)
    print('the prototype is ready', flush=True)
    stopping.wait()
    server.stop()
    server.wait()
    return 0


if __name__ == '__main__':
    sys.exit(main())
