# SPDX-License-Identifier: Apache-2.0
"""Usage by project, as the command shows it."""

import json

from gantt.core.messages.request import RequestSpec, SelectDestinations
from tests.cli.conftest import Gantt
from tests.http.site import Site, fixed


def _place(site: Site, number: int, project: str, count: int) -> None:
    site.client.select_destinations(
        SelectDestinations(
            request_id=fixed(number),
            spec=RequestSpec(resources={'VCPU': 2, 'MEMORY_MB': 1024}, project_id=project),
            consumers=[fixed(number * 100 + i) for i in range(count)],
        )
    )


def test_usage_is_listed_and_shown(site: Site, gantt: Gantt) -> None:
    assert gantt('usage', 'list').out == 'there is no live claim\n'
    _place(site, 1, 'red', 3)
    _place(site, 2, 'blue', 1)
    rows = json.loads(gantt('usage', 'list', '-f', 'json').out)
    assert [(r['project_id'], r['claims'], r['claims_in_flight']) for r in rows] == [
        ('blue', 1, 1),
        ('red', 3, 3),
    ]
    assert rows[1]['amounts'] == {'VCPU': 6, 'MEMORY_MB': 3072}
    header, blue, red = gantt('usage', 'list').out.splitlines()
    assert header.split()[:3] == ['PROJECT', 'GUESTS', 'CLAIMS']
    assert (blue.split()[0], red.split()[0]) == ('blue', 'red')
    assert '3 GiB' in red
    shown = gantt('usage', 'show', 'red').out
    assert shown.startswith('project red: 3 guests with 3 live claims, 3 of them not confirmed')
    assert gantt('usage', 'show', 'green').out.startswith('project green: 0 guests with 0 live')
