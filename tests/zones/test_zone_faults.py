# SPDX-License-Identifier: Apache-2.0
"""A tree of zones as an operator runs it: each thing in turn fails under load, and is healed.

Whoever can still see a place gives it; nobody mistakes "not known" for "no room"; afterwards no
consumer has two places, no host too many, and nothing is left that no caller knows.
"""

import os
import time

import httpx2 as httpx
import pytest

from tests.zones.faulted_zone import FaultedTree, faulted_tree
from tests.zones.tree import VERSION
from tests.zones.zone_callers import LEASE_SECONDS, PLACED, ZoneCallers, a_body
from tests.zones.zone_judge import SERVED, FaultWindow, TreeJudge, confused, due

pytestmark = [
    pytest.mark.postgresql,
    pytest.mark.mysql,
    pytest.mark.leaves_sockets,
    pytest.mark.timeout(300),
]

#: One of each kind.
SOME = (
    'process b killed',
    'process c frozen',
    'link top-a cut',
    'link a-a1 frozen',
    'database of b cut',
    'database of a frozen',
    'database of c locked',
    'database of top killed',
)
#: Threads that ask at each zone, quick and patient ones, and the rest of each after a request:
#: here, and in the long form.
THREADS = {'top': (4, 4), 'a': (1, 1), 'b': (1, 0), 'c': (1, 0), 'a1': (1, 0)}
REST, LONG_REST = 0.9, 0.5
#: Until what is left over has ended: a lease, a sweep, and what is given back late.
CLEAN_SECONDS = 60.0


@pytest.fixture
def tree(tmp_path, mysql_url):
    with faulted_tree(tmp_path, mysql_url) as faulted:
        yield faulted


def figures(asked, windows):
    """A line for each fault: what was asked meanwhile of zones that were well, and answered."""
    lines = []
    for window in windows:
        meanwhile = [
            request
            for request in asked
            if request.answers and window.begun <= request.answers[0].begun <= window.healed
        ]
        owed = due(meanwhile, windows)
        first = sum(request.answers[0].code == PLACED for request in owed)
        slowest = sorted(request.seconds for request in owed) or [0.0]
        codes = {}
        for request in meanwhile:
            for answer in request.answers:
                codes[answer.code] = codes.get(answer.code, 0) + 1
        lines.append(
            f'{window.fault.name:28} {window.ended - window.begun:5.1f} s, healed after '
            f'{window.healed - window.ended:5.1f} s; owed {len(owed)}, placed '
            f'{sum(request.is_placed for request in owed)}, at the first try {first}; p50 '
            f'{slowest[len(slowest) // 2]:.2f} s, slowest {slowest[-1]:.2f} s; {codes}'
        )
    return lines


def under_faults(tree: FaultedTree, names, seconds, rest):
    """Each of these faults for so long, under load; what was asked, and when what failed."""
    faults = tree.faults()
    callers = ZoneCallers({name: zone.url for name, zone in tree.zones.items()}, THREADS, rest)
    windows = []
    callers.start()
    try:
        time.sleep(2.0)
        for name in names:
            fault = faults[name]
            fault.begin()
            begun = time.monotonic()
            time.sleep(seconds)
            ended = time.monotonic()
            fault.end()
            windows.append(FaultWindow(fault, begun, ended, time.monotonic()))
            time.sleep(seconds / 2)
    finally:
        callers.stop()
    assert not callers.errors, callers.errors[:5]
    return callers.asked, windows


def check(tree, names, seconds, rest):
    requests, windows = under_faults(tree, names, seconds, rest)
    print('\n'.join(figures(requests, windows)))
    owed = due(requests, windows)
    lost = [
        f'{request.of} {request.wants} at {request.at}: {request.answers[-1].code} '
        f'after {request.seconds:.1f} s'
        for request in owed
        if not request.is_placed
    ]
    print(f'asked {len(requests)}, owed {len(owed)}, not placed of these {len(lost)}: {lost[:5]}')
    judge = TreeJudge(tree, requests)
    time.sleep(LEASE_SECONDS)
    end = time.monotonic() + CLEAN_SECONDS
    while (problems := judge.problems()) and time.monotonic() < end:
        time.sleep(0.5)
    problems += [line for zone in tree.zones.values() for line in zone.findings()]
    problems += confused(requests, windows)
    assert not problems, '\n'.join(problems[:20])
    assert len(lost) <= (1 - SERVED) * len(owed), lost[:5]
    assert {request.of for request in requests if request.is_placed} == {'any', 'own', 'tight'}
    check_nobody_is_barred(tree, judge, requests)


def check_nobody_is_barred(tree, judge, asked):
    """Who has no place gets one."""
    places = judge.consumers()
    without = [
        request.consumer
        for request in asked
        if request.consumer not in places and request.of != 'nowhere'
    ]
    again = [without[n] for n in range(0, len(without), max(1, len(without) // 10))]
    assert len(again) >= 5
    for consumer in again:
        body = a_body({'resources': {'VCPU': 1}}, consumer)
        response = httpx.post(
            f'{tree.zones["top"].url}/v1/requests', json=body, headers=VERSION, timeout=30.0
        )
        assert response.is_success, response.text


def test_each_kind_of_fault_under_load(tree):
    check(tree, SOME, 2.5, REST)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_each_process_link_and_database_fails_in_turn(tree):
    check(tree, tree.faults(), float(os.environ.get('GANTT_FAULT_SECONDS', '6')), LONG_REST)
    for zone in tree.zones.values():
        zone.audit()
