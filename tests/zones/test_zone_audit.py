# SPDX-License-Identifier: Apache-2.0
"""The audit over zones: each fault made on purpose, and a sound tree without one."""

import secrets
import uuid

import httpx2 as httpx
import pytest
import sqlalchemy as sa

from gantt.core.claims.allocations import WantedAllocations
from gantt.core.messages.report import DICTIONARY_NONCE, RegisterHost, Running
from gantt.core.records import audit_remedies
from gantt.core.records.decision import Outcome
from gantt.db.schema import models
from gantt.nova.model.events import GuestsUpdated, NovaCast, NovaGuest
from gantt.zones.http import requests as zones
from gantt.zones.model import host_digests
from gantt.zones.model.host_digests import RegisteredHost
from gantt.zones.model.messages import scoped_id
from gantt.zones.service import audit as zone_audit
from gantt.zones.service.audit import ZoneAudit
from tests.builders import list_providers
from tests.world import a_request
from tests.zones.tree import VERSION

CLEAN = {'lost': [], 'leaked': [], 'doubled': []}


def findings(zone):
    """The lines of an audit over zones, each with something to do about it."""
    audit = ZoneAudit(zone.store, zone.around.calls).run()
    for kind, lines in audit.lines.items():
        for line in lines:
            assert audit_remedies.remedy_of(kind, line) is not None, line
    return audit


def lines(zone, kind):
    audit = findings(zone)
    assert not any(summary.problem for summary in audit.zones)
    assert not any(kind_lines for other, kind_lines in audit.lines.items() if other != kind), (
        audit.lines
    )
    return audit.lines[kind]


def change(zone, statement):
    with zone.store.database.engine.begin() as connection:
        assert connection.execute(statement).rowcount


def placed_below(top, **spec):
    answer = top.select(a_request(**spec))
    assert answer.outcome is Outcome.PLACED and answer.selections[0][0].child, answer
    return answer.selections[0][0]


@pytest.fixture
def east(zone):
    return zone('east').hosts(2)


@pytest.fixture
def top(zone, east):
    return zone('top').above(east)


def test_a_sound_tree_has_nothing(zone, east, top):
    for _ in range(3):
        chosen = placed_below(top)
    east.confirm(chosen.claim_id)
    audit = findings(top)
    assert audit.lines == CLEAN
    assert [
        (summary.zone, summary.claims, summary.hosts, summary.problem) for summary in audit.zones
    ] == [('east', 3, 2, '')]
    assert ZoneAudit(east.store, east.around.calls).run().zones == []
    east.cut()
    [summary] = findings(top).zones
    assert summary.problem.startswith('its claims are not known: ')


def test_claims_that_two_zones_know_otherwise_are_found(east, top):
    gone, ended, unknown, silent = (placed_below(top) for _ in range(4))
    claims, below = models.claims, models.child_claims
    top.over_zones.follower.stop(5.0)  # what has ended is not noted any more
    [key] = [row.key for row in top.store.child_claims.find() if row.claim_id == ended.claim_id]
    east.store.requests.cancel_request(scoped_id('top', key), 'ended there')
    east.confirm(unknown.claim_id)
    for selection in (unknown, silent):
        change(top, below.delete().where(below.c.claim_id == selection.claim_id))
    change(east, claims.delete().where(claims.c.id == gone.claim_id))
    by_kind = findings(top).lines
    assert by_kind['lost'] == [
        f'claim {gone.claim_id} of {gone.consumer}: reserved as it is known here, '
        'zone east does not know it'
    ]
    # What is reserved there ends with its lease, and is none yet.
    assert by_kind['leaked'] == [
        f'claim {unknown.claim_id} of {unknown.consumer}: confirmed in zone east, '
        'and not known here'
    ]
    assert by_kind['doubled'] == []
    change(east, claims.update().values(updated_at=1.0))
    by_kind = findings(top).lines
    assert len(by_kind['lost']) == len(by_kind['leaked']) == 2
    assert any('released in zone east for ' in line for line in by_kind['lost'])


def test_a_consumer_in_two_places_is_found(zone, east, top):
    first, second = placed_below(top), placed_below(top)
    west = zone('west').hosts(1)
    top.above(west)
    # The guard that stands in the way of it is taken away.
    change(top, models.delegated_consumers.delete())
    top.put('/v1/zones/east', {'enabled': False})
    top.zones.directory.refresh()
    top.select(a_request(consumers=[first.consumer]))
    top.host('top-1')
    top.select(a_request(consumers=[second.consumer], hops=0))
    words = 'has live claims for create in zone east and'
    assert sorted(lines(top, 'doubled')) == sorted(
        (
            f'consumer {first.consumer}: {words} in zone west',
            f'consumer {second.consumer}: {words} here',
        )
    )


@pytest.mark.parametrize('by', ['its host', 'Nova', 'its writer'])
def test_a_guest_that_is_found_here_and_was_placed_below_has_its_room_and_is_named(east, top, by):
    """What runs, runs: both claims stay until somebody has looked where."""
    guest = placed_below(top)
    if by == 'Nova':
        registration = RegisterHost(name='top-1', boot_nonce=DICTIONARY_NONCE)
        top.epochs['top-1'] = top.scheduler.register_host(registration).epoch
        top.sequences['top-1'] = 0
        top.report('top-1')
    else:
        top.host('top-1')
    if by == 'its host':
        runs = Running(consumer=guest.consumer, resources={'VCPU': 2})
        top.report('top-1', running=[runs])
    elif by == 'Nova':
        runs = NovaGuest(consumer=guest.consumer, resources={'VCPU': 2}, flavor='m1')
        word = GuestsUpdated(host='top-1', guests=[runs])
        top.store.nova.apply_guest_events([NovaCast(event=word)])
    else:
        change(top, models.child_claims.update().values(state='released'))
        [host] = [host for host in list_providers(top.store) if host.name == 'top-1']
        own = {'project_id': 'red', 'user_id': 'eve'}
        shares = {host.uuid: {'VCPU': 2}}
        wish = WantedAllocations(consumer=guest.consumer, allocations=shares, **own)
        top.store.allocations.write_allocations([wish])
        change(top, models.child_claims.update().values(state='reserved'))
    [claim] = top.store.claims.list_claims(consumer=guest.consumer)
    assert (claim.is_live, claim.allocations[claim.provider_id]) == (True, {'VCPU': 2})
    if by != 'its writer':
        assert claim.adopted
        assert claim.reason.endswith(', and has one in child zone east')
    words = 'has live claims for create in zone east and here'
    assert lines(top, 'doubled') == [f'consumer {guest.consumer}: {words}']
    assert top.store.zone_figures.claims_to_check()[east.uuid].doubled == 1
    top.store.claims.force_release(claim.id, 'it runs below')
    assert lines(top, 'doubled') == []
    assert top.store.zone_figures.claims_to_check() == {}


# -- hosts -----------------------------------------------------------------------------
def register(zone, name, **said):
    zone.scheduler.register_host(RegisterHost(name=name, boot_nonce=str(uuid.uuid4()), **said))


def test_a_host_that_is_registered_here_and_below_is_found(east, top):
    for by in ('journal', 'uuid'):
        identity = {by: str(uuid.uuid4())}
        register(east, f'called-so-there-{by}', **identity)
        register(top, f'by-{by}', **identity)
    for zone in (east, top):
        register(zone, 'by-name')
        # Two machines have one name: each has a journal of its own.
        register(zone, 'cmp-1', journal=str(uuid.uuid4()))
    assert lines(top, 'doubled') == [
        f'host by-{by}: is registered here and in zone east or below it, with the same {by}'
        for by in ('journal', 'uuid', 'name')
    ]


def test_a_host_of_two_zones_below_is_found_wherever_it_is(zone, east, top, monkeypatch):
    west = zone('west')
    top.above(west)
    shared = zone('shared').hosts(5)
    for node in (east, west):
        node.above(shared)
    # The hosts of a zone that two others have below them are registered once.
    monkeypatch.setattr(zones, 'DIGESTS_PAGE_MAX', 2)
    audit = findings(top)
    assert audit.lines == CLEAN
    assert [(summary.hosts, summary.problem) for summary in audit.zones] == [(7, ''), (5, '')]
    journal = str(uuid.uuid4())
    register(west, 'secret-1', journal=journal)
    register(shared, 'secret-2', journal=journal)
    # It is registered in two zones that are below one of ours, and by another one below both.
    doubled = lines(top, 'doubled')
    assert doubled and all('in zones east and west or below them' in line for line in doubled)
    assert 'secret' not in str(doubled)
    shared.cut()
    problems = {summary.problem for summary in findings(top).zones}
    assert problems == {'not all of its hosts are known: one of its child zones is silent'}


def test_what_a_zone_above_gets_names_no_host(east, top):
    register(east, 'secret-name', uuid='0f8fad5b-d9cb-469f-a165-70867728950e')
    salt = secrets.token_hex(32)
    headers = {'X-User-Id': top.uuid, **VERSION}

    def ask(by=headers, **body):
        return httpx.post(f'{east.url}/zone/v1/host-digests', json=body, headers=by)

    answer = ask(salt=salt)
    assert answer.status_code == 200
    assert 'secret' not in answer.text and '0f8fad5b' not in answer.text
    digests_of_hosts = host_digests.parse_digests(answer.json()['digests'])
    assert len(digests_of_hosts) == 3 and digests_of_hosts == sorted(digests_of_hosts)
    # Another salt, other digests: what was learned once cannot be looked up.
    other = host_digests.parse_digests(ask(salt=secrets.token_hex(32)).json()['digests'])
    assert not {d for mark in digests_of_hosts for d in mark} & (
        {d for mark in other for d in mark} - {b''}
    )
    for wrong in ({'salt': 'ab'}, {'salt': salt, 'after': 'x'}, {'salt': salt, 'hops': 9}, {}):
        assert ask(**wrong).status_code == 400
    assert ask(salt=salt, via=[zone_audit.hop_digest(salt, east.uuid)]).status_code == 508
    assert ask({**headers, 'X-User-Id': 'x'}, salt=salt).status_code == 403


def test_digests_are_read_as_they_are_written_and_nothing_else_is():
    hosts = [RegisteredHost(f'h{n}', str(uuid.uuid4()), '' if n % 2 else 'j') for n in range(9)]
    digests_of_hosts = sorted(host_digests.digests_of(host, 'zone', b'0' * 32) for host in hosts)
    assert (
        host_digests.parse_digests(host_digests.digests_text(digests_of_hosts)) == digests_of_hosts
    )
    for wrong in ('*', 'AAAA', 'x' * 44):
        with pytest.raises(ValueError, match='digests: expected base64'):
            host_digests.parse_digests(wrong)


# -- many --------------------------------------------------------------------------------
def test_claims_come_in_pages_however_many_changed_at_once(east, top, monkeypatch):
    for _ in range(5):
        placed_below(top)
    change(
        east, models.claims.update().values(updated_at=sa.func.round(models.claims.c.updated_at))
    )
    monkeypatch.setattr(zones, 'CHANGES_MAX', 2)
    audit = findings(top)
    assert audit.lines == CLEAN and audit.zones[0].claims == 5
    # So does who follows: it comes to the last page.
    change(east, models.claims.update().values(state='confirmed'))
    top.over_zones.follower.step()
    assert {row.state for row in top.store.child_claims.find()} == {'confirmed'}
