# SPDX-License-Identifier: Apache-2.0
"""Writers of allocations, schedulers, and who moves and reshapes providers, all at once.

Three schedulers and two processes of the API, which are killed at random; sixteen writers, each
with consumers of its own, and some that several count up.  Whatever a writer was answered is there
whichever process is asked; what was not answered is there as a whole, or not at all.
"""

import contextlib
import http.client
import json
import random
import threading
import time

import pytest

from gantt import exceptions
from gantt.core.messages.resource_classes import Inventory
from tests.nemesis import hosts, load
from tests.nemesis.site import _free_port

pytestmark = [pytest.mark.rabbit, pytest.mark.leaves_sockets, pytest.mark.timeout(300)]

SCHEDULERS = ('one', 'two', 'three')
WRITERS = 16
HEADERS = {
    'X-Auth-Token': 'admin',
    'OpenStack-API-Version': 'placement 1.37',
    'Content-Type': 'application/json',
}
#: Status of a request that nobody answered.
UNANSWERED = 0
#: Answers after which nobody knows, or nothing can have been done.
IN_DOUBT = (UNANSWERED, 503)
PATIENCE = 60.0


class Api:
    """Some processes with one interface; each request goes to one of them."""

    def __init__(self, ports):
        self.ports = ports

    def send(self, rnd, method, path, body=None):
        """Status and body; ``UNANSWERED`` where the process was killed meanwhile."""
        port = rnd.choice(self.ports)
        with contextlib.closing(http.client.HTTPConnection('127.0.0.1', port, PATIENCE)) as way:
            try:
                way.request(method, f'/placement{path}', body and json.dumps(body), HEADERS)
                answer = way.getresponse()
                return answer.status, json.loads(answer.read() or '{}')
            except (OSError, http.client.HTTPException):
                time.sleep(0.05)
                return UNANSWERED, {}

    def get(self, rnd, path):
        """What is there, from whichever process is up."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            status, body = self.send(rnd, 'GET', path)
            if status == 200:
                return body
            assert status in IN_DOUBT, (status, body)
        raise AssertionError(f'nobody answers {path}')

    def allocations(self, rnd, consumer):
        """Provider -> class -> amount, and the generation; None: there is no such consumer."""
        body = self.get(rnd, f'/allocations/{consumer}')
        allocations = {
            uuid: allocation['resources'] for uuid, allocation in body['allocations'].items()
        }
        return allocations, body.get('consumer_generation')


def of_wish(shares, generation):
    return {
        'allocations': {uuid: {'resources': resources} for uuid, resources in shares.items()},
        'project_id': 'project',
        'user_id': 'user',
        'consumer_generation': generation,
    }


class StormCloud:
    """Hosts, pools that hang off anything, and consumers that several writers share."""

    def __init__(self, store):
        names = [f'host-{n}' for n in range(6)]
        hosts.add(store, names, VCPU=300, MEMORY_MB=100_000)
        self.hosts = [change.row.uuid for change in store.feed.load_everything().hosts]
        disks = {'DISK_GB': Inventory(total=400)}
        pools = (store.providers.create_provider(f'pool {n}', inventories=disks) for n in range(4))
        self.pools = [pool.uuid for pool in pools]
        self.bottomless = store.providers.create_provider(
            'bottomless', inventories={'CUSTOM_COUNT': Inventory(total=1_000_000)}
        ).uuid
        rnd = random.Random('shared')
        self.shared = [load.new_uuid(rnd) for _ in range(4)]

    def shares(self, rnd):
        """Something of a pool, and of up to two hosts."""
        allocations = {rnd.choice(self.pools): {'DISK_GB': rnd.randint(1, 20)}}
        for uuid in rnd.sample(self.hosts, rnd.randint(0, 2)):
            allocations[uuid] = {'VCPU': rnd.randint(1, 8), 'MEMORY_MB': rnd.randint(1, 999)}
        return allocations


class StormWriter:
    """One writer, and what it was told.

    :ivar has: consumer -> what it must have
    :ivar counted: shared consumer -> how often it was counted up, and how often it may have been
    """

    def __init__(self, number, api, cloud):
        self.api, self.cloud = api, cloud
        self.rnd = random.Random(f'writer {number}')
        self.has = {load.new_uuid(self.rnd): {} for _ in range(2)}
        self.counted = {pool: [0, 0] for pool in cloud.shared}
        self.statuses = []

    def step(self):
        chance = self.rnd.random()
        consumer, other = self.rnd.sample(sorted(self.has), 2)
        if chance < 0.5:
            self._put(consumer)
        elif chance < 0.65:
            self._write({consumer: {}}, 'DELETE', f'/allocations/{consumer}', None)
        elif chance < 0.8:
            self._post({consumer: self.cloud.shares(self.rnd), other: self.cloud.shares(self.rnd)})
        elif chance < 0.9:
            self._post(
                {consumer: {}, other: self.has[consumer]} if self.has[consumer] else {other: {}}
            )
        else:
            self._count(self.rnd.choice(self.cloud.shared))

    def _put(self, consumer):
        shares = self.cloud.shares(self.rnd)
        body = of_wish(shares, self.look_at(consumer))
        self._write({consumer: shares}, 'PUT', f'/allocations/{consumer}', body)

    def _post(self, wishes):
        body = {
            consumer: of_wish(shares, self.look_at(consumer)) for consumer, shares in wishes.items()
        }
        self._write(wishes, 'POST', '/allocations', body)

    def look_at(self, consumer):
        """The generation of a consumer of its own, which has what it must have."""
        allocations, generation = self.api.allocations(self.rnd, consumer)
        assert allocations == self.has[consumer], f'consumer {consumer}'
        return generation

    def _write(self, wishes, method, path, body):
        status, answer = self.api.send(self.rnd, method, path, body)
        self.statuses.append(status)
        if status == 204:
            self.has |= wishes
        elif status in IN_DOUBT:
            time.sleep(0.3)  # what a killed process had sent is done, or not
            stored = {consumer: self.api.allocations(self.rnd, consumer)[0] for consumer in wishes}
            before = {consumer: self.has[consumer] for consumer in wishes}
            assert stored in (before, wishes), 'all of it, or nothing'
            self.has |= stored
        else:
            assert status in (404, 409), answer
            assert 'concurrent_update' not in str(answer), 'nobody else writes them'

    def _count(self, consumer):
        allocations, generation = self.api.allocations(self.rnd, consumer)
        uuid = self.cloud.bottomless
        amount = 1 + allocations.get(uuid, {}).get('CUSTOM_COUNT', 0)
        body = of_wish({uuid: {'CUSTOM_COUNT': amount}}, generation)
        status, answer = self.api.send(self.rnd, 'PUT', f'/allocations/{consumer}', body)
        self.statuses.append(status)
        if status == 204:
            self.counted[consumer][0] += 1
        elif status in IN_DOUBT:
            self.counted[consumer][1] += 1
        else:
            assert 'concurrent_update' in str(answer), answer


class Shaper:
    """Moves pools about the trees, and reshapes them with a consumer of its own."""

    def __init__(self, api, cloud):
        self.api, self.cloud = api, cloud
        self.rnd = random.Random('shaper')
        self.consumer = load.new_uuid(self.rnd)
        self.done = {'moved': 0, 'reshaped': 0}

    def step(self):
        pool = self.rnd.choice(self.cloud.pools)
        if self.rnd.random() < 0.5:
            self._move(pool)
        else:
            self._reshape(pool)

    def _move(self, pool):
        name = self.api.get(self.rnd, f'/resource_providers/{pool}')['name']
        others = [candidate for candidate in self.cloud.pools if candidate != pool]
        parent = self.rnd.choice([None, *self.cloud.hosts, *others])
        body = {'name': name, 'parent_provider_uuid': parent}
        status, answer = self.api.send(self.rnd, 'PUT', f'/resource_providers/{pool}', body)
        assert status in (200, 400, *IN_DOUBT), answer
        self.done['moved'] += status == 200

    def _reshape(self, pool):
        generation = self.api.get(self.rnd, f'/resource_providers/{pool}')['generation']
        consumer_generation = self.api.allocations(self.rnd, self.consumer)[1]
        body = {
            'inventories': {
                pool: {
                    'resource_provider_generation': generation,
                    'inventories': {'DISK_GB': {'total': self.rnd.randint(300, 500)}},
                }
            },
            'allocations': {
                self.consumer: of_wish(self.cloud.shares(self.rnd), consumer_generation)
            },
        }
        status, answer = self.api.send(self.rnd, 'POST', '/reshaper', body)
        assert status in (204, 409, *IN_DOUBT), answer
        self.done['reshaped'] += status == 204


#: Seconds that a storm may go on for, until everything has happened once.
LONGER = 60


class Storm:
    """All of it on one site."""

    def __init__(self, site, broker, closing):
        self.site = site
        self.cloud = StormCloud(site.store)
        ports = {name: _free_port() for name in ('api-one', 'api-two')}
        rules = {'enforce_new_defaults': False}
        for name, port in ports.items():
            site.start(
                name, command='gantt-api', api={'port': port, 'threads': 10}, oslo_policy=rules
            )
        site.start(*SCHEDULERS, **hosts.SILENT)
        self.commands = dict.fromkeys(SCHEDULERS, 'gantt-scheduler')
        self.commands |= dict.fromkeys(ports, 'gantt-api')
        self.api = Api(list(ports.values()))
        self.callers = load.Conductors(broker, attempt_seconds=1.0)
        closing.callback(self.callers.close)
        self.writers = [StormWriter(n, self.api, self.cloud) for n in range(WRITERS)]
        self.shaper = Shaper(self.api, self.cloud)
        self.kills = 0
        self.problems = []

    def rage(self, seconds, requests):
        """So long; what the callers of the schedulers were told."""
        begun, over = time.monotonic(), threading.Event()
        rng = random.Random(len(requests := list(requests)))

        def keep_on(work):
            try:
                while not over.is_set() and not self.problems:
                    work.step()
            except BaseException as e:
                self.problems.append(e)

        works = [*self.writers, self.shaper]
        threads = [threading.Thread(target=keep_on, args=(work,), daemon=True) for work in works]
        for thread in threads:
            thread.start()
        asking = self.callers.start(requests, 4, self._cancel_half)
        while not self.problems:
            spent = time.monotonic() - begun
            # On a slow machine not everything has happened so soon.
            if spent > seconds and (
                min(self.kills, *self.shaper.done.values()) or spent > seconds + LONGER
            ):
                break
            time.sleep(rng.uniform(0.2, 1.0))
            name = rng.choice(sorted(self.commands))
            self.site.kill(name)
            self.kills += 1
            self.site.again(name, self.commands[name])
        over.set()
        for thread in threads:
            thread.join(120)
        assert self.problems == []
        assert not any(thread.is_alive() for thread in threads)
        return asking.wait(200)

    def _cancel_half(self, call):
        if call.answer is not None and int(call.request.request_id[:2], 16) % 2:
            self.callers.cancel(call)

    def check(self, calls):
        """Nothing is lost, nothing is there twice."""
        self.site.audit()
        for writer in self.writers:
            for consumer in writer.has:
                writer.look_at(consumer)
        for consumer in self.cloud.shared:
            allocations, _ = self.api.allocations(random.Random(1), consumer)
            amount = allocations.get(self.cloud.bottomless, {}).get('CUSTOM_COUNT', 0)
            least = sum(writer.counted[consumer][0] for writer in self.writers)
            most = least + sum(writer.counted[consumer][1] for writer in self.writers)
            assert least <= amount <= most
        # What a request is told whose scheduler was killed is not what is looked at here.
        ended = exceptions.NoValidHost, exceptions.RequestCancelled
        assert [call for call in calls if call.error and not isinstance(call.error, ended)] == []
        mine = {call.request.request_id for call in calls}
        lines = load.broken_promises(self.site.store, calls)
        assert [line for line in lines if 'nobody asked' not in line or line[8:44] in mine] == []


def storm(site, broker, closing, seconds, count):
    rng = random.Random(count)
    requests = [load.a_request(rng, rng.choice((1, 1, 2, 3))) for _ in range(count)]
    raging = Storm(site, broker, closing)
    before = site.deadlocks()
    calls = raging.rage(seconds, requests)
    raging.check(calls)
    assert site.deadlocks() == before
    statuses = [status for writer in raging.writers for status in writer.statuses]
    counts = {status: statuses.count(status) for status in sorted(set(statuses))}
    placed = sum(call.answer is not None for call in calls)
    print(f'answers {counts}, {placed} placed, {raging.kills} kills, {raging.shaper.done}')
    assert counts[204] > 50
    assert min(raging.kills, placed, *raging.shaper.done.values()) > 0


POSTGRESQL = pytest.param('postgresql', marks=pytest.mark.postgresql)
MYSQL = pytest.param('mysql', marks=pytest.mark.mysql)


@pytest.mark.parametrize('kind', [POSTGRESQL, MYSQL])
def test_what_was_answered_is_there_whoever_is_killed(kind, a_site, closing, rabbit_url):
    site = a_site(kind)
    storm(site, rabbit_url, closing, 4, 60)
    site.close()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize('kind', [POSTGRESQL, MYSQL])
def test_what_was_answered_is_there_after_twenty_minutes(kind, a_site, closing, rabbit_url):
    site = a_site(kind)
    storm(site, rabbit_url, closing, 1200, 20_000)
    site.close()
