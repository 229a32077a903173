# SPDX-License-Identifier: Apache-2.0
"""A broker, a scheduler process's RPC side and clients, for the tests of this directory."""

from collections.abc import Callable, Iterator

import pytest

from tests.rpc.bus import Bus


@pytest.fixture
def bus() -> Iterator[Bus]:
    """Everything over the in-process broker, Nova's topic included."""
    new_bus = Bus()
    yield new_bus
    new_bus.close()


@pytest.fixture
def make_bus() -> Iterator[Callable[..., Bus]]:
    """As ``bus``, with options: ``make_bus(worker_queue_limit=1)``."""
    buses: list[Bus] = []

    def make(*args: object, **options: object) -> Bus:
        buses.append(Bus(*args, **options))
        return buses[-1]

    yield make
    for bus in buses:
        bus.close()
