# SPDX-License-Identifier: Apache-2.0
"""Faults of the hosts of a farm, now or at a time.

    events:
      - {at: 30, do: die, hosts: {fraction: 0.1}}
      - {at: 60, do: revive, guests: gone}
      - {at: 90, do: disagree, hosts: {names: [fake-00007]}}

disagree, agree
    Refuse every build although its claim is valid; behave again.
die, revive
    Neither report nor answer; come back with a new epoch.
restart
    Both at once: work under way is cut off in the middle.
lose_disk
    Restart without the journal.
status
    Change nothing.

``guests: gone`` with revive, restart or lose_disk means that nothing runs any
more, as after a loss of power; ``alive``, that only the agent was away.
"""

import random
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec

from gantt import exceptions
from gantt.compute.farm.shapes import load_yaml
from gantt.core.messages import base
from gantt.core.messages.base import Message, Name

EVENTS_MAX = 100_000


class Selector(Message, frozen=True, kw_only=True):
    """Choice of hosts: all conditions hold, then ``count`` or ``fraction`` draws from the rest."""

    names: Annotated[list[Name], msgspec.Meta(max_length=100_000)] | None = None
    zone: Name | None = None
    shape: Name | None = None
    count: Annotated[int, msgspec.Meta(ge=0)] | None = None
    fraction: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None


class Fault(Message, frozen=True, kw_only=True):
    """One thing to do.

    :ivar at: seconds after the start of the farm; only in a file of events
    """

    do: Literal['disagree', 'agree', 'die', 'revive', 'restart', 'lose_disk', 'status']
    hosts: Selector = Selector()
    guests: Literal['alive', 'gone'] = 'alive'
    at: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0


def choose(selector: Selector, hosts: Iterable[Any], rng: random.Random) -> list[Any]:
    """Return the hosts that a selector selects, in their order; the draw follows from ``rng``.

    :param hosts: objects with ``name``, ``zone`` and ``shape``
    """
    names = None if selector.names is None else set(selector.names)
    matching = [
        host
        for host in hosts
        if (names is None or host.name in names)
        and selector.zone in (None, host.zone)
        and selector.shape in (None, host.shape)
    ]
    count = len(matching) if selector.count is None else selector.count
    if selector.fraction is not None:
        count = min(count, round(len(matching) * selector.fraction))
    if count >= len(matching):
        return matching
    chosen = sorted(rng.sample(range(len(matching)), count))
    return [matching[index] for index in chosen]


def load_events(path: str) -> list[Fault]:
    """Read a file of events; return them in order of time.

    :raises Misconfigured: it cannot be read
    :raises InvalidMessage: names file, event and field
    """
    content = load_yaml(path, '--events')
    events = content.get('events') if isinstance(content, dict) else None
    if not isinstance(events, list) or len(events) > EVENTS_MAX or set(content) != {'events'}:
        raise exceptions.invalid(
            path, f'expected one key, events, with a list of at most {EVENTS_MAX}'
        )
    faults_listed = [
        base.decode(event, Fault, inside=f'{path}: events[{index}]')
        for index, event in enumerate(events)
    ]
    return sorted(faults_listed, key=lambda order: order.at)
