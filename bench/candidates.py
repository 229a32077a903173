# SPDX-License-Identifier: Apache-2.0
"""Allocation candidates from Gantt and from the real Placement, in turn.

Both stand behind waitress with as many threads, one process each, on one MariaDB server, without
authentication.  64 shapes of queries; between any two an allocation changes, on both sides.
Outside of the timing every fiftieth query is sent to both without ``limit`` and compared as sets
while the cloud is small; else each answer of ours is checked against what there is.  With
``--wide`` the value is the 99th percentile of ours, in milliseconds, of 8 groups over 8 devices,
and over 7.

Both are asked the same queries, one after the other, until the rounds or the seconds are over:
where Placement takes long there are fewer.
"""

import gantt.cmd  # noqa: F401  chooses the concurrency backend before anything else

# isort: split
import argparse
import collections
import contextlib
import http.client
import json
import pathlib
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode, urlsplit

from bench import Result, callers, conditions, count, rig
from bench.placement_clouds import (
    DEVICES,
    NETWORKS,
    TRAITS,
    BenchCloud,
    fill_ours,
    fill_theirs,
)
from gantt.placement_api.http.dispatch import MOUNT_PATH
from tests.placement import ours, real

SHAPES = 64
#: Clouds up to which the real one is queried without limit as well.
COMPARED_MOST = 2_000
COMPARED_EACH = 50
#: Allocations of the bench at a time; the oldest go.
CONSUMERS = 64
#: Seconds after which an answer is given up; it counts as so long.
PATIENCE = 45.0
#: Shapes that are queried whatever time it takes: one with each kind of filter.
ASKED_LEAST = 4
VERSION = '1.36'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--providers', type=count, default=1000)
    parser.add_argument('--rounds', type=count, default=2, help='of all shapes, on each side')
    parser.add_argument('--seconds', type=count, default=200, help='of questions (200)')
    parser.add_argument('--no-limit', action='store_true')
    parser.add_argument('--nested', action='store_true', help='eight devices below each')
    parser.add_argument('--wide', action='store_true', help='8 groups over 8 devices, and over 7')
    parser.add_argument('--python', type=pathlib.Path, default='.venv-placement/bin/python')


class Caller:
    """A connection to one server."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.url = url
        self._path = parts.path
        self._address = parts.hostname, parts.port
        self._connection = http.client.HTTPConnection(*self._address, timeout=PATIENCE)

    def send(self, method: str, path: str, body: Any = None) -> bytes:
        """Send a request; return the answer's body.

        :raises RuntimeError: it is no success
        :raises TimeoutError: it does not come
        """
        headers = {'X-Auth-Token': 'admin', 'OpenStack-API-Version': f'placement {VERSION}'}
        data = None
        if body is not None:
            headers['Content-Type'] = 'application/json'
            data = json.dumps(body)
        self._connection.request(method, self._path + path, data, headers)
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f'{method} {path}: {answer.status}: {content[:500]!r}')
        return content

    def seconds(self, path: str) -> tuple[float, bytes]:
        """Return the seconds of a GET and its answer, which is empty where none came in time."""
        began = time.perf_counter()
        try:
            body = self.send('GET', path)
        except TimeoutError:
            self.close()
            self._connection = http.client.HTTPConnection(*self._address, timeout=PATIENCE)
            body = b''
        return time.perf_counter() - began, body

    def close(self) -> None:
        self._connection.close()


class Sides:
    """Both servers on one cloud, and the changes there."""

    def __init__(self, cloud: BenchCloud, own: str, theirs: str) -> None:
        self.cloud = cloud
        self.own, self.theirs = Caller(own), Caller(theirs)
        self._random = random.Random(1)
        self._consumers_most = min(CONSUMERS, 4 * len(cloud.roots))
        self._consumers: collections.deque[tuple[str, str, dict[str, int]]] = collections.deque()

    def change(self) -> None:
        """Add one allocation on both sides; where there are many, delete the oldest."""
        provider = self._random.choice(self.cloud.roots)
        amounts = {'VCPU': self._random.randint(1, 8), 'MEMORY_MB': 1024}
        consumer = self.cloud.new_id()
        body = {
            'allocations': {provider: {'resources': amounts}},
            'project_id': 'project',
            'user_id': 'user',
            'consumer_generation': None,
        }
        for side in (self.own, self.theirs):
            side.send('PUT', f'/allocations/{consumer}', body)
        self.cloud.use(provider, amounts)
        self._consumers.append((consumer, provider, amounts))
        if len(self._consumers) > self._consumers_most:
            consumer, provider, amounts = self._consumers.popleft()
            for side in (self.own, self.theirs):
                side.send('DELETE', f'/allocations/{consumer}')
            self.cloud.use(provider, {name: -amount for name, amount in amounts.items()})

    def close(self) -> None:
        self.own.close()
        self.theirs.close()


@contextlib.contextmanager
def both(
    cloud: BenchCloud, python: pathlib.Path, more: str = '', threads: int = real.THREADS
) -> Iterator[Sides]:
    """Yield both servers, filled.

    :param more: of Placement's configuration
    :param threads: requests at a time, on either side
    """
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix='gantt-')))
        own_url = stack.enter_context(rig.mysql_database())
        theirs = stack.enter_context(rig.mysql_database())
        port = callers.free_port()
        options: dict[str, dict[str, object]] = {
            'api': {'port': port, 'threads': threads},
            'oslo_policy': {'enforce_new_defaults': False},
        }
        testbed = rig.Rig(own_url, ours.NO_BROKER, folder, options)
        stack.callback(testbed.close)
        testbed.run('gantt-manage', 'db', 'sync')
        fill_ours(own_url, cloud)
        urls = stack.enter_context(real.servers(python, ['legacy'], theirs, more, threads))
        fill_theirs(theirs, cloud)
        testbed.start('api', 'gantt-api')
        testbed.wait_for('api', 'is ready')
        sides = Sides(cloud, f'http://127.0.0.1:{port}{MOUNT_PATH}', urls['legacy'])
        stack.callback(sides.close)
        yield sides


# -- queries ------------------------------------------------------------------------------
def shapes(cloud: BenchCloud, nested: bool) -> list[list[tuple[str, str]]]:
    """Return queries without their limit."""
    chance = random.Random(64)
    queries = []
    for n in range(SHAPES):
        amounts = {
            'VCPU': chance.choice([1, 2, 4, 8, 16]),
            'MEMORY_MB': chance.choice([512, 2048, 8192, 32_768]),
            'DISK_GB': chance.choice([10, 20, 80, 320]),
        }
        query = [('resources', ','.join(f'{name}:{amount}' for name, amount in amounts.items()))]
        if n % 4 == 1:
            query.append(('required', f'COMPUTE_NODE,!{TRAITS[n % 3]}'))
        elif n % 4 == 2:
            query.append(('required', TRAITS[n % 3]))
        elif n % 4 == 3:
            query.append(('member_of', f'in:{",".join(cloud.aggregates[: 2 + n % 5])}'))
        if nested:
            for number, network in enumerate(NETWORKS, 1):
                query.append((f'resources{number}', f'SRIOV_NET_VF:{1 + n % 2}'))
                query.append((f'required{number}', network))
            query.append(('group_policy', ('none', 'isolate')[n % 2]))
        queries.append(query)
    return queries


def path_of(query: list[tuple[str, str]], limit: int | None) -> str:
    more = [] if limit is None else [('limit', str(limit))]
    return f'/allocation_candidates?{urlencode(query + more)}'


def as_set(body: bytes) -> set[tuple]:
    """Return candidates of an answer, comparable."""
    return {
        (
            frozenset(
                (provider, name, amount)
                for provider, of in candidate['allocations'].items()
                for name, amount in of['resources'].items()
            ),
            frozenset((suffix, *sorted(uuids)) for suffix, uuids in candidate['mappings'].items()),
        )
        for candidate in json.loads(body)['allocation_requests']
    }


def differ(sides: Sides, query: list[tuple[str, str]]) -> int:
    """Return 1 where both sides have other candidates."""
    path = path_of(query, None)
    return int(as_set(sides.own.send('GET', path)) != as_set(sides.theirs.send('GET', path)))


def wrong(cloud: BenchCloud, body: bytes) -> int:
    """Return how many of the candidates do not fit the inventories."""
    count = 0
    for amounts, _ in as_set(body):
        for provider, name, amount in amounts:
            inventory = cloud.entries[provider].inventories[name]
            if inventory.used + amount > inventory.cap or amount > inventory.max_unit:
                count += 1
                break
    return count


# -- runs ---------------------------------------------------------------------------------
def run(args: argparse.Namespace) -> Result:
    """Run all shapes on both sides in turn, so many rounds."""
    if args.wide:
        return run_wide(args)
    cloud = BenchCloud(args.providers, DEVICES if args.nested else 0)
    queries = shapes(cloud, args.nested)
    limit = None if args.no_limit else 1000
    is_small = args.providers <= COMPARED_MOST and not (args.nested and args.providers > 100)
    times: dict[str, list[float]] = {'own': [], 'theirs': []}
    audit = sent = size = 0
    with both(cloud, args.python) as sides:
        audit += differ(sides, queries[0]) if is_small else 0
        for side in (sides.own, sides.theirs):  # both are warm
            side.seconds(path_of(queries[0], limit))
        end = time.monotonic() + args.seconds
        for query in queries * args.rounds:
            if sent >= ASKED_LEAST and time.monotonic() > end:
                break
            sent += 1
            sides.change()
            seconds, body = sides.own.seconds(path_of(query, limit))
            if not body:
                raise RuntimeError(f'{path_of(query, limit)}: nothing within {PATIENCE} s')
            times['own'].append(seconds)
            size = max(size, len(body))
            if not is_small:
                audit += wrong(cloud, body)
            times['theirs'].append(sides.theirs.seconds(path_of(query, limit))[0])
            if is_small and sent % COMPARED_EACH == 0:
                audit += differ(sides, query)
    own_rate, theirs = (len(some) / sum(some) for some in (times['own'], times['theirs']))
    return Result(
        bench=' '.join(
            ['candidates', *(f'--{n}' for n in ('no-limit', 'nested') if vars(args)[_key(n)])]
        ),
        value=round(own_rate, 2),
        unit='queries/s',
        yardstick={'name': 'Placement', 'value': round(theirs, 3)},
        ratio=round(own_rate / theirs, 2),
        conditions={
            **conditions.here(),
            'providers': args.providers,
            'shapes': SHAPES,
            'asked': sent,
            'limit': limit,
            'answer_bytes_most': size,
            'own_median_ms': round(statistics.median(times['own']) * 1000, 2),
            'placement_median_ms': round(statistics.median(times['theirs']) * 1000, 2),
        },
        audit=audit,
    )


def _key(option: str) -> str:
    return option.replace('-', '_')


def run_wide(args: argparse.Namespace) -> Result:
    """Run groups that each take one device: where all find one, and where one does not."""
    own_seconds: list[float] = []
    theirs: dict[str, list[float]] = {}
    audit = 0
    query = [(f'resources_{n}', 'SRIOV_NET_VF:8') for n in range(DEVICES)]
    path = path_of([*query, ('group_policy', 'none')], 1000)
    for name, more in (('plain', ''), ('optimised', real.OPTIMISED)):
        theirs[name] = []
        for devices in (DEVICES, DEVICES - 1):
            with both(BenchCloud(1, devices), args.python, more) as sides:
                sides.own.seconds(path)  # it is warm
                for _ in range(50):
                    sides.change()
                    seconds, body = sides.own.seconds(path)
                    own_seconds.append(seconds)
                    audit += bool(as_set(body)) != (devices == DEVICES)
                for _ in range(args.rounds):
                    theirs[name].append(sides.theirs.seconds(path)[0])
                    if theirs[name][-1] >= PATIENCE / 2:
                        break  # what it was given up on goes on there
    value = p99_ms(own_seconds)
    last = p99_ms(theirs['optimised'])
    return Result(
        bench='candidates --wide',
        value=value,
        unit='ms',
        yardstick={'name': 'Placement, optimised for wide trees', 'value': last},
        ratio=round(value / last, 5),
        conditions={
            **conditions.here(),
            'groups': DEVICES,
            'placement_p99_ms': {name: p99_ms(some) for name, some in theirs.items()},
            'placement_given_up_ms': PATIENCE * 1000,
        },
        audit=audit,
    )


def p99_ms(times: list[float]) -> float:
    """Return the 99th percentile, in milliseconds."""
    return round(sorted(times)[min(len(times) - 1, int(len(times) * 0.99))] * 1000, 2)
