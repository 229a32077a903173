# SPDX-License-Identifier: Apache-2.0
"""What hosts have is read from rows, and only where it may have changed."""

import contextlib
from concurrent import futures

import msgspec
import pytest
import sqlalchemy as sa

from gantt import exceptions
from gantt.core.messages.report import ReportedMetric
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.host import INVENTORIES_BY_API, HostFacts
from gantt.db.engine import session
from gantt.db.hosts import details
from gantt.db.schema import models
from tests.builders import CLEAN, a_draft, a_host, claimed, set_inventories, uuid_of
from tests.db.conftest import SERVERS
from tests.services import PATIENT

_f, _i, _p = models.provider_facts, models.inventories, models.providers
TRAITS = ['HW_CPU_X86_AVX2', 'STORAGE_DISK_SSD']


@contextlib.contextmanager
def reads_of_rows(store):
    """Statements that ask for what hosts have, with what they were asked for."""
    reads = []

    def note(connection, cursor, statement, parameters, *rest):
        asks = 'provider_traits' in statement and statement.startswith('SELECT')
        if asks and 'MISC_SHARES_VIA_AGGREGATE' not in str(parameters):  # which pools there are
            reads.append(parameters)

    sa.event.listen(store.database.engine, 'before_cursor_execute', note)
    yield reads
    sa.event.remove(store.database.engine, 'before_cursor_execute', note)


def record_of(store, host):
    """As it is stored."""
    with store.database.engine.connect() as connection:
        query = sa.select(_f.c.facts).where(_f.c.provider_id == host.id)
        return connection.execute(query).scalar_one()


def with_load(host, value):
    """A report in which nothing but a metric is new."""
    return host.says().having(metrics={'load': ReportedMetric(value=value)})


def test_a_record_has_a_mark_of_what_its_rows_say(store):
    store.feed.poll(0, {})
    host = a_host().having(traits=TRAITS, aggregates=['rack-1']).on(store)
    facts = record_of(store, host)
    has = store.database.reads.read(lambda tx: details.read(tx, [host.id]))[host.id]
    assert details.details_digest(facts) == has.digest
    assert has.inventories == host.row.facts.inventories
    assert (has.traits, has.aggregates) == (TRAITS, host.row.aggregates)
    stated = msgspec.json.decode(facts, type=HostFacts)
    assert (stated.inventories, stated.traits) == ({}, [])


@pytest.mark.parametrize('text', ['{}', '{"location":"details"}', '{"x":{"details":"' + 32 * '0'])
def test_what_is_no_mark_is_none(text):
    assert details.details_digest(text) is None
    assert details.details_digest('{"details":"' + 32 * 'a' + '"}') == 32 * 'a'


def test_a_metric_is_read_without_rows(store, open_store):
    host = a_host().having(traits=TRAITS).on(store)
    other = open_store(like=store)
    start = other.feed.load_everything()
    versions = {host.id: host.row.version}
    host.send(with_load(host, 0.5))
    with reads_of_rows(other) as reads:
        (change,) = other.feed.poll(start.position, versions).hosts
        assert change.row.facts.metrics['load'].value == 0.5
        assert change.row.facts.traits == TRAITS
        assert reads == []
        claimed(other, a_draft().taking(host))
        assert reads == []
    with reads_of_rows(store) as reads:
        host.send(with_load(host, 0.7))
        host.report()
        assert reads == []


def test_of_hosts_that_have_the_same_one_is_asked(store, open_store):
    hosts = [a_host(f'cmp-{n}').having(traits=TRAITS).on(store) for n in range(6)]
    for number, host in enumerate(hosts):
        host.send(with_load(host, number / 10))
    other = open_store(like=store)
    with reads_of_rows(other) as reads:
        rows = [change.row for change in other.feed.load_everything().hosts]
    assert len(reads) == 1
    assert len({id(row.facts.inventories) for row in rows}) == 1
    assert len({id(row.facts.traits) for row in rows}) == 1
    assert [row.facts.metrics['load'].value for row in rows] == [n / 10 for n in range(6)]


def test_rows_of_many_hosts_are_read_in_parts(store, open_store, monkeypatch):
    monkeypatch.setattr(session, 'VALUES_PER_STATEMENT', 2)
    for number in range(5):
        a_host(f'cmp-{number}').having(traits=[f'CUSTOM_{number}']).on(store)
    rows = [change.row for change in open_store(like=store).feed.load_everything().hosts]
    assert [row.facts.traits for row in rows] == [[f'CUSTOM_{n}'] for n in range(5)]


# -- several at once -----------------------------------------------------------------------
class Writers:
    """Reports, requests, operators of aggregates and of who speaks, on the same two hosts."""

    def __init__(self, open_store, kind):
        self.store = open_store(kind, timeouts=PATIENT)
        self.hosts = [a_host(f'cmp-{n}').on(self.store) for n in range(2)]
        self._uuids = [host.row.uuid for host in self.hosts]
        self._open = open_store

    def report(self, own, turn):
        for host in self.hosts:
            host.send(with_load(host, turn).having(traits=[f'CUSTOM_R{turn % 3}']))

    def ask(self, own, turn):
        for uuid in self._uuids:
            set_inventories(own, uuid, {'VCPU': Inventory(total=1 + turn)})
            own.providers.save_provider_traits(uuid, TRAITS[turn % 2 :])
            own.providers.save_provider_aggregates(uuid, [uuid_of(turn % 3)])

    def group(self, own, turn):
        own.declarations.save_aggregate(
            'rack-1', {}, [host.name for host in self.hosts][turn % 2 :]
        )

    def change(self, own, turn):
        own.hosts.set_inventories_by(
            self.hosts[turn % 2].name, INVENTORIES_BY_API if turn % 3 else None
        )

    def turns(self, work):
        own = self._open(like=self.store, timeouts=PATIENT)
        for turn in range(12):
            with contextlib.suppress(exceptions.ReportedByHost):
                work(own, turn)


@pytest.mark.parametrize('kind', SERVERS)
def test_marks_are_of_their_rows_whoever_writes_at_once(kind, open_store):
    all_of = Writers(open_store, kind)
    store, works = all_of.store, (all_of.report, all_of.ask, all_of.group, all_of.change)
    with futures.ThreadPoolExecutor(len(works)) as threads:
        for done in [threads.submit(all_of.turns, work) for work in works]:
            done.result(timeout=120)
    ids = [host.id for host in all_of.hosts]
    has = store.database.reads.read(lambda tx: details.read(tx, ids))
    fresh = open_store(like=store)
    rows = {change.provider_id: change.row for change in fresh.feed.load_everything().hosts}
    for host in all_of.hosts:
        assert details.details_digest(record_of(store, host)) == has[host.id].digest
        assert host.row == rows[host.id]
        assert host.row.aggregates == has[host.id].aggregates
    assert store.claims.audit() == CLEAN


# -- who knows nothing of hosts writes what they have ---------------------------------------
AGGREGATE_CHANGES = {
    'joins': lambda store, hosts: store.declarations.save_aggregate(
        'new', {}, [host.name for host in hosts]
    ),
    'leaves': lambda store, hosts: store.declarations.save_aggregate('rack', {}, []),
    'other uuid': lambda store, hosts: store.declarations.save_aggregate(
        'rack', {}, None, uuid_of('other')
    ),
    'both': lambda store, hosts: store.declarations.save_aggregate(
        'rack', {}, [hosts[1].name], uuid_of('other')
    ),
    'removed': lambda store, hosts: store.declarations.remove_aggregate('rack'),
    'renamed': lambda store, hosts: store.hosts.rename_host(hosts[0].name, 'rack1-07'),
}


@pytest.mark.parametrize('change', AGGREGATE_CHANGES)
def test_others_learn_what_a_process_writes_that_knows_no_host(store, open_store, change):
    hosts = [a_host('cmp-1').on(store), a_host('cmp-2').on(store)]
    store.declarations.save_aggregate('rack', {}, [hosts[0].name])
    start = store.feed.load_everything()
    versions = {change.provider_id: change.row.version for change in start.hosts}
    before = {change.provider_id: change.row for change in start.hosts}
    AGGREGATE_CHANGES[change](open_store(like=store), hosts)
    news = {
        change.provider_id: change.row for change in store.feed.poll(start.position, versions).hosts
    }
    has = store.database.reads.read(lambda tx: details.read(tx, list(before)))
    rows = before | news
    assert {pid: row.aggregates for pid, row in rows.items()} == {
        pid: expected.aggregates for pid, expected in has.items()
    }
    assert all(rows[pid].generation > row.generation for pid, row in before.items() if pid in news)
    for host in hosts:
        assert details.details_digest(record_of(store, host)) == has[host.id].digest
    assert store.claims.audit() == CLEAN


# -- rows that are not as the mark says ----------------------------------------------------
def test_rows_are_believed_where_a_mark_is_of_others(store, open_store):
    host = a_host().having(traits=TRAITS).on(store)
    with store.database.engine.begin() as connection:
        connection.execute(models.provider_traits.delete())
    other = open_store(like=store)
    for _ in range(2):  # it is not remembered for that mark
        (change,) = other.feed.load_everything().hosts
        assert change.row.facts.traits == []
    host.send(host.says().having(traits=['CUSTOM_NEW']))
    (change,) = other.feed.load_everything().hosts
    assert change.row.facts.traits == ['CUSTOM_NEW']


def test_what_requests_say_is_news_to_who_knew_the_host(store, open_store):
    host = a_host().on(store)
    store.hosts.set_inventories_by(host.name, INVENTORIES_BY_API)
    other = open_store(like=store)
    start = other.feed.load_everything()
    versions = {host.id: host.row.version}
    set_inventories(store, host.row.uuid, {'VCPU': Inventory(total=1)})
    store.providers.save_provider_traits(host.row.uuid, TRAITS)
    store.providers.save_provider_aggregates(host.row.uuid, [uuid_of('rack')])
    (change,) = other.feed.poll(start.position, versions).hosts
    row = change.row
    assert row.facts.inventories == {'VCPU': Inventory(total=1)}
    assert (row.facts.traits, row.aggregates) == (TRAITS, [uuid_of('rack')])
    assert [line.message for line in store.hosts.host_history(host.name, 10)][:1] == [
        f'traits: {", ".join(f"+{trait}" for trait in TRAITS)}'
    ]


def test_a_host_that_is_renamed_or_removed_takes_all_of_it_along(store):
    host = a_host().on(store)
    named = store.declarations.save_aggregate('rack-1', {}, [host.name])
    store.hosts.set_inventories_by(host.name, INVENTORIES_BY_API)
    store.providers.save_provider_aggregates(host.row.uuid, [uuid_of('rack')])
    store.hosts.rename_host(host.name, 'rack1-07')
    row = host.row
    assert (row.name, row.inventories_by) == ('rack1-07', INVENTORIES_BY_API)
    assert row.aggregates == sorted([named.uuid, uuid_of('rack')])
    store.hosts.decommission_host('rack1-07')
    with store.database.engine.connect() as connection:
        remaining = sa.select(sa.func.count()).select_from(models.provider_aggregates)
        assert connection.execute(remaining).scalar_one() == 0
