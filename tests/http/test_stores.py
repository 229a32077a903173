# SPDX-License-Identifier: Apache-2.0
"""The same questions get the same answers from every kind of database."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx2 as httpx
import pytest

from tests.conftest import STORES
from tests.http.site import Site, fixed


@pytest.fixture(params=STORES)
def site(request: pytest.FixtureRequest, make_store: Callable[[str], Any]) -> Site:
    if request.param == 'memory':
        return Site()
    return Site(store=make_store(request.param))


@pytest.fixture
def caller(site: Site) -> Iterator[httpx.Client]:
    transport = httpx.WSGITransport(site.app)
    with httpx.Client(transport=transport, base_url='http://localhost') as client:
        yield client


def test_a_request_is_followed_from_its_decision_to_its_end(
    site: Site, caller: httpx.Client
) -> None:
    first = site.place(1, 2)
    ids = sorted(places[0].claim_id or '' for places in first.selections)
    shown = caller.get(f'/v1/requests/{fixed(1)}').json()
    assert (shown['state'], sorted(claim['id'] for claim in shown['claims'])) == ('placed', ids)
    assert caller.get(f'/v1/requests/{fixed(1)[:8]}').json() == shown
    assert shown['claims'][0]['created_at'].endswith('Z')
    assert shown['claims'][0]['age_seconds'] < 600

    claim = caller.get(f'/v1/claims/{ids[0][:8]}').json()
    assert claim['id'] == ids[0]
    assert 0 < claim['lease_seconds'] <= 120
    page = caller.get('/v1/claims', params={'limit': 1}).json()
    rest = caller.get('/v1/claims', params={'marker': page['next_marker']}).json()
    assert [page['claims'][0]['id'], rest['claims'][0]['id']] == ids

    explained = caller.get(f'/v1/decisions/{fixed(1)[:8]}', params={'explain': True}).json()
    assert explained['id'] == first.decision_id
    assert explained['age_seconds'] < 600
    assert [m['host'] for m in explained['members']] == [p[0].host for p in first.selections]

    caller.delete(f'/v1/claims/{ids[0][:8]}', params={'reason': 'gone'})
    caller.delete(f'/v1/requests/{fixed(1)[:8]}')
    states = [claim['state'] for claim in caller.get('/v1/claims').json()['claims']]
    assert states == ['released', 'released']
    assert caller.get('/v1/status').json()['claims'] == 0


def test_refusals_are_kept_listed_and_counted(site: Site, caller: httpx.Client) -> None:
    for number in (50, 51, 52):
        with pytest.raises(Exception, match='hosts fit'):
            site.place(number, VCPU=400)
    listed = caller.get('/v1/decisions', params={'outcome': 'no_valid_host', 'limit': 2}).json()
    assert [d['request_id'] for d in listed['decisions']] == [fixed(52), fixed(51)]
    assert all(d['age_seconds'] < 600 for d in listed['decisions'])
    more = caller.get('/v1/decisions', params={'marker': listed['next_marker']}).json()
    assert [d['request_id'] for d in more['decisions']] == [fixed(50)]
    [group] = caller.get('/v1/status').json()['refusals']
    assert (group['count'], group['shape']) == (3, '400 vCPU')


def test_what_operators_write_is_seen_at_once(site: Site, caller: httpx.Client) -> None:
    assert caller.put('/v1/hosts/cmp-3/disable', json={'reason': 'fan'}).status_code == 200
    assert caller.get('/v1/hosts', params={'condition': 'disabled'}).json()['total'] == 1
    body = {'metadata': {'availability_zone': 'z9'}, 'hosts': ['cmp-1']}
    assert caller.put('/v1/aggregates/nine', json=body).status_code == 201
    assert caller.get('/v1/hosts', params={'zone': 'z9'}).json()['hosts'][0]['name'] == 'cmp-1'
    group = {'uuid': fixed(7), 'policy': 'anti-affinity'}
    assert caller.post('/v1/server-groups', json=group).status_code == 201
    assert caller.get('/v1/server-groups').json()['server_groups'][0]['uuid'] == fixed(7)
    assert caller.put('/v1/resource-classes/CUSTOM_KEY').status_code == 201
    names = [c['name'] for c in caller.get('/v1/resource-classes').json()['resource_classes']]
    assert names[-1] == 'CUSTOM_KEY'
    assert caller.delete('/v1/hosts/cmp-6').status_code == 200
    assert caller.get('/v1/hosts/cmp-6').status_code == 404


def test_ids_that_are_none_are_not_known(caller: httpx.Client) -> None:
    for path in ('claims', 'requests', 'decisions', 'server-groups', 'hosts', 'aggregates'):
        assert caller.get(f"/v1/{path}/x' or 1=1 --").status_code == 404, path
        assert caller.get(f'/v1/{path}/%25%25%25%25%25%25%25').status_code == 404, path
        assert caller.get(f'/v1/{path}/{"z" * 300}').status_code == 404, path
        assert caller.get(f'/v1/{path}/abcdef%00').status_code == 400, path
    assert caller.get('/v1/claims', params={'marker': 'not-a-uuid'}).status_code == 400
    assert caller.get('/v1/claims', params={'host': 'a\0b'}).status_code == 400
