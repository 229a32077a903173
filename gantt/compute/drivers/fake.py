# SPDX-License-Identifier: Apache-2.0
"""Driver of a host that exists only in memory, with a given shape.

It keeps its guests, measures a load that follows from its seed, fails as often
as configured, and can be set to disagree with the scheduler.
"""

import random
import threading
import time
from collections.abc import Sequence

import msgspec

from gantt.compute.farm.shapes import Shape
from gantt.compute.ports import GuestError, HostReadings, RunningGuest
from gantt.core.messages.build import Build
from gantt.core.messages.report import ReportedMetric

#: Reason that a disagreeing host gives.
DISAGREES = 'this fake host was told to disagree'


class FakeDriver:
    """Machine and guests of a fake host.

    :param rng: source of its load and its failures
    :param start_seconds: seconds that a guest takes to start
    :param failures: share of the guests that do not start
    """

    def __init__(
        self,
        name: str,
        shape: Shape,
        zone: str | None,
        rng: random.Random,
        start_seconds: float = 0.0,
        failures: float = 0.0,
    ) -> None:
        self.disagrees = False
        self.started = 0
        self._facts = shape.facts(name, zone)
        self._rng = rng
        self._start_seconds = start_seconds
        self._failures = failures
        self._guests: dict[tuple[str, str | None], RunningGuest] = {}
        self._lock = threading.Lock()

    def facts(self, guests: Sequence[RunningGuest]) -> HostReadings:
        used = sum(
            guest.resources.get('VCPU', 0) + guest.resources.get('PCPU', 0) for guest in guests
        )
        inventory = self._facts.inventories.get('VCPU')
        load = used / max(1, inventory.cap if inventory else 1)
        measured = ReportedMetric(value=round(load * self._rng.uniform(0.6, 1.0), 3), source='fake')
        return msgspec.structs.replace(self._facts, metrics={'load': measured})

    def guests(self) -> list[RunningGuest] | None:
        with self._lock:
            return list(self._guests.values())

    def objection(self, build: Build) -> str:
        return DISAGREES if self.disagrees else ''

    def start(self, build: Build) -> None:
        # By claim, not by order of arrival: threads must not decide what fails.
        chance = random.Random(build.claim_id).random()
        if chance < self._failures:
            raise GuestError(consumer=build.consumer, problem='a failure that was asked for')
        if self._start_seconds:
            time.sleep(self._start_seconds)
        guest = RunningGuest.of(build)
        with self._lock:
            self._guests[build.consumer, build.claim_id] = guest
            self.started += 1

    def stop(self, guest: RunningGuest) -> None:
        with self._lock:
            self._guests.pop((guest.consumer, guest.claim_id), None)

    def await_start(self, claim_id: str, seconds: float) -> bool:
        return True

    def lose_guests(self) -> int:
        """Drop all guests, as after a loss of power; return how many there were."""
        with self._lock:
            lost = len(self._guests)
            self._guests.clear()
        return lost

    def put(self, guests: Sequence[RunningGuest]) -> None:
        """Add running guests that this process has not built."""
        with self._lock:
            self._guests.update({(guest.consumer, guest.claim_id): guest for guest in guests})
