# SPDX-License-Identifier: Apache-2.0
"""The broker is killed, stays away, or takes nothing; the disk of the database is full.

F8 kill -9 and restart in mid-load, F9 the broker is gone for long, F25 alarms of
the broker and a full disk.  Two schedulers and gantt-api, on a broker of their own.
"""

import json
import pathlib
import random
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

import msgspec
import pytest
import sqlalchemy as sa

from gantt import exceptions
from gantt.core.messages import base
from gantt.db.engine import session
from tests.nemesis import amqp, hosts, load, rabbit
from tests.nemesis.site import Site, _free_port, until
from tests.warm import Rig

pytestmark = [
    pytest.mark.rabbit,
    pytest.mark.postgresql,
    pytest.mark.timeout(600),
    pytest.mark.leaves_sockets,
]

NAMES = ('one', 'two')
#: Hosts of these tests say nothing after they were added.
MEMORY_MB_MOST = 50.0
ANSWERED_PINGS = 'gantt_rpc_self_pings_total{outcome="answered"}'


class FaultySite:
    """A broker that may be killed, what runs on it, and those who ask."""

    def __init__(self, node, site, folder, options=''):
        self.node, self.site = node, site
        self.url = node.url + options
        self.rng = random.Random(8)
        site.broker = self.url
        hosts.add(site.store, [f'host-{n}' for n in range(20)], VCPU=100_000)
        site.start(*NAMES, **hosts.SILENT)
        self.callers = load.Conductors(self.url)
        self.api = Api(site, folder)

    def close(self):
        self.callers.close()
        self.api.rig.kill('api')

    def some(self, count, budget_ms=60_000):
        return [
            load.a_request(self.rng, self.rng.choice((1, 1, 3)), budget_ms=budget_ms)
            for _ in range(count)
        ]

    def places(self, seconds):
        """A request that may take so long is placed."""
        return self.callers.select(*self.some(1, int(seconds * 1000)))

    def sick(self, name):
        return sick(self.site, name)

    def until_well(self, seconds):
        until(lambda: not any(self.sick(name) for name in NAMES), 'schedulers are well', seconds)

    def processes(self):
        """Their ids: the same as long as nobody started one again."""
        processes = [self.site.process(name) for name in NAMES] + [self.api.rig.processes['api']]
        assert [p.poll() for p in processes] == [None] * len(processes)
        return [p.pid for p in processes]

    def memory(self):
        memory = {name: self.site.rss_mb(name) for name in NAMES}
        return memory | {'api': self.api.rig.rss_mb('api')}

    def check(self, told):
        """What was told is what the database has."""
        mine = {call.request.request_id for call in told}
        lines = load.broken_promises(self.site.store, told)
        assert [x for x in lines if 'nobody asked' not in x or x[8:44] in mine] == []
        self.site.audit()


def sick(site, name):
    """Names of the checks that fail, of a scheduler."""
    url = f'http://127.0.0.1:{site._ports[name]}/health'
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            body = json.load(response)
    except urllib.error.HTTPError as e:
        body = json.load(e)
    return {check for check, is_well in body['checks'].items() if not is_well}


class Api:
    """gantt-api, asked over HTTP."""

    def __init__(self, site, folder):
        self.port = _free_port()
        self.rig = Rig(
            site.database,
            site.broker,
            folder,
            {'DEFAULT': {'host': 'api'}, 'api': {'port': self.port}} | hosts.SILENT,
        )
        self.rig.start('api', 'gantt-api')
        self.rig.wait_for('api', 'is ready')

    def place(self, request):
        """Status, stable code ('' of a success) and seconds."""
        began = time.monotonic()
        http_request = urllib.request.Request(
            f'http://127.0.0.1:{self.port}/v1/requests',
            json.dumps(base.to_builtins(request)).encode(),
            {'Content-Type': 'application/json'},
        )
        try:
            with urllib.request.urlopen(http_request, timeout=60) as answer:
                status, code = answer.status, ''
                answer.read()
        except urllib.error.HTTPError as e:
            status, code = e.code, json.load(e)['errors'][0]['code']
        return status, code, time.monotonic() - began


def a_faulty_site(closing, a_site, tmp_path_factory, options=''):
    site = a_site()
    node = closing.enter_context(rabbit.node(tmp_path_factory.mktemp('mq')))
    faulty_site = FaultySite(node, site, tmp_path_factory.mktemp('api'), options)
    closing.callback(faulty_site.close)
    return faulty_site


@pytest.fixture(scope='module')
def faulty_site(closing, a_site, tmp_path_factory):
    return a_faulty_site(closing, a_site, tmp_path_factory)


@pytest.fixture(scope='module')
def quorum_site(closing, a_site, tmp_path_factory):
    """As production has it: queues that are on disk."""
    options = '?rabbit_quorum_queue=true&rabbit_transient_quorum_queue=true'
    new_site = a_faulty_site(closing, a_site, tmp_path_factory, options)
    new_site.places(60)
    # RabbitMQ on one node may not find the leader of a queue again that was just made.
    time.sleep(20)
    return new_site


def first_call(faulty_site):
    """Seconds until somebody who comes now is answered, 10 at most."""
    began = time.monotonic()
    came = load.Conductors(faulty_site.url, attempt_seconds=2)
    try:
        came.select(*faulty_site.some(1, 10_000))
    finally:
        came.close()
    return time.monotonic() - began


# -- F8 -------------------------------------------------------------------------------------
def killed_in_mid_load(faulty_site, times, requests, least):
    """Requests all the time, kills in between; each placed request has its claims, once.

    :param least: share of the requests that is placed
    """
    before = faulty_site.processes()
    calls = []
    for _ in range(times):
        asking = faulty_site.callers.start(faulty_site.some(requests), threads=12)
        until(lambda asking=asking: len(asking.records) >= requests // 10, 'some are placed')
        faulty_site.node.kill()
        during = len(asking.records)
        assert during < requests, 'the load ended before the broker did'
        faulty_site.node.start()
        seconds = first_call(faulty_site)
        calls += asking.wait(120)
        print(f'killed after {during}; a first call is answered {seconds:.1f} s after its return')
    placed = sum(call.answer is not None for call in calls)
    print(f'{placed} of {len(calls)} placed: {[call.error for call in calls if call.error]}')
    assert placed >= least * len(calls)
    faulty_site.check(calls)
    # Asked again, each has its answer: what was done is done once.
    again = faulty_site.callers.ask_all(
        [call.request for call in calls if call.answer][:100], threads=8
    )
    assert load.unlike([call for call in calls if call.answer], again) == []
    faulty_site.until_well(60)
    assert faulty_site.processes() == before


def test_the_broker_is_killed_in_mid_load(faulty_site):
    killed_in_mid_load(faulty_site, 1, 300, least=1.0)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize('kind', ['faulty_site', 'quorum_site'])
def test_the_broker_is_killed_again_and_again(request, kind):
    killed_in_mid_load(request.getfixturevalue(kind), 6, 1000, least=0.999)


# -- F9 -------------------------------------------------------------------------------------
def gone(faulty_site, seconds):
    """The broker is away for so long, and asked for all the time."""
    before = faulty_site.processes()
    assert faulty_site.api.place(faulty_site.some(1)[0])[0] == 201
    memory = faulty_site.memory()
    faulty_site.node.kill()
    end = time.monotonic() + seconds
    asking = faulty_site.callers.start(faulty_site.some(40, 1000), threads=4)
    until(lambda: all('broker' in faulty_site.sick(name) for name in NAMES), 'they say why', 30)
    seconds_of = []
    while time.monotonic() < end:
        status, code, took = faulty_site.api.place(faulty_site.some(1, budget_ms=500)[0])
        assert (status, code) == (503, 'gantt.broker_unavailable')
        seconds_of.append(took)
        time.sleep(0.5)
    longest = max(seconds_of)
    assert sorted(seconds_of)[len(seconds_of) // 2] < 0.5 + 5, 'its budget, and some patience'
    assert longest < 0.5 + 20, 'the budget of the request, and much patience with this machine'
    assert all(faulty_site.sick(name) == {'broker'} for name in NAMES)
    calls = asking.wait(300)
    assert {type(call.error) for call in calls} == {exceptions.BrokerUnavailable}
    grown = {name: mb - memory[name] for name, mb in faulty_site.memory().items()}
    faulty_site.node.start()
    began = time.monotonic()
    faulty_site.until_well(60)
    until(
        lambda: faulty_site.api.place(faulty_site.some(1, budget_ms=1000)[0])[0] == 201,
        'gantt-api',
        60,
    )
    faulty_site.places(60 - (time.monotonic() - began))
    print(
        f'away for {seconds} s: refused within {longest:.2f} s, all well '
        f'{time.monotonic() - began:.1f} s after its return; '
        f'MB more: { {n: round(mb, 1) for n, mb in grown.items()} }'
    )
    assert max(grown.values()) <= MEMORY_MB_MOST
    assert faulty_site.processes() == before
    assert [faulty_site.site.metric(name, 'gantt_rpc_self_ping_exits_total') for name in NAMES] == [
        0,
        0,
    ]
    faulty_site.check(calls)


def test_the_broker_is_gone_for_a_while(faulty_site):
    gone(faulty_site, 5)


@pytest.mark.slow
def test_the_broker_is_gone_for_two_minutes(faulty_site):
    gone(faulty_site, 120)


# -- F25 ------------------------------------------------------------------------------------
@pytest.mark.parametrize('what', ['memory', pytest.param('disk', marks=pytest.mark.slow)])
def test_the_broker_takes_nothing(faulty_site, what):
    """An alarm: whoever publishes is not read, and told so; connections stay."""
    before = faulty_site.processes()
    faulty_site.places(30)
    faulty_site.node.alarm(what)
    began = time.monotonic()
    calls = faulty_site.callers.ask_all(faulty_site.some(4, 3000), threads=4)
    assert time.monotonic() - began < 3 + 10
    for call in calls:
        assert isinstance(call.error, exceptions.Unavailable)
        assert any(word in str(call.error) for word in ('broker', 'no answer')), call.error
    print({str(call.error) for call in calls})
    faulty_site.node.calm()
    faulty_site.places(60)
    faulty_site.until_well(60)
    assert faulty_site.processes() == before
    assert [faulty_site.site.metric(name, 'gantt_rpc_self_ping_exits_total') for name in NAMES] == [
        0,
        0,
    ]
    faulty_site.check(calls)


def test_a_caller_whose_queue_is_stuck_holds_up_nobody(faulty_site):
    """A quorum queue that lost its leader takes messages and confirms none."""
    stuck = load.Conductors(
        faulty_site.url + '?rabbit_transient_quorum_queue=true', attempt_seconds=1
    )
    assert stuck.ask(*faulty_site.some(1)).answer
    leader = stuck.carrier.caller.reply_queue
    faulty_site.node.evaluate(f"sys:suspend('%2F_{leader}').")
    asking = stuck.start(faulty_site.some(30, 20_000), threads=6)
    began = time.monotonic()
    calls = faulty_site.callers.ask_all(faulty_site.some(100, 20_000), threads=4)
    took = time.monotonic() - began
    assert [call.error for call in calls if call.error] == []
    print(f'{len(calls)} answered in {took:.1f} s beside a queue that is stuck')
    assert took < 20
    faulty_site.node.evaluate(f"sys:resume('%2F_{leader}').")
    asking.wait(120)
    last = stuck.ask(*faulty_site.some(1))
    assert last.answer, last.error
    faulty_site.check([*calls, *asking.records, last])
    stuck.close()


# -- connections that are open and carry nothing ----------------------------------------------
@pytest.fixture
def deafened(a_site):
    """Its processes end with the test, also where that fails: they would answer the next one."""
    site = a_site()
    yield site
    for rig in site.rigs.values():
        rig.close()


def test_a_process_that_hears_nothing_is_replaced_and_serves_again(closing, deafened, rabbit_url):
    """By whoever looks after it, who is played here; ``gantt-scheduler`` itself does so for its
    workers."""
    site = deafened
    way, deliveries, _ = amqp.proxy(rabbit_url)
    closing.callback(way.close)
    callers = load.Conductors(rabbit_url, attempt_seconds=2)
    closing.callback(callers.close)
    hosts.add(site.store, ['only'], VCPU=1000)
    pings = {'self_ping_seconds': 0.5, 'self_ping_wait_seconds': 2, 'self_ping_failures': 2}
    site.start('deaf', broker=way.url(rabbit_url), rpc=pings, **hosts.SILENT)
    rng = random.Random(3)
    until(lambda: site.metric('deaf', ANSWERED_PINGS) >= 1, 'it calls itself')
    deliveries.deafen()
    until(lambda: site.process('deaf').poll() is not None, 'it ends')
    assert site.process('deaf').returncode == 1
    assert 'this process receives nothing' in site.log('deaf')
    site.again('deaf')
    until(lambda: sick(site, 'deaf') == set(), 'its successor is well')
    assert callers.ask(load.a_request(rng)).answer
    assert site.stop('deaf') == 0


def test_a_worker_that_hears_nothing_is_replaced_by_its_supervisor(closing, deafened, rabbit_url):
    site = deafened
    way, deliveries, _ = amqp.proxy(rabbit_url)
    closing.callback(way.close)
    callers = load.Conductors(rabbit_url, attempt_seconds=2)
    closing.callback(callers.close)
    hosts.add(site.store, ['only'], VCPU=1000)
    pings = {'self_ping_seconds': 0.5, 'self_ping_wait_seconds': 2, 'self_ping_failures': 2}
    options = {**hosts.SILENT, 'scheduler': hosts.SILENT['scheduler'] | {'workers': 2}}
    site.start('deaf', broker=way.url(rabbit_url), rpc=pings, **options)

    def logged_count(text):
        return site.log('deaf').count(text)

    # On a busy machine one may be replaced before.
    until(lambda: logged_count('gantt-scheduler is ready') >= 2, 'both serve', 90)
    # A worker to which no call ever came back would not end: another one would fare no better.
    until(lambda: all(site.metric('deaf', ANSWERED_PINGS, n) for n in range(2)), 'they call', 90)
    ready, ended = (
        logged_count('gantt-scheduler is ready'),
        logged_count('this process receives nothing'),
    )
    deliveries.deafen()
    until(lambda: logged_count('this process receives nothing') >= ended + 2, 'they end', 90)
    until(lambda: logged_count('gantt-scheduler is ready') >= ready + 2, 'others are ready', 90)
    assert site.process('deaf').poll() is None
    assert callers.ask(load.a_request(random.Random(3))).answer
    assert site.stop('deaf') == 0


class SmallDisk:
    """A database on a disk of its own of some MB, that a test fills."""

    SIZE_MB = 40

    def __init__(self, postgresql: str):
        self._name = f'gantt_small_{time.time_ns()}'
        self._server = session.build_engine(postgresql)
        # Not below the folder of the tests, which is for their user alone.
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix=self._name))
        self._folder.chmod(0o711)
        self._mount = self._folder / 'disk'
        self._mount.mkdir()
        done = subprocess.run(
            ['mount', '-t', 'tmpfs', '-o', f'size={self.SIZE_MB}m', 'tmpfs', self._mount],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            shutil.rmtree(self._folder)
            pytest.skip(f'A DISK OF SOME MB: mounting one is not allowed here ({done.stderr})')
        try:
            shutil.chown(self._mount, 'postgres')
            self._sql(f"CREATE TABLESPACE {self._name} LOCATION '{self._mount}'")
            self._sql(f'CREATE DATABASE {self._name} TABLESPACE {self._name}')
        except Exception as e:
            self.close()
            pytest.skip(f'A DISK OF SOME MB: the server cannot use it ({e})')
        url = sa.make_url(postgresql).set(database=self._name)
        self.url = url.render_as_string(hide_password=False)

    def _sql(self, statement):
        with self._server.connect() as connection:
            connection.execution_options(isolation_level='AUTOCOMMIT')
            connection.exec_driver_sql(statement)

    def fill(self):
        """No page more; what there is, is kept."""
        with (self._mount / 'ballast').open('wb', buffering=0) as ballast:
            try:
                while ballast.write(bytes(4096)):
                    pass
            except OSError:
                return

    def clear(self):
        (self._mount / 'ballast').unlink()

    def close(self):
        self._sql(f'DROP DATABASE IF EXISTS {self._name} WITH (FORCE)')
        self._sql(f'DROP TABLESPACE IF EXISTS {self._name}')
        self._server.dispose()
        subprocess.run(['umount', self._mount], check=True)
        shutil.rmtree(self._folder)


def test_the_disk_of_the_database_is_full(closing, rabbit_url, postgresql_url, tmp_path_factory):
    disk = SmallDisk(postgresql_url)
    closing.callback(disk.close)
    site = Site(tmp_path_factory.mktemp('site'), disk.url, rabbit_url)
    closing.callback(site.close)
    hosts.add(site.store, ['roomy'], VCPU=1_000_000)
    site.start('one', **hosts.SILENT)
    callers = load.Conductors(rabbit_url)
    closing.callback(callers.close)
    rng = random.Random(25)
    pid = site.process('one').pid
    calls = [callers.ask(load.a_request(rng))]
    assert calls[0].answer
    disk.fill()
    # Pages have some room left.
    for _ in range(200):
        began = time.monotonic()
        calls += [callers.ask(load.a_request(rng, 20, budget_ms=2000))]
        if calls[-1].error is not None:
            break
    assert isinstance(calls[-1].error, exceptions.Unavailable)
    message = str(calls[-1].error)
    assert 'the disk of the database is full' in message
    assert 'No space left on device' in message
    assert 'nothing that was acknowledged is lost. Make room' in message
    assert time.monotonic() - began < 2 + 10
    disk.clear()
    calls += [callers.ask(load.a_request(rng, 5, budget_ms=60_000)) for _ in range(10)]
    assert [call.error for call in calls[-10:]] == [None] * 10
    # What was refused may be asked for again.
    assert callers.ask(msgspec.structs.replace(calls[-11].request, budget_ms=60_000)).answer
    assert site.process('one').pid == pid
    assert site.process('one').poll() is None
    site.audit()
