# SPDX-License-Identifier: Apache-2.0
"""Rows as a release writes them, and how it reads them: what later ones must understand.

    python -m tests.db.rows_of_a_release > tests/data/schemas/NNNN.json

Run it with the code of the release, in its tree: once, when a step of the schema is
new.  A small site is played on a SQLite file; what stands in the tables then is printed,
and beside it what the release itself reads there.
"""

import base64
import decimal
import json
import os
import sys
import tempfile

import gantt.cmd  # noqa: F401  chooses the concurrency backend before anything else

# isort: split
import msgspec
import sqlalchemy as sa

from gantt.core.messages.report import DevicePool, NumaCell, ReportedMetric, Running
from gantt.core.messages.request import GroupRef, Policy
from gantt.core.records.process import ServiceNote
from gantt.core.records.shadow import Compared, ShadowVerdict
from gantt.db.schema import migration
from gantt.db.stores.store import SqlStore
from tests.plans import created, planned
from tests.world import Host, World, a_request

PEOPLE = [f'00000000-0000-4000-8000-{n:012d}' for n in range(100)]


def play(world: World) -> None:
    """One of everything that a release keeps."""
    store, hosts = world.store, world.hosts
    store.declare_class('CUSTOM_LICENSE')
    store.save_aggregate('rack-1', {'availability_zone': 'az-1', 'ssd': 'true'}, ['cmp-1', 'cmp-2'])
    store.save_aggregate('later', {}, ['cmp-9'])
    hosts['cmp-1'].facts = {
        'numa': [NumaCell(id=0, cpus=[0, 1], memory_mb=4096)],
        'devices': [DevicePool(vendor_id='8086', product_id='1572', count=2, free=2)],
        'traits': ['HW_CPU_X86_AVX2'],
        'location': 'here.room-1.rack-1.cmp-1',
        'metrics': {'cpu.percent': ReportedMetric(value=12.5)},
    }
    hosts['cmp-2'].facts = {'foreign': {'VCPU': 2}}
    stray = Running(consumer=PEOPLE[6], resources={'VCPU': 3, 'CUSTOM_LICENSE': 1})
    hosts['cmp-3'].running = {'found': stray}
    for host in hosts.values():
        host.report()
    world.turn()
    store.remove_host('cmp-4')  # its epoch is remembered
    world.scheduler.cache.fetch()
    anti = GroupRef(uuid=PEOPLE[90], policy=Policy('anti-affinity'))
    for claim in ask(world, 2, 0, group=anti, project_id='p1'):
        hosts[claim.host].confirm(claim.claim_id)
    for refused in ask(world, 1, 2):
        host = hosts[refused.host]
        world.scheduler.refuse(host.words(refused.claim_id, reason='no'))
    ask(world, 1, 3, vcpu=2)
    ask(world, 1, 4)
    store.cancel_request(PEOPLE[84], 'not wanted any more')
    ask(world, 1, 5, vcpu=1000)  # no host fits
    store.save_decisions(world.recorder.records)
    store.disable_host('cmp-2', 'disk swap', 'ops')
    compared = Compared(
        id=PEOPLE[70],
        request_id=PEOPLE[71],
        origin='req-1',
        consumer=PEOPLE[72],
        purpose='create',
        verdict=ShadowVerdict.REMOVED,
        ours='cmp-1',
        theirs='cmp-2',
        why='disk swap',
    )
    store.save_shadows([compared], 10)
    store.note_service(
        ServiceNote(
            name='ctl-1:1:ab',
            kind='scheduler',
            host='ctl-1',
            version='1.0',
            configuration='0123',
        )
    )
    plan(store, hosts['cmp-1'])


def plan(store: SqlStore, host: Host) -> None:
    """A planned group, and the create of one of its members."""
    row = next(one.row for one in store.load_everything().hosts if one.row.name == host.name)
    members = {'web-1': row, 'db-1': row}
    group, request, consumer, create = PEOPLE[60:64]
    found = planned(
        store, members, group=group, request_id=request, seconds=1.0, project='p1', vcpu=1
    )
    created(store, found['web-1'], consumer, request_id=create)


def ask(world: World, count: int, first: int, **fields: object) -> list:
    """A request for ``count`` of the people from ``first`` on; what was selected."""
    consumers = PEOPLE[first : first + count]
    said = world.select(
        a_request(count, request_id=PEOPLE[80 + first], consumers=consumers, **fields)
    )
    return [members[0] for members in said.selections]


def read(store: SqlStore) -> dict:
    """What the release knows of its rows."""
    claims = store.claims(limit=1000)
    everything = store.load_everything()
    return {
        'claims': [
            {
                **{
                    name: getattr(c, name)
                    for name in (
                        'id',
                        'request_id',
                        'attempt',
                        'member',
                        'consumer',
                        'provider_id',
                        'host',
                        'group',
                        'project_id',
                        'adopted',
                        'reason',
                        'member_name',
                    )
                },
                'planned': msgspec.to_builtins(c.planned),
                'state': str(c.state),
                'lifecycle': str(c.lifecycle),
                'purpose': str(c.purpose),
                'allocations': {str(k): v for k, v in c.allocations.items()},
            }
            for c in claims
        ],
        'hosts': [
            {
                **{
                    name: getattr(h.row, name)
                    for name in (
                        'id',
                        'uuid',
                        'name',
                        'epoch',
                        'sequence',
                        'used',
                        'foreign',
                        'aggregates',
                        'disabled',
                        'disabled_by',
                        'over_committed',
                    )
                },
                'facts': msgspec.to_builtins(h.row.facts),
                'placed': [p.claim_id for p in h.placed],
            }
            for h in everything.hosts
        ],
        'aggregates': msgspec.to_builtins(everything.aggregates),
        'groups': everything.groups,
        'answers': {
            one: base64.b64encode(store.load_request(one).answer).decode()
            for one in sorted({c.request_id for c in claims if c.request_id})
        },
        'plans': msgspec.to_builtins(store.group_plans(100)),
        'decisions': [d.id for d in store.decisions(limit=100)],
        'shadows': msgspec.to_builtins(store.shadows(None, 100)),
    }


def dump(engine: sa.Engine) -> dict[str, list[dict]]:
    """Table -> rows; bytes as base64."""
    metadata = sa.MetaData()
    metadata.reflect(engine)
    with engine.connect() as connection:
        return {
            table.name: [
                {key: _plain(value) for key, value in row._mapping.items() if value is not None}
                for row in connection.execute(sa.select(table))
            ]
            for table in metadata.sorted_tables
            if table.name != 'alembic_version'
        }


def _plain(value: object) -> object:
    if isinstance(value, decimal.Decimal):  # of MariaDB
        return float(value)
    return {'b64': base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = SqlStore.for_url(f'sqlite:///{os.path.join(folder, "gantt.db")}')
        play(World(store, hosts=4))
        made = {
            'revision': migration.expected(),
            'read': read(store),
            'tables': dump(store.engine),
        }
        store.close()
    json.dump(made, sys.stdout, sort_keys=True, indent=1)
    print()


if __name__ == '__main__':
    main()
