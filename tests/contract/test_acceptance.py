# SPDX-License-Identifier: Apache-2.0
"""What is judged of a claim under the lock: units of inventories, and who claims."""

import msgspec
import pytest

from gantt.core.claims.commit import CommitStatus, RefusalKind
from gantt.core.messages.resource_classes import Inventory
from tests.builders import (
    CLEAN,
    a_draft,
    a_guest,
    a_host,
    claimed,
    commit,
    live,
    new_uuid,
    report_outcome,
    state_of,
)

PLACED, DROPPED = CommitStatus.PLACED, CommitStatus.DROPPED


def units(**fields):
    """Eight cores, promised four times, to be had in these units, and memory without any."""
    vcpu = Inventory(total=8, allocation_ratio=4.0, **fields)
    return {'VCPU': vcpu, 'MEMORY_MB': Inventory(total=4096)}


def over_full(store, host):
    """A claim of four cores on a host that has three since, and memory enough."""
    (claim,) = claimed(store, a_draft().taking(host, vcpu=4, ram=64))
    host.facts = host.facts.with_room(vcpu=3, ram=4096)
    host.report(pending=[claim])
    assert host.row.over_committed
    return claim


def shared(draft, pool, **amounts):
    """The last claim of a draft takes these of another provider, too."""
    *first, last = draft.fields['claims']
    allocations = {**last.claim.allocations, pool.id: amounts}
    claim = msgspec.structs.replace(last.claim, allocations=allocations)
    return draft.having(claims=[*first, msgspec.structs.replace(last, claim=claim)])


# -- units ------------------------------------------------------------------------------
BREAKS = [
    ({'min_unit': 2}, 1, 'VCPU: at least 2 vCPU in one piece, need 1 vCPU'),
    ({'max_unit': 4}, 5, 'VCPU: at most 4 vCPU in one piece, need 5 vCPU'),
    ({'step_size': 2}, 3, 'VCPU: only multiples of 2 vCPU, need 3 vCPU'),
    # More than there is of the hardware, however often that is promised.
    ({}, 9, 'VCPU: at most 8 vCPU in one piece, need 9 vCPU'),
]


@pytest.mark.parametrize('lifecycle', ['host', 'api'])
@pytest.mark.parametrize(('rule', 'vcpu', 'reason'), BREAKS)
def test_an_amount_that_its_units_do_not_admit_is_refused(store, rule, vcpu, reason, lifecycle):
    host = a_host().having(inventories=units(**rule)).on(store)
    outcome = report_outcome(store, a_draft().taking(host, vcpu=vcpu, lifecycle=lifecycle))
    assert (outcome.outcome, outcome.refused) == (DROPPED, RefusalKind.UNITS)
    assert outcome.reason == f'cmp-1: {reason}'
    assert (host.row.used, live(store)) == ({}, [])


@pytest.mark.parametrize('lifecycle', ['host', 'api'])
def test_what_its_units_admit_is_accepted_up_to_the_ends(store, lifecycle):
    rule = units(min_unit=2, max_unit=6, step_size=2)
    host = a_host().having(inventories=rule).on(store)
    for vcpu in (2, 4, 6):
        draft = a_draft().taking(host, vcpu=vcpu, lifecycle=lifecycle)
        assert report_outcome(store, draft).outcome is PLACED
    # Together they are no multiple, and more than one may have: that is judged of each.
    draft = a_draft().taking(host, vcpu=6, lifecycle=lifecycle)
    assert report_outcome(store, draft.taking(host, vcpu=4, lifecycle=lifecycle)).outcome is PLACED
    assert host.row.used == {'VCPU': 22}
    assert store.claims.audit() == CLEAN


def test_units_that_changed_since_the_plan_count(store, host):
    draft = a_draft().taking(host, vcpu=3)
    host.send(host.says().having(inventories=units(step_size=2)))
    outcome = report_outcome(store, draft)
    assert (outcome.outcome, outcome.refused) == (DROPPED, RefusalKind.UNITS)
    host.send(host.says().having(inventories=units(step_size=3)))
    assert report_outcome(store, draft).outcome is PLACED


def test_units_of_a_class_without_a_column_of_its_own_count(store):
    rule = {**units(), 'CUSTOM_LICENSE': Inventory(total=9, step_size=3)}
    host = a_host().having(inventories=rule).on(store)
    outcome = report_outcome(store, a_draft().taking(host, vcpu=1, CUSTOM_LICENSE=2))
    assert (outcome.outcome, outcome.refused) == (DROPPED, RefusalKind.UNITS)
    draft = a_draft().taking(host, vcpu=1, CUSTOM_LICENSE=3)
    assert report_outcome(store, draft).outcome is PLACED


def test_units_of_every_provider_that_a_claim_takes_from_count(store, host):
    pool = a_host('pool').with_room(disk=100).on(store)
    rule = {'DISK_GB': Inventory(total=100, step_size=10)}
    pool.send(pool.says().having(inventories=rule))
    outcome = report_outcome(store, shared(a_draft().taking(host), pool, DISK_GB=15))
    assert (outcome.outcome, outcome.refused) == (DROPPED, RefusalKind.UNITS)
    assert outcome.reason.startswith('pool: DISK_GB')
    assert (host.row.used, pool.row.used) == ({}, {})
    draft = shared(a_draft().taking(host), pool, DISK_GB=20)
    assert report_outcome(store, draft).outcome is PLACED
    assert (host.row.used, pool.row.used) == ({'VCPU': 1}, {'DISK_GB': 20})
    assert store.claims.audit() == CLEAN


def test_a_refusal_for_units_concerns_only_its_claim(store, host):
    other = a_host('cmp-2').having(inventories=units(min_unit=2)).on(store)
    result = commit(store, a_draft().taking(host).taking(other), a_draft().taking(host))
    assert [(outcome.outcome, outcome.accepted) for outcome in result.outcomes] == [
        ('partial', [0]),
        ('placed', [0]),
    ]
    assert result.outcomes[0].refused is RefusalKind.UNITS
    whole = a_draft().taking(host).taking(other).whole()
    assert report_outcome(store, whole).outcome is DROPPED
    assert host.row.used == {'VCPU': 2}


# -- why ----------------------------------------------------------------------------------
def test_every_refusal_says_why(store, host):
    full = report_outcome(store, a_draft().taking(host, vcpu=9))
    assert (full.refused, full.reason) == (
        RefusalKind.ROOM,
        'cmp-1: too little free VCPU (need 9 vCPU, has 8 vCPU)',
    )
    lacking = report_outcome(store, a_draft().taking(host, CUSTOM_X=1))
    assert (lacking.refused, lacking.reason) == (
        RefusalKind.ROOM,
        'cmp-1: the host has no CUSTOM_X',
    )
    store.hosts.disable_host('cmp-1', 'disk swap', 'ops')
    closed = report_outcome(store, a_draft().taking(host))
    assert (closed.refused, closed.reason) == (RefusalKind.CLOSED, 'cmp-1 is disabled')
    store.hosts.remove_host('cmp-1')
    gone = report_outcome(store, a_draft().taking(host))
    assert gone.refused is RefusalKind.GONE


# -- who claims -----------------------------------------------------------------------------
def test_a_scheduler_needs_an_open_host_in_every_class(store, host):
    over_full(store, host)
    outcome = report_outcome(store, a_draft().taking(host, ram=64))
    assert (outcome.refused, outcome.reason) == (RefusalKind.CLOSED, 'cmp-1 is over-full')


def test_the_api_is_judged_class_by_class(store, host):
    over_full(store, host)
    assert report_outcome(store, a_draft().taking(host, ram=64, lifecycle='api')).outcome is PLACED
    more = report_outcome(store, a_draft().taking(host, vcpu=1, lifecycle='api'))
    assert (more.outcome, more.refused) == (DROPPED, RefusalKind.ROOM)
    assert host.row.used == {'VCPU': 4, 'MEMORY_MB': 128}
    assert host.row.over_committed
    assert store.claims.audit() == CLEAN


@pytest.mark.parametrize(('vcpu', 'is_placed'), [(5, False), (4, True), (1, True)])
def test_the_api_may_keep_or_shrink_what_is_over_full(store, host, vcpu, is_placed):
    older = over_full(store, host)
    draft = a_draft().taking(host, older.consumer, vcpu=vcpu, lifecycle='api')
    # A step above what it has needs room, however much of it others have given back by then.
    if vcpu > 3:
        host.facts = host.facts.having(inventories=units())
        host.send(host.facts.at(host.epoch, host.stamp()).listing([], [older]).outside(vcpu=29))
        assert host.row.over_committed
    outcome = report_outcome(store, draft)
    assert (outcome.outcome is PLACED) is is_placed
    assert (state_of(store, older) == 'released') is is_placed
    assert host.row.used['VCPU'] == (vcpu if is_placed else 4)
    assert host.row.over_committed is (vcpu > 1)
    assert store.claims.audit() == CLEAN


def test_what_the_api_keeps_is_held_to_the_units(store, host):
    older = over_full(store, host)
    outcome = report_outcome(store, a_draft().taking(host, older.consumer, vcpu=4, lifecycle='api'))
    assert (outcome.outcome, outcome.refused) == (DROPPED, RefusalKind.UNITS)
    assert state_of(store, older) == 'reserved'


def test_the_api_does_not_care_whether_a_host_is_open(store, host):
    store.hosts.disable_host('cmp-1', 'disk swap', 'ops')
    host.send(host.says().having(disabled='maintenance'))
    assert report_outcome(store, a_draft().taking(host)).outcome is DROPPED
    assert report_outcome(store, a_draft().taking(host, lifecycle='api')).outcome is PLACED
    gone = a_draft().taking(host.id + 1000, lifecycle='api')
    assert report_outcome(store, gone).refused is RefusalKind.GONE


def test_who_claims_is_judged_claim_by_claim(store, host):
    over_full(store, host)
    draft = a_draft().taking(host, ram=64, lifecycle='api').taking(host, ram=64)
    outcome = report_outcome(store, draft)
    assert (outcome.outcome, outcome.accepted) == (CommitStatus.PARTIAL, [0])
    assert outcome.refused is RefusalKind.CLOSED


def test_what_runs_is_neither_refused_for_room_nor_for_units(store):
    host = a_host().having(inventories=units(min_unit=4)).on(store)
    host.report([a_guest(new_uuid(), vcpu=1), a_guest(new_uuid(), vcpu=40)])
    assert host.row.used == {'VCPU': 41}
    assert host.row.over_committed
    assert store.claims.audit() == CLEAN


# -- the flag ----------------------------------------------------------------------------------
def cancelled(store, host, claim):
    store.requests.cancel_request(claim.request_id, '')


def given_back(store, host, claim):
    host.confirm(claim)
    host.release(claim)


def refused(store, host, claim):
    host.refuse(claim)


def forced(store, host, claim):
    store.claims.force_release(claim.id, 'ops')


def replaced(store, host, claim):
    other = a_host('cmp-9').on(store)
    assert report_outcome(store, a_draft().taking(other, claim.consumer)).outcome is PLACED


@pytest.mark.parametrize('end', [cancelled, given_back, refused, forced, replaced])
def test_whoever_ends_a_claim_takes_the_flag_away(store, host, end):
    claim = over_full(store, host)
    end(store, host, claim)
    assert (host.row.used, host.row.over_committed) == ({}, False)
    assert report_outcome(store, a_draft().taking(host)).outcome is PLACED
    assert store.claims.audit() == CLEAN


def test_a_lease_that_runs_out_takes_the_flag_away(store, host):
    (claim,) = claimed(store, a_draft().leased(-1).taking(host, vcpu=4))
    host.facts = host.facts.with_room(vcpu=3)
    host.report(pending=[claim])
    assert host.row.over_committed
    store.claims.sweep(10)
    assert (host.row.used, host.row.over_committed) == ({}, False)
    assert store.claims.audit() == CLEAN


def test_who_takes_over_takes_the_flag_away_and_finds_the_host_open(store, host):
    draft = a_draft().unfinished().within(-1).taking(host, vcpu=4)
    assert report_outcome(store, draft).outcome is CommitStatus.PARTIAL
    host.facts = host.facts.with_room(vcpu=3)
    host.report(pending=live(store))
    assert host.row.over_committed
    heir = a_draft(draft.id).by('worker-2').taking_over(1).taking(host, vcpu=3)
    assert report_outcome(store, heir).outcome is PLACED
    assert (host.row.used, host.row.over_committed) == ({'VCPU': 3}, False)
    assert store.claims.audit() == CLEAN


def test_what_remains_over_full_stays_flagged(store, host):
    first, second = claimed(store, a_draft().taking(host, vcpu=4).taking(host, vcpu=3))
    host.facts = host.facts.with_room(vcpu=3, ram=4096)
    host.report(pending=[first, second])
    store.claims.force_release(second.id, 'ops')
    assert (host.row.used, host.row.over_committed) == ({'VCPU': 4}, True)
    assert store.claims.audit() == CLEAN


def test_the_flag_of_a_provider_that_nobody_reports_follows_its_claims(store, host):
    pool = a_host('pool').with_room(disk=100).on(store)
    (claim,) = claimed(store, shared(a_draft().taking(host), pool, DISK_GB=80))
    pool.facts = pool.facts.with_room(disk=50)
    pool.report()
    assert pool.row.over_committed
    host.confirm(claim)
    host.report()  # its guest is not there any more
    assert (pool.row.used, pool.row.over_committed) == ({}, False)
    assert store.claims.audit() == CLEAN


def test_a_guest_that_is_found_may_make_a_pool_over_full(store, host):
    pool = a_host('pool').with_room(disk=100).on(store)
    (lost,) = claimed(store, shared(a_draft().taking(host), pool, DISK_GB=80))
    store.claims.force_release(lost.id, 'ops')
    claimed(store, shared(a_draft().taking(host), pool, DISK_GB=50))
    host.report([*live(store), lost])
    assert (pool.row.used, pool.row.over_committed) == ({'DISK_GB': 130}, True)
    assert not host.row.over_committed
    assert store.claims.audit() == CLEAN


def test_the_flag_of_a_class_without_a_column_of_its_own_follows(store):
    host = a_host().with_room(vcpu=8, CUSTOM_X=3).on(store)
    (claim,) = claimed(store, a_draft().taking(host, CUSTOM_X=2))
    host.facts = host.facts.with_room(vcpu=8, CUSTOM_X=1)
    host.report(pending=[claim])
    assert host.row.over_committed
    store.claims.force_release(claim.id, 'ops')
    assert (host.row.used, host.row.over_committed) == ({}, False)
    assert store.claims.audit() == CLEAN


def test_the_audit_finds_a_flag_that_nothing_says(store, host, damage):
    damage.flag(host)
    assert store.claims.audit()['over_commit'] == [
        'cmp-1: flagged as over-full, and has room of every class'
    ]
    commit(store, a_draft().taking(host, lifecycle='api'))
    (claim,) = live(store)
    store.claims.force_release(claim.id, 'ops')
    assert store.claims.audit() == CLEAN
