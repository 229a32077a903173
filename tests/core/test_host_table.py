# SPDX-License-Identifier: Apache-2.0
"""The host table: news, truth after commits, picks, snapshots."""

import msgspec
import numpy as np
import pytest

from gantt import exceptions
from gantt.core.messages.report import Hypervisor, ReportedMetric
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.host import Aggregate, HostChange, Placed
from gantt.core.table.host_table import HostTable
from tests.core.builders import NOW, a_change, a_guest, a_host, a_table, an_id, state_of

SOME = {'VCPU': 2, 'MEMORY_MB': 4096}


def test_free_is_capacity_less_use_less_foreign():
    table = a_table(
        a_host(
            1,
            inventories={'VCPU': Inventory(total=10, reserved=2, allocation_ratio=2.0)},
            used={'VCPU': 3},
            foreign={'VCPU': 4, 'MEMORY_MB': 100},
        )
    )
    state = table.host_state('cmp-1')
    assert state.free('VCPU') == 16 - 3 - 4
    assert state.free('MEMORY_MB') == 32768 - 100
    assert state.free('CUSTOM_NEVER') == 0


def test_many_hosts_and_classes_come_after_the_arrays_were_made():
    table = HostTable()
    for number in range(1, 101):
        name = f'CUSTOM_C{number % 30}'
        row = a_host(
            number, inventories={name: Inventory(total=number)}, traits=[f'CUSTOM_T{number * 7}']
        )
        assert table.apply(a_change(row))
    assert len(table) == 100
    for number in (1, 50, 100):
        state = table.host_state(f'cmp-{number}')
        assert state.free(f'CUSTOM_C{number % 30}') == number
        assert state.free('VCPU') == 16
    assert table.names == [f'cmp-{n}' for n in range(1, 101)]
    assert np.frombuffer(table.provider_ids_bytes(), np.int64).tolist() == list(range(1, 101))


@pytest.mark.parametrize('version', [4, 5])
def test_older_and_equal_news_change_nothing(version):
    table = a_table(a_host(1, version=5, used={'VCPU': 1}))
    seq = table.seq
    assert not table.apply(a_change(a_host(1, version=version, used={'VCPU': 9})))
    assert table.host_state('cmp-1').used['VCPU'] == 1
    assert table.seq == seq


def test_a_removed_host_is_gone_and_the_others_are_found():
    table = a_table(*(a_change(a_host(n), a_guest(n, n)) for n in range(1, 5)))
    assert table.apply(HostChange(provider_id=2, row=None))
    assert not table.apply(HostChange(provider_id=2, row=None))
    assert table.row_of('cmp-2') is None
    assert table.row_of_id(2) is None
    assert table.rows_of_consumer(an_id(2, 3)) == []
    for number in (1, 3, 4):
        state = table.host_state(f'cmp-{number}')
        assert state.provider_id == number
        assert state.consumers == [an_id(number, 3)]
        assert table.rows_of_consumer(an_id(number, 3)) == [table.row_of(f'cmp-{number}')]
    assert sorted(np.frombuffer(table.provider_ids_bytes(), np.int64)) == [1, 3, 4]
    assert table.apply(a_change(a_host(2, vcpu=3)))
    assert table.host_state('cmp-2').free('VCPU') == 3


def test_a_renamed_host_is_found_by_its_new_name_only():
    table = a_table(a_host(1, node='n1'))
    table.apply(a_change(a_host(1, name='other', node='n2', version=2)))
    assert (table.row_of('cmp-1'), table.row_of('other')) == (None, 0)
    assert (table.rows_of_nodes(['n1']), table.rows_of_nodes(['n2'])) == ([], [0])
    assert table.rows_of_names(['OTHER']) == [0]
    with pytest.raises(exceptions.NotFound):
        table.host_state('cmp-1')


def test_give_is_the_exact_inverse_of_take():
    table = a_table(a_change(a_host(1), a_guest(1, 1)), a_host(2))
    before = state_of(table)
    for number in (5, 6):
        table.add_pick(1, SOME, a_guest(number, 1, an_id(9)))
    assert table.host_state('cmp-1').free('VCPU') == 12
    assert table.host_state('cmp-1').instances == 3
    assert table.host_state('cmp-1').instances_of(an_id(9)) == [an_id(5, 3), an_id(6, 3)]
    table.remove_pick(1, SOME, an_id(5, 2))
    assert table.host_state('cmp-1').free('VCPU') == 14
    table.remove_pick(1, SOME, an_id(6, 2))
    assert state_of(table) == before
    table.remove_pick(1, SOME, an_id(6, 2))
    assert state_of(table) == before


def test_a_pick_of_a_claim_that_is_there_already_leaves_it_there():
    table = a_table(a_change(a_host(1, used=SOME), a_guest(1, 1, an_id(9))))
    before = state_of(table)
    table.add_pick(1, SOME, a_guest(1, 1, an_id(9)))
    table.remove_pick(1, SOME, an_id(1, 2))
    assert state_of(table) == before
    assert table.host_state('cmp-1').instances_of(an_id(9)) == [an_id(1, 3)]


@pytest.mark.parametrize('count', [2, 9])
def test_equal_picks_of_many_hosts_are_as_one_after_the_other(count):
    one = Inventory(total=1 << 20)
    table = a_table(*(a_host(n, inventories={'CUSTOM_A': one}) for n in range(1, 10)), a_host(10))
    table.add_pick(1, SOME, a_guest(1, 1))
    table.add_pick(2, SOME, a_guest(2, 2))
    table.correct_usage(a_host(2, version=2, used=SOME))
    amounts = SOME | {'CUSTOM_A': 3}
    hosts = [*range(1, count + 1), 1, 2]
    guests = [a_guest(number, host) for number, host in enumerate(hosts, 1)]
    alone = table.copy()
    table.add_equal_picks(amounts, guests, [host - 1 for host in hosts])
    for guest in guests:
        alone.add_pick(guest.provider_id, amounts, guest)
    assert state_of(table) == state_of(alone)
    assert (
        table.io_ops.tolist()
        == alone.io_ops.tolist()
        == [2, 2, *[1] * (count - 2)] + [0] * (10 - count)
    )
    assert table.unreported_claims() == alone.unreported_claims()
    for guest in guests:
        table.remove_pick(guest.provider_id, amounts, guest.claim_id)
        alone.remove_pick(guest.provider_id, amounts, guest.claim_id)
    assert state_of(table) == state_of(alone)


def test_a_pick_that_the_news_made_true_is_not_taken_back():
    table = a_table(a_host(1))
    table.add_pick(1, SOME, a_guest(1, 1))
    table.apply(a_change(a_host(1, version=2, used=SOME), a_guest(1, 1)))
    table.remove_pick(1, SOME, an_id(1, 2))
    assert table.host_state('cmp-1').consumers == [an_id(1, 3)]
    assert table.host_state('cmp-1').used['VCPU'] == SOME['VCPU']


def test_the_truth_after_a_commit_takes_the_place_of_the_pick():
    table = a_table(a_host(1, version=7, generation=3))
    table.add_pick(1, SOME, a_guest(1, 1))
    table.correct_usage(a_host(1, version=8, generation=4, used=SOME))
    state = table.host_state('cmp-1')
    assert state.used == {'VCPU': 2, 'MEMORY_MB': 4096, 'DISK_GB': 0}
    assert (state.generation, state.version) == (4, 8)
    assert state.consumers == [an_id(1, 3)]
    assert table.pending_claims_of(1) == []


def test_a_refused_pick_goes_with_the_truth_and_its_consumer_with_give():
    table = a_table(a_host(1))
    table.add_pick(1, SOME, a_guest(1, 1))
    table.correct_usage(a_host(1, version=2, used={'VCPU': 16}), claims=[])
    table.remove_pick(1, SOME, an_id(1, 2))
    state = table.host_state('cmp-1')
    assert (state.free('VCPU'), state.free('MEMORY_MB')) == (0, 32768)
    assert state.consumers == []


def test_settling_some_claims_leaves_the_other_picks_laid_over():
    table = a_table(a_host(1))
    table.add_pick(1, SOME, a_guest(1, 1))
    table.add_pick(1, SOME, a_guest(2, 1))
    table.correct_usage(a_host(1, version=2, used=SOME), claims=[an_id(1, 2)])
    assert table.host_state('cmp-1').free('VCPU') == 12
    assert table.pending_claims_of(1) == [an_id(2, 2)]


def test_an_older_truth_does_not_bring_back_old_usage():
    table = a_table(a_host(1, version=9, used={'VCPU': 5}))
    table.add_pick(1, SOME, a_guest(1, 1))
    table.correct_usage(a_host(1, version=8, used={'VCPU': 1}))
    assert table.host_state('cmp-1').free('VCPU') == 11


def test_news_with_our_claim_ends_the_overlay_and_news_without_it_does_not():
    table = a_table(a_host(1))
    table.add_pick(1, SOME, a_guest(1, 1))
    table.add_pick(1, SOME, a_guest(2, 1))
    table.apply(a_change(a_host(1, version=2, used=SOME), a_guest(1, 1)))
    state = table.host_state('cmp-1')
    assert state.free('VCPU') == 12
    assert sorted(state.consumers) == [an_id(1, 3), an_id(2, 3)]
    assert table.pending_claims_of(1) == [an_id(2, 2)]


def test_news_of_what_others_placed_before_our_commit_is_still_wanted():
    """Two commits of the same host: ours came second and showed only its own claim."""
    table = a_table(a_host(1, version=1))
    table.add_pick(1, SOME, a_guest(1, 1))
    table.correct_usage(a_host(1, version=3, used={'VCPU': 4}))
    assert table.known_version(1) == 1
    assert table.host_state('cmp-1').used['VCPU'] == 4
    assert table.apply(
        a_change(a_host(1, version=3, used={'VCPU': 4}), a_guest(1, 1), a_guest(2, 1))
    )
    assert sorted(table.host_state('cmp-1').consumers) == [an_id(1, 3), an_id(2, 3)]
    assert not table.apply(a_change(a_host(1, version=3)))


def test_our_own_next_version_is_whole():
    table = a_table(a_host(1, version=1))
    table.add_pick(1, SOME, a_guest(1, 1))
    table.correct_usage(a_host(1, version=2, used=SOME))
    assert table.known_version(1) == 2
    assert not table.apply(a_change(a_host(1, version=2)))
    assert table.host_state('cmp-1').consumers == [an_id(1, 3)]


def test_a_snapshot_does_not_change_and_cannot_be_written():
    table = a_table(a_change(a_host(1), a_guest(1, 1, an_id(9))), a_host(2))
    snapshot = table.snapshot()
    before = state_of(snapshot)
    table.add_pick(1, SOME, a_guest(2, 1, an_id(9)))
    table.apply(a_change(a_host(3, traits=['CUSTOM_X'])))
    table.apply(HostChange(provider_id=2, row=None))
    table.apply(a_change(a_host(1, name='renamed', version=2)))
    assert state_of(snapshot) == before
    assert snapshot.names == ['cmp-1', 'cmp-2']
    assert snapshot.row_of('cmp-2') == 1
    assert snapshot.row_of('renamed') is None
    assert snapshot.placed.in_group(an_id(9)) == {1: {an_id(1, 3): 1}}
    assert snapshot.rows_of_consumer(an_id(1, 3)) == [0]
    with pytest.raises(ValueError, match='read-only'):
        snapshot.used[0][0] = 1
    for write in (
        lambda: snapshot.add_pick(1, SOME, a_guest(3, 1)),
        lambda: snapshot.remove_pick(1, SOME, 'x'),
        lambda: snapshot.apply(a_change(a_host(9))),
        lambda: snapshot.correct_usage(a_host(1)),
        lambda: snapshot.set_aggregates([]),
    ):
        with pytest.raises(exceptions.Bug):
            write()


def test_snapshots_share_what_did_not_change_only():
    table = a_table(a_host(1, traits=['CUSTOM_A']))
    first = table.snapshot()
    table.add_pick(1, SOME, a_guest(1, 1))
    second = table.snapshot()
    assert np.shares_memory(first.traits, second.traits)
    assert second.host_state(0).free('VCPU') == 14
    table.apply(a_change(a_host(1, traits=['CUSTOM_B'], version=2)))
    table.add_class('CUSTOM_NEW')
    third = table.snapshot()
    assert third.host_state(0).traits == {'CUSTOM_B'}
    assert not np.array_equal(third.traits, second.traits)
    assert third.cap.shape == table.cap.shape


def test_a_copy_may_be_written_without_the_table_noticing():
    table = a_table(a_host(1))
    before = state_of(table)
    copy = table.snapshot().copy()
    copy.add_pick(1, SOME, a_guest(1, 1))
    copy.apply(a_change(a_host(2)))
    assert copy.host_state(0).free('VCPU') == 14
    assert len(copy) == 2
    assert state_of(table) == before


def test_the_zone_is_an_aggregates_else_the_reported_else_the_default():
    north = Aggregate(
        id=1, uuid=an_id(1), name='n', metadata={'availability_zone': 'north'}, hosts=['cmp-1']
    )
    plain = Aggregate(id=2, uuid=an_id(2), name='p', hosts=['cmp-1', 'cmp-2'])
    table = a_table(
        a_host(1, zone='east'), a_host(2, zone='east'), a_host(3), aggregates=[north, plain]
    )
    assert [table.zone_name(i) for i in range(3)] == ['north', 'east', 'nova']
    table.default_zone = 'internal'
    assert table.zone_name(2) == 'internal'
    table.set_aggregates([msgspec.structs.replace(north, hosts=['cmp-3'])])
    assert [table.zone_name(i) for i in range(3)] == ['east', 'east', 'north']
    assert table.host_state('cmp-1').aggregates == []


def test_membership_may_come_from_the_list_or_from_the_row():
    many = [
        Aggregate(id=n, uuid=an_id(n), name=f'a{n}', metadata={'k': str(n)}) for n in range(100)
    ]
    many[70] = msgspec.structs.replace(many[70], hosts=['cmp-1'])
    table = a_table(a_host(1, aggregates=[an_id(99)]), aggregates=many)
    state = table.host_state('cmp-1')
    assert [a.name for a in state.aggregates] == ['a70', 'a99']
    assert state.metadata('k') == {'70', '99'}
    bits = table.aggregate_bits(['a70', an_id(99), 'unknown'])
    assert all(int(table.aggregates[word, 0]) & value == value for word, value in bits.items())
    assert bits


def test_metrics_are_columns_of_their_own():
    table = a_table(
        a_host(
            1, metrics={'cpu.percent': ReportedMetric(value=0.5, source='agent', age_seconds=5.0)}
        ),
        a_host(2),
    )
    assert table.metrics['cpu.percent'][0] == 0.5
    assert np.isnan(table.metrics['cpu.percent'][1])
    table.apply(a_change(a_host(1, version=2)))
    assert np.isnan(table.metrics['cpu.percent'][0])


def test_stale_hosts_are_counted_by_the_tables_clock():
    table = a_table(a_host(1), a_host(2, reported_at=NOW - 500), a_host(3, reported_at=0.0))
    assert table.count_stale(180) == 2
    assert table.count_stale(600) == 1
    table.now += 1000
    assert table.count_stale(600) == 3


def test_the_oldest_report_is_one_that_came():
    """Who never reported, as a pool, has no report that is older than all."""
    table = a_table(a_host(1), a_host(2, reported_at=NOW - 500), a_host(3, reported_at=0.0))
    assert table.oldest_report_seconds([0, 1, 2]) == 500
    assert table.oldest_report_seconds([0, 2]) == 10
    assert table.oldest_report_seconds([2]) == table.oldest_report_seconds([]) == 0


def test_group_generations_are_remembered():
    table = a_table(groups={an_id(1): 4})
    table.set_groups({an_id(2): 1})
    assert [table.group_generation(an_id(n)) for n in (1, 2, 3)] == [4, 1, 0]


def test_a_consumer_with_two_claims_on_a_host_stays_when_one_ends():
    table = a_table(a_host(1))
    first, second = (Placed(an_id(n, 2), an_id(7, 3), 1) for n in (1, 2))
    table.add_pick(1, SOME, first)
    table.add_pick(1, SOME, second)
    table.remove_pick(1, SOME, first.claim_id)
    assert table.rows_of_consumer(an_id(7, 3)) == [0]
    table.remove_pick(1, SOME, second.claim_id)
    assert table.rows_of_consumer(an_id(7, 3)) == []


def test_a_claim_on_a_part_of_the_host_counts_as_on_the_host():
    table = a_table(a_change(a_host(1), Placed(an_id(1, 2), an_id(1, 3), 77, an_id(9))))
    assert table.rows_of_consumer(an_id(1, 3)) == [0]
    assert table.placed.in_group(an_id(9)) == {1: {an_id(1, 3): 1}}
    table.apply(HostChange(provider_id=1, row=None))
    assert table.placed.in_group(an_id(9)) == {}


def test_a_pick_on_an_unknown_host_is_a_bug():
    with pytest.raises(exceptions.Bug):
        a_table().add_pick(1, SOME, a_guest(1, 1))


def test_equal_hosts_share_their_trait_lists():
    names = [f'CUSTOM_{n}' for n in range(50)]
    table = a_table(a_host(1, traits=list(names)), a_host(2, traits=list(names)))
    first, second = (table.hosts[i].facts.traits for i in (0, 1))
    assert first == names
    assert first is second


def test_facts_follow_news():
    table = a_table(a_host(1, hypervisor=Hypervisor(version=5), location='s.r.k.h', cell=an_id(1)))
    assert table.hypervisor_version.tolist() == [5]
    assert table.cell_name(0) == an_id(1)
    table.apply(a_change(a_host(1, version=2, vcpu=3, disabled='broken', over_committed=True)))
    assert table.hypervisor_version.tolist() == [0]
    assert table.cell_name(0) is None
    assert (table.open[0], table.enabled[0], table.over_committed[0]) == (False, False, True)
    assert table.host_state(0).free('VCPU') == 3


def test_a_claim_that_is_laid_over_a_host_twice_is_counted_once_when_it_is_settled():
    table = a_table(a_host(1))
    claim = a_guest(1, 1)
    for _ in range(2):
        table.add_pick(1, {'VCPU': 2}, claim)
    settled, others = table.commit_picks({1: 2}, {claim.claim_id}, {1})
    assert settled == []
    for row in others:
        table.correct_usage(row, {claim.claim_id})
    code = table.class_code('VCPU')
    assert table.hosts[0].used == {'VCPU': 2}
    assert table.free[code].tolist() == [14]
