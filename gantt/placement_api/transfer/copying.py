# SPDX-License-Identifier: Apache-2.0
"""Copying of one side to another: only differences are written, so that it can be repeated.

Both are read completely; then classes, traits, providers from the top down, their content, and
consumers are written.  After that, changes since are read again, and so on, with a bound.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import msgspec

from gantt import exceptions
from gantt.core.messages.resource_classes import Inventory
from gantt.placement_api.transfer import reading
from gantt.placement_api.transfer.differences import same_inventories
from gantt.placement_api.transfer.side import (
    ConsumerRecord,
    PlacementSide,
    Progress,
    ProviderContent,
    Snapshot,
    top_down,
)

#: Rounds of writing what differs; the last ones have little to do.
ROUNDS_MAX = 5
KINDS = ('classes', 'traits', 'providers', 'inventories', 'trait sets', 'aggregates', 'consumers')


class CopyReport(msgspec.Struct, kw_only=True):
    """Report of a copy.

    :ivar written: kind of ``KINDS`` -> number of objects created, changed or deleted
    :ivar reported: objects that differ and are left unchanged, as hosts or schedulers of Gantt
        write them
    :ivar left: objects that could not be copied, and the reason
    :ivar changing: objects that the source changed until the end, so that they may be behind
    """

    written: dict[str, int] = {}
    reported: list[str] = []
    left: list[str] = []
    changing: list[str] = []

    @property
    def total(self) -> int:
        """Number of writes."""
        return sum(self.written.values())


class WriteCounts:
    """Counts of writes; a refusal is recorded and does not end the run.

    :ivar created: uuids of providers and consumers that this run created
    """

    def __init__(self) -> None:
        self.report = CopyReport(written=dict.fromkeys(KINDS, 0))
        self.created: set[str] = set()
        self._lock = threading.Lock()

    def add(self, kind: str) -> None:
        """Count a write."""
        with self._lock:
            self.report.written[kind] += 1

    def try_and_count(self, kind: str, what: str, do: Callable[..., object], *args: Any) -> None:
        """Write something, named ``what``, and count it."""
        if self.try_write(what, do, *args) is not None:
            self.add(kind)

    def try_write(self, what: str, do: Callable[..., object], *args: Any) -> object:
        """Return the result of a write, or True; None: it was refused."""
        try:
            result = do(*args)
        except exceptions.ReportedByHost as e:
            self.report.reported.append(f'{what}: {e.message}')
        except (exceptions.Refused, exceptions.Conflict, exceptions.Busy) as e:
            self.report.left.append(f'{what}: {e.message}')
        else:
            return True if result is None else result
        return None


def copy(
    source: PlacementSide, target: PlacementSide, progress: Progress, delete: bool = False
) -> CopyReport:
    """Copy ``source`` to ``target`` in rounds, until a round changes nothing, with a bound.

    :param delete: delete all objects that the source does not have; else only those that this
        run created
    """
    writes = WriteCounts()
    report = writes.report
    source_snapshot = reading.read(source, progress)
    target_snapshot = None
    for number in range(1, ROUNDS_MAX + 1):
        target_snapshot = reading.read(target, progress, target_snapshot)
        written_before = report.total
        report.reported = []
        report.left = []
        CopyRound(target, source_snapshot, target_snapshot, writes, progress, delete).run()
        new_snapshot = reading.read(source, progress, source_snapshot)
        report.changing = reading.changed(source_snapshot, new_snapshot)
        source_snapshot = new_snapshot
        wrote = report.total - written_before
        progress(f'round {number}: {wrote} written, {len(report.left)} left')
        # Refused objects may have been in the way of others, or these of them.
        if not report.changing and not (report.left and (wrote or number == 1)):
            break
    return report


class CopyRound:
    """A round that writes everything once, in order.

    :param now: snapshot of the target
    """

    def __init__(
        self,
        target: PlacementSide,
        source: Snapshot,
        now: Snapshot,
        writes: WriteCounts,
        progress: Progress,
        delete: bool,
    ) -> None:
        self._target = target
        self._source = source
        self._now = now
        self._writes = writes
        self._progress = progress
        self._delete = delete
        self._generations = {uuid: content.generation for uuid, content in now.contents.items()}
        self._temporary_room = TemporaryRoom(source, now)

    def run(self) -> None:
        """Run the round."""
        source, current, target = self._source, self._now, self._target
        for name in sorted(source.classes - current.classes):
            self._writes.try_and_count('classes', f'class {name}', target.create_class, name)
        for name in sorted(source.traits - current.traits):
            self._writes.try_and_count('traits', f'trait {name}', target.create_trait, name)
        for outline in top_down(source.outlines):
            self._copy_provider(outline.uuid)
        existing = [uuid for uuid in source.contents if uuid in self._generations]
        self._for_each(
            'consumers to delete',
            self._to_delete(current.consumers, source.consumers),
            self._delete_consumer,
        )
        self._for_each('providers written', existing, self._copy_content)
        self._for_each('consumers written', source.consumers, self._copy_consumer)
        self._for_each(
            'inventories as they are', self._temporary_room.given, self._restore_inventories
        )
        self._delete_rest()

    def _for_each(self, what: str, items: Collection[str], do: Callable[[str], None]) -> None:
        for _ in reading.map_concurrently(
            f'{self._target.name}: {what}', sorted(items), do, self._progress
        ):
            pass

    def _to_delete(self, now: Collection[str], needed: Collection[str]) -> list[str]:
        """Return the objects of the target that are to be deleted."""
        created = self._writes.created
        return [uuid for uuid in now if uuid not in needed and (self._delete or uuid in created)]

    # -- providers ------------------------------------------------------------------------
    def _copy_provider(self, uuid: str) -> None:
        outline, current = self._source.outlines[uuid], self._now.outlines.get(uuid)
        label = f'provider {uuid} ({outline.name})'
        if current is None:
            created: Any = self._writes.try_write(label, self._target.create_provider, outline)
            if created is not None:
                self._writes.add('providers')
                self._writes.created.add(uuid)
                self._generations[uuid] = created.generation
        elif (current.name, current.parent) != (outline.name, outline.parent):
            self._writes.try_and_count('providers', label, self._target.update_provider, outline)

    def _copy_content(self, uuid: str) -> None:
        content = self._source.contents[uuid]
        current = self._now.contents.get(uuid) or ProviderContent(generation=0)
        inventories = self._temporary_room.inventories_for(uuid)
        target = self._target
        if not same_inventories(current.inventories, inventories):
            self._save(uuid, 'inventories', target.save_inventories, inventories)
        if current.traits != content.traits:
            self._save(uuid, 'trait sets', target.save_traits, content.traits)
        if current.aggregates != content.aggregates:
            self._save(uuid, 'aggregates', target.save_aggregates, content.aggregates)

    def _save(self, uuid: str, kind: str, save: Callable[..., int], value: object) -> None:
        label = f'{kind} of provider {uuid}'
        new_generation: Any = self._writes.try_write(
            label, save, uuid, value, self._generations[uuid]
        )
        if new_generation is not None:
            self._generations[uuid] = new_generation
            self._writes.add(kind)

    def _restore_inventories(self, uuid: str) -> None:
        """Save the source's inventories of a provider that was given temporary room."""
        content = self._writes.try_write(f'provider {uuid}', self._target.content, uuid)
        if isinstance(content, ProviderContent):
            self._generations[uuid] = content.generation
            exact = self._source.contents[uuid].inventories
            self._save(uuid, 'inventories', self._target.save_inventories, exact)

    # -- consumers ------------------------------------------------------------------------
    def _copy_consumer(self, uuid: str) -> None:
        record, current = self._source.consumers[uuid], self._now.consumers.get(uuid)
        if record.same_as(current):
            return
        label = f'consumer {uuid}'
        generation = None if current is None else current.generation
        saved: Any = self._writes.try_write(
            label, self._target.save_consumer, uuid, record, generation
        )
        if saved is None:
            return
        if saved.problem:
            self._writes.report.reported.append(f'{label}: {saved.problem}')
        if saved.is_written:
            self._writes.add('consumers')
            if current is None:
                self._writes.created.add(uuid)

    def _delete_consumer(self, uuid: str) -> None:
        self._writes.try_and_count(
            'consumers', f'consumer {uuid}', self._target.delete_consumer, uuid
        )

    # -- objects that the source does not have ----------------------------------------------------
    def _delete_rest(self) -> None:
        source, current, target = self._source, self._now, self._target
        deleted = set(self._to_delete(current.outlines, source.outlines))
        for provider in reversed(top_down(current.outlines)):
            if provider.uuid in deleted:
                label = f'provider {provider.uuid} ({provider.name})'
                self._writes.try_and_count(
                    'providers', label, target.delete_provider, provider.uuid
                )
        if self._delete:
            for name in sorted(current.traits - source.traits):
                self._writes.try_and_count('traits', f'trait {name}', target.delete_trait, name)
            for name in sorted(current.classes - source.classes):
                self._writes.try_and_count('classes', f'class {name}', target.delete_class, name)


#: provider -> class -> amounts
_AmountsByProvider = dict[str, dict[str, list[int]]]


class TemporaryRoom:
    """Extra room for the writes of one round where more is used than there is, and no more.

    Use exceeds inventories when those are lowered; a writer of allocations is refused then, as is
    one whose amounts are against the units.  So such a provider gets just enough first, and its own
    inventories once the consumers are written.

    :param now: snapshot of the side that is written
    :ivar given: uuids of providers that were given temporary room
    """

    def __init__(self, source: Snapshot, now: Snapshot) -> None:
        self._source = source
        growing = {
            provider
            for uuid, record in source.consumers.items()
            for provider, amounts in record.allocations.items()
            if uuid not in now.consumers or amounts != now.consumers[uuid].allocations.get(provider)
        }
        planned = _amounts_by_provider(source.consumers.values())
        # Consumers that are not deleted yet take room as well.
        remaining = _amounts_by_provider(
            record for uuid, record in now.consumers.items() if uuid not in source.consumers
        )
        self._inventories_by_uuid: dict[str, dict[str, Inventory]] = {}
        for uuid in growing:
            content = source.contents.get(uuid)
            if content is not None:
                inventories = _with_room(
                    content.inventories, planned[uuid], remaining.get(uuid, {})
                )
                if inventories != content.inventories:
                    self._inventories_by_uuid[uuid] = inventories
        self.given = frozenset(self._inventories_by_uuid)

    def inventories_for(self, uuid: str) -> dict[str, Inventory]:
        """Return the inventories of a provider while consumers are written."""
        return self._inventories_by_uuid.get(uuid) or self._source.contents[uuid].inventories


def _amounts_by_provider(consumers: Iterable[ConsumerRecord]) -> _AmountsByProvider:
    amounts_of: _AmountsByProvider = {}
    for record in consumers:
        for provider, amounts in record.allocations.items():
            provider_amounts = amounts_of.setdefault(provider, {})
            for name, amount in amounts.items():
                provider_amounts.setdefault(name, []).append(amount)
    return amounts_of


def _with_room(
    inventories: Mapping[str, Inventory],
    to_be: Mapping[str, list[int]],
    rest: Mapping[str, list[int]],
) -> dict[str, Inventory]:
    enlarged = dict(inventories)
    for name, amounts in to_be.items():
        inventory = enlarged.get(name) or Inventory(total=0)
        total = sum(amounts)
        if total > inventory.cap:
            exact = total + sum(rest.get(name, ()))
            inventory = msgspec.structs.replace(
                inventory, total=exact, reserved=0, allocation_ratio=1.0
            )
        if any(inventory.unit_problem(amount) for amount in amounts):
            max_unit = max(inventory.largest, *amounts)
            inventory = msgspec.structs.replace(
                inventory, min_unit=1, max_unit=max_unit, step_size=1
            )
        if inventory != enlarged.get(name):
            enlarged[name] = inventory
    return enlarged
