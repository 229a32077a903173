# SPDX-License-Identifier: Apache-2.0
"""Providers as requests find and change them: names, parents, inventories, traits, aggregates.

Each change is done under the lock of the provider, see ``db.hosts.trees``; the generation is
compared there.
"""

import uuid as uuids
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from gantt import exceptions
from gantt.core.messages import resource_classes
from gantt.core.messages.resource_classes import CAP_MAX, CORE_CLASSES, Inventory
from gantt.core.resources import provider as rules
from gantt.core.resources.provider import (
    ProviderAggregates,
    ProviderFilter,
    ProviderRecord,
    ProviderTraits,
    ResourceProvider,
    VocabularyEntry,
)
from gantt.db.database import SqlStore, reading, writing
from gantt.db.engine import engine, session
from gantt.db.engine.engine import is_id
from gantt.db.hosts import providers, trees
from gantt.db.hosts.hosts import HostRecords
from gantt.db.schema import models
from gantt.db.schema.models import CORE_CLASS_COLUMNS
from gantt.standard_traits import STANDARD_TRAITS

_providers = models.providers
_resource_classes = models.resource_classes
_inventories = models.inventories
_trait_names = models.traits
_provider_traits = models.provider_traits
_provider_aggregates = models.provider_aggregates

_uuid: Any = sa.bindparam('uuid')
_id: Any = sa.bindparam('id')
_parent, _top = _providers.alias('parent'), _providers.alias('top')
PROVIDER_RECORDS = (
    sa.select(
        *(_providers.c[name] for name in ('id', 'uuid', 'generation', 'changed_at')),
        trees.PLACEMENT_NAME.label('name'),
        _parent.c.uuid.label('parent'),
        _top.c.uuid.label('root'),
        sa.case((trees.is_astray(_parent), 1), else_=0).label('is_astray'),
    )
    .select_from(
        _providers.outerjoin(_parent, _parent.c.id == _providers.c.parent_id).outerjoin(
            _top, _top.c.id == trees.ROOT_ID
        )
    )
    .order_by(_providers.c.id)
)
PROVIDER_RECORD = PROVIDER_RECORDS.where(_providers.c.uuid == _uuid)
TRAITS_OF = (
    sa.select(_trait_names.c.name, _trait_names.c.changed_at)
    .join(_provider_traits, _provider_traits.c.trait_id == _trait_names.c.id)
    .where(_provider_traits.c.provider_id == _id)
    .order_by(_trait_names.c.name)
)
AGGREGATES_OF = (
    sa.select(_provider_aggregates.c.uuid)
    .where(_provider_aggregates.c.provider_id == _id)
    .order_by(_provider_aggregates.c.uuid)
)
UPDATE_PROVIDER = _providers.update().where(_providers.c.id == sa.bindparam('b_id'))

#: Value of an unchanged parent.
UNCHANGED = ''


class SqlProviders(SqlStore):
    """Trees of providers, as Placement requests find and change them.

    It is ``ports.Providers`` in SQL.
    """

    def create_provider(
        self,
        name: str,
        *,
        uuid: str | None = None,
        parent: str | None = None,
        inventories: Mapping[str, Inventory] = {},
    ) -> ResourceProvider:
        rules.check(name, uuid, inventories)
        new_uuid = uuid or str(uuids.uuid4())
        stamps: list[int] = []

        def work(tx: session.Tx) -> ResourceProvider:
            stamps.append(tx.stamp)
            return trees.create(
                tx, self.database.memory, engine.storable(name), new_uuid, parent, inventories
            )

        def already_committed(tx: session.Tx) -> ResourceProvider | None:
            inserted = tx.first(trees.SELECT_INSERTED_PROVIDER, uuid=new_uuid, stamps=stamps)
            return None if inserted is None else trees.read_one(tx, new_uuid)

        return self.database.writes.write(work, already_committed)

    @reading
    def load_provider(self, tx: session.Tx, uuid: str) -> ResourceProvider | None:
        return trees.read(tx, uuid) if is_id(uuid) else None

    def delete_provider(self, uuid: str) -> None:
        def already_committed(tx: session.Tx) -> bool | None:
            return True if trees.place_of(tx, uuid) is None else None

        self.database.writes.write(
            lambda tx: trees.delete(tx, self.database.memory, uuid), already_committed
        )

    @reading
    def find_providers(self, tx: session.Tx, criteria: ProviderFilter) -> list[ProviderRecord]:
        _check_names(tx, criteria)
        query = PROVIDER_RECORDS
        if criteria.name is not None:
            query = query.where(trees.has_name).params(name=engine.storable(criteria.name))
        if criteria.uuid is not None:
            query = query.where(_providers.c.uuid == _storable_uuid(criteria.uuid))
        if criteria.in_tree is not None:
            place = tx.first(trees.SELECT_PLACE, uuid=_storable_uuid(criteria.in_tree))
            if place is None:
                return []
            query = query.where(place.root_id == trees.ROOT_ID)
        for traits in criteria.required:
            query = query.where(_providers.c.id.in_(_provider_ids_with_traits(traits)))
        if criteria.forbidden:
            query = query.where(
                _providers.c.id.not_in(_provider_ids_with_traits(criteria.forbidden))
            )
        for aggregates in criteria.member_of:
            query = query.where(_providers.c.id.in_(_provider_ids_in_aggregates(aggregates)))
        if criteria.not_member_of:
            query = query.where(
                _providers.c.id.not_in(_provider_ids_in_aggregates(criteria.not_member_of))
            )
        for name, amount in criteria.resources.items():
            query = query.where(_has_room(name, amount))
        return [_record(row) for row in tx.all(query)]

    @writing
    def update_provider(
        self,
        tx: session.Tx,
        uuid: str,
        *,
        name: str | None = None,
        parent: str | None = UNCHANGED,
        reparent: bool = True,
    ) -> ProviderRecord:
        if name is not None:
            rules.check(name, None, {})
        row = _load_record(tx, uuid)
        if parent not in (UNCHANGED, row.parent) and row.parent is not None and not reparent:
            _check_parent(tx, parent)
            raise rules.parent_cannot_change(parent)
        if parent != UNCHANGED and (parent != row.parent or row.is_astray):
            trees.move(tx, self.database.memory, uuid, parent)
        if name is not None and name != row.name:
            locked, pid = trees.lock_one(tx, self.database.memory, uuid)
            stored = engine.storable(name)
            name_holder = tx.first(trees.SELECT_UUID_BY_NAME, name=stored)
            if name_holder is not None:
                raise rules.name_taken(name, name_holder.uuid)
            with providers.unless_taken():
                tx.run(UPDATE_PROVIDER.values(placement_name=stored, changed_at=tx.now), b_id=pid)
            providers.save(tx, locked, [pid])
        return _record(_load_record(tx, uuid))

    @writing
    def change_inventories(
        self,
        tx: session.Tx,
        uuid: str,
        change: Callable[[dict[str, Inventory]], Mapping[str, Inventory]],
        generation: int | None = None,
    ) -> ResourceProvider:
        locked, pid = trees.lock_one(tx, self.database.memory, uuid)
        rules.check_generation(uuid, locked.counters[pid].generation, generation)
        inventories = change(dict(locked.inventories(pid)))
        check_classes(tx, inventories)
        rules.check_inventories(inventories)
        trees.write_inventories(tx, self.database.memory, locked, uuid, inventories)
        _save_changed(tx, locked, pid)
        return trees.read_one(tx, uuid)

    @reading
    def load_provider_traits(self, tx: session.Tx, uuid: str) -> ProviderTraits | None:
        row = tx.first(PROVIDER_RECORD, uuid=_storable_uuid(uuid))
        return None if row is None else _traits(tx, row)

    @writing
    def save_provider_traits(
        self, tx: session.Tx, uuid: str, names: Collection[str], generation: int | None = None
    ) -> ProviderTraits:
        locked, pid = trees.lock_one(tx, self.database.memory, uuid)
        counters = locked.counters[pid]
        rules.check_generation(uuid, counters.generation, generation)
        _check_traits(tx, names)
        names_before = {row.name for row in tx.all(TRAITS_OF, id=pid)}
        if names_before != set(names):
            hosts = HostRecords(tx, self.database.memory)
            hosts.write_traits(pid, list(names))
            counters.generation += 1
            hosts.refresh_facts(locked, pid)
            _save_changed(tx, locked, pid)
        return _traits(tx, _load_record(tx, uuid))

    @reading
    def load_provider_aggregates(self, tx: session.Tx, uuid: str) -> ProviderAggregates | None:
        row = tx.first(PROVIDER_RECORD, uuid=_storable_uuid(uuid))
        return None if row is None else _aggregates(tx, row)

    @writing
    def save_provider_aggregates(
        self, tx: session.Tx, uuid: str, uuids: Collection[str], generation: int | None = None
    ) -> ProviderAggregates:
        locked, pid = trees.lock_one(tx, self.database.memory, uuid)
        counters = locked.counters[pid]
        rules.check_generation(uuid, counters.generation, generation)
        uuids_before = {row.uuid for row in tx.all(AGGREGATES_OF, id=pid)}
        removed_uuids, new_uuids = (
            sorted(uuids_before - set(uuids)),
            sorted(set(uuids) - uuids_before),
        )
        if removed_uuids:
            tx.run(
                _provider_aggregates.delete().where(
                    _provider_aggregates.c.provider_id == pid,
                    _provider_aggregates.c.uuid.in_(removed_uuids),
                )
            )
        tx.run_many(
            _provider_aggregates.insert(),
            [{'provider_id': pid, 'uuid': new_uuid} for new_uuid in new_uuids],
        )
        HostRecords(tx, self.database.memory).refresh_facts(locked, pid)
        if generation is not None:
            counters.generation += 1
        if removed_uuids or new_uuids or generation is not None:
            _save_changed(tx, locked, pid)
        return _aggregates(tx, _load_record(tx, uuid))


def _save_changed(tx: session.Tx, locked: providers.LockedProviders, pid: int) -> None:
    tx.run(UPDATE_PROVIDER.values(changed_at=tx.now), b_id=pid)
    providers.save(tx, locked, [pid])


# -- reading --------------------------------------------------------------------------
def _storable_uuid(uuid: str) -> str:
    """Return the uuid, or one that no provider has if it cannot be stored."""
    return uuid if is_id(uuid) else ''


def _load_record(tx: session.Tx, uuid: str) -> Any:
    row = tx.first(PROVIDER_RECORD, uuid=_storable_uuid(uuid))
    if row is None:
        raise exceptions.NotFound(kind='provider', name=uuid)
    return row


def _check_parent(tx: session.Tx, parent: str | None) -> None:
    if parent is not None and tx.first(trees.SELECT_PLACE, uuid=_storable_uuid(parent)) is None:
        raise rules.unknown_parent(parent)


def _record(row: Any) -> ProviderRecord:
    return ProviderRecord(**{name: getattr(row, name) for name in ProviderRecord.__struct_fields__})


def _traits(tx: session.Tx, row: Any) -> ProviderTraits:
    trait_rows = tx.all(TRAITS_OF, id=row.id)
    return ProviderTraits(row.generation, [VocabularyEntry(*trait) for trait in trait_rows])


def _aggregates(tx: session.Tx, row: Any) -> ProviderAggregates:
    return ProviderAggregates(
        row.generation, [aggregate.uuid for aggregate in tx.all(AGGREGATES_OF, id=row.id)]
    )


# -- names that have to exist ---------------------------------------------------------
def _check_names(tx: session.Tx, criteria: ProviderFilter) -> None:
    if criteria.traits:
        _check_traits(tx, criteria.traits)
    if criteria.resources:
        check_classes(tx, criteria.resources)


def _check_traits(tx: session.Tx, names: Iterable[str]) -> None:
    custom = [name for name in names if name not in STANDARD_TRAITS]
    rules.check_known('trait', custom, _known_names(tx, _trait_names, custom))


def check_classes(tx: session.Tx, names: Iterable[str]) -> None:
    """Check that resource classes are standard ones or declared.  :raises NotFound:"""
    custom = [name for name in names if name not in resource_classes.STANDARD_CLASSES]
    rules.check_known('resource class', custom, _known_names(tx, _resource_classes, custom))


def _known_names(tx: session.Tx, table: sa.Table, names: Collection[str]) -> set[str]:
    if not names:
        return set()
    stored_names = [engine.storable(name) for name in names]
    return {
        row.name for row in tx.all(sa.select(table.c.name).where(table.c.name.in_(stored_names)))
    }


# -- filters --------------------------------------------------------------------------
def _provider_ids_with_traits(names: Collection[str]) -> Any:
    """Return a query of ids of the providers that have one of the traits."""
    return (
        sa.select(_provider_traits.c.provider_id)
        .join(_trait_names, _trait_names.c.id == _provider_traits.c.trait_id)
        .where(_trait_names.c.name.in_(sorted(names)))
    )


def _provider_ids_in_aggregates(uuids: Collection[str]) -> Any:
    """Return a query of ids of the providers that are in one of the aggregates."""
    return sa.select(_provider_aggregates.c.provider_id).where(
        _provider_aggregates.c.uuid.in_(sorted(uuids))
    )


def _has_room(name: str, amount: int) -> Any:
    """Return a condition: a provider has room for an amount of a class in one piece."""
    if amount > CAP_MAX:
        return sa.false()
    amount_bound = sa.literal(amount, sa.BigInteger)
    if name in CORE_CLASSES:
        column = CORE_CLASS_COLUMNS[name]
        used = _providers.c[f'used_{column}'] + _providers.c[f'foreign_{column}']
    else:
        used = _inventories.c.used + _inventories.c.foreign_use
    return sa.exists().where(
        _inventories.c.provider_id == _providers.c.id,
        _inventories.c.class_id == _resource_classes.c.id,
        _resource_classes.c.name == name,
        _inventories.c.total > 0,
        _inventories.c.cap - used >= amount_bound,
        _inventories.c.min_unit <= amount_bound,
        sa.func.coalesce(_inventories.c.max_unit, _inventories.c.total) >= amount_bound,
        amount_bound % _inventories.c.step_size == 0,
    )
