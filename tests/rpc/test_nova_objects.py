# SPDX-License-Identifier: Apache-2.0
"""Selections as Nova needs them."""

from gantt.core.messages.report import Hypervisor
from gantt.core.records.decision import Selection
from gantt.core.resources.host import HostFacts, HostRow
from gantt.nova.wire import objects
from tests.builders import uuid_of


def test_a_node_among_several_of_a_service_is_named_beside_it():
    """As Ironic's are: the conductor looks for the service, the service for the node."""
    row = HostRow(
        id=1,
        uuid=uuid_of('node'),
        name='node-1',
        facts=HostFacts(hypervisor=Hypervisor(service='metal')),
    )
    chosen = Selection(
        host='node-1', node='node-1', uuid=row.uuid, provider_id=1, consumer=uuid_of('guest')
    )
    ((new,),) = objects.destinations(
        [[chosen]], as_objects=True, alternates=False, host={1: row}.get
    )
    data = new['nova_object.data']
    assert (data['service_host'], data['nodename']) == ('metal', 'node-1')
    (old,) = objects.destinations([[chosen]], as_objects=False, alternates=False, host={1: row}.get)
    assert (old['host'], old['nodename']) == ('metal', 'node-1')
