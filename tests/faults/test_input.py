# SPDX-License-Identifier: Apache-2.0
"""Input that nobody should send, to a scheduler process on a real broker.

F17 a corpus of poison and mutants of right messages, F18 methods and versions
that nobody knows, from callers that monitor their calls, F19 bodies of 1 MB to
128 MB.  Whatever came, the process is the same one afterwards, with as many
threads, and answers on every topic.
"""

import json
import os
import pathlib
import re
import time
import uuid
from urllib.parse import urlsplit

import kombu
import pytest

from gantt.core.messages.base import BYTES_MAX, REQUEST_BYTES_MAX
from tests.faults import poison
from tests.nemesis import hosts
from tests.nemesis.load import a_request
from tests.nemesis.site import until
from tests.rabbit.wire import Wire, envelope

pytestmark = [pytest.mark.rabbit, pytest.mark.postgresql, pytest.mark.timeout(300)]

NAME = 'target'
#: For each message, asking whether all is well included.
MOST_MS = 10
#: Messages between two looks at the process.
BATCH = 500
MB = 1_000_000


class Target:
    """A scheduler, and the wire to it."""

    def __init__(self, site, broker) -> None:
        self.site = site
        hosts.add(site.store, ['good'], PCPU=1_000_000)
        site.start(
            NAME,
            # Hosts report once.
            filters={'service_down_time': 36_000},
            scheduler={'unknown_after_seconds': 36_000},
            rpc={'nova_enabled': True, 'reply_retry_seconds': 1},
            # A line for each refusal would fill the disk before the long form ends.
            DEFAULT={'default_log_levels': 'gantt.rpc=WARNING'},
        )
        self.process = site.process(NAME)
        self.wire = Wire(broker)
        self.port = urlsplit(broker).port or 5672
        self._side = kombu.Connection(broker.replace('rabbit://', 'amqp://', 1))
        # Answers that nobody reads go where the oldest make room.
        self.nobody = f'reply_{uuid.uuid4().hex}'
        self._side.default_channel.queue_declare(
            self.nobody, durable=False, exclusive=True, arguments={'x-max-length': 10}
        )
        self._guest, self._reports = 0, 0
        self.is_well()
        self.threads, self.rss = self.own_threads(), site.rss_mb(NAME)

    def own_threads(self) -> int:
        """Threads without those that send heartbeats: one for each connection in a bounded pool."""
        folder = pathlib.Path(f'/proc/{self.process.pid}')
        sockets = {os.readlink(fd) for fd in (folder / 'fd').iterdir()}
        lines = [line.split() for line in (folder / 'net/tcp').read_text().splitlines()[1:]]
        to_broker = [x for x in lines if int(x[2].partition(':')[2], 16) == self.port]
        return self.site.threads(NAME) - sum(f'socket:[{x[9]}]' in sockets for x in to_broker)

    def send(self, message: poison.Poison | poison.Sent, topic: str, exchange: str) -> None:
        if isinstance(message, poison.Poison):
            body = message.body.replace(poison.UNIQUE, uuid.uuid4().hex.encode())
            self.wire.send(
                body,
                topic=topic,
                exchange=exchange,
                content_type=message.kind,
                content_encoding=message.coding,
                headers=dict(message.headers),
            )
        else:
            self.wire.send(message.body, topic=topic, exchange=exchange)

    def answer(self, method: str, topic: str, exchange: str | None = None, **args):
        """What a right call is answered, and what it fails with."""
        call = {'method': method, 'version': '1.0', 'args': args, '_timeout': 60}
        self.wire.replies.clear()
        reply = self.wire.call(call, topic=topic, exchange=exchange, seconds=60)
        message = json.loads(reply['oslo.message'])
        return message['result'], json.loads(message['failure'] or 'null')

    def is_well(self) -> None:
        """It lives, and every topic answers."""
        assert self.process.poll() is None, self.site.rigs[NAME].log(NAME)[-4000:]
        self._guest += 1
        request = a_request(_Rng(self._guest), resources={'PCPU': 1})
        body = poison.base.to_builtins(request)
        answer, failure = self.answer('select_destinations', 'gantt-scheduler', request=body)
        assert failure is None
        assert answer['outcome'] == 'placed'
        host = {'name': 'side', 'boot_nonce': 'n'}
        registered, failure = self.answer('register_host', 'gantt-claims', host=host)
        assert failure is None
        self._reports += 1
        stats = {
            'epoch': registered['epoch'],
            'sequence': self._reports,
            'full': True,
            'inventories': {},
            'running': [],
            'pending': [],
        }
        result, failure = self.answer(
            'update_resource_stats', 'gantt-stats', name='side', stats=stats
        )
        assert (result and result['outcome'], failure) == ('applied', None)
        # Of Nova's topic it is enough that somebody listens.
        _, failure = self.answer('nonsense', 'scheduler', 'nova')
        assert failure is not None

    def is_as_before(self) -> None:
        """The same process, its queues empty, nothing left behind, no defect of ours met."""
        self.is_well()
        channel = self._side.default_channel
        for topic, _ in poison.TOPICS:
            _, waiting, consumers = channel.queue_declare(topic, passive=True)
            assert (waiting, consumers) == (0, 1), topic
        until(lambda: self.own_threads() <= self.threads, 'no thread is left over')
        log = self.site.rigs[NAME].log(NAME)
        # The library's own may complain; a traceback of ours is a defect.
        traceback = re.search(r' gantt\.\S+ Traceback', log)
        assert not traceback, log[max(0, traceback.start() - 1000) : traceback.end() + 3000]
        assert self.process.poll() is None

    def close(self) -> None:
        self.wire.close()
        self._side.release()


class _Rng:
    """Numbers that were never there before, for ids."""

    def __init__(self, number: int) -> None:
        self._number = number << 64

    def getrandbits(self, _bits: int) -> int:
        self._number += 1
        return self._number


@pytest.fixture(scope='module')
def target(a_site, rabbit_url):
    site = a_site('postgresql')
    new_target = Target(site, rabbit_url)
    yield new_target
    new_target.close()
    site.audit()
    site.close()


# -- F17 ---------------------------------------------------------------------------------
def test_the_corpus_has_all_that_is_made_by_rule():
    """And whatever was added by hand."""
    corpus = poison.corpus()
    assert len(corpus) >= 200
    names = [message.name for message in corpus]
    assert len(set(names)) == len(names)
    by_name = {message.name: message for message in corpus}
    assert [message.name for message in poison.made() if by_name.get(message.name) != message] == []


def test_a_corpus_of_poison_is_swallowed(target):
    corpus = poison.corpus()
    began = time.monotonic()
    for at in range(0, len(corpus), BATCH // 4):
        for message in corpus[at : at + BATCH // 4]:
            for topic, exchange in poison.TOPICS:
                target.send(message, topic, exchange)
        target.is_well()
    count = len(corpus) * len(poison.TOPICS)
    each = (time.monotonic() - began) / count * 1000
    print(f'{count} messages, {each:.2f} ms each')
    target.is_as_before()
    assert each <= MOST_MS


def mutants(target, count, seed):
    source = poison.Mutants(seed, target.nobody)
    began = time.monotonic()
    for number in range(1, count + 1):
        mutant = source.next()
        target.send(mutant, mutant.topic, mutant.exchange)
        if number % BATCH == 0:
            target.is_well()
        if number % 100_000 == 0:
            print(f'{number} after {time.monotonic() - began:.0f} s', flush=True)
    each = (time.monotonic() - began) / count * 1000
    print(
        f'{count} mutants, {each:.2f} ms each; '
        f'memory {target.rss:.0f} MiB, then {target.site.rss_mb(NAME):.0f} MiB'
    )
    target.is_as_before()
    assert each <= MOST_MS


def test_mutants_of_right_messages_are_refused_or_handled(target):
    mutants(target, 2_000, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(3500)
def test_a_million_mutants_are_refused_or_handled(target):
    mutants(target, 1_000_000, seed=2)


# -- F18 ---------------------------------------------------------------------------------
def test_a_thousand_unknown_methods_and_versions_leave_no_thread(target):
    """Their callers monitor them, for which the library would start a thread each."""
    methods = [('nonsense', '1.0'), ('select_destinations', '99.0'), ('register_host', '2.0')]

    def call(number):
        method, version = methods[number % 3]
        topic, exchange = poison.TOPICS[number % 4]
        message = {'method': method, 'version': version, 'args': {}, '_timeout': 30}
        target.wire.replies.clear()
        reply = target.wire.call(message, topic=topic, exchange=exchange, seconds=30)
        failure = json.loads(json.loads(reply['oslo.message'])['failure'])
        assert failure['class'] in ('InvalidMessage', 'UnsupportedVersion', 'RPCVersionCapError')

    for number in range(12):  # what a process starts at its first calls stays
        call(number)
    before = target.own_threads()
    for number in range(1000):
        call(number)
    target.is_as_before()
    until(lambda: target.own_threads() <= before, 'no thread more')


#: The largest body of any method of a topic.
MOST_BYTES = {
    'gantt-scheduler': REQUEST_BYTES_MAX,
    'gantt-claims': REQUEST_BYTES_MAX,
    'gantt-stats': BYTES_MAX,
    'scheduler': BYTES_MAX,
}


# -- F19 ---------------------------------------------------------------------------------
def too_large(target, sizes):
    topics = poison.TOPICS
    _huge(target, 2 * MB, *topics[0])
    rss = target.site.rss_mb(NAME)
    for size in sizes:
        for topic, exchange in topics:
            began = time.monotonic()
            failure = _huge(target, size, topic, exchange)
            took = time.monotonic() - began
            assert failure['class'] == 'PayloadTooLarge', (size, topic, failure)
            assert failure['kwargs']['size'] == size
            assert failure['kwargs']['limit'] == MOST_BYTES[topic]
            print(
                f'{size / MB:.1f} MB on {topic}: {took:.2f} s, {target.site.rss_mb(NAME):.0f} MiB'
            )
    target.is_as_before()
    # What is freed goes back to the system a little later.
    until(
        lambda: abs(target.site.rss_mb(NAME) - rss) <= 10, f'{rss:.0f} MiB again, plus or minus 10'
    )


def _huge(target, size, topic, exchange, cut=2):
    """Send a call of so many bytes, cut at its end: whoever decoded it would not answer."""
    msg_id = uuid.uuid4().hex
    whole = envelope({'pad': '', '_msg_id': msg_id, '_reply_q': target.wire.reply_q}).encode()
    head, _, tail = whole.partition(b'\\"pad\\": \\"')
    tail = tail[: len(tail) - cut]
    pad = size - len(head) - len(b'\\"pad\\": \\"') - len(tail)
    body = b''.join((head, b'\\"pad\\": \\"', b'y' * pad, tail))
    assert len(body) == size
    target.wire.replies.clear()
    target.wire.send(body, topic=topic, exchange=exchange)
    reply = target.wire.reply_to(msg_id, 60)
    return json.loads(json.loads(reply['oslo.message'])['failure'])


def test_what_is_too_large_is_refused_unread_and_leaves_no_memory(target):
    too_large(target, [(1 << 20) + 1, 8 * MB, 128 * MB])


def test_one_of_exactly_the_limit_is_read(target):
    """And found to be wrong, which is another answer."""
    failure = _huge(target, REQUEST_BYTES_MAX, *poison.TOPICS[0], cut=0)
    assert failure['class'] != 'PayloadTooLarge'


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_that_are_too_large_leave_no_memory(target):
    too_large(target, [n * MB for n in (2, 4, 8, 16, 32, 64, 100, 128)] * 5)
