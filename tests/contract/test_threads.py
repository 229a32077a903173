# SPDX-License-Identifier: Apache-2.0
"""Many callers at once: nothing is promised twice, whoever is first."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from gantt import exceptions
from gantt.core.claims.commit import CommitStatus
from gantt.core.messages.report import RegisterHost
from gantt.core.resources.group_rule import placements_since_first
from tests.builders import (
    CLEAN,
    a_draft,
    a_host,
    claimed,
    live,
    new_uuid,
    register_host,
    report_outcome,
)
from tests.services import PATIENT

CALLERS = 8


@pytest.fixture
def store(request, make_store):
    return make_store(request.param, timeouts=PATIENT)


def at_once(work):
    """``work(number)`` in as many threads as there are callers, begun together."""
    barrier = threading.Barrier(CALLERS)

    def run(number):
        barrier.wait(20)
        return work(number)

    with ThreadPoolExecutor(CALLERS) as pool:
        return list(pool.map(run, range(CALLERS)))


def test_callers_in_a_race_for_one_host_get_no_more_than_it_has(store):
    host = a_host().with_room(vcpu=5).on(store)

    def work(number):
        drafts = [a_draft(owner=f'w{number}').taking(host) for _ in range(3)]
        return [report_outcome(store, draft).outcome for draft in drafts]

    outcomes = Counter(outcome for of_caller in at_once(work) for outcome in of_caller)
    assert outcomes == {CommitStatus.PLACED: 5, CommitStatus.DROPPED: 3 * CALLERS - 5}
    assert host.row.used == {'VCPU': 5}
    assert store.claims.audit() == CLEAN


def test_repeats_in_a_race_have_the_effect_of_one(store, host):
    draft = a_draft().taking(host)
    outcomes = at_once(lambda number: report_outcome(store, draft.by(f'w{number}')).outcome)
    assert Counter(outcomes) == {CommitStatus.PLACED: 1, CommitStatus.REPEAT: CALLERS - 1}
    assert len(live(store)) == 1
    assert store.claims.audit() == CLEAN


def test_members_of_a_group_in_a_race_are_placed_one_generation_at_a_time(store, host):
    group = new_uuid()

    def work(number):
        return report_outcome(
            store, a_draft(owner=f'w{number}').planned_at(0, group).taking(host)
        ).outcome

    assert Counter(at_once(work)) == {
        CommitStatus.PLACED: 1,
        CommitStatus.GROUP_CHANGED: CALLERS - 1,
    }
    assert placements_since_first(store.groups.load_group(group).generation) == 1


def test_of_registrations_in_a_race_none_comes_before_an_older_one_of_its_journal(store, host):
    journal, epoch = new_uuid(), host.epoch

    def work(number):
        registration = RegisterHost(
            name='cmp-1', boot_nonce=f'n{number}', journal=journal, journal_count=number + 1
        )
        try:
            return register_host(store, registration)[0].epoch
        except exceptions.StaleRegistration:
            return 0

    epochs = [epoch for epoch in at_once(work) if epoch]
    assert epochs == sorted(epochs)
    assert (host.row.journal_count, host.row.boot_nonce) == (CALLERS, f'n{CALLERS - 1}')
    assert host.row.epoch == epoch + len(epochs)


def test_hosts_in_opposite_order_do_not_wait_in_a_circle(store):
    hosts = [a_host(f'cmp-{i}').with_room(vcpu=100).on(store) for i in (1, 2, 3)]

    def work(number):
        outcomes = []
        for _ in range(4):
            draft = a_draft(owner=f'w{number}')
            for host in hosts if number % 2 else reversed(hosts):
                draft = draft.taking(host)
            outcomes.append(report_outcome(store, draft).outcome)
        return outcomes

    assert {outcome for of_caller in at_once(work) for outcome in of_caller} == {
        CommitStatus.PLACED
    }
    assert [host.row.used for host in hosts] == [{'VCPU': 4 * CALLERS}] * 3
    assert store.claims.audit() == CLEAN


def test_a_confirm_and_the_sweeper_in_a_race_have_one_winner(store, host):
    claims = []
    for _ in range(CALLERS // 2):
        draft = a_draft().taking(host).leased(-1)
        report_outcome(store, draft)
        claims += live(store, request_id=draft.id)

    def work(number):
        if number % 2:
            return [f.outcome for f in host.confirm(claims[number // 2])]
        return [f.claim_id for f in store.claims.sweep(1).outcomes]

    at_once(work)
    states = Counter(claim.state for claim in store.claims.list_claims())
    assert set(states) <= {'confirmed', 'expired', 'reserved'}
    assert host.row.used.get('VCPU', 0) == states['confirmed'] + states['reserved']
    assert store.claims.audit() == CLEAN


def test_of_callers_in_a_race_for_one_consumer_one_claim_is_left(store):
    hosts = [a_host(f'cmp-{i}').on(store) for i in range(CALLERS)]
    consumer = new_uuid()

    def work(number):
        draft = a_draft(owner=f'w{number}').taking(hosts[number], consumer)
        return report_outcome(store, draft).outcome

    assert Counter(at_once(work)) == {CommitStatus.PLACED: CALLERS}
    assert len(live(store)) == 1
    assert sum(host.row.used.get('VCPU', 0) for host in hosts) == 1
    assert store.claims.audit() == CLEAN


def test_a_guest_that_starts_in_the_middle_of_a_race_keeps_its_claim(store):
    hosts = [a_host(f'cmp-{i}').on(store) for i in range(CALLERS)]
    first = claimed(store, a_draft().taking(hosts[0]))[0]

    def work(number):
        if number == 0:
            return hosts[0].confirm(first)[0].outcome
        return report_outcome(
            store, a_draft(owner=f'w{number}').taking(hosts[number], first.consumer)
        ).outcome

    confirmed, *outcomes = at_once(work)
    expected = {'ok': {CommitStatus.REJECTED}, 'gone': {CommitStatus.PLACED}}
    assert set(outcomes) == expected[confirmed]
    assert len(live(store)) == 1
    assert store.claims.audit() == CLEAN
