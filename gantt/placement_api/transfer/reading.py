# SPDX-License-Identifier: Apache-2.0
"""Reading of one side; repeated, it reads only what changed since."""

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from gantt.placement_api.transfer.side import (
    ConsumerUse,
    PlacementSide,
    Progress,
    ProviderOutline,
    Snapshot,
)

T = TypeVar('T')
#: Requests that are under way at once.
THREADS = 8
#: Seconds between two lines of progress.
PROGRESS_SECONDS = 5.0
#: Items of a list that are handed out at a time.
CONSUMERS_PER_PART = 100


def map_concurrently(
    what: str, items: Iterable[str], do: Callable[[str], T], progress: Progress
) -> Iterator[tuple[str, T]]:
    """Yield each item with the result of ``do``, several at once, and report progress."""
    todo = list(items)
    shown = time.monotonic()
    with ThreadPoolExecutor(THREADS) as pool:
        for start in range(0, len(todo), CONSUMERS_PER_PART):
            part = todo[start : start + CONSUMERS_PER_PART]
            yield from zip(part, pool.map(do, part), strict=True)
            done = start + len(part)
            if done < len(todo) and time.monotonic() - shown > PROGRESS_SECONDS:
                shown = time.monotonic()
                progress(f'{what}: {done} of {len(todo)}')
    if todo:
        progress(f'{what}: {len(todo)} of {len(todo)}')


def read(side: PlacementSide, progress: Progress, known: Snapshot | None = None) -> Snapshot:
    """Return a snapshot of a side.

    :param known: the last snapshot of the side: providers of the same generation are not read
        again, nor
        consumers of the same generation and amounts
    """
    last = known or Snapshot()
    snapshot = Snapshot(classes=side.classes(), traits=side.traits(), outlines=side.outlines())
    uuids = sorted(snapshot.outlines)
    changed_providers = [uuid for uuid in uuids if not _is_known(last, snapshot.outlines[uuid])]
    snapshot.contents = {
        provider: last.contents[provider] for provider in uuids if provider in last.contents
    }
    for uuid, content in map_concurrently(
        f'{side.name}: providers', changed_providers, side.content, progress
    ):
        if content is None:
            del snapshot.outlines[uuid]
            snapshot.contents.pop(uuid, None)
        else:
            snapshot.contents[uuid] = content
    snapshot.uses = _uses(side, sorted(snapshot.outlines), progress)
    unchanged = [consumer for consumer in snapshot.uses if _has_same_use(last, snapshot, consumer)]
    snapshot.consumers = {consumer: last.consumers[consumer] for consumer in unchanged}
    changed_consumers = sorted(snapshot.uses.keys() - set(unchanged))
    for uuid, record in map_concurrently(
        f'{side.name}: consumers', changed_consumers, side.consumer, progress
    ):
        if record is not None:
            snapshot.consumers[uuid] = record
    return snapshot


def _is_known(before: Snapshot, outline: ProviderOutline) -> bool:
    content = before.contents.get(outline.uuid)
    return content is not None and content.generation == outline.generation


def _has_same_use(before: Snapshot, snapshot: Snapshot, consumer: str) -> bool:
    return consumer in before.consumers and before.uses.get(consumer) == snapshot.uses[consumer]


def _uses(side: PlacementSide, uuids: list[str], progress: Progress) -> dict[str, ConsumerUse]:
    amounts: dict[str, dict[str, dict[str, int]]] = {}
    generations: dict[str, int] = {}
    for provider, uses in map_concurrently(f'{side.name}: allocations', uuids, side.uses, progress):
        for consumer, (generation, resources) in uses.items():
            amounts.setdefault(consumer, {})[provider] = resources
            generations[consumer] = max(generation, generations.get(consumer, generation))
    return {
        consumer: ConsumerUse(generation=generations[consumer], allocations=uses)
        for consumer, uses in amounts.items()
    }


def changed(before: Snapshot, now: Snapshot) -> list[str]:
    """Return the changes from one read to the next, for people; empty where there are none."""
    changes = [
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
            changes.append(f'provider {uuid} ({outline.name})')
    for uuid in sorted(before.consumers.keys() | now.consumers.keys()):
        old_record, record = before.consumers.get(uuid), now.consumers.get(uuid)
        if old_record is None or not old_record.same_as(record):
            changes.append(f'consumer {uuid}')
    return changes


def _provider(snapshot: Snapshot, uuid: str) -> object:
    """Return all of a provider but its generation, which changes with allocations."""
    outline, content = snapshot.outlines.get(uuid), snapshot.contents.get(uuid)
    if outline is None or content is None:
        return None
    parts = content.inventories, content.traits, content.aggregates
    return outline.name, outline.parent, parts
