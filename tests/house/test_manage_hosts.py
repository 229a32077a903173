# SPDX-License-Identifier: Apache-2.0
"""gantt-manage host and adopt, as an operator runs them, on a SQLite file."""

import json

import pytest

from gantt import exceptions
from gantt.cmd import manage_hosts
from gantt.core.claims.adoption import GUESTS_MAX, GuestToAdopt
from gantt.core.resources import host_keys
from gantt.core.resources.host_keys import Proof, SigningMode, VerifiedRegistration
from gantt.ed25519 import PrivateKey
from gantt.stores import stores_for_url
from tests.builders import CLEAN, a_draft, a_host, claimed, live, new_uuid, register_host, uuid_of


@pytest.fixture
def store(synced):
    opened = stores_for_url(f'sqlite:///{synced}/gantt.db')
    yield opened
    opened.database.close()


@pytest.fixture
def host(store):
    return a_host('cmp-1').on(store)


def a_line(host='cmp-1', consumer=None, vcpu=1, **fields):
    guest = {'host': host, 'consumer': consumer or new_uuid(), 'resources': {'VCPU': vcpu}}
    return json.dumps({**guest, **fields})


@pytest.fixture
def tell(site, manage):
    """``tell(*lines)``: adopt the guests of these lines."""

    def run(*lines, options=()):
        (site / 'guests').write_text('\n'.join(lines) + '\n')
        return manage('adopt', str(site / 'guests'), *options)

    return run


def names(store):
    return [change.row.name for change in store.feed.load_everything().hosts]


# -- keys -------------------------------------------------------------------------------------
def test_a_key_is_shown_revoked_and_forgotten(store, host, manage):
    code, out, error = manage('host', 'key', 'show', 'cmp-1')
    assert (code, error) == (0, '')
    assert 'cmp-1 has no key' in out
    for verb in ('revoke', 'forget'):
        code, out, error = manage('host', 'key', verb, 'cmp-1')
        assert (code, out) == (1, '')
        assert "key of host 'cmp-1' was not found" in error
    key = host_keys.key_text(PrivateKey().public)
    proven = Proof(number=1, key=key)
    introduced = VerifiedRegistration(
        name='cmp-1', boot_nonce=new_uuid(), mode=SigningMode.KNOWN, proven=proven
    )
    register_host(store, introduced)
    shown = json.loads(manage('host', 'key', 'show', 'cmp-1', '-f', 'json')[1])
    assert shown['fingerprint'] == host_keys.fingerprint(key)
    assert (shown['is_revoked'], shown['revoked']) == (False, [])
    assert host_keys.fingerprint(key) in manage('host', 'key', 'show', 'cmp-1')[1]
    assert 'nobody reports for cmp-1 now' in manage('host', 'key', 'revoke', 'cmp-1')[1]
    assert 'revoked: messages of the host are refused' in manage('host', 'key', 'show', 'cmp-1')[1]
    assert 'is forgotten' in manage('host', 'key', 'forget', 'cmp-1')[1]
    out = manage('host', 'key', 'show', 'cmp-1')[1]
    assert 'cmp-1 has no key' in out
    assert f'never taken again: {host_keys.fingerprint(key)}' in out
    assert manage('host', 'key', 'show', 'cmp-9')[0] == 1


# -- who says what it has ---------------------------------------------------------------------
def test_who_says_what_a_host_has_is_shown_and_changed(store, host, manage):
    assert manage('host', 'inventories', 'cmp-1')[1] == 'cmp-1: its reports say what it has\n'
    code, out, error = manage('host', 'inventories', 'cmp-1', '--by', 'api')
    assert (code, error) == (0, '')
    assert 'requests to the Placement interface say what it has' in out
    assert not host.row.reports_inventories
    shown = json.loads(manage('host', 'inventories', 'cmp-1', '-f', 'json')[1])
    assert shown == {'host': 'cmp-1', 'inventories_by': 'api'}
    line = store.hosts.host_history('cmp-1', 1)[0]
    assert (line.kind, line.actor) == ('facts', 'gantt-manage')
    assert line.message == 'requests to the Placement interface say what it has'
    assert (
        'until its next full report' in manage('host', 'inventories', 'cmp-1', '--by', 'reports')[1]
    )
    assert host.row.reports_inventories


def test_who_says_it_is_one_of_two_and_of_a_host_that_is_known(store, host, manage):
    for options in ((), ('--by', 'api')):
        code, out, error = manage('host', 'inventories', 'cmp-9', *options)
        assert (code, out) == (1, '')
        assert "host 'cmp-9' was not found" in error
    code, _, error = manage('host', 'inventories', 'cmp-1', '--by', 'nova')
    assert code == 64
    assert "invalid choice: 'nova'" in error


# -- rename -----------------------------------------------------------------------------------
def test_a_host_that_reports_is_not_renamed_behind_its_back(store, host, manage):
    code, out, error = manage('host', 'rename', 'cmp-1', 'rack1-07')
    assert (code, out) == (1, '')
    assert 'stop its agent' in error and '--now' in error
    assert names(store) == ['cmp-1']
    code, out, error = manage('host', 'rename', 'cmp-1', 'rack1-07', '--now')
    assert (code, error) == (0, '')
    assert 'cmp-1 is rack1-07 now' in out
    assert names(store) == ['rack1-07']


def test_a_name_that_nobody_has_or_that_is_none_is_one_line(store, host, manage):
    code, out, error = manage('host', 'rename', 'cmp-9', 'x')
    assert (code, out) == (1, '')
    assert "host 'cmp-9' was not found" in error
    for new in ('a\tb', 'bad name!', 'az:cmp-2', 'x' * 256, ''):
        code, _, error = manage('host', 'rename', 'cmp-1', new, '--now')
        assert code == 1
        assert 'NEW: expected a name of 1 to 255 letters' in error
        assert 'Traceback' not in error
    assert names(store) == ['cmp-1']


# -- decommission --------------------------------------------------------------------------------
def test_a_host_goes_for_good_in_steps(store, host, manage):
    claim = claimed(store, a_draft().taking(host))[0]
    code, _, error = manage('host', 'decommission', 'cmp-1')
    assert code == 1
    assert 'cmp-1 has 1 live claim; "gantt claim list --host cmp-1" lists them' in error
    assert host.row.disabled == 'decommissioned'
    store.claims.force_release(claim.id, '')
    code, _, error = manage('host', 'decommission', 'cmp-1')
    assert code == 1
    assert 'stop its agent' in error
    assert names(store) == ['cmp-1']
    code, out, _ = manage('host', 'decommission', 'cmp-1', '--now')
    assert (code, out) == (0, 'cmp-1 is forgotten, and in no aggregate any more\n')
    assert names(store) == []
    assert manage('host', 'decommission', 'cmp-1')[0] == 1


def test_decommission_waits_no_longer_than_it_is_told_and_keeps_the_reason(store, host, manage):
    claimed(store, a_draft().taking(host))
    store.hosts.disable_host('cmp-1', 'disk swap', 'ops')
    code, _, error = manage('host', 'decommission', 'cmp-1', '--wait', '0.1', '--now')
    assert (code, 'stays disabled' in error) == (1, True)
    assert host.row.disabled == 'disk swap'


@pytest.mark.parametrize('seconds', ['nan', 'inf', '-1', '1e9', 'soon'])
def test_decommission_waits_for_a_time_that_ends(store, host, manage, seconds):
    code, _, error = manage('host', 'decommission', 'cmp-1', '--now', f'--wait={seconds}')
    assert code == 64
    assert '--wait' in error
    assert host.row.disabled is None


# -- adopt -------------------------------------------------------------------------------------
def test_what_runs_is_adopted_and_may_be_told_again(store, host, tell):
    lines = [a_line(vcpu=2, flavor='m1.small', project_id='p1') for _ in range(3)]
    code, out, error = tell(*lines, options=['--dry-run'])
    assert (code, out.splitlines()[0]) == (0, 'nothing is written:'), error
    assert live(store) == []
    code, out, error = tell(*lines, '')
    assert (code, out) == (
        0,
        '3 adopted, 0 adopted beyond capacity, 0 known already, 0 on another host, '
        '0 on unknown hosts\n',
    ), error
    assert [(c.flavor, c.project_id, c.adopted) for c in live(store)] == [
        ('m1.small', 'p1', True)
    ] * 3
    code, out, _ = tell(*lines)
    assert code == 0
    assert out.startswith('0 adopted, 0 adopted beyond capacity, 3 known already')
    assert host.row.used == {'VCPU': 6}
    assert store.claims.audit() == CLEAN


def test_what_is_wrong_with_a_guest_is_listed(store, host, tell):
    a_host('cmp-2').on(store)
    placed = claimed(store, a_draft().taking(host))[0]
    lines = [a_line('cmp-2', placed.consumer), a_line('cmp-9'), a_line(vcpu=20), a_line('cmp-2')]
    code, out, _ = tell(*lines, options=['-f', 'json', '--batch', '1'])
    report = json.loads(out)
    assert code == 1
    assert report['counts'] == {
        'adopted': 1,
        'over_full': 1,
        'known': 0,
        'elsewhere': 1,
        'unknown_host': 1,
    }
    assert {trouble['outcome']: trouble['note'] for trouble in report['trouble']} == {
        'over_full': 'VCPU 21 of 8',
        'elsewhere': 'it has a live claim on cmp-1',
        'unknown_host': 'it must register before its guests come',
    }
    assert host.row.over_committed
    assert store.claims.audit() == CLEAN


@pytest.mark.parametrize(
    ('line', 'said'),
    [
        pytest.param('{', 'line 2: not valid JSON', id='no-json'),
        pytest.param(a_line(vcpu=0), 'line 2.resources', id='nothing'),
        pytest.param(a_line(vcpus=1), 'line 2.vcpus: unknown field', id='unknown-field'),
        pytest.param(a_line(resources={'VCPUS': 1}), "resource class 'VCPUS'", id='unknown-class'),
        pytest.param(a_line(consumer='x'), 'line 2.consumer: expected a UUID', id='no-uuid'),
        pytest.param(a_line(consumer=uuid_of('first')), 'got that of line 1 again', id='twice'),
    ],
)
def test_a_line_that_is_wrong_is_named(line, said):
    lines = [f'{row}\n'.encode() for row in (a_line(consumer=uuid_of('first')), line)]
    with pytest.raises(exceptions.InvalidMessage) as met:
        manage_hosts._decode_guests(lines, frozenset())
    assert said in met.value.message


@pytest.mark.parametrize(
    ('line', 'said'),
    [
        ('{', 'not valid JSON'),
        ('{"host": 1, "x"', 'not valid JSON'),
        ('[' * 50_000, 'nested too deeply'),
    ],
    ids=['cut', 'cut-after-a-wrong-field', 'deep'],
)
def test_where_a_line_is_wrong_nothing_is_done(store, host, tell, line, said):
    code, out, error = tell(a_line(), line)
    assert (code, out) == (1, '')
    assert f'gantt-manage: line 2: {said}' in error
    assert 'Traceback' not in error
    assert live(store) == []


def test_a_file_that_is_not_there_is_one_line(synced, manage):
    code, out, error = manage('adopt', str(synced / 'no-such'))
    assert (code, out) == (1, '')
    assert 'no-such: No such file' in error
    assert manage('adopt', 'x', '--batch', '0')[0] == 64


def test_a_batch_has_whole_hosts():
    guests = [
        GuestToAdopt(host=f'cmp-{n % 3}', consumer=new_uuid(), resources={'VCPU': 1})
        for n in range(9)
    ]
    batches = list(manage_hosts.batches(guests, 4))
    assert [len(batch) for batch in batches] == [6, 3]
    assert [{guest.host for guest in batch} for batch in batches] == [{'cmp-0', 'cmp-1'}, {'cmp-2'}]
    crowd = [guests[0]] * (GUESTS_MAX + 1)
    with pytest.raises(exceptions.InvalidMessage, match="'cmp-0' has 5001 guests"):
        list(manage_hosts.batches(crowd, 1))
