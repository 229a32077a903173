# SPDX-License-Identifier: Apache-2.0
"""Requests and claims as a member of their project reads them, and a lease that is extended."""

from typing import Any

import httpx2 as httpx
import pytest

from gantt.core.messages.request import RequestSpec, SelectDestinations
from tests.http.callers import as_caller
from tests.http.site import Site, fixed


def _place(site: Site, number: int, project: str, count: int = 1) -> str:
    spec = RequestSpec(resources={'VCPU': 1}, project_id=project)
    consumers = [fixed(number * 100 + i) for i in range(count)]
    request = SelectDestinations(request_id=fixed(number), spec=spec, consumers=consumers)
    return site.client.select_destinations(request).request_id


@pytest.fixture(scope='module')
def site() -> Site:
    new_site = Site()
    for number in (1, 2, 3):
        _place(new_site, number, 'red', 2)
    _place(new_site, 4, 'blue')
    return new_site


def _pages(caller: httpx.Client, path: str, key: str) -> list[Any]:
    entries, after = [], f'{path}limit=2'
    for _ in range(10):
        page = caller.get(after).json()
        entries += page[key]
        if not page['links']:
            break
        after = page['links'][0]['href']
    return entries


@pytest.mark.finding('API4', 'a project lists its own requests and claims')
def test_a_member_lists_the_requests_of_the_project(site: Site) -> None:
    with as_caller(site, 'member', 'reader') as member, as_caller(site, 'admin') as admin:
        own = _pages(member, '/v1/requests?', 'requests')
        everything = _pages(admin, '/v1/requests?', 'requests')
    assert {request['request_id'] for request in own} == {fixed(n) for n in (1, 2, 3)}
    assert {request['request_id'] for request in everything} == {fixed(n) for n in (1, 2, 3, 4)}
    assert [request['request_id'] for request in everything] == sorted(
        fixed(n) for n in (1, 2, 3, 4)
    )
    assert {(request['state'], request['claims']) for request in own} == {('placed', 2)}


@pytest.mark.finding('API4', 'a project lists its own requests and claims')
def test_a_member_reads_the_claims_of_the_project_without_hosts(site: Site) -> None:
    theirs = site.world.store.claims.list_claims(project='blue')[0]
    with as_caller(site, 'member', 'reader') as member:
        own = _pages(member, '/v1/claims?', 'claims')
        response = member.get(f'/v1/claims/{own[0]["id"]}')
        other = member.get(f'/v1/claims/{theirs.id}')
        prefix = member.get(f'/v1/claims/{theirs.id[:8]}')
        by_host = member.get('/v1/claims?host=cmp-1')
    assert len(own) == 6
    assert {claim['project_id'] for claim in own} == {'red'}
    assert {claim['host'] for claim in [*own, response.json()]} == {''}
    assert (other.status_code, prefix.status_code, by_host.status_code) == (404, 404, 403)


@pytest.mark.finding('API4', 'a lease is extended over HTTP')
def test_a_lease_is_extended_and_never_shortened(site: Site) -> None:
    def left() -> float:
        claims = member.get(f'/v1/requests/{fixed(1)}').json()['claims']
        return min(claim['lease_seconds'] for claim in claims)

    path = f'/v1/requests/{fixed(1)}/lease'
    with as_caller(site, 'member', 'reader') as member:
        before = left()
        longer = int(before) + 100
        dry = member.put(f'{path}?dry_run=true', json={'seconds': longer})
        assert (dry.status_code, left()) == (200, before)
        assert member.put(path, json={'seconds': longer}).status_code == 200
        assert left() == pytest.approx(longer, abs=5)
        assert member.put(path, json={'seconds': 1}).status_code == 200
        assert left() == pytest.approx(longer, abs=5)
        assert member.put(path, json={'seconds': 0}).status_code == 400
        other = member.put(f'/v1/requests/{fixed(4)}/lease', json={'seconds': 9})
    assert other.status_code == 404
    with as_caller(site, 'reader') as reader:
        assert reader.put(path, json={'seconds': 9}).status_code == 403
