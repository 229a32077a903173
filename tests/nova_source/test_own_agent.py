# SPDX-License-Identifier: Apache-2.0
"""A host that Nova lists and that has an agent of its own: the agent reports for it."""

import logging

from gantt.core.messages.report import RegisterHost
from tests.builders import new_uuid
from tests.world import Host


class Agent(Host):
    """One with a journal."""

    def register(self) -> None:
        registration = RegisterHost(
            name=self.name, boot_nonce=new_uuid(), journal=new_uuid(), journal_count=1
        )
        self.epoch = self.world.scheduler.register_host(registration).epoch
        self.sequence = 0


def test_an_agent_takes_its_host_from_the_source_and_keeps_it(openstack, region, caplog):
    for name in ('cmp-1', 'cmp-2'):
        openstack.host(name, VCPU=16, MEMORY_MB=65536)
    region.passes()
    assert {region.row(name).reporter for name in ('cmp-1', 'cmp-2')} == {'nova'}
    agent = Agent(region.world, 'cmp-1')
    agent.report()
    region.world.turn()
    assert region.row('cmp-1').reporter == 'host'
    # Nova has a guest there that the agent does not know.
    guest = openstack.server('cmp-1')
    before = region.row('cmp-1')
    caplog.set_level(logging.ERROR)
    region.passes(3)
    agent.report()
    # The source is started anew: it registers all its hosts.
    second = region.a_source()
    region.passes(1, by=second)
    after = region.row('cmp-1')
    assert (after.reporter, after.epoch, after.boot_nonce) == (
        'host',
        before.epoch,
        before.boot_nonce,
    )
    assert region.live(guest) == []
    assert any('cmp-1' in message and '--facts-only' in message for message in caplog.messages)
    assert region.row('cmp-2').reporter == 'nova'
    assert region.row('cmp-2').reported_at > before.reported_at
    agent.report()
    # Its agent is stopped for good: the next time that the source asks, the host is Nova's.
    region.world.turn()
    region.world.turn(600.0)
    region.passes(3, by=second)
    assert region.row('cmp-1').reporter == 'nova'
    assert region.live(guest) == [('cmp-1', 'confirmed')]
    region.audit()
