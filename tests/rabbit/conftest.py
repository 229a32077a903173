# SPDX-License-Identifier: Apache-2.0
"""A scheduler's RPC side on a real RabbitMQ."""

from collections.abc import Callable, Iterator

import pytest

from tests.rabbit.wire import Wire
from tests.rpc.bus import Bus


@pytest.fixture
def make_bus(rabbit_url: str) -> Iterator[Callable[..., Bus]]:
    """``make_bus(option=value)``, or ``make_bus(url)`` for another way to the broker."""
    made: list[Bus] = []

    def make(url: str = rabbit_url, **options: object) -> Bus:
        made.append(Bus(url, **options))
        return made[-1]

    yield make
    for bus in made:
        bus.close()


@pytest.fixture
def bus(make_bus: Callable[..., Bus]) -> Bus:
    return make_bus()


@pytest.fixture
def wire(rabbit_url: str) -> Iterator[Wire]:
    """Bytes in and out, without oslo.messaging."""
    made = Wire(rabbit_url)
    yield made
    made.close()
