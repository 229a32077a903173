# SPDX-License-Identifier: Apache-2.0
"""A stored claim that this release cannot read is shown as such, and can be released."""

import httpx2 as httpx
import pytest

from gantt.core.messages.layout import CellLayout, Layout
from gantt.core.messages.report import NumaCell
from gantt.core.messages.resource_classes import Inventory
from gantt.core.topology.free import FreeTopology
from gantt.db.hosts import rows
from gantt.db.schema import models
from gantt.zones.ports import LocalShare
from tests.builders import a_draft, a_host, claimed, commit, live, new_uuid, state_of
from tests.conftest import READERS
from tests.contract.test_zones import EAST, a_request, below, finish, outcome_of
from tests.http.callers import LATEST
from tests.http.site import Site, fixed

_c = models.claims
KINDS = READERS[:2]
POISON = [
    {'layout': '{"cells": [{'},
    {'former_reservation': '{"later": 1}'},
    {'other': '{"CUSTOM_A": "many"}'},
    {'state': 'parked'},
    {'lifecycle': 'later'},
    {'purpose': 'later'},
]


def spoil(store, claim_id, values):
    """Write what a later release may have."""
    with store.database.engine.begin() as connection:
        connection.execute(_c.update().where(_c.c.id == claim_id).values(values))


def calling(site):
    transport = httpx.WSGITransport(site.app)
    return httpx.Client(transport=transport, base_url='http://localhost', headers=LATEST)


def spoiled(store, claim_ids):
    """The name of what cannot be read of each of these claims; the last one is sound."""
    for claim_id, poison in zip(claim_ids, POISON, strict=False):
        spoil(store, claim_id, poison)
    return dict(zip(claim_ids, [next(iter(changes)) for changes in POISON], strict=False))


@pytest.mark.parametrize('kind', KINDS)
def test_they_are_listed_with_their_problems_beside_the_others_and_released(make_store, kind):
    site = Site(store=make_store(kind))
    ids = [places[0].claim_id for places in site.place(1, len(POISON) + 1).selections]
    store = site.world.store
    bad = spoiled(store, ids)
    with calling(site) as caller:
        listed = caller.get('/v1/claims')
        assert listed.status_code == 200, listed.text
        claims = {claim['id']: claim for claim in listed.json()['claims']}
        assert claims.keys() == set(ids)
        for claim in claims.values():
            assert claim['problem'].partition(':')[0] == bad.get(claim['id'], '')
            assert claim['resources'] == claims[ids[-1]]['resources']
        paths = [
            'usages',
            f'requests/{fixed(1)}',
            *(f'hosts/{host_name}' for host_name in site.hosts),
        ]
        assert {caller.get(f'/v1/{path}').status_code for path in paths} == {200}
        # Everybody else goes on, and so does a process that starts now.
        site.world.another_scheduler()
        site.place(2, 1)
        assert len([line for lines in store.claims.audit().values() for line in lines]) >= len(bad)
        for claim_id, name in bad.items():
            assert caller.get(f'/v1/claims/{claim_id}').json()['problem'], name
            gone = caller.delete(f'/v1/claims/{claim_id}', params={'reason': 'cannot be read'})
            assert gone.status_code == 200, (name, gone.text)
            now = gone.json()['now']
            assert (now['state'], now['problem']) == ('released', ''), name
    assert [line for lines in store.claims.audit().values() for line in lines] == []


@pytest.mark.parametrize('kind', KINDS)
def test_their_leases_their_host_and_their_neighbours_stand_them(make_store, kind):
    store = make_store(kind)
    store.vocabulary.create_class('CUSTOM_A')
    having = {'VCPU': Inventory(total=64), 'CUSTOM_A': Inventory(total=64)}
    host = a_host().having(inventories=having).on(store)
    drafts = [a_draft().leased(-9).taking(host, vcpu=2, CUSTOM_A=3) for _ in range(7)]
    ids = [claimed(store, draft)[0].id for draft in drafts]
    bad, good = spoiled(store, ids), ids[-1]
    swept = store.claims.sweep(100)
    assert [outcome.claim_id for outcome in swept.outcomes] == [good]
    assert swept.unreadable.keys() == bad.keys()
    assert store.claims.sweep(100).unreadable == {}
    # What they take stays taken, whatever their host says of them.
    runs = claimed(store, a_draft().taking(host))[0]
    assert [outcome.outcome for outcome in host.confirm(runs)] == ['ok']
    for _ in range(3):
        assert host.report(running=[runs]).outcome == 'applied'
    host.release(*bad)
    for draft in drafts[:-1]:
        outcomes = store.requests.extend_request(draft.id, 300, 600).outcomes
        assert [outcome.outcome for outcome in outcomes] == ['kept']
    assert host.row.used == {'VCPU': 13, 'CUSTOM_A': 18}
    for claim_id in bad:
        outcomes = store.claims.force_release(claim_id, 'test').outcomes
        assert [outcome.outcome for outcome in outcomes] == ['ok']
        assert state_of(store, claim_id) == 'released'
    assert {name: of for name, of in host.row.used.items() if of} == {'VCPU': 1}
    assert [claim.id for claim in live(store)] == [runs.id]
    assert [line for lines in store.claims.audit().values() for line in lines] == []


@pytest.mark.parametrize('kind', KINDS)
def test_a_request_for_one_of_their_consumers_is_rejected_and_those_beside_it_placed(
    make_store, kind
):
    store = make_store(kind)
    host = a_host().on(store)
    claims = [claimed(store, a_draft().taking(host))[0] for _ in POISON]
    for claim, poison in zip(claims, POISON, strict=True):
        spoil(store, claim.id, poison)
        again, beside = a_draft().taking(host, claim.consumer), a_draft().taking(host, vcpu=0)
        outcomes = commit(store, again, beside).outcomes
        assert [of.outcome for of in outcomes] == ['rejected', 'placed'], poison


@pytest.mark.parametrize('stored', ['{"cells": [{', '{"later": 1}', '[]', '\x00'])
def test_a_layout_that_cannot_be_read_leaves_nothing_inside_of_its_host(stored):
    numa = [NumaCell(id=0, cpus=[0, 1], pinned_cpus=[2, 3], memory_mb=4096)]
    layouts = [
        Layout(cells=[CellLayout(cell=0, memory_mb=1)]),
        Layout(cells=[CellLayout(cell=0, vcpus=[0])]),
        Layout(cells=[CellLayout(cell=0, vcpus=[0], pins=[(0, 2)])]),
    ]
    free = FreeTopology(numa, [], {})
    assert all(map(free.has_free, layouts))
    taken = FreeTopology(numa, [], {}, [rows.decode_layout(stored)])
    assert not any(map(taken.has_free, layouts))


@pytest.mark.parametrize('kind', KINDS)
def test_over_zones_they_hold_their_consumers(make_store, kind):
    store = make_store(kind)
    host = a_host().on(store)
    store.zones.save_child_zone(EAST)
    request = a_request(consumers=[new_uuid(), new_uuid()])
    assert outcome_of(store, request) == 'ours'
    (claim,) = claimed(store, a_draft().taking(host, consumer=request.consumers[1]))
    share = LocalShare(key=claim.request_id, members={claim.id: 1}, parent='top')
    assert finish(store, request, below(request), own=share)
    spoil(store, claim.id, {'state': 'parked', 'purpose': 'later'})
    with store.database.engine.begin() as connection:
        connection.execute(models.child_claims.update().values(purpose='later'))
    (news,) = store.zone_claims.claims_of_parent('top', 0.0, 10)
    assert (news.state, news.purpose) == ('confirmed', 'create')
    assert [claim.purpose for claim in store.child_claims.find(consumers=request.consumers)] == [
        'create'
    ]
    for consumer in request.consumers:
        assert outcome_of(store, a_request(consumers=[consumer])) == 'rejected'


def test_one_in_a_zone_below_is_listed_with_its_problem_with_others_the_others(make_store):
    site = Site(store=make_store('sqlite'))
    store = site.world.store
    store.zones.save_child_zone(EAST)
    request = a_request(consumers=[new_uuid(), new_uuid()])
    assert outcome_of(store, request) == 'ours'
    bad, sound = new_uuid(), new_uuid()
    rows_below = [
        below(request, claim_id=claim_id, consumer=consumer)
        for claim_id, consumer in zip((bad, sound), request.consumers, strict=True)
    ]
    assert finish(store, request, *rows_below)
    columns = models.child_claims.c
    with store.database.engine.begin() as connection:
        spoiled_row = models.child_claims.update().where(columns.claim_id == bad)
        connection.execute(spoiled_row.values(state='parked'))
    with calling(site) as caller:
        listed = caller.get('/v1/claims')
        assert listed.status_code == 200, listed.text
        problems = {claim['id']: claim['problem'] for claim in listed.json()['claims']}
        assert problems.keys() == {bad, sound}
        assert [claim_id for claim_id, problem in problems.items() if 'parked' in problem] == [bad]
        assert caller.get(f'/v1/claims/{bad}').json()['problem'] == problems[bad]
