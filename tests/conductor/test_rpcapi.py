# SPDX-License-Identifier: Apache-2.0
"""``nova.scheduler.rpcapi`` as the client of a real scheduler: every caller, every answer.

What comes back was made into objects by Nova's own classes, on the other side
(``nova_side/orders.py`` refuses what they do not accept).
"""

import collections
import uuid

import pytest

from tests.conductor.site import CELL, HERE, RATIO, THERE

pytestmark = [pytest.mark.rabbit, pytest.mark.postgresql]

HELD = {'DISK_GB': 1, 'MEMORY_MB': 512, 'VCPU': 1}


def some(count=1):
    return [str(uuid.uuid4()) for _ in range(count)]


def hosts_of(answer):
    return [[selection['service_host'] for selection in hosts] for hosts in answer['selections']]


def chosen(answer):
    return [hosts[0] for hosts in hosts_of(answer)]


def test_a_boot_has_alternates_of_its_own_cell_and_says_all(cloud, conductor):
    (guest,) = some()
    answer = conductor.select('boot', [guest], alternates=True)
    ((first, *others),) = answer['selections']
    assert len(others) == 2
    rows = {row.uuid: row for row in (h.row for h in cloud.site.store.feed.load_everything().hosts)}
    for selection in (first, *others):
        row = rows[selection['compute_node_uuid']]
        assert (selection['service_host'], selection['nodename'], selection['cell_uuid']) == (
            row.name,
            row.name,
            row.cell,
        )
        assert selection['cell_uuid'] == first['cell_uuid']
        assert selection['availability_zone'] == 'nova'
        assert selection['limits'] == {}
        assert selection['allocation_request_version'] == '1.36'
        assert selection['allocation_request'] == {
            'allocations': {row.uuid: {'resources': HELD}},
            'mappings': {'': [row.uuid]},
        }
    assert len({selection['service_host'] for selection in (first, *others)}) == 3
    assert cloud.live(guest) == [(first['service_host'], 'reserved')]


def test_alternates_stay_in_the_cell_wherever_the_first_is(cloud, conductor):
    (hosts,) = hosts_of(conductor.select('boot', some(), alternates=True, ignore=HERE[1:]))
    assert set(hosts) <= set(HERE) or set(hosts) <= set(THERE)
    ignored = HERE[3:] + THERE[1:]
    (hosts,) = hosts_of(
        conductor.select('boot', some(), alternates=True, ignore=ignored + HERE[:2])
    )
    assert len(hosts) == 1, 'the other host that fits is of another cell'


def test_a_multi_create_answers_for_each_instance_in_order(cloud, conductor):
    guests = some(3)
    answer = conductor.select('boot-multi3', guests, alternates=True)
    assert [len(hosts) for hosts in answer['selections']] == [3, 3, 3]
    assert [cloud.live(guest) for guest in guests] == [
        [(host, 'reserved')] for host in chosen(answer)
    ]


@pytest.mark.parametrize('capture', ['boot-az-host', 'boot-host-2.74'])
def test_a_host_that_was_named_is_taken(cloud, conductor, capture):
    assert hosts_of(conductor.select(capture, some(), alternates=True)) == [['compute-003']]


def test_a_group_lands_apart(cloud, conductor):
    taken = {'compute-004', 'compute-001'}
    for _ in range(3):
        (host,) = chosen(conductor.select('boot-anti-affinity-third', some(), alternates=True))
        assert host not in taken
        taken.add(host)


def test_a_resize_leaves_its_host_and_keeps_its_cell(cloud, conductor):
    (guest,) = some()
    (hosts,) = hosts_of(conductor.select('resize', [guest], alternates=True))
    assert 'compute-004' not in hosts and set(hosts) <= set(HERE) and len(hosts) == 3
    assert [claim.purpose for claim in cloud.claims(guest)] == ['resize']


@pytest.mark.parametrize(
    ('capture', 'purpose', 'ignored'),
    [('live-migrate', 'live_migrate', 'compute-002'), ('unshelve', 'unshelve', None)],
)
def test_callers_without_alternates_get_one_host_of_the_cell(
    cloud, conductor, capture, purpose, ignored
):
    (guest,) = some()
    (hosts,) = hosts_of(conductor.select(capture, [guest]))
    assert len(hosts) == 1 and hosts[0] in HERE and hosts[0] != ignored
    assert [claim.purpose for claim in cloud.claims(guest)] == [purpose]


@pytest.mark.parametrize('target', [None, 'compute-005'])
def test_an_evacuation_leaves_its_host(cloud, conductor, target):
    (guest,) = some()
    words = {} if target is None else {'target': target}
    answer = conductor.select('boot', [guest], evacuate='compute-003', cell=CELL, **words)
    (host,) = chosen(answer)
    assert host in HERE and host != 'compute-003' and target in (None, host)
    assert cloud.live(guest) == [(host, 'reserved')]
    assert cloud.claims(guest)[0].purpose.is_move


def test_a_rebuild_with_a_new_image_asks_about_its_host_and_claims_nothing(cloud, conductor):
    (guest,) = some()
    before = conductor.select('boot', [guest], force='compute-002')
    answer = conductor.select('boot', [guest], rebuild='compute-002', cell=CELL)
    ((selection,),) = answer['selections']
    assert selection['service_host'] == 'compute-002'
    assert selection['allocation_request'] is None
    assert selection['allocation_request_version'] is None
    assert chosen(before) == ['compute-002']
    assert len(cloud.claims(guest)) == 1


def test_a_rebuild_on_a_host_that_is_full_is_answered(cloud, conductor):
    """It takes nothing: that there is no room beside the guest itself does not matter."""
    (guest,) = some()
    answer = conductor.select('boot', [guest], rebuild='compute-002', cell=CELL, memory_mb=1 << 20)
    assert chosen(answer) == ['compute-002']


def test_a_guest_with_cells_is_told_the_limits_of_each_host(cloud, conductor):
    answer = conductor.select(
        'boot', some(), alternates=True, cells=1, extra_specs={'hw:numa_nodes': '1'}
    )
    assert len(answer['selections'][0]) == 3
    for selection in answer['selections'][0]:
        limits = selection['limits']['numa_topology']
        assert (limits['cpu_allocation_ratio'], limits['ram_allocation_ratio']) == (RATIO, 1.0)


def test_a_refusal_is_novas_own(cloud, conductor):
    error = conductor.select('boot', some(), memory_mb=10_000_000)['error']
    assert error['no_valid_host'], error
    assert error['code'] == 500
    assert error['message'].startswith('No valid host was found. 0/10 hosts fit')
    message = f'No valid host was found. {error["kwargs"]["reason"]}'
    assert error['message'].splitlines()[0] == message


def test_a_repeat_of_nova_claims_once(cloud, conductor):
    guests = some()
    first = conductor.select('boot', guests, request_id='req-twice', alternates=True)
    assert conductor.select('boot', guests, request_id='req-twice', alternates=True) == first
    assert len(cloud.claims(guests[0])) == 1


@pytest.mark.parametrize('cap', ['4.5', '4.4', '4.3', '4.2', '4.1', '4.0', 'liberty', 'pike'])
def test_every_version_that_nova_can_be_held_to(cloud, conductor, cap):
    """Before 4.5 the answer is dictionaries; before 4.3 the request is."""
    (guest,) = some()
    answer = conductor.select('boot', [guest], objects=False, cap=cap)
    (destination,) = answer['dictionaries']
    assert destination == {
        'host': destination['host'],
        'nodename': destination['host'],
        'limits': {},
    }
    assert cloud.live(guest) == [(destination['host'], 'reserved')]


@pytest.mark.parametrize('cap', ['4.4', '4.0'])
def test_a_forced_host_and_hosts_to_leave_out_in_every_version(cloud, conductor, cap):
    words = {'objects': False, 'cap': cap}
    (destination,) = conductor.select('boot', some(), force='compute-006', **words)['dictionaries']
    assert destination['host'] == 'compute-006'
    ignored = HERE[1:] + THERE
    (destination,) = conductor.select('boot', some(), ignore=ignored, **words)['dictionaries']
    assert destination['host'] == HERE[0]


def test_a_thousand_calls_sixteen_at_a_time_and_none_fails(cloud, conductor):
    placed_there = 1000
    before = len(cloud.site.store.claims.list_claims(limit=100_000))
    answer = conductor.many('boot', placed_there, at_once=16)
    assert answer['errors'] == []
    assert sum(answer['hosts'].values()) == placed_there
    claims = cloud.site.store.claims.list_claims(limit=100_000)
    assert len(claims) - before == placed_there
    placed = collections.Counter(claim.host for claim in claims)
    assert all(placed[host] >= number for host, number in answer['hosts'].items())
