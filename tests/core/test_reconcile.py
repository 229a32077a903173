# SPDX-License-Identifier: Apache-2.0
"""The fold of a report, where it is finer than a store shows."""

import pytest

from gantt import exceptions
from gantt.core.claims import reconcile, registration
from gantt.core.claims.claim import Claim, State, with_state
from gantt.core.messages.report import HostReport, RegisterHost, ReportedMetric
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.host import HostFacts, HostRow
from tests.builders import a_guest, a_report, changed, new_uuid, uuid_of

ROW = HostRow(
    id=7,
    uuid=uuid_of('host'),
    name='cmp-1',
    epoch=3,
    sequence=10,
    full_sequence=8,
    generation=5,
    version=20,
    facts=HostFacts(
        inventories={
            'VCPU': Inventory(total=8),
            'MEMORY_MB': Inventory(total=16_384),
            'DISK_GB': Inventory(total=100),
        }
    ),
)


def a_claim(state='confirmed', **fields):
    base = {
        'id': new_uuid(),
        'request_id': new_uuid(),
        'consumer': new_uuid(),
        'provider_id': 7,
        'host': 'cmp-1',
        'state': State(state),
        'allocations': {7: {'VCPU': 2}},
    }
    return Claim(**{**base, **fields})


def fold(report, *claims, known=(), row=ROW):
    used = reconcile.usage_after({}, row.id, (), claims)
    return reconcile.apply_report(
        changed(row, used=used), claims, {c.id: c for c in known}, report.build(), 1000.0
    )


@pytest.mark.parametrize(
    ('epoch', 'sequence', 'fate'),
    [(2, 99, 'gone'), (4, 1, 'gone'), (3, 10, 'stale'), (3, 9, 'stale'), (3, 11, 'applied')],
)
def test_the_epoch_comes_before_the_sequence(epoch, sequence, fate):
    effect = fold(a_report().at(epoch, sequence))
    assert effect.outcome == fate
    assert (effect.row.version > ROW.version) == (fate == 'applied')


@pytest.mark.parametrize(('base', 'fate'), [(8, 'applied'), (7, 'needs_full'), (9, 'needs_full')])
def test_a_delta_rests_on_the_full_report_that_was_applied(base, fate):
    assert fold(a_report().at(3, 11).since(base)).outcome == fate


def test_what_is_refused_gives_the_very_same_row_back():
    row = changed(ROW, used={'VCPU': 2})
    for report in (a_report().at(2, 1), a_report().at(3, 1), a_report().at(3, 11).since(1)):
        effect = reconcile.apply_report(row, [a_claim()], {}, report.build(), 1000.0)
        assert effect.row is row
        assert (effect.claims, effect.changed) == ([], False)


def test_a_quiet_report_writes_the_sequence_and_the_time_only():
    claim = a_claim()
    effect = fold(a_report().at(3, 11).listing([claim]), claim)
    before = changed(ROW, used={'VCPU': 2})
    assert effect.row == changed(
        before, sequence=11, full_sequence=11, reported_at=1000.0, version=21
    )
    assert effect.row.facts is ROW.facts


def test_facts_that_differ_in_metrics_only_are_no_change_of_generation():
    effect = fold(a_report().at(3, 11).having(metrics={'load': ReportedMetric(value=1.0)}))
    assert (effect.changed, effect.row.generation) == (False, 5)
    assert effect.row.facts is not ROW.facts


def test_the_generation_grows_once_however_much_changed():
    first, second = a_claim('reserved'), a_claim()
    report = a_report().at(3, 11).listing([first, a_guest(new_uuid())]).outside(vcpu=1)
    effect = fold(report, first, second)
    assert len(effect.claims) == 3
    assert effect.row.generation == 6


def test_the_facts_alone_do_what_the_whole_fold_does_where_all_is_quiet():
    claim = a_claim()
    report = a_report().at(3, 11).listing([claim]).using(vcpu=5)
    whole = fold(report, claim)
    row = changed(ROW, used={'VCPU': 2})
    assert reconcile.fold_facts(row, report.build(), 1000.0, row.used, row.used) == whole.row


def test_what_a_claim_takes_from_pools_is_not_counted_on_the_host():
    claim = a_claim(allocations={7: {'VCPU': 2}, 9: {'DISK_GB': 50}})
    effect = fold(a_report().at(3, 11), claim)
    assert effect.released == [claim.id]
    assert effect.row.used == {}


def test_an_adopted_guest_takes_what_its_ended_claim_took_pools_included():
    lost = a_claim('released', allocations={7: {'VCPU': 2}, 9: {'DISK_GB': 50}}, group=new_uuid())
    effect = fold(a_report().at(3, 11).listing([lost]), known=[lost])
    adopted = effect.claims[0]
    assert adopted.allocations == lost.allocations
    assert (adopted.group, effect.groups) == (lost.group, [lost.group])


def test_a_guest_that_ran_elsewhere_takes_the_same_here():
    lost = a_claim('confirmed', provider_id=8, host='cmp-2', allocations={8: {'VCPU': 2}})
    effect = fold(a_report().at(3, 11).listing([lost]), known=[lost])
    assert [c.allocations for c in effect.claims] == [{7: {'VCPU': 2}}]
    assert effect.claims[0].id != lost.id


def test_the_id_of_a_claim_of_another_consumer_is_not_believed():
    lost = a_claim('released')
    guest = changed(a_guest(new_uuid(), vcpu=1), claim_id=lost.id)
    effect = fold(a_report().at(3, 11).listing([guest]), known=[lost])
    assert effect.claims[0].consumer == guest.consumer
    assert effect.claims[0].allocations == {7: {'VCPU': 1}}


def test_a_guest_listed_twice_is_adopted_once():
    consumer = new_uuid()
    twice = [a_guest(consumer), changed(a_guest(consumer), claim_id=new_uuid())]
    assert len(fold(a_report().at(3, 11).listing(twice)).adopted) == 1


def test_a_guest_listed_under_its_claim_and_an_old_one_is_not_adopted():
    claim = a_claim()
    old = changed(claim, id=new_uuid(), state=State.RELEASED)
    effect = fold(a_report().at(3, 11).listing([claim, old]), claim, known=[old])
    assert (effect.claims, effect.adopted) == ([], [])


def test_a_guest_of_an_ended_claim_is_adopted_beside_a_build_for_it():
    build = a_claim('reserved')
    old = changed(build, id=new_uuid(), state=State.RELEASED)
    effect = fold(a_report().at(3, 11).listing([old], [build]), build, known=[old])
    assert len(effect.adopted) == 1


def test_the_same_report_folded_again_adopts_under_the_same_id():
    report = a_report().at(3, 11).listing([a_guest(uuid_of('guest'))])
    first, again = fold(report).adopted, fold(report).adopted
    assert first == again
    assert fold(report.at(3, 12)).adopted != first
    assert fold(report, row=changed(ROW, uuid=new_uuid())).adopted != first


def test_of_two_reserved_claims_the_older_is_the_one_that_runs():
    consumer = new_uuid()
    younger, older = (a_claim('reserved', consumer=consumer, created_at=at) for at in (20.0, 10.0))
    effect = fold(a_report().at(3, 11).listing([a_guest(consumer)]), younger, older)
    assert effect.confirmed == [older.id]


def test_foreign_use_of_a_class_without_inventory_flags_the_host():
    effect = fold(a_report().at(3, 11).outside(CUSTOM_LICENSE=1))
    assert effect.row.over_committed


def test_usage_leaves_out_what_is_nothing():
    claim = a_claim()
    over = with_state(claim, State.RELEASED, 'x', 5.0)
    assert reconcile.usage_after({'VCPU': 2}, 7, [claim], [over]) == {}
    assert reconcile.usage_after({'VCPU': 2}, 7, [claim], [claim]) == {'VCPU': 2}
    assert reconcile.usage_after({'VCPU': 2}, 8, [claim], [over]) == {'VCPU': 2}


# -- registration ---------------------------------------------------------------------------
def test_a_new_host_begins_after_the_last_epoch_of_its_name():
    registration_ = RegisterHost(name='cmp-9', boot_nonce='a')
    assert registration.register(None, registration_, provider_id=3).epoch == 1
    assert registration.register(None, registration_, provider_id=3, last_epoch=6).epoch == 7


def test_another_nonce_begins_a_new_epoch_and_the_same_does_not():
    row = changed(ROW, boot_nonce='a')
    same = registration.register(row, RegisterHost(name='cmp-1', boot_nonce='a'), provider_id=7)
    assert (same.epoch, same.sequence, same.generation) == (3, 10, 5)
    new = registration.register(row, RegisterHost(name='cmp-1', boot_nonce='b'), provider_id=7)
    assert (new.epoch, new.sequence, new.full_sequence, new.generation) == (4, 0, 0, 6)
    assert new.facts == row.facts


@pytest.mark.parametrize(
    ('journal', 'count', 'taken'),
    [(1, 4, False), (1, 5, True), (1, 6, True), (2, 1, True), (None, 0, True)],
)
def test_only_an_older_registration_of_the_same_journal_is_refused(journal, count, taken):
    row = changed(ROW, boot_nonce='a', journal=uuid_of(1), journal_count=5)
    message = RegisterHost(
        name='cmp-1', boot_nonce='b', journal=journal and uuid_of(journal), journal_count=count
    )
    if taken:
        assert registration.register(row, message, provider_id=7).epoch == 4
    else:
        with pytest.raises(exceptions.StaleRegistration):
            registration.register(row, message, provider_id=7)


def test_the_very_same_registration_is_a_repeat_whatever_it_counts():
    row = changed(ROW, boot_nonce='a', journal=uuid_of(1), journal_count=5)
    message = RegisterHost(name='cmp-1', boot_nonce='a', journal=uuid_of(1), journal_count=4)
    same = registration.register(row, message, provider_id=7)
    assert (same.epoch, same.journal_count) == (3, 5)


def test_each_fact_of_a_host_is_a_field_of_its_report():
    own = {'agent'}  # what an agent beside Nova sent, which comes by another message
    assert set(HostFacts.__struct_fields__) - own <= set(HostReport.FACTS)
