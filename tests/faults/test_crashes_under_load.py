# SPDX-License-Identifier: Apache-2.0
"""F5 and F24: a scheduler is killed, and another one told to stop, in the middle of work.

One scheduler is up all the time.  Conductors repeat what was lost under the
same request id, and each of their requests ends once.
"""

import random
import time

import pytest

from tests.nemesis import hosts, load
from tests.nemesis.site import until

pytestmark = [pytest.mark.rabbit, pytest.mark.timeout(240)]
VCPU = 1_000_000


@pytest.fixture(
    scope='module',
    params=[
        pytest.param('postgresql', marks=pytest.mark.postgresql),
        pytest.param('mysql', marks=[pytest.mark.mysql, pytest.mark.slow]),
    ],
)
def site(request, a_site):
    new_site = a_site(request.param)
    hosts.add(new_site.store, [f'host-{n}' for n in range(20)], VCPU=VCPU)
    new_site.start('keeper', 'other', **hosts.SILENT)
    yield new_site
    new_site.close()


@pytest.fixture(scope='module')
def several(rabbit_url, closing):
    """Conductors with connections of their own."""

    def make(count, attempt_seconds):
        conductors = [
            load.Conductors(rabbit_url, attempt_seconds=attempt_seconds) for _ in range(count)
        ]
        for conductor in conductors:
            closing.callback(conductor.close)
        return conductors

    return make


def begin(site, conductors, requests, threads, name='other'):
    """Each of them has its share of the requests and of the threads."""
    if name not in site.rigs[name].processes:
        site.again(name)
    return [
        conductor.start(requests[n :: len(conductors)], threads // len(conductors))
        for n, conductor in enumerate(conductors)
    ]


def ended(asking):
    return sum(len(part.records) for part in asking)


def each_once(site, asking, requests):
    """Every request was answered, and has its claims, once."""
    calls = [call for part in asking for call in part.wait(120)]
    assert [call.error for call in calls if call.error] == []
    assert len(calls) == len(requests)
    mine = {request.request_id for request in requests}
    have = load.live_claims(site.store)
    members = sum(len(request.consumers) for request in requests)
    assert sum(len(claims) for key, claims in have.items() if key in mine) == members
    lines = load.broken_promises(site.store, calls)
    assert [line for line in lines if line[8:44] in mine] == []
    site.audit()


def some(count, seed):
    rng = random.Random(seed)
    sizes = [rng.choice((1, 1, 1, 2, 4)) for _ in range(count)]
    return [load.a_request(rng, size, budget_ms=90_000) for size in sizes]


# -- F5 ---------------------------------------------------------------------------------
def killed(site, conductors, count, threads, kills):
    requests = some(count, seed=count)
    asking = begin(site, conductors, requests, threads)
    lost = 0
    for kill in range(kills):
        goal = count * (kill + 1) // (kills + 2)
        until(lambda goal=goal: ended(asking) >= goal, f'{goal} requests have ended', 240)
        lost += site.metric('other', 'gantt_queue_depth')
        site.kill('other')
        site.again('other')
    each_once(site, asking, requests)
    print(f'{count} requests, {threads} in flight, {kills} kills; {lost:.0f} were in their queues')


def test_killed_with_requests_in_flight(site, several):
    killed(site, several(3, attempt_seconds=0.5), 300, threads=90, kills=1)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_ten_times_with_a_thousand_requests_in_flight(site, several):
    killed(site, several(4, attempt_seconds=5.0), 12_000, threads=1000, kills=10)


# -- F24 ----------------------------------------------------------------------------------
def told_to_stop(site, conductors, count, threads, name='other'):
    """Nothing is repeated: a call that got no answer would be an error."""
    requests = some(count, seed=count + 1)
    asking = begin(site, conductors, requests, threads, name)
    until(lambda: ended(asking) >= count // 4, 'a quarter of them has ended', 120)
    remaining, began = count - ended(asking), time.monotonic()
    assert site.stop(name, 60) == 0
    seconds = time.monotonic() - began
    each_once(site, asking, requests)
    print(f'{count} requests, told to stop with {remaining} to go: ended within {seconds:.1f} s')
    assert remaining > threads
    assert seconds <= 30


def test_told_to_stop_under_load(site, several):
    told_to_stop(site, several(2, attempt_seconds=60.0), 600, threads=60)


def test_workers_told_to_stop_under_load(site, several):
    """The supervisor is told; each of its processes answers what it has."""
    options = {**hosts.SILENT, 'scheduler': hosts.SILENT['scheduler'] | {'workers': 2}}
    site.start('pair', **options)
    until(lambda: site.log('pair').count('is ready') >= 2, 'both workers are ready', 120)
    told_to_stop(site, several(2, attempt_seconds=60.0), 500, threads=60, name='pair')


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_told_to_stop_with_a_thousand_requests_in_flight(site, several):
    told_to_stop(site, several(4, attempt_seconds=60.0), 12_000, threads=1000)
