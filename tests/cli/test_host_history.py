# SPDX-License-Identifier: Apache-2.0
"""The history of a host, as the command shows it."""

import json

import pytest

from tests.cli.conftest import Gantt
from tests.http.site import Site


@pytest.mark.finding('N8', 'what happened to a host, and who did it')
def test_the_history_says_who_did_what(site: Site, gantt: Gantt) -> None:
    gantt('host', 'disable', 'cmp-1', '--reason', 'disk swap', '--by', 'ann')
    gantt('host', 'undrain', 'cmp-1')
    history = json.loads(gantt('host', 'history', 'cmp-1', '-f', 'json').out)
    entries = [
        (entry['kind'], entry['actor'], entry['message']) for entry in reversed(history['entries'])
    ]
    assert entries[0] == ('registered', '', 'for the first time')
    assert entries[-2:] == [
        ('disabled', 'ann', 'disk swap'),
        ('enabled', 'somebody', 'an operator enabled it'),
    ]
    assert ('facts', '', 'zone: - -> az1') in entries
    assert history['truncated'] is False
    lines = gantt('host', 'history', 'cmp-1').out.splitlines()
    assert lines[0].split() == ['AGE', 'WHAT', 'BY', 'DETAIL']
    assert lines[2].split()[1:] == ['disabled', 'ann', 'disk', 'swap']
    short = gantt('host', 'history', 'cmp-1', '--limit', '1').out.splitlines()
    assert short[-1] == 'there is more; see --limit (1 shown)'


def test_a_host_that_is_gone_has_its_history_and_one_that_never_was_has_none(
    site: Site, gantt: Gantt
) -> None:
    gantt('host', 'remove', 'cmp-3')
    assert 'removed' in gantt('host', 'history', 'cmp-3').out
    refused = gantt('host', 'history', 'cmp-33')
    assert refused.code == 1
    assert 'was not found' in refused.err
