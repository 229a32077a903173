# SPDX-License-Identifier: Apache-2.0
"""What reports do to hosts and claims, and what late or repeated ones do not."""

import pytest

from gantt import exceptions
from gantt.core.messages.report import NumaCell, RegisterHost, ReportedMetric
from gantt.core.messages.resource_classes import Inventory
from tests.builders import (
    CLEAN,
    a_draft,
    a_guest,
    a_host,
    a_report,
    claimed,
    generation_of,
    live,
    new_uuid,
    register_host,
    report_outcome,
    state_of,
)


@pytest.fixture
def claim(store, host):
    """A reserved claim of two cores."""
    return claimed(store, a_draft().taking(host, vcpu=2))[0]


# -- registration -----------------------------------------------------------------------------
def test_a_new_host_gets_an_epoch_and_a_uuid(store):
    host = a_host().on(store)
    assert (host.row.name, host.row.node, host.row.build_topic) == (
        'cmp-1',
        'cmp-1',
        'gantt-compute.cmp-1',
    )
    assert host.row.uuid
    assert host.row.epoch == host.epoch >= 1


def test_a_host_says_its_own_names_at_registration(store):
    host = a_host().on(store)
    cell, uuid = new_uuid(), new_uuid()
    other = a_host('cmp-2').on(store)
    other.name = 'cmp-3'
    other.register(uuid=uuid, node='node-3', cell=cell, zone='az-1')
    row = other.row
    assert (row.uuid, row.node, row.cell, row.zone) == (uuid, 'node-3', cell, 'az-1')
    assert host.row.zone is None


def test_the_same_nonce_gets_the_same_epoch(store, host):
    epoch = host.register('nonce-1')
    host.report()
    assert host.register('nonce-1') == epoch
    assert host.row.sequence == host.sequence
    assert host.register('nonce-2') == epoch + 1
    assert host.row.sequence == 0


def test_a_registration_that_a_later_one_of_its_journal_overtook_changes_nothing(store, host):
    journal = new_uuid()
    late = RegisterHost(
        name='cmp-1', boot_nonce='first', journal=journal, journal_count=1, zone='elsewhere'
    )
    host.register('second', journal=journal, journal_count=2)
    before = host.row
    assert (before.journal, before.journal_count) == (journal, 2)
    with pytest.raises(exceptions.StaleRegistration, match='registration 1 .* number 2') as refusal:
        register_host(store, late)
    assert refusal.value.kwargs == {'host': 'cmp-1', 'count': 1, 'current': 2}
    assert host.row == before
    assert host.report().outcome == 'applied'


def test_many_register_in_one_go_and_who_may_not_keeps_nobody_from_it(store, host):
    journal, epoch = new_uuid(), host.register()
    register_host(
        store, RegisterHost(name='cmp-2', boot_nonce='n', journal=journal, journal_count=2)
    )
    registered = store.reports.register_hosts(
        [
            RegisterHost(name='cmp-3', boot_nonce='n', zone='az-1'),
            RegisterHost(name='cmp-2', boot_nonce='late', journal=journal, journal_count=1),
            RegisterHost(name='cmp-4', boot_nonce='n', uuid=host.row.uuid),
            RegisterHost(name='cmp-1', boot_nonce='again'),
        ]
    )
    third, late, taken, again = registered
    assert (third[0].name, third[0].epoch, third[1].row.zone) == ('cmp-3', 1, 'az-1')
    assert isinstance(late, exceptions.StaleRegistration)
    assert isinstance(taken, exceptions.InvalidMessage)
    assert again[0].epoch == again[1].row.epoch == host.row.epoch == epoch + 1
    assert again[0].uuid == host.row.uuid
    rows = {change.row.name: change.row for change in store.feed.load_everything().hosts}
    assert sorted(rows) == ['cmp-1', 'cmp-2', 'cmp-3']
    assert (rows['cmp-2'].boot_nonce, rows['cmp-3'].boot_nonce) == ('n', 'n')
    assert store.reports.register_hosts([]) == []


def test_what_several_hosts_say_at_once_comes_back_whatever_its_characters(store):
    odd = ['a\\n', 'é"😀', "it's", '$.x', 'null', 'true', '  ', '1e3']
    store.reports.register_hosts(
        [
            RegisterHost(name=f'cmp-{n}', boot_nonce='n', zone=f'z{text}', node=f'{text}n')
            for n, text in enumerate(odd)
        ]
    )
    assert [
        (row.name, row.zone, row.node)
        for row in sorted((c.row for c in store.feed.load_everything().hosts), key=lambda r: r.name)
    ] == [(f'cmp-{n}', f'z{text}', f'{text}n') for n, text in enumerate(odd)]
    result = store.reports.apply_reports(
        [
            a_report(
                f'cmp-{n}', metrics={'m': ReportedMetric(value=value)}, used={'VCPU': n}
            ).build()
            for n, value in enumerate([0.1, 1e18, -1e-7, 3.0, 2**53 + 1.0, 1 / 3, 5e-324, 7.25])
        ]
    )
    assert {outcome.outcome for outcome in result.outcomes} == {'applied'}
    rows = {c.row.name: c.row for c in store.feed.load_everything().hosts}
    assert [rows[f'cmp-{n}'].facts.metrics['m'].value for n in (1, 4, 6)] == [
        1e18,
        2**53 + 1.0,
        5e-324,
    ]
    assert [
        rows[f'cmp-{n}'].used.get('VCPU', 0) + rows[f'cmp-{n}'].foreign.get('VCPU', 0)
        for n in range(8)
    ] == [*range(8)]


def test_the_next_registration_of_a_journal_begins_an_epoch_and_a_repeat_does_not(store, host):
    journal = new_uuid()
    epoch = host.register('first', journal=journal, journal_count=1)
    assert host.register('first', journal=journal, journal_count=1) == epoch
    assert host.register('second', journal=journal, journal_count=2) == epoch + 1
    assert host.register('second', journal=journal, journal_count=2) == epoch + 1
    assert host.row.journal_count == 2


def test_of_two_journals_the_one_that_registers_last_counts(store, host):
    """Another machine of that name, or a disk that was lost."""
    journal, other = new_uuid(), new_uuid()
    epoch = host.register(journal=journal, journal_count=7)
    assert host.register(journal=other, journal_count=1) == epoch + 1
    assert (host.row.journal, host.row.journal_count) == (other, 1)
    assert host.register(journal=journal, journal_count=8) == epoch + 2


def test_who_has_no_journal_registers_as_ever(store, host):
    journal = new_uuid()
    epoch = host.register(journal=journal, journal_count=7)
    assert host.register() == epoch + 1
    with pytest.raises(exceptions.StaleRegistration):
        host.register(journal=journal, journal_count=6)
    assert host.register() == epoch + 2
    assert host.register(journal=journal, journal_count=8) == epoch + 3


def test_a_host_that_was_removed_is_registered_out_of_any_journal(store, host):
    journal = new_uuid()
    epoch = host.register(journal=journal, journal_count=7)
    store.hosts.remove_host('cmp-1')
    assert host.register(journal=journal, journal_count=3) == epoch + 1
    assert host.row.journal_count == 3


def test_a_registration_keeps_what_is_known_and_claimed(store, host, claim):
    before = host.row
    host.register()
    assert host.row.facts == before.facts
    assert host.row.used == {'VCPU': 2}
    assert state_of(store, claim) == 'reserved'


def test_a_new_host_has_no_room_before_it_reports(store):
    host = a_host('cmp-9')
    speaker = host.on(store)
    speaker.name = 'cmp-10'
    speaker.register()
    assert speaker.row.reported_at == 0
    assert report_outcome(store, a_draft().taking(speaker)).outcome == 'dropped'


# -- order -----------------------------------------------------------------------------------
def test_a_report_of_an_unknown_host_is_told_so(store):
    assert (
        store.reports.apply_reports([a_report('nobody').build()]).outcomes[0].outcome
        == 'unknown_host'
    )


def test_a_repeated_report_is_stale_and_changes_nothing(store, host):
    report = host.says().outside(vcpu=3)
    assert host.send(report)[0].outcome == 'applied'
    before = host.row
    outcome = host.send(report)[0]
    assert (outcome.outcome, outcome.changed, outcome.current_sequence) == (
        'stale',
        False,
        host.sequence,
    )
    assert host.row == before


def test_an_overtaken_report_changes_nothing(store, host):
    first, second = host.says().outside(vcpu=3), host.says().outside(vcpu=1)
    assert [f.outcome for f in host.send(second, first)] == ['applied', 'stale']
    assert host.row.foreign == {'VCPU': 1}


def test_a_report_of_an_old_epoch_is_gone(store, host):
    old = host.says().outside(vcpu=3)
    epoch = host.register()
    outcome = host.send(old)[0]
    assert (outcome.outcome, outcome.current_epoch) == ('gone', epoch)
    assert host.row.foreign == {}


def test_a_report_of_an_epoch_never_handed_out_is_gone(store, host):
    assert host.send(host.says().at(host.epoch + 1, 1))[0].outcome == 'gone'


def test_a_report_overtaken_by_a_word_is_stale(store, host, claim):
    report = host.says()
    host.confirm(claim)
    assert host.send(report)[0].outcome == 'stale'
    assert state_of(store, claim) == 'confirmed'


def test_reports_of_a_batch_are_folded_in_order(store, host, claim):
    first, second = host.says().listing([claim]), host.says()
    confirmed, released = host.send(first, second)
    assert (confirmed.confirmed, released.released) == ([claim.id], [claim.id])
    assert state_of(store, claim) == 'released'
    assert host.row.used == {}


def test_a_batch_of_many_hosts_brings_each_of_them_back(store):
    hosts = [a_host(f'cmp-{i}').on(store) for i in range(1, 4)]
    reports = [host.says().outside(vcpu=i).build() for i, host in enumerate(hosts)]
    result = store.reports.apply_reports(reports)
    assert [f.outcome for f in result.outcomes] == ['applied'] * 3
    assert {c.row.name: c.row.foreign for c in result.hosts} == {
        'cmp-1': {},
        'cmp-2': {'VCPU': 1},
        'cmp-3': {'VCPU': 2},
    }
    assert result.now == pytest.approx(store.database.ping(), abs=5)


# -- claims -----------------------------------------------------------------------------------
def test_running_confirms_a_reserved_claim(store, host, claim):
    outcome = host.report([claim])
    assert (outcome.confirmed, outcome.changed) == ([claim.id], True)
    assert state_of(store, claim) == 'confirmed'
    assert host.row.used == {'VCPU': 2}


def test_pending_leaves_a_reserved_claim_reserved(store, host, claim):
    assert host.report(pending=[claim]).changed is False
    assert state_of(store, claim) == 'reserved'


def test_absence_never_frees_a_reserved_claim(store, host, claim):
    assert host.report().released == []
    assert state_of(store, claim) == 'reserved'
    assert host.row.used == {'VCPU': 2}


def test_absence_frees_a_confirmed_claim(store, host, claim):
    host.confirm(claim)
    outcome = host.report()
    assert (outcome.released, outcome.changed) == ([claim.id], True)
    assert state_of(store, claim) == 'released'
    assert host.row.used == {}


def test_pending_keeps_a_confirmed_claim(store, host, claim):
    host.confirm(claim)
    assert host.report(pending=[claim]).released == []
    assert state_of(store, claim) == 'confirmed'


def test_no_opinion_frees_nothing(store, host, claim):
    host.confirm(claim)
    outcome = host.send(host.says().without_opinion())[0]
    assert (outcome.outcome, outcome.released) == ('applied', [])
    assert state_of(store, claim) == 'confirmed'


def test_a_report_sent_before_the_confirm_was_heard_loses_nothing(store, host, claim):
    word = host.words(claim)
    report = host.says().listing(pending=[claim])
    host.send(report)
    assert store.claims.confirm_claims(word).outcomes[0].outcome == 'ok'
    host.report([claim])
    assert state_of(store, claim) == 'confirmed'


def test_a_consumer_listed_without_its_claim_is_that_claim(store, host, claim):
    host.report([a_guest(claim.consumer)])
    assert state_of(store, claim) == 'confirmed'
    host.report([a_guest(claim.consumer)])
    assert state_of(store, claim) == 'confirmed'
    assert len(live(store)) == 1


def test_a_consumer_with_a_confirmed_claim_does_not_confirm_its_next_one(store, host, claim):
    host.confirm(claim)
    move = {'purpose': 'resize', 'move_id': new_uuid()}
    target = claimed(store, a_draft().taking(host, claim.consumer, vcpu=4, **move))[0]
    host.report([a_guest(claim.consumer)])
    assert (state_of(store, claim), state_of(store, target)) == ('confirmed', 'reserved')


def test_a_resize_on_one_host_tells_its_two_claims_apart(store, host, claim):
    host.confirm(claim)
    move = {'purpose': 'resize', 'move_id': new_uuid()}
    target = claimed(store, a_draft().taking(host, claim.consumer, vcpu=4, **move))[0]
    host.report([claim], pending=[target])
    assert (state_of(store, claim), state_of(store, target)) == ('confirmed', 'reserved')
    host.report([target])
    assert (state_of(store, claim), state_of(store, target)) == ('released', 'confirmed')
    assert host.row.used == {'VCPU': 4}


def test_a_claim_of_another_host_is_not_touched(store, host, claim):
    other = a_host('cmp-2').on(store)
    assert other.report(pending=[claim]).outcome == 'applied'
    assert state_of(store, claim) == 'reserved'
    assert live(store, host='cmp-2') == []


def test_a_restart_with_nothing_left_frees_what_was_confirmed(store, host):
    first, second = claimed(store, a_draft().taking(host, vcpu=2).taking(host, vcpu=3))
    host.confirm(first)
    host.register()
    assert host.report().released == [first.id]
    assert state_of(store, second) == 'reserved'
    assert host.row.used == {'VCPU': 3}


# -- adoption --------------------------------------------------------------------------------
def test_a_guest_that_nobody_claimed_is_adopted(store, host):
    consumer = new_uuid()
    outcome = host.report([a_guest(consumer, vcpu=3, ram=512)])
    assert outcome.changed and len(outcome.adopted) == 1
    claim = store.claims.load_claim(outcome.adopted[0])
    assert (claim.state, claim.adopted, claim.consumer) == ('confirmed', True, consumer)
    assert (claim.request_id, claim.lifecycle, claim.host) == (None, 'host', 'cmp-1')
    assert claim.allocations == {host.id: {'VCPU': 3, 'MEMORY_MB': 512}}
    assert host.row.used == {'VCPU': 3, 'MEMORY_MB': 512}
    assert store.claims.audit() == CLEAN


def test_a_guest_is_adopted_once(store, host):
    guest = a_guest(new_uuid())
    report = host.says().listing([guest])
    host.send(report)
    host.send(report)
    assert host.report([guest]).adopted == []
    assert len(live(store)) == 1


def test_an_adopted_guest_that_ends_is_released(store, host):
    outcome = host.report([a_guest(new_uuid())])
    assert host.report().released == outcome.adopted
    assert host.row.used == {}


def test_a_guest_of_an_ended_claim_is_adopted_and_the_tombstone_stays(store, host, claim):
    host.confirm(claim)
    store.claims.force_release(claim.id, 'mistake')
    outcome = host.report([claim])
    adopted = store.claims.load_claim(outcome.adopted[0])
    assert adopted.id != claim.id
    assert (adopted.consumer, adopted.allocations) == (claim.consumer, claim.allocations)
    assert state_of(store, claim) == 'released'
    assert host.row.used == {'VCPU': 2}
    assert store.requests.load_request(claim.request_id).claims == [
        store.claims.load_claim(claim.id)
    ]


def test_a_guest_adopted_released_and_still_there_is_adopted_anew(store, host):
    guest = a_guest(new_uuid())
    first = host.report([guest]).adopted[0]
    store.claims.force_release(first, 'mistake')
    second = host.report([guest]).adopted[0]
    assert first != second
    assert (state_of(store, first), state_of(store, second)) == ('released', 'confirmed')
    assert host.row.used == {'VCPU': 1}


def test_a_pending_guest_whose_claim_has_ended_is_not_adopted(store, host, claim):
    store.claims.force_release(claim.id, '')
    outcome = host.report(pending=[claim])
    assert outcome.adopted == []
    assert host.row.used == {}


def test_an_adoption_may_over_commit_and_then_nothing_new_lands(store, host):
    report_outcome(store, a_draft().taking(host, vcpu=7))
    host.report([a_guest(new_uuid(), vcpu=4)])
    assert host.row.over_committed
    assert host.row.used == {'VCPU': 11}
    assert report_outcome(store, a_draft().taking(host, disk=1)).outcome == 'dropped'
    assert store.claims.audit() == CLEAN


def test_an_adopted_member_voids_what_is_planned_for_its_group(store, host):
    group = new_uuid()
    claim = claimed(store, a_draft().planned_at(0, group).taking(host))[0]
    before = generation_of(store, group)
    host.confirm(claim)
    store.claims.force_release(claim.id, '')
    host.report([claim])
    loaded = store.groups.load_group(group)
    assert loaded.members == [claim.consumer]
    assert loaded.generation == before + 1
    assert (
        report_outcome(store, a_draft().planned_at(before, group).taking(host)).outcome
        == 'group_changed'
    )


# -- foreign use -------------------------------------------------------------------------------
def test_foreign_use_is_as_the_report_says(store, host):
    assert host.send(host.says().outside(vcpu=3, ram=100))[0].changed
    assert host.row.foreign == {'VCPU': 3, 'MEMORY_MB': 100}
    assert host.report().changed
    assert host.row.foreign == {}


def test_use_including_our_guests_counts_them_once(store, host, claim):
    host.confirm(claim)
    host.send(host.says().listing([claim]).using(vcpu=5, ram=64))
    assert host.row.used == {'VCPU': 2}
    assert host.row.foreign == {'VCPU': 3, 'MEMORY_MB': 64}


def test_a_claim_that_the_reporter_cannot_know_yet_is_not_taken_off(store, host, claim):
    host.send(host.says().listing().using(vcpu=2))
    assert host.row.foreign == {'VCPU': 2}


def test_a_pending_claim_is_taken_off(store, host, claim):
    host.send(host.says().listing(pending=[claim]).using(vcpu=3))
    assert host.row.foreign == {'VCPU': 1}


def test_foreign_use_is_never_below_nothing(store, host, claim):
    host.confirm(claim)
    host.send(host.says().listing([claim]).using(vcpu=1))
    assert host.row.foreign == {}


def test_without_an_opinion_only_confirmed_claims_are_taken_off(store, host, claim):
    reserved = claimed(store, a_draft().taking(host, vcpu=3))[0]
    host.confirm(claim)
    host.send(host.says().without_opinion().using(vcpu=6))
    assert host.row.foreign == {'VCPU': 4}
    assert state_of(store, reserved) == 'reserved'


# -- capacity ------------------------------------------------------------------------------------
def test_a_host_that_shrank_is_flagged_and_nothing_is_killed(store, host, claim):
    host.confirm(claim)
    host.send(host.says().listing([claim]).with_room(vcpu=1))
    assert host.row.over_committed
    assert state_of(store, claim) == 'confirmed'
    assert report_outcome(store, a_draft().taking(host, vcpu=0)).outcome == 'dropped'
    assert store.claims.audit() == CLEAN


def test_the_flag_goes_when_it_fits_again(store, host, claim):
    host.confirm(claim)
    host.send(host.says().listing([claim]).with_room(vcpu=1))
    assert host.send(host.says().listing([claim]).with_room(vcpu=4))[0].changed
    assert not host.row.over_committed
    assert report_outcome(store, a_draft().taking(host, vcpu=2)).outcome == 'placed'


def test_foreign_use_above_capacity_flags_as_well(store, host):
    host.send(host.says().outside(vcpu=9))
    assert host.row.over_committed
    host.report()
    assert not host.row.over_committed


def test_a_class_that_vanishes_under_its_claims_flags_the_host(store):
    host = a_host().with_room(vcpu=8, CUSTOM_LICENSE=3).on(store)
    claim = claimed(store, a_draft().taking(host, CUSTOM_LICENSE=2))[0]
    host.confirm(claim)
    host.send(host.says().listing([claim]).with_room(vcpu=8))
    assert host.row.over_committed
    assert host.row.used == {'CUSTOM_LICENSE': 2}
    assert store.claims.audit() == CLEAN
    assert host.report().released == [claim.id]
    assert host.row.used == {}


def test_an_adopted_guest_may_use_a_class_that_the_host_no_longer_has(store):
    host = a_host().with_room(vcpu=8, CUSTOM_LICENSE=3).on(store)
    host.send(host.says().with_room(vcpu=8))
    outcomes = host.send(
        host.says().with_room(vcpu=8).listing([a_guest(new_uuid(), CUSTOM_LICENSE=2)])
    )
    assert (outcomes[0].outcome, len(outcomes[0].adopted)) == ('applied', 1)
    assert host.row.used == {'CUSTOM_LICENSE': 2}
    assert host.row.over_committed
    assert store.claims.audit() == CLEAN


def test_foreign_use_of_a_class_that_the_host_does_not_have_is_kept(store, host):
    host.send(host.says().outside(CUSTOM_LICENSE=2))
    assert host.row.foreign == {'CUSTOM_LICENSE': 2}
    assert host.row.over_committed
    host.report()
    assert (host.row.foreign, host.row.over_committed) == ({}, False)
    assert store.claims.audit() == CLEAN


# -- facts -----------------------------------------------------------------------------------
def test_every_fact_comes_back_as_it_was_said(store, host):
    facts = {
        'inventories': {
            'VCPU': Inventory(total=8, reserved=1, allocation_ratio=2.0),
            'CUSTOM_LICENSE': Inventory(total=9, min_unit=3, max_unit=6, step_size=3),
        },
        'traits': ['HW_CPU_X86_AVX2', 'CUSTOM_FAST'],
        'location': 'site.room.rack.host',
        'numa': [NumaCell(id=0, cpus=[0, 1], memory_mb=512)],
        'metrics': {'load': ReportedMetric(value=0.5, source='agent')},
    }
    host.send(host.says().having(node='node-1', zone='az-1', cell=new_uuid(), **facts))
    row = host.row
    for field in ('inventories', 'location', 'numa', 'metrics'):
        assert getattr(row.facts, field) == facts[field]
    assert sorted(row.facts.traits) == sorted(facts['traits'])
    assert (row.node, row.zone) == ('node-1', 'az-1')
    assert (row.cap('VCPU'), row.cap('CUSTOM_LICENSE')) == (14, 9)
    assert row.reported_at == pytest.approx(store.database.ping(), abs=5)


def test_a_full_report_takes_back_what_it_does_not_say(store, host):
    host.send(host.says().having(traits=['CUSTOM_FAST'], location='rack-1', disabled='sick'))
    host.report()
    row = host.row
    assert (row.facts.traits, row.facts.location, row.service_disabled) == ([], '', None)


def test_a_report_that_changes_no_fact_leaves_the_generation(store, host, claim):
    host.report([claim])
    before = host.row
    assert host.report([claim]).changed is False
    row = host.row
    assert (row.generation, row.sequence) == (before.generation, before.sequence + 1)
    assert row.version > before.version


def test_metrics_are_kept_and_void_no_layout(store, host):
    before = host.row.generation
    outcome = host.send(host.says().having(metrics={'load': ReportedMetric(value=0.9)}))[0]
    assert (outcome.changed, host.row.generation) == (False, before)
    assert host.row.facts.metrics['load'].value == 0.9


# -- deltas ----------------------------------------------------------------------------------
def test_a_delta_states_what_changed_since_its_full_report(store, host):
    host.send(host.says().having(traits=['CUSTOM_FAST']).outside(vcpu=1))
    base = host.sequence
    outcome = host.send(host.says().since(base).outside(vcpu=2))[0]
    assert (outcome.outcome, outcome.changed) == ('applied', True)
    row = host.row
    assert (row.facts.traits, row.foreign, row.cap('VCPU')) == (['CUSTOM_FAST'], {'VCPU': 2}, 8)
    assert row.full_sequence == base


def test_a_lost_delta_is_made_up_for_by_the_next(store, host):
    host.report()
    base = host.sequence
    host.says()  # the first delta, which said two things, is lost
    host.send(host.says().since(base).outside(vcpu=2).having(traits=['CUSTOM_FAST']))
    assert (host.row.foreign, host.row.facts.traits) == ({'VCPU': 2}, ['CUSTOM_FAST'])


def test_a_delta_on_another_full_report_needs_a_full_one(store, host):
    host.report()
    before = host.row
    outcome = host.send(host.says().since(host.sequence + 7).having(sequence=host.sequence + 9))[0]
    assert (outcome.outcome, outcome.changed) == ('needs_full', False)
    assert host.row == before


def test_a_delta_that_overtakes_its_full_report_waits_for_it(store, host):
    full = host.says().outside(vcpu=3)
    delta = host.says().since(host.sequence - 1).outside(vcpu=4)
    assert [f.outcome for f in host.send(delta, full)] == ['needs_full', 'applied']
    assert host.row.foreign == {'VCPU': 3}


def test_a_delta_of_a_new_epoch_needs_a_full_report_first(store, host):
    base = host.sequence
    host.register()
    delta = host.says().having(sequence=base + 5).since(base)
    assert host.send(delta)[0].outcome == 'needs_full'


def test_a_delta_frees_and_confirms_like_a_full_report(store, host):
    first, second = claimed(store, a_draft().taking(host).taking(host))
    host.confirm(first)
    outcome = host.send(host.says().since(1).listing([second]))[0]
    assert (outcome.confirmed, outcome.released) == ([second.id], [first.id])


def test_a_delta_may_take_a_reason_back(store, host):
    host.send(host.says().having(disabled='sick', zone='az-1'))
    base = host.sequence
    host.send(host.says().since(base))
    assert (host.row.service_disabled, host.row.zone) == ('sick', 'az-1')
    host.send(host.says().since(base).having(disabled=None, zone=None))
    assert (host.row.service_disabled, host.row.zone) == (None, None)


def test_a_host_that_registers_with_another_uuid_has_it_from_then_on(store, host):
    old, new = host.row.uuid, new_uuid()
    other = a_host('cmp-2').on(store)
    before = host.row
    registered, change = register_host(store, RegisterHost(name='cmp-1', boot_nonce='n', uuid=new))
    assert (registered.uuid, change.row.uuid, host.row.uuid) == (new, new, new)
    assert host.row.generation > before.generation
    # Also with the nonce that it had, as hosts that report in dictionaries; not without a uuid.
    newer = new_uuid()
    before = host.row
    registered, change = register_host(
        store, RegisterHost(name='cmp-1', boot_nonce='n', uuid=newer)
    )
    assert (registered.uuid, registered.epoch) == (newer, before.epoch)
    assert (change.row.uuid, change.row.generation) == (newer, before.generation + 1)
    assert register_host(store, RegisterHost(name='cmp-1', boot_nonce='m'))[0].uuid == newer
    # What it had is free for others, and what others have is not.
    other.register(uuid=old)
    assert other.row.uuid == old
    before = other.row
    with pytest.raises(exceptions.InvalidMessage, match=f"{newer} is the uuid of host 'cmp-1'"):
        other.register(uuid=newer)
    assert other.row == before
    assert store.claims.audit() == CLEAN


def test_hosts_that_register_at_once_and_change_their_uuids(store, host):
    free = new_uuid()
    other = a_host('cmp-2').on(store)
    first, second, third = store.reports.register_hosts(
        [
            RegisterHost(name='cmp-1', boot_nonce='n', uuid=free),
            RegisterHost(name='cmp-2', boot_nonce='n', uuid=free),
            RegisterHost(name='cmp-3', boot_nonce='n'),
        ]
    )
    assert first[1].row.uuid == free
    assert isinstance(second, exceptions.InvalidMessage)
    assert third[0].name == 'cmp-3'
    assert other.row.uuid != free
