# SPDX-License-Identifier: Apache-2.0
"""Databases as a release left them: its statements for each kind of database, and its rows.

    python -m tests.db.released tests/data/schema_1_0 URL...

Run it with the code of the release, in its tree; with urls of empty databases, one of each kind.
"""

import base64
import json
import pathlib
import sys
import tempfile
from collections.abc import Iterable
from typing import Any

import gantt.cmd  # noqa: F401  chooses the concurrency backend before anything else

# isort: split
import msgspec
import sqlalchemy as sa

from gantt.core.claims.allocations import WantedAllocations
from gantt.core.messages.report import NumaCell, Running
from gantt.core.messages.request import GroupRef, Policy
from gantt.core.messages.resource_classes import Inventory
from gantt.core.records.process import ServiceNote
from gantt.core.records.shadow import ComparedChoice, ShadowVerdict
from gantt.db.engine import session
from gantt.db.schema import migration
from gantt.stores import SqlStores, stores_for_url
from tests.builders import list_providers
from tests.plans import created, planned
from tests.world import World, a_request

DATA = pathlib.Path(__file__).parents[1] / 'data'
PEOPLE = [f'00000000-0000-4000-8000-{n:012d}' for n in range(100)]


# -- how they come to be -----------------------------------------------------------
def play(world: World) -> None:
    """Let a small site have some of everything that is read below."""
    store, hosts = world.store, world.hosts
    store.vocabulary.declare_class('CUSTOM_LICENSE')
    store.declarations.save_aggregate(
        'rack-1', {'availability_zone': 'az-1'}, ['cmp-1', 'cmp-2', 'cmp-9']
    )
    cells = [NumaCell(id=0, cpus=[0, 1], memory_mb=4096)]
    hosts['cmp-1'].facts = {'numa': cells, 'traits': ['HW_CPU_X86_AVX2']}
    stray = Running(consumer=PEOPLE[6], resources={'VCPU': 3, 'CUSTOM_LICENSE': 1})
    hosts['cmp-3'].running = {'found': stray}
    for host in hosts.values():
        host.report()
    world.turn()
    store.hosts.remove_host('cmp-4')  # its epoch is remembered
    store.quotas.set_quotas('p1', {'class:VCPU': 100})
    pool = store.providers.create_provider(
        'pool', inventories={'CUSTOM_LICENSE': Inventory(total=9)}
    )
    store.providers.save_provider_aggregates(pool.uuid, [PEOPLE[50]])
    world.scheduler.cache.fetch()
    group = GroupRef(uuid=PEOPLE[90], policy=Policy('anti-affinity'))
    for claim in ask(world, 2, 0, group=group, project_id='p1'):
        hosts[claim.host].confirm(claim.claim_id)
    ask(world, 1, 4)
    store.requests.cancel_request(PEOPLE[84], 'not wanted any more')
    ask(world, 1, 5, vcpu=1000)  # no host fits
    store.records.save_decisions(world.recorder.records)
    store.hosts.disable_host('cmp-2', 'disk swap', 'ops')
    words = {'gantt_host': 'cmp-1', 'nova_host': 'cmp-2', 'reason': 'disk swap', 'origin': 'req-1'}
    ids = {'id': PEOPLE[70], 'request_id': PEOPLE[71], 'consumer': PEOPLE[72]}
    verdict = ShadowVerdict.REMOVED
    store.shadows.save_shadows(
        [ComparedChoice(purpose='create', verdict=verdict, **words, **ids)], 10
    )
    note = ServiceNote(name='a:1', kind='scheduler', host='a', version='1.0', configuration='01')
    store.services.note_service(note)
    row = next(
        change.row for change in store.feed.load_everything().hosts if change.row.name == 'cmp-1'
    )
    members, ids = {'web-1': row, 'db-1': row}, {'group': PEOPLE[60], 'request_id': PEOPLE[61]}
    place_of = planned(store, members, seconds=1.0, project='p1', vcpu=1, **ids)
    created(store, place_of['web-1'], PEOPLE[62], request_id=PEOPLE[63])
    shares = {pool.uuid: {'CUSTOM_LICENSE': 2}, row.uuid: {'VCPU': 1}}
    wish = {'project_id': 'p1', 'user_id': 'ann', 'consumer_type': 'INSTANCE'}
    store.allocations.write_allocations(
        [WantedAllocations(consumer=PEOPLE[64], allocations=shares, **wish)]
    )


def ask(world: World, count: int, first: int, **fields: Any) -> list[Any]:
    consumers = PEOPLE[first : first + count]
    request = a_request(count, request_id=PEOPLE[80 + first], consumers=consumers, **fields)
    return [members[0] for members in world.select(request).selections]


def fill(engine: sa.Engine) -> None:
    """Let tables have a row that have none: of no meaning, but that it is there."""
    metadata = sa.MetaData()
    metadata.reflect(engine)
    with engine.begin() as connection:
        for table in metadata.sorted_tables:
            if connection.execute(sa.select(sa.func.count()).select_from(table)).scalar() == 0:
                values = {column.name: _any_of(column.type) for column in table.c}
                connection.execute(table.insert().values(values))


def _any_of(kind: Any) -> Any:
    if isinstance(kind, sa.LargeBinary):
        return b'\x00\xff'
    if isinstance(kind, sa.String):
        return 'a'
    return 1.5 if isinstance(kind, sa.Float) else 1


# -- what is kept of them ----------------------------------------------------------
def read(store: SqlStores) -> Any:
    """Return what the code knows of the rows, as JSON has it."""
    claims = store.claims.list_claims(limit=1000)
    stored = {
        'claims': claims,
        'hosts': [host.row for host in store.feed.load_everything().hosts],
        'providers': list_providers(store),
        'groups': store.feed.load_everything().groups,
        'plans': store.plans.group_plans(100),
        'requests': [
            store.requests.load_request(request.id) for request in store.requests.list_requests(100)
        ],
        'allocations': {c.consumer: store.allocations.load_allocations(c.consumer) for c in claims},
        'decisions': store.records.list_decisions(limit=100),
        'shadows': store.shadows.list_shadows(None, 100),
        'services': [service.name for service in store.services.list_services()],
        'quotas': store.quotas.limits(),
    }
    return json.loads(msgspec.json.encode(stored))


def rows(engine: sa.Engine) -> list[tuple[str, dict[str, Any]]]:
    """Return table and row of all, as JSON has them; nulls are left out."""
    metadata = sa.MetaData()
    metadata.reflect(engine)
    with engine.connect() as connection:
        return [
            (table.name, {name: _plain(value) for name, value in row.items() if value is not None})
            for table in metadata.sorted_tables
            for row in connection.execute(sa.select(table)).mappings()
        ]


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {'b64': base64.b64encode(value).decode()}
    return value


def _value(value: Any) -> Any:
    return base64.b64decode(value['b64']) if isinstance(value, dict) else value


class Released:
    """What a release left.

    :param name: of its folder
    :ivar rows: table and row, in an order in which they can be inserted
    :ivar read: what the release read there
    """

    def __init__(self, name: str) -> None:
        self.folder = DATA / name
        self.read = json.loads((self.folder / 'read.json').read_text())
        lines = (self.folder / 'rows.jsonl').read_text().splitlines()
        self.rows = [(table, row) for table, row in map(json.loads, lines)]

    def restore(self, engine: sa.Engine) -> None:
        """Make its tables, with its rows, in an empty database."""
        text = (self.folder / f'{session.family(engine)}.sql').read_text()
        with engine.begin() as connection:
            for statement in text.splitlines():
                connection.exec_driver_sql(statement)
            metadata = sa.MetaData()
            metadata.reflect(connection)
            for table, row in self.rows:
                values = {name: _value(value) for name, value in row.items()}
                connection.execute(metadata.tables[table].insert().values(values))
            for table in metadata.sorted_tables:
                self._count_on(connection, table)

    @staticmethod
    def _count_on(connection: sa.Connection, table: sa.Table) -> None:
        """PostgreSQL counts apart from the rows."""
        keys = [key for key in table.primary_key if key.server_default is not None]
        if connection.dialect.name == 'postgresql' and keys:
            name = sa.func.pg_get_serial_sequence(table.name, keys[0].name)
            connection.execute(sa.select(sa.func.setval(name, sa.func.max(keys[0]))))


def statements(url: str) -> list[str]:
    """Return what makes the schema of this code in an empty database."""
    engine, texts = session.build_engine(url), []
    words = ('CREATE ', 'ALTER ', 'DO ')
    sa.event.listen(
        engine,
        'before_cursor_execute',
        lambda *arguments: texts.append(' '.join(arguments[2].split())),
    )
    migration.sync(engine)
    engine.dispose()
    return [statement for statement in texts if statement.startswith(words)]


def main(folder: str, *urls: str) -> None:
    for url in urls:
        kind = session.family(session.build_engine(url))
        _write(folder, f'{kind}.sql', statements(url))
    with tempfile.TemporaryDirectory() as site:
        store = stores_for_url(f'sqlite:///{site}/gantt.db')
        play(World(store, hosts=4))
        _write(folder, 'read.json', [json.dumps(read(store), sort_keys=True)])
        fill(store.database.engine)
        _write(folder, 'rows.jsonl', [json.dumps(row) for row in rows(store.database.engine)])
        store.database.close()


def _write(folder: str, name: str, lines: Iterable[str]) -> None:
    pathlib.Path(folder, name).write_text(''.join(f'{line}\n' for line in lines))


if __name__ == '__main__':
    main(*sys.argv[1:])
