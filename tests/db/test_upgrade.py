# SPDX-License-Identifier: Apache-2.0
"""From the first schema to the last one, with rows that old releases wrote.

``tests/data/schemas`` has a file for each schema that a release had: its rows, and what
the release itself read there.  ``rows_of_a_release`` makes them.
"""

import base64
import contextlib
import json
import pathlib
import re

import pytest
import sqlalchemy as sa

from gantt import plugin_loader
from gantt.db.engine import session
from gantt.db.schema import migration, models
from gantt.db.stores.store import SqlStore
from gantt.insights.read_model import Insights
from gantt.scheduler.settings import SchedulerSettings
from tests.builders import CLEAN, a_draft, a_host, claimed, state_of
from tests.db import rows_of_a_release
from tests.services import UNHURRIED

DATA = pathlib.Path(__file__).parents[1] / 'data' / 'schemas'
RELEASES = sorted(path.stem for path in DATA.glob('*.json'))
STEPS = migration.revisions()[::-1]
FIRST = RELEASES[0]
#: The servers take the whole way; the steps are the same from wherever one begins.
CASES = [
    *(
        pytest.param(
            ('sqlite', release),
            id=f'sqlite-{release}',
            marks=[pytest.mark.slow] if release in RELEASES[1:-2] else [],
        )
        for release in RELEASES
    ),
    pytest.param(('postgresql', FIRST), id='postgresql', marks=pytest.mark.postgresql),
    pytest.param(('mysql', FIRST), id='mysql', marks=pytest.mark.mysql),
]


class Old:
    """A database as a release left it."""

    def __init__(self, engine, release):
        self.engine = engine
        self.made = json.loads((DATA / f'{release}.json').read_text())
        # Nobody has rows of the first step alone: it came together with the second.
        self.revision = STEPS[0] if release == FIRST else self.made['revision']
        migration.sync(engine, self.revision)
        self._fill()

    def _fill(self):
        metadata = self.tables()
        with self.engine.begin() as connection:
            for table in metadata.sorted_tables:
                rows = self.made['tables'].get(table.name)
                if rows:
                    connection.execute(table.delete())
                    for row in rows:
                        values = {name: _read(value) for name, value in row.items()}
                        connection.execute(table.insert().values(values))
                self._count_on(connection, table)

    def _count_on(self, connection, table):
        """PostgreSQL counts apart from the rows."""
        keys = list(table.primary_key)
        if self.engine.dialect.name != 'postgresql' or len(keys) != 1:
            return
        name = connection.execute(
            sa.text('SELECT pg_get_serial_sequence(:table, :column)'),
            {'table': table.name, 'column': keys[0].name},
        ).scalar_one()
        if name is not None:
            connection.execute(
                sa.select(sa.func.setval(name, sa.func.coalesce(sa.func.max(keys[0]), 0) + 1))
            )

    def tables(self):
        found = sa.MetaData()
        found.reflect(self.engine)
        return found

    def rows(self):
        return rows_of_a_release.dump(self.engine)


def _read(value):
    return base64.b64decode(value['b64']) if isinstance(value, dict) else value


@pytest.fixture(params=CASES)
def old(request, tmp_path):
    kind, release = request.param
    if kind == 'sqlite':
        url = f'sqlite:///{tmp_path}/old.db'
    else:
        url = request.getfixturevalue(f'{kind}_url')
    # Rows are compared, and schemas read, in transactions that a busy machine makes long.
    engine = session.build_engine(url, waits=UNHURRIED)
    with engine.begin() as connection:
        models.metadata.drop_all(connection)
        connection.exec_driver_sql('DROP TABLE IF EXISTS alembic_version')
    yield Old(engine, release)
    engine.dispose()


def check_stored(before, now):
    """Each row is there still, whatever columns it has gained."""
    for table, rows in before.items():
        for row in rows:
            same = (all(kept.get(k) == v for k, v in row.items()) for kept in now[table])
            assert any(same), f'{table}: {row}'


def test_every_step_keeps_every_row_and_all_is_read(old):
    before = old.rows()
    tables = old.tables()
    for step in STEPS[STEPS.index(old.revision) + 1 :]:
        migration.sync(old.engine, step)
        after = old.tables()
        if not migration.contracts(step):
            check_only_adds(tables, after, step)
            check_stored(before, old.rows())
        before, tables = old.rows(), after
    migration.check(old.engine)
    with contextlib.closing(SqlStore(old.engine)) as store:
        assert_reads(store, old.made['read'])
        assert_works_on(store, old.made['read'])


def check_only_adds(before, after, step):
    """What an older process reads and writes is as it was: it may go on for a while."""
    for table in before.sorted_tables:
        if table.name == 'alembic_version':
            continue
        now = after.tables[table.name]
        for column in table.columns:
            same = now.columns[column.name]
            assert _stored_as(same.type) == _stored_as(column.type), f'{step}: {column}'
            assert same.nullable or not column.nullable, f'{step}: {column}'
        for column in now.columns:
            if column.name not in table.columns:
                # An INSERT that does not know it must go on to work.
                assert column.nullable or column.server_default is not None, f'{step}: {column}'


def _stored_as(kind):
    """A type without how its values compare: 0027 says that anew, on MariaDB alone."""
    return str(kind).partition(' COLLATE ')[0]


def assert_reads(store, said):
    """The code of today reads what the code of then read."""
    now = json.loads(json.dumps(rows_of_a_release.read(store)))
    for kind, key in (('claims', 'id'), ('hosts', 'id')):
        found = {one[key]: one for one in now[kind]}
        for one in said[kind]:
            for name, value in one.items():
                assert found[one[key]][name] == value, f'{kind} {one[key]}: {name}'
        assert len(found) == len(said[kind])
    for name in ('aggregates', 'groups', 'answers', 'decisions'):
        assert now[name] == said[name], name
    # Kept since 0008.
    assert now['shadows'] == said.get('shadows', [])
    # Kept since 0025.
    assert now['plans'] == said.get('plans', [])
    # Its rows are old: a lease of then has run out, and nobody swept.
    overdue = [claim['id'] for claim in said['claims'] if claim['state'] == 'reserved']
    leaked = store.audit()['leaked']
    assert [one for one in overdue if any(one in line for line in leaked)] == overdue
    assert {**store.audit(), 'leaked': []} == CLEAN


def assert_works_on(store, said):
    """Hosts go on in their epoch, claims to their ends; decisions are explained; old ones go."""
    insights = Insights(store, plugin_loader.load_pipeline(), SchedulerSettings())
    for decision in said['decisions']:
        found = insights.explain(decision)
        assert found.id == decision
    guests = [claim for claim in said['claims'] if not claim.get('member_name')]
    claims = {claim['state']: claim for claim in guests if not claim['adopted']}
    rows = {row['name']: row for row in said['hosts']}
    reserved = store.load_claim(claims['reserved']['id'])
    host = a_host(reserved.host).at_work(store, rows[reserved.host])
    assert [fate.outcome for fate in host.confirm(reserved)] == ['ok']
    store.enable_host(host.name)
    made = claimed(store, a_draft().taking(host))[0]
    host.refuse(made)
    assert state_of(store, made) == 'refused'
    store.sweep(100)  # places of plans too, whose leases ended long ago
    store.purge(decisions=0, tombstone_seconds=-1, request_seconds=-1, limit=1000)
    assert store.decisions() == []
    assert store.audit() == CLEAN


def test_there_are_rows_of_the_last_schema():
    newest = STEPS[-1]
    assert re.match(r'\d{4}', newest)[0] == RELEASES[-1], (
        'run "python -m tests.db.rows_of_a_release", and keep what it prints in tests/data/schemas'
    )
