# SPDX-License-Identifier: Apache-2.0
"""F20: ten times as many requests as can be placed.

COMMITs are slowed until a scheduler places some sixty requests a second, since
those who ask share its cores.  Its maximum, and what it takes at half of that,
are measured first; then ten times the maximum is asked for.  What is placed is
as much as before and takes hardly longer, the rest is refused at once, memory
stays as it is.
"""

import collections
import random
import statistics
import time
import uuid

import kombu
import msgspec
import pytest

from gantt.core.messages import base
from tests.nemesis import commits, hosts, load
from tests.rabbit.wire import envelope

pytestmark = [pytest.mark.rabbit, pytest.mark.postgresql, pytest.mark.timeout(300)]

NAME = 'slow'
#: With so many claims in a transaction, and so long for each, the maximum is below sixty.
TOGETHER, COMMIT_SECONDS = 8, 0.12
#: Inside at most: what is being written, and what is written next.
LIMIT = 2 * TOGETHER
ANSWERED_SECONDS = 30.0


class Seen(msgspec.Struct):
    """What became of the requests of a phase.

    :ivar placed: seconds from question to answer of each
    :ivar refused: likewise
    :ivar ids: of requests that were placed
    """

    seconds: float
    placed: list[float]
    refused: list[float]
    ids: set[str]
    other: collections.Counter

    @property
    def rate(self) -> float:
        return len(self.placed) / self.seconds

    def __str__(self) -> str:
        return (
            f'placed {self.rate:.1f}/s, p99 {at99(self.placed) * 1000:.0f} ms; '
            f'refused {len(self.refused) / self.seconds:.0f}/s, '
            f'p50 {statistics.median(self.refused or [0]) * 1000:.1f}, '
            f'p99 {at99(self.refused) * 1000:.1f}, '
            f'most {max(self.refused, default=0) * 1000:.0f} ms'
        )


def at99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)] if values else 0.0


class Crowd:
    """Who asks: one connection and no threads, so that it costs little itself."""

    def __init__(self, broker: str) -> None:
        self._connection = kombu.Connection(broker.replace('rabbit://', 'amqp://', 1))
        self._channel = self._connection.channel()
        self._queue = f'reply_{uuid.uuid4().hex}'
        queue = kombu.Queue(self._queue, durable=False, exclusive=True, channel=self._channel)
        queue.declare()
        kombu.Consumer(self._channel, [queue], on_message=self._heard, no_ack=True).consume()
        self._rng = random.Random(20)
        self._asked: dict[str, tuple[str, float]] = {}
        self._now = Seen(0.0, [], [], set(), collections.Counter())
        self._counts = True

    def _ask(self) -> None:
        request = load.a_request(self._rng, resources={'PCPU': 1}, budget_ms=20_000, lease=900)
        key = uuid.uuid4().hex
        body = {
            'method': 'select_destinations',
            'version': '1.0',
            '_msg_id': key,
            '_reply_q': self._queue,
            '_unique_id': key,
            'args': {'request': base.to_builtins(request)},
        }
        self._asked[key] = (request.request_id, time.monotonic())
        self._channel.basic_publish(
            self._channel.prepare_message(
                envelope(body), content_type='application/json', content_encoding='utf-8'
            ),
            exchange='gantt',
            routing_key='gantt-scheduler',
        )

    def _heard(self, raw) -> None:
        reply = msgspec.json.decode(msgspec.json.decode(raw.body)['oslo.message'])
        request_id, sent_at = self._asked.pop(reply['_msg_id'])
        took, now = time.monotonic() - sent_at, self._now
        failure = reply['failure'] and msgspec.json.decode(reply['failure'])
        if failure is None:
            now.ids.add(request_id)
            if self._counts:
                now.placed.append(took)
        elif failure['class'] == 'Busy' and failure['kwargs'].get('retry_after_ms'):
            if self._counts:
                now.refused.append(took)
        else:
            now.other[failure['class'], failure['message'][:100]] += 1

    def _receive(self, until: float) -> None:
        while (remaining := until - time.monotonic()) > 0:
            try:
                self._connection.drain_events(timeout=remaining)
            except TimeoutError:
                return

    def _begin(self, seconds: float) -> float:
        self._now = Seen(seconds, [], [], set(), collections.Counter())
        self._counts = True
        return time.monotonic()

    def _end(self) -> Seen:
        """Whoever was not answered yet is, and does not count any more."""
        self._counts = False
        end = time.monotonic() + ANSWERED_SECONDS
        while self._asked:
            assert time.monotonic() < end, f'{len(self._asked)} were never answered'
            self._receive(time.monotonic() + 0.05)
        assert not self._now.other, self._now.other
        return self._now

    def most(self, seconds: float, callers: int) -> Seen:
        """So many callers, of whom each asks again as soon as it is answered."""
        began = self._begin(seconds)
        while time.monotonic() - began < seconds:
            while len(self._asked) < callers:
                self._ask()
            self._receive(time.monotonic() + 0.002)
        return self._end()

    def flood(self, seconds: float, rate: float, look=lambda: None) -> Seen:
        """So many questions a second, whatever becomes of them.

        :param look: called now and then
        """
        began = self._begin(seconds)
        count, total = 0, int(seconds * rate)
        while count < total:
            due = min(total, int((time.monotonic() - began) * rate) + 1)
            while count < due:
                self._ask()
                count += 1
                if count % 500 == 0:
                    look()
            self._receive(began + count / rate)
        late = time.monotonic() - began - seconds
        assert late < 0.25 * seconds, f'those who ask were {late:.1f} s late themselves'
        return self._end()

    def close(self) -> None:
        self._connection.release()


@pytest.fixture(scope='module')
def slow(a_site, closing):
    site = a_site('postgresql')
    hosts.add(site.store, [f'room-{n}' for n in range(20)], PCPU=1_000_000)
    proxy, faults = commits.proxy(site.database)
    closing.callback(proxy.close)
    site.start(
        NAME,
        database=proxy.url(site.database),
        scheduler={
            'claims_per_commit': TOGETHER,
            'queue_limit': LIMIT,
            **hosts.SILENT['scheduler'],
        },
        filters=hosts.SILENT['filters'],
        # Two lines for each answer are no part of what is looked at.
        DEFAULT={'default_log_levels': 'gantt.rpc=WARNING,gantt.decisions=WARNING'},
    )
    faults.seconds = COMMIT_SECONDS
    yield site
    faults.seconds = 0.0
    site.audit()
    site.close()


def overload(site, broker, most_seconds, half_seconds, seconds):
    """The three phases; maximum, half load, overload, and resident memory during the last."""
    crowd = Crowd(broker)
    try:
        crowd.most(1.0, LIMIT)  # the first ones find everything cold
        most = crowd.most(most_seconds, LIMIT)
        print(f'\nmaximum: {most}')
        half = crowd.flood(half_seconds, most.rate / 2)
        print(f'at half of it: {half}')
        memory = []
        flood = crowd.flood(seconds, 10 * most.rate, lambda: memory.append(site.rss_mb(NAME)))
        print(f'at ten times it: {flood}')
        print(
            f'ratio {flood.rate / most.rate:.3f}; memory {memory[0]:.0f} MiB first, '
            f'{max(memory):.0f} at most, {memory[-1]:.0f} at the end; on the way '
            f'{[round(x) for x in memory[:: len(memory) // 8 or 1]]}'
        )
    finally:
        crowd.close()
    assert not half.refused
    # Who was told "placed" has a place, nobody else does.
    answered = most.ids | half.ids | flood.ids
    assert answered <= set(load.live_claims(site.store))
    return most, half, flood, memory


def test_ten_times_too_many_are_asked_for(slow, rabbit_url):
    most, _, flood, memory = overload(slow, rabbit_url, 3.0, 2.0, 5.0)
    assert flood.rate > most.rate / 2
    assert max(flood.placed) < 10
    assert max(flood.refused) < 5
    assert memory[-1] - memory[0] < 40


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_times_too_many_are_asked_for_in_two_minutes(slow, rabbit_url):
    most, half, flood, memory = overload(slow, rabbit_url, 20.0, 20.0, 120.0)
    assert flood.rate >= 0.9 * most.rate
    assert at99(flood.placed) <= 2 * at99(half.placed)
    assert statistics.median(flood.refused) < 0.05
    settled = memory[len(memory) // 6]
    assert max(memory) - settled < 10
