# SPDX-License-Identifier: Apache-2.0
"""Outbox of releases: claims in other zones that end, stored until the zones acknowledge it.

Any scheduler of this zone continues with them, with pauses that double.  Request locks that their
owner has abandoned are handled here as well.  A claim ends with its lease at the latest: then
nothing is left to do.
"""

import collections
import functools
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from gantt import exceptions
from gantt.scheduler.ports.process import Recorder
from gantt.zones.model.messages import ZoneRecord
from gantt.zones.ports import DueRelease, ZoneCalls, ZoneStores

LOG = logging.getLogger(__name__)
T = TypeVar('T')
#: Timeout of one call in seconds, and maximum number of calls in one round.
CALL_SECONDS, ROUND_MAX = 5.0, 100
#: Maximum number of abandoned requests handled in one round.
ABANDONED_MAX = 50
#: Seconds until other processes continue with a release that this one is about to try itself.
NOTED_DELAY_SECONDS = 2.0
#: The longest lease that a zone grants, and some time, in seconds: reservations have ended by then.
FORGET_SECONDS = 86_400.0 + 3600.0
#: Age in seconds from which a release is logged as an error, once for each process.
ERROR_AGE_SECONDS = 900.0
#: Keys under which this process claims nothing more.
RELEASED_KEYS_MAX = 10_000


class ReleaseOutbox:
    """Outbox of releases to child zones, each delivered at least once.  Any thread."""

    def __init__(
        self,
        stores: ZoneStores,
        calls: ZoneCalls,
        own_uuid: Callable[[], str],
        recorder: Recorder,
    ) -> None:
        self._releases = stores.zone_releases
        self._requests = stores.requests
        self._claims = stores.zone_claims
        self._child_claims = stores.child_claims
        self._zones = calls
        self._own_uuid = own_uuid
        self._recorder = recorder
        self._released_keys: collections.OrderedDict[tuple[str, str], None] = (
            collections.OrderedDict()
        )
        self._lock = threading.Lock()
        self._zones_complained_of: set[str] = set()

    def add(self, pairs: Collection[tuple[str, str]]) -> None:
        """Queue allocations to be released, each by zone and key.

        :raises DatabaseUnavailable: then the request is still open, and is found as abandoned
        """
        if pairs:
            self._remember_released(pairs)
            self._releases.add_releases(pairs)

    def note(self, pairs: Collection[tuple[str, str]]) -> None:
        """Store allocations that this process is about to release by ``try_noted``.

        :raises DatabaseUnavailable:
        """
        if pairs:
            self._remember_released(pairs)
            self._releases.add_releases(pairs, NOTED_DELAY_SECONDS)

    def try_noted(self, zone: ZoneRecord, key: str, seconds: float) -> bool:
        """Release an allocation that is noted, like ``try_now``."""
        self._remember_released([(zone.uuid, key)])
        is_acknowledged = self._release(zone, key, seconds)
        if is_acknowledged:
            self._releases.end_releases([(zone.uuid, key)])
        return is_acknowledged

    def try_now(self, zone: ZoneRecord, key: str, seconds: float) -> bool:
        """Release an allocation at once, else later; return whether the zone has acknowledged it.

        :raises DatabaseUnavailable: as of ``add``
        """
        self._remember_released([(zone.uuid, key)])
        if self._release(zone, key, seconds):
            return True
        self._releases.add_releases([(zone.uuid, key)])
        return False

    def is_released(self, child: str, key: str) -> bool:
        """Return whether nothing more may be claimed under a key, as its release is on its way."""
        with self._lock:
            return (child, key) in self._released_keys

    def step(self, children: Mapping[str, ZoneRecord]) -> set[str]:
        """Run one round over due releases; return the uuids of zones that did not answer.

        :param children: the child zones, by uuid
        """
        for abandoned in self._releases.abandoned_requests(ABANDONED_MAX):
            self._log_failure_of(
                abandoned.request_id,
                functools.partial(self._releases.end_abandoned_request, abandoned),
            )
        silent: set[str] = set()
        done: list[tuple[str, str]] = []
        for due in self._releases.due_releases(ROUND_MAX):
            if due.child in silent:
                continue
            is_over = self._log_failure_of(
                due.key, functools.partial(self._try_release, due, children)
            )
            if is_over:
                done.append((due.child, due.key))
            elif is_over is False and due.child in children:
                silent.add(due.child)
        if done:
            self._releases.end_releases(done)
        waiting = self._releases.waiting_releases()
        self._recorder.gauge('gantt_zone_releases_pending', waiting.number)
        self._recorder.gauge('gantt_zone_releases_oldest_age_seconds', waiting.seconds)
        return silent

    # -- inside ------------------------------------------------------------------------
    def _log_failure_of(self, what: str, work: Callable[[], T]) -> T | None:
        """End one of many; a failure keeps no other from it."""
        try:
            return work()
        except exceptions.Unavailable as e:
            if not isinstance(e, exceptions.Busy | exceptions.DatabaseContended):
                raise
            LOG.warning('Claims in a zone cannot be ended now: key=%s error=%s', what, e.message)
        except Exception:
            LOG.exception('Claims in a zone cannot be ended: key=%s', what)
        return None

    def _try_release(self, due: DueRelease, children: Mapping[str, ZoneRecord]) -> bool:
        """Try one release; return whether nothing more is left to do about it."""
        if due.child == self._own_uuid():
            self._requests.cancel_request(due.key, 'given back')
            return True
        zone = children.get(due.child)
        if zone is None:
            return True  # it was removed: no claim of this zone lives there
        # One claim alone, or all claims of an allocation.
        claim_rows = self._child_claims.find(child=zone.uuid, claim_id=due.key)
        key, claim_id = (claim_rows[0].key, due.key) if claim_rows else (due.key, '')
        if self._release(zone, key, CALL_SECONDS, claim_id):
            self._claims.end_lost(zone.uuid, key, claim_id)
            return True
        if due.seconds > FORGET_SECONDS:
            self._recorder.count('gantt_zone_releases_dropped_total')
            LOG.error(
                'Zone never acknowledged the end of a claim, whose lease is over: zone=%s key=%s',
                zone.name,
                due.key,
            )
            return True
        if due.seconds > ERROR_AGE_SECONDS and zone.uuid not in self._zones_complained_of:
            self._zones_complained_of.add(zone.uuid)
            LOG.error(
                'Zone has not acknowledged the end of a claim for long; others may wait as well: '
                'zone=%s seconds=%.0f key=%s tries=%d',
                zone.name,
                due.seconds,
                due.key,
                due.tries,
            )
        return False

    def _release(self, zone: ZoneRecord, key: str, seconds: float, claim_id: str = '') -> bool:
        """Return whether the zone has acknowledged that nothing is to be claimed under a key.

        :param claim_id: or that this claim of it is to end, and no other one
        """
        try:
            self._zones.release(zone, key, seconds, claim_id)
        except exceptions.Refused as e:
            LOG.warning(
                'Zone refuses the end of a claim: zone=%s key=%s error=%s',
                zone.name,
                key,
                e.message,
            )
            return False
        except exceptions.GanttError as e:
            LOG.info(
                'End of a claim did not reach its zone: zone=%s key=%s error=%s',
                zone.name,
                key,
                e.message,
            )
            return False
        self._zones_complained_of.discard(zone.uuid)
        return True

    def _remember_released(self, pairs: Collection[tuple[str, str]]) -> None:
        with self._lock:
            for pair in pairs:
                self._released_keys[pair] = None
            while len(self._released_keys) > RELEASED_KEYS_MAX:
                self._released_keys.popitem(last=False)
