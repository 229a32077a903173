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
from gantt.db.database import Database, reading, writing
from gantt.db.engine import engine, session
from gantt.db.hosts import providers, trees
from gantt.db.hosts.base import is_id
from gantt.db.hosts.hosts import HostRecords
from gantt.db.schema import models
from gantt.db.schema.models import CORE_CLASS_COLUMNS
from gantt.standard_traits import STANDARD_TRAITS

_p = models.providers
_c = models.resource_classes
_i = models.inventories
_t = models.traits
_pt = models.provider_traits
_pa = models.provider_aggregates

_uuid: Any = sa.bindparam('uuid')
_id: Any = sa.bindparam('id')
_parent, _top = _p.alias('parent'), _p.alias('top')
RECORDS = (
    sa.select(
        *(_p.c[name] for name in ('id', 'uuid', 'generation', 'changed_at')),
        trees.OWN_NAME.label('name'),
        _parent.c.uuid.label('parent'),
        _top.c.uuid.label('root'),
        sa.case((trees.is_astray(_parent), 1), else_=0).label('is_astray'),
    )
    .select_from(
        _p.outerjoin(_parent, _parent.c.id == _p.c.parent_id).outerjoin(
            _top, _top.c.id == trees.ROOT_ID
        )
    )
    .order_by(_p.c.id)
)
ONE = RECORDS.where(_p.c.uuid == _uuid)
TRAITS_OF = (
    sa.select(_t.c.name, _t.c.changed_at)
    .join(_pt, _pt.c.trait_id == _t.c.id)
    .where(_pt.c.provider_id == _id)
    .order_by(_t.c.name)
)
AGGREGATES_OF = sa.select(_pa.c.uuid).where(_pa.c.provider_id == _id).order_by(_pa.c.uuid)
CHANGED = _p.update().where(_p.c.id == sa.bindparam('b_id'))

#: Value of an unchanged parent.
UNCHANGED = ''


class SqlProviders:
    """Trees of providers, as Placement requests find and change them.

    It is ``ports.Providers`` in SQL.
    """

    def __init__(self, database: Database) -> None:
        self.database = database

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
            inserted = tx.first(trees.MADE_BY, uuid=new_uuid, stamps=stamps)
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
    def find_providers(self, tx: session.Tx, wanted: ProviderFilter) -> list[ProviderRecord]:
        _check_names(tx, wanted)
        query = RECORDS
        if wanted.name is not None:
            query = query.where(trees.is_called).params(name=engine.storable(wanted.name))
        if wanted.uuid is not None:
            query = query.where(_p.c.uuid == _storable_id(wanted.uuid))
        if wanted.in_tree is not None:
            place = tx.first(trees.PLACE, uuid=_storable_id(wanted.in_tree))
            if place is None:
                return []
            query = query.where(place.root_id == trees.ROOT_ID)
        for traits in wanted.required:
            query = query.where(_p.c.id.in_(_with_traits(traits)))
        if wanted.forbidden:
            query = query.where(_p.c.id.not_in(_with_traits(wanted.forbidden)))
        for aggregates in wanted.member_of:
            query = query.where(_p.c.id.in_(_in_aggregates(aggregates)))
        if wanted.not_member_of:
            query = query.where(_p.c.id.not_in(_in_aggregates(wanted.not_member_of)))
        for name, amount in wanted.resources.items():
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
        row = _one(tx, uuid)
        if parent not in (UNCHANGED, row.parent) and row.parent is not None and not reparent:
            _must_exist(tx, parent)
            raise rules.keeps_its_parent(parent)
        if parent != UNCHANGED and (parent != row.parent or row.is_astray):
            trees.move(tx, self.database.memory, uuid, parent)
        if name is not None and name != row.name:
            locked, pid = trees.lock_one(tx, self.database.memory, uuid)
            stored = engine.storable(name)
            name_holder = tx.first(trees.WITH_NAME, name=stored)
            if name_holder is not None:
                raise rules.name_taken(name, name_holder.uuid)
            with providers.unless_taken():
                tx.run(CHANGED.values(own_name=stored, changed_at=tx.now), b_id=pid)
            providers.save(tx, locked, [pid])
        return _record(_one(tx, uuid))

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
        row = tx.first(ONE, uuid=_storable_id(uuid))
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
            hosts.follow_rows(locked, pid)
            _save_changed(tx, locked, pid)
        return _traits(tx, _one(tx, uuid))

    @reading
    def load_provider_aggregates(self, tx: session.Tx, uuid: str) -> ProviderAggregates | None:
        row = tx.first(ONE, uuid=_storable_id(uuid))
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
            tx.run(_pa.delete().where(_pa.c.provider_id == pid, _pa.c.uuid.in_(removed_uuids)))
        tx.many(_pa.insert(), [{'provider_id': pid, 'uuid': new_uuid} for new_uuid in new_uuids])
        HostRecords(tx, self.database.memory).follow_rows(locked, pid)
        if generation is not None:
            counters.generation += 1
        if removed_uuids or new_uuids or generation is not None:
            _save_changed(tx, locked, pid)
        return _aggregates(tx, _one(tx, uuid))


def _save_changed(tx: session.Tx, locked: providers.LockedProviders, pid: int) -> None:
    tx.run(CHANGED.values(changed_at=tx.now), b_id=pid)
    providers.save(tx, locked, [pid])


# -- reading --------------------------------------------------------------------------
def _storable_id(uuid: str) -> str:
    """Return the uuid, or one that no provider has if it cannot be stored."""
    return uuid if is_id(uuid) else ''


def _one(tx: session.Tx, uuid: str) -> Any:
    row = tx.first(ONE, uuid=_storable_id(uuid))
    if row is None:
        raise exceptions.NotFound(kind='provider', name=uuid)
    return row


def _must_exist(tx: session.Tx, parent: str | None) -> None:
    if parent is not None and tx.first(trees.PLACE, uuid=_storable_id(parent)) is None:
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
def _check_names(tx: session.Tx, wanted: ProviderFilter) -> None:
    if wanted.traits:
        _check_traits(tx, wanted.traits)
    if wanted.resources:
        check_classes(tx, wanted.resources)


def _check_traits(tx: session.Tx, names: Iterable[str]) -> None:
    custom = [name for name in names if name not in STANDARD_TRAITS]
    rules.check_known('trait', custom, _known(tx, _t, custom))


def check_classes(tx: session.Tx, names: Iterable[str]) -> None:
    custom = [name for name in names if name not in resource_classes.STANDARD]
    rules.check_known('resource class', custom, _known(tx, _c, custom))


def _known(tx: session.Tx, table: sa.Table, names: Collection[str]) -> set[str]:
    if not names:
        return set()
    stored_names = [engine.storable(name) for name in names]
    return {
        row.name for row in tx.all(sa.select(table.c.name).where(table.c.name.in_(stored_names)))
    }


# -- filters --------------------------------------------------------------------------
def _with_traits(names: Collection[str]) -> Any:
    """Return a query of ids of the providers that have one of the traits."""
    return (
        sa.select(_pt.c.provider_id)
        .join(_t, _t.c.id == _pt.c.trait_id)
        .where(_t.c.name.in_(sorted(names)))
    )


def _in_aggregates(uuids: Collection[str]) -> Any:
    """Return a query of ids of the providers that are in one of the aggregates."""
    return sa.select(_pa.c.provider_id).where(_pa.c.uuid.in_(sorted(uuids)))


def _has_room(name: str, amount: int) -> Any:
    """Return a condition: a provider has room for an amount of a class in one piece."""
    if amount > CAP_MAX:
        return sa.false()
    amount_bound = sa.literal(amount, sa.BigInteger)
    if name in CORE_CLASSES:
        column = CORE_CLASS_COLUMNS[name]
        used = _p.c[f'used_{column}'] + _p.c[f'foreign_{column}']
    else:
        used = _i.c.used + _i.c.foreign_use
    return sa.exists().where(
        _i.c.provider_id == _p.c.id,
        _i.c.class_id == _c.c.id,
        _c.c.name == name,
        _i.c.total > 0,
        _i.c.cap - used >= amount_bound,
        _i.c.min_unit <= amount_bound,
        sa.func.coalesce(_i.c.max_unit, _i.c.total) >= amount_bound,
        amount_bound % _i.c.step_size == 0,
    )
