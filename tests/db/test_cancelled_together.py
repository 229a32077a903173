# SPDX-License-Identifier: Apache-2.0
"""Requests that are taken back while another one works go in one transaction, or else alone."""

import threading
import time

import msgspec
import pytest

from gantt.core.messages.resource_classes import Inventory
from gantt.db.claims.requests import RequestToCancel
from gantt.db.hosts import providers
from tests.builders import CLEAN, a_draft, a_host, claimed, new_uuid
from tests.db.conftest import SERVERS
from tests.services import PATIENT

COUNT = 8


@pytest.fixture(params=SERVERS)
def store(request, open_store):
    return open_store(request.param, timeouts=PATIENT)


@pytest.fixture
def pool(store):
    return store.providers.create_provider(
        'ceph', inventories={'CUSTOM_IOPS': Inventory(total=1000)}
    )


@pytest.fixture
def hosts(store):
    return [a_host(f'cmp-{n}').on(store) for n in range(3)]


def of_pool(draft, pool):
    """The draft, its claim taking one of the pool as well."""
    (drafted,) = draft.fields['claims']
    taken = {**drafted.claim.allocations, pool.id: {'CUSTOM_IOPS': 1}}
    claim = msgspec.structs.replace(drafted.claim, allocations=taken)
    return draft.having(claims=[msgspec.structs.replace(drafted, claim=claim)])


def placed(store, hosts, pool, count=COUNT):
    """Requests of one claim each; the claims."""
    return [
        claimed(store, of_pool(a_draft().taking(hosts[n % len(hosts)]), pool))[0]
        for n in range(count)
    ]


def used(store, pool):
    return store.providers.load_provider(pool.uuid).used.get('CUSTOM_IOPS', 0)


def cancelled_behind_a_lock(store, pool, request_ids):
    """Taken back by as many threads while somebody else has the pool; results by id."""
    results = {}

    def cancel(request_id):
        results[request_id] = store.requests.cancel_request(request_id, f'because of {request_id}')

    threads = [threading.Thread(target=cancel, args=(request_id,)) for request_id in request_ids]

    def work(tx):
        providers.lock(tx, store.database.memory, [pool.id])
        for thread in threads:
            thread.start()
        time.sleep(0.1)

    store.database.writes.write(work)
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return results


def test_each_result_is_of_its_own_claims(store, hosts, pool):
    claims = placed(store, hosts, pool)
    unknown = new_uuid()
    results = cancelled_behind_a_lock(store, pool, [*(c.request_id for c in claims), unknown])
    for claim in claims:
        result = results[claim.request_id]
        assert [(outcome.claim_id, outcome.outcome) for outcome in result.outcomes] == [
            (claim.id, 'ok')
        ]
        assert [change.provider_id for change in result.hosts] == [claim.provider_id]
        (ended,) = store.claims.list_claims(request_id=claim.request_id)
        assert (ended.is_live, ended.reason) == (False, f'because of {claim.request_id}')
        assert store.requests.load_request(claim.request_id).state == 'cancelled'
    assert results[unknown].outcomes == []
    assert store.requests.load_request(unknown).state == 'cancelled'
    assert used(store, pool) == 0
    assert store.claims.audit() == CLEAN


def test_a_request_that_comes_twice_is_taken_back_once(store, hosts, pool):
    (claim,) = placed(store, hosts, pool, 1)
    cancelled_behind_a_lock(store, pool, [claim.request_id] * 3)
    assert store.requests.cancel_request(claim.request_id, '').outcomes == []
    assert used(store, pool) == 0
    assert store.claims.audit() == CLEAN


def test_claims_of_one_guest_end_one_after_another(store, hosts, pool):
    """What ends first is inherited by the one that moves, and given back with that."""
    guest = new_uuid()
    (source,) = claimed(store, of_pool(a_draft().taking(hosts[0], guest), pool))
    there_draft = of_pool(a_draft().taking(hosts[1], guest, purpose='migrate'), pool)
    (target,) = claimed(store, there_draft)
    assert used(store, pool) == 1
    cancellations = [RequestToCancel(claim.request_id, 'gone') for claim in (source, target)]
    assert not store.requests._cancel_together(cancellations)
    assert used(store, pool) == 1
    cancelled_behind_a_lock(store, pool, [source.request_id, target.request_id])
    assert used(store, pool) == 0
    assert store.claims.audit() == CLEAN


def test_together_they_take_one_commit(store, hosts, pool):
    claims = placed(store, hosts, pool)
    before = store.providers.load_provider(pool.uuid).generation
    assert store.requests._cancel_together(
        [RequestToCancel(claim.request_id, 'gone') for claim in claims]
    )
    provider = store.providers.load_provider(pool.uuid)
    assert (provider.generation - before, provider.used) == (1, {})
    assert store.claims.audit() == CLEAN
