# SPDX-License-Identifier: Apache-2.0
"""Where more is used than there is: room for what is to be written, and no more than that.

Use beyond inventories comes to be when those are lowered; a writer of allocations is refused then,
as is one whose amounts are against the units.  So such a provider gets just enough first, and what
it has once the consumers have theirs.
"""

from collections.abc import Iterable, Mapping

import msgspec

from gantt.core.messages.resource_classes import Inventory
from gantt.transfer.side import ConsumerRecord, Snapshot

#: provider -> class -> amounts
_Taken = dict[str, dict[str, list[int]]]


class Room:
    """Of one round.

    :param now: of the side that is written
    :ivar given: uuids of providers that get more than they have
    """

    def __init__(self, wanted: Snapshot, now: Snapshot) -> None:
        self._wanted = wanted
        growing = {
            provider
            for uuid, one in wanted.consumers.items()
            for provider, amounts in one.allocations.items()
            if uuid not in now.consumers or amounts != now.consumers[uuid].allocations.get(provider)
        }
        to_be = _taken(wanted.consumers.values())
        # What is there and is not gone yet takes room as well.
        rest = _taken(one for uuid, one in now.consumers.items() if uuid not in wanted.consumers)
        self._enough: dict[str, dict[str, Inventory]] = {}
        for uuid in growing:
            content = wanted.contents.get(uuid)
            if content is not None:
                enough = _with_room(content.inventories, to_be[uuid], rest.get(uuid, {}))
                if enough != content.inventories:
                    self._enough[uuid] = enough
        self.given = frozenset(self._enough)

    def enough(self, uuid: str) -> dict[str, Inventory]:
        """What a provider is to have while consumers are written."""
        return self._enough.get(uuid) or self._wanted.contents[uuid].inventories


def _taken(consumers: Iterable[ConsumerRecord]) -> _Taken:
    found: _Taken = {}
    for one in consumers:
        for provider, amounts in one.allocations.items():
            here = found.setdefault(provider, {})
            for name, amount in amounts.items():
                here.setdefault(name, []).append(amount)
    return found


def _with_room(
    inventories: Mapping[str, Inventory],
    to_be: Mapping[str, list[int]],
    rest: Mapping[str, list[int]],
) -> dict[str, Inventory]:
    found = dict(inventories)
    for name, amounts in to_be.items():
        one = found.get(name) or Inventory(total=0)
        total = sum(amounts)
        if total > one.cap:
            exact = total + sum(rest.get(name, ()))
            one = msgspec.structs.replace(one, total=exact, reserved=0, allocation_ratio=1.0)
        if any(one.unit_problem(amount) for amount in amounts):
            most = max(one.largest, *amounts)
            one = msgspec.structs.replace(one, min_unit=1, max_unit=most, step_size=1)
        if one != found.get(name):
            found[name] = one
    return found
