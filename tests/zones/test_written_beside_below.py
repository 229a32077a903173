# SPDX-License-Identifier: Apache-2.0
"""Who lives in a zone below gets nothing here beside it, by Placement's interface or by a list."""

import httpx2 as httpx
import pytest

from gantt.cmd import policies
from gantt.core.claims.adoption import AdoptionStatus, GuestToAdopt
from gantt.core.records.decision import Outcome
from gantt.http.context import Caller
from gantt.http.settings import HttpSettings
from gantt.placement_api.http.app import make_placement_app
from tests.builders import list_providers, new_uuid
from tests.http import identity
from tests.world import a_request

OPERATOR = Caller(user='ann', project='p', roles=('admin', 'service'))
#: May write allocations by the policy file below, and know nothing of hosts.
WRITER = Caller(user='bob', project='p', roles=('writer',))
RULES = "'placement:allocations:update': 'role:writer'\n"


@pytest.fixture
def world(zone):
    top, low = zone('top').hosts(1, 8), zone('low').hosts(1, 64)
    top.above(low)
    guest = a_request(vcpu=60, alternates=0)
    assert top.select(guest).outcome is Outcome.PLACED
    assert (top.live(), low.live()) == (0, 1)
    return top, guest


def placement_of(zone, caller, rules):
    app = make_placement_app(
        zone.store, zone.metrics, HttpSettings(), rules, lambda request: caller, [].append
    )
    headers = {'OpenStack-API-Version': 'placement 1.38', 'Accept': 'application/json'}
    return httpx.Client(
        transport=httpx.WSGITransport(app), base_url='http://localhost', headers=headers
    )


def wish(zone, vcpu=1, host='top-1'):
    [host] = [provider for provider in list_providers(zone.store) if provider.name == host]
    return {
        'allocations': {host.uuid: {'resources': {'VCPU': vcpu}}} if vcpu else {},
        'project_id': 'red',
        'user_id': 'eve',
        'consumer_type': 'INSTANCE',
        'consumer_generation': None,
    }


def test_no_writer_gives_it_anything_here(world):
    top, guest = world
    [consumer] = guest.consumers
    client, other = placement_of(top, OPERATOR, policies.defaults()), new_uuid()
    both = {other: wish(top), consumer: wish(top)}
    pool = top.store.providers.create_provider('pool')
    shape = {pool.uuid: {'resource_provider_generation': pool.generation, 'inventories': {}}}
    for answer in (
        client.put(f'/allocations/{consumer}', json=wish(top)),
        client.post('/allocations', json=both),
        client.post('/reshaper', json={'inventories': shape, 'allocations': both}),
    ):
        assert answer.status_code == 409, answer.text
        [error] = answer.json()['errors']
        assert f'consumer {consumer} has a claim in child zone low' in error['detail']
        assert error['code'] == 'placement.undefined_code', 'it is not to be tried again'
    assert top.live() == 0
    assert client.put(f'/allocations/{other}', json=wish(top)).status_code == 204
    # That it has nothing here is so already; and as soon as it has left, it may have something.
    assert client.post('/allocations', json={consumer: wish(top, 0)}).status_code == 204
    top.cancel(guest.request_id)
    assert client.put(f'/allocations/{consumer}', json=wish(top)).status_code == 204


def test_the_zone_is_named_to_who_may_know(world, tmp_path):
    top, guest = world
    [consumer] = guest.consumers
    (tmp_path / 'policy.yaml').write_text(RULES)
    options = {'oslo_policy': {'policy_file': tmp_path / 'policy.yaml'}}
    rules = policies.enforcer(identity.configuration(tmp_path, options))
    client = placement_of(top, WRITER, rules)
    answer = client.put(f'/allocations/{consumer}', json=wish(top))
    assert answer.status_code == 409
    assert f'consumer {consumer} has a claim in a child zone' in answer.text


def test_who_was_written_here_is_not_placed_below(zone):
    """As who was placed here is not: by a request of here, or of a zone above."""
    top, low = zone('top').hosts(1, 8), zone('low').hosts(1, 64)
    top.above(low)
    here, placed = a_request(vcpu=1, alternates=0), a_request(vcpu=1, alternates=0, hops=0)
    [consumer] = here.consumers
    client = placement_of(top, OPERATOR, policies.defaults())
    assert client.put(f'/allocations/{consumer}', json=wish(top)).status_code == 204
    assert top.select(placed).outcome is Outcome.PLACED
    refused = [
        top.select(a_request(vcpu=60, alternates=0, consumers=request.consumers))
        for request in (here, placed)
    ]
    assert [refusal.outcome for refusal in refused] == [Outcome.REFUSED] * 2
    reasons = [
        refusal.reason.replace(request.consumers[0], '')
        for refusal, request in zip(refused, (here, placed), strict=True)
    ]
    assert reasons[0] == reasons[1] != ''
    assert low.live() == 0
    # On hosts of here alone it may have more: that is its writer's business.
    assert top.select(a_request(vcpu=1, consumers=[consumer], hops=0)).outcome is Outcome.PLACED
    other = a_request(vcpu=1, alternates=0)
    below = placement_of(low, OPERATOR, policies.defaults())
    shape = wish(low, host='low-1')
    assert below.put(f'/allocations/{other.consumers[0]}', json=shape).status_code == 204
    top_is_full = a_request(vcpu=60, alternates=0, consumers=other.consumers)
    assert top.select(top_is_full).outcome is not Outcome.PLACED
    assert low.live() == 1
    assert client.delete(f'/allocations/{consumer}').status_code == 204
    assert top.select(a_request(vcpu=60, consumers=[consumer])).outcome is Outcome.PLACED


def test_who_is_on_its_way_below_gets_nothing_here_meanwhile(zone, monkeypatch):
    top, low = zone('top').hosts(1, 8), zone('low').hosts(1, 64)
    top.above(low)
    guest = a_request(vcpu=60, alternates=0)
    [consumer] = guest.consumers
    client = placement_of(top, OPERATOR, policies.defaults())
    calls, answers = top.zones.calls, []
    allocate = calls.allocate

    def meanwhile(*given):
        answers.append(client.put(f'/allocations/{consumer}', json=wish(top)))
        return allocate(*given)

    monkeypatch.setattr(calls, 'allocate', meanwhile)
    assert top.select(guest).outcome is Outcome.PLACED
    [answer] = answers
    assert (answer.status_code, 'is being placed' in answer.text) == (503, True)
    assert (top.live(), low.live()) == (0, 1)


@pytest.mark.parametrize('dry_run', [True, False])
def test_a_list_of_guests_that_run_does_not_have_it_here_too(world, dry_run):
    top, guest = world
    adoption = GuestToAdopt(host='top-1', consumer=guest.consumers[0], resources={'VCPU': 1})
    [outcome] = top.store.claims.adopt_guests([adoption], dry_run=dry_run)
    assert (outcome.outcome, outcome.note) == (
        AdoptionStatus.ELSEWHERE,
        'it has a live claim in child zone low',
    )
    assert top.live() == 0
