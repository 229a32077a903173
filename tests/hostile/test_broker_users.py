# SPDX-License-Identifier: Apache-2.0
"""Who may do what on the message broker, and what crosses a network in clear."""

import contextlib
import functools
import json
import re
import threading
from types import SimpleNamespace
from urllib.parse import urlsplit

import amqp
import kombu
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from devel.doubles import MemoryRecorder
from gantt import client, exceptions, plugin_loader
from gantt.cmd import manage_broker
from gantt.cmd.manage_config import diagnose
from gantt.compute.agent.host_agent import HostAgentSettings
from gantt.compute.farm import Farm, FarmPlan
from gantt.compute.listen import BuildListener, interface_of
from gantt.compute.over_rpc import RpcSchedulerPort
from gantt.conf import clear_text
from gantt.core.claims.claim import State
from gantt.core.claims.registration import register
from gantt.core.messages.base import topic_of
from gantt.core.messages.build import Delete
from gantt.core.messages.report import RegisterHost
from gantt.core.messages.request import RequestSpec
from gantt.core.resources.host import HostRow
from gantt.db.engine import session
from gantt.rpc import wire
from gantt.rpc.amqp import permissions, transport
from gantt.rpc.amqp.permissions import DEFAULT_EXCHANGE, BrokerNames
from gantt.scheduler import settings as scheduler_settings
from gantt.scheduler.service import Scheduler
from gantt.telemetry.listener import listen
from gantt.telemetry.metrics import MetricRegistry
from tests import warm
from tests.compute.hosts_in_memory import HostsInMemory
from tests.compute.test_farm import until
from tests.options import options_of
from tests.rpc.bus import Bus, a_conf
from tests.services import rabbitmqctl
from tests.world import new_uuid

# -- where builds go --------------------------------------------------------------------------


@pytest.mark.finding('H4', 'a registration does not say where builds of a host go')
@pytest.mark.parametrize('row', [None, HostRow(id=7, uuid='', name='cmp-1', build_topic='theirs')])
def test_builds_go_to_the_topic_of_the_hosts_name(row):
    registration = RegisterHost(name='cmp-1', boot_nonce='forged')
    assert register(row, registration, provider_id=7).build_topic == 'gantt-compute.cmp-1'


# -- what is printed --------------------------------------------------------------------------

HOSTS = st.text('ab.-_0', min_size=1, max_size=6).map(lambda text: text + 'x')


def _may(grant, permission, name):
    return re.search(getattr(grant, permission), name) is not None


@pytest.mark.finding('H4', 'users of the broker by role and host')
@settings(max_examples=40, deadline=None)
@given(st.lists(HOSTS, min_size=2, max_size=6, unique=True))
def test_nothing_of_a_host_belongs_to_another_one(names):
    users = permissions.users(BrokerNames(), [], names)
    for host, user in zip(names, users, strict=True):
        own = topic_of(host)
        assert all(
            _may(user.own, 'configure', q) and _may(user.own, 'read', q)
            for q in (own, f'{own}.{host}', f'{own}_fanout_{"0" * 32}', f'reply_{user.name}:0')
        )
        others = [n for n in names if n != host]
        theirs = [topic_of(other) for other in others]
        theirs += [f'reply_gantt-compute.{other}:0' for other in others]
        shared = [wire.SCHEDULER_TOPIC, wire.CLAIMS_TOPIC, wire.STATS_TOPIC, 'amq.default']
        for queue in theirs + shared:
            assert not any(
                _may(user.own, permission, queue) for permission in ('configure', 'write', 'read')
            )
        assert not _may(user.own, 'write', wire.EXCHANGE)
        for exchange in (wire.EXCHANGE, wire.HOSTS_EXCHANGE):
            assert not _may(user.own, 'configure', exchange)


@pytest.mark.finding('H4', 'users of the broker by role and host')
@pytest.mark.parametrize('other', ['cmp-1.cmp-1', 'cmp-1_fanout_2'])
def test_hosts_whose_queues_would_be_called_alike_are_refused(other):
    with pytest.raises(exceptions.Misconfigured, match=re.escape(topic_of(other))):
        permissions.users(BrokerNames(), [], ['cmp-1', 'cmp-2', other])


@pytest.mark.finding('H4', 'users of the broker by role and host')
def test_only_who_answers_reaches_every_queue_and_nova_is_only_the_schedulers():
    names = BrokerNames(vhost='gantt', nova_vhost='/', dead_letter_queue='letters')
    users = permissions.users(names, permissions.PROGRAMS_BY_ROLE, ['cmp-1'])
    reach = {u.about for u in users if any(DEFAULT_EXCHANGE in g.write for g in u.grants)}
    assert reach == {'scheduler', 'planner'}
    assert {u.about for u in users if any(g.vhost == '/' for g in u.grants)} == {
        'scheduler',
        'shadow',
    }
    # One user has one set of permissions in a virtual host.
    (scheduler,) = permissions.users(BrokerNames(nova_vhost='/'), ['scheduler'])
    (both,) = scheduler.grants
    assert _may(both, 'read', 'gantt-claims') and _may(both, 'read', 'scheduler')
    assert {topic.exchange for topic in both.topics} == {'gantt', 'gantt-hosts', 'nova'}


def run(tmp_path, url, *arguments, more=''):
    """``gantt-manage broker users``: the exit code, and all that it printed."""
    config = tmp_path / 'gantt.conf'
    config.write_text(f'[DEFAULT]\ntransport_url = {url}\nlog_file = {tmp_path}/log\n{more}')
    done = warm.run('gantt.cmd.manage', '--config-file', config, 'broker', 'users', *arguments)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.finding('H4', 'users of the broker by role and host')
def test_what_cannot_be_made_is_said_and_no_password_is_lost(tmp_path):
    folder, url = tmp_path / 'urls', 'rabbit://admin:s3cret@far-1,admin:s3cret@far-2:5673/gantt'
    ask = functools.partial(run, tmp_path, url, '--host', 'cmp-1', '--apply')
    code, output = ask()
    assert code == 1 and '--files' in output
    assert not folder.exists()
    code, output = ask('--files', str(folder), '--rabbitmqctl', 'no-such-command')
    assert (
        code == 1 and 'no-such-command import_definitions' in output and 'Traceback' not in output
    )
    path = folder / 'compute' / 'cmp-1.conf'
    before = path.read_text()
    assert path.stat().st_mode & 0o777 == 0o640 and folder.stat().st_mode & 0o777 == 0o700
    (url,) = re.findall('transport_url = (.*)', before)
    assert re.fullmatch(
        r'rabbit://gantt-compute\.cmp-1:([\w-]{43})@far-1,gantt-compute\.cmp-1:\1@far-2:5673/gantt',
        url,
    )
    # A rabbitmqctl that does nothing: what is on a command line, and what comes in.
    ctl = tmp_path / 'ctl'
    ctl.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\ncat > {tmp_path}/given\n')
    ctl.chmod(0o755)
    code, output = ask('--files', str(folder), '--rabbitmqctl', str(ctl))
    assert code == 0 and path.read_text() == before
    password = urlsplit(url).password.partition('@')[0]
    given_to_it = (tmp_path / 'given').read_text()
    assert password not in output + given_to_it + (tmp_path / 'arguments').read_text()
    assert (tmp_path / 'arguments').read_text() == '-q import_definitions\n'
    (user,) = json.loads(given_to_it)['users']
    assert user['hashing_algorithm'] == manage_broker.HASHING_ALGORITHM


# -- with the broker ----------------------------------------------------------------------------


A, B, C = 'a-00000', 'b-00000', 'c-00000'


@pytest.fixture(scope='module')
def urls(rabbit_url, tmp_path_factory):
    """Urls of the broker by role and host, as the command wrote them; '': of its administrator."""
    vhost = urlsplit(rabbit_url).path[1:] or '/'
    prefix, folder = f'{vhost}u'.lstrip('/'), tmp_path_factory.mktemp('broker')
    options = ['--prefix', prefix, '--apply', '--files', str(folder / 'urls')]
    for role in ('scheduler', 'conductor', 'api', 'operator', 'source'):
        options += ['--role', role]
    for host in (A, B, C):
        options += ['--host', host]
    if not rabbitmqctl('list_users'):
        pytest.skip(
            'NO POLICY OF THE BROKER: rabbitmqctl makes no user here; run as its user or root'
        )
    by_role = {'': rabbit_url}
    try:
        code, output = run(folder, rabbit_url, *options)
        assert code == 0, output
        for path in (folder / 'urls').rglob('*.conf'):
            (by_role[path.stem],) = re.findall('^transport_url = (.*)', path.read_text(), re.M)
        yield by_role
    finally:
        # One virtual machine for all of them: each takes seconds to start.
        gone = ', '.join(
            f'rabbit_auth_backend_internal:delete_user(<<"{urlsplit(url).username}">>, <<"test">>)'
            for role, url in by_role.items()
            if role
        )
        assert not gone or rabbitmqctl('eval', f'{gone}.')


class Agent:
    """The agent of one played host, as the user of that host."""

    def __init__(self, url: str, name: str) -> None:
        self._carrier = client.get_transport(a_conf(url))
        self.port = RpcSchedulerPort(self._carrier, 10.0)
        self.farm = Farm(
            FarmPlan(count=1, prefix=name.partition('-')[0], threads=2),
            self.port,
            HostAgentSettings(report_seconds=60, change_seconds=0.05),
        )
        assert list(self.farm.hosts) == [name]
        self.listener = BuildListener(self._carrier, name, interface_of(self.farm))
        self.listener.start()
        self.farm.start()

    def guests(self):
        return {g.consumer for host in self.farm.hosts.values() for g in host.driver.guests()}

    def close(self):
        assert self.listener.stop(10)
        assert self.farm.stop(10)
        self._carrier.cleanup()


@pytest.fixture(scope='module')
def cloud(urls):
    """A scheduler and two hosts, each as its own user."""
    memory_hosts, agents = HostsInMemory(), []
    scheduler = Scheduler(
        memory_hosts.store,
        plugin_loader.load_pipeline(),
        MemoryRecorder(),
        scheduler_settings.SchedulerSettings(worker='worker-1'),
    )
    scheduler.start()
    bus = Bus(urls['scheduler'], facade=scheduler, nova_enabled=False, self_ping_seconds=0.5)
    conductor = client.get_transport(a_conf(urls['conductor']))
    try:
        for name in (A, B):
            agents.append(Agent(urls[name], name))
        for agent in agents:
            until(lambda agent=agent: agent.farm.status()['reporting'] == 1)
        yield SimpleNamespace(
            store=memory_hosts.store,
            bus=bus,
            agents=dict(zip((A, B), agents, strict=True)),
            schedulers=client.SchedulerClient(conductor),
            computes=client.ComputeClient(conductor),
            claims=client.ClaimsClient(conductor),
        )
    finally:
        for agent in agents:
            agent.close()
        bus.close()
        scheduler.stop(5)
        conductor.cleanup()


@pytest.mark.rabbit
@pytest.mark.finding('H4', 'an agent that starts before the first scheduler waits for it')
def test_an_agent_may_start_before_the_first_scheduler(urls, request):
    with kombu.Connection(urls[''].replace('rabbit://', 'amqp://', 1)) as administrator:
        administrator.channel().exchange_delete('gantt')
    carrier, answered = client.get_transport(a_conf(urls[C])), []
    plan, settings = FarmPlan(count=1, prefix='c', threads=1), HostAgentSettings(report_seconds=60)
    interface = interface_of(Farm(plan, RpcSchedulerPort(carrier, 10.0), settings))
    listener = BuildListener(carrier, C, interface)
    starting = threading.Thread(target=lambda: answered.append(listener.start()), daemon=True)
    starting.start()
    starting.join(2.0)
    assert starting.is_alive(), 'it waits'
    request.getfixturevalue('cloud')  # with a scheduler, which makes the exchange
    starting.join(60.0)
    assert answered == [None]
    assert listener.stop(10)
    carrier.cleanup()


@pytest.mark.rabbit
@pytest.mark.finding('H4', 'the whole flow works with a user for each role and host')
def test_everything_works_with_these_users(cloud, urls):
    answer = cloud.schedulers.select_destinations(
        spec=RequestSpec(resources={'VCPU': 1, 'MEMORY_MB': 64}), consumers=[new_uuid()]
    )
    ((chosen, *_),) = answer.selections
    # Cast: a host may not write to the queue of an answer.
    cloud.computes.build(chosen.build_topic, chosen.build())
    until(lambda: cloud.store.claims.load_claim(chosen.claim_id).state is State.CONFIRMED)
    until(lambda: chosen.consumer in cloud.agents[chosen.host].guests())
    cloud.computes.delete(chosen.build_topic, Delete(consumer=chosen.consumer, host=chosen.host))
    until(lambda: cloud.store.claims.load_claim(chosen.claim_id).state is State.RELEASED)
    # The self-ping goes by way of every topic and back.
    until(lambda: cloud.bus.counts.values.get(('gantt_rpc_self_pings_total', 'answered'), 0) >= 2)
    assert not cloud.bus.service.problem
    for role in ('api', 'operator'):
        carrier = client.get_transport(a_conf(urls[role]))
        with pytest.raises(exceptions.NotFound):
            client.SchedulerClient(carrier).get_request(new_uuid())
        assert carrier.caller.receives_answers(5.0), 'a process finds out whether it hears answers'
        carrier.cleanup()


def refused(url, act):
    """Whether the broker refuses ``act(channel)`` to this user, by its permissions."""
    with kombu.Connection(url.replace('rabbit://', 'amqp://', 1)) as connection:
        channel = connection.channel()
        try:
            act(channel)
            channel.basic_qos(0, 1, False)  # what is refused of a publication comes with it
        except amqp.AccessRefused:
            return True
        return False


def _publish(exchange, key, **headers):
    return lambda channel: channel.basic_publish(
        amqp.Message(b'{}', application_headers=headers), exchange=exchange, routing_key=key
    )


def _queue(name, **arguments):
    arguments = {f'x-{key.replace("_", "-")}': value for key, value in arguments.items()}
    return lambda channel: channel.queue_declare(name, auto_delete=True, arguments=arguments)


OWN, THEIRS, MINE = topic_of(A), topic_of(B), f'{topic_of(A)}_fanout_mine'
FOREIGN = [THEIRS, wire.CLAIMS_TOPIC, wire.STATS_TOPIC, wire.SCHEDULER_TOPIC]


def _deeds():
    """What host A may try in order to be B, to hear B, or to stop it: name -> act."""
    for queue in FOREIGN:
        yield f'consume {queue}', lambda c, q=queue: c.basic_consume(q)
        yield f'get {queue}', lambda c, q=queue: c.basic_get(q)
        yield f'purge {queue}', lambda c, q=queue: c.queue_purge(q)
        yield f'delete {queue}', lambda c, q=queue: c.queue_delete(q)
        yield f'hear {queue}', lambda c, q=queue: c.queue_bind(OWN, 'gantt', q)
        yield f'send to {queue} by its name', _publish('', queue)
        yield f'send to {queue}', _publish('gantt', queue)
        yield f'take {queue} for itself', lambda c, q=queue: c.queue_bind(q, 'gantt', OWN)
    yield 'hear all', lambda c: c.queue_bind(OWN, 'gantt', '#')
    yield 'hear all hosts', lambda c: c.queue_bind(OWN, 'gantt-hosts', '#')
    yield 'send a copy', _publish('gantt', OWN, CC=[THEIRS])
    yield 'send another key to the door', _publish('gantt-hosts', THEIRS)
    for door in ('', 'gantt'):
        yield f'dead letters to {door or "any"}', _queue(MINE, dead_letter_exchange=door)
    yield 'lead an exchange of its own there', _bound
    yield 'what fits nowhere goes there', _alternate
    for exchange in ('gantt', 'gantt-hosts', f'{THEIRS}_fanout', f'{wire.CLAIMS_TOPIC}_fanout'):
        yield f'delete exchange {exchange}', lambda c, e=exchange: c.exchange_delete(e)


def _bound(channel):
    channel.exchange_declare(f'{OWN}_fanout_2', 'topic', auto_delete=True, durable=False)
    channel.exchange_bind('gantt', f'{OWN}_fanout_2', THEIRS)


def _alternate(channel):
    channel.exchange_declare(
        f'{OWN}_fanout_3',
        'topic',
        auto_delete=True,
        durable=False,
        arguments={'alternate-exchange': 'gantt'},
    )


@pytest.mark.rabbit
@pytest.mark.finding('H4', 'a host cannot listen for another one, nor send it anything')
def test_the_broker_refuses_what_is_not_of_this_host(cloud, urls):
    allowed = [name for name, act in _deeds() if not refused(urls[A], act)]
    assert allowed == []
    assert not refused(urls[A], lambda c: c.queue_bind(OWN, 'gantt', OWN)), 'its own it may'
    assert not refused(urls[A], _publish('gantt-hosts', wire.STATS_TOPIC))
    reply = cloud.agents[B].port._claims._caller._carrier.caller.reply_queue
    assert reply.startswith(f'reply_{urlsplit(urls[B]).username}:')
    assert refused(urls[A], lambda c: c.basic_consume(reply))
    assert not refused(urls[B], lambda c: c.queue_declare(reply, passive=True))


@pytest.mark.rabbit
@pytest.mark.finding('H4', 'a host cannot listen for another one, nor send it anything')
def test_a_copy_of_what_a_host_may_send_reaches_no_other_host(cloud, urls):
    with kombu.Connection(urls[''].replace('rabbit://', 'amqp://', 1)) as connection:
        channel = connection.channel()
        waiting = channel.queue_declare(topic_of(C), auto_delete=False).queue
        try:
            channel.queue_bind(waiting, 'gantt', waiting)
            copied = _publish('gantt-hosts', wire.STATS_TOPIC, CC=[waiting], BCC=[waiting])
            assert not refused(urls[A], copied), 'the broker looks at the one key only'
            assert channel.queue_declare(waiting, passive=True).message_count == 0
            # By the exchange of builds the same copy would arrive.
            assert not refused(urls[''], _publish('gantt', 'nowhere', CC=[waiting]))
            assert channel.queue_declare(waiting, passive=True).message_count == 1
        finally:
            channel.queue_delete(waiting)


# -- clear text ---------------------------------------------------------------------------------

SOUND = f"""
[DEFAULT]
transport_url = rabbit://gantt:s3cret@127.0.0.1:5672/gantt
metrics_port = 9790
[database]
connection = postgresql+psycopg://gantt:s3cret@127.0.0.1/gantt
max_retries = 0
[oslo_messaging_rabbit]
ssl_ca_file = {__file__}
"""
FAR_BROKER = '[DEFAULT]\ntransport_url = rabbit://gantt:s3cret@rabbit-1/gantt\n'
FAR_DATABASE = '[database]\nconnection = mysql+pymysql://gantt:s3cret@db-1.invalid/gantt\n'
FAR_METRICS = '[DEFAULT]\nmetrics_host = 0.0.0.0\n'
FAR_API = '[api]\nhost = 192.0.2.1\n'
STRICT = '[DEFAULT]\nstrict_transport = true\n'


@pytest.fixture
def a_file(tmp_path):
    """``a_file(text)``: a configuration file, and the options that it gives."""

    path = tmp_path / 'gantt.conf'
    state = f'\n[DEFAULT]\nstate_path = {tmp_path}\n'
    return lambda text: (options_of(path, SOUND + text + state), path)


def _opened(conf):
    """The parts of a process that reach other machines; only the database is connected."""
    transport.own_transport(conf).cleanup()
    listener = listen(MetricRegistry(), conf, 'nova_source')
    assert listener is None, 'only where there is a port'
    clear_text.warn_of_exposures(conf, clear_text.metrics_exposure(conf))
    clear_text.warn_of_exposures(conf, clear_text.api_exposure(conf))
    session.engine_from_conf(conf).dispose()


@pytest.mark.finding('M10', 'clear text to another machine is loud, or refused')
@pytest.mark.parametrize(
    ('text', 'option'),
    [
        (FAR_BROKER, '[oslo_messaging_rabbit] ssl'),
        (FAR_DATABASE, '[database] connection'),
        (FAR_METRICS, '[DEFAULT] metrics_host'),
        (FAR_API, '[api] host'),
    ],
    ids=['broker', 'database', 'metrics', 'api'],
)
def test_clear_text_is_loud_fails_the_doctor_and_may_be_refused(a_file, caplog, text, option):
    conf, _ = a_file(text)
    with contextlib.suppress(exceptions.DatabaseUnavailable):
        _opened(conf)
    (record,) = (
        r for r in caplog.records if 'is in clear text' in r.message and option in r.message
    )
    assert record.levelname == 'WARNING' and 's3cret' not in record.message
    findings = {(f.severity.value, f.option) for f in diagnose(conf, probe=False)}
    assert ('error', option) in findings
    conf, _ = a_file(text + STRICT)
    with pytest.raises(exceptions.Misconfigured) as caught:
        _opened(conf)
    assert caught.value.message.startswith(option) and 'strict_transport' in caught.value.message
    assert 's3cret' not in caught.value.message


@pytest.mark.finding('M10', 'clear text to another machine is loud, or refused')
def test_what_stays_here_or_is_verified_is_not_refused(a_file, caplog):
    far = (
        FAR_BROKER
        + '[oslo_messaging_rabbit]\nssl = true\n'
        + FAR_DATABASE.strip()
        + '?ssl_ca=/ca\n'
    )
    for text in (STRICT, far + STRICT):
        conf, _ = a_file(text)
        transport.own_transport(conf).cleanup()
        url = sa.make_url(conf.database.connection)
        assert clear_text.database_exposure(url) is None
    assert 'is in clear text' not in caplog.text


@pytest.mark.finding('M10', 'clear text to another machine is loud, or refused')
@pytest.mark.parametrize(
    ('program', 'text', 'option'),
    [('compute', FAR_BROKER, '[oslo_messaging_rabbit] ssl'), ('api', FAR_API, '[api] host')],
)
def test_a_process_does_not_start_with_it(a_file, program, text, option):
    _, path = a_file(text + STRICT)
    done = warm.run(f'gantt.cmd.{program}', '--config-file', path)
    assert done.returncode == 1
    (line,) = (
        line for line in done.stderr.splitlines() if line.startswith(f'gantt-{program}: {option}')
    )
    assert 'strict_transport' in line and 'Traceback' not in done.stderr
