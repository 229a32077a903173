# SPDX-License-Identifier: Apache-2.0
"""One side made like the other: only what differs is written, so that it can be begun again.

Both are read whole; then come classes, traits, providers from the top down, what each has, and what
consumers have.  After that what changed meanwhile is read again, and so on, with a bound.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import msgspec

from gantt import exceptions
from gantt.core.messages.resource_classes import Inventory
from gantt.transfer import reading
from gantt.transfer.differences import same_inventories
from gantt.transfer.side import (
    ConsumerRecord,
    PlacementSide,
    Progress,
    ProviderContent,
    Snapshot,
    top_down,
)

#: Rounds of writing what differs; the last ones have little to do.
ROUNDS = 5
KINDS = ('classes', 'traits', 'providers', 'inventories', 'trait sets', 'aggregates', 'consumers')


class CopyReport(msgspec.Struct, kw_only=True):
    """What was done.

    :ivar written: by kind, of ``KINDS``: how many were created, changed or deleted
    :ivar reported: what hosts and schedulers of Gantt say otherwise, and therefore stays so
    :ivar left: what could not be copied, and why
    :ivar changing: what the source has changed until the end, so that it may be behind
    """

    written: dict[str, int] = {}
    reported: list[str] = []
    left: list[str] = []
    changing: list[str] = []

    @property
    def total(self) -> int:
        """How much was written."""
        return sum(self.written.values())


class Writes:
    """What is written, counted; what is refused is noted and does not end the run.

    :ivar made: uuids of providers and consumers that are there by this run
    """

    def __init__(self) -> None:
        self.report = CopyReport(written=dict.fromkeys(KINDS, 0))
        self.made: set[str] = set()
        self._lock = threading.Lock()

    def forget_problems(self) -> None:
        """Before all is tried again."""
        self.report.reported, self.report.left = [], []

    def add(self, kind: str) -> None:
        """One more was written."""
        with self._lock:
            self.report.written[kind] += 1

    def try_to(self, kind: str, what: str, do: Callable[..., object], *args: Any) -> None:
        """Write something, by the name of ``what``."""
        if self.tried(what, do, *args) is not None:
            self.add(kind)

    def tried(self, what: str, do: Callable[..., object], *args: Any) -> object:
        """What it returned, or True; None: it was refused."""
        try:
            found = do(*args)
        except exceptions.ReportedByHost as e:
            self.report.reported.append(f'{what}: {e.message}')
        except (exceptions.Refused, exceptions.Conflict, exceptions.Busy) as e:
            self.report.left.append(f'{what}: {e.message}')
        else:
            return True if found is None else found
        return None


def copy(
    source: PlacementSide, target: PlacementSide, progress: Progress, delete: bool = False
) -> CopyReport:
    """Until a round has nothing left to do, or the last one is over.

    :param delete: also what the source does not have; else only what it had when this began
    """
    writes = Writes()
    report = writes.report
    wanted = reading.read(source, progress)
    now = None
    for number in range(1, ROUNDS + 1):
        now = reading.read(target, progress, now)
        before = report.total
        writes.forget_problems()
        CopyRound(target, wanted, now, writes, progress, delete).run()
        again = reading.read(source, progress, wanted)
        report.changing = reading.changed(wanted, again)
        wanted = again
        wrote = report.total - before
        progress(f'round {number}: {wrote} written, {len(report.left)} left')
        # What was refused may have been in the way of others, or they of it.
        if not report.changing and not (report.left and (wrote or number == 1)):
            break
    return report


class CopyRound:
    """Everything once, in order.

    :param now: of the target
    """

    def __init__(
        self,
        target: PlacementSide,
        wanted: Snapshot,
        now: Snapshot,
        writes: Writes,
        progress: Progress,
        delete: bool,
    ) -> None:
        self._target = target
        self._wanted, self._now = wanted, now
        self._writes = writes
        self._progress = progress
        self._delete = delete
        self._generations = {uuid: one.generation for uuid, one in now.contents.items()}
        self._room = Room(wanted, now)

    def run(self) -> None:
        """Do it."""
        wanted, now, target = self._wanted, self._now, self._target
        for name in sorted(wanted.classes - now.classes):
            self._writes.try_to('classes', f'class {name}', target.create_class, name)
        for name in sorted(wanted.traits - now.traits):
            self._writes.try_to('traits', f'trait {name}', target.create_trait, name)
        for outline in top_down(wanted.outlines):
            self._provider(outline.uuid)
        there = [uuid for uuid in wanted.contents if uuid in self._generations]
        self._each('consumers to delete', self._gone(now.consumers, wanted.consumers), self._forget)
        self._each('providers written', there, self._content)
        self._each('consumers written', wanted.consumers, self._consumer)
        self._each('inventories as they are', self._room.given, self._inventories)
        self._delete_rest()

    def _each(self, what: str, items: Collection[str], do: Callable[[str], None]) -> None:
        for _ in reading.each(f'{self._target.name}: {what}', sorted(items), do, self._progress):
            pass

    def _gone(self, now: Collection[str], wanted: Collection[str]) -> list[str]:
        """Which of the target are to be deleted."""
        made = self._writes.made
        return [one for one in now if one not in wanted and (self._delete or one in made)]

    # -- providers ------------------------------------------------------------------------
    def _provider(self, uuid: str) -> None:
        wanted, known = self._wanted.outlines[uuid], self._now.outlines.get(uuid)
        what = f'provider {uuid} ({wanted.name})'
        if known is None:
            made: Any = self._writes.tried(what, self._target.create_provider, wanted)
            if made is not None:
                self._writes.add('providers')
                self._writes.made.add(uuid)
                self._generations[uuid] = made.generation
        elif (known.name, known.parent) != (wanted.name, wanted.parent):
            self._writes.try_to('providers', what, self._target.update_provider, wanted)

    def _content(self, uuid: str) -> None:
        wanted = self._wanted.contents[uuid]
        known = self._now.contents.get(uuid) or ProviderContent(generation=0)
        inventories = self._room.enough(uuid)
        target = self._target
        if not same_inventories(known.inventories, inventories):
            self._save(uuid, 'inventories', target.save_inventories, inventories)
        if known.traits != wanted.traits:
            self._save(uuid, 'trait sets', target.save_traits, wanted.traits)
        if known.aggregates != wanted.aggregates:
            self._save(uuid, 'aggregates', target.save_aggregates, wanted.aggregates)

    def _save(self, uuid: str, kind: str, save: Callable[..., int], value: object) -> None:
        what = f'{kind} of provider {uuid}'
        after: Any = self._writes.tried(what, save, uuid, value, self._generations[uuid])
        if after is not None:
            self._generations[uuid] = after
            self._writes.add(kind)

    def _inventories(self, uuid: str) -> None:
        """As they are, where there was more room for consumers that have it now."""
        content = self._writes.tried(f'provider {uuid}', self._target.content, uuid)
        if isinstance(content, ProviderContent):
            self._generations[uuid] = content.generation
            exact = self._wanted.contents[uuid].inventories
            self._save(uuid, 'inventories', self._target.save_inventories, exact)

    # -- consumers ------------------------------------------------------------------------
    def _consumer(self, uuid: str) -> None:
        wanted, known = self._wanted.consumers[uuid], self._now.consumers.get(uuid)
        if wanted.same_as(known):
            return
        what = f'consumer {uuid}'
        generation = None if known is None else known.generation
        saved: Any = self._writes.tried(what, self._target.save_consumer, uuid, wanted, generation)
        if saved is None:
            return
        if saved.problem:
            self._writes.report.reported.append(f'{what}: {saved.problem}')
        if saved.is_written:
            self._writes.add('consumers')
            if known is None:
                self._writes.made.add(uuid)

    def _forget(self, uuid: str) -> None:
        self._writes.try_to('consumers', f'consumer {uuid}', self._target.delete_consumer, uuid)

    # -- what the source does not have ----------------------------------------------------
    def _delete_rest(self) -> None:
        wanted, now, target = self._wanted, self._now, self._target
        gone = set(self._gone(now.outlines, wanted.outlines))
        for one in reversed(top_down(now.outlines)):
            if one.uuid in gone:
                what = f'provider {one.uuid} ({one.name})'
                self._writes.try_to('providers', what, target.delete_provider, one.uuid)
        if self._delete:
            for name in sorted(now.traits - wanted.traits):
                self._writes.try_to('traits', f'trait {name}', target.delete_trait, name)
            for name in sorted(now.classes - wanted.classes):
                self._writes.try_to('classes', f'class {name}', target.delete_class, name)


#: provider -> class -> amounts
_Taken = dict[str, dict[str, list[int]]]


class Room:
    """Room for what one round writes where more is used than there is, and no more than that.

    Use beyond inventories comes to be when those are lowered; a writer of allocations is refused
    then, as is one whose amounts are against the units.  So such a provider gets just enough
    first, and its own inventories once the consumers have theirs.

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
