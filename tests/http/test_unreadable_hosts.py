# SPDX-License-Identifier: Apache-2.0
"""A stored host that this release cannot read is shown as such, closed, and read once told anew."""

import itertools
import json
import logging

import pytest
import sqlalchemy as sa

from gantt import plugin_loader
from gantt.core.claims.host_facts import UpdateHostFacts
from gantt.core.messages.report import NumaCell
from gantt.db.schema import models
from gantt.groups.insights import HOOKS
from gantt.insights.read_model import Insights
from gantt.nova.model.events import GuestsListed, NovaCast
from tests.builders import CLEAN, a_draft, a_host, claimed, list_providers
from tests.conftest import READERS
from tests.http.callers import as_caller
from tests.http.site import Site

_f, _p = models.provider_facts, models.providers
CELLS = [NumaCell(id=0, cpus=[0, 1], memory_mb=4096)]


def of_a_later_release(row):
    return {'facts': json.dumps({**json.loads(row.facts), 'numa': {'cells': 2}})}


def cut_off(row):
    return {'facts': row.facts[:-3]}


def no_facts(row):
    return {'facts': '[]'}


def with_another_key(row):
    return {'signing_key': '{"public": 7}'}


POISONS = [of_a_later_release, cut_off, no_facts, with_another_key]


def stored(store, host_id):
    with store.database.engine.connect() as connection:
        return connection.execute(sa.select(_f).where(_f.c.provider_id == host_id)).one()


def spoil(store, host_id, poison):
    """Write what a later release may have."""
    values, stamp = poison(stored(store, host_id)), _p.c.facts_stamp + 1
    with store.database.engine.begin() as connection:
        connection.execute(_f.update().where(_f.c.provider_id == host_id).values(values))
        connection.execute(_p.update().where(_p.c.id == host_id).values(facts_stamp=stamp))


def test_processes_start_show_them_and_place_on_all_others(make_store, caplog):
    site = Site(store=make_store('sqlite'))
    world = site.world
    ids = {
        change.row.name: change.provider_id for change in world.store.feed.load_everything().hosts
    }
    bad = {f'cmp-{number}': poison for number, poison in enumerate(POISONS, 1)}
    caplog.set_level(logging.WARNING)
    for name, poison in bad.items():
        spoil(world.store, ids[name], poison)
    world.schedulers.clear()
    world.scheduler = world.another_scheduler()
    settings, clock = world.scheduler.settings, world.clock
    site.insights = Insights(world.store, plugin_loader.load_pipeline(), HOOKS, settings, clock)
    with as_caller(site, 'admin') as admin:
        hosts = {host['name']: host for host in admin.get('/v1/hosts').json()['hosts']}
        shown = {name: admin.get(f'/v1/hosts/{name}').json() for name in bad}
        status = admin.get('/v1/status').json()
    assert hosts.keys() == site.hosts.keys()
    reasons = {name: host['reason'] for name, host in hosts.items() if host['reason']}
    assert reasons.keys() == bad.keys()
    assert status['unreadable'] == reasons
    for name, reason in reasons.items():
        assert 'cannot be read by this release' in reason
        assert shown[name]['service_disabled'] == reason
        assert [use['cap'] for use in shown[name]['use']] == [16, 32_256, 500]
        messages = [
            record.getMessage()
            for record in caplog.records
            if f'host={name} ' in record.getMessage()
        ]
        assert len(messages) == 1
        assert f'problem={reason.partition(": ")[2]}' in messages[0]
    used = {places[0].host for places in site.place(1, 2, VCPU=1).selections}
    assert used
    assert used <= {'cmp-5', 'cmp-6'}


@pytest.mark.parametrize('kind', READERS[:2])
def test_they_stay_as_they_are_stored_until_a_full_report_says_all_of_it(make_store, kind):
    store = make_store(kind)
    for number, poison in enumerate(POISONS[:3]):
        host = a_host(f'cmp-{number}').having(numa=CELLS, location='hall.r1').on(store)
        before = claimed(store, a_draft().taking(host))[0]
        spoil(store, host.id, poison)
        facts = stored(store, host.id).facts
        # What others write leaves it as it is: operators, aggregates, claims that end.
        store.hosts.disable_host(host.name, 'maintenance', 'eve')
        store.declarations.save_aggregate(f'a-{number}', {}, [host.name])
        store.hosts.enable_host(host.name)
        assert host.release(before)[0].outcome == 'ok'
        now = stored(store, host.id)
        assert now.facts[:-40] == facts[:-40]
        assert (now.disabled, now.service_disabled) == (None, None)
        assert len(host.row.aggregates) == 1
        assert not host.row.is_open
        # So does a report that says only what has changed.
        changed = host.says().since(host.row.full_sequence).outside(vcpu=1)
        assert host.send(changed)[0].outcome == 'needs_full'
        assert host.report().outcome == 'applied'
        row = host.row
        assert (row.is_open, row.service_disabled, row.facts.numa) == (True, None, CELLS)
        assert (row.facts.location, len(row.aggregates)) == ('hall.r1', 1)
        claimed(store, a_draft().taking(host))
    assert store.claims.audit() == CLEAN


def test_the_audit_says_where_a_layout_is_inside_of_what_cannot_be_read(make_store):
    store = make_store('sqlite')
    host = a_host().having(numa=CELLS).on(store)
    layout = {'cells': [{'cell': 0, 'memory_mb': 1}]}
    claimed(store, a_draft().taking(host, layout=layout))
    spoil(store, host.id, no_facts)
    assert [line for of in store.claims.audit().values() for line in of] == [
        'cmp-1: its record cannot be read: Expected `object`, got `array`'
    ]


def test_nobody_reports_by_a_key_that_cannot_be_read_until_it_is_forgotten(make_store):
    store = make_store('sqlite')
    host = a_host().on(store)
    spoil(store, host.id, with_another_key)
    key = stored(store, host.id).signing_key
    assert store.hosts.load_host_key(host.name).is_revoked
    store.hosts.disable_host(host.name, 'maintenance', 'eve')
    assert stored(store, host.id).signing_key == key
    assert store.hosts.forget_host_key(host.name).row.key is None
    assert stored(store, host.id).signing_key is None
    host.register()
    host.report()
    store.hosts.enable_host(host.name)
    assert host.row.is_open


def test_what_an_agent_beside_tells_waits_for_the_report(make_store):
    store = make_store('sqlite')
    host = a_host().on(store, reporter='nova')
    facts = UpdateHostFacts(host=host.name, sequence=1, guests=[], numa=CELLS)
    spoil(store, host.id, cut_off)
    assert store.reports.update_host_facts(facts).outcome == 'unknown_host'
    host.report()
    assert store.reports.update_host_facts(facts).outcome == 'applied'
    assert host.row.facts.numa == CELLS


def test_broadcasts_of_before_that_cannot_be_read_are_forgotten(make_store):
    store = make_store('sqlite')
    hosts = [a_host(f'cmp-{n}').on(store, reporter='nova') for n in (1, 2)]
    claims = [claimed(store, a_draft().taking(host))[0] for host in hosts]

    def listed():
        words = [GuestsListed(host=claim.host, consumers=[claim.consumer]) for claim in claims]
        requested_at = 2_000_000_000.0 + 120 * next(turns)
        return store.nova.apply_guest_events(
            [NovaCast(requested_at=requested_at, event=word) for word in words]
        )

    turns = itertools.count()
    listed()
    with store.database.engine.begin() as connection:
        heard = models.nova_events_seen
        connection.execute(heard.update().values(casts='{"later": 1}', unclaimed='[['))
    assert sorted(listed().confirmed) == sorted(claim.id for claim in claims)


def test_a_provider_of_a_kind_that_is_not_known_is_listed_beside_the_others(make_store):
    store = make_store('sqlite')
    providers = [store.providers.create_provider(name) for name in ('strange', 'pool')]
    with store.database.engine.begin() as connection:
        strange = _p.c.uuid == providers[0].uuid
        connection.execute(_p.update().where(strange).values(kind='later'))
    assert {provider.name: provider.kind for provider in list_providers(store)} == {
        'strange': 'pool',
        'pool': 'pool',
    }
    assert [entry.row.kind for entry in store.feed.load_everything().standalone] == ['pool', 'pool']
