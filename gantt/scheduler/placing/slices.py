# SPDX-License-Identifier: Apache-2.0
"""What happens between two members of a request: others are let through.

A request of many members would hold the scheduling thread until all of them are planned.
It is planned in slices instead.  Where members may be claimed apart, a slice is a pass of its
own: it is committed, and the rest waits for the next batch.  Members that must be claimed
together stay laid over the table while those who wait are served, and are gone on with then.
"""

from collections.abc import Callable

from gantt.core.messages.request import Purpose, SelectDestinations
from gantt.core.placement.place import Pause
from gantt.scheduler.placing.admission import Call
from gantt.scheduler.ports import Clock

#: For so long others wait for the members of one request.
SECONDS = 0.01


def is_whole(request: SelectDestinations) -> bool:
    """Whether its members are planned in one pass: claimed together, or not at all."""
    spec = request.spec
    return spec.group is not None or request.dry_run or spec.purpose is Purpose.REBUILD


class Slice:
    """Called before each member but the first: how to go on.

    :param serve: places who waits; returns whether there was anybody.  None: nobody may be
        served, as for who is served like that
    """

    __slots__ = ('_began', '_call', '_clock', '_serve', '_whole')

    def __init__(self, call: Call, clock: Clock, serve: Callable[[Call], bool] | None) -> None:
        self._call, self._clock, self._serve = call, clock, serve
        self._whole = is_whole(call.request)
        self._began = clock.monotonic()

    def __call__(self) -> Pause:
        now = self._clock.monotonic()
        if now >= self._call.deadline:
            return Pause.OVER
        if now - self._began < SECONDS:
            return Pause.GO_ON
        if not self._whole:
            return Pause.ENOUGH
        served = self._serve is not None and self._serve(self._call)
        self._began = self._clock.monotonic()
        return Pause.LOOK_ANEW if served else Pause.GO_ON
