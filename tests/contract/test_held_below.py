# SPDX-License-Identifier: Apache-2.0
"""What is claimed in zones below counts as what is claimed here, wherever the book is asked."""

import msgspec
import pytest

from gantt import exceptions
from gantt.core.claims import quota
from gantt.core.claims.claim import LOST_STATE
from gantt.core.claims.quota import ProjectUsage, Usage
from gantt.core.messages.request import Purpose
from tests.builders import a_draft, a_group, a_host, claimed, new_uuid, uuid_of
from tests.conftest import READERS
from tests.contract.test_zones import EAST, a_request, became, below, finish
from tests.db.test_lost_commit import Losing
from tests.services import PATIENT

KINDS = READERS
ALL = ['VCPU', 'MEMORY_MB', 'CUSTOM_LICENSE']
TAKES = {'VCPU': 2, 'MEMORY_MB': 512, 'CUSTOM_LICENSE': 3}


@pytest.fixture
def store(request, make_store):
    opened = make_store(request.param, timeouts=PATIENT)
    opened.vocabulary.declare_class('CUSTOM_LICENSE')
    opened.zones.save_child_zone(EAST)
    return opened


def placed_below(store, consumer=None, resources=TAKES, purpose=Purpose.CREATE, **fields):
    """A claim in the zone below, of a request of its own."""
    request = a_request(consumers=[consumer or new_uuid()], purpose=purpose)
    assert store.zone_requests.open_request(request).outcome is None
    claim = below(request, resources=resources, project_id='red', sealed_host='p')
    claim = msgspec.structs.replace(claim, **fields)
    assert finish(store, request, claim)
    return claim


def test_a_project_has_what_it_has_below(store):
    host = a_host().with_room(vcpu=8, ram=16_384, CUSTOM_LICENSE=9).on(store)
    [own_claim] = claimed(store, a_draft(project_id='red').taking(host, vcpu=1, CUSTOM_LICENSE=1))
    first, second = placed_below(store), placed_below(store)
    placed_below(store, project_id='blue')
    amounts = {'VCPU': 5, 'MEMORY_MB': 1024, 'CUSTOM_LICENSE': 7}
    assert store.quotas.quota_usage(['red'], ALL)['red'] == Usage(
        claims_in_flight=3, live_claims=3, amounts=amounts
    )
    shown = ProjectUsage(
        project_id='red', claims=3, claims_in_flight=3, consumers=3, amounts=amounts
    )
    assert store.quotas.usages(1, project='red') == [shown]
    assert [usage.project_id for usage in store.quotas.usages(9)] == ['blue', 'red']
    assert store.allocations.type_usages('red')[0].resources == amounts
    held = store.claims.live_claims_of([own_claim.consumer, first.consumer, second.consumer])
    assert quota.usage_of(held) == store.quotas.quota_usage(['red'], ALL)['red'], 'one rule'
    assert {row.child for row in held} == {None, EAST.uuid}
    became(store, first, 'confirmed')
    became(store, second, 'released')
    assert store.quotas.quota_usage(['red'], ALL)['red'] == Usage(
        claims_in_flight=1,
        live_claims=2,
        amounts={'VCPU': 3, 'MEMORY_MB': 512, 'CUSTOM_LICENSE': 4},
    )


def test_a_guest_that_moves_out_of_a_zone_below_counts_once(store):
    host = a_host().with_room(vcpu=8, ram=16_384, CUSTOM_LICENSE=9).on(store)
    guest = uuid_of('guest')
    placed_below(store, guest, state='confirmed')
    move = a_draft(project_id='red').taking(host, guest, purpose='resize', vcpu=4, ram=256)
    claimed(store, move)
    amounts = {'VCPU': 4, 'MEMORY_MB': 512, 'CUSTOM_LICENSE': 3}
    usage = store.quotas.quota_usage(['red'], ALL)['red']
    assert usage == Usage(claims_in_flight=1, live_claims=1, amounts=amounts)


def test_what_is_lost_counts_until_somebody_has_looked(store):
    claim = placed_below(store, state=LOST_STATE)
    assert store.quotas.quota_usage(['red'])['red'].live_claims == 1
    [held] = store.claims.live_claims_of([claim.consumer])
    assert (held.is_live, held.is_lost) == (True, True)
    store.zone_claims.end_lost(EAST.uuid, claim.key)
    assert store.quotas.quota_usage(['red'])['red'] == Usage()
    assert store.claims.live_claims_of([claim.consumer]) == []


def test_what_was_restored_is_nobodys_and_of_no_known_size(store):
    row = below(a_request(), project_id=None, sealed_host='', restored=True)
    store.zone_claims.restore([row], {row.request_id: b'answer'})
    shown = ProjectUsage(project_id='', claims=1, claims_in_flight=1, consumers=1)
    assert store.quotas.usages(9) == store.quotas.usages(9, project='') == [shown]
    assert store.quotas.owners_of([row.consumer]) == {}


def test_a_group_has_its_members_below(store):
    group = a_group()
    store.groups.save_group(group)
    member = placed_below(store, group=group.uuid)
    assert store.groups.load_group(group.uuid).members == [member.consumer]
    with pytest.raises(exceptions.InUse):
        store.groups.remove_group(group.uuid)
    became(store, member, 'released')
    assert store.groups.load_group(group.uuid).members == []
    store.groups.remove_group(group.uuid)


def purge(store):
    for _ in range(3):
        store.retention.purge(decisions=100, tombstone_seconds=-1, request_seconds=-1, limit=100)


def test_the_rule_of_a_request_stays_while_a_member_lives_below(store):
    host, group = a_host().with_room(vcpu=8, ram=16_384).on(store), a_group()
    draft = a_draft().planned_at(0, group.uuid).taking(host, new_uuid())
    [own_claim] = claimed(store, draft)
    member = placed_below(store, group=group.uuid)
    store.claims.force_release(own_claim.id, 'enough')
    purge(store)
    assert store.groups.load_group(group.uuid).members == [member.consumer]
    became(store, member, 'released')
    purge(store)
    purge(store)
    assert store.groups.load_group(group.uuid) is None


def test_requests_and_owners_are_found_by_what_is_below(store):
    claim = placed_below(store)
    assert [request.id for request in store.requests.list_requests(9, project='red')] == [
        claim.request_id
    ]
    assert store.requests.list_requests(9, project='blue') == []
    assert store.quotas.owners_of([claim.consumer]) == {claim.consumer: 'red'}


def test_claims_below_are_listed_by_id(store):
    claims = [placed_below(store) for _ in range(3)]
    became(store, claims[0], 'confirmed')
    ids = sorted(claim.claim_id for claim in claims)

    def listed(**query):
        return [claim.claim_id for claim in store.child_claims.find(**query)]

    assert listed(limit=2) == ids[:2]
    assert listed(limit=2, marker=ids[1]) == ids[2:]
    assert listed(state='confirmed') == listed(claim_id=claims[0].claim_id) == [claims[0].claim_id]
    assert listed(project='blue') == []
    assert store.child_claims.find(claim_id=claims[0].claim_id)[0].resources == TAKES


def test_what_is_deleted_is_noted_to_end_below(store):
    host = a_host().with_room(vcpu=8, ram=16_384).on(store)
    claim, _ = placed_below(store), placed_below(store)
    claimed(store, a_draft().taking(host, claim.consumer, purpose='resize', vcpu=1))
    for _ in range(2):  # as long as it holds its consumer it is there
        store.allocations.delete_allocations(claim.consumer)
    due = [(release.child, release.key) for release in store.zone_releases.due_releases(9)]
    assert due == [(EAST.uuid, claim.claim_id)]
    assert {live_claim.child for live_claim in store.claims.live_claims_of([claim.consumer])} == {
        EAST.uuid
    }
    became(store, claim, 'released')
    for nobody in (claim.consumer, new_uuid()):
        with pytest.raises(exceptions.NotFound):
            store.allocations.delete_allocations(nobody)


@pytest.mark.parametrize('before', [False, True])
def test_what_is_deleted_is_noted_where_the_answer_to_commit_is_lost(store, before):
    claim = placed_below(store)
    Losing(store, {1}, before)
    store.allocations.delete_allocations(claim.consumer)
    assert [release.key for release in store.zone_releases.due_releases(9)] == [claim.claim_id]
