# SPDX-License-Identifier: Apache-2.0
"""Callers of the zones of a tree, and what they were answered.

Each request has its id for as long as it is asked.  Who is placed takes it back or has its lease
extended, so that in the end every place is either known to its caller or ends with a short lease.
"""

import random
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx2 as httpx
import msgspec

from tests.zones.faulted_zone import ABOVE, ROOM, TIGHT, above, own_trait
from tests.zones.tree import VERSION

#: What a request has, and the whole of what its caller waits for, in seconds.
BUDGET_MS, PATIENCE = 6_000, 20.0
#: What is waited for an answer beyond its budget; between two tries.
CALL_SECONDS, PAUSE = 4.0, 0.3
LEASE_SECONDS, EXTENDED_SECONDS = 8, 600
#: How long taking back or extending is tried.
AFTER_SECONDS = {'cancel': 20.0, 'extend': 3.0}
#: Share of those that are taken back.
CANCELLED = 0.5
PLACED, NO_ROOM, NOT_KNOWN = 'placed', 'gantt.no_valid_host', 'gantt.hosts_unknown'
#: What threads ask for -> how often: those that seldom wait for long, and those that have to.
QUICK, PATIENT = {'any': 8, 'tight': 4, 'nowhere': 3}, {'own': 1}


class ZoneAnswer(msgspec.Struct, frozen=True):
    """One answer, or that there was none.

    :ivar code: ``placed``, the code of the error, or what went wrong on the way
    """

    begun: float
    ended: float
    code: str


class AskedZone(msgspec.Struct):
    """One request from its first call to what became of it.

    :ivar at: the zone that was called
    :ivar of: what it wants: ``any`` place, that of its ``own`` trait, a ``tight`` one, ``nowhere``
    :ivar wants: the zone whose own trait it wants; '' for others
    :ivar claim_id: of its place; ``is_cancelled``, ``is_extended``: so it was answered
    """

    at: str
    of: str
    wants: str
    consumer: str
    answers: list[ZoneAnswer] = []
    claim_id: str = ''
    is_cancelled: bool = False
    is_extended: bool = False

    @property
    def seconds(self) -> float:
        """Until the last answer."""
        return self.answers[-1].ended - self.answers[0].begun

    @property
    def is_placed(self) -> bool:
        return bool(self.claim_id)


class ZoneCallers:
    """Threads that ask, each at one zone.

    :param urls: of each zone
    :param threads: at each zone, how many quick and how many patient ones
    :param pause: between two requests of a thread, in seconds, about
    """

    def __init__(
        self,
        urls: Mapping[str, str],
        threads: Mapping[str, tuple[int, int]],
        pause: float,
        seed: int = 1,
    ) -> None:
        self._urls, self._pause = urls, pause
        self.asked: list[AskedZone] = []
        self.errors: list[str] = []
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._run, args=(zone, f'{zone} {n} {seed}', kinds), daemon=True
            )
            for zone, many in threads.items()
            for kinds, number in zip((QUICK, PATIENT), many, strict=True)
            for n in range(number)
        ]

    def start(self) -> None:
        """Begin to ask."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ask for nothing new, and wait for what is under way."""
        self._ended.set()
        for thread in self._threads:
            thread.join(4 * PATIENCE)
            assert not thread.is_alive(), 'a caller does not end'

    # -- one thread ----------------------------------------------------------------------
    def _run(self, zone: str, seed: str, kinds: Mapping[str, int]) -> None:
        dice = random.Random(f'{seed} {sorted(kinds)}')
        with httpx.Client(base_url=self._urls[zone], headers=VERSION) as client:
            while not self._ended.wait(dice.uniform(0, 2 * self._pause)):
                try:
                    self._ask(client, zone, dice, kinds)
                except Exception as e:  # the test fails by it, not the thread
                    self.errors.append(f'{zone}: {type(e).__name__}: {e}')

    def _ask(
        self, client: httpx.Client, zone: str, dice: random.Random, kinds: Mapping[str, int]
    ) -> None:
        kind = dice.choices(list(kinds), list(kinds.values()))[0]
        wants = dice.choice(under(zone)) if kind == 'own' else ''
        request = AskedZone(zone, kind, wants, str(uuid.uuid4()))
        self.asked.append(request)
        spec: dict[str, Any] = {'resources': {'VCPU': 10 * ROOM if kind == 'nowhere' else 1}}
        if wants or kind == 'tight':
            spec['required_traits'] = [own_trait(wants) if wants else TIGHT]
        body = a_body(spec, request.consumer)
        if not self._placed(client, request, body) and kind != 'nowhere':
            # For the same guest under another id, as whoever builds it anew has it.
            body = a_body(spec, request.consumer)
            if request.answers[-1].code == NO_ROOM or not self._placed(client, request, body):
                return
        if not request.is_placed:
            return
        path = f'/v1/requests/{body["request_id"]}'
        if dice.random() < CANCELLED:
            request.is_cancelled = _until_done(
                lambda: client.delete(path, timeout=CALL_SECONDS), AFTER_SECONDS['cancel']
            )
        else:
            lease = {'seconds': EXTENDED_SECONDS}
            request.is_extended = _until_done(
                lambda: client.put(f'{path}/lease', json=lease, timeout=CALL_SECONDS),
                AFTER_SECONDS['extend'],
            )

    @staticmethod
    def _placed(client: httpx.Client, request: AskedZone, body: Mapping[str, Any]) -> bool:
        """Ask until it is placed, or there is no room, or nobody waits any more."""
        end = time.monotonic() + PATIENCE
        while True:
            begun = time.monotonic()
            code, claim_id = _called(client, body)
            now = time.monotonic()
            request.answers.append(ZoneAnswer(begun, now, code))
            if code == PLACED:
                request.claim_id = claim_id
                return True
            if code == NO_ROOM or (code == NOT_KNOWN and request.of == 'nowhere') or now > end:
                return False
            time.sleep(PAUSE)


def a_body(spec: Mapping[str, Any], consumer: str) -> dict[str, Any]:
    """A request, under an id of its own."""
    return {
        'request_id': str(uuid.uuid4()),
        'spec': spec,
        'consumers': [consumer],
        'budget_ms': BUDGET_MS,
        'lease_seconds': LEASE_SECONDS,
    }


def under(zone: str) -> Sequence[str]:
    """The zones with hosts that one sees."""
    return [name for name in ABOVE if name != 'top' and zone in above(name)]


def _called(client: httpx.Client, body: Mapping[str, Any]) -> tuple[str, str]:
    """What came of a request, and its claim."""
    try:
        response = client.post(
            '/v1/requests', json=body, timeout=body['budget_ms'] / 1000 + CALL_SECONDS
        )
    except httpx.HTTPError as e:
        return type(e).__name__, ''
    if response.is_success:
        return PLACED, response.json()['answer']['selections'][0][0]['claim_id']
    return response.json()['errors'][0]['code'], ''


def _until_done(call: Callable[[], httpx.Response], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if call().is_success:
                return True
        except httpx.HTTPError:
            pass
        time.sleep(PAUSE)
    return False
