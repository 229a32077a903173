# SPDX-License-Identifier: Apache-2.0
"""Providers that are no hosts, and the trees that providers form.

A change of a tree locks its root, and every other row that is written, ascending by id; then it
reads the tree again.  The version of all locked rows grows: where locks are local to a node, two
changes of one tree have written the same row.
"""

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from gantt import exceptions
from gantt.core.messages.resource_classes import CORE_CLASSES, Inventory
from gantt.core.resources import provider as rules
from gantt.core.resources.host import HostFacts, HostKind
from gantt.core.resources.provider import ResourceProvider
from gantt.db.engine import session
from gantt.db.engine.engine import is_id
from gantt.db.engine.retry import RetryTransaction
from gantt.db.hosts import providers, rows
from gantt.db.hosts.hosts import COUNT_CHILDREN, COUNT_LIVE_CLAIMS, HostRecords
from gantt.db.hosts.providers import LockedProviders
from gantt.db.schema import models
from gantt.db.schema.models import CORE_CLASS_COLUMNS

#: Prefix of the uuid, in place of the name of a host: no host can have such a name.
NO_HOST_PREFIX = '\x7f'

_providers, _inventories, _resource_classes = (
    models.providers,
    models.inventories,
    models.resource_classes,
)
_uuid: Any = sa.bindparam('uuid')

#: Null in the row of a root: a root is its own root.
ROOT_ID = sa.func.coalesce(_providers.c.root_id, _providers.c.id)
#: Name of the service of a host that has not registered since hosts have own names.
PLACEMENT_NAME = sa.func.coalesce(_providers.c.placement_name, _providers.c.name)
SELECT_PLACE = sa.select(
    _providers.c.id,
    _providers.c.uuid,
    _providers.c.name,
    _providers.c.kind,
    _providers.c.parent_id,
    ROOT_ID.label('root_id'),
).where(_providers.c.uuid == _uuid)
_root: Any = sa.bindparam('root')
_ids: Any = sa.bindparam('ids', expanding=True)
_SELECT_NODES = sa.select(_providers.c.id, _providers.c.parent_id, ROOT_ID.label('root_id'))
SELECT_TREE = _SELECT_NODES.where(sa.or_(_providers.c.id == _root, _providers.c.root_id == _root))
SELECT_CHILDREN = _SELECT_NODES.where(_providers.c.parent_id.in_(_ids))
_name: Any = sa.bindparam('name')
has_name = sa.or_(
    _providers.c.placement_name == _name,
    sa.and_(_providers.c.name == _name, _providers.c.placement_name.is_(None)),
)
SELECT_UUID_BY_NAME = sa.select(_providers.c.uuid).where(has_name)
SELECT_NAME_BY_UUID = sa.select(PLACEMENT_NAME.label('placement_name')).where(
    _providers.c.uuid == _uuid
)
#: Provider inserted by a transaction of ours, unless it was converted to a host since.
SELECT_INSERTED_PROVIDER = sa.select(_providers.c.id).where(
    _providers.c.uuid == _uuid, _providers.c.facts_stamp.in_(sa.bindparam('stamps', expanding=True))
)
_parent, _top = _providers.alias('parent'), _providers.alias('top')
SELECT_PROVIDER = (
    sa.select(
        *(
            _providers.c[name]
            for name in ('id', 'uuid', 'name', 'kind', 'generation', 'sparse_classes', 'changed_at')
        ),
        *(_providers.c[f'used_{column}'] for column in CORE_CLASS_COLUMNS.values()),
        PLACEMENT_NAME.label('placement_name'),
        _parent.c.uuid.label('parent'),
        _top.c.uuid.label('top'),
    )
    .select_from(
        _providers.outerjoin(_parent, _parent.c.id == _providers.c.parent_id).outerjoin(
            _top, _top.c.id == ROOT_ID
        )
    )
    .where(_providers.c.uuid == _uuid)
)

SELECT_INVENTORIES = (
    sa.select(
        _resource_classes.c.name, *(_inventories.c[name] for name in Inventory.__struct_fields__)
    )
    .join(_resource_classes, _resource_classes.c.id == _inventories.c.class_id)
    .where(_inventories.c.provider_id == sa.bindparam('id'), _inventories.c.total > 0)
    .order_by(_resource_classes.c.name)
)


class _Tree:
    """Position of a provider in its tree, and the rows that a move of it concerns.

    A tree may be broken, by hand or by a partly restored backup.  Then it is changed as far as it
    is stored: a removed parent or root is not locked.

    :ivar row: row of the provider
    :ivar below: its own id, and the ids of its subtree
    """

    def __init__(self, tx: session.Tx, uuid: str) -> None:
        self.row = _place_row(tx, uuid)
        tree_rows = {row.id: row for row in tx.all(SELECT_TREE, root=self.row.root_id)}
        self.below = rules.subtree(
            self.row.id, {pid: tree_row.parent_id for pid, tree_row in tree_rows.items()}
        )
        new_ids = self.below
        while new_ids:  # rows with another root are below it all the same
            child_rows = list(tx.in_parts(SELECT_CHILDREN, ids=sorted(new_ids)))
            tree_rows |= {row.id: row for row in child_rows}
            new_ids = {row.id for row in child_rows} - self.below
            self.below |= new_ids
        self._roots = {row.root_id for pid, row in tree_rows.items() if pid in self.below}

    @property
    def is_host(self) -> bool:
        return bool(self.row.kind == HostKind.HOST)

    def is_descendant_of(self, above: Any) -> bool:
        """Return whether the provider is below this parent already, in all rows of its subtree.

        :param above: the row of its new parent; None: it becomes a root
        """
        kind = HostKind.HOST if self.is_host else rules.kind_of(above)
        return (
            self.row.parent_id == (None if above is None else above.id)
            and self.row.kind == kind.value
            and self._roots == {self.row.id if above is None else above.root_id}
        )

    def rows_to_lock(self, above: Any) -> set[int]:
        """Return the ids of the rows that a move below ``above`` has to lock."""
        return self.below | _named(self.row) | _rows_around(above)


# -- rows ----------------------------------------------------------------------------
def create(
    tx: session.Tx,
    memory: rows.RowCache,
    name: str,
    new_uuid: str,
    parent: str | None,
    inventories: Mapping[str, Inventory],
) -> ResourceProvider:
    """Insert a provider, below another one or as a root of its own, and return it."""
    parent_row = None if parent is None else _parent_of(tx, parent)
    locked = providers.lock(tx, memory, _rows_around(parent_row))
    if parent is not None and parent_row != _parent_of(tx, parent):
        raise RetryTransaction('the parent was moved meanwhile')
    _check_name_free(tx, name, new_uuid)
    with providers.unless_taken():
        tx.run(_providers.insert().values(_values(tx, name, new_uuid, parent_row, inventories)))
    pid = place_of(tx, new_uuid).id
    hosts = HostRecords(tx, memory)
    hosts.write_inventories(pid, HostFacts(inventories=dict(inventories)), {})
    providers.save(tx, locked, locked.counters)
    providers.announce(tx, 'provider', [pid])
    return read_one(tx, new_uuid)


def move(tx: session.Tx, memory: rows.RowCache, uuid: str, parent: str | None) -> None:
    """Move a provider and all below it below another one; None: to a tree of its own."""
    tree = _Tree(tx, uuid)
    parent_row = _target(tx, tree, parent)
    locked_ids = tree.rows_to_lock(parent_row)
    locked = providers.lock(tx, memory, locked_ids)
    tree = _Tree(tx, uuid)
    parent_row = _target(tx, tree, parent)
    if not tree.rows_to_lock(parent_row) <= locked_ids:
        raise RetryTransaction('the tree was changed meanwhile')
    if not tree.is_descendant_of(parent_row):
        top = tree.row.id if parent_row is None else parent_row.root_id
        tx.run(
            _providers.update().where(_providers.c.id.in_(sorted(tree.below))).values(root_id=top)
        )
        place: dict[str, Any] = {'parent_id': None, 'root_id': None}
        if parent_row is not None:
            place = {'parent_id': parent_row.id}
        if not tree.is_host:
            place['kind'] = rules.kind_of(parent).value
        place['changed_at'] = tx.now
        tx.run(_providers.update().where(_providers.c.id == tree.row.id).values(place))
        providers.save(tx, locked, tree.rows_to_lock(parent_row) & locked.counters.keys())


def lock_one(tx: session.Tx, memory: rows.RowCache, uuid: str) -> tuple[LockedProviders, int]:
    """Lock a provider whose inventories requests may set; return the locked rows and its id.

    :raises NotFound:
    :raises ReportedByHost: the provider is a host that reports its inventories
    """
    place = _place_row(tx, uuid)
    locked = providers.lock(tx, memory, [place.id])
    if place.id not in locked.counters or _place_row(tx, uuid).id != place.id:
        raise RetryTransaction('the provider was deleted and made anew meanwhile')
    host = locked.templates.get(place.id)
    if host is not None and host.reports_inventories:
        raise rules.reported_by_host(uuid, host.name)
    return locked, place.id


def delete(tx: session.Tx, memory: rows.RowCache, uuid: str) -> bool:
    """Delete a provider without children and live claims; return True."""
    locked_ids = _named(_row_of_no_host(tx, uuid))
    locked = providers.lock(tx, memory, locked_ids)
    place = _row_of_no_host(tx, uuid)
    if not _named(place) <= locked_ids:
        raise RetryTransaction('the tree was changed meanwhile')
    pid = place.id
    children = tx.connection.execute(COUNT_CHILDREN, {'id': pid}).scalar_one()
    claims = tx.connection.execute(COUNT_LIVE_CLAIMS, {'id': pid}).scalar_one()
    rules.check_unused(uuid, children, claims)
    for table in (models.inventories, models.provider_traits, models.provider_aggregates):
        tx.run(table.delete().where(table.c.provider_id == pid))
    tx.run(_providers.delete().where(_providers.c.id == pid))
    providers.announce(tx, 'provider', [pid])
    providers.save(tx, locked, locked.counters.keys() - {pid})
    return True


# -- inventories ----------------------------------------------------------------------
def write_inventories(
    tx: session.Tx,
    memory: rows.RowCache,
    locked: LockedProviders,
    uuid: str,
    inventories: Mapping[str, Inventory],
) -> None:
    """Replace the inventories of a provider; its counters are still to be saved.

    :raises InUse: a class that would be removed is in use
    """
    pid = _place_row(tx, uuid).id
    counters = locked.counters[pid]
    providers.read_uncounted(tx, locked, [pid])
    used = dict(zip(CORE_CLASSES, counters.used, strict=True))
    used |= {name: usage[1] for name, usage in counters.others.items()}
    rules.check_used(uuid, used, inventories)
    hosts = HostRecords(tx, memory)
    hosts.replace_inventories(locked, pid, HostFacts(inventories=dict(inventories)))
    rows.update_over_full_flag(counters)
    counters.generation += 1
    hosts.refresh_facts(locked, pid)


# -- positions in trees ---------------------------------------------------------------
def is_astray(parent: Any) -> Any:
    """Return a condition: a provider's row contradicts the row of its parent.

    :param parent: alias of ``providers``, outer joined as its parent
    """
    is_root = _providers.c.parent_id.is_(None)
    root = sa.func.coalesce(parent.c.root_id, parent.c.id, _providers.c.id)
    kind = sa.case((is_root, HostKind.POOL.value), else_=HostKind.NESTED.value)
    return sa.or_(
        sa.and_(~is_root, sa.or_(parent.c.id.is_(None), providers.is_host)),
        root != ROOT_ID,
        sa.and_(~providers.is_host, _providers.c.kind != kind),
    )


def place_of(tx: session.Tx, uuid: str) -> Any:
    """Return a provider's id, parent and root; None: the provider does not exist."""
    return tx.first(SELECT_PLACE, uuid=uuid) if is_id(uuid) else None


def _place_row(tx: session.Tx, uuid: str) -> Any:
    """:raises NotFound:"""
    place = place_of(tx, uuid)
    if place is None:
        raise exceptions.NotFound(kind='provider', name=uuid)
    return place


def _row_of_no_host(tx: session.Tx, uuid: str) -> Any:
    """:raises NotFound, ReportedByHost:"""
    place = _place_row(tx, uuid)
    if place.kind == HostKind.HOST:
        raise rules.provider_is_host(uuid, place.name)
    return place


def _parent_of(tx: session.Tx, parent: str) -> Any:
    place = place_of(tx, parent)
    if place is None:
        raise rules.unknown_parent(parent)
    return place


def _target(tx: session.Tx, tree: _Tree, parent: str | None) -> Any:
    """Return the row of the new parent of a move; None: the provider becomes a root.

    :raises InvalidMessage: the parent is not stored, or lies in the subtree
    :raises ReportedByHost: a host stays a root, and is moved only to become one again
    """
    if tree.is_host and (parent is not None or tree.is_descendant_of(None)):
        raise rules.provider_is_host(tree.row.uuid, tree.row.name)
    if parent is None:
        return None
    parent_row = _parent_of(tx, parent)
    rules.check_below(parent, tree.below, parent_row.id)
    return parent_row


def _named(place: Any) -> set[int]:
    """Return the ids of the rows to write in the tree that a provider leaves, and its own."""
    return {place.id, place.root_id, place.parent_id} - {None}


def _rows_around(above: Any) -> set[int]:
    """Return the ids of the rows to write where a provider is added below ``above``."""
    return set() if above is None else {above.id, above.root_id}


# -- creation -------------------------------------------------------------------------
def _check_name_free(tx: session.Tx, name: str, uuid: str) -> None:
    uuid_holder = tx.first(SELECT_NAME_BY_UUID, uuid=uuid)
    if uuid_holder is not None:
        raise rules.uuid_taken(uuid, uuid_holder.placement_name)
    name_holder = tx.first(SELECT_UUID_BY_NAME, name=name)
    if name_holder is not None:
        raise rules.name_taken(name, name_holder.uuid)


def _values(
    tx: session.Tx, name: str, uuid: str, above: Any, inventories: Mapping[str, Inventory]
) -> dict[str, Any]:
    """Return the row of a new provider."""
    caps = {name: inventory.cap for name, inventory in inventories.items()}
    return {
        'uuid': uuid,
        'name': f'{NO_HOST_PREFIX}{uuid}',
        'placement_name': name,
        'kind': rules.kind_of(above).value,
        'parent_id': None if above is None else above.id,
        'root_id': None if above is None else above.root_id,
        'facts_stamp': tx.stamp,
        'changed_at': tx.now,
        'sparse_classes': len(caps.keys() - set(CORE_CLASSES)),
        **{f'cap_{column}': caps.get(name, 0) for name, column in CORE_CLASS_COLUMNS.items()},
    }


# -- reading --------------------------------------------------------------------------
def read_one(tx: session.Tx, uuid: str) -> ResourceProvider:
    """Return a provider that is stored."""
    stored = read(tx, uuid)
    assert stored is not None
    return stored


def read(tx: session.Tx, uuid: str) -> ResourceProvider | None:
    """Return a provider; None: it does not exist."""
    row = tx.first(SELECT_PROVIDER, uuid=uuid)
    if row is None:
        return None
    return ResourceProvider(
        id=row.id,
        uuid=row.uuid,
        name=row.placement_name,
        kind=_kind(row),
        root=row.top,
        parent=row.parent,
        host=row.name if row.kind == HostKind.HOST else None,
        generation=row.generation,
        inventories={
            name: Inventory(*fields) for name, *fields in tx.all(SELECT_INVENTORIES, id=row.id)
        },
        used={**_used(row), **(_used_of_others(tx, row.id) if row.sparse_classes else {})},
        changed_at=row.changed_at,
    )


def _kind(row: Any) -> HostKind:
    if row.kind == HostKind.HOST:
        return HostKind.HOST
    return HostKind.POOL if row.parent is None else HostKind.NESTED


def _used(row: Any) -> dict[str, int]:
    return {
        name: amount
        for name, column in CORE_CLASS_COLUMNS.items()
        if (amount := getattr(row, f'used_{column}'))
    }


def _used_of_others(tx: session.Tx, pid: int) -> dict[str, int]:
    others = tx.all(providers.SELECT_OTHER_CLASSES_BY_ID, ids=[pid])
    return {name: used for _, name, _, used, _ in others if used}
