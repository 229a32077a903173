# SPDX-License-Identifier: Apache-2.0
"""``gantt quota``: list, show, set, unset."""

import json

import pytest

from tests.cli.conftest import Gantt


def test_limits_are_set_shown_listed_and_unset(gantt: Gantt) -> None:
    assert 'no limit is set' in gantt('quota', 'list').out
    dry = gantt('quota', 'set', 'red', 'live_claims=5', '--dry-run')
    assert dry.out == 'dry run: quota of red would be: live_claims 5\n'
    limited = gantt('quota', 'set', 'red', 'live_claims=5', 'class:VCPU=unlimited')
    assert limited.out == 'quota of red is set: class:VCPU unlimited, live_claims 5\n'
    listed = json.loads(gantt('quota', 'list', '--format', 'json').out)
    assert listed == [{'project_id': 'red', 'limits': {'class:VCPU': -1, 'live_claims': 5}}]
    assert 'class:VCPU=unlimited, live_claims=5' in gantt('quota', 'list').out
    lines = [line.split() for line in gantt('quota', 'show', 'red').out.splitlines()]
    assert ['live_claims', '5', '0', 'project'] in lines
    assert ['requests_per_minute', 'unlimited', '-', 'options'] in lines
    shown = json.loads(gantt('quota', 'show', '-f', 'json').out)
    assert shown['project_id'] == 'default'
    assert gantt('quota', 'unset', 'red', 'live_claims').code == 0
    assert gantt('quota', 'unset', 'red', '--all').out == 'quota of red is unset: class:VCPU\n'
    assert gantt('quota', 'unset', 'red', '--all').code == 1


def test_what_is_wrong_is_said_before_or_by_name(
    gantt: Gantt, capsys: pytest.CaptureFixture[str]
) -> None:
    for wrong in ('live_claims', 'live_claims=', 'live_claims=-3', 'live_claims=many', '=4'):
        refused = gantt('quota', 'set', 'red', wrong)
        errors = capsys.readouterr().err
        assert (refused.code, 'expected NAME=NUMBER' in errors) == (64, True), wrong
    unknown = gantt('quota', 'set', 'red', 'instances=4')
    assert (unknown.code, "'instances' is no limit" in unknown.err) == (1, True)
    for wrong in (['unset', 'red'], ['unset', 'red', 'live_claims', '--all']):
        assert gantt('quota', *wrong).code == 64
