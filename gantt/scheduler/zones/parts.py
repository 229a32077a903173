# SPDX-License-Identifier: Apache-2.0
"""What a process needs to speak with other zones, put together."""

from collections.abc import Callable
from typing import NoReturn

from gantt import exceptions
from gantt.core.messages.request import SelectDestinations
from gantt.core.placement.pipeline import Pipeline
from gantt.core.zones.messages import ZoneRecord
from gantt.core.zones.score import ScoreSet
from gantt.scheduler.host_cache import HostCache
from gantt.scheduler.ports import Clock, Store
from gantt.scheduler.ports.zones import Zones
from gantt.scheduler.settings import SchedulerSettings
from gantt.scheduler.zones.directory import ZoneDirectory
from gantt.scheduler.zones.evaluate import Evaluated, ZoneEvaluator


class NoCalls:
    """The Zones port of a process that speaks with no zone below."""

    def _none(self, zone: ZoneRecord, *_: object) -> NoReturn:
        raise exceptions.Unavailable(f'this process speaks with no zone below: {zone.name}')

    def close(self) -> None:
        pass

    discover = evaluate = allocate = allocation = give_back = changes = _none


class ZoneParts:
    """Who is around, what this zone has for a request, and calls to the zones below.

    :ivar directory: the zones around this one
    :ivar calls: to those below
    """

    def __init__(
        self,
        store: Store,
        calls: Zones,
        cache: HostCache,
        pipeline: Callable[[], Pipeline],
        settings: SchedulerSettings,
        clock: Clock,
        count: Callable[..., None],
    ) -> None:
        """Nothing is read yet.

        :param cache: a follower of the database
        """
        self.directory = ZoneDirectory(store, clock)
        self.calls = calls
        self._pipeline = pipeline
        self.evaluator = ZoneEvaluator(
            cache,
            pipeline,
            settings,
            calls,
            self.directory.children,
            self.directory.own_uuid,
            count,
        )

    def close(self) -> None:
        """Begin no more calls, and close their connections."""
        self.evaluator.close()
        self.calls.close()

    def evaluate(self, request: SelectDestinations, want: int, seconds: float) -> Evaluated:
        """See ``ZoneEvaluator.evaluate``."""
        return self.evaluator.evaluate(request, want, seconds)

    def score_set(self) -> str:
        """What the scores of this zone are made of."""
        return ScoreSet.of(self._pipeline().comparable()).digest
