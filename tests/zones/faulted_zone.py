# SPDX-License-Identifier: Apache-2.0
"""A tree of zones as processes of their own, where each thing between and below them can fail.

    top (PostgreSQL) ─┬─ a (MariaDB) ── a1 (SQLite)
                      ├─ b (PostgreSQL)
                      └─ c (SQLite)

Each zone is a ``gantt-standalone`` that reaches its database, and that the zone above reaches,
over a way that can be cut or frozen.  The two PostgreSQL servers are of the test's own and can be
killed.
"""

import contextlib
import pathlib
import signal
import socket
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import httpx2 as httpx
import sqlalchemy as sa

from gantt.db.engine import session
from gantt.db.schema import migration, models
from gantt.stores import stores_for_url
from gantt.zones.service.offers.local_hosts import TABLE_AGE_MAX_SECONDS
from tests import warm
from tests.nemesis import hosts, postgres
from tests.nemesis.proxy import Proxy
from tests.nemesis.site import until
from tests.services import UNHURRIED
from tests.zones.tree import VERSION

#: Zone -> the zone above it, in the order in which they are made; the top one has no hosts.
ABOVE = {'top': '', 'a': 'top', 'b': 'top', 'c': 'top', 'a1': 'a'}
#: Hosts of each zone with room for all, and what the one has that is soon full.
HOSTS, ROOM, TIGHT_ROOM = 2, 10_000, 4
#: A trait of that one in every zone; each zone has another one of its own.
TIGHT = 'CUSTOM_TIGHT'
#: A zone above may lengthen leases to this, in seconds.
LEASE_SECONDS_MAX = 900

OPTIONS: dict[str, dict[str, object]] = {
    **hosts.SILENT,
    'claims': {'sweep_seconds': 1, 'lease_seconds_max': LEASE_SECONDS_MAX},
    'rpc': {'drain_seconds': 2},
    'planner': {'solver': False},  # a process for each zone, which nobody asks here
}


def own_trait(zone: str) -> str:
    """A trait that only hosts of one zone have."""
    return f'CUSTOM_ONLY_{zone.upper()}'


class FaultedZone:
    """One zone.

    :param database: its url, without the way that the process takes
    :param server: of its own, where that can be killed
    :ivar to_database: the way of the process; None: its database is a file
    :ivar from_above: the way of the zone above to it
    """

    def __init__(
        self,
        name: str,
        folder: pathlib.Path,
        database: str,
        server: postgres.Single | None = None,
    ) -> None:
        self.name, self.database, self.server = name, database, server
        with socket.create_server(('127.0.0.1', 0)) as listener:
            self._port: int = listener.getsockname()[1]
        self.from_above = Proxy('127.0.0.1', self._port)
        is_file = database.startswith('sqlite')
        self.to_database = None if is_file else Proxy.of(database)
        self._lock: sqlite3.Connection | None = None
        self._engine = sa.create_engine(database, poolclass=sa.NullPool)
        self._prepare()
        reached = database if self.to_database is None else self.to_database.url(database)
        own = {'DEFAULT': {'host': name}, 'api': {'port': self._port}}
        self._rig = warm.Rig(reached, 'kombu+memory:///', folder, OPTIONS | own)

    def _prepare(self) -> None:
        engine = session.build_engine(self.database, timeouts=UNHURRIED)
        migration.sync(engine)
        migration.empty(engine)
        engine.dispose()
        if self.name == 'top':
            return
        store = stores_for_url(self.database, timeouts=UNHURRIED)
        with contextlib.closing(store.database):
            ample = [f'{self.name}-{n}' for n in range(HOSTS)]
            hosts.add(store, ample, traits=[own_trait(self.name)], VCPU=ROOM)
            hosts.add(store, [f'{self.name}-tight'], traits=[TIGHT], VCPU=TIGHT_ROOM)

    # -- its process -------------------------------------------------------------------
    def start(self) -> None:
        """Start it; ``wait`` until it serves."""
        (self._rig.folder / 'zone.log').unlink(missing_ok=True)
        self._rig.start('zone', 'gantt-standalone')

    def wait(self) -> None:
        """Until it serves."""
        self._rig.wait_for('zone', 'is ready', 120)
        self._rig.wait_for('zone', 'is ready', 120)

    def kill(self) -> None:
        """kill -9."""
        self._rig.kill('zone')

    def freeze(self) -> None:
        """SIGSTOP."""
        self._rig.processes['zone'].send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self._rig.processes['zone'].send_signal(signal.SIGCONT)

    def rss_mb(self) -> float:
        """Resident memory, MiB."""
        return self._rig.rss_mb('zone')

    def log(self) -> str:
        """What it has written since it was started last."""
        return self._rig.log('zone')

    def audit(self) -> None:
        """``gantt-manage audit``.  :raises RuntimeError: it found something"""
        self._rig.run('gantt-manage', 'audit')

    def close(self) -> None:
        """End all."""
        self.unlock()
        for name in list(self._rig.processes):
            self._rig.kill(name)
        self.from_above.close()
        if self.to_database is not None:
            self.to_database.close()

    # -- its database ------------------------------------------------------------------
    def lock(self) -> None:
        """Nobody writes to the file any more."""
        path = sa.make_url(self.database).database
        assert path is not None
        self._lock = sqlite3.connect(path, isolation_level=None, timeout=30)
        self._lock.execute('BEGIN EXCLUSIVE')

    def unlock(self) -> None:
        """They do again."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def rows(self, table: sa.Table, *where: Any) -> Sequence[Any]:
        """Read there directly."""
        with self._engine.connect() as connection:
            return list(connection.execute(sa.select(table).where(*where)))

    def live_claims(self) -> Sequence[Any]:
        """Claims on its hosts that have not ended."""
        return self.rows(models.claims, models.claims.c.live == 1)

    def findings(self) -> list[str]:
        """What the audit of its database finds."""
        store = stores_for_url(self.database, timeouts=UNHURRIED)
        with contextlib.closing(store.database):
            return [
                f'{self.name}: {kind}: {line}'
                for kind, lines in store.claims.audit().items()
                for line in lines
            ]

    # -- over HTTP ---------------------------------------------------------------------
    @property
    def url(self) -> str:
        return f'http://127.0.0.1:{self._port}'

    def reaches(self, zone: str) -> bool:
        """Whether a request here is placed in another zone below it."""
        spec = {'resources': {'VCPU': 1}, 'required_traits': [own_trait(zone)]}
        body = {
            'request_id': str(uuid.uuid4()),
            'spec': spec,
            'consumers': [str(uuid.uuid4())],
            'lease_seconds': 5,
        }
        response = httpx.post(f'{self.url}/v1/requests', json=body, headers=VERSION, timeout=60.0)
        return response.is_success

    def put(self, path: str, body: Mapping[str, object]) -> None:
        """:raises AssertionError: it refuses"""
        response = httpx.put(self.url + path, json=body, headers=VERSION, timeout=60.0)
        assert response.is_success, response.text

    def put_above(self, child: 'FaultedZone') -> None:
        """Put it above another one, which it reaches over the way that can fail."""
        own = httpx.get(f'{self.url}/v1/zones', headers=VERSION, timeout=60.0).json()['uuid']
        given = {'identity': own, 'project_id': f'of-{self.name}', 'trusted': True}
        lease = {'lease_seconds_max': LEASE_SECONDS_MAX}
        child.put(f'/v1/parents/{self.name}', given | lease)
        url = f'http://127.0.0.1:{child.from_above.port}'
        self.put(f'/v1/zones/{child.name}', {'url': url, 'trusted': True})


def above(zone: str) -> list[str]:
    """The zone itself, and those above it."""
    return [zone, *above(ABOVE[zone])] if zone else []


class Fault(NamedTuple):
    """What fails, and how it is healed.

    :ivar impaired: the zone that need not answer; '': all can
    :ivar unseen: the zone that nobody above sees; '': all are seen
    :ivar known: so long what was known before is still an answer, in seconds
    """

    name: str
    impaired: str
    unseen: str
    begin: Callable[[], object]
    end: Callable[[], object]
    known: float = 0.0

    def blinds(self, zone: str) -> bool:
        """Whether a zone does not see all that is below it, or is itself at fault."""
        return zone in above(self.unseen if self.impaired else ABOVE[self.unseen])


class FaultedTree:
    """All of it."""

    def __init__(self, zones: Mapping[str, FaultedZone]) -> None:
        self.zones = dict(zones)

    def start(self) -> None:
        """Start all and put them below one another."""
        for zone in self.zones.values():
            zone.start()
        for zone in self.zones.values():
            zone.wait()
        for name, above in reversed(ABOVE.items()):
            if above:
                self.zones[above].put_above(self.zones[name])

    def faults(self) -> dict[str, Fault]:
        """Each thing in turn, by name."""
        faults: list[Fault] = []
        for name, zone in self.zones.items():
            faults += [
                Fault(f'process {name} killed', name, name, zone.kill, _started(zone)),
                Fault(f'process {name} frozen', name, name, zone.freeze, zone.thaw),
            ]
            if ABOVE[name]:
                way, link = zone.from_above, f'link {ABOVE[name]}-{name}'
                faults += [
                    Fault(f'{link} cut', '', name, way.refuse, way.mend),
                    Fault(f'{link} frozen', '', name, way.hold, way.mend),
                ]
            database = f'database of {name}'
            if zone.to_database is None:
                # It is still read: whoever says that there is no room knows it.
                faults.append(Fault(f'{database} locked', name, '', zone.lock, zone.unlock))
                continue
            way = zone.to_database
            faults += [
                Fault(f'{database} cut', name, name, way.refuse, way.mend, TABLE_AGE_MAX_SECONDS),
                Fault(f'{database} frozen', name, name, way.hold, way.mend, TABLE_AGE_MAX_SECONDS),
            ]
            if zone.server is not None:
                killed, ends = f'{database} killed', (zone.server.fail, zone.server.start)
                faults.append(Fault(killed, name, name, *ends, TABLE_AGE_MAX_SECONDS))
        return {fault.name: fault for fault in faults}


def _started(zone: FaultedZone) -> Callable[[], None]:
    def start() -> None:
        zone.start()
        zone.wait()

    return start


@contextlib.contextmanager
def faulted_tree(folder: pathlib.Path, mysql_url: str) -> Iterator[FaultedTree]:
    """The tree, running; all of it ends with the block.

    :param mysql_url: of an empty database
    """
    with contextlib.ExitStack() as stack:
        servers = {name: stack.enter_context(postgres.single()) for name in ('top', 'b')}
        databases = {name: server.url for name, server in servers.items()}
        databases['a'] = mysql_url
        zones = {}
        for name in ABOVE:
            own = folder / name
            own.mkdir()
            url = databases.get(name, f'sqlite:///{own}/gantt.db')
            zones[name] = FaultedZone(name, own, url, servers.get(name))
            stack.callback(zones[name].close)
        tree = FaultedTree(zones)
        tree.start()
        for zone in zones:
            for below in zones:
                if below != 'top' and zone in above(below):
                    until(lambda z=zone, b=below: zones[z].reaches(b), f'{zone} reaches {below}')
        yield tree
