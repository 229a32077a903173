# SPDX-License-Identifier: Apache-2.0
"""Connections that another thread reads: every message is taken, whoever is at it."""

import contextlib
import threading
import time

import amqp
import kombu
import oslo_messaging as om
import pytest

from gantt.rpc.amqp import reader, transport
from gantt.rpc.amqp.consumer import Consumer
from gantt.rpc.amqp.reader import BrokerInbox
from tests.rabbit.wire import Wire, envelope
from tests.rpc.bus import a_conf
from tests.rpc.facade import until

pytestmark = pytest.mark.rabbit


class Handler:
    """Notes what comes, and which thread brings it."""

    bytes_max = 1 << 20
    repeatable = frozenset({'ask'})
    undecoded = None

    def __init__(self) -> None:
        self.seen: list[tuple[object, str]] = []

    def handle(self, message) -> None:
        self.seen.append((message.message['args']['number'], threading.current_thread().name))

    def reject_undecodable(self, error, body) -> None:
        raise AssertionError(error)

    def run_undecoded(self, run, body) -> None:
        raise AssertionError('nothing is left undecoded')

    @property
    def numbers(self):
        return [number for number, _ in self.seen]

    @property
    def threads(self):
        return {name for _, name in self.seen}


class Site:
    """A consumer of a topic of its own, and who sends to it."""

    def __init__(self, url: str, **options) -> None:
        self.url = url
        self.handler = Handler()
        conf = a_conf(url)
        for name, value in options.items():
            conf.set_override(name, value, 'oslo_messaging_rabbit')
        self.carrier = transport.own_transport(conf, url)
        self.topic = f'inbox-{time.monotonic_ns()}'
        target = om.Target(exchange='gantt', topic=self.topic, server='here')
        self.consumer = Consumer(self.carrier, target, self.handler)
        self.consumer.reader.start()
        self.lent = self.consumer.lendable_reader
        self.inbox = BrokerInbox(lambda: [self.lent])
        self.wire = Wire(url)
        self._reading = threading.Event()
        self._thread: threading.Thread | None = None

    def send(self, *numbers, filling: str = '') -> None:
        for number in numbers:
            args = {'number': number, 'filling': filling}
            message = {'method': 'ask', 'args': args, 'version': '1.0'}
            self.wire.send(envelope(message), topic=self.topic)

    def read(self) -> None:
        """Have a thread named so read what comes."""
        self._reading.set()
        self._thread = threading.Thread(target=self._run, name='reader')
        self._thread.start()
        self.until_it_reads()

    def until_it_reads(self) -> None:
        """Its own thread ends its turn first, and takes what comes until then."""

        def has_read() -> bool:
            count = len(self.handler.seen)
            self.send('?')
            until(lambda: len(self.handler.seen) > count)
            return self.handler.seen[-1][1] == 'reader'

        until(has_read)
        self.handler.seen.clear()

    def _run(self) -> None:
        while self._reading.is_set():
            self.inbox.wait(0.2)

    def pause(self) -> None:
        self._reading.clear()
        self.inbox.wake()
        self._thread.join(10)

    def channel(self):
        """Of a connection of its own, for the time of one question."""
        return contextlib.closing(kombu.Connection(self.url.replace('rabbit:', 'amqp:', 1)))

    def declared(self):
        """The broker's counts of messages and consumers of the queue; None: there is none."""
        with self.channel() as connection:
            try:
                return connection.channel().queue_declare(self.topic, passive=True)
            except amqp.NotFound:
                return None

    def is_consumed(self) -> bool:
        """Whether the reader consumes the queue, which it does once it is bound."""
        queue = self.declared()
        return queue is not None and queue.consumer_count > 0

    def lose_the_queue(self) -> None:
        with self.channel() as connection:
            connection.channel().queue_delete(self.topic)

    def cut(self) -> None:
        self.lent.connection.break_connection()

    def stop(self) -> None:
        if self._reading.is_set():
            self.pause()
        self.consumer.reader.stop()
        self.consumer.close()

    def close(self) -> None:
        if not self.lent._stopping.is_set():
            self.stop()
        with self.channel() as connection:
            connection.channel().queue_delete(self.topic)
        self.inbox.close()
        self.wire.close()
        self.carrier.cleanup()


@pytest.fixture
def make_site(rabbit_url):
    sites = []

    def make(**options):
        sites.append(Site(rabbit_url, **options))
        return sites[-1]

    yield make
    for site in sites:
        site.close()


@pytest.fixture
def site(make_site):
    return make_site()


def test_who_comes_by_reads_all_there_is_in_order(site):
    site.read()
    site.send(*range(300))
    until(lambda: len(site.handler.seen) == 300)
    assert site.handler.numbers == list(range(300))
    assert site.handler.threads == {'reader'}


def test_what_was_taken_is_acknowledged(site):
    site.read()
    site.send(*range(100))
    until(lambda: len(site.handler.seen) == 100)
    site.stop()
    assert site.declared().message_count == 0


def test_messages_of_many_frames_are_read_whole(site):
    site.read()
    site.send(*range(10), filling='x' * 300_000)
    until(lambda: len(site.handler.seen) == 10)
    assert site.handler.numbers == list(range(10))


def test_one_that_is_held_up_loses_nothing_and_goes_on_afterwards(site):
    site.read()
    site.send(1)
    until(lambda: site.handler.numbers == [1])
    site.pause()
    site.send(2)
    until(lambda: site.handler.numbers == [1, 2])
    assert site.handler.seen[1][1] != 'reader'
    site.read()
    site.send(3)
    until(lambda: site.handler.seen == [(3, 'reader')])


def test_its_own_thread_reads_where_nobody_else_does(site):
    site.send(*range(5))
    until(lambda: site.handler.numbers == list(range(5)))


@pytest.mark.parametrize('breaks', [Site.cut, Site.lose_the_queue])
def test_what_breaks_is_attached_anew_and_read_again(site, breaks):
    site.read()
    site.send(1)
    until(lambda: site.handler.numbers == [1])
    before = site.lent.connection.raw
    breaks(site)
    until(lambda: site.lent.connection.raw not in (None, before))
    until(site.is_consumed)  # before that a message may meet a queue that is not bound yet
    site.send(2, 3)
    until(lambda: site.handler.numbers[-2:] == [2, 3])
    site.until_it_reads()
    assert not before.connected and before.channels is None, 'its socket is closed'


def test_heartbeats_go_on_while_nothing_is_read(make_site):
    site = make_site(heartbeat_timeout_threshold=2, heartbeat_rate=2)
    site.read()
    site.send(1)
    until(lambda: site.handler.numbers == [1])
    before = site.lent.connection.raw
    time.sleep(7)
    site.send(2)
    until(lambda: site.handler.numbers == [1, 2])
    assert site.lent.connection.raw is before


def test_a_wait_ends_when_another_thread_rings(site):
    site.inbox.wait(0.0)
    ringing = threading.Timer(0.2, site.inbox.wake)
    ringing.start()
    began = time.monotonic()
    while not site.inbox.wait(20.0):
        pass
    assert time.monotonic() - began < 10
    ringing.join()


def test_one_connection_that_is_taken_does_not_hold_up_the_others(site, make_site):
    other = make_site()
    both = BrokerInbox(lambda: [site.lent, other.lent])
    until(lambda: site.lent.lend(9) >= 0 and other.lent.lend(9) >= 0)
    time.sleep(reader.UNSHARED_READ_SECONDS + 0.2)
    with site.lent._lock:
        site.send(1)
        other.send(2)
        until(lambda: both.read() and other.handler.numbers == [2])
        assert site.handler.numbers == []
    until(lambda: both.read() and site.handler.numbers == [1])
    both.close()


def test_nothing_is_read_of_one_that_stops(site):
    site.read()
    site.stop()
    assert site.lent.lend(1.0) == -1
    assert not site.lent.has_more
    assert site.inbox.sockets() == []


def test_a_stop_ends_however_slowly_it_comes(site):
    site.lent.lend(9)
    time.sleep(reader.UNSHARED_READ_SECONDS + 0.2)  # its own thread rests
    site.lent.end()
    time.sleep(reader.UNSHARED_READ_SECONDS + 0.2)
    stopping = threading.Thread(target=site.consumer.reader.stop, daemon=True)
    stopping.start()
    stopping.join(10)
    assert not stopping.is_alive()
    site.consumer.close()


def test_nothing_is_read_beside_where_answers_might_wait_for_the_broker(site):
    room = [False]
    inbox = BrokerInbox(lambda: [site.lent], lambda: room[0])
    until(lambda: site.lent.lend(9) >= 0)
    assert inbox.sockets() == []
    room[0] = True
    assert inbox.sockets() == [site.lent.lend(9)]
    inbox.close()
