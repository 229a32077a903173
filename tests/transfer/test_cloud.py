# SPDX-License-Identifier: Apache-2.0
"""A cloud taken over from a server that speaks Placement, compared, and written to another one."""

import pytest

from gantt.placement_api.transfer import copying, differences
from gantt.placement_api.transfer.own import OwnSide
from tests.builders import CLEAN
from tests.transfer import cloud
from tests.transfer.conftest import SERVERS


def quietly(line):
    """Nobody reads how far it is."""


def compared(first, second):
    """Lines of the differences."""
    differing, *_ = differences.compare(first, second, quietly)
    return [each.line('here', 'there') for each in differing]


@pytest.fixture
def cloud_at(request, empty_server, writing_to):
    """``cloud_at(kind)``: a server with the cloud in it; Gantt's is a copy of one."""

    def start(kind):
        if kind == 'gantt':
            return request.getfixturevalue('built_server')
        server = writing_to(empty_server(kind))
        cloud.build(server)
        return server

    return start


def nothing_left(report):
    return (report.left, report.changing, report.reported) == ([], [], [])


@pytest.mark.parametrize(
    ('kind', 'store_kind'),
    [
        ('gantt', 'memory'),
        ('placement', 'sqlite'),
        pytest.param('gantt', 'postgresql', marks=pytest.mark.postgresql),
        pytest.param('gantt', 'mysql', marks=pytest.mark.mysql),
        pytest.param('placement', 'postgresql', marks=[pytest.mark.postgresql, pytest.mark.slow]),
        pytest.param('placement', 'mysql', marks=[pytest.mark.mysql, pytest.mark.slow]),
    ],
)
def test_a_cloud_is_taken_over(kind, store_kind, cloud_at, at, make_store):
    server = cloud_at(kind)
    url = server.url
    store = make_store(store_kind)
    own, theirs = OwnSide(store), at(url)
    lines = []
    report = copying.copy(theirs, own, lines.append)
    assert nothing_left(report), report
    assert report.written['providers'] == cloud.PROVIDERS == 50
    assert report.written['consumers'] == cloud.CONSUMERS
    assert f'{url}: providers: 50 of 50' in lines
    assert compared(own, theirs) == []
    assert store.allocations.load_allocations(cloud.consumer(1)).consumer_type == 'MIGRATION'
    assert store.allocations.load_allocations(cloud.consumer(2)).consumer_type == 'unknown'
    assert store.claims.audit() == CLEAN
    # Once more: nothing twice.
    assert copying.copy(theirs, own, quietly).total == 0


@pytest.mark.parametrize('kind', [SERVERS[0], pytest.param(SERVERS[1], marks=pytest.mark.slow)])
def test_what_changes_is_named_and_taken_over(kind, cloud_at, at, make_store):
    server = cloud_at(kind)
    own, theirs = OwnSide(make_store('memory')), at(server.url)
    assert nothing_left(copying.copy(theirs, own, quietly))
    cloud.restock(server, cloud.pool(1), DISK_GB={'total': 2000, 'reserved': 7})
    server.request('PUT', '/traits/CUSTOM_NEW')
    server.set_traits(cloud.host(0), ['CUSTOM_NEW'], cloud.generation_of(server, cloud.host(0)))
    body = {'name': 'renamed', 'parent_provider_uuid': cloud.cell(3, 1)}
    server.request('PUT', f'/resource_providers/{cloud.device(3)}', body, '1.37')
    server.request('DELETE', f'/allocations/{cloud.consumer(39)}')
    generation = server.request('GET', f'/allocations/{cloud.consumer(0)}')['consumer_generation']
    cloud.allocate(server, 0, {cloud.host(5): {'VCPU': 7}}, generation)
    shown = compared(own, theirs)
    for line in (
        'trait CUSTOM_NEW: only there has it',
        f'provider {cloud.pool(1)}: inventories.DISK_GB.total: here has 1000, there has 2000',
        f'provider {cloud.host(0)}: traits.CUSTOM_NEW: only there has it',
        f'provider {cloud.host(0)}: traits.CUSTOM_RACK_0: only here has it',
        f'provider {cloud.device(3)}: name: here has gpu-3, there has renamed',
        f'provider {cloud.device(3)}: parent: here has {cloud.cell(3, 0)}, there has '
        f'{cloud.cell(3, 1)}',
        f'consumer {cloud.consumer(39)}: only here has it',
        f'consumer {cloud.consumer(0)}: allocations.{cloud.host(5)}.VCPU: only there has it (7)',
    ):
        assert line in shown
    report = copying.copy(theirs, own, quietly)
    assert nothing_left(report)
    # Who of both is right about what is not there, nobody can know.
    assert compared(own, theirs) == [f'consumer {cloud.consumer(39)}: only here has it']
    assert copying.copy(theirs, own, quietly, delete=True).written['consumers'] == 1
    assert compared(own, theirs) == []


@pytest.mark.parametrize('kind', SERVERS)
def test_a_cloud_is_written_to_another_server(
    kind, empty_server, writing_to, at, make_store, built_server
):
    first = built_server.url
    own = OwnSide(make_store('memory'))
    assert nothing_left(copying.copy(at(first), own, quietly))
    url = empty_server(kind)
    theirs = at(url)
    report = copying.copy(own, theirs, quietly)
    assert nothing_left(report), report
    assert (report.written['providers'], report.written['consumers']) == (50, 40)
    assert compared(own, theirs) == []
    assert compared(at(first), theirs) == []
    assert copying.copy(own, theirs, quietly).total == 0
    # And away again: what the other side does not have.
    empty = OwnSide(make_store('memory'))
    report = copying.copy(empty, theirs, quietly, delete=True)
    assert nothing_left(report), report
    assert (writing_to(url).providers(), compared(empty, theirs)) == ([], [])
