# SPDX-License-Identifier: Apache-2.0
"""A broker, a scheduler process's RPC side and clients, for the tests of this directory."""

from collections.abc import Callable, Iterator

import pytest

from tests.rpc.bus import Bus


@pytest.fixture
def bus() -> Iterator[Bus]:
    """Everything over the in-process broker, Nova's topic included."""
    made = Bus()
    yield made
    made.close()


@pytest.fixture
def make_bus() -> Iterator[Callable[..., Bus]]:
    """As ``bus``, with options: ``make_bus(worker_queue=1)``."""
    made: list[Bus] = []

    def make(*args: object, **options: object) -> Bus:
        made.append(Bus(*args, **options))
        return made[-1]

    yield make
    for bus in made:
        bus.close()
