# SPDX-License-Identifier: Apache-2.0
"""``gantt-shadow`` beside a nova-scheduler and a real ``gantt-scheduler``."""

import itertools
import json
import uuid

import oslo_messaging as om
import pytest
import sqlalchemy as sa

from gantt import client
from gantt.core.messages.report import HostReport, RegisterHost
from gantt.core.messages.resource_classes import Inventory
from gantt.db.schema import models
from tests.nemesis.site import Site, until
from tests.rpc.bus import Conductor, a_conf, load

pytestmark = [pytest.mark.rabbit, pytest.mark.postgresql]

HOSTS = [f'compute-{n:03}' for n in range(1, 4)]
#: Tables that a dry run and its comparison write to.
WRITTEN = {'decisions', 'decision_consumers', 'host_sets', 'table_log', 'shadows'}


@pytest.fixture(scope='module')
def site(tmp_path_factory, rabbit_url, postgresql_url):
    """gantt-scheduler with hosts, and gantt-shadow, on one broker with nova-scheduler."""
    new_site = Site(tmp_path_factory.mktemp('shadow'), postgresql_url, rabbit_url)
    try:
        new_site.start('scheduler', rpc={'nova_enabled': False})
        carrier = client.get_transport(a_conf(rabbit_url))
        for name in HOSTS:
            registered = client.ClaimsClient(carrier).register_host(
                RegisterHost(name=name, boot_nonce='n')
            )
            client.StatsClient(carrier).update_resource_stats(
                HostReport(
                    name=name,
                    epoch=registered.epoch,
                    sequence=1,
                    full=True,
                    running=None,
                    pending=None,
                    inventories={
                        kind: Inventory(total=total)
                        for kind, total in (('VCPU', 64), ('MEMORY_MB', 1 << 16), ('DISK_GB', 999))
                    },
                )
            )
        carrier.cleanup()
        yield new_site
    finally:
        new_site.close()


class NovaScheduler:
    """The one consumer of Nova's topic: a stock server, which has no place for anybody."""

    target = om.Target(version='4.5')

    def __init__(self, url: str) -> None:
        self.url = url
        self.transports: list = []  # of its conductor
        self.asked: list[str] = []
        self.lists = 0
        self._carrier = om.get_rpc_transport(a_conf(url), url=url)
        self._server = om.get_rpc_server(
            self._carrier,
            om.Target(exchange='nova', topic='scheduler', server='nova-1'),
            [self],
            executor='threading',
        )
        self._server.start()

    def select_destinations(self, _, **args):
        self.asked += args['instance_uuids']
        return []

    def sync_instance_info(self, _, **args):
        self.lists += 1

    def end(self) -> None:
        self._server.stop()
        self._server.wait()
        for carrier in (self._carrier, *self.transports):
            carrier.cleanup()


@pytest.fixture(scope='module')
def nova(site, rabbit_url):
    scheduler = NovaScheduler(rabbit_url)
    try:
        site.start('shadow', command='gantt-shadow', shadow={'outcome_seconds': 60})
        yield scheduler
    finally:
        scheduler.end()


def counted(site):
    """Rows of all tables but those that a dry run writes to, and what hosts have."""
    engine = site.store.database.engine
    with engine.connect() as connection:
        rows = {
            table.name: connection.execute(sa.select(sa.func.count()).select_from(table)).scalar()
            for table in models.metadata.sorted_tables
            if table.name not in WRITTEN
        }
    hosts = [
        (c.row.name, c.row.used, c.row.generation, c.placed)
        for c in site.store.feed.load_everything().hosts
    ]
    return rows, hosts


def test_it_compares_and_changes_nothing(site, nova):
    conductor = Conductor(nova, '4.5')
    before = counted(site)
    guests = [str(uuid.uuid4()) for _ in range(10)]
    hosts = itertools.cycle(HOSTS)
    placed = {}
    for guest in guests:
        assert conductor.call('boot', uuids=[guest]) == []
        placed[guest] = next(hosts)
    # What the hosts of Nova say then.
    for host in HOSTS:
        mine = [guest for guest, at in placed.items() if at == host]
        conductor._client.prepare(fanout=True, version='4.2').cast(
            load('sync_instance_info').context,
            'sync_instance_info',
            host_name=host,
            instance_uuids=mine,
        )
    comparisons = until(
        lambda: len(rows := site.store.shadows.list_shadows(None, 100)) == 10 and rows,
        'comparisons',
        60,
    )
    assert {comparison.consumer: comparison.nova_host for comparison in comparisons} == placed
    assert {comparison.verdict.value for comparison in comparisons} <= {'same', 'tie', 'other'}, (
        comparisons[0]
    )
    assert all(comparison.gantt_host in HOSTS for comparison in comparisons)
    assert all(comparison.reason for comparison in comparisons if comparison.verdict == 'other')
    assert (nova.asked, nova.lists) == (guests, len(HOSTS))
    assert counted(site) == before
    assert site.store.claims.list_claims(limit=10) == []
    site.audit()
    body = json.loads(site.manage('shadow', 'report', '-f', 'json', '--limit', '3'))
    assert sum(body['counts'].values()) == 10
    agreed = (body['counts']['same'] + body['counts']['tie']) / 10
    assert body['agreement'] == pytest.approx(agreed)
    text = site.manage('shadow', 'report')
    assert text.startswith('10 instances compared: ')
    assert f' {agreed:.1%} agree' in text.splitlines()[0]
    assert site.stop('shadow') == 0
