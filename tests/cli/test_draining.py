# SPDX-License-Identifier: Apache-2.0
"""A host is emptied with one verb, which says what stands in the way."""

import json
import threading

import pytest

from gantt.core.messages.request import Purpose, RequestSpec, SelectDestinations
from tests.cli.conftest import Gantt, Run, run
from tests.http.site import Site, fixed

OTHERS = [f'cmp-{number}' for number in range(2, 7)]
SOON = ('--wait', '--interval', '0.1')


def _place(site: Site, number: int, count: int = 1) -> list[str]:
    """Ids of claims on cmp-1."""
    spec = RequestSpec(resources={'VCPU': 1}, ignore_hosts=OTHERS)
    consumers = [fixed(number * 100 + i) for i in range(count)]
    request = SelectDestinations(request_id=fixed(number), spec=spec, consumers=consumers)
    answer = site.client.select_destinations(request)
    return [str(members[0].claim_id) for members in answer.selections]


def _state(gantt: Gantt, *more: str) -> dict[str, object]:
    state: dict[str, object] = json.loads(gantt('host', 'drain', 'cmp-1', '-f', 'json', *more).out)
    return state


@pytest.mark.finding('N21', 'one verb drains a host, and says what is left')
def test_a_drain_disables_and_says_what_each_claim_waits_for(site: Site, gantt: Gantt) -> None:
    first, second = _place(site, 1, 2)
    site.hosts['cmp-1'].confirm(first)
    drained = gantt('host', 'drain', 'cmp-1', '--reason', 'disk swap', '--by', 'ann')
    assert drained.code == 0
    headline, counted, *table = drained.out.splitlines()
    assert headline == 'host cmp-1 is disabled by ann: disk swap'
    assert counted == '2 claims remain: 1 run here, 1 not confirmed yet'
    assert table[1].startswith(first[:8])
    assert table[2].startswith(second[:8])
    state = _state(gantt)
    assert (state['claims'], state['is_empty'], state['is_draining']) == (2, False, True)
    obstacles = state['obstacles']
    assert isinstance(obstacles, list)
    assert [(obstacle['kind'], obstacle['claim']['id']) for obstacle in obstacles] == [
        ('running', first),
        ('in_flight', second),
    ]
    assert 'move it away or delete it' in obstacles[0]['remedy']
    assert fixed(1) in obstacles[1]['remedy']
    with pytest.raises(Exception, match='0/6 hosts fit'):
        _place(site, 2)


def test_a_dry_run_changes_nothing(site: Site, gantt: Gantt) -> None:
    tried = gantt('host', 'drain', 'cmp-1', '--dry-run', '--wait')
    assert tried.code == 0
    assert tried.out.startswith('dry run: host cmp-1 would be disabled')
    assert site.insights.host_summary('cmp-1').condition == 'up'


@pytest.mark.finding('N21', 'a drain ends when the host is empty')
def test_waiting_ends_when_the_host_is_empty(site: Site, gantt: Gantt) -> None:
    claims = _place(site, 1, 2)
    runs: list[Run] = []
    waiting = threading.Thread(
        target=lambda: runs.append(run('host', 'drain', 'cmp-1', *SOON, '--for', '300'))
    )
    waiting.start()
    for claim in claims:
        site.world.store.claims.force_release(claim, 'moved')
    waiting.join(300)
    [drained] = runs
    assert drained.code == 0, drained.err
    assert drained.out.splitlines()[-1] == 'host cmp-1 is empty'


def test_waiting_is_bounded_and_names_what_is_left(site: Site, gantt: Gantt) -> None:
    [claim] = _place(site, 1)
    drained = gantt('host', 'drain', 'cmp-1', *SOON, '--for', '0.3')
    assert drained.code == 1
    assert claim[:8] in drained.out
    assert 'host cmp-1 is not empty after 0.3 s; it stays disabled' in drained.err
    assert site.insights.host_summary('cmp-1').condition == 'disabled'


def test_a_host_that_is_enabled_meanwhile_is_not_waited_for(site: Site, gantt: Gantt) -> None:
    _place(site, 1)
    runs: list[Run] = []
    waiting = threading.Thread(
        target=lambda: runs.append(run('host', 'drain', 'cmp-1', *SOON, '--for', '300'))
    )
    waiting.start()
    while waiting.is_alive():
        site.world.store.hosts.enable_host('cmp-1')
        waiting.join(0.2)
    [drained] = runs
    assert drained.code == 1
    assert 'was enabled meanwhile' in drained.err


def test_undrain_takes_it_back(site: Site, gantt: Gantt) -> None:
    assert gantt('host', 'drain', 'cmp-1').out.splitlines()[-1] == 'host cmp-1 is empty'
    assert gantt('host', 'undrain', 'cmp-1').out == 'host cmp-1 is enabled\n'
    assert _place(site, 3)


def test_a_guest_that_is_moved_and_use_outside_claims_are_told(site: Site, gantt: Gantt) -> None:
    [claim] = _place(site, 1)
    site.hosts['cmp-1'].confirm(claim)
    moved = SelectDestinations(
        request_id=fixed(2),
        spec=RequestSpec(
            resources={'VCPU': 1},
            ignore_hosts=['cmp-1', *OTHERS[1:]],
            purpose=Purpose.LIVE_MIGRATE,
        ),
        consumers=[fixed(100)],
    )
    site.client.select_destinations(moved)
    obstacles = _state(gantt)['obstacles']
    assert isinstance(obstacles, list)
    assert [obstacle['kind'] for obstacle in obstacles] == ['moving']
    assert 'also on cmp-2' in obstacles[0]['remedy']
    beside = gantt('host', 'drain', 'cmp-2').out
    assert 'what runs there outside any claim uses' in beside
    assert '1 GiB' in beside
