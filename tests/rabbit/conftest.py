# SPDX-License-Identifier: Apache-2.0
"""A scheduler's RPC side on a real RabbitMQ."""

import contextlib
from collections.abc import Callable, Iterator

import amqp
import kombu
import pytest

from tests.rabbit.wire import Wire
from tests.rpc.bus import Bus

TOPICS = ('gantt-scheduler', 'gantt-claims', 'gantt-stats')


@pytest.fixture
def make_bus(rabbit_url: str) -> Iterator[Callable[..., Bus]]:
    """``make_bus(option=value)``, or ``make_bus(url)`` for another way to the broker."""
    opened: list[Bus] = []
    _empty_queues(rabbit_url)

    def make(url: str = rabbit_url, **options: object) -> Bus:
        opened.append(Bus(url, **options))
        return opened[-1]

    yield make
    for bus in opened:
        bus.close()


def _empty_queues(url: str) -> None:
    """Whatever an earlier test has sent and did not wait for is not for this one."""
    with kombu.Connection(url.replace('rabbit://', 'amqp://', 1)) as connection:
        for topic in TOPICS:
            with contextlib.suppress(amqp.exceptions.NotFound):
                connection.channel().queue_purge(topic)


@pytest.fixture
def bus(make_bus: Callable[..., Bus]) -> Bus:
    return make_bus()


@pytest.fixture
def wire(rabbit_url: str) -> Iterator[Wire]:
    """Bytes in and out, without oslo.messaging."""
    new_wire = Wire(rabbit_url)
    yield new_wire
    new_wire.close()
