# SPDX-License-Identifier: Apache-2.0
"""Claims of plans and holds: their leases are bounded, and something ends each of them."""

from collections.abc import Callable

import pytest

from gantt import exceptions
from gantt.core.messages import base
from gantt.core.messages.request import ExtendClaims, Lifecycle, SelectDestinations, check
from gantt.stores import AllStores
from tests.builders import CLEAN, a_draft, a_host, claimed, live, state_of, uuid_of
from tests.conftest import STORES
from tests.contract.damage import damage_for
from tests.world import World, a_request

Make = Callable[[str], AllStores]
TITLE = 'claims of plans and holds have a bounded lease, and an end'


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, make_store: Make) -> AllStores:
    """An empty store of each kind."""
    return make_store(request.param)


@pytest.mark.finding('G0.1', 'a request makes no claim that nothing would end')
def test_a_request_makes_no_claim_that_nothing_would_end():
    spec = {'resources': {'VCPU': 1}}
    body = {'request_id': uuid_of('r'), 'spec': spec, 'consumers': [uuid_of('c')]}
    for lifecycle in ('host', 'plan', 'hold'):
        check(base.decode({**body, 'lifecycle': lifecycle}, SelectDestinations, inside='request'))
    with pytest.raises(exceptions.InvalidMessage, match="'host', 'plan' or 'hold'") as refused:
        check(base.decode({**body, 'lifecycle': 'api'}, SelectDestinations, inside='request'))
    assert refused.value.kwargs['field'] == 'request.lifecycle'


@pytest.mark.finding('G0.1', TITLE)
@pytest.mark.parametrize(
    ('lifecycle', 'asked', 'lease'),
    [
        ('plan', None, 3600.0),
        ('plan', 86_400, 7200.0),
        ('hold', None, 120.0),
        ('hold', 86_400, 900.0),
        ('host', 86_400, 900.0),
    ],
)
def test_the_lease_of_every_lifecycle_is_bounded(store, lifecycle, asked, lease):
    world = World(store, hosts=1, plan_lease_seconds_max=7200.0)
    request = a_request(lifecycle=Lifecycle(lifecycle), lease_seconds=asked)
    answer = world.select(request)
    assert answer.selections[0][0].lease_seconds == lease
    claim = store.claims.load_claim(answer.selections[0][0].claim_id)
    assert claim.lifecycle == lifecycle
    assert claim.lease_until - claim.created_at == pytest.approx(lease)
    world.scheduler.extend(ExtendClaims(request_id=request.request_id, seconds=86_400))
    longer = store.claims.load_claim(claim.id)
    most = 7200.0 if lifecycle == 'plan' else 900.0
    assert longer.lease_until - longer.updated_at == pytest.approx(most)


@pytest.mark.finding('G0.1', TITLE)
def test_the_claim_of_a_plan_cannot_be_confirmed(store):
    host = a_host().on(store)
    claim = claimed(store, a_draft().leased(120).taking(host, lifecycle='plan'))[0]
    outcome = host.confirm(claim)[0]
    assert (outcome.outcome, outcome.state) == ('gone', 'reserved')
    assert 'plan' in outcome.reason and 'create' in outcome.reason
    damage_for(store).age(claim, 200)
    assert [outcome.claim_id for outcome in store.claims.sweep(10).outcomes] == [claim.id]
    assert state_of(store, claim) == 'expired'
    assert store.claims.audit() == CLEAN


@pytest.mark.finding('G0.1', TITLE)
@pytest.mark.parametrize('ends', ['release', 'absence'])
@pytest.mark.parametrize('lifecycle', ['hold', 'plan'])
def test_once_the_host_has_it_the_word_of_the_host_ends_it(store, lifecycle, ends):
    host = a_host().on(store)
    claim = claimed(store, a_draft().taking(host, lifecycle=lifecycle))[0]
    if lifecycle == 'hold':
        assert host.confirm(claim)[0].outcome == 'ok'
    host.report([claim])  # of a plan nobody may be told to start; one that runs is there
    now = store.claims.load_claim(claim.id)
    assert (now.state, now.lifecycle) == ('confirmed', 'host')
    if ends == 'release':
        host.release(claim)
    else:
        host.report()
    assert live(store) == []
    assert host.row.used == {}
    assert store.claims.audit() == CLEAN
