# SPDX-License-Identifier: Apache-2.0
"""Requests that take of trees over HTTP: asked, refused by field, explained, counted, tried."""

from typing import Any

import httpx2 as httpx
import pytest

from gantt.core.filters import tree_room
from tests.http.callers import as_caller, ask
from tests.http.site import Site, fixed
from tests.nested import below

AMOUNTS = {'resources': {'VCPU': 1, 'MEMORY_MB': 64}}


def devices(count: int, amount: int, of: str = 'VGPU') -> dict[str, Any]:
    device = {'resource_class': of, 'count': count, 'amount': amount}
    return {**AMOUNTS, 'tree': {'devices': [device]}}


@pytest.fixture
def site() -> Site:
    new_site = Site()
    table = new_site.world.scheduler.cache.working
    for n in (0, 1):
        below(new_site.world.store, f'gpu{n}', table.hosts[0].uuid, VGPU=1000)
    new_site.world.turn()
    new_site.insights.reload_soon()
    return new_site


@pytest.fixture
def caller(site: Site) -> Any:
    with as_caller(site, 'admin', project=None) as client:
        yield client


def test_devices_are_asked_for_explained_and_made_again(site: Site, caller: httpx.Client) -> None:
    response = ask(caller, 1, devices(2, 600))
    assert response.status_code == 201, response.text
    ((chosen, *_),) = response.json()['answer']['selections']
    assert [allocation['group'] for allocation in chosen['allocations']] == [
        '',
        'device1-1',
        'device1-2',
    ]
    refused = ask(caller, 2, devices(1, 500))
    assert refused.status_code == 409
    assert 'no one provider with 500 VGPU left (best has 400 VGPU)' in refused.text
    site.world.turn()
    site.world.scheduler.cache.log.flush(site.world.store.table_logs)
    site.insights.reload_soon()
    name = site.world.scheduler.cache.working.names[0]
    explanation = site.insights.explain(fixed(2), host=name)
    assert [step.filter for step in explanation.host_filters if step.passes is False] == [
        'ResourcesFilter'
    ]
    assert 'no one provider with 500 VGPU left (has 400 VGPU)' in str(explanation)
    for number in (1, 2):
        again = site.insights.replay(fixed(number))
        assert again.same, again.differences


def test_a_host_whose_groups_do_not_go_together_is_told_so(
    site: Site, caller: httpx.Client
) -> None:
    groups = {suffix: {'resources': {'VGPU': 600}} for suffix in 'abc'}
    tree = {'groups': groups, 'group_policy': 'none'}
    assert ask(caller, 1, {**AMOUNTS, 'tree': tree}).status_code == 409
    site.world.turn()
    site.world.scheduler.cache.log.flush(site.world.store.table_logs)
    site.insights.reload_soon()
    explanation = site.insights.explain(fixed(1), host=site.world.scheduler.cache.working.names[0])
    removed = {step.filter: step.why for step in explanation.host_filters if step.passes is False}
    assert removed == {'ResourcesFilter': tree_room.NOT_TOGETHER_REASON}
    assert 'too little is free' not in str(explanation)


def test_a_dry_run_and_a_count_claim_nothing(site: Site, caller: httpx.Client) -> None:
    response = ask(caller, 1, devices(2, 600), dry_run=True)
    assert response.status_code == 200, response.text
    assert site.world.store.claims.list_claims() == []
    counted = caller.post('/v1/capacity', json={'spec': devices(1, 300)}).json()
    assert (counted['count'], counted['eligible']) == (6, 1)


def test_what_if_the_host_were_not_there(site: Site, caller: httpx.Client) -> None:
    name = site.world.scheduler.cache.working.names[0]
    body = {
        'request': {
            'request_id': fixed(9),
            'consumers': [fixed(10), fixed(11)],
            'spec': devices(1, 600),
        },
        'hosts': {'remove': [name]},
    }
    comparison = caller.post('/v1/what-if', json=body).json()
    assert (comparison['now']['outcome'], comparison['then']['outcome']) == (
        'placed',
        'no_valid_host',
    )
    assert 'no one provider with 600 VGPU left' in comparison['then']['reason']


def test_a_class_that_only_devices_name_is_looked_up_at_every_door(
    site: Site, caller: httpx.Client
) -> None:
    store, host = site.world.store, site.world.scheduler.cache.working.hosts[0].uuid

    def spec(name: str) -> dict[str, Any]:
        # Each door has a class of its own: another one has not made it known.
        store.vocabulary.declare_class(name)
        below(store, name, host, **{name: 7})
        site.world.turn()
        site.insights.reload_soon()
        return devices(1, 3, name)

    assert ask(caller, 1, spec('CUSTOM_DRY'), dry_run=True).status_code == 200
    counted = caller.post('/v1/capacity', json={'spec': spec('CUSTOM_COUNTED')})
    assert (counted.status_code, counted.json().get('count')) == (200, 2), counted.text
    request = {'request_id': fixed(9), 'consumers': [fixed(10)], 'spec': spec('CUSTOM_IF')}
    response = caller.post('/v1/what-if', json={'request': request, 'hosts': {}})
    assert response.status_code == 200, response.text
    assert response.json()['now']['outcome'] == 'placed'
    assert ask(caller, 2, spec('CUSTOM_PLACED')).status_code == 201


def test_what_makes_no_sense_is_refused_by_its_field(site: Site, caller: httpx.Client) -> None:
    group = {'resources': {'VGPU': 1}}
    spec = {**AMOUNTS, 'tree': {'groups': {'a': group, 'b': group}}}
    response = ask(caller, 1, spec)
    assert (response.status_code, 'spec.tree.group_policy' in response.text) == (400, True)
    response = ask(caller, 1, {**AMOUNTS, 'tree': {'groups': {'a': {'resources': {'VGPU': 0}}}}})
    assert (response.status_code, 'spec.tree.groups' in response.text) == (400, True)


def test_a_member_may_ask_for_devices_and_not_choose_trees(site: Site) -> None:
    with as_caller(site, 'member') as member:
        assert ask(member, 1, devices(1, 1), dry_run=True).status_code == 200
        group = {'resources': {'VGPU': 1}, 'required_traits': ['CUSTOM_X']}
        spec = {**AMOUNTS, 'tree': {'groups': {'a': group}}}
        response = ask(member, 2, spec, dry_run=True)
        assert (response.status_code, 'spec.tree.groups' in response.text) == (403, True)
