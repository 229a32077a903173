# SPDX-License-Identifier: Apache-2.0
"""Requests that are placed on pools over HTTP: asked, explained, counted, tried, made again."""

from typing import Any

import httpx2 as httpx
import pytest

from gantt.core.messages.resource_classes import Inventory
from tests.http.callers import as_caller, ask
from tests.http.site import Site, fixed

VOLUME = {'kind': 'pool', 'resources': {'DISK_GB': 60}, 'consumer_type': 'VOLUME'}


@pytest.fixture
def site() -> Site:
    new_site = Site()
    new_site.world.store.providers.create_provider(
        'ceph-1', inventories={'DISK_GB': Inventory(total=100)}
    )
    new_site.world.store.providers.create_provider(
        'ceph-2', inventories={'DISK_GB': Inventory(total=1000)}
    )
    new_site.world.store.providers.create_provider(
        'net-1', inventories={'IPV4_ADDRESS': Inventory(total=4)}
    )
    new_site.world.turn()
    new_site.insights.reload_soon()
    return new_site


@pytest.fixture
def caller(site: Site) -> Any:
    with as_caller(site, 'admin', project=None) as client:
        yield client


def states(response: httpx.Response) -> list[str]:
    body = response.json()
    return [claim['state'] for claim in body.get('now', body)['claims']]


def test_the_life_of_a_volume(site: Site, caller: httpx.Client) -> None:
    created = ask(caller, 1, VOLUME, 2)
    assert created.status_code == 201, created.text
    selections = created.json()['answer']['selections']
    assert [choices[0]['host'] for choices in selections] == ['ceph-2', 'ceph-2']
    path = f'/v1/requests/{fixed(1)}'
    assert caller.put(f'{path}/lease', json={'seconds': 600}).status_code == 200
    response = caller.put(f'{path}/confirmation', json={})
    assert (response.status_code, states(response)) == (200, ['confirmed', 'confirmed'])
    trial = caller.post(f'{path}/release', params={'dry_run': 'true'}, json={})
    assert (trial.json()['dry_run'], states(trial)) == (True, ['confirmed', 'confirmed'])
    release = {'consumers': [fixed(1000)], 'reason': 'deleted'}
    response = caller.post(f'{path}/release', json=release)
    assert sorted(states(response)) == ['confirmed', 'released']
    other = caller.post(f'{path}/release', json={'consumers': [fixed(7)]})
    assert other.status_code == 404
    assert ask(caller, 1, VOLUME, 2).json()['answer'] == created.json()['answer']


def test_what_is_on_a_host_is_its_hosts(site: Site, caller: httpx.Client) -> None:
    site.place(3)
    for response in (
        caller.put(f'/v1/requests/{fixed(3)}/confirmation', json={}),
        caller.post(f'/v1/requests/{fixed(3)}/release', json={}),
    ):
        assert (response.status_code, 'lifecycle host' in response.text) == (400, True)


def test_a_member_asks_for_its_project(site: Site) -> None:
    with as_caller(site, 'member') as member, as_caller(site, 'member', project='blue') as other:
        response = ask(member, 1, VOLUME, dry_run=True)
        assert response.status_code in (200, 201), response.text
        path = f'/v1/requests/{fixed(1)}/confirmation'
        assert other.put(path, json={}).status_code == 404


def test_a_decision_is_explained_and_made_again(site: Site, caller: httpx.Client) -> None:
    ask(caller, 1, VOLUME)
    assert ask(caller, 2, {**VOLUME, 'resources': {'DISK_GB': 5000}}).status_code == 409
    site.world.turn()
    site.world.scheduler.cache.log.flush(site.world.store.table_logs)
    site.insights.reload_soon()
    placed, refused = site.insights.explain(fixed(1)), site.insights.explain(fixed(2))
    assert placed.reason == 'placed on ceph-2; 2/3 pools fit'
    assert refused.reason.startswith('0/3 pools fit: 3 too little free')
    assert [step.filter for step in placed.members[0].funnel] == [
        'ForcedHostsFilter',
        'IgnoredHostsFilter',
        'AvailabilityZoneFilter',
        'AggregatesFilter',
        'TraitsFilter',
        'ResourcesFilter',
    ]
    assert {score.host for score in placed.members[0].scores} == {'ceph-1', 'ceph-2'}
    explanation = site.insights.explain(fixed(2), host='ceph-1')
    assert [step.filter for step in explanation.host_filters if step.passes is False] == [
        'ResourcesFilter'
    ]
    for number in (1, 2):
        again = site.insights.replay(fixed(number))
        assert again.same, again.differences


def test_pools_are_called_pools(site: Site, caller: httpx.Client) -> None:
    """Pools never report: no age of a report is said of them."""
    assert ask(caller, 1, VOLUME).json()['answer']['age_seconds'] < 60
    ask(caller, 2, {**VOLUME, 'resources': {'DISK_GB': 5000}})
    site.world.turn()
    site.world.scheduler.cache.log.flush(site.world.store.table_logs)
    site.insights.reload_soon()
    for number in (1, 2):
        explained = site.insights.explain(fixed(number), host='ceph-1')
        text = '\n'.join(explained.lines)
        assert 'host' not in text.replace('no valid host', ''), text
        assert '3 pools' in text
        assert 'oldest report' not in text
        assert explained.oldest_report_age_seconds < 60
        assert '  pools that fit' in '\n'.join(site.insights.replay(fixed(number)).lines)
    with as_caller(site, 'member') as member:
        assert ask(member, 3, VOLUME, dry_run=True).status_code == 200
        refused = ask(member, 4, {**VOLUME, 'resources': {'DISK_GB': 5000}}, dry_run=True)
        assert refused.status_code == 409


def test_claims_on_pools_are_counted_and_say_where(site: Site, caller: httpx.Client) -> None:
    site.place(3, 2)
    ask(caller, 1, VOLUME, 3)
    assert site.insights.status().claims == 5
    on_pools = [claim for claim in site.insights.claims() if claim.resources == {'DISK_GB': 60}]
    assert [claim.host for claim in on_pools] == 3 * ['ceph-2']
    assert site.insights.claim(on_pools[0].id).host == 'ceph-2'
    assert {claim.host for claim in site.insights.request(fixed(1))[2]} == {'ceph-2'}
    caller.post(f'/v1/requests/{fixed(1)}/release', json={'consumers': [fixed(1000)]})
    assert site.insights.status().claims == 4
    trial = caller.delete(
        f'/v1/claims/{on_pools[1].id}', params={'reason': 'gone', 'dry_run': 'true'}
    )
    assert ' on ceph-2 would be released' in trial.json()['message']
    with as_caller(site, 'member', project=None) as member:
        response = member.get(f'/v1/claims/{on_pools[0].id}')
        assert 'ceph-2' not in response.text


def test_a_trial_claims_nothing(site: Site, caller: httpx.Client) -> None:
    response = ask(caller, 1, VOLUME, dry_run=True)
    assert response.json()['answer']['selections'][0][0]['host'] == 'ceph-2'
    assert site.world.store.claims.list_claims() == []
    assert (
        ask(caller, 2, {**VOLUME, 'resources': {'DISK_GB': 9999}}, dry_run=True).status_code == 409
    )


def test_how_many_more_fit(site: Site, caller: httpx.Client) -> None:
    capacity = caller.post('/v1/capacity', json={'spec': VOLUME}).json()
    assert (capacity['count'], capacity['hosts'], capacity['eligible']) == (17, 3, 2)
    assert [(entry['name'], entry['count']) for entry in capacity['by_host']] == [
        ('ceph-2', 16),
        ('ceph-1', 1),
    ]
    addresses = {'kind': 'pool', 'resources': {'IPV4_ADDRESS': 1}}
    assert caller.post('/v1/capacity', json={'spec': addresses}).json()['count'] == 4


def test_what_if_there_were_another_pool(site: Site, caller: httpx.Client) -> None:
    spec = {**VOLUME, 'resources': {'DISK_GB': 5000}}
    body = {
        'request': {'request_id': fixed(1), 'consumers': [fixed(2)], 'spec': spec},
        'hosts': {'add': {'ceph-9': {'resources': {'DISK_GB': 9000}}}},
    }
    comparison = caller.post('/v1/what-if', json=body).json()
    assert (comparison['now']['outcome'], comparison['then']['outcome']) == (
        'no_valid_host',
        'placed',
    )
    assert comparison['then']['reason'].startswith('placed on ceph-9')
