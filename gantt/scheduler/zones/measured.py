# SPDX-License-Identifier: Apache-2.0
"""The Zones port with each call measured: its duration, and whether the zone answered."""

import time
from collections.abc import Callable
from typing import TypeVar

from gantt import exceptions
from gantt.core.zones.messages import (
    HostDigestsPage,
    HostDigestsQuery,
    ZoneAllocated,
    ZoneAllocation,
    ZoneCapacity,
    ZoneCapacityOf,
    ZoneChanges,
    ZoneEvaluated,
    ZoneEvaluation,
    ZoneExplanation,
    ZoneInfo,
    ZoneRecord,
    ZoneSummary,
)
from gantt.scheduler.ports.zones import Zones

T = TypeVar('T')


class MeasuredZones:
    """Measured calls, see ``scheduler.ports.zones``.

    :param zones: carries out the calls
    :param observe: adds to a histogram
    """

    def __init__(self, zones: Zones, observe: Callable[..., None]) -> None:
        self._zones, self._observe = zones, observe

    def close(self) -> None:
        """Close the connections."""
        self._zones.close()

    def discover(self, zone: ZoneRecord, seconds: float) -> ZoneInfo:
        return self._measured('discover', zone, lambda: self._zones.discover(zone, seconds))

    def summary(self, zone: ZoneRecord, seconds: float) -> ZoneSummary:
        return self._measured('summary', zone, lambda: self._zones.summary(zone, seconds))

    def evaluate(self, zone: ZoneRecord, body: ZoneEvaluation, seconds: float) -> ZoneEvaluated:
        return self._measured('evaluate', zone, lambda: self._zones.evaluate(zone, body, seconds))

    def capacity(self, zone: ZoneRecord, body: ZoneCapacityOf, seconds: float) -> ZoneCapacity:
        return self._measured('capacity', zone, lambda: self._zones.capacity(zone, body, seconds))

    def allocate(
        self, zone: ZoneRecord, key: str, body: ZoneAllocation, seconds: float
    ) -> ZoneAllocated:
        return self._measured(
            'allocate', zone, lambda: self._zones.allocate(zone, key, body, seconds)
        )

    def allocation(self, zone: ZoneRecord, key: str, seconds: float) -> ZoneAllocated | None:
        return self._measured(
            'allocation', zone, lambda: self._zones.allocation(zone, key, seconds)
        )

    def release(self, zone: ZoneRecord, key: str, seconds: float, claim_id: str = '') -> None:
        self._measured('release', zone, lambda: self._zones.release(zone, key, seconds, claim_id))

    def extend(self, zone: ZoneRecord, key: str, lease_seconds: int, seconds: float) -> None:
        self._measured(
            'extend', zone, lambda: self._zones.extend(zone, key, lease_seconds, seconds)
        )

    def explain(
        self, zone: ZoneRecord, key: str, seconds: float, trace: str = ''
    ) -> ZoneExplanation:
        return self._measured(
            'explain', zone, lambda: self._zones.explain(zone, key, seconds, trace)
        )

    def changes(
        self, zone: ZoneRecord, since: float, seconds: float, after: str = ''
    ) -> ZoneChanges:
        return self._measured(
            'changes', zone, lambda: self._zones.changes(zone, since, seconds, after)
        )

    def marks(self, zone: ZoneRecord, query: HostDigestsQuery, seconds: float) -> HostDigestsPage:
        return self._measured('host_digests', zone, lambda: self._zones.marks(zone, query, seconds))

    def _measured(self, call: str, zone: ZoneRecord, make: Callable[[], T]) -> T:
        begun, outcome = time.monotonic(), 'answered'
        try:
            return make()
        except exceptions.Unavailable:
            outcome = 'unresponsive'
            raise
        except exceptions.GanttError:
            outcome = 'refused'
            raise
        finally:
            seconds = time.monotonic() - begun
            self._observe(
                'gantt_zone_call_duration_seconds',
                seconds,
                zone=zone.name,
                call=call,
                outcome=outcome,
            )
