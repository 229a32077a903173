# SPDX-License-Identifier: Apache-2.0
"""Hosts that get another name or go for good, and guests that operators tell of."""

import pytest

from gantt import exceptions
from gantt.core.claims.adoption import AdoptionStatus, GuestToAdopt
from gantt.core.table.host_table import HostTable
from tests.builders import (
    CLEAN,
    a_draft,
    a_group,
    a_guest,
    a_host,
    amounts,
    claimed,
    live,
    new_uuid,
    state_of,
    uuid_of,
)
from tests.conftest import READERS

KINDS = READERS
JOURNAL = uuid_of('journal')


def a_told(host='cmp-1', consumer=None, *, group=None, **short):
    """A guest that an operator tells of."""
    resources = amounts(**(short or {'vcpu': 2, 'ram': 512}))
    return GuestToAdopt(
        host=host, consumer=consumer or new_uuid(), resources=resources, group=group
    )


def fates(store, *guests, **how):
    return [str(outcome.outcome) for outcome in store.claims.adopt_guests(guests, **how)]


# -- another name ---------------------------------------------------------------------------
def test_claims_and_history_follow_the_host(store, host):
    confirmed, ended = claimed(store, a_draft().taking(host, vcpu=2).taking(host))
    host.confirm(confirmed)
    host.refuse(ended)
    change = store.hosts.rename_host('cmp-1', 'rack1-07')
    assert (change.row.id, change.row.name, change.row.node) == (host.id, 'rack1-07', 'rack1-07')
    assert change.row == host.row
    assert change.row.used == {'VCPU': 2}
    assert [placed.claim_id for placed in change.placed] == [confirmed.id]
    named = store.claims.list_claims(host='rack1-07')
    assert {claim.id: claim.host for claim in named} == {
        confirmed.id: 'rack1-07',
        ended.id: 'rack1-07',
    }
    assert store.claims.list_claims(host='cmp-1') == []
    assert store.claims.load_claim(confirmed.id).host == 'rack1-07'
    assert store.claims.audit() == CLEAN


def test_the_way_to_the_agent_follows_the_name(store):
    a_host('cmp-2').on(store, node='node-2')
    row = store.hosts.rename_host('cmp-2', 'b').row
    assert (row.node, row.build_topic) == ('node-2', 'gantt-compute.b')


def test_aggregates_follow_the_host(store, host):
    rack_1 = store.declarations.save_aggregate('rack-1', {}, ['cmp-1', 'cmp-2'])
    rack_2 = store.declarations.save_aggregate('rack-2', {}, ['rack1-07'])
    rack_3 = store.declarations.save_aggregate('rack-3', {}, ['cmp-1', 'rack1-07'])
    store.hosts.rename_host('cmp-1', 'rack1-07')
    now = {a.name: a for a in store.feed.load_everything().aggregates}
    assert now['rack-1'].hosts == ['cmp-2', 'rack1-07']
    assert now['rack-3'].hosts == ['rack1-07']
    assert now['rack-1'].generation > rack_1.generation
    assert host.row.aggregates == sorted([rack_1.uuid, rack_2.uuid, rack_3.uuid])


def test_a_name_that_is_taken_is_refused_and_changes_nothing(store, host):
    other = a_host('cmp-2').on(store)
    before = (host.row, other.row)
    with pytest.raises(exceptions.Refused, match='cmp-2'):
        store.hosts.rename_host('cmp-1', 'cmp-2')
    with pytest.raises(exceptions.NotFound, match='cmp-9'):
        store.hosts.rename_host('cmp-9', 'cmp-8')
    assert (host.row, other.row) == before


def test_who_speaks_by_the_old_name_is_not_known(store, host):
    claim = claimed(store, a_draft().taking(host))[0]
    store.hosts.rename_host('cmp-1', 'rack1-07')
    assert host.report([claim]).outcome == 'unknown_host'
    assert [outcome.outcome for outcome in host.confirm(claim)] == ['gone']
    assert state_of(store, claim) == 'reserved'


def test_who_speaks_by_the_new_name_registers_first_and_goes_on(store, host):
    claim = claimed(store, a_draft().taking(host))[0]
    host.confirm(claim)
    before = host.epoch
    store.hosts.rename_host('cmp-1', 'rack1-07')
    host.name, host.facts = 'rack1-07', host.facts.having(name='rack1-07')
    assert host.report([claim]).outcome == 'gone'
    assert host.register() > before
    assert host.report([claim]).outcome == 'applied'
    assert state_of(store, claim) == 'confirmed'
    assert [claim.host for claim in live(store)] == ['rack1-07']


def test_an_agent_that_kept_its_old_name_makes_no_second_host(store):
    host = a_host('cmp-1').on(store, journal=JOURNAL, journal_count=1)
    store.hosts.rename_host('cmp-1', 'rack1-07')
    with pytest.raises(exceptions.HostRenamed, match="'cmp-1' was renamed to 'rack1-07'"):
        host.register(journal=JOURNAL, journal_count=2)
    assert len(store.feed.load_everything().hosts) == 1


def test_another_machine_may_have_the_old_name(store):
    first = a_host('cmp-1').on(store, journal=JOURNAL, journal_count=1)
    store.hosts.rename_host('cmp-1', 'rack1-07')
    other = a_host('cmp-1').on(store, journal=new_uuid(), journal_count=1)
    assert other.id != first.id
    assert other.epoch > first.epoch


def test_an_epoch_of_either_name_is_never_handed_out_again(store):
    gone = a_host('rack1-07').on(store)
    gone.register()
    gone.register()
    store.hosts.remove_host('rack1-07')
    host = a_host('cmp-1').on(store)
    store.hosts.rename_host('cmp-1', 'rack1-07')
    host.name = 'rack1-07'
    assert host.register() > gone.epoch


def test_a_name_may_go_and_come_back(store, host):
    store.hosts.rename_host('cmp-1', 'a')
    store.hosts.rename_host('a', 'cmp-1')
    assert host.row.name == 'cmp-1'
    assert host.register() > 1
    assert host.report().outcome == 'applied'


def test_a_table_that_is_fed_has_the_new_name(store, host):
    store.declarations.save_aggregate('rack-1', {'availability_zone': 'az-1'}, ['cmp-1'])
    everything = store.feed.load_everything()
    table = HostTable.build(everything.hosts, everything.aggregates, everything.groups)
    store.hosts.rename_host('cmp-1', 'rack1-07')
    feed = store.feed.poll(everything.position, {host.id: host.row.version - 1})
    for change in feed.hosts:
        table.apply(change)
    table.set_aggregates(feed.aggregates)
    row = table.row_of('rack1-07')
    assert table.row_of('cmp-1') is None
    assert (table.names[row], table.zone_name(row)) == ('rack1-07', 'az-1')


# -- for good ---------------------------------------------------------------------------------
def test_a_host_goes_for_good_when_nothing_is_left_on_it(store, host):
    store.declarations.save_aggregate('rack-1', {}, ['cmp-1', 'cmp-2'])
    claim = claimed(store, a_draft().taking(host))[0]
    with pytest.raises(exceptions.Refused, match='1 live claims'):
        store.hosts.decommission_host('cmp-1')
    assert store.feed.load_everything().aggregates[0].hosts == ['cmp-1', 'cmp-2']
    store.claims.force_release(claim.id, '')
    assert store.hosts.decommission_host('cmp-1').row is None
    everything = store.feed.load_everything()
    assert everything.hosts == []
    assert everything.aggregates[0].hosts == ['cmp-2']
    assert store.claims.audit() == CLEAN
    with pytest.raises(exceptions.NotFound, match='cmp-1'):
        store.hosts.decommission_host('cmp-1')


# -- guests that run already -------------------------------------------------------------------
def test_a_guest_that_is_told_of_has_a_confirmed_claim(store, host):
    guest = a_told(vcpu=2, ram=512)
    outcome = store.claims.adopt_guests([guest])[0]
    assert (outcome.outcome, outcome.note) == (AdoptionStatus.ADOPTED, '')
    claim = store.claims.load_claim(outcome.claim_id)
    assert (claim.state, claim.adopted, claim.consumer) == ('confirmed', True, guest.consumer)
    assert claim.allocations == {host.id: {'VCPU': 2, 'MEMORY_MB': 512}}
    assert host.row.used == {'VCPU': 2, 'MEMORY_MB': 512}
    assert not host.row.over_committed
    assert store.claims.audit() == CLEAN
    assert host.report([claim]).outcome == 'applied'
    assert state_of(store, claim) == 'confirmed'


def test_telling_again_changes_nothing(store, host):
    guest = a_told()
    first = store.claims.adopt_guests([guest])[0]
    before = host.row
    second = store.claims.adopt_guests([guest])[0]
    assert (second.outcome, second.claim_id) == (AdoptionStatus.KNOWN, first.claim_id)
    assert (host.row.used, host.row.generation) == (before.used, before.generation)
    assert len(live(store)) == 1


def test_one_guest_told_twice_at_once_is_one(store, host):
    a_host('cmp-2').on(store)
    guest = a_told()
    assert fates(store, guest, guest, a_told('cmp-2', guest.consumer)) == [
        'adopted',
        'known',
        'elsewhere',
    ]
    assert len(live(store)) == 1


def test_a_guest_whose_claim_is_on_another_host_is_left_to_the_operator(store, host):
    a_host('cmp-2').on(store)
    claim = claimed(store, a_draft().taking(host))[0]
    outcome = store.claims.adopt_guests([a_told('cmp-2', claim.consumer)])[0]
    assert (outcome.outcome, outcome.claim_id) == (AdoptionStatus.ELSEWHERE, claim.id)
    assert 'cmp-1' in outcome.note
    assert len(live(store)) == 1


def test_a_guest_that_ended_may_be_told_of_again(store, host):
    guest = a_told()
    first = store.claims.adopt_guests([guest])[0]
    host.report([])
    assert state_of(store, first.claim_id) == 'released'
    second = store.claims.adopt_guests([guest])[0]
    assert (second.outcome, second.claim_id != first.claim_id) == (AdoptionStatus.ADOPTED, True)
    assert store.claims.audit() == CLEAN


def test_a_host_that_nobody_knows_gets_no_guests(store, host):
    assert fates(store, a_told('cmp-9'), a_told()) == ['unknown_host', 'adopted']
    assert len(live(store)) == 1


def test_what_does_not_fit_is_adopted_said_and_flagged(store, host):
    small, large, after = a_told(vcpu=6), a_told(vcpu=3), a_told(vcpu=1)
    outcomes = store.claims.adopt_guests([small, large, after])
    assert [str(outcome.outcome) for outcome in outcomes] == ['adopted', 'over_full', 'over_full']
    assert outcomes[1].note == 'VCPU 9 of 8'
    assert host.row.over_committed
    assert host.row.used == {'VCPU': 10}
    assert store.claims.audit() == CLEAN


def test_what_the_host_has_nothing_of_is_an_over_commit_too(store, host):
    store.vocabulary.declare_class('CUSTOM_LICENSE')
    assert fates(store, a_told(CUSTOM_LICENSE=1)) == ['over_full']
    assert host.row.used == {'CUSTOM_LICENSE': 1}
    host.report([])
    assert (host.row.used, host.row.over_committed) == ({}, False)


def test_a_dry_run_says_the_same_and_writes_nothing(store, host):
    guests = [a_told(vcpu=6), a_told(vcpu=3), a_told('cmp-9')]
    before = host.row
    outcomes = store.claims.adopt_guests(guests, dry_run=True)
    assert host.row == before
    assert live(store) == []
    assert store.claims.adopt_guests(guests) == outcomes


def test_a_group_gains_the_member(store, host):
    group = store.groups.save_group(a_group())
    guest = a_told(group=group.uuid)
    store.claims.adopt_guests([guest])
    now = store.groups.load_group(group.uuid)
    assert now.members == [guest.consumer]
    assert now.generation > group.generation


def test_a_reserved_claim_there_is_the_guests_own(store, host):
    claim = claimed(store, a_draft().taking(host))[0]
    assert fates(store, a_told(consumer=claim.consumer)) == ['known']
    host.report([a_guest(claim)])
    assert state_of(store, claim) == 'confirmed'
