# SPDX-License-Identifier: Apache-2.0
"""Which site this is, and what runs there."""

import json
from typing import Any

import pytest

from gantt.core.records.process import MemoryUse, ServiceNote
from gantt.http.settings import HttpSettings
from tests.cli.conftest import Gantt
from tests.http.site import Site


@pytest.fixture
def site() -> Site:
    return Site(HttpSettings(site_name='lab'))


def _note(name: str, kind: str = 'scheduler', **fields: Any) -> ServiceNote:
    values: dict[str, Any] = {'host': name, 'version': '2.0', 'configuration': 'a1' * 8, **fields}
    return ServiceNote(name=f'{name}:{kind}:ab', kind=kind, **values)


def test_no_process_is_said(gantt: Gantt) -> None:
    assert gantt('service', 'list').out == 'no process has noted itself\n'


@pytest.mark.finding('N8', 'which schedulers and APIs run, and with which configuration')
def test_processes_are_listed_with_what_differs(site: Site, gantt: Gantt) -> None:
    store = site.world.store
    store.services.note_service(_note('ctl-1'))
    store.services.note_service(_note('ctl-9', configuration='c3' * 8))
    site.pass_seconds(200)
    store.services.note_service(_note('ctl-2'))
    store.services.note_service(_note('ctl-3', configuration='b2' * 8, problem='Nope is no filter'))
    store.services.note_service(_note('ctl-1', 'api', version='1.9'))
    listed = json.loads(gantt('service', 'list', '-f', 'json').out)
    rows = {(r['kind'], r['host']): r for r in listed}
    assert list(rows) == [
        ('scheduler', 'ctl-1'),
        ('scheduler', 'ctl-2'),
        ('scheduler', 'ctl-3'),
        ('scheduler', 'ctl-9'),
        ('api', 'ctl-1'),
    ]
    assert {key for key, row in rows.items() if row['is_silent']} == {
        ('scheduler', 'ctl-1'),
        ('scheduler', 'ctl-9'),
    }
    # Of those that are silent nobody knows what they would run with.
    assert {key for key, row in rows.items() if row['differs']} == {('scheduler', 'ctl-3')}
    text = gantt('service', 'list').out
    assert 'its configuration was not taken over: Nope is no filter' in text
    assert '2 configurations run: ' + 'a1' * 8 + ' (2), ' + 'b2' * 8 + ' (1)' in text
    assert '2 versions run: 2.0 (2), 1.9 (1): finish the upgrade' in text


@pytest.mark.finding('H4', 'an operator who asks how things stand sees forged messages')
def test_an_alarm_of_a_process_is_shown(site: Site, gantt: Gantt) -> None:
    alarm = 'messages that were not signed with their keys: 3 (cmp-1)'
    site.world.store.services.note_service(_note('ctl-1'))
    assert 'Not well' not in gantt('status').out
    site.world.store.services.note_service(_note('ctl-1', alarm=alarm))
    assert alarm in gantt('service', 'list').out
    assert f'ctl-1:scheduler:ab: {alarm}' in ' '.join(gantt('status').out.split())
    [problem] = json.loads(gantt('status', '-f', 'json').out)['problems']
    assert problem == {'name': 'ctl-1:scheduler:ab', 'detail': alarm}


def test_the_memory_of_processes_is_shown(site: Site, gantt: Gantt) -> None:
    assert 'Memory' not in gantt('status').out
    memory = MemoryUse(
        resident_bytes=430_000_000,
        hosts=10_000,
        bytes_per_host=3140,
        claims=50_000,
        bytes_per_claim=331,
    )
    note_service = site.world.store.services.note_service
    note_service(_note('ctl-9', memory=memory))
    site.pass_seconds(200)
    note_service(_note('ctl-1', memory=memory))
    note_service(_note('ctl-2', 'api'))  # of release 1.0
    lines = gantt('status').out.splitlines()
    head = lines.index('Memory')
    assert lines[head + 1 :] == [
        'KIND       NAME                RESIDENT  HOSTS  PER HOST  CLAIMS  PER CLAIM',
        'scheduler  ctl-1:scheduler:ab    430 MB  10000    3.1 kB   50000      331 B',
    ]
    [shown] = json.loads(gantt('status', '-f', 'json').out)['memory']
    assert shown == {
        'name': 'ctl-1:scheduler:ab',
        'kind': 'scheduler',
        'resident_bytes': 430_000_000,
        'hosts': 10_000,
        'bytes_per_host': 3140,
        'claims': 50_000,
        'bytes_per_claim': 331,
    }


@pytest.mark.finding('N8', 'which site a command asks')
def test_the_site_is_named(gantt: Gantt, endpoint: str) -> None:
    facts = json.loads(gantt('site', '-f', 'json').out)
    assert (facts['site'], facts['url']) == ('lab', endpoint)
    assert facts['version'] == facts['client']
    assert facts['interface'].startswith('1.0 to 1.')
    assert gantt('status').out.startswith('Site      lab\n')
