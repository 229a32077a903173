# SPDX-License-Identifier: Apache-2.0
"""Text from outside is quoted and cut where people read it, and exact where programs do."""

import io
import json
import logging
import sys

import httpx2 as httpx
import pytest

from gantt import exceptions
from gantt.cli.main import main
from gantt.cmd import dead_letters
from gantt.cmd.console import print_lines
from gantt.core.messages import base
from gantt.core.messages.request import SelectDestinations
from gantt.http.server import HttpServer
from gantt.rpc import wire
from gantt.telemetry import log
from tests.http.site import Site

EVIL = 'a\nERROR gantt all is lost \x1b]0;owned\x07\x1b[2J\x9b31m\u202egnihton\u2028end'


@pytest.mark.finding('M5', 'text from outside is quoted and cut in logs and answers')
@pytest.mark.parametrize(
    'body',
    [
        {'x' * 1_000_000: 1},
        {'x`\n' * 300_000: 1},
        {'spec': {'resources': {'VCPU': 1}, 'purpose': 'x' * 1_000_000}},
        {'spec': {'resources': {'VCPU': 1}, 'image': {'properties': {'\x1b' * 200: 1}}}},
        {'spec': {'resources': {'VCPU': 1}, 'hints': {'\n': 1}}},
    ],
    ids=['key', 'odd_key', 'enum', 'map_key', 'newline'],
)
def test_a_refusal_repeats_little_of_what_it_refuses(body):
    whole = {'request_id': base.derived_id('a'), 'consumers': [base.derived_id('b')]} | body
    with pytest.raises(exceptions.InvalidMessage) as refused:
        base.decode(whole, SelectDestinations, inside='request')
    assert len(refused.value.message) < 1000
    assert refused.value.message.isprintable()
    assert all(len(str(value)) < 1000 for value in refused.value.kwargs.values())
    with pytest.raises(exceptions.InvalidMessage) as refused:
        base.decode_json(
            json.dumps(whole).encode()[: base.BYTES_MAX], SelectDestinations, inside='body'
        )
    assert len(refused.value.message) < 1000


@pytest.mark.finding('M5', 'text from outside is quoted and cut in logs and answers')
def test_an_argument_that_is_not_known_is_not_repeated_whole():
    with pytest.raises(exceptions.InvalidMessage) as refused:
        wire.check_names({'x\n' * 100_000: 1}, ())
    assert len(refused.value.message) < 300
    assert refused.value.message.isprintable()


@pytest.mark.finding('M5', 'text from outside is quoted and cut in logs and answers')
@pytest.mark.parametrize(
    'body',
    [
        {'x\n' * 100_000: '\ud800'},
        {'x\n' * 100_000: float('nan')},
    ],
)
def test_the_path_of_what_is_refused_is_not_repeated_whole(body):
    look = wire.check_encodable if isinstance(next(iter(body.values())), str) else wire.check_finite
    with pytest.raises(exceptions.InvalidMessage) as refused:
        look(body, 'args')
    assert len(refused.value.message) < 2000
    assert refused.value.message.isprintable()
    assert all(len(str(value)) < 2000 for value in refused.value.kwargs.values())


@pytest.mark.finding('M5', 'text from outside is quoted and cut in logs and answers')
def test_a_type_of_body_is_not_repeated_whole():
    caller = httpx.Client(
        transport=httpx.WSGITransport(app=Site().app), base_url='http://localhost'
    )
    response = caller.post('/v1/requests', content=b'{}', headers={'Content-Type': 'x' * 30_000})
    assert response.status_code == 415
    assert len(response.content) < 2000


@pytest.mark.finding('M5', 'text from outside is quoted and cut in logs and answers')
def test_what_gantt_manage_prints_for_people_is_escaped(capsys):
    letter = dead_letters.ShownDeadLetter(
        at='-',
        code=EVIL,
        problem=EVIL,
        topic=EVIL,
        method=EVIL + 'x' * 10_000,
        request=EVIL,
        server=EVIL,
        bytes=1,
        body=EVIL,
    )
    print_lines(*dead_letters._lines(letter), f'over_commit: {EVIL}')
    printed = capsys.readouterr().out
    assert printed.count('\n') == 4
    assert all(line.isprintable() for line in printed.split('\n'))
    assert len(printed) < 3000


def _logged(*args, **kwargs):
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(log.MaskingFormatter(logging.Formatter('%(levelname)s %(message)s')))
    logger = logging.Logger('of this test')
    logger.addHandler(handler)
    logger.info(*args, **kwargs)
    return out.getvalue()


@pytest.mark.finding('M5', 'text from outside is quoted and cut in logs and answers')
def test_a_log_message_is_one_line():
    logged = _logged('host is disabled by %s: %s', EVIL, 'x' * 1_000_000)
    assert logged.endswith('\n')
    assert logged[:-1].isprintable()
    assert len(logged) < 20_000
    assert 'a\\nERROR' in logged
    fact = log.facts(reason=EVIL, other='\x1b[2J', long='x' * 100_000)
    assert fact.isprintable()
    assert len(fact) < 5000


def test_a_traceback_has_its_lines_and_no_others_commands():
    try:
        raise ValueError(EVIL)
    except ValueError:
        logged = _logged('it failed', exc_info=sys.exc_info())
    assert logged.count('\n') > 3
    assert not {'\x1b', '\x9b', '\u202e', '\u2028', '\x07'} & set(logged)


@pytest.mark.finding('M5', 'text from outside is quoted and cut in logs and answers')
def test_what_a_terminal_obeys_is_escaped_for_people_and_exact_for_programs(monkeypatch):
    monkeypatch.setenv('COLUMNS', '400')
    site = Site()
    site.world.store.hosts.disable_host('cmp-2', EVIL, 'somebody')
    site.world.turn()
    server = HttpServer(site.app, '127.0.0.1', 0, threads=2)
    server.start()
    try:
        command = '--endpoint', f'http://127.0.0.1:{server.port}', 'host', 'show', 'cmp-2'
        shown, exact = io.StringIO(), io.StringIO()
        assert main(command, shown, io.StringIO()) == 0
        assert main((*command, '-f', 'json'), exact, io.StringIO()) == 0
    finally:
        assert server.stop(5)
    assert all(line.isprintable() for line in shown.getvalue().split('\n'))
    assert '\\x1b]0;owned' in shown.getvalue()
    assert EVIL in _texts(json.loads(exact.getvalue()))


def _texts(document):
    if isinstance(document, dict):
        return [text for value in document.values() for text in _texts(value)]
    if isinstance(document, list):
        return [text for value in document for text in _texts(value)]
    return [document]
