# SPDX-License-Identifier: Apache-2.0
"""What-ifs of pools, and of what is nested below pools and hosts.

The plain reference is the change itself: what a what-if answers is what the same request is
answered when the store has been changed so.
"""

from collections.abc import Callable
from typing import Any

import pytest

from gantt import exceptions
from gantt.core.messages.request import RequestKind, RequestSpec, SelectDestinations
from gantt.core.messages.resource_classes import Inventory
from gantt.core.messages.tree_request import DeviceAmount, TreeRequest
from gantt.core.placement.what_if_edits import HostEdit, HostEdits
from gantt.core.resources.provider import ResourceProvider
from gantt.insights.views import Explanation
from tests.builders import set_inventories, uuid_of
from tests.http.callers import as_caller
from tests.http.site import Site, fixed
from tests.nested import below

ROOM, OTHER = uuid_of('room'), uuid_of('other room')
#: Pool -> total of its storage.
DISKS = {'slow': 1000, 'fast': 500}


@pytest.fixture
def pools() -> dict[str, ResourceProvider]:
    return {}


@pytest.fixture
def site(pools: dict[str, ResourceProvider]) -> Site:
    """Two pools with storage, of which ``slow`` has a part ``tray`` and that one ``disk``."""
    new_site = Site()
    store = new_site.world.store
    for name, total in DISKS.items():
        disk = Inventory(total=total, reserved=100, max_unit=2000)
        pools[name] = store.providers.create_provider(name, inventories={'DISK_GB': disk})
    pools['tray'] = below(store, 'tray', pools['slow'].uuid, IPV4_ADDRESS=4)
    pools['disk'] = below(store, 'disk', pools['tray'].uuid, DISK_GB=50, SRIOV_NET_VF=8)
    store.providers.save_provider_aggregates(pools['slow'].uuid, [ROOM])
    _seen(new_site)
    return new_site


def _seen(site: Site) -> None:
    site.world.turn()
    site.world.turn()
    site.insights.reload_soon()


def ask(number: int, count: int = 1, **spec: Any) -> SelectDestinations:
    spec = {'kind': RequestKind.POOL, 'consumer_type': 'VOLUME', **spec}
    return SelectDestinations(
        request_id=fixed(number),
        consumers=[fixed(number * 1000 + i) for i in range(count)],
        spec=RequestSpec(**spec),
    )


def facts(explanation: Explanation) -> tuple:
    """What of an answer follows from the providers, and not from their ids."""
    return (
        *(explanation.outcome, explanation.hosts, explanation.reason),
        [
            (member.host, [(step.filter, step.removed) for step in member.funnel])
            for member in explanation.members
        ],
    )


def compare(
    site: Site, request: SelectDestinations, edits: HostEdits, change: Callable[[], object]
) -> Explanation:
    """What a what-if answers, which is what is answered once the change is made."""
    then = site.insights.what_if(request, edits).then
    before = site.insights.what_if(request, HostEdits()).now
    change()
    _seen(site)
    now = site.insights.what_if(request, HostEdits()).now
    assert facts(then) == facts(now)
    assert facts(then) != facts(before), 'the change is one that is seen'
    return then


def _save(site: Site, pool: ResourceProvider, **disk: Any) -> None:
    numbers = {'total': pool.inventories['DISK_GB'].total, 'reserved': 100, 'max_unit': 2000}
    set_inventories(site.world.store, pool.uuid, {'DISK_GB': Inventory(**numbers | disk)})


@pytest.mark.parametrize(
    ('edit', 'disk', 'amount', 'host'),
    [
        ({'allocation_ratios': {'DISK_GB': 3.0}}, {'allocation_ratio': 3.0}, 1200, 'fast'),
        ({'reserved': {'DISK_GB': 0}}, {'reserved': 0}, 500, 'slow'),
        ({'reserved': {'DISK_GB': 500}}, {'reserved': 500}, 300, 'slow'),
        ({'resources': {'DISK_GB': 2000}}, {'total': 2000}, 1500, 'fast'),
        (
            {'resources': {'DISK_GB': 900}, 'allocation_ratios': {'DISK_GB': 0.25}},
            {'total': 900, 'allocation_ratio': 0.25},
            300,
            'slow',
        ),
    ],
)
def test_other_numbers(
    site: Site, pools: dict[str, ResourceProvider], edit, disk, amount, host
) -> None:
    request = ask(1, resources={'DISK_GB': amount})
    edits = HostEdits(change={'fast': HostEdit(**edit)})
    then = compare(site, request, edits, lambda: _save(site, pools['fast'], **disk))
    assert then.members[0].host == host


@pytest.mark.parametrize('named', ['uuid', 'name'])
def test_aggregates_are_joined_and_left(
    site: Site, pools: dict[str, ResourceProvider], named: str
) -> None:
    store = site.world.store
    store.declarations.save_aggregate('other room', {}, [], uuid=OTHER)
    _seen(site)
    other = OTHER if named == 'uuid' else 'other room'
    edits = HostEdits(
        change={
            'slow': HostEdit(without_aggregates=[ROOM]),
            'fast': HostEdit(aggregates=[ROOM, other]),
        }
    )

    def change() -> None:
        store.providers.save_provider_aggregates(pools['slow'].uuid, [])
        store.providers.save_provider_aggregates(pools['fast'].uuid, [ROOM, OTHER])

    request = ask(1, resources={'DISK_GB': 10}, member_of=[[ROOM], [OTHER]])
    assert compare(site, request, edits, change).members[0].host == 'fast'


def test_a_pool_joins_what_nobody_is_in_yet(site: Site, pools: dict[str, ResourceProvider]) -> None:
    request = ask(1, resources={'DISK_GB': 10}, member_of=[[OTHER]])
    edits = HostEdits(change={'fast': HostEdit(aggregates=[OTHER])})
    save = site.world.store.providers.save_provider_aggregates
    compare(site, request, edits, lambda: save(pools['fast'].uuid, [OTHER]))


def test_a_pool_is_empty_with_all_that_is_below_it(
    site: Site, pools: dict[str, ResourceProvider]
) -> None:
    for number, amounts in enumerate(({'SRIOV_NET_VF': 8}, {'IPV4_ADDRESS': 4}), 1):
        site.client.select_destinations(ask(number, resources=amounts))
    _seen(site)
    edits = HostEdits(change={'slow': HostEdit(empty=True)})
    for number, amounts in ((3, {'SRIOV_NET_VF': 5}), (4, {'IPV4_ADDRESS': 1})):
        comparison = site.insights.what_if(ask(number, resources=amounts), edits)
        assert (comparison.now.outcome, comparison.then.outcome) == ('no_valid_host', 'placed')
    request = ask(5, resources={'SRIOV_NET_VF': 5})
    then = compare(site, request, edits, lambda: _release(site, 1))
    assert then.members[0].host == 'disk'


def _release(site: Site, *numbers: int) -> None:
    for number in numbers:
        site.client.cancel_claims(fixed(number))


def test_a_pool_like_another_has_the_same_below_it(
    site: Site, pools: dict[str, ResourceProvider]
) -> None:
    site.client.select_destinations(ask(1, resources={'SRIOV_NET_VF': 8}))
    _seen(site)
    store = site.world.store

    def change() -> None:
        disk = Inventory(total=1000, reserved=100, max_unit=2000)
        pool = store.providers.create_provider('new', inventories={'DISK_GB': disk})
        store.providers.save_provider_aggregates(pool.uuid, [ROOM])
        tray = below(store, 'new-tray', pool.uuid, IPV4_ADDRESS=4)
        below(store, 'new-disk', tray.uuid, DISK_GB=50, SRIOV_NET_VF=8)

    edits = HostEdits(add={'new': HostEdit(like='slow')})
    request = ask(2, resources={'SRIOV_NET_VF': 5, 'DISK_GB': 50})
    comparison = site.insights.what_if(request, edits)
    assert comparison.edits == ['with new like slow and 2 below it']
    assert compare(site, request, edits, change).members[0].host == 'new-disk'


def test_a_pool_goes_with_all_that_is_below_it(
    site: Site, pools: dict[str, ResourceProvider]
) -> None:
    def change() -> None:
        for name in ('disk', 'tray', 'slow'):
            site.world.store.providers.delete_provider(pools[name].uuid)

    request = ask(1, resources={'DISK_GB': 10})
    for gone in (['slow'], ['slow', 'disk']):
        comparison = site.insights.what_if(request, HostEdits(remove=gone))
        assert comparison.edits == ['without slow and 2 below it']
    compare(site, request, HostEdits(remove=['slow']), change)


def test_many_pools_are_added_and_taken_from(site: Site) -> None:
    """What is added has an id that nothing has: what a member takes there is not a host's."""
    edits = HostEdits(add={'new': HostEdit(like='slow', count=3)})
    comparison = site.insights.what_if(ask(1, 4, resources={'DISK_GB': 900}), edits)
    assert (comparison.now.outcome, comparison.then.outcome) == ('no_valid_host', 'placed')
    assert {member.host for member in comparison.then.members} == {
        'slow',
        'new-1',
        'new-2',
        'new-3',
    }
    assert comparison.then.hosts == 4 + 3 * 3


@pytest.mark.parametrize(
    ('edits', 'expected'),
    [
        ({'change': {'fats': HostEdit()}}, "hosts.change: pool 'fats' was not found.*fast"),
        (
            {'change': {'fast': HostEdit(enabled=False)}},
            'hosts.change.fast.enabled: .*only hosts have it',
        ),
        ({'change': {'fast': HostEdit(reporting=True)}}, 'hosts.change.fast.reporting: .*hosts'),
        ({'change': {'tray': HostEdit()}, 'remove': ['slow']}, 'hosts.change.tray: expected a'),
        (
            {'change': {'fast': HostEdit(reserved={'DISK_GB': 501})}},
            r'hosts.change.fast.reserved.DISK_GB: expected 0 to total \(500\), got 501',
        ),
        (
            {'change': {'fast': HostEdit(reserved={'VGPU': 1})}},
            'hosts.change.fast.reserved.VGPU: expected a class that it has, which is DISK_GB',
        ),
        (
            {'change': {'fast': HostEdit(allocation_ratios={'DISK_GB': float('inf')})}},
            'hosts.change.fast.allocation_ratios.DISK_GB: expected at most 3.40282e',
        ),
        (
            {'add': {'a': HostEdit(like='fast', allocation_ratios={'CUSTOM_NEVER': 1.0})}},
            'hosts.add.a.allocation_ratios.CUSTOM_NEVER',
        ),
        (
            {'change': {'fast': HostEdit(aggregates=['attic'])}},
            "fast.aggregates: aggregate 'attic'",
        ),
        (
            {'change': {'fast': HostEdit(without_aggregates=[ROOM])}},
            'hosts.change.fast.without_aggregates: expected a member of aggregate',
        ),
        (
            {'add': {'a': HostEdit(like='slow'), 'a-tray': HostEdit(like='fast')}},
            'hosts.add.a-tray: expected a new name; hosts.add.a has a pool a-tray as well',
        ),
        (
            {'add': {'a': HostEdit(like='slow', count=4000)}},
            'hosts.add: expected at most 10000 pools in all, with what is below them',
        ),
    ],
    ids=range(12),
)
def test_an_impossible_edit_is_refused_by_its_field(site: Site, edits, expected) -> None:
    with pytest.raises(exceptions.GanttError, match=expected):
        site.insights.what_if(ask(1, resources={'DISK_GB': 1}), HostEdits(**edits))


# -- hosts ------------------------------------------------------------------------------
def _on_devices(number: int, count: int, amount: int, **spec: Any) -> SelectDestinations:
    device = DeviceAmount(resource_class='VGPU', count=count, amount=amount)
    tree = TreeRequest(devices=[device])
    amounts = {'VCPU': 1, 'MEMORY_MB': 64}
    return ask(number, kind=RequestKind.HOST, resources=amounts, tree=tree, **spec)


@pytest.fixture
def with_devices(site: Site) -> Site:
    """``cmp-1`` has two devices below it, one of them below a cell."""
    root = site.world.scheduler.cache.working.row_of('cmp-1')
    uuid = site.world.scheduler.cache.working.hosts[root].uuid
    cell = below(site.world.store, 'cell', uuid)
    for name, parent in (('gpu0', uuid), ('gpu1', cell.uuid)):
        below(site.world.store, name, parent, VGPU=1000)
    _seen(site)
    return site


def test_a_host_like_another_has_its_devices(with_devices: Site) -> None:
    site = with_devices
    site.client.select_destinations(_on_devices(1, 2, 800))
    _seen(site)
    edits = HostEdits(add={'new': HostEdit(like='cmp-1', count=2)})
    comparison = site.insights.what_if(_on_devices(2, 2, 1000), edits)
    assert comparison.edits == ['with 2 hosts new-1 to new-2 like cmp-1 and 3 below it']
    assert (comparison.now.outcome, comparison.then.outcome) == ('no_valid_host', 'placed')
    assert comparison.then.members[0].host in ('new-1', 'new-2')
    gone = site.insights.what_if(_on_devices(2, 1, 200), HostEdits(remove=['cmp-1']))
    assert (gone.now.outcome, gone.then.outcome) == ('placed', 'no_valid_host')


def test_a_host_is_empty_with_its_devices(with_devices: Site) -> None:
    site = with_devices
    site.client.select_destinations(_on_devices(1, 2, 800))
    _seen(site)
    edits = HostEdits(change={'cmp-1': HostEdit(empty=True)})
    request = _on_devices(2, 2, 1000)
    assert compare(site, request, edits, lambda: _release(site, 1)).members[0].host == 'cmp-1'


def test_a_host_leaves_an_aggregate_that_lists_it(site: Site) -> None:
    store = site.world.store
    store.declarations.save_aggregate('room', {}, ['cmp-1', 'cmp-2'], uuid=ROOM)
    _seen(site)

    def change() -> None:
        store.declarations.save_aggregate('room', {}, ['cmp-2'], uuid=ROOM)

    spec = {'kind': RequestKind.HOST, 'consumer_type': 'INSTANCE'}
    request = ask(1, resources={'VCPU': 1}, member_of=[['room']], **spec)
    edits = HostEdits(change={'cmp-1': HostEdit(without_aggregates=['room'])})
    then = compare(site, request, edits, change)
    assert then.members[0].host == 'cmp-2'


def test_the_zone_of_a_copy_is_that_of_its_aggregates(site: Site) -> None:
    site.world.store.declarations.save_aggregate(
        'room', {'availability_zone': 'az9'}, ['cmp-1'], uuid=ROOM
    )
    _seen(site)
    spec = {'kind': RequestKind.HOST, 'resources': {'VCPU': 1}, 'availability_zone': 'az9'}
    for edit, fit in ((HostEdit(like='cmp-1'), 2), (HostEdit(like='cmp-1', zone='az1'), 2)):
        comparison = site.insights.what_if(ask(1, **spec), HostEdits(add={'new': edit}))
        assert f'{fit}/7 hosts fit' in comparison.then.reason
    leaves = HostEdit(like='cmp-1', without_aggregates=['room'])
    comparison = site.insights.what_if(ask(1, **spec), HostEdits(add={'new': leaves}))
    assert '1/7 hosts fit' in comparison.then.reason


def test_a_host_that_is_over_full_takes_nothing(site: Site) -> None:
    site.client.select_destinations(
        ask(1, kind=RequestKind.HOST, resources={'VCPU': 4}, force_hosts=['cmp-1'])
    )
    _seen(site)
    edits = HostEdits(change={'cmp-1': HostEdit(reserved={'VCPU': 7})})
    request = ask(2, kind=RequestKind.HOST, resources={'DISK_GB': 1}, force_hosts=['cmp-1'])
    comparison = site.insights.what_if(request, edits)
    assert (comparison.now.outcome, comparison.then.outcome) == ('placed', 'no_valid_host')


# -- over HTTP ---------------------------------------------------------------------------
def test_ratios_are_edited_over_http(site: Site) -> None:
    body = {
        'request': {
            'request_id': fixed(1),
            'consumers': [fixed(2)],
            'spec': {'kind': 'pool', 'resources': {'DISK_GB': 1200}},
        },
        'hosts': {'change': {'fast': {'allocation_ratios': {'DISK_GB': 3}}}},
    }
    with as_caller(site, 'admin', project=None) as caller:
        response = caller.post('/v1/what-if', json=body)
        assert response.json()['then']['members'][0]['host'] == 'fast'
