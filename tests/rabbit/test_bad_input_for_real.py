# SPDX-License-Identifier: Apache-2.0
"""Bad input for the whole service: broker, scheduler and database as an operator runs them.

Every refusal names its field, and the database holds what it held before.
"""

import json
import time
import uuid

import pytest

from devel.doubles import MemoryRecorder
from gantt import client, exceptions, plugin_loader
from gantt.core.messages import base
from gantt.core.messages.report import ClaimUpdate, HostReport, RegisterHost, Running
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.core.messages.resource_classes import Inventory
from gantt.scheduler.service import Scheduler
from gantt.scheduler.settings import SchedulerSettings
from tests.db.conftest import contents
from tests.rpc.facade import until

pytestmark = [pytest.mark.rabbit, pytest.mark.postgresql]

ROOM = {
    'VCPU': Inventory(total=8),
    'MEMORY_MB': Inventory(total=8192),
    'DISK_GB': Inventory(total=100),
}
#: What time and the reading of clocks write by themselves.
IDLE = ('meta', 'table_log')


class Site:
    """One host that has reported, one guest that was placed."""

    def __init__(self, make_bus, store, wire) -> None:
        self.store, self.wire = store, wire
        self.scheduler = Scheduler(
            store,
            plugin_loader.load_pipeline(),
            MemoryRecorder(),
            SchedulerSettings(replay_seconds=0.0),
        )
        self.scheduler.start()
        self.bus = make_bus(facade=self.scheduler)
        self.claims = client.ClaimsClient(self.bus.carrier())
        self.stats = client.StatsClient(self.bus.carrier())
        self.asking = self.bus.scheduler()
        registered = self.claims.register_host(RegisterHost(name='cmp-1', boot_nonce='a'))
        self.epoch, self.sequence = registered.epoch, 0
        assert self.stats.update_resource_stats(self.report()).outcome == 'applied'
        until(lambda: len(self.scheduler.cache.fold()) == 1)
        self.request = a_request()
        self.answer = self.asking.select_destinations(self.request)

    def report(self, **fields) -> HostReport:
        self.sequence += 1
        content = {'running': [], 'pending': [], 'inventories': ROOM, 'full': True} | fields
        return HostReport(name='cmp-1', epoch=self.epoch, sequence=self.sequence, **content)

    def contents(self) -> dict:
        tables = contents(self.store)
        return {name: rows for name, rows in tables.items() if name not in IDLE}

    def failure(self, method, topic='gantt-scheduler', version='1.0', **args) -> dict:
        call = {'method': method, 'version': version, 'args': args}
        reply = json.loads(self.wire.call(call, topic=topic)['oslo.message'])
        assert reply['failure'] is not None, reply
        return json.loads(reply['failure'])


@pytest.fixture
def site(make_bus, make_store, wire):
    new_site = Site(make_bus, make_store('postgresql'), wire)
    yield new_site
    new_site.bus.close()
    assert new_site.scheduler.stop(10)


def a_request(**fields) -> SelectDestinations:
    return SelectDestinations(
        request_id=str(uuid.uuid4()),
        spec=RequestSpec(resources={'VCPU': 1}),
        consumers=[str(uuid.uuid4())],
        **fields,
    )


def asked(**changes) -> dict:
    return base.to_builtins(a_request()) | changes


def spec(**resources) -> dict:
    return {'resources': {'VCPU': 1} | resources}


def test_requests(site):
    before = site.contents()
    for body, cls, field in (
        (asked(colour='red'), 'InvalidMessage', 'request.colour'),
        ({}, 'InvalidMessage', 'request.request_id'),
        (asked(consumers='x'), 'InvalidMessage', 'request.consumers'),
        (asked(consumers=['x']), 'InvalidMessage', 'request.consumers[0]'),
        (asked(consumers=['\ud800']), 'InvalidMessage', 'request.consumers[0]'),
        (asked(spec=spec(MEMORY_MB=-5)), 'InvalidMessage', 'request.spec.resources.MEMORY_MB'),
        (asked(spec=spec(DISK_GB=10**30)), 'InvalidMessage', 'request.spec.resources.DISK_GB'),
        (asked(spec=spec() | {'purpose': 'fun'}), 'InvalidMessage', 'request.spec.purpose'),
        (asked(spec=spec(CUSTOM_NO=1)), 'UnknownResourceClass', 'request.spec.resources.CUSTOM_NO'),
        (asked(spec=spec() | {'zone': '\udfff'}), 'InvalidMessage', 'request.spec.zone'),
    ):
        failure = site.failure('select_destinations', request=body)
        assert (failure['class'], failure['kwargs']['field']) == (cls, field)
    failure = site.failure('select_destinations', version='2.0', request=asked())
    assert failure['class'] == 'UnsupportedVersion'
    big = asked(spec=spec() | {'hints': {'x': ['y' * 5_000_000]}})
    assert site.failure('select_destinations', request=big)['class'] == 'PayloadTooLarge'
    other = base.to_builtins(site.request) | {'spec': spec(VCPU=3)}
    assert site.failure('select_destinations', request=other)['class'] == 'RequestIdReused'
    assert site.contents() == before
    assert site.asking.select_destinations(site.request).selections == site.answer.selections


def test_reports_and_words(site):
    first = site.report()
    assert site.stats.update_resource_stats(first).outcome == 'applied'
    before = site.contents()
    assert site.stats.update_resource_stats(first).outcome == 'stale'
    with pytest.raises(exceptions.StaleEpoch):
        site.stats.update_resource_stats(message_with(site.report(), epoch=site.epoch + 7))
    with pytest.raises(exceptions.NotFound, match='cmp-9'):
        site.stats.update_resource_stats(message_with(site.report(), name='cmp-9'))
    for changes, field in (
        ({'inventories': {'VCPU': {'total': -3}}}, 'inventories.VCPU.total'),
        ({'inventories': {'VCPU': {'total': 8}, 'BEANS': {'total': 1}}}, 'inventories.BEANS'),
        ({'running': [{'consumer': 'x'}]}, 'running[0].consumer'),
        ({'sequence': -1}, 'sequence'),
        ({'sequins': 1}, 'sequins'),
        ({'location': 'a\ud800'}, 'location'),
    ):
        stats = base.to_builtins(site.report()) | changes
        failure = site.failure('update_resource_stats', 'gantt-stats', name='cmp-1', stats=stats)
        assert failure['kwargs']['field'].endswith(field), failure
    (claim,) = [selections[0].claim_id for selections in site.answer.selections]
    words = ClaimUpdate(name='cmp-1', epoch=site.epoch + 1, sequence=1, claim_ids=[claim])
    assert [fate.outcome for fate in site.claims.confirm_claims(words)] == ['gone']
    assert site.contents() == before


def test_poison_between_good_reports_costs_them_nothing(site):
    good = []
    for number in range(20):
        name = f'good-{number}'
        registered = site.claims.register_host(RegisterHost(name=name, boot_nonce='a'))
        good.append(
            HostReport(
                name=name,
                epoch=registered.epoch,
                sequence=1,
                full=True,
                inventories=ROOM,
                running=[Running(consumer=str(uuid.uuid4()), resources={'VCPU': 1})],
                pending=[],
            )
        )
    for report in good:
        stats = base.to_builtins(report)
        for body in (
            stats | {'sequence': 2**62, 'inventories': None},
            stats | {'running': [{'consumer': '\ud800'}]},
            {'nova_object.name': 'ComputeNode', 'nova_object.data': 7},
            {'vcpus': -1, 'memory_mb': 'many', 'local_gb': []},
            stats,
            [],
        ):
            call = {
                'method': 'update_resource_stats',
                'version': '1.0',
                'args': {'name': report.name, 'stats': body},
            }
            envelope = {'oslo.version': '2.0', 'oslo.message': json.dumps(call)}
            site.wire.send(json.dumps(envelope), topic='gantt-stats')
    end = time.monotonic() + 20
    while (reported := said_by(site.store, 'good-')) != {r.name: 1 for r in good}:
        assert time.monotonic() < end, reported
        time.sleep(0.1)
    assert sum(c.adopted for c in site.store.claims.list_claims(limit=1000)) == len(good)
    assert not any(site.store.claims.audit().values())


def message_with(report: HostReport, **changes) -> HostReport:
    return base.decode(base.to_builtins(report) | changes, HostReport, inside='stats')


def said_by(store, prefix: str) -> dict[str, int]:
    """Sequences of the last reports, by host."""
    rows = [change.row for change in store.feed.load_everything().hosts]
    return {row.name: row.sequence for row in rows if row and row.name.startswith(prefix)}
