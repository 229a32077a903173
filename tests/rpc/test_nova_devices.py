# SPDX-License-Identifier: Apache-2.0
"""Devices and networks of Nova's requests, translated."""

from gantt.core.messages.request import DeviceKind, DeviceRequest, Networks
from gantt.core.messages.topology_request import Affinity
from tests.rpc.test_nova_spec import CELL, a_device, asking, on, spec_of, translated


def test_devices_of_ports_and_named_ones_are_described_with_the_request():
    port = a_device(
        spec=[{'physical_network': None, 'remote_managed': 'False', 'dev_type': 'type-PF'}],
        numa_policy='socket',
    )
    named = a_device(
        alias_name='gpu',
        count=2,
        numa_policy=None,
        requester_id=None,
        spec=[{'vendor_id': '10de', 'product_id': '1eb8', 'rp_uuids': 'x'}, {'vendor_id': '8086'}],
    )
    resolved = a_device(alias_name='other', spec=[{'resource_class': 'CUSTOM_GPU'}])
    requests = asking([port, named, resolved])
    spec = spec_of('boot', lambda a, s: s.update(pci_requests=requests))
    assert spec.devices == [
        DeviceRequest(
            port=CELL,
            affinity=Affinity.SOCKET,
            any_of=[
                DeviceKind(
                    device_type='type-PF',
                    tags={'physical_network': None, 'remote_managed': 'False'},
                )
            ],
        ),
        DeviceRequest(
            alias='gpu',
            count=2,
            any_of=[
                DeviceKind(vendor_id='10de', product_id='1eb8'),
                DeviceKind(vendor_id='8086'),
            ],
        ),
    ]


def test_networks_come_in_any_order():
    first, second = (
        translated('boot', lambda a, s, order=order: s.update(network_metadata=on(order, True)))
        for order in (['b', 'a'], ['a', 'b'])
    )
    assert first.request == second.request
    assert first.request.spec.networks == Networks(physical=['a', 'b'], tunneled=True)
    assert spec_of('boot').networks is None
