# SPDX-License-Identifier: Apache-2.0
"""Cells, devices and metrics that an agent tells beside the reports of a host of Nova."""

import itertools

import msgspec
import pytest

from gantt.core.claims.host_facts import UpdateHostFacts
from gantt.core.messages import layout as layouts
from gantt.core.messages.report import DevicePool, NumaCell, RegisterHost, ReportedMetric
from gantt.core.messages.topology_request import CpuPolicy, GuestCell, TopologyRequest
from gantt.core.topology.free import free_topology_of
from gantt.core.topology.search import find_layout
from gantt.nova.model.events import GuestsListed, NovaCast, NovaGuest
from tests.builders import CLEAN, a_draft, a_host, claimed, live, new_uuid, register_host, state_of
from tests.conftest import READERS

KINDS = READERS
TIME = 2_000_000_000.0
CORES = [
    NumaCell(
        id=n,
        cpus=[n * 8],
        pinned_cpus=list(range(n * 8 + 1, n * 8 + 8)),
        memory_mb=8192,
        siblings=[[n * 8 + 2 * i, n * 8 + 2 * i + 1] for i in range(4)],
    )
    for n in range(2)
]
GPUS = [DevicePool(vendor_id='10de', product_id='1eb8', numa_node=0, count=2, free=1)]
LOAD = {'load_1m': ReportedMetric(value=1.5, source='/proc/loadavg')}
NOVA = {'running_vms': ReportedMetric(value=3.0, source='nova')}


def of_nova(store, host):
    """A report source has listed its guests, and reported."""
    hear(store, host)
    host.facts = host.facts.having(metrics=NOVA)
    host.send(host.says().without_opinion())
    return host


_asked = itertools.count(1)


def hear(store, host, *guests, resources=None):
    nova_guests = [
        NovaGuest(consumer=consumer, resources=resources or {'PCPU': 2}) for consumer in guests
    ]
    word = GuestsListed(host=host.name, consumers=list(guests), described=nova_guests)
    return store.nova.apply_guest_events(
        [NovaCast(requested_at=TIME + 120 * next(_asked), event=word)]
    )


@pytest.fixture
def nova_host(store):
    return of_nova(
        store, a_host().with_room(vcpu=8, pcpu=14, ram=16_384).on(store, reporter='nova')
    )


def words(sequence=1, host='cmp-1', **fields):
    facts = {'guests': [], 'numa': CORES, 'devices': GPUS, 'metrics': LOAD, **fields}
    return UpdateHostFacts(host=host, sequence=sequence, **facts)


def pinned(*cpus):
    """Cells where these processors are pinned."""
    return [
        msgspec.structs.replace(
            cell, used_pinned_cpus=[cpu for cpu in cpus if cpu in cell.pinned_cpus]
        )
        for cell in CORES
    ]


def plain(row):
    """A row without what every write and every moment changes."""
    metrics = {name: metric.value for name, metric in row.facts.metrics.items()}
    facts = msgspec.structs.replace(row.facts, metrics={}, agent=None)
    return msgspec.structs.replace(row, facts=facts, reported_at=0.0), metrics


def free_cores(host):
    """Dedicated processors that nobody has, by what everybody reads."""
    (change,) = [c for c in host.store.feed.load_everything().hosts if c.provider_id == host.id]
    room = free_topology_of(change.row.facts, [placed.layout for placed in change.placed])
    return sum(cell.free.bit_count() for cell in room.cells)


def laid(host, count, thread_policy=None):
    cpus = tuple(range(count))
    fields = {} if thread_policy is None else {'thread_policy': thread_policy}
    wish = TopologyRequest(
        cells=(GuestCell(cpus, 512, cpus),), cpu_policy=CpuPolicy.DEDICATED, **fields
    )
    return layouts.layout_json(find_layout(wish, free_topology_of(host.row.facts)).layout)


def pinning(host, layout, guest):
    count = sum(len(cell['pins']) for cell in layout['cells'])
    draft = a_draft().leased(900)
    return claimed(
        host.store,
        draft.taking(
            host, guest, generation=host.row.generation, layout=layout, pcpu=count, ram=512
        ),
    )[0]


# -- what is told, and what reports say ---------------------------------------------------
def test_what_is_told_is_a_fact_of_the_host(store, nova_host):
    before = nova_host.row
    result = store.reports.update_host_facts(words())
    assert (result.outcome, result.sequence) == ('applied', 1)
    row = nova_host.row
    assert [change.row for change in result.hosts] == [row]
    assert (row.facts.numa, row.facts.devices) == (CORES, GPUS)
    assert {n: m.value for n, m in row.facts.metrics.items()} == {'load_1m': 1.5, 'running_vms': 3}
    assert row.generation == before.generation + 1
    # Who reports for the host says that it is there.
    assert (row.reported_at, row.epoch, row.sequence) == (
        before.reported_at,
        before.epoch,
        before.sequence,
    )
    assert store.claims.audit() == CLEAN


@pytest.mark.parametrize('full', [True, False], ids=['full', 'delta'])
@pytest.mark.parametrize('first', ['told', 'report'])
def test_the_order_of_a_report_and_of_what_is_told_does_not_matter(store, first, full):
    rows = []
    for name, order in (('cmp-1', first), ('cmp-2', 'told' if first == 'report' else 'report')):
        host = of_nova(store, a_host(name).on(store, reporter='nova'))
        metrics = {'running_vms': ReportedMetric(value=5.0, source='nova')}
        base = host.sequence
        report = host.says().without_opinion().having(metrics=metrics)
        if order == 'told':
            store.reports.update_host_facts(words(host=name))
        host.send(report if full else report.since(base))
        if order == 'report':
            store.reports.update_host_facts(words(host=name))
        row, metrics = plain(host.row)
        assert metrics == {'load_1m': 1.5, 'running_vms': 5.0}
        same = {'id': 0, 'name': '', 'uuid': '', 'node': '', 'build_topic': '', 'boot_nonce': ''}
        rows.append(msgspec.structs.replace(row, **same))
    assert rows[0] == rows[1]
    assert rows[0].facts.numa == CORES


def test_full_reports_and_a_source_that_starts_anew_keep_what_was_told(store, nova_host):
    store.reports.update_host_facts(words())
    for _ in range(3):
        nova_host.register()
        for _ in range(2):
            before = nova_host.row.generation
            nova_host.send(nova_host.says().without_opinion())
            facts = nova_host.row.facts
            assert (facts.numa, facts.devices) == (CORES, GPUS)
            assert set(facts.metrics) == {'load_1m', 'running_vms'}
            assert nova_host.row.generation == before


def test_a_metric_that_the_agent_tells_no_more_goes(store, nova_host):
    store.reports.update_host_facts(words())
    store.reports.update_host_facts(words(2, metrics={'load_5m': ReportedMetric(value=2.0)}))
    assert set(nova_host.row.facts.metrics) == {'load_5m', 'running_vms'}
    nova_host.send(nova_host.says().without_opinion())
    assert set(nova_host.row.facts.metrics) == {'load_5m', 'running_vms'}


def test_what_is_not_told_stays_as_it_was_told(store, nova_host):
    store.reports.update_host_facts(words())
    update = UpdateHostFacts(
        host='cmp-1', sequence=2, metrics={'load_1m': ReportedMetric(value=9.0)}
    )
    before = nova_host.row.generation
    assert store.reports.update_host_facts(update).outcome == 'applied'
    row = nova_host.row
    assert (row.facts.numa, row.facts.devices) == (CORES, GPUS)
    assert row.facts.metrics['load_1m'].value == 9.0
    assert row.generation == before  # no layout rests on metrics
    store.reports.update_host_facts(UpdateHostFacts(host='cmp-1', sequence=3))
    assert nova_host.row.facts.metrics['load_1m'].value == 9.0


@pytest.mark.parametrize('late', [7, 6, 1], ids=['repeated', 'overtaken', 'old'])
def test_a_late_or_repeated_word_changes_nothing(store, nova_host, late):
    store.reports.update_host_facts(words(7))
    before = nova_host.row
    result = store.reports.update_host_facts(words(late, numa=[], devices=[], metrics={}))
    assert (result.outcome, result.sequence, result.hosts) == ('stale', 7, [])
    assert nova_host.row == before
    # Nor after the source began anew.
    nova_host.register()
    nova_host.send(nova_host.says().without_opinion())
    assert store.reports.update_host_facts(words(late, numa=[])).outcome == 'stale'
    assert nova_host.row.facts.numa == CORES


def test_a_host_that_nobody_has_told_of_is_unknown(store):
    assert store.reports.update_host_facts(words()).outcome == 'unknown_host'
    # It has registered, and who reports for it has said nothing yet.
    register_host(store, RegisterHost(name='cmp-1', boot_nonce='-'))
    assert store.reports.update_host_facts(words()).outcome == 'unknown_host'


def test_a_host_with_an_agent_of_its_own_takes_no_word(store):
    host = a_host().on(store, reporter='nova')
    host.register(reporter='host')
    host.report()
    before = host.row
    assert store.reports.update_host_facts(words()).outcome == 'refused'
    assert host.row == before


def test_a_reporter_that_speaks_of_cells_itself_has_the_word(store, nova_host):
    store.reports.update_host_facts(words())
    nova_host.send(nova_host.says().without_opinion().having(numa=CORES[:1]))
    facts = nova_host.row.facts
    assert (facts.numa, facts.devices, set(facts.metrics)) == (CORES[:1], [], {'running_vms'})


# -- what guests take ---------------------------------------------------------------------
def test_who_is_seen_counts_as_seen_and_who_is_not_as_laid_out(store, nova_host):
    store.reports.update_host_facts(words())
    assert free_cores(nova_host) == 14
    guest = new_uuid()
    claim = pinning(nova_host, laid(nova_host, 4), guest)
    assert free_cores(nova_host) == 10
    # It was pinned otherwise than it was laid out, and a stranger has one.
    before = nova_host.row.generation
    store.reports.update_host_facts(
        words(2, guests=[guest, new_uuid()], numa=pinned(4, 5, 6, 7, 9))
    )
    assert free_cores(nova_host) == 9
    assert nova_host.row.generation == before + 1
    version = nova_host.row.version
    store.reports.update_host_facts(words(2, guests=[], numa=CORES))
    assert nova_host.row.version == version
    # It is shut off: what it was laid out to have counts.
    store.reports.update_host_facts(words(3, guests=[]))
    assert free_cores(nova_host) == 10
    assert store.claims.load_claim(claim.id).layout == claim.layout
    assert store.claims.audit() == CLEAN


def test_siblings_that_a_layout_keeps_others_from_count_where_it_was_followed(store, nova_host):
    store.reports.update_host_facts(words())
    guest = new_uuid()
    body = laid(nova_host, 1)
    cell = body['cells'][0] | {'cell': 0, 'pins': [[0, 2]], 'blocked': [3]}
    pinning(nova_host, {**body, 'cells': [cell]}, guest)
    assert free_cores(nova_host) == 12
    store.reports.update_host_facts(words(2, guests=[guest], numa=pinned(2)))
    assert free_cores(nova_host) == 12
    store.reports.update_host_facts(words(3, guests=[guest], numa=pinned(4)))
    assert free_cores(nova_host) == 13


def test_an_adopted_guest_takes_what_is_seen_of_it(store, nova_host):
    guest = new_uuid()
    store.reports.update_host_facts(words(guests=[guest], numa=pinned(1, 2)))
    assert hear(store, nova_host, guest).adopted
    assert free_cores(nova_host) == 12
    store.reports.update_host_facts(words(2, guests=[guest], numa=pinned(1, 2)))
    assert free_cores(nova_host) == 12
    for _ in range(3):
        hear(store, nova_host)
    assert live(store) == []
    store.reports.update_host_facts(words(3))
    assert free_cores(nova_host) == 14
    assert store.claims.audit() == CLEAN


def test_a_word_leaves_the_state_and_the_use_of_claims_alone(store, nova_host):
    guest = new_uuid()
    store.reports.update_host_facts(words())
    claim = pinning(nova_host, laid(nova_host, 2), guest)
    used = nova_host.row.used
    store.reports.update_host_facts(words(2, guests=[guest], numa=pinned(1, 2)))
    store.reports.update_host_facts(
        words(3, guests=None, numa=msgspec.UNSET, devices=msgspec.UNSET)
    )
    assert state_of(store, claim) == 'reserved'
    assert nova_host.row.used == used
    assert store.claims.load_claim(claim.id).layout == {**claim.layout, 'reported': True}
    assert store.claims.audit() == CLEAN
