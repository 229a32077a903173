# SPDX-License-Identifier: Apache-2.0
"""Whether a pool serves a host is judged under the locks: who detaches it is not overtaken."""

import threading

import msgspec
import pytest

from gantt.core.claims.commit import RefusalKind
from gantt.core.messages.base import derived_id
from tests.builders import CLEAN, a_draft, a_host, report_outcome
from tests.services import PATIENT
from tests.shared_pools import a_shared_pool, share

RACK, OTHER = 'rack', derived_id('aggregate', 'other')
WRITERS, ROUNDS = 4, 12


@pytest.fixture
def store(request, make_store):
    return make_store(request.param, timeouts=PATIENT)


@pytest.fixture
def host(store):
    return a_host().with_room(vcpu=10**6).on(store)


@pytest.fixture
def rack(store, host):
    """The uuid of an aggregate that the host is in."""
    return store.declarations.save_aggregate(RACK, {}, [host.name]).uuid


@pytest.fixture
def pool(store, rack):
    return a_shared_pool(store, 'ceph', [rack], DISK_GB=10**6)


def planned(host, pool):
    """A draft that takes of the pool, as it serves the host."""
    draft = a_draft().taking(host)
    (drafted,) = draft.fields['claims']
    taken = {**drafted.claim.allocations, pool.id: {'DISK_GB': 1}}
    claim = msgspec.structs.replace(drafted.claim, allocations=taken)
    return draft.having(
        claims=[msgspec.structs.replace(drafted, claim=claim, served_by=(pool.id,))]
    )


def used(store, pool):
    return store.providers.load_provider(pool.uuid).used.get('DISK_GB', 0)


@pytest.mark.parametrize('aggregates', [[OTHER], [], None])
def test_who_serves_the_host_no_more_gives_nothing(store, host, rack, pool, aggregates):
    assert report_outcome(store, planned(host, pool)).outcome == 'placed'
    share(store, pool, aggregates)
    outcome = report_outcome(store, planned(host, pool))
    assert (outcome.outcome, outcome.refused) == ('dropped', RefusalKind.DETACHED)
    assert outcome.reason == 'ceph does not serve cmp-1 any more'
    assert used(store, pool) == 1
    share(store, pool, [OTHER, rack])
    assert report_outcome(store, planned(host, pool)).outcome == 'placed'
    assert store.claims.audit() == CLEAN


def test_a_host_that_left_the_aggregate_gets_nothing(store, host, pool):
    store.declarations.save_aggregate(RACK, {}, [])
    outcome = report_outcome(store, planned(host, pool))
    assert (outcome.outcome, outcome.refused) == ('dropped', RefusalKind.DETACHED)
    store.declarations.save_aggregate(RACK, {}, [host.name])
    assert report_outcome(store, planned(host, pool)).outcome == 'placed'


def test_who_is_not_planned_on_a_shared_pool_is_not_asked_for_it(store, host, pool):
    """As what lies in the tree of its host, or what is asked for alone."""
    share(store, pool, None)
    draft = planned(host, pool)
    (drafted,) = draft.fields['claims']
    draft = draft.having(claims=[msgspec.structs.replace(drafted, served_by=())])
    assert report_outcome(store, draft).outcome == 'placed'


class Writers:
    """Threads that claim of the pool without end."""

    def __init__(self, store, host, pool):
        self.stop, self.placed, self.failed = threading.Event(), [], []
        self._draft = lambda: report_outcome(store, planned(host, pool)).outcome == 'placed'
        self._threads = [threading.Thread(target=self._work) for _ in range(WRITERS)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *of):
        self.stop.set()
        for thread in self._threads:
            thread.join(30)

    def _work(self):
        try:
            while not self.stop.is_set():
                self.placed.append(self._draft())
        except Exception as e:
            self.failed.append(e)

    def until_told(self):
        """Until all have begun anew, and been told."""
        before = len(self.placed)
        while len(self.placed) < before + 2 * WRITERS and not self.failed:
            self.stop.wait(0.005)


@pytest.mark.parametrize('side', ['pool', 'host'])
def test_after_it_was_detached_nobody_who_races_gets_anything(store, host, rack, pool, side):
    def attach(is_attached):
        if side == 'pool':
            share(store, pool, [rack] if is_attached else [OTHER])
        else:
            store.declarations.save_aggregate(RACK, {}, [host.name] if is_attached else [])

    with Writers(store, host, pool) as writers:
        for _ in range(ROUNDS):
            attach(False)
            at_first = used(store, pool)
            writers.until_told()
            assert used(store, pool) == at_first
            attach(True)
            writers.until_told()
    assert not writers.failed
    assert used(store, pool) == sum(writers.placed) > 0
    assert not all(writers.placed)
    assert store.claims.audit() == CLEAN
