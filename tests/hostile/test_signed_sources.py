# SPDX-License-Identifier: Apache-2.0
"""What is said of hosts of Nova in the name of their source, or of the agent beside it."""

import msgspec
import pytest

from gantt import exceptions
from gantt.client.signing import Signer
from gantt.core.claims.host_facts import UpdateHostFacts
from gantt.core.messages import base
from gantt.core.messages.report import ReportedMetric
from gantt.core.resources import host_keys
from gantt.core.resources.host_keys import SigningMode, SigningModes
from gantt.ed25519 import PrivateKey
from gantt.nova.model.events import NovaGuest
from gantt.nova.model.source import GuestList
from tests.builders import new_uuid
from tests.conftest import READERS
from tests.hostile.test_signed_messages import H4, Agent, Site, a_signer


@pytest.fixture(params=READERS)
def store(request, make_store):
    return make_store(request.param)


class Source(Agent):
    """A report source with one host; as an agent of Nova's reports."""

    def registration(self, **said):
        return super().registration(reporter='nova', **said)

    def guests(self, *consumers, **fields):
        listed = GuestList(
            host=self.name,
            requested_at=2_000_000_000.0,
            guests=[NovaGuest(consumer=consumer, resources={'VCPU': 1}) for consumer in consumers],
        )
        body = base.to_builtins(msgspec.structs.replace(listed, **fields))
        return body if self.signer is None else self.signer.guests(body)


def facts(signer, sequence, load=1.0, name='cmp-1'):
    """What an agent next to nova-compute sends."""
    update = UpdateHostFacts(
        host=name, sequence=sequence, guests=[], metrics={'load_1m': ReportedMetric(value=load)}
    )
    body = base.to_builtins(update)
    return body if signer is None else signer.facts(body)


def a_source(store=None, signer=None, name='cmp-1', site=None):
    site = site or Site(store)
    source = Source(site, name, signer)
    source.register()
    assert site.call('update_resource_stats', source.report())['outcome'] == 'applied'
    return site, source


def row_of(site, name='cmp-1'):
    return next(row for row in site.rows()[0] if row.name == name)


@H4
def test_a_list_of_guests_is_taken_of_the_source_alone(store):
    site, source = a_source(store, a_signer())
    claimed = site.call('sync_guests', source.guests(new_uuid()))
    assert claimed['adopted'] == 1
    before = site.rows()
    thief, nobody = Source(site, 'cmp-1', a_signer()), Source(site, 'cmp-1')
    neighbour = Source(site, 'cmp-2', source.signer)
    forged = [
        thief.guests(),
        nobody.guests(),
        {**neighbour.guests(), 'host': 'cmp-1'},
        {**source.guests(), 'guests': [{'consumer': new_uuid(), 'resources': {'VCPU': 1}}]},
        {**source.guests(), 'requested_at': 2_000_000_001.0},
    ]
    for body in forged:
        with pytest.raises(exceptions.NotProven):
            site.call('sync_guests', body)
    assert site.alarms == len(forged)
    assert site.rows() == before


@H4
def test_the_first_agent_beside_a_source_is_taken_and_nobody_else(store):
    site, source = a_source(store, a_signer())
    agent = a_signer()
    assert site.call('update_host_facts', facts(agent, 5))['outcome'] == 'applied'
    before = site.rows()
    forged = [
        facts(a_signer(), 7),  # another agent
        facts(a_signer(), 3),  # that speaks of before
        facts(None, 3),
        facts(source.signer, 7),  # the source has no say in this
        facts(None, 7),
        {**facts(agent, 7), 'sequence': 8},
        {**facts(agent, 7), 'metrics': {'load_1m': {'value': 9.0}}},
        {**facts(agent, 7, name='cmp-2'), 'host': 'cmp-1'},
        {**facts(agent, 7), 'proof': 'ed25519 7 x y'},
    ]
    for body in forged:
        with pytest.raises(exceptions.NotProven):
            site.call('update_host_facts', body)
    assert site.alarms == len(forged)
    assert site.rows() == before
    # What was signed once moves nothing when it comes again.
    assert site.call('update_host_facts', facts(agent, 5))['outcome'] == 'stale'
    assert site.call('update_host_facts', facts(agent, 6, 3.0))['outcome'] == 'applied'
    assert row_of(site).facts.metrics['load_1m'].value == 3.0
    assert row_of(site).key.agent == host_keys.key_text(agent._key.public)


@H4
def test_a_source_and_an_agent_of_before_are_heard_until_they_sign(store):
    site, source = a_source(store)
    assert site.call('sync_guests', source.guests()).get('adopted', 0) == 0
    assert site.call('update_host_facts', facts(None, 1))['outcome'] == 'applied'
    agent = a_signer()
    assert site.call('update_host_facts', facts(agent, 2))['outcome'] == 'applied'
    with pytest.raises(exceptions.NotProven):
        site.call('update_host_facts', facts(None, 3))
    # The source has no key of its own by that, and gets one without the agent losing its.
    assert site.call('sync_guests', source.guests()).get('adopted', 0) == 0
    source.signer = a_signer()
    source.register()
    assert site.call('sync_guests', source.guests()).get('adopted', 0) == 0
    assert site.call('update_host_facts', facts(agent, 4))['outcome'] == 'applied'
    assert row_of(site).key.public


@H4
def test_keys_are_rotated_forgotten_and_revoked_together(store):
    old, new = PrivateKey(), PrivateKey()
    site, _ = a_source(store, a_signer())
    site.call('update_host_facts', facts(Signer(old), 1))
    rotated = Signer(new, ((old.public, old.sign(host_keys.successor_bytes(new.public))),))
    assert site.call('update_host_facts', facts(rotated, 2))['outcome'] == 'applied'
    with pytest.raises(exceptions.NotProven, match='another key'):
        site.call('update_host_facts', facts(Signer(old), 3))
    site.store.hosts.forget_host_key('cmp-1')
    site.turn()
    other = a_signer()
    assert site.call('update_host_facts', facts(other, 4))['outcome'] == 'applied'
    site.store.hosts.revoke_host_key('cmp-1')
    site.turn()
    with pytest.raises(exceptions.NotProven, match='revoked'):
        site.call('update_host_facts', facts(other, 5))
    site.store.hosts.forget_host_key('cmp-1')
    site.turn()
    with pytest.raises(exceptions.NotProven, match='another key'):
        site.call('update_host_facts', facts(other, 6))  # never again
    assert site.call('update_host_facts', facts(a_signer(), 7))['outcome'] == 'applied'


@H4
def test_where_all_have_to_sign_sources_and_agents_do(store):
    site, source = a_source(store, a_signer())
    site.schedulers[0].settings.signatures = SigningModes(mode=SigningMode.REQUIRED)
    site.call('sync_guests', source.guests())
    with pytest.raises(exceptions.NotProven):
        site.call('update_host_facts', facts(None, 1))
    assert site.call('update_host_facts', facts(a_signer(), 2))['outcome'] == 'applied'
    with pytest.raises(exceptions.NotProven):
        Source(site, 'cmp-9').register()


@H4
def test_a_key_that_another_scheduler_took_is_known_here_at_once(store):
    site = Site(store, schedulers=2)
    source = Source(site, 'cmp-1', a_signer())
    # Nothing was read by the second one since.
    body = source.registration()
    source.epoch = site.call('register_host', body)['epoch']
    site.call('update_resource_stats', source.report())
    assert site.call('sync_guests', source.guests(), by=1).get('adopted', 0) == 0
    agent = a_signer()
    site.call('update_host_facts', facts(agent, 1), by=1)
    with pytest.raises(exceptions.NotProven):
        site.call('update_host_facts', facts(a_signer(), 2), by=0)
    assert site.call('update_host_facts', facts(agent, 3), by=0)['outcome'] == 'applied'
