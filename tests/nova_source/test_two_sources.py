# SPDX-License-Identifier: Apache-2.0
"""Two sources of one cloud: the one that registered hosts first is quiet, and says so."""

from gantt.core.messages.request import Purpose
from tests.world import Host, a_request, hosts_of


def hosts(region):
    """State -> number of hosts."""
    return {
        labels[0]: n
        for (name, *labels), n in region.counts.items()
        if name == 'gantt_nova_source_hosts'
    }


def test_the_one_that_is_fenced_counts_no_pass_as_done(openstack, region, caplog):
    for number in range(3):
        openstack.host(f'cmp-{number}')
    region.passes(2)
    other = region.a_source()
    region.passes(2, by=other)
    region.passes(2)
    passes = region.counts['gantt_nova_source_passes_total', 'done']
    caplog.clear()
    region.passes(20)
    assert region.counts['gantt_nova_source_passes_total', 'done'] == passes
    assert hosts(region) == {'reported': 0, 'incomplete': 0, 'fenced': 3, 'refused': 0}
    messages = [message for message in caplog.messages if 'stop one of both sources' in message]
    assert 1 <= len(messages) <= 3
    assert 'hosts=3 total=3 ' in messages[0]
    region.passes(by=other)
    assert hosts(region)['reported'] == 3


def test_the_one_that_is_fenced_tells_no_aggregates_and_settles_nothing(openstack, region):
    for name in ('cmp-1', 'cmp-2'):
        openstack.host(name)
    guest = openstack.server('cmp-1')
    region.passes(2)
    other = region.a_source()
    region.passes(2, by=other)
    region.passes(2)
    request = a_request(purpose=Purpose.RESIZE, ignore_hosts=['cmp-1'], consumers=[guest])
    assert hosts_of(region.world.select(request)) == ['cmp-2']
    openstack.aggregate('rack', 'cmp-1')
    region.passes(12)
    assert region.world.store.feed.load_everything().aggregates == []
    assert len(region.live(guest)) == 2
    region.passes(by=other)
    assert len(region.world.store.feed.load_everything().aggregates) == 1
    assert region.live(guest) == [('cmp-1', 'confirmed')]


def test_the_one_that_is_fenced_takes_no_host_back_by_what_nova_says(openstack, region):
    node = openstack.host('cmp-1')
    openstack.host('cmp-2')
    region.passes(2)
    other = region.a_source()
    region.passes(2, by=other)
    region.passes(2)
    epochs = [region.row(name).epoch for name in ('cmp-1', 'cmp-2')]
    # The host cannot be read for a pass, and then its node has another name.
    provider = openstack.providers.pop(node)
    region.passes()
    openstack.providers[node] = provider
    openstack.hypervisors[1]['hypervisor_hostname'] = 'renamed'
    region.passes(2)
    assert [region.row(name).epoch for name in ('cmp-1', 'cmp-2')] == epochs
    assert hosts(region)['fenced'] == 2


def test_a_host_that_an_own_agent_reports_for_is_left_alone(openstack, region, caplog):
    openstack.host('cmp-1')
    openstack.host('cmp-2')
    guest = openstack.server('cmp-1')
    agent = Host(region.world, 'cmp-1')
    agent.report()
    region.world.turn()
    epoch = region.row('cmp-1').epoch
    region.passes()
    for _ in range(20):
        region.source.step()
        agent.report()
        region.world.turn()
    assert hosts(region) == {'reported': 1, 'incomplete': 0, 'fenced': 0, 'refused': 1}
    assert region.live(guest) == []
    row = region.row('cmp-1')
    assert row.reporter != 'nova' and row.epoch == epoch
    member = region.source.host_agents['cmp-1']
    assert member.turn() > 86_400  # nothing of itself
    assert [message for message in caplog.messages if 'host=cmp-1 ' in message]
    # The agent is stopped for good.
    region.world.turn(600.0)
    region.passes(2)
    assert hosts(region)['refused'] == 0
    assert region.row('cmp-1').reporter == 'nova'
    assert region.live(guest) == [('cmp-1', 'confirmed')]
