# SPDX-License-Identifier: Apache-2.0
"""A nova-compute that was left on a host with an agent of its own: it is heard, and that is all."""

import logging

from gantt.nova.model.events import GuestDeleted, GuestsListed, NovaCast
from gantt.nova.service.events import LOG_AGAIN_SECONDS
from gantt.nova.service.facade import NovaFacade
from tests.builders import new_uuid
from tests.world import World, a_request, hosts_of


class Counted:
    """How often what was counted."""

    def __init__(self, recorder):
        self.found = {}
        self._count, recorder.count = recorder.count, self

    def __call__(self, name, value=1, **labels):
        key = (name, *labels.values())
        self.found[key] = self.found.get(key, 0) + value
        self._count(name, value, **labels)


def test_its_words_are_counted_and_told_now_and_then(caplog):
    world = World(hosts=2)
    counted, nova = Counted(world.recorder), NovaFacade(world.store, world.scheduler)
    answer = world.select(a_request())
    (name,) = hosts_of(answer)
    claim = answer.selections[0][0]
    host = world.hosts[name]
    assert host.confirm(claim.claim_id) == ['ok']
    caplog.set_level(logging.WARNING)

    def hear():
        for word in (
            GuestsListed(host=name, consumers=[]),
            GuestDeleted(host=name, consumer=claim.consumer),
        ):
            now = world.clock.wall() + 60.0
            nova.nova_event(NovaCast(id=new_uuid(), requested_at=now, event=word))
        nova.events.step()
        world.clock.advance(LOG_AGAIN_SECONDS / 4)

    for _ in range(5):
        hear()
    assert [c.state for c in world.store.claims.list_claims(consumer=claim.consumer)] == [
        'confirmed'
    ]
    events = 'gantt_nova_events_total'
    assert counted.found[events, 'GuestsListed', 'other_reporter'] == 5
    assert counted.found[events, 'GuestDeleted', 'other_reporter'] == 5
    messages = [message for message in caplog.messages if 'an agent of its own' in message]
    assert len(messages) == 2
    assert f'host={name}' in messages[0]
