# SPDX-License-Identifier: Apache-2.0
"""All that one side has; read again, only what changed since is."""

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from gantt.transfer.side import ConsumerUse, PlacementSide, Progress, ProviderOutline, Snapshot

T = TypeVar('T')
#: Requests that are under way at once.
THREADS = 8
#: Between two lines about how far it is.
SAY_SECONDS = 5.0
#: Of a list that is handed out at a time.
PART = 100


def each(
    what: str, items: Iterable[str], do: Callable[[str], T], progress: Progress
) -> Iterator[tuple[str, T]]:
    """Do something of all, several at once, and say now and then how far it is."""
    todo = list(items)
    shown = time.monotonic()
    with ThreadPoolExecutor(THREADS) as pool:
        for start in range(0, len(todo), PART):
            part = todo[start : start + PART]
            yield from zip(part, pool.map(do, part), strict=True)
            done = start + len(part)
            if done < len(todo) and time.monotonic() - shown > SAY_SECONDS:
                shown = time.monotonic()
                progress(f'{what}: {done} of {len(todo)}')
    if todo:
        progress(f'{what}: {len(todo)} of {len(todo)}')


def read(side: PlacementSide, progress: Progress, known: Snapshot | None = None) -> Snapshot:
    """All that a side has.

    :param known: as it was before: providers whose generation is the same are not read again, nor
        consumers of which the generation and all amounts are
    """
    before = known or Snapshot()
    found = Snapshot(classes=side.classes(), traits=side.traits(), outlines=side.outlines())
    uuids = sorted(found.outlines)
    new = [uuid for uuid in uuids if not _is_known(before, found.outlines[uuid])]
    found.contents = {u: before.contents[u] for u in uuids if u in before.contents}
    for uuid, content in each(f'{side.name}: providers', new, side.content, progress):
        if content is None:
            del found.outlines[uuid]
            found.contents.pop(uuid, None)
        else:
            found.contents[uuid] = content
    found.uses = _uses(side, sorted(found.outlines), progress)
    same = [one for one in found.uses if _has_same_use(before, found, one)]
    found.consumers = {one: before.consumers[one] for one in same}
    wanted = sorted(found.uses.keys() - set(same))
    for uuid, record in each(f'{side.name}: consumers', wanted, side.consumer, progress):
        if record is not None:
            found.consumers[uuid] = record
    return found


def _is_known(before: Snapshot, outline: ProviderOutline) -> bool:
    content = before.contents.get(outline.uuid)
    return content is not None and content.generation == outline.generation


def _has_same_use(before: Snapshot, found: Snapshot, consumer: str) -> bool:
    return consumer in before.consumers and before.uses.get(consumer) == found.uses[consumer]


def _uses(side: PlacementSide, uuids: list[str], progress: Progress) -> dict[str, ConsumerUse]:
    amounts: dict[str, dict[str, dict[str, int]]] = {}
    generations: dict[str, int] = {}
    for provider, of in each(f'{side.name}: allocations', uuids, side.uses, progress):
        for consumer, (generation, resources) in of.items():
            amounts.setdefault(consumer, {})[provider] = resources
            generations[consumer] = max(generation, generations.get(consumer, generation))
    return {
        consumer: ConsumerUse(generation=generations[consumer], allocations=of)
        for consumer, of in amounts.items()
    }


def changed(before: Snapshot, now: Snapshot) -> list[str]:
    """What changed from one read to the next, for people; nothing where nothing did."""
    found = [
        f'{kind} {name}'
        for kind, old, new in (
            ('class', before.classes, now.classes),
            ('trait', before.traits, now.traits),
        )
        for name in sorted(old ^ new)
    ]
    for uuid in sorted(before.outlines.keys() | now.outlines.keys()):
        if _provider(before, uuid) != _provider(now, uuid):
            outline = now.outlines.get(uuid) or before.outlines[uuid]
            found.append(f'provider {uuid} ({outline.name})')
    for uuid in sorted(before.consumers.keys() | now.consumers.keys()):
        one, other = before.consumers.get(uuid), now.consumers.get(uuid)
        if one is None or not one.same_as(other):
            found.append(f'consumer {uuid}')
    return found


def _provider(snapshot: Snapshot, uuid: str) -> object:
    """All of a provider but its generation, which moves with what consumers have."""
    outline, content = snapshot.outlines.get(uuid), snapshot.contents.get(uuid)
    if outline is None or content is None:
        return None
    has = content.inventories, content.traits, content.aggregates
    return outline.name, outline.parent, has
