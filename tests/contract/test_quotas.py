# SPDX-License-Identifier: Apache-2.0
"""Quotas: limits that are kept, and what a project has."""

import pytest

from gantt import exceptions
from gantt.core.claims import quota
from gantt.core.claims.allocations import WantedAllocations
from gantt.core.claims.quota import Limit, Usage
from gantt.core.messages.resource_classes import Inventory
from tests.builders import a_draft, a_group, a_host, claimed, report_outcome, uuid_of
from tests.conftest import READERS
from tests.contract.test_text_keys import ALIKE
from tests.plans import a_create, by, planned

#: What is read has its twin in memory in SQLite.
KINDS = READERS

ALL = ['VCPU', 'MEMORY_MB', 'CUSTOM_LICENSE']


def a_limit(project: str, name: str, limit: int) -> Limit:
    return Limit(project_id=project, name=name, limit=limit)


# -- limits -------------------------------------------------------------------------------
def test_limits_are_kept_by_project_and_name(store):
    assert store.quotas.limits() == []
    store.quotas.set_quotas('red', {'live_claims': 10, 'class:VCPU': 0})
    store.quotas.set_quotas('default', {'live_claims': -1})
    store.quotas.set_quotas('red', {'live_claims': 12, 'server_groups': 3})
    assert store.quotas.limits() == [
        a_limit('default', 'live_claims', -1),
        a_limit('red', 'class:VCPU', 0),
        a_limit('red', 'live_claims', 12),
        a_limit('red', 'server_groups', 3),
    ]
    store.quotas.set_quotas('red', {'class:VCPU': None, 'live_claims': 7, 'claims_in_flight': None})
    assert store.quotas.limits() == [
        a_limit('default', 'live_claims', -1),
        a_limit('red', 'live_claims', 7),
        a_limit('red', 'server_groups', 3),
    ]


@pytest.mark.parametrize(
    ('limits', 'field'),
    [
        ({'live_claim': 1}, 'limits'),
        ({'class:vcpu': 1}, 'limits'),
        ({'VCPU': 1}, 'limits'),
        ({'live_claims': -2}, 'limits.live_claims'),
        ({'server_groups': 10**15 + 1}, 'limits.server_groups'),
    ],
)
def test_what_is_no_limit_is_refused_whole(store, limits, field):
    with pytest.raises(exceptions.InvalidMessage) as e:
        store.quotas.set_quotas('red', {'claims_in_flight': 5, **limits})
    assert e.value.kwargs['field'] == field
    assert store.quotas.limits() == []


def test_there_is_a_bound_on_all_limits(store, monkeypatch):
    monkeypatch.setattr(quota, 'LIMITS_MAX', 2)
    store.quotas.set_quotas('red', {'live_claims': 1, 'server_groups': 1})
    with pytest.raises(exceptions.Refused, match='as many as may be'):
        store.quotas.set_quotas('blue', {'live_claims': 1})
    assert len(store.quotas.limits()) == 2
    store.quotas.set_quotas('red', {'live_claims': 5, 'server_groups': 7})
    assert [limit.limit for limit in store.quotas.limits()] == [5, 7], (
        'what is there may be changed'
    )
    store.quotas.set_quotas('red', {'server_groups': None})
    store.quotas.set_quotas('blue', {'live_claims': 1})
    assert len(store.quotas.limits()) == 2


# -- what a project has --------------------------------------------------------------------
def test_the_usage_is_that_of_live_claims_of_the_project(store):
    store.vocabulary.declare_class('CUSTOM_LICENSE')
    host = a_host().with_room(vcpu=8, ram=16_384, CUSTOM_LICENSE=9).on(store)
    mine = claimed(
        store,
        a_draft(project_id='red')
        .taking(host, vcpu=2, ram=512, CUSTOM_LICENSE=3)
        .taking(host, vcpu=1, CUSTOM_LICENSE=1),
    )
    claimed(store, a_draft(project_id='blue').taking(host, vcpu=3))
    claimed(store, a_draft().taking(host, vcpu=1))
    assert store.quotas.quota_usage(['red', 'nobody'], ALL) == {
        'red': Usage(
            claims_in_flight=2,
            live_claims=2,
            amounts={'VCPU': 3, 'MEMORY_MB': 512, 'CUSTOM_LICENSE': 4},
        ),
        'nobody': Usage(),
    }
    assert store.quotas.quota_usage(['red'], ['VCPU'])['red'].amounts == {'VCPU': 3}
    assert store.quotas.quota_usage(['red'])['red'].amounts == {}
    host.confirm(mine[0])
    store.claims.force_release(mine[1].id, 'enough')
    assert store.quotas.quota_usage(['red'], ALL)['red'] == Usage(
        live_claims=1, amounts={'VCPU': 2, 'MEMORY_MB': 512, 'CUSTOM_LICENSE': 3}
    )


def test_a_consumer_that_moves_counts_once_with_the_larger_amount_of_each_class(store):
    store.vocabulary.declare_class('CUSTOM_LICENSE')
    source_host = a_host('cmp-1').with_room(vcpu=8, ram=16_384, CUSTOM_LICENSE=9).on(store)
    target_host = a_host('cmp-2').with_room(vcpu=8, ram=16_384, CUSTOM_LICENSE=9).on(store)
    guest = uuid_of('guest')
    first = a_draft(project_id='red').taking(source_host, guest, vcpu=2, ram=2048, CUSTOM_LICENSE=1)
    source_host.confirm(*claimed(store, first))
    move = a_draft(project_id='red').taking(
        target_host, guest, purpose='resize', vcpu=4, ram=1024, CUSTOM_LICENSE=2
    )
    claimed(store, move)
    usage = store.quotas.quota_usage(['red'], ALL)['red']
    assert usage == Usage(
        claims_in_flight=1,
        live_claims=1,
        amounts={'VCPU': 4, 'MEMORY_MB': 2048, 'CUSTOM_LICENSE': 2},
    )
    claims = store.claims.list_claims(project='red')
    assert quota.usage_of(claims) == usage, 'every store counts by the one rule'


def test_server_groups_are_counted_by_project(store):
    for project in ('red', 'red', 'blue', None):
        store.groups.save_group(a_group(project_id=project))
    assert [store.groups.count_groups(project) for project in ('red', 'blue', 'nobody')] == [
        2,
        1,
        0,
    ]


# -- what writers of allocations made ------------------------------------------------------------
def test_all_that_a_written_consumer_has_counts_and_nothing_of_it_is_in_flight(store):
    """It has a claim on each host tree, none of which is a move, and none waits for a host."""
    store.vocabulary.declare_class('CUSTOM_LICENSE')
    room = {'vcpu': 8, 'ram': 16_384, 'CUSTOM_LICENSE': 9}
    hosts = [a_host(f'cmp-{n}').with_room(**room).on(store) for n in range(3)]
    pool = store.providers.create_provider(
        'pool', inventories={'CUSTOM_LICENSE': Inventory(total=9)}
    )
    guest = uuid_of('guest')
    shares = {host.row.uuid: {'VCPU': 2, 'CUSTOM_LICENSE': 1} for host in hosts}
    shares[pool.uuid] = {'CUSTOM_LICENSE': 5}
    store.allocations.write_allocations([_wish(guest, shares)])
    usage = Usage(live_claims=1, amounts={'VCPU': 6, 'CUSTOM_LICENSE': 8})
    assert store.quotas.quota_usage(['red'], ALL)['red'] == usage
    assert quota.usage_of(store.claims.list_claims(project='red')) == usage
    (shown,) = store.quotas.usages(10)
    assert (shown.claims, shown.claims_in_flight, shown.consumers) == (3, 0, 1)
    assert shown.amounts == usage.amounts
    # Beside it a scheduler's claims of the same consumer, which move.
    other = a_draft(project_id='red').taking(hosts[0], guest, vcpu=1, CUSTOM_LICENSE=1)
    hosts[0].confirm(*claimed(store, other))
    move = a_draft(project_id='red').taking(
        hosts[1], guest, purpose='resize', vcpu=3, CUSTOM_LICENSE=1
    )
    claimed(store, move)
    usage = Usage(claims_in_flight=1, live_claims=1, amounts={'VCPU': 9, 'CUSTOM_LICENSE': 9})
    assert store.quotas.quota_usage(['red'], ALL)['red'] == usage
    assert quota.usage_of(store.claims.list_claims(project='red')) == usage
    store.allocations.delete_allocations(guest)
    assert store.quotas.quota_usage(['red'], ALL)['red'] == Usage()


@pytest.mark.parametrize('by_scheduler', [True, False])
def test_what_was_handed_over_is_its_guests_and_a_move_counts_once(store, by_scheduler):
    """As Nova moves a server: its source goes to the migration, then the destination is claimed."""
    store.vocabulary.declare_class('CUSTOM_LICENSE')
    room = {'vcpu': 8, 'ram': 16_384, 'CUSTOM_LICENSE': 9}
    source_host, target_host = (a_host(f'cmp-{n}').with_room(**room).on(store) for n in range(2))
    guest, migration = uuid_of('guest'), uuid_of('migration')
    amounts = {'VCPU': 2, 'CUSTOM_LICENSE': 1}
    if by_scheduler:
        first = a_draft(project_id='red').taking(source_host, guest, vcpu=2, CUSTOM_LICENSE=1)
        source_host.confirm(*claimed(store, first))
    else:
        store.allocations.write_allocations([_wish(guest, {source_host.row.uuid: amounts})])
    store.allocations.write_allocations(
        [_wish(guest, {}), _wish(migration, {source_host.row.uuid: amounts})]
    )
    usage = Usage(live_claims=1, amounts=amounts)
    assert store.quotas.quota_usage(['red'], ALL)['red'] == usage
    # What the destination is asked for beyond it is what the server will have more.
    more = quota.requested_usage(
        {'VCPU': 3, 'CUSTOM_LICENSE': 1},
        [guest],
        store.claims.live_claims_of([guest, uuid_of('other')]),
    )
    assert (more.live_claims, more.amounts) == (0, {'VCPU': 1, 'CUSTOM_LICENSE': 0})
    if by_scheduler:
        target = a_draft(project_id='red').taking(
            target_host, guest, purpose='resize', vcpu=3, CUSTOM_LICENSE=1
        )
        target_host.confirm(*claimed(store, target))
    else:
        store.allocations.write_allocations(
            [_wish(guest, {target_host.row.uuid: {**amounts, 'VCPU': 3}})]
        )
    usage = Usage(live_claims=1, amounts={'VCPU': 3, 'CUSTOM_LICENSE': 1})
    assert store.quotas.quota_usage(['red'], ALL)['red'] == usage
    assert quota.usage_of(store.claims.list_claims(project='red')) == usage
    store.allocations.delete_allocations(migration)
    assert store.quotas.quota_usage(['red'], ALL)['red'] == usage


def _wish(consumer, shares):
    return WantedAllocations(
        consumer=consumer, allocations=shares, project_id='red', user_id='user'
    )


def test_places_of_plans_are_claims_in_flight_when_a_create_has_them(store, host):
    place_of = planned(store, {'web-1': host, 'web-2': host}, project='red', vcpu=1)
    usage = store.quotas.quota_usage(['red'], ['VCPU'])['red']
    assert (usage.claims_in_flight, usage.live_claims, usage.amounts) == (0, 2, {'VCPU': 2})
    assert store.quotas.planned_usage('red').reservations == 2
    place = by(place_of['web-1'], project_id='red')
    assert report_outcome(store, a_create(place)).taken == [0]
    assert store.quotas.quota_usage(['red'], [])['red'].claims_in_flight == 1
    (shown,) = store.quotas.usages(10, project='red')
    assert (shown.claims, shown.claims_in_flight, shown.consumers) == (2, 1, 2)


def test_projects_alike_have_quotas_and_usage_of_their_own(store):
    host = a_host().with_room(vcpu=100).on(store)
    for number, project in enumerate(ALIKE):
        store.quotas.set_quotas(project, {'live_claims': number + 10})
        claimed(store, a_draft(project_id=project).taking(host, vcpu=number + 1))
    assert {limit.project_id: limit.limit for limit in store.quotas.limits()} == {
        project: number + 10 for number, project in enumerate(ALIKE)
    }
    used = store.quotas.quota_usage(ALIKE, ['VCPU'])
    assert [used[project].amounts['VCPU'] for project in ALIKE] == [*range(1, len(ALIKE) + 1)]
