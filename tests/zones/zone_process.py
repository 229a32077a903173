# SPDX-License-Identifier: Apache-2.0
"""A zone in a process of its own: what :mod:`tests.zones.tree` has in this one.

The test calls its methods by name, over a pipe; zones call one another over HTTP.
"""

import contextlib
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import httpx2 as httpx
import msgspec

from tests.warm import PROCESSES
from tests.zones.tree import VERSION

#: So long a call may take.
SECONDS = 60.0


class ZoneProcess:
    """The process, and calls into it."""

    def __init__(self, name: str, database: str) -> None:
        self.name = name
        self._here, far_end = PROCESSES.Pipe()
        self._process = PROCESSES.Process(
            target=_serve, args=(name, database, far_end), daemon=True
        )
        self._process.start()
        self.url, self.uuid = self._answer()
        self.pid = self._process.pid

    def __call__(self, method: str, *args: Any, **more: Any) -> Any:
        """Call a method of the zone, or of this module where it begins with ``_``."""
        self._here.send((method, args, more))
        return self._answer()

    def put(self, path: str, body: Mapping[str, Any]) -> None:
        response = httpx.put(f'{self.url}{path}', json=body, headers=VERSION, timeout=SECONDS)
        assert response.status_code == 200, response.text

    def above(self, *children: 'ZoneProcess') -> 'ZoneProcess':
        """Put it above others, of the same owner."""
        for child in children:
            own = {'identity': self.uuid, 'project_id': f'of-{self.name}', 'trusted': True}
            child.put(f'/v1/parents/{self.name}', own)
            self.put(f'/v1/zones/{child.name}', {'url': child.url, 'trusted': True})
        self('refresh')
        return self

    def unsealed(self, sealed_host: str) -> dict[str, Any]:
        """Return the host that a sealed host names in that zone."""
        body = {'sealed_host': sealed_host}
        response = httpx.post(
            f'{self.url}/v1/sealed-hosts', json=body, headers=VERSION, timeout=SECONDS
        )
        assert response.status_code == 200, response.text
        return dict(response.json())

    def kill_at(self, statement: int) -> None:
        """Have it killed before that statement from now on, COMMIT is one too; 0: never."""
        with contextlib.suppress(EOFError, OSError):  # it is dead already: by its housekeeping
            self('countdown', statement)

    def is_alive(self) -> bool:
        """Whether it answers; the end of one that does not is waited for."""
        try:
            self('ping')
        except (EOFError, OSError):
            self.wait_for_its_end()
        return self._process.is_alive()

    def wait_for_its_end(self) -> None:
        """It was killed."""
        self._process.join(SECONDS)

    def stop(self) -> None:
        """Stop it and wait for its end; one that was killed is left as it is."""
        if not self._process.is_alive():
            return
        self._here.send(None)
        self._process.join(SECONDS)
        self._process.kill()

    def _answer(self) -> Any:
        assert self._here.poll(SECONDS), f'zone {self.name} does not answer'
        error, value = self._here.recv()
        assert not error, f'zone {self.name}: {error}'
        return value


def _serve(name: str, database: str, pipe: Connection) -> None:
    from gantt.stores import stores_for_url
    from tests.zones.tree import AS_BETWEEN_ZONES, Zone

    store = stores_for_url(database)
    zone = Zone(name, store, pipeline=AS_BETWEEN_ZONES).start()
    pipe.send(('', (zone.url, zone.uuid)))
    while (call := pipe.recv()) is not None:
        method, args, more = call
        try:
            value = _CALLS[method](zone, *args) if method in _CALLS else None
            if method not in _CALLS:
                value = getattr(zone, method)(*args, **more)
                value = None if value is zone else value
            pipe.send(('', value))
        except Exception as e:
            pipe.send((f'{method}: {type(e).__name__}: {e}', None))
    zone.stop()
    store.database.close()


def _refresh(zone: Any) -> None:
    for parts in (zone.around, zone.zones):
        parts.directory.refresh()


def _forgive(zone: Any) -> None:
    """Forget which zones were silent, and which did not do what they had offered."""
    for parts in (zone.around, zone.zones):
        parts.breaker._silent_until.clear()
        parts.breaker._honoured_shares.clear()


def _scores(zone: Any, request: Any) -> tuple[str, dict[str, Any]]:
    """The outcome, and the comparable score of each host that has room."""
    zone.around.reload_soon()
    # A zone above is offered more than the one host that is taken.
    request = msgspec.structs.replace(request, parent='above')
    evaluated = zone.around.evaluator.evaluate(request, 20, 10.0)
    return evaluated.outcome.value, {
        offer.place.hosts[0]: offer.score for offer in evaluated.choices
    }


def _use(zone: Any, strategies: Sequence[str], options: Mapping[str, Any]) -> None:
    """Query zones below by other strategies from now on."""
    from gantt.zones.conf import load_strategies
    from gantt.zones.service.offers.evaluate import ZoneSelection

    for parts in (zone.around, zone.zones):
        loaded = load_strategies(strategies, options)
        parts.evaluator._choosing = ZoneSelection(loaded)
        parts.evaluator._needs_summaries = False  # nothing is known in advance


def _audit(zone: Any) -> int:
    return sum(len(lines) for lines in zone.store.claims.audit().values())


def _countdown(zone: Any, statement: int) -> None:
    from tests.nemesis.mortal import Countdown

    if not hasattr(zone, 'countdown'):
        zone.countdown = Countdown(0)
        zone.countdown.watch(zone.store)
    zone.countdown.left = statement


def _claims(zone: Any) -> list[tuple[str, str]]:
    """Consumer and id of each live claim."""
    pages = [
        zone.store.claims.list_claims(state=state, limit=1000)
        for state in ('reserved', 'confirmed')
    ]
    return [(claim.consumer, claim.id) for page in pages for claim in page]


_CALLS = {
    'ping': lambda _: None,
    'refresh': _refresh,
    'forgive': _forgive,
    'scores': _scores,
    'use': _use,
    'audit': _audit,
    'countdown': _countdown,
    'claims': _claims,
}
