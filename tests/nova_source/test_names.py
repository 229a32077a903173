# SPDX-License-Identifier: Apache-2.0
"""Which node is a host: nodes that are left over, and names that two have."""

import pytest

from tests.world import a_request


def boots_to(region):
    """(host, node) that a boot is sent to."""
    answer = region.world.select(a_request())
    return [
        (selection.host, selection.node) for chosen in answer.selections for selection in chosen
    ]


def test_a_node_that_is_left_over_takes_nothing_from_its_host(openstack, region, caplog):
    openstack.host('cmp-1')
    guest = openstack.server('cmp-1')
    region.passes(3)
    row = region.row('cmp-1')
    openstack.host('cmp-1', node='cmp-1-old')
    region.passes(5)
    assert region.rows() == {'cmp-1'}
    assert (region.row('cmp-1').uuid, region.row('cmp-1').epoch) == (row.uuid, row.epoch)
    assert region.live(guest) == [('cmp-1', 'confirmed')]
    assert boots_to(region) == [('cmp-1', 'cmp-1.example.org')]
    assert region.counts['gantt_nova_source_hosts', 'incomplete'] == 1
    messages = [message for message in caplog.messages if 'cmp-1-old' in message]
    assert len(messages) == 1
    assert 'service cmp-1 runs one node, and cmp-1.example.org' in messages[0]


def test_of_nodes_that_were_there_before_us_the_newest_is_taken(openstack, region):
    openstack.host('cmp-1', node='cmp-1-old')
    new = openstack.host('cmp-1')
    # A guest of before the host was named otherwise: it is on this machine.
    guest = openstack.server('cmp-1')
    openstack.servers[-1]['OS-EXT-SRV-ATTR:hypervisor_hostname'] = 'cmp-1-old'
    region.passes(3)
    assert (region.rows(), region.row('cmp-1').uuid) == ({'cmp-1'}, new)
    assert region.live(guest) == [('cmp-1', 'confirmed')]
    assert region.row('cmp-1').used['VCPU'] == 2


def test_a_node_without_a_provider_is_not_taken(openstack, region):
    old = openstack.host('cmp-1')
    del openstack.providers[openstack.host('cmp-1', node='cmp-1-new')]
    region.passes()
    assert region.row('cmp-1').uuid == old


def test_the_one_that_stays_is_taken_when_the_other_is_forgotten(openstack, region):
    old = openstack.host('cmp-1', node='cmp-1-old')
    region.passes()
    new = openstack.host('cmp-1')
    region.passes()
    assert region.row('cmp-1').uuid == old
    openstack.hypervisors.pop(0)
    region.passes(2)
    (member,) = region.source.host_agents.values()
    assert member.session._announcement.uuid == new


@pytest.mark.parametrize('nodes', [('', ''), ('one', 'two')], ids=['same-node', 'two-nodes'])
def test_of_two_services_of_one_name_neither_gets_the_others_guests(openstack, region, nodes):
    openstack.host('cmp-0')
    openstack.host('cmp-1', node=nodes[0])
    guest = openstack.server('cmp-1')
    region.passes(3)
    assert region.live(guest) == [('cmp-1', 'confirmed')]
    openstack.host('cmp-1', node=nodes[1])
    openstack.services['cmp-1 of another cell'] = dict(openstack.services['cmp-1'])
    other = openstack.server('cmp-1')
    region.passes(5)
    assert 'cannot be told apart' in region.source._snapshots.silent['cmp-1']
    assert region.live(guest) == [('cmp-1', 'confirmed')]
    assert region.live(other) == []
    assert set(region.source.host_agents) == {'cmp-0'}


def test_two_nodes_alike_of_one_service_are_not_told_apart(openstack, region):
    openstack.host('cmp-1')
    openstack.host('cmp-1')
    guest = openstack.server('cmp-1')
    region.passes(3)
    assert 'cannot be told apart' in region.source._snapshots.silent['cmp-1']
    assert (region.rows(), region.live(guest)) == (set(), [])


def test_a_node_of_ironic_that_two_services_have_is_neither(openstack, region):
    region.world.store.vocabulary.declare_class('CUSTOM_METAL')
    for service in ('metal-1', 'metal-2'):
        openstack.host(service, node='node-1', kind='ironic', CUSTOM_METAL=1)
        openstack.host(service, node=f'only-{service}', kind='ironic', CUSTOM_METAL=1)
    region.passes(2)
    assert region.rows() == {'only-metal-1', 'only-metal-2'}
    assert 'cannot be told apart' in region.source._snapshots.silent['node-1']


def test_a_uuid_that_is_not_the_announced_one_is_logged(openstack, region, caplog):
    new, register = openstack.host('cmp-1'), region.port.register
    other = '00000000-0000-0000-0000-000000000001'
    region.source._port._port.register = lambda said: _with_uuid(register(said), other)
    region.passes()
    assert any(other in message and new in message for message in caplog.messages)


def _with_uuid(registered, uuid):
    import msgspec

    return msgspec.structs.replace(registered, uuid=uuid)
