# SPDX-License-Identifier: Apache-2.0
"""The cloud as one pool over HTTP: fresh, bounded, over hosts and what is none."""

import httpx2 as httpx
import pytest

from gantt.core.claims.allocations import WantedAllocations
from gantt.core.messages.request import RequestSpec
from gantt.core.messages.resource_classes import Inventory
from tests.http.site import Site, fixed

LATEST = {'OpenStack-API-Version': 'scheduler latest'}


@pytest.fixture
def site():
    return Site()


@pytest.fixture
def ask(site):
    transport = httpx.WSGITransport(site.app)
    with httpx.Client(transport=transport, base_url='http://localhost') as client:

        def asking(shapes='', headers=LATEST):
            params = {'shapes': shapes} if shapes else {}
            return client.get('/v1/roll-up', params=params, headers=headers)

        yield asking


def of_class(rolled, name):
    (entry,) = [entry for entry in rolled['classes'] if entry['resource_class'] == name]
    return entry


def test_hosts_and_pools_are_one_pool(site, ask):
    store = site.world.store
    before = ask().json()
    pool = store.providers.create_provider(
        'disks', inventories={'DISK_GB': Inventory(total=1_000_000)}
    )
    rolled = ask().json()
    assert rolled['hosts'] == before['hosts'] == len(site.hosts)
    assert (rolled['providers'], rolled['trees']) == (before['providers'] + 1, before['trees'] + 1)
    disks = of_class(rolled, 'DISK_GB')
    assert disks['capacity'] == of_class(before, 'DISK_GB')['capacity'] + 1_000_000
    assert disks['largest'] == 1_000_000

    wish = WantedAllocations(
        consumer=fixed(7),
        allocations={pool.uuid: {'DISK_GB': 400_000}},
        project_id='p',
        user_id='u',
    )
    store.allocations.write_allocations([wish])
    assert of_class(ask().json(), 'DISK_GB')['largest'] == 600_000, 'what was written is seen'


def test_shapes_of_guests_and_of_others(site, ask):
    site.world.store.providers.create_provider('gpus', inventories={'VGPU': Inventory(total=5)})
    rolled = ask('VCPU:2,MEMORY_MB:1024;VGPU:2').json()
    guests, devices = rolled['shapes']
    spec = RequestSpec(resources={'VCPU': 2, 'MEMORY_MB': 1024})
    assert (guests['on'], guests['count']) == ('hosts', site.insights.capacity(spec).count)
    assert 0 < guests['most'] < guests['count']
    assert devices == {
        'resources': {'VGPU': 2},
        'on': 'trees',
        'count': 2,
        'places': 1,
        'most': 2,
        'uncounted': 0,
    }


@pytest.mark.parametrize(
    ('shapes', 'expected'),
    [
        ('VCPU', 'expected CLASS:AMOUNT'),
        ('VCPU:0', 'from 1 to 2147483647'),
        ('VCPU:1,VCPU:2', 'twice'),
        ('CUSTOM_NONE:1', 'no resource class here'),
        (';'.join(['VCPU:1'] * 17), 'at most 16 shapes, got 17'),
    ],
)
def test_what_is_no_shape_is_refused_by_name(ask, shapes, expected):
    refused = ask(shapes)
    assert refused.status_code == 400
    detail = refused.json()['errors'][0]['detail']
    assert 'query.shapes' in detail
    assert expected in detail
