# SPDX-License-Identifier: Apache-2.0
"""Nova's own client of its scheduler, in a process and an environment of its own."""

from pathlib import Path
from typing import Any

import pytest

from tests import nova_process
from tests.rpc.bus import stored

SIDE = Path(__file__).parent / 'nova_side'


class Client(nova_process.NovaProcess):
    """One process that sends what it is told to; to be used as a context.

    :param url: of the broker
    """

    def __init__(self, url: str) -> None:
        super().__init__(SIDE, url)

    def select(self, capture: str, uuids: list[str], **order: Any) -> dict[str, Any]:
        """A captured request for these instances; see ``nova_side/orders.py``."""
        message = stored(f'select_destinations-{capture}')['oslo.message (decoded)']
        return self.ask({'order': 'select', 'message': message, 'uuids': uuids} | order)

    def notices(self, capture: str, uuids: list[str], **order: Any) -> dict[str, Any]:
        """The RequestSpec, and what Nova itself would notify of."""
        message = stored(f'select_destinations-{capture}')['oslo.message (decoded)']
        return self.ask({'order': 'notices', 'message': message, 'uuids': uuids} | order)

    def many(self, capture: str, count: int, at_once: int) -> dict[str, Any]:
        """So many requests, so many at a time."""
        message = stored(f'select_destinations-{capture}')['oslo.message (decoded)']
        return self.ask({'order': 'many', 'message': message, 'count': count, 'at_once': at_once})

    def cast(self, capture: str, **args: Any) -> None:
        """A captured broadcast, with other arguments where they are given."""
        message = stored(capture)['oslo.message (decoded)']
        self.ask({'order': 'cast', 'message': message, 'args': args})


def start_or_skip(url: str) -> Client:
    """A client of the scheduler behind a broker; without Nova the test is skipped."""
    try:
        client = Client(url)
    except nova_process.NoNova as e:
        pytest.skip(f'NO NOVA: {e}; {nova_process.HELP}')
    try:
        client.ask({})
    except RuntimeError:
        client.__exit__()
        raise
    return client
