# SPDX-License-Identifier: Apache-2.0
"""Picks count as operations until their host reports; devices that are picked are not free."""

import msgspec
import pytest

from gantt.core.filters.host_limits import IoOpsFilter
from gantt.core.messages.layout import DeviceLayout, Layout
from gantt.core.messages.report import ReportedMetric
from gantt.core.resources.host import HostChange, Placed
from gantt.core.table.usage import UnreportedPicks
from gantt.core.topology.free import pool_key
from gantt.core.weighers.devices import PCIWeigher
from gantt.scheduler import table_log
from tests.core.builders import NOW, a_change, a_guest, a_host, a_request, a_table
from tests.core.topology.hosts import a_pool

BUSY = {'stats.io_workload': ReportedMetric(value=2)}


def committed(table, host, guests, version):
    """Lay these picks over a host as after a commit that went well."""
    for guest in guests:
        table.add_pick(host.id, {'VCPU': 1}, guest)
    table.correct_usage(msgspec.structs.replace(host, version=version, used={'VCPU': len(guests)}))


def reported(host, guests, version, later=1.0, metrics=BUSY):
    """Return the change of a host that has reported since."""
    row = msgspec.structs.replace(
        a_host(host.id, metrics=metrics), version=version, reported_at=host.reported_at + later
    )
    return a_change(row, *guests)


def three(host=1):
    return [a_guest(n, host) for n in (1, 2, 3)]


def test_three_picks_are_three_operations_until_the_host_reports():
    host = a_host(1, metrics=BUSY)
    table = a_table(host, a_host(2))
    spec, rule = a_request().spec, IoOpsFilter({'max_io_ops_per_host': 5})
    guests = three()
    for n, guest in enumerate(guests, 1):
        table.add_pick(1, {'VCPU': 1}, guest)
        assert table.io_ops.tolist() == [2 + n, 0]
    assert rule.mask(table, spec).tolist() == [False, True]
    committed(table, host, guests, version=2)
    assert table.io_ops.tolist() == [5, 0]
    assert rule.mask(table, spec).tolist() == [False, True]
    table.apply(reported(host, guests, version=3))
    assert table.io_ops.tolist() == [2, 0]
    assert rule.mask(table, spec).tolist() == [True, True]


def test_news_that_is_no_report_forgets_none():
    host, guests = a_host(1), three()
    table = a_table(host)
    committed(table, host, guests, version=2)
    table.apply(a_change(msgspec.structs.replace(host, version=3), *guests))
    assert table.io_ops.tolist() == [3]


def test_who_is_gone_is_no_operation():
    host, guests = a_host(1), three()
    table = a_table(host)
    committed(table, host, guests, version=2)
    table.apply(a_change(msgspec.structs.replace(host, version=3), guests[1]))
    assert table.io_ops.tolist() == [1]
    table.apply(HostChange(provider_id=1, row=None))
    table.apply(a_change(msgspec.structs.replace(host, version=4), guests[1]))
    assert table.io_ops.tolist() == [0]


def test_a_pick_given_back_counts_no_more_before_and_after_the_commit():
    host, guests = a_host(1), three()
    table = a_table(host)
    for guest in guests:
        table.add_pick(1, {}, guest)
    table.remove_pick(1, {}, guests[0].claim_id)
    assert table.io_ops.tolist() == [2]
    table.correct_usage(msgspec.structs.replace(host, version=2), claims=[guests[2].claim_id])
    assert table.io_ops.tolist() == [2]
    for _ in range(2):
        table.remove_pick(1, {}, guests[1].claim_id)
        assert table.io_ops.tolist() == [1]


def test_a_repeat_on_its_own_place_counts_once():
    host, guests = a_host(1), three()
    table = a_table(host)
    committed(table, host, guests, version=2)
    table.add_pick(1, {}, guests[0])
    assert table.io_ops.tolist() == [3]
    table.remove_pick(1, {}, guests[0].claim_id)
    assert table.io_ops.tolist() == [3]


def test_a_truth_that_is_older_than_the_last_report_is_reported():
    host, guests = a_host(1), three()
    table = a_table(host)
    table.add_pick(1, {}, guests[0])
    table.apply(reported(host, [], version=5))
    assert table.io_ops.tolist() == [3]
    table.correct_usage(msgspec.structs.replace(host, version=2))
    assert table.io_ops.tolist() == [2]


def test_a_pick_that_the_news_brings_waits_for_the_next_report():
    host, guests = a_host(1), three()
    table = a_table(host)
    table.add_pick(1, {}, guests[0])
    table.apply(a_change(msgspec.structs.replace(host, version=2), guests[0]))
    assert table.io_ops.tolist() == [1]
    table.apply(reported(host, guests[:1], version=3))
    assert table.io_ops.tolist() == [2]


@pytest.mark.parametrize('kind', ['copy', 'snapshot'])
def test_versions_of_the_table_keep_their_own(kind):
    host, guests = a_host(1), three()
    table = a_table(host)
    committed(table, host, guests, version=2)
    other = getattr(table, kind)()
    table.apply(reported(host, guests, version=3))
    assert (other.io_ops.tolist(), table.io_ops.tolist()) == ([3], [2])
    assert other.unreported_claims() == {1: dict.fromkeys((g.claim_id for g in guests), NOW - 10)}
    assert table.unreported_claims() == {}


def test_a_checkpoint_has_the_picks_that_no_report_contains():
    host, guests = a_host(1, metrics=BUSY), three()
    table = a_table(host)
    committed(table, host, guests, version=2)
    packed = table_log._encode(
        [(0, table_log.Checkpoint(table_log.everything_of(table), table.unreported_claims()))]
    )
    ((_, checkpoint),) = table_log._decode(packed)
    again = checkpoint.table()
    assert again.io_ops.tolist() == table.io_ops.tolist() == [5]
    again.apply(reported(host, guests, version=3))
    assert again.io_ops.tolist() == [2]


def test_what_is_unknown_is_not_there():
    fresh = UnreportedPicks()
    fresh.note(1, [], NOW)
    fresh.drop(1, 'x')
    assert fresh.as_dict() == {}
    fresh.keep(1, ())
    assert fresh.operations(a_host(1), ()) == 0


# -- devices ----------------------------------------------------------------------------
def with_devices(number, host, pool, count):
    guest = a_guest(number, host)
    layout = Layout(devices=[DeviceLayout(pool=pool_key(pool), count=count)])
    return Placed(guest.claim_id, guest.consumer, host, None, layout)


def test_picks_take_devices_and_give_them_back():
    pool, other = a_pool(4), a_pool(2, product_id='ff')
    table = a_table(a_host(1, devices=[pool, other]), a_host(2))
    assert table.free_devices.tolist() == [6, 0]
    first, second = with_devices(1, 1, pool, 3), with_devices(2, 1, other, 2)
    table.add_pick(1, {}, first)
    table.add_pick(1, {}, second)
    assert table.free_devices.tolist() == [1, 0]
    snapshot = table.snapshot()
    table.remove_pick(1, {}, first.claim_id)
    assert (table.free_devices.tolist(), snapshot.free_devices.tolist()) == ([4, 0], [1, 0])


def test_claims_take_devices_until_the_host_counts_them_itself():
    pool = a_pool(4)
    guest = with_devices(1, 1, pool, 3)
    table = a_table(a_change(a_host(1, devices=[pool]), guest))
    assert table.free_devices.tolist() == [1]
    table.apply(a_change(a_host(1, devices=[pool], metrics=BUSY, version=2), guest))
    assert table.free_devices.tolist() == [1]
    settled = msgspec.structs.replace(guest.layout, reported=True)
    placed = Placed(guest.claim_id, guest.consumer, 1, None, settled)
    table.apply(a_change(a_host(1, devices=[a_pool(1)], version=3), placed))
    assert table.free_devices.tolist() == [1]
    table.apply(a_change(a_host(1, version=4), placed))
    assert table.free_devices.tolist() == [0]


def test_hosts_with_fewer_free_devices_are_preferred_also_once_the_last_is_taken():
    pool = a_pool(2)
    table = a_table(a_host(1, devices=[pool]), a_host(2))
    weigher, spec = PCIWeigher(), a_request().spec
    rows = table.ids - 1
    assert weigher.raw(table, spec, rows).tolist() == [98, 100]
    table.add_pick(1, {}, with_devices(1, 1, pool, 2))
    assert weigher.raw(table, spec, rows).tolist() == [100, 100]
    assert [weigher.value(table, spec, row) for row in (0, 1)] == [100, 100]
    assert weigher.raw(a_table(a_host(1)), spec, rows[:1]) is None
