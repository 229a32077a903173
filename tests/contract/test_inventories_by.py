# SPDX-License-Identifier: Apache-2.0
"""Who says what a host has: its reports, or requests to the Placement interface."""

import msgspec
import pytest

from gantt import exceptions
from gantt.core.messages.report import ReportedMetric
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.host import INVENTORIES_BY_API
from tests.builders import CLEAN, a_draft, a_host, claimed, new_uuid, uuid_of

OTHERS = {'VCPU': Inventory(total=2), 'CUSTOM_X': Inventory(total=3, reserved=1)}
HAS = {'node': 'n-1', 'traits': ['HW_CPU_X86_AVX2'], 'inventories': OTHERS}


def has(host):
    """What is known of it that only one may say."""
    row = host.row
    return row.facts.inventories, row.facts.traits, row.aggregates


def test_reports_say_it_unless_somebody_changed_that(store, host):
    assert host.row.inventories_by is None
    assert host.row.reports_inventories
    host.send(host.says().having(**HAS))
    assert has(host) == (OTHERS, ['HW_CPU_X86_AVX2'], [])


def test_a_report_leaves_alone_what_the_api_says_and_brings_all_else(store, host):
    before = has(host)
    assert (
        store.hosts.set_inventories_by(host.name, INVENTORIES_BY_API).row.inventories_by
        == INVENTORIES_BY_API
    )
    load = {'load': ReportedMetric(value=0.5)}
    facts = {**HAS, 'aggregates': ['rack-1'], 'location': 'here', 'metrics': load}
    claim = claimed(store, a_draft().taking(host))[0]
    report = host.says().having(**facts, foreign={'VCPU': 3}, disabled='disk swap')
    assert host.send(report.listing([claim]))[0].confirmed == [claim.id]
    assert has(host) == before
    row = host.row
    assert (row.inventories_by, row.node, row.service_disabled) == (
        INVENTORIES_BY_API,
        'n-1',
        'disk swap',
    )
    assert (row.facts.location, row.facts.metrics['load'].value) == ('here', 0.5)
    assert (row.foreign, row.used['VCPU']) == ({'VCPU': 3}, 1)
    assert store.providers.load_provider(row.uuid).inventories == before[0]
    assert store.claims.audit() == CLEAN


def test_more_use_than_the_api_says_there_is_closes_the_host(store, host):
    store.hosts.set_inventories_by(host.name, INVENTORIES_BY_API)
    host.send(host.says().having(foreign={'VCPU': 17, 'CUSTOM_X': 1}))
    row = host.row
    assert row.over_committed
    assert row.foreign == {'VCPU': 17, 'CUSTOM_X': 1}
    host.send(host.says().having(foreign={}))
    assert not host.row.over_committed
    assert store.claims.audit() == CLEAN


def test_reports_that_say_it_again_begin_with_a_full_one(store, host):
    store.hosts.set_inventories_by(host.name, INVENTORIES_BY_API)
    base = host.row.full_sequence
    assert store.hosts.set_inventories_by(host.name, INVENTORIES_BY_API).row.full_sequence == base
    before = has(host)
    store.hosts.set_inventories_by(host.name, None)
    assert host.row.inventories_by is None
    assert has(host) == before
    delta = host.says().having(full=False, base=base, **HAS)
    assert host.send(delta)[0].outcome == 'needs_full'
    assert has(host) == before
    assert host.send(host.says().having(**HAS))[0].outcome == 'applied'
    assert has(host)[0] == OTHERS


def test_who_says_it_outlives_a_new_agent(store, host):
    store.hosts.set_inventories_by(host.name, INVENTORIES_BY_API)
    before = has(host)
    host.register()
    host.send(host.says().having(**HAS))
    assert (host.row.inventories_by, has(host)) == (INVENTORIES_BY_API, before)


def test_it_is_said_by_nobody_else(store, host):
    with pytest.raises(exceptions.InvalidMessage, match="inventories_by: expected 'api' or none"):
        store.hosts.set_inventories_by(host.name, 'nova')
    with pytest.raises(exceptions.NotFound):
        store.hosts.set_inventories_by('cmp-9', INVENTORIES_BY_API)
    assert host.row.inventories_by is None


def test_traits_are_a_set_whoever_says_them(store, host):
    host.send(host.says().having(traits=['B', 'A', 'B']))
    assert host.row.facts.traits == ['A', 'B']
    outcome = host.send(host.says().having(traits=['A', 'B', 'A']))[0]
    assert not outcome.changed


def test_a_class_of_nothing_is_there_and_a_use_of_no_class_is_not(store, host):
    none = {'VCPU': Inventory(total=4), 'CUSTOM_X': Inventory(total=0)}
    none |= {'CUSTOM_Z': Inventory(total=0, max_unit=3, allocation_ratio=2.0)}
    fields = {'inventories': none, 'foreign': {'CUSTOM_Y': 1}}
    host.send(host.says().having(**fields))
    assert has(host)[0] == none
    generation = host.row.generation
    assert not host.send(host.says().having(**fields))[0].changed
    assert (has(host)[0], host.row.generation) == (none, generation)


# -- a provider becomes a host ----------------------------------------------------------
def test_of_a_provider_that_becomes_a_host_the_api_says_it(store):
    provider = store.providers.create_provider('node-1', uuid=uuid_of('node'), inventories=OTHERS)
    host = a_host('cmp-1').on(store, uuid=provider.uuid, node='node-1')
    assert host.row.inventories_by == INVENTORIES_BY_API
    assert has(host) == (OTHERS, [], [])
    assert store.providers.load_provider(provider.uuid).inventories == OTHERS
    claimed(store, a_draft().taking(host, vcpu=2))
    host.register(uuid=provider.uuid)
    assert host.row.inventories_by == INVENTORIES_BY_API
    store.hosts.set_inventories_by(host.name, None)
    host.report()
    assert has(host)[0] == msgspec.structs.asdict(host.says().build())['inventories']
    assert store.claims.audit() == CLEAN


def test_what_is_said_follows_the_host_to_every_reader(store):
    """Whoever reads a host reads the same: all at once, by the feed, and by a lock."""
    host = a_host('cmp-1').having(**HAS).on(store)
    other = a_host('cmp-2').having(**HAS, aggregates=['rack-1']).on(store)
    position = store.feed.load_everything().position
    store.hosts.set_inventories_by(host.name, INVENTORIES_BY_API)
    rows = {change.row.name: change.row for change in store.feed.poll(position, {}).hosts}
    assert rows[host.name] == host.row
    assert rows[host.name].inventories_by == INVENTORIES_BY_API
    rows = {change.row.name: change.row for change in store.feed.compare({}).hosts}
    assert rows == {host.name: host.row, other.name: other.row}
    draft = a_draft(new_uuid()).taking(host, vcpu=2)
    claimed(store, draft)
    assert host.row.facts == rows[host.name].facts
