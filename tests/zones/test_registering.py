# SPDX-License-Identifier: Apache-2.0
"""Zones below and above are registered, changed and removed: what is wrong is named."""

import uuid

import pytest
from msgspec.structs import replace

from gantt.cli import main
from gantt.core.records.decision import Outcome
from tests.world import a_request
from tests.zones.test_protocol import code


@pytest.fixture
def two(zone):
    """A zone, and one below it."""
    top, east = zone('top'), zone('east').hosts(1, 8)
    return top.above(east, last_resort=True), east


def registered(zone):
    """The zones below, without what is noted of each when it is asked for the first time."""
    return [
        replace(child, incarnation=0, synced_incarnation=0)
        for child in zone.store.zones.child_zones()
    ]


def field_of(answer):
    assert (answer.status_code, code(answer)) == (400, 'gantt.invalid_message'), answer.text
    details = answer.json()['errors'][0]['details']
    assert 'expected' in details['problem']
    return details['field']


def test_a_zone_has_one_name_and_is_not_registered_under_two_addresses(two):
    top, east = two
    before = top.get('/v1/zones/east').json()
    other_address = east.url.replace('127.0.0.1', 'localhost')
    again = top.put('/v1/zones/west', {'url': other_address})
    assert again.status_code == 400 and "registered as 'east'" in again.text
    tried = top.put('/v1/zones/west?dry_run=true', {'url': other_address})
    assert tried.status_code == 400 and "registered as 'east'" in tried.text
    assert [child['name'] for child in top.get('/v1/zones').json()['zones']] == ['east']
    assert top.get('/v1/zones/east').json() == before
    # It may move.
    assert top.put('/v1/zones/east', {'url': other_address}).status_code == 200
    assert top.get('/v1/zones/east').json()['url'] == other_address


@pytest.mark.parametrize(
    'url',
    [
        *('', 'foo', 'ftp://127.0.0.1', 'http://', 'http:///path', 'http://[', 'http://[::1'),
        *('http://127.0.0.1:99999', 'http://127.0.0.1:x', 'http://127.0.0.1:0', 'http://h\u00e9'),
        *('http://name:secret@127.0.0.1', 'http://127.0.0.1/?a=b', 'http://127.0.0.1/#a'),
        *('http://127.0.0.1 ', 'http://127.0.0.1\n', 'x' * 900),
    ],
)
def test_an_address_that_is_none_is_named(two, url):
    top, _ = two
    before = registered(top)
    assert field_of(top.put('/v1/zones/new', {'url': url})) == 'body.url'
    assert field_of(top.put('/v1/zones/east', {'url': url})) == 'body.url'
    assert registered(top) == before


def test_a_name_that_nobody_could_be_called_by_is_named(two):
    top, east = two
    parent = {'identity': 'other', 'project_id': 'p'}
    for name in ('a' * 256, '%20', str(uuid.uuid4())):
        assert field_of(top.put(f'/v1/zones/{name}', {'url': east.url})) == 'name'
        assert field_of(east.put(f'/v1/parents/{name}', parent)) == 'name'
    assert top.put(f'/v1/zones/{east.uuid}', {'last_resort': False}).status_code == 200
    assert [child.last_resort for child in top.store.zones.child_zones()] == [False]
    assert [parent.name for parent in east.store.zones.parent_zones()] == ['top']


def test_a_credential_that_cannot_be_used_is_named(two):
    top, _ = two
    before = registered(top)
    assert field_of(top.put('/v1/zones/east', {'credential': 'a' * 256})) == 'body.credential'
    absent = top.put('/v1/zones/east', {'credential': 'absent'})
    assert field_of(absent) == 'body.credential'
    assert '[zones] credentials_file' in absent.text
    elsewhere = top.put('/v1/zones/new', {'url': 'https://192.0.2.1'})
    assert field_of(elsewhere) == 'body.credential'
    assert registered(top) == before


def test_a_parent_whose_claims_live_further_down_is_in_use(zone):
    top, middle, leaf = zone('top'), zone('middle'), zone('leaf').hosts(1)
    middle.above(leaf)
    top.above(middle)
    assert top.select(a_request()).outcome is Outcome.PLACED
    refused = middle.delete('/v1/parents/top')
    assert (refused.status_code, code(refused)) == (409, 'gantt.in_use')
    assert '1 claims' in refused.text
    assert [parent.name for parent in middle.store.zones.parent_zones()] == ['top']


def test_scores_that_were_accepted_stay_so_when_something_else_is_set(zone):
    multiplier = {'options': {'ram_weight_multiplier': 3.0}}
    top, east = zone('top'), zone('east', pipeline=multiplier).hosts(1)
    top.above(east, accept_scores=True, scale=0.5)
    assert top.select(a_request()).outcome is Outcome.PLACED
    moved = top.put('/v1/zones/east', {'url': east.url.replace('127.0.0.1', 'localhost')})
    assert moved.status_code == 200, moved.text
    assert top.select(a_request()).outcome is Outcome.PLACED


def test_a_zone_is_heard_of_before_it_is_asked(zone):
    top, east = zone('top').hosts(1, 4), zone('east').hosts(1, 64)
    own = {'identity': top.uuid, 'project_id': 'of-top'}
    assert east.put('/v1/parents/top', own).status_code == 200
    request = a_request(vcpu=16)
    over_zones = top.over_zones
    assert not over_zones.stays(request)
    for words, is_asked in (
        (('add', 'east', east.url, '--disabled'), False),
        (('enable', 'east'), True),
    ):
        assert main.main(['--endpoint', top.url, 'zone', *words]) == 0
        top.zones.directory.refresh()
        # Whom it places it writes down from the first moment on.
        assert (over_zones.stays(request), over_zones.takes(request)) == (True, is_asked)
    assert top.select(request).selections[0][0].child == 'east'


def test_scores_are_set_by_the_command_and_a_scale_is_above_nothing(two, capsys):
    top, _ = two

    def given(*words):
        return main.main(['--endpoint', top.url, 'zone', 'set', 'east', *words])

    def scores():
        [child] = top.store.zones.child_zones()
        return child.scale, child.offset, child.last_resort

    assert given('--scale', '0.5', '--offset', '0.25') == 0
    assert scores() == (0.5, 0.25, True)
    assert given('--offset', '0') == 0
    assert scores() == (0.5, 0.0, True)
    assert given('--offset', '-0.5', '--no-last-resort') == 0
    assert scores() == (0.5, -0.5, False)
    capsys.readouterr()
    for wrong in ('nan', 'inf', '1e9', 'much', '0', '-1'):
        assert given('--scale', wrong) != 0
        assert '--scale' in capsys.readouterr().err
    for wrong in (0, -1, -1e-9):
        response = top.put('/v1/zones/east', {'scale': wrong})
        assert response.status_code == 400 and 'body.scale' in response.text
    assert scores() == (0.5, -0.5, False)
