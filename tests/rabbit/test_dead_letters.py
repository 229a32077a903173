# SPDX-License-Identifier: Apache-2.0
"""What nobody can handle: refused, counted, told in the log, and kept where a queue is named."""

import json
import logging
import pathlib
import re
import time
import uuid
import zlib

import kombu
import pytest
from oslo_config import cfg
from oslo_messaging import conffixture

from gantt import client, exceptions
from gantt import conf as options
from gantt.cmd import dead_letters
from gantt.cmd import manage as command
from gantt.core.messages.report import HostReport
from gantt.rpc.amqp import dead_letters as dead_letters_of
from gantt.rpc.amqp.dead_letters import SENDER_SHARES
from tests.nemesis.proxy import Proxy
from tests.rabbit.test_bad_input import a_call, body
from tests.rabbit.wire import envelope
from tests.rpc.facade import until
from tests.services import rabbitmqctl

pytestmark = [pytest.mark.rabbit, pytest.mark.leaves_sockets]

REPORT = {'method': 'update_resource_stats', 'version': '1.0'}


class Kept:
    """The dead-letter queue of a test, read from outside."""

    def __init__(self, url):
        self.name = f'dead-{uuid.uuid4().hex[:8]}'
        self._connection = kombu.Connection(url.replace('rabbit://', 'amqp://', 1))

    @property
    def depth(self):
        try:
            return self._connection.channel().queue_declare(self.name, passive=True)[1]
        except self._connection.channel_errors:
            return None

    def take(self, count, seconds=30):
        """``count`` letters, and no more of them."""
        end = time.monotonic() + seconds
        while (self.depth or 0) < count and time.monotonic() < end:
            time.sleep(0.05)
        channel = self._connection.channel()
        messages = []
        while message := channel.basic_get(self.name, no_ack=True):
            messages.append(message)
        assert len(messages) == count
        return messages

    def close(self):
        self._connection.channel().queue_delete(self.name)
        self._connection.release()


@pytest.fixture
def kept(rabbit_url):
    letters = Kept(rabbit_url)
    yield letters
    letters.close()


@pytest.fixture
def keeping(make_bus, kept):
    """A bus whose scheduler keeps dead letters, three of each sender."""
    return make_bus(dead_letter_queue=kept.name, dead_letters_max=3 * SENDER_SHARES)


def peak_kb(reset=False):
    """The most memory that this process had, since it was asked to begin anew."""
    if reset:
        pathlib.Path('/proc/self/clear_refs').write_text('5')
    status = pathlib.Path('/proc/self/status').read_text()
    return int(re.search(r'VmHWM:\s+(\d+) kB', status)[1])


def about(letter):
    headers = letter.properties['application_headers']
    return headers['code'], headers['topic'], headers['method']


def test_a_report_with_a_wrong_field_is_kept_with_the_reason(keeping, kept, wire):
    args = {'name': 'cmp-1', 'stats': {'epoch': 'old', 'sequence': 1, 'full': True}}
    wire.send(envelope(REPORT | {'args': args}), topic='gantt-stats')
    [letter] = kept.take(1)
    assert about(letter) == ('gantt.invalid_message', 'gantt-stats', 'update_resource_stats')
    headers = letter.properties['application_headers']
    assert 'epoch' in headers['problem']
    assert headers['server'] == 'scheduler-1'
    assert json.loads(json.loads(letter.body)['oslo.message'])['args'] == args
    assert letter.properties['delivery_mode'] == 2
    until(lambda: keeping.counts.values.get(('gantt_dead_letters_total', 'kept')) == 1)


@pytest.mark.parametrize('topic', ['gantt-scheduler', 'gantt-claims', 'gantt-stats'])
def test_what_cannot_be_decoded_is_counted_told_and_kept(keeping, kept, wire, topic, caplog):
    caplog.set_level(logging.INFO, 'gantt')
    wire.send(b'\xff\xfe not json', topic=topic)
    [letter] = kept.take(1)
    assert about(letter) == ('gantt.invalid_message', topic, 'a message')
    assert bytes(letter.body) == b'\xff\xfe not json'
    assert keeping.counts.values['gantt_rpc_messages_refused_total', 'gantt.invalid_message'] == 1
    assert 'cannot be decoded' in caplog.text
    assert 'not json' in caplog.text
    assert 'Traceback' not in caplog.text


def test_what_breaks_the_library_after_it_was_acknowledged_costs_nothing(
    make_bus, rabbit_url, kept, wire
):
    # The library alone connects anew after each, and rests before: 13 s for three.
    url = f'{rabbit_url}?kombu_reconnect_delay=4.5'
    make_bus(url, dead_letter_queue=kept.name, dead_letters_max=3 * SENDER_SHARES)
    for _ in range(3):
        wire.send(envelope(a_call() | {'_context_self': 1}), topic='gantt-claims')
    reply = json.loads(wire.call(a_call('no'), topic='gantt-claims', seconds=10)['oslo.message'])
    assert json.loads(reply['failure'])['class'] == 'InvalidMessage'
    assert len(kept.take(3)) == 3


def test_the_queue_forgets_the_oldest(make_bus, kept, wire):
    bus = make_bus(dead_letter_queue=kept.name, dead_letters_max=3)
    sent = [f'no, "name": "cmp-{number}"' for number in range(6)]
    for body_ in sent:
        wire.send(body_, topic='gantt-stats')
    until(lambda: bus.counts.values.get(('gantt_dead_letters_total', 'kept')) == 6)
    assert [bytes(letter.body).decode() for letter in kept.take(3)] == sent[3:]


@pytest.mark.finding('M9', "a project that floods does not flush another's dead letters")
def test_each_project_has_its_share_of_the_queue(keeping, kept, wire):
    def send(project, number):
        wire.send(
            envelope(a_call('no', x=number) | {'_context_project_id': project}),
            topic='gantt-claims',
        )

    send('quiet', 0)
    for number in range(3 * SENDER_SHARES):
        send('loud', number)
    send('quiet', 1)
    beyond = 'gantt_dead_letters_total', 'over_quota'
    until(lambda: keeping.counts.values.get(beyond) == 3 * SENDER_SHARES - 3)
    senders = [dead_letters_of.sender(bytes(letter.body)) for letter in kept.take(5)]
    assert senders == [b'quiet', b'loud', b'loud', b'loud', b'quiet']


def test_a_share_comes_back_and_senders_are_bounded():
    now = [0.0]
    shares = dead_letters_of.SenderQuotas(2, 100.0, lambda: now[0])
    assert [shares.count_dead_letter(b'a') for _ in range(3)] == [True, True, False]
    now[0] = 99.0
    assert (shares.count_dead_letter(b'a'), shares.count_dead_letter(b'b')) == (False, True)
    now[0] = 100.0
    assert shares.count_dead_letter(b'a')
    for number in range(dead_letters_of.SENDERS_MAX + 5):
        shares.count_dead_letter(b'%d' % number)
    assert len(shares._sent) == dead_letters_of.SENDERS_MAX


@pytest.mark.parametrize(
    ('text', 'sender'),
    [
        ({'args': {'project_id': 'mine'}, '_context_project_id': 'ours'}, b'ours'),
        ({'args': {'name': 'cmp-1', 'project_id': 'mine'}}, b'mine'),
        ({'args': {'host': 'cmp-1'}}, b'cmp-1'),
        ({'args': {}}, b''),
    ],
)
def test_the_sender_is_who_the_context_names_first(text, sender):
    assert dead_letters_of.sender(envelope(text).encode()) == sender
    assert dead_letters_of.sender(json.dumps(text).encode()) == sender


def test_tokens_and_passwords_are_not_kept(keeping, kept, wire, caplog):
    caplog.set_level(logging.INFO, 'gantt')
    call = a_call('no', x={'admin_password': 'hunter2'}) | {'_context_auth_token': 'gAAAA-s3cret'}
    wire.send(envelope(call), topic='gantt-claims')
    wire.send(json.dumps({'auth_token': 'gAAAA-s3cret'}) + ',', topic='gantt-stats')
    for letter in kept.take(2):
        text = bytes(letter.body).decode()
        assert '***' in text
        assert 's3cret' not in text + caplog.text
        assert 'hunter2' not in text + caplog.text


def test_one_that_is_too_large_is_refused_unread_and_its_beginning_kept(keeping, kept, wire):
    huge = {'_msg_id': uuid.uuid4().hex, '_reply_q': wire.reply_q}
    text = envelope({'pad': 'y' * 3_000_000} | huge)
    # Cut: whoever decoded it would fail.
    wire.send(text[:-3], topic='gantt-claims')
    reply = json.loads(wire.reply_to(huge['_msg_id'])['oslo.message'])
    assert json.loads(reply['failure'])['class'] == 'PayloadTooLarge'
    [letter] = kept.take(1)
    assert about(letter)[0] == 'gantt.payload_too_large'
    assert len(letter.body) == 1 << 16
    assert letter.properties['application_headers']['bytes'] == len(text) - 3


def test_a_small_message_that_unpacks_to_much_costs_no_memory(keeping, kept, wire):
    packer, megabyte = zlib.compressobj(), bytes(1_000_000)
    bomb = b''.join(packer.compress(megabyte) for _ in range(200)) + packer.flush()
    assert len(bomb) < 1 << 20
    before = peak_kb(reset=True)
    wire.send(bomb, topic='gantt-claims', headers={'compression': 'application/x-gzip'})
    [letter] = kept.take(1)
    assert about(letter)[0] == 'gantt.payload_too_large'
    assert peak_kb() - before < 60_000


def test_a_call_without_a_place_for_its_answer_is_no_defect(bus, wire, caplog):
    wire.send(envelope(a_call('no') | {'_msg_id': 'a'}), topic='gantt-claims')
    key = ('gantt_rpc_messages_refused_total', 'gantt.invalid_message')
    until(lambda: bus.counts.values.get(key) == 1)
    wire.call(a_call('no'), topic='gantt-claims')
    assert 'Traceback' not in caplog.text


@pytest.mark.parametrize('kind', ['gzip', 'bzip2', 'lzma'])
def test_callers_may_compress(make_bus, kind):
    bus = make_bus()
    plain, bus.url = bus.url, f'{bus.url}?kombu_compression={kind}'
    client = bus.raw('gantt-claims')
    bus.url = plain
    with pytest.raises(Exception, match='expected one of confirm_claims'):
        client.call({}, 'no')


def test_what_is_right_but_refused_is_not_kept(keeping, kept, wire, bus):
    stats = client.StatsClient(keeping.carrier())
    report = HostReport(
        name='nobody', epoch=1, sequence=5, full=True, inventories={}, running=[], pending=[]
    )
    with pytest.raises(exceptions.NotFound):
        stats.update_resource_stats(report)
    assert (
        json.loads(wire.call(a_call(request=body()), topic='gantt-scheduler')['oslo.message'])[
            'failure'
        ]
        is None
    )
    assert kept.depth is None


def test_without_a_queue_they_are_logged_and_counted(bus, wire, kept, caplog):
    caplog.set_level(logging.INFO, 'gantt')
    wire.send(envelope(REPORT | {'args': {'name': 'cmp-7', 'stats': 5}}), topic='gantt-stats')
    key = ('gantt_rpc_messages_refused_total', 'gantt.invalid_message')
    until(lambda: bus.counts.values.get(key) == 1)
    assert 'topic=gantt-stats error=stats: expected an object' in caplog.text
    assert 'cmp-7' in caplog.text
    assert ('gantt_dead_letters_total', 'kept') not in bus.counts.values
    assert kept.depth is None


def test_a_queue_that_was_declared_otherwise_costs_letters_and_nothing_else(
    keeping, kept, wire, caplog
):
    kept._connection.channel().queue_declare(kept.name, durable=True, auto_delete=False)
    wire.send('no', topic='gantt-stats')
    until(lambda: keeping.counts.values.get(('gantt_dead_letters_total', 'dropped')) == 1)
    # It is counted before it is logged.
    until(lambda: f'queue={kept.name} error=' in caplog.text)
    assert 'PRECONDITION_FAILED' in caplog.text
    wire.send('no', topic='gantt-stats')
    until(lambda: keeping.counts.values.get(('gantt_dead_letters_total', 'dropped')) == 2)


def test_a_policy_of_the_broker_gets_what_cannot_be_decoded_too(bus, rabbit_url, wire, kept):
    """The way for those who want nothing of this in Gantt: whole bodies, of these alone."""
    vhost = rabbit_url.rpartition('/')[2]
    channel = kept._connection.channel()
    channel.queue_declare(kept.name, durable=True, auto_delete=False)
    policy = {'dead-letter-exchange': '', 'dead-letter-routing-key': kept.name}
    if not rabbitmqctl('set_policy', '-p', vhost, 'refused', '^gantt-', json.dumps(policy)):
        pytest.skip('NO POLICY OF THE BROKER: rabbitmqctl sets none here; run as its user or root')
    try:
        wire.send(b'\xff no', topic='gantt-stats')
        [letter] = kept.take(1)
        assert bytes(letter.body) == b'\xff no'
        [death] = letter.properties['application_headers']['x-death']
        assert (death['reason'], death['queue']) == ('rejected', 'gantt-stats')
    finally:
        rabbitmqctl('clear_policy', '-p', vhost, 'refused')


# -- as an operator sees them -----------------------------------------------------------------


@pytest.fixture
def manage(rabbit_url, capsys):
    """``manage(queue, *arguments)``: exit code and output, in this process."""

    def run(queue, *arguments, url=rabbit_url):
        conf = cfg.ConfigOpts()
        conffixture.ConfFixture(conf)
        options.register_opts(conf)
        conf.register_cli_opt(cfg.SubCommandOpt('command', handler=command.add_commands))
        conf(arguments, project='gantt', default_config_files=[])
        conf.set_override('transport_url', url)
        conf.set_override('dead_letter_queue', queue, 'rpc')
        code = conf.command.run(conf)
        return code, capsys.readouterr().out

    return run


def test_letters_are_listed_and_dropped(keeping, kept, wire, manage):
    wire.send('first', topic='gantt-stats')
    wire.send(envelope(a_call('no')), topic='gantt-claims')
    until(lambda: kept.depth == 2)
    code, out = manage(kept.name, 'dead-letters', 'list', '-f', 'json')
    listed = json.loads(out)
    assert code == 0
    assert {letter['body'] for letter in listed} == {'first', envelope(a_call('no'))}
    assert {letter['topic'] for letter in listed} == {'gantt-stats', 'gantt-claims'}
    assert all(letter['at'].startswith('20') for letter in listed)
    until(lambda: kept.depth == 2)
    code, out = manage(kept.name, 'dead-letters', 'list', '--limit', '1')
    assert out.count('gantt.invalid_message') == 1
    assert out.endswith('\n1 message\n')
    until(lambda: kept.depth == 2)
    assert manage(kept.name, 'dead-letters', 'drop') == (0, '2 messages deleted\n')
    assert kept.depth == 0


def test_without_a_queue_the_command_says_what_to_set(manage):
    with pytest.raises(exceptions.Misconfigured, match='dead_letter_queue: no queue is named'):
        manage('', 'dead-letters', 'list')


def test_a_queue_that_nothing_was_refused_for_yet_has_no_messages(manage):
    none_yet = "the broker has no queue 'no-such': nothing was refused since it was named\n"
    assert manage('no-such', 'dead-letters', 'list') == (0, f'0 messages: {none_yet}')
    assert manage('no-such', 'dead-letters', 'list', '-f', 'json') == (0, '[]\n')
    assert manage('no-such', 'dead-letters', 'drop') == (0, f'0 messages deleted: {none_yet}')


@pytest.mark.parametrize('action', ['list', 'drop'])
def test_a_broker_that_refuses_us_is_said_with_what_to_correct(manage, rabbit_url, action):
    strange = re.sub('//[^@]*@', '//nobody-here:secret@', rabbit_url)
    with pytest.raises(exceptions.Misconfigured) as caught:
        manage('dead', 'dead-letters', action, url=strange)
    message = caught.value.message
    assert 'refuses us' in message and 'Correct the user or the password' in message
    assert 'secret' not in message
    nowhere = rabbit_url.rpartition('/')[0] + '/no-such-virtual-host'
    with pytest.raises(exceptions.Misconfigured, match='Correct the virtual host'):
        manage('dead', 'dead-letters', action, url=nowhere)


def test_a_broker_that_is_not_there_is_named(manage):
    with pytest.raises(exceptions.BrokerUnavailable, match=r'rabbit://gantt:\*\*\*@127.0.0.1:1/'):
        manage('dead', 'dead-letters', 'list', url='rabbit://gantt:secret@127.0.0.1:1/')


def test_a_broker_that_falls_silent_is_not_waited_for(manage, rabbit_url, monkeypatch):
    monkeypatch.setattr(dead_letters, 'ANSWER_SECONDS', 0.5)
    proxy = Proxy.of(rabbit_url)

    def held(channel, name, limit):
        proxy.hold()
        return read(channel, name, limit)

    read = dead_letters.read
    monkeypatch.setattr(dead_letters, 'read', held)
    try:
        with pytest.raises(exceptions.BrokerUnavailable, match='timed out'):
            manage('dead', 'dead-letters', 'list', url=proxy.url(rabbit_url))
    finally:
        proxy.close()
