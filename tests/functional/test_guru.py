# SPDX-License-Identifier: Apache-2.0
"""What running processes tell when they are asked by SIGUSR2; they go on as before."""

import os
import pathlib
import re
import signal

import pytest

from bench.rig import rig
from tests import warm
from tests.functional.test_workers import children, until

pytestmark = [pytest.mark.rabbit, pytest.mark.postgresql]

SECTIONS = ['Package', 'Threads', 'Processes', 'Configuration']
SECRET = 'n0body-must-read-this'


def heads(text: str) -> set[str]:
    """Titles of the sections, framed by signs of equality."""
    return {line.strip('= \n') for line in re.findall(r'^={4,}.*={4,}$', text, re.MULTILINE)}


def whole(folder: pathlib.Path, program: str, last: str) -> str:
    """The one report of a program, when its last section is there."""
    reports = [path.read_text() for path in folder.glob(f'{program}_gurumeditation_*')]
    assert len(reports) <= 1
    return reports[0] if reports and last in reports[0] else ''


def test_processes_report_when_they_are_asked_and_go_on(tmp_path, rabbit_url, postgresql_url):
    options = {
        'scheduler': {'workers': 2},
        'api': {'host': '127.0.0.1', 'port': 0},
        'rpc': {'nova_transport_url': f'rabbit://guest:{SECRET}@127.0.0.1:5672/'},
        'oslo_reports': {'log_dir': str(tmp_path)},
    }
    with rig(options, kind=warm.Rig) as own_rig:
        own_rig.start('api', 'gantt-api')
        own_rig.start('scheduler', 'gantt-scheduler')
        own_rig.wait_for('api', 'is ready')
        until(lambda: own_rig.log('scheduler').count('is ready') == 2, 'two workers are ready')
        supervisor = own_rig.processes['scheduler'].pid
        for pid in (own_rig.processes['api'].pid, supervisor, *children(supervisor)):
            os.kill(pid, signal.SIGUSR2)
        texts = {
            program: until(
                lambda p=program, s=last: whole(tmp_path, p, s), f'a report of {program}'
            )
            for program, last in (
                ('gantt-api', 'hosts in the table'),
                ('gantt-scheduler', 'Configuration'),
                ('gantt-scheduler-0', 'requests_waiting'),
                ('gantt-scheduler-1', 'requests_waiting'),
            )
        }
        for text in texts.values():
            assert set(SECTIONS) <= heads(text)
            assert SECRET not in text
        assert 'Gantt API' in heads(texts['gantt-api'])
        # It read all hosts before it listened.
        assert re.search(r'table_age_seconds\W+\d', texts['gantt-api'])
        assert 'Gantt scheduler' in heads(texts['gantt-scheduler-1'])
        assert 'table_age_seconds' in texts['gantt-scheduler-0']
        assert own_rig.stop('api') == 0
        assert own_rig.stop('scheduler') == 0
