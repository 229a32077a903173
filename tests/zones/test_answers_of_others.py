# SPDX-License-Identifier: Apache-2.0
"""Whatever answers at the address of a zone: a call ends, and only what can be read is believed."""

import gzip
import json
import time

import msgspec
import pytest

from gantt import exceptions
from gantt.zones.client.credentials import ZoneCredentials
from gantt.zones.client.http_calls import ANSWER_BYTES_MAX, HttpZones
from gantt.zones.model.messages import ZoneAllocated, ZoneChanges, ZoneEvaluated, ZoneRecord
from tests.builders import uuid_of
from tests.zones.other_side import Liar, broken

HEAD = b'HTTP/1.1 200 OK\r\nGantt-Zone: %s\r\n' % uuid_of('east').encode()


def call(url):
    """An evaluation, of which there may be an answer for a second."""
    zones = HttpZones(ZoneCredentials('', lambda: uuid_of('above')))
    try:
        zone = ZoneRecord(uuid=uuid_of('east'), name='east', url=url)
        return zones._call(zone, 'POST', '/evaluations', None, ZoneEvaluated, 1.0)
    finally:
        zones.close()


def whole(body, head=b''):
    return HEAD + head + b'Content-Length: %d\r\n\r\n' % len(body) + body


def much(connection):
    connection.sendall(HEAD + b'Content-Length: 104857600\r\n\r\n')
    part = b' ' * 65_536
    for _ in range(1600):
        connection.sendall(part)


def slowly(connection):
    for byte in HEAD * 3:
        connection.sendall(bytes([byte]))
        time.sleep(0.02)


def slow_body(connection):
    connection.sendall(HEAD + b'Content-Length: 100\r\n\r\n')
    for _ in range(100):
        connection.sendall(b' ')
        time.sleep(0.02)


def says(data):
    return lambda connection: connection.sendall(data)


BROKEN = {
    'nothing': says(b''),
    'no HTTP': says(b'\x00\xff' * 500),
    'a head that is cut': says(HEAD[:30]),
    'a cut after the head': says(HEAD + b'Content-Length: 50\r\n\r\n'),
    'a cut in the body': says(HEAD + b'Content-Length: 50\r\n\r\n{"outcome": '),
    'garbage': says(whole(b'\x93\x01\xc1 nonsense')),
    'lists in lists': says(whole(b'{"more": ' + b'[' * 100_000)),
    'an error of lists in lists': says(
        b'HTTP/1.1 503 No\r\nGantt-Zone: %s\r\nContent-Length: 100000\r\n\r\n'
        % uuid_of('east').encode()
        + b'[' * 100_000
    ),
    'another message': says(whole(b'{"claims": []}')),
    'a list': says(whole(b'[]')),
    'a hundred MB': much,
    'a hundred MB in a few bytes': says(
        whole(gzip.compress(b' ' * (100 << 20)), b'Content-Encoding: gzip\r\n')
    ),
    'a head without end': says(HEAD + b'X-Much: ' + b'x' * 300_000),
    'a byte of the head now and then': slowly,
    'a byte of the body now and then': slow_body,
    'a redirect': says(
        b'HTTP/1.1 307 Go\r\nLocation: http://127.0.0.1:1/\r\nGantt-Zone: %s\r\n'
        b'Content-Length: 0\r\n\r\n' % uuid_of('east').encode()
    ),
    'an error of its own': says(
        b'HTTP/1.1 500 Oh\r\nGantt-Zone: %s\r\nContent-Length: 0\r\n\r\n' % uuid_of('east').encode()
    ),
    'too many at once': says(
        b'HTTP/1.1 429 No\r\nGantt-Zone: %s\r\nContent-Length: 0\r\n\r\n' % uuid_of('east').encode()
    ),
    'another zone': says(
        b'HTTP/1.1 200 OK\r\nGantt-Zone: %s\r\nContent-Length: 24\r\n\r\n'
        b'{"outcome": "no_room" }  ' % uuid_of('west').encode()
    ),
    'no name': says(b'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}'),
}


@pytest.mark.leaves_sockets
@pytest.mark.parametrize('what', list(BROKEN))
def test_a_call_that_is_answered_by_something_else_is_not_answered(what):
    with broken(BROKEN[what]) as url, pytest.raises(exceptions.Unavailable):
        call(url)


def test_nobody_there_is_no_answer():
    with broken(says(b'')) as url:
        pass
    with pytest.raises(exceptions.Unavailable):
        call(url)


#: What no zone says, by the field.
OFFER = {'token': 't', 'level': 0, 'tier': 0.0, 'score': 0.5, 'fits': 1}
GOOD = {'outcome': 'placed', 'offers': [OFFER], 'hosts': 1}
NUMBERS = ('-1', '1e400', '"1"', '1.5', 'NaN', '123456789012345678901234567890')


@pytest.mark.parametrize('number', NUMBERS)
def test_numbers_that_no_zone_has_are_not_read(number):
    for field in ('hosts', 'survivors'):
        with pytest.raises(msgspec.MsgspecError):
            msgspec.json.decode(f'{{"outcome": "placed", "{field}": {number}}}', type=ZoneEvaluated)
    for field in ('level', 'fits'):
        offer = json.dumps(OFFER).replace(f'"{field}": {OFFER[field]}', f'"{field}": {number}')
        with pytest.raises(msgspec.MsgspecError):
            body = f'{{"outcome": "placed", "offers": [{offer}]}}'
            msgspec.json.decode(body, type=ZoneEvaluated)


@pytest.mark.parametrize(
    ('kind', 'body'),
    [
        (ZoneEvaluated, {**GOOD, 'offers': [{**OFFER, 'score': 1e300}]}),
        (ZoneEvaluated, {**GOOD, 'offers': [{**OFFER, 'tier': -1e200}]}),
        (ZoneEvaluated, {**GOOD, 'offers': [OFFER] * 21}),
        (ZoneEvaluated, {**GOOD, 'offers': [{**OFFER, 'token': ''}]}),
        (ZoneEvaluated, {**GOOD, 'offers': [{**OFFER, 'token': 'x' * 70_000}]}),
        (ZoneEvaluated, {**GOOD, 'removed': {f'f{n}': 1 for n in range(1000)}}),
        (ZoneEvaluated, {**GOOD, 'removed': {'x' * 1000: 1}}),
        (ZoneEvaluated, {**GOOD, 'outcome': 'perfect'}),
        (ZoneAllocated, {'key': 'k', 'state': 'placed', 'given_up': ['x' * 1000]}),
        (
            ZoneAllocated,
            {
                'key': 'k',
                'state': 'placed',
                'members': [
                    {
                        'consumer': uuid_of('c'),
                        'claim_id': 'x' * 5000,
                        'sealed_host': 'p',
                        'lease_seconds': 1.0,
                    }
                ],
            },
        ),
        (ZoneChanges, {'incarnation': 1, 'revision': -1.0, 'claims': []}),
        (
            ZoneChanges,
            {
                'incarnation': 1,
                'revision': 1.0,
                'claims': [
                    {'claim_id': uuid_of('c'), 'key': 'k', 'consumer': 'c', 'state': 'perhaps'}
                ],
            },
        ),
    ],
)
def test_what_no_zone_says_is_not_read(kind, body):
    with pytest.raises(msgspec.MsgspecError):
        msgspec.json.decode(json.dumps(body), type=kind)


def test_what_can_be_read_is():
    with Liar(uuid_of('east'), lambda *_: (200, GOOD)) as east:
        assert call(east.url).offers[0].score == 0.5
    assert len(json.dumps(GOOD)) < ANSWER_BYTES_MAX
