# SPDX-License-Identifier: Apache-2.0
"""Who reports for a host: an agent of its own, or Nova; and what the other one says then."""

import pytest

from gantt import exceptions
from gantt.core.messages.report import DICTIONARY_NONCE, RegisterHost
from gantt.nova.model.events import GuestDeleted, GuestLocation, GuestsListed, NovaCast, NovaGuest
from gantt.nova.model.events import GuestsUpdated as Updated
from tests.builders import CLEAN, a_draft, a_host, claimed, new_uuid, state_of

TIME = 2_000_000_000.0


def listed(*guests, host='cmp-1', number=0):
    word = GuestsListed(host=host, consumers=list(guests))
    cast_id = new_uuid()
    return NovaCast(id=cast_id, requested_at=TIME + 120 * number, event=word)


def words(guest):
    """All that a nova-compute that was left there may say of a guest that it does not have."""
    gone = GuestDeleted(host='cmp-1', consumer=guest)
    present = Updated(host='cmp-1', guests=[NovaGuest(consumer=new_uuid(), resources={'VCPU': 1})])
    casts = [listed(number=number) for number in range(3)]
    return [
        *casts,
        *(NovaCast(id=new_uuid(), requested_at=TIME + 900, event=word) for word in (gone, present)),
    ]


@pytest.fixture
def guest(host):
    """One that its own agent runs."""
    claim = claimed(host.store, a_draft().taking(host))[0]
    host.confirm(claim)
    assert host.report([claim]).outcome == 'applied'
    return claim


def test_words_of_nova_have_no_say_where_an_agent_speaks(store, host, guest):
    before = host.row
    result = store.nova.apply_guest_events(words(guest.consumer))
    assert (result.released, result.adopted, result.hosts) == ([], [], [])
    assert result.not_novas == ['cmp-1'] * 5
    assert host.row == before
    assert state_of(store, guest) == 'confirmed'
    assert store.claims.audit() == CLEAN


def test_what_nova_knows_of_a_guest_ends_no_claim_where_an_agent_speaks(store, host, guest):
    store.nova.resolve_guest(GuestLocation(consumer=guest.consumer, host=None))
    assert state_of(store, guest) == 'confirmed'
    store.nova.resolve_guest(GuestLocation(consumer=guest.consumer, host='cmp-2'))
    assert state_of(store, guest) == 'confirmed'


def test_in_a_batch_only_the_words_about_hosts_of_nova_count(store, host, guest):
    other = a_host('cmp-2').on(store, reporter='nova')
    present = new_uuid()
    for number in range(2):
        result = store.nova.apply_guest_events(
            [listed(number=number), listed(present, host='cmp-2', number=number)]
        )
        assert result.not_novas == ['cmp-1']
    assert len(result.adopted) == 1
    assert [change.provider_id for change in result.hosts] == [other.id]


@pytest.mark.parametrize('said', [{'journal': True}, {'reporter': 'host'}], ids=['journal', 'host'])
def test_an_agent_that_registers_takes_the_host_back_from_nova(store, said):
    host = a_host().on(store, reporter='nova')
    store.nova.apply_guest_events([listed()])
    assert host.row.reporter == 'nova'
    host.register(**{k: new_uuid() if k == 'journal' else v for k, v in said.items()})
    host.report()
    assert host.row.reporter == 'host'
    result = store.nova.apply_guest_events([listed(number=1), listed(number=2)])
    assert result.not_novas[:1] == ['cmp-1']
    assert host.row.reporter == 'host'


@pytest.mark.parametrize('was', [None, 'nova'], ids=['new', 'of-nova'])
def test_a_list_that_comes_before_the_first_report_of_an_agent_has_no_say(store, was):
    """The source goes on listing until its own report is refused."""
    host = a_host().on(store, **({'reporter': was} if was else {}))
    host.register(reporter='host')
    assert store.nova.apply_guest_events([listed()]).not_novas == ['cmp-1']
    host.report()
    claim = claimed(store, a_draft().taking(host))[0]
    host.confirm(claim)
    for number in range(1, 5):
        cast = listed(number=number)
        assert store.nova.apply_guest_events([cast]).not_novas == ['cmp-1']
    assert host.row.reporter == 'host'
    assert state_of(store, claim) == 'confirmed'
    assert store.claims.audit() == CLEAN


def test_nova_does_not_take_a_host_from_an_agent_that_reports(store, host, guest):
    before = host.row
    with pytest.raises(exceptions.HostHeld, match="'cmp-1': an agent .* --facts-only"):
        host.register(reporter='nova')
    assert host.row == before
    assert isinstance(exceptions.HostHeld(), exceptions.Refused)
    # Nor keeps it others from registering.
    refused, fine = store.reports.register_hosts(
        [
            RegisterHost(name=name, boot_nonce='source', reporter='nova')
            for name in ('cmp-1', 'cmp-2')
        ]
    )
    assert isinstance(refused, exceptions.HostHeld)
    assert fine[1].row.reporter == 'nova'
    assert host.report([guest]).outcome == 'applied'


def test_a_host_whose_agent_has_fallen_silent_may_become_one_of_nova(store, host, guest, damage):
    damage.silent_since(host, 300.0)
    host.register(reporter='nova')
    assert host.row.reporter == 'nova'
    assert store.nova.apply_guest_events([listed(guest.consumer)]).not_novas == []


def test_lists_of_before_an_agent_do_not_count_together_with_those_after_it(store, damage):
    host = a_host().on(store, reporter='nova')
    claim = claimed(store, a_draft().taking(host))[0]
    present, gone = [claim.consumer], []
    for number, guests in enumerate([present, present, gone, gone]):
        store.nova.apply_guest_events([listed(*guests, number=number)])
    host.register(reporter='host')
    for _ in range(3):
        assert host.report([claim]).outcome == 'applied'
    damage.silent_since(host, 300.0)
    host.register(reporter='nova')
    for number in (6, 7):
        assert store.nova.apply_guest_events([listed(number=number)]).not_novas == []
    assert state_of(store, claim) == 'confirmed'
    store.nova.apply_guest_events([listed(number=8)])
    assert state_of(store, claim) == 'released'
    assert store.claims.audit() == CLEAN


def test_a_host_that_was_heard_of_by_dictionaries_only_follows_nova(store, host):
    host.register(DICTIONARY_NONCE)
    host.report()
    present = new_uuid()
    for number in range(2):
        result = store.nova.apply_guest_events([listed(present, number=number)])
    assert len(result.adopted) == 1
    host.register(reporter='nova')
