# SPDX-License-Identifier: Apache-2.0
"""A tree of zones as operators run them: processes, a broker and a database each."""

import collections
import contextlib
import re
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2 as httpx
import sqlalchemy as sa

from bench import callers
from bench.rig import Rig, rig
from gantt import client
from gantt.core.messages.request import RequestSpec, SelectDestinations

VERSION = {'OpenStack-API-Version': 'scheduler 1.0'}
#: Zones directly below the top one, and below each of these where there are three levels.
BELOW_TOP, BELOW_EACH = 3, 2
#: MiB that hosts have less for each level that lies below theirs: the best place is at the bottom.
LESS_MB = 200_000
BUDGET_MS = 60_000
#: For two dozen processes that start at the same time.
START_SECONDS = 300.0
CONNECT_SECONDS, END_SECONDS = 60.0, 60.0
#: Strategies of the top zone: the usual ones except that which queries all zones if few.
TWO_FIRST = 'StaticRuleOut, WeightedRandom, Threshold'
#: Connections that a process may have where two dozen share a server that has a hundred, and where
#: one dozen do: with the fewer ones some are closed and opened again while requests are placed.
FEW, ENOUGH = 3, 8
#: Counts of live rows, in any table.
LIVE = {
    'claims': 'SELECT count(*) FROM claims WHERE live = 1',
    'claims below': "SELECT count(*) FROM child_claims WHERE state IN ('reserved', 'confirmed')",
}
CLAIMS_OF = 'SELECT id, consumer FROM claims WHERE live = 1'


#: Makes a synced database.
MakeDatabase = Callable[[], contextlib.AbstractContextManager[str]]


class ZoneProcesses:
    """A zone: a scheduler, and an API where others query it.

    :ivar below: the zones directly below
    :ivar level: 1 of the top zone
    """

    def __init__(self, name: str, made: Rig, transport: Any, level: int) -> None:
        self.name, self.rig, self.transport, self.level = name, made, transport, level
        self.below: list[ZoneProcesses] = []
        self.url = ''
        self.client = client.SchedulerClient(transport, attempt_seconds=30.0)
        # A server has not many connections for so many processes.
        self._engine = sa.create_engine(made.database, poolclass=sa.NullPool)

    def start(self, api: bool = True) -> None:
        """Start the processes; ``wait`` until they are ready."""
        self.rig.start('scheduler', 'gantt-scheduler')
        if api:
            self.rig.start('api', 'gantt-api')

    def wait(self) -> None:
        """Wait until the processes are ready."""
        self.rig.wait_for('scheduler', 'is ready', START_SECONDS)
        if 'api' in self.rig.processes:
            self.rig.wait_for('api', 'is ready', START_SECONDS)
            match = re.search(r'address=(http://[\d.:]+)', self.rig.log('api'))
            assert match is not None
            self.url = match[1]

    def close(self) -> None:
        """End the processes."""
        callers.end(self.rig)

    def put(self, path: str, body: dict[str, object]) -> None:
        """:raises HTTPStatusError:"""
        httpx.put(self.url + path, json=body, headers=VERSION, timeout=60.0).raise_for_status()

    def add_below(self, zone: 'ZoneProcesses', url: str = '') -> None:
        """Register a zone directly below; again, with another address.

        :param url: by which it is called; '': its own
        """
        zone_uuid = httpx.get(f'{self.url}/v1/zones', headers=VERSION, timeout=60.0).json()['uuid']
        given = {'identity': zone_uuid, 'project_id': self.name, 'trusted': True}
        zone.put(f'/v1/parents/{self.name}', given | {'lease_seconds_max': callers.LEASE_SECONDS})
        self.put(f'/v1/zones/{zone.name}', {'url': url or zone.url, 'trusted': True})
        if zone not in self.below:
            self.below.append(zone)

    def live(self) -> list[str]:
        """Return counts of live rows here, and of those recorded of zones below."""
        counts = [(what, self._rows(query)[0][0]) for what, query in LIVE.items()]
        return [f'{self.name}: {many} {what}' for what, many in counts if many]

    def claims(self) -> list[tuple[str, str]]:
        """Return id and consumer of the live claims on its hosts."""
        return [(row.id, row.consumer) for row in self._rows(CLAIMS_OF)]

    def _rows(self, query: str) -> list[Any]:
        """Return the rows of a query; where the server has no connection left, after a while."""
        end = time.monotonic() + CONNECT_SECONDS
        while True:
            try:
                with self._engine.connect() as connection:
                    return list(connection.execute(sa.text(query)))
            except sa.exc.OperationalError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of its processes so far."""
        return sum(self.rig.cpu_seconds(name) for name in self.rig.processes)


class Tree:
    """The zones of a bench.

    :ivar top: queries two of the zones below it first; ``thorough``: another top zone over the
        same ones, which queries them all
    :ivar below: all others
    """

    def __init__(
        self, top: ZoneProcesses, thorough: ZoneProcesses, below: Sequence[ZoneProcesses]
    ) -> None:
        self.top, self.thorough, self.below = top, thorough, list(below)

    @property
    def zones(self) -> list[ZoneProcesses]:
        """All zones of the tree."""
        return [self.top, self.thorough, *self.below]

    @property
    def under_top(self) -> list[ZoneProcesses]:
        """The top zone and those below it."""
        return [self.top, *self.below]

    @property
    def bottom(self) -> list[ZoneProcesses]:
        """Zones with no zone below."""
        return [zone for zone in self.below if not zone.below]

    def links(self) -> list[tuple[ZoneProcesses, ZoneProcesses]]:
        """Return each zone under the top one with each directly below it."""
        return [(zone, child) for zone in self.under_top for child in zone.below]


@contextlib.contextmanager
def zone(
    name: str,
    level: int,
    database: MakeDatabase,
    options: dict[str, dict[str, object]] | None = None,
    connections: int = FEW,
) -> Iterator[ZoneProcesses]:
    """Yield a zone that is not started.

    :param database: makes one that is synced
    :param connections: to it, of each process
    """
    pool = {'max_pool_size': 1, 'max_overflow': connections - 1}
    given = callers.options(api={'port': 0}, database=pool, **(options or {}))
    with rig(given, database, is_synced=True) as testbed, callers.connected(testbed) as transport:
        processes = ZoneProcesses(name, testbed, transport, level)
        try:
            yield processes
        finally:
            processes.close()


@contextlib.contextmanager
def tree(levels: int, hosts: int, database: MakeDatabase) -> Iterator[Tree]:
    """Yield two top zones without hosts over the same zones, and ``hosts`` in each of these.

    :param levels: 2, or 3
    """
    connections = ENOUGH if levels == 2 else FEW
    with contextlib.ExitStack() as stack:

        def begin(name: str, level: int, **options: dict[str, object]) -> ZoneProcesses:
            return stack.enter_context(zone(name, level, database, options, connections))

        top = begin('top', 1, zones={'strategies': TWO_FIRST})
        thorough = begin('thorough', 1)
        halls = [begin(f'hall-{n}', 2) for n in range(1, BELOW_TOP + 1)]
        rooms = {
            hall: [begin(f'{hall.name}-{n}', 3) for n in range(1, BELOW_EACH + 1)]
            for hall in (halls if levels == 3 else ())
        }
        below = [*halls, *(room for rooms_below in rooms.values() for room in rooms_below)]
        for zone_ in (top, thorough, *below):
            zone_.start()
        for zone_ in (top, thorough, *below):
            zone_.wait()
        for zone_ in below:
            used = LESS_MB * (levels - zone_.level)
            callers.report_hosts(zone_.rig, zone_.transport, hosts, used_mb=used)
        for above, children in [*rooms.items(), (top, halls), (thorough, halls)]:
            for child in children:
                above.add_below(child)
        yield Tree(top, thorough, below)


@contextlib.contextmanager
def flat(hosts: int, database: MakeDatabase) -> Iterator[ZoneProcesses]:
    """Yield a zone that has as many hosts as all others together."""
    with zone('flat', 1, database, connections=ENOUGH) as single:
        single.start(api=False)
        single.wait()
        callers.report_hosts(single.rig, single.transport, hosts)
        yield single


class ZoneCaller:
    """A caller of one zone, with its promises.

    :ivar promised: consumer -> claim, of all that were not cancelled
    """

    def __init__(self, at: ZoneProcesses, budget_ms: int = BUDGET_MS) -> None:
        self._at, self._budget_ms = at, budget_ms
        self.promised: dict[str, str] = {}
        self._requests: list[str] = []

    def place(self) -> None:
        """Place one instance; each request is the same, but for its id.  Any thread."""
        request = SelectDestinations(
            request_id=str(uuid.uuid4()),
            spec=RequestSpec(resources=callers.TAKES),
            consumers=[str(uuid.uuid4())],
            budget_ms=self._budget_ms,
            lease_seconds=callers.LEASE_SECONDS,
        )
        self._requests.append(request.request_id)
        answer = self._at.client.select_destinations(request)
        self.promised.update((s[0].consumer, s[0].claim_id or '') for s in answer.selections)

    def cancel(self) -> None:
        """Take it all back."""
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(self._at.client.cancel_claims, self._requests))
        self._requests.clear()
        self.promised.clear()

    def broken(self, zones: Sequence[ZoneProcesses]) -> list[str]:
        """Return promises that are not kept, and places that were promised to no caller."""
        claims = collections.defaultdict(list)
        for zone_ in zones:
            for claim_id, consumer in zone_.claims():
                claims[consumer].append(claim_id)
        return [
            f'{consumer} was promised {self.promised.get(consumer)} and has {claims[consumer]}'
            for consumer in sorted(self.promised.keys() | claims.keys())
            if claims[consumer] != [self.promised.get(consumer)]
        ]


def wait_until_empty(zones: Sequence[ZoneProcesses]) -> None:
    """Wait until no claim or reservation lives in any of these zones.

    :raises RuntimeError: something does
    """
    end = time.monotonic() + END_SECONDS
    while live := [line for zone in zones for line in zone.live()]:
        if time.monotonic() > end:
            raise RuntimeError(f'not ended within {END_SECONDS:.0f} s: {", ".join(live)}')
        time.sleep(0.1)
