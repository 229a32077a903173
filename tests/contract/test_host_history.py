# SPDX-License-Identifier: Apache-2.0
"""What happened to a host: lines about changes of note, and about claims."""

import pytest

from gantt.core.claims.host_event import STORED_PER_HOST, STORED_SECONDS
from gantt.core.messages.report import ReportedMetric
from gantt.core.messages.resource_classes import Inventory
from gantt.db.hosts import host_events
from gantt.db.schema import models
from tests.builders import a_draft, claimed
from tests.conftest import READERS

#: What is read has its twin in memory in SQLite.
KINDS = READERS


def _kinds(store, name):
    """Oldest first; lines of one moment in no order that is promised of claims."""
    return [entry.kind for entry in reversed(store.hosts.host_history(name, 1000))]


def test_registrations_and_the_first_report_are_lines(store, host):
    first = store.hosts.host_history(host.name, 10)
    assert sorted(entry.kind for entry in first) == ['facts', 'registered']
    assert any('what it has' in entry.message and '8 VCPU' in entry.message for entry in first)
    host.register()
    [*_, _, last] = sorted(store.hosts.host_history(host.name, 10), key=lambda entry: entry.at)
    again = [
        entry.message
        for entry in store.hosts.host_history(host.name, 10)
        if entry.kind == 'registered'
    ]
    assert sum(text.startswith('again') for text in again) == 1
    assert last.at == pytest.approx(store.database.ping(), abs=60)


def test_who_disabled_it_and_why_is_a_line_each_time(store, host):
    store.hosts.disable_host(host.name, 'disk swap', 'ann')
    store.hosts.disable_host(host.name, 'disk swap', 'ann')  # says nothing new
    store.hosts.disable_host(host.name, 'fan swap', 'bob')
    store.hosts.enable_host(host.name, 'cy')
    lines = [
        (entry.kind, entry.message, entry.actor)
        for entry in reversed(store.hosts.host_history(host.name, 10))
        if entry.kind in ('disabled', 'enabled')
    ]
    assert lines == [
        ('disabled', 'disk swap', 'ann'),
        ('disabled', 'fan swap', 'bob'),
        ('enabled', 'an operator enabled it', 'cy'),
    ]


def test_facts_are_lines_and_metrics_are_none(store, host):
    before = len(store.hosts.host_history(host.name, 1000))
    for value in (0.5, 0.7):
        host.send(host.says().having(metrics={'load': ReportedMetric(value=value)}))
    assert len(store.hosts.host_history(host.name, 1000)) == before
    more = {'VCPU': Inventory(total=16)}
    host.send(host.says().having(traits=['CUSTOM_FAST'], inventories=more))
    lines = [entry.message for entry in store.hosts.host_history(host.name, 1000)][
        : -before or None
    ]
    assert 'traits: +CUSTOM_FAST' in lines
    [sizes] = [line for line in lines if line.startswith('inventories: ')]
    assert '8 VCPU' in sizes
    assert '-> ' in sizes
    assert '16 VCPU' in sizes


def test_claims_are_told_as_they_are_kept(store, host):
    first = claimed(store, a_draft().taking(host))[0]
    second = claimed(store, a_draft().taking(host))[0]
    host.confirm(first)
    store.claims.force_release(second.id, 'not wanted')
    about = [
        (entry.kind, entry.claim_id, entry.message)
        for entry in store.hosts.host_history(host.name, 100)
        if entry.claim_id
    ]
    assert sorted(about) == sorted(
        [
            ('claimed', first.id, f'for {first.consumer}'),
            ('confirmed', first.id, f'for {first.consumer}'),
            ('claimed', second.id, f'for {second.consumer}'),
            ('released', second.id, f'for {second.consumer}: not wanted'),
        ]
    )
    assert len(store.hosts.host_history(host.name, 2)) == 2


def test_it_follows_the_name_and_outlives_the_host(store, host):
    store.hosts.disable_host(host.name, 'disk swap', 'ann')
    store.hosts.rename_host(host.name, 'other')
    assert store.hosts.host_history(host.name, 10) == []
    assert {'registered', 'disabled', 'renamed'} <= set(_kinds(store, 'other'))
    store.hosts.remove_host('other')
    assert {'disabled', 'removed'} <= set(_kinds(store, 'other'))
    assert store.hosts.host_history('nobody', 10) == []


def test_it_is_bounded(store, host):
    for number in range(STORED_PER_HOST // 2 + 20):
        store.hosts.disable_host(host.name, f'reason {number}', 'ann')
        store.hosts.enable_host(host.name)
    store.database.writes.write(lambda tx: host_events.delete_excess(tx, [host.name]))
    assert len(store.hosts.host_history(host.name, 1000)) == STORED_PER_HOST


def test_old_lines_go(store, host):
    store.hosts.disable_host(host.name, 'disk swap', 'ann')
    e = models.host_events
    with store.database.engine.begin() as connection:
        connection.execute(e.update().values(created_at=e.c.created_at - STORED_SECONDS - 60))
    store.hosts.enable_host(host.name)
    store.retention.purge(decisions=1, tombstone_seconds=1e6, request_seconds=1e6, limit=100)
    assert _kinds(store, host.name) == ['enabled']
