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
from gantt.db.engine.retry import Again
from gantt.db.hosts import providers, rows
from gantt.db.hosts.base import is_id
from gantt.db.hosts.hosts import CHILDREN, LIVE_CLAIMS, HostRecords
from gantt.db.hosts.inventories import inventories_of
from gantt.db.hosts.pools import in_parts
from gantt.db.hosts.providers import LockedProviders
from gantt.db.schema import models
from gantt.db.schema.models import CORE_CLASS_COLUMNS

#: Prefix of the uuid, in place of the name of a host: no host can have such a name.
NO_HOST = '\x7f'

_p = models.providers
_uuid: Any = sa.bindparam('uuid')

#: Null in the row of a root: a root is its own root.
ROOT_ID = sa.func.coalesce(_p.c.root_id, _p.c.id)
#: Name of the service of a host that has not registered since hosts have own names.
OWN_NAME = sa.func.coalesce(_p.c.own_name, _p.c.name)
PLACE = sa.select(
    _p.c.id, _p.c.uuid, _p.c.name, _p.c.kind, _p.c.parent_id, ROOT_ID.label('root_id')
).where(_p.c.uuid == _uuid)
_root: Any = sa.bindparam('root')
_ids: Any = sa.bindparam('ids', expanding=True)
_STANDS = sa.select(_p.c.id, _p.c.parent_id, ROOT_ID.label('root_id'))
TREE = _STANDS.where(sa.or_(_p.c.id == _root, _p.c.root_id == _root))
BELOW = _STANDS.where(_p.c.parent_id.in_(_ids))
_name: Any = sa.bindparam('name')
is_called = sa.or_(_p.c.own_name == _name, sa.and_(_p.c.name == _name, _p.c.own_name.is_(None)))
WITH_NAME = sa.select(_p.c.uuid).where(is_called)
WITH_UUID = sa.select(OWN_NAME.label('own_name')).where(_p.c.uuid == _uuid)
#: Provider inserted by a transaction of ours, unless it was converted to a host since.
MADE_BY = sa.select(_p.c.id).where(
    _p.c.uuid == _uuid, _p.c.facts_stamp.in_(sa.bindparam('stamps', expanding=True))
)
_parent, _top = _p.alias('parent'), _p.alias('top')
ONE = (
    sa.select(
        *(
            _p.c[name]
            for name in ('id', 'uuid', 'name', 'kind', 'generation', 'sparse_classes', 'changed_at')
        ),
        *(_p.c[f'used_{column}'] for column in CORE_CLASS_COLUMNS.values()),
        OWN_NAME.label('own_name'),
        _parent.c.uuid.label('parent'),
        _top.c.uuid.label('top'),
    )
    .select_from(
        _p.outerjoin(_parent, _parent.c.id == _p.c.parent_id).outerjoin(_top, _top.c.id == ROOT_ID)
    )
    .where(_p.c.uuid == _uuid)
)


class _Tree:
    """Position of a provider in its tree, and the rows that a move of it concerns.

    A tree may be broken, by hand or by a partly restored backup.  Then it is changed as far as it
    is stored: a removed parent or root is not locked.

    :ivar row: row of the provider
    :ivar below: its own id, and the ids of its subtree
    """

    def __init__(self, tx: session.Tx, uuid: str) -> None:
        self.row = _there(tx, uuid)
        tree_rows = {row.id: row for row in tx.all(TREE, root=self.row.root_id)}
        self.below = rules.subtree(
            self.row.id, {pid: tree_row.parent_id for pid, tree_row in tree_rows.items()}
        )
        new_ids = self.below
        while new_ids:  # rows with another root are below it all the same
            child_rows = [row for part in in_parts(tx, BELOW, new_ids) for row in part]
            tree_rows |= {row.id: row for row in child_rows}
            new_ids = {row.id for row in child_rows} - self.below
            self.below |= new_ids
        self._roots = {row.root_id for pid, row in tree_rows.items() if pid in self.below}

    @property
    def is_host(self) -> bool:
        return bool(self.row.kind == HostKind.HOST)

    def stands_below(self, above: Any) -> bool:
        """Return whether it is below this parent already, in all rows of its subtree.

        :param above: the row of its new parent; None: it becomes a root
        """
        kind = HostKind.HOST if self.is_host else rules.kind_of(above)
        return (
            self.row.parent_id == (None if above is None else above.id)
            and self.row.kind == kind.value
            and self._roots == {self.row.id if above is None else above.root_id}
        )

    def concerned(self, above: Any) -> set[int]:
        """Return the rows that a move below another provider writes or must exclude writes of."""
        return self.below | _named(self.row) | _around(above)


# -- rows ----------------------------------------------------------------------------
def create(
    tx: session.Tx,
    memory: rows.Memory,
    name: str,
    made: str,
    parent: str | None,
    inventories: Mapping[str, Inventory],
) -> ResourceProvider:
    """Insert a provider, below another one or as a root of its own, and return it."""
    parent_row = None if parent is None else _parent_of(tx, parent)
    locked = providers.lock(tx, memory, _around(parent_row))
    if parent is not None and parent_row != _parent_of(tx, parent):
        raise Again('the parent was moved meanwhile')
    _must_be_free(tx, name, made)
    with providers.unless_taken():
        tx.run(_p.insert().values(_values(tx, name, made, parent_row, inventories)))
    pid = place_of(tx, made).id
    hosts = HostRecords(tx, memory)
    hosts.write_inventories(pid, HostFacts(inventories=dict(inventories)), {})
    providers.save(tx, locked, locked.counters)
    providers.announce(tx, 'provider', [pid])
    return read_one(tx, made)


def move(tx: session.Tx, memory: rows.Memory, uuid: str, parent: str | None) -> None:
    """Move a provider and all below it below another one; None: to a tree of its own."""
    tree = _Tree(tx, uuid)
    parent_row = _target(tx, tree, parent)
    locked_ids = tree.concerned(parent_row)
    locked = providers.lock(tx, memory, locked_ids)
    tree = _Tree(tx, uuid)
    parent_row = _target(tx, tree, parent)
    if not tree.concerned(parent_row) <= locked_ids:
        raise Again('the tree was changed meanwhile')
    if not tree.stands_below(parent_row):
        top = tree.row.id if parent_row is None else parent_row.root_id
        tx.run(_p.update().where(_p.c.id.in_(sorted(tree.below))).values(root_id=top))
        place: dict[str, Any] = {'parent_id': None, 'root_id': None}
        if parent_row is not None:
            place = {'parent_id': parent_row.id}
        if not tree.is_host:
            place['kind'] = rules.kind_of(parent).value
        place['changed_at'] = tx.now
        tx.run(_p.update().where(_p.c.id == tree.row.id).values(place))
        providers.save(tx, locked, tree.concerned(parent_row) & locked.counters.keys())


def lock_one(tx: session.Tx, memory: rows.Memory, uuid: str) -> tuple[LockedProviders, int]:
    """Lock a provider whose inventories requests may set; return the locked rows and its id.

    :raises NotFound:
    :raises ReportedByHost: it is a host that reports its inventories
    """
    place = _there(tx, uuid)
    locked = providers.lock(tx, memory, [place.id])
    if place.id not in locked.counters or _there(tx, uuid).id != place.id:
        raise Again('the provider was deleted and made anew meanwhile')
    host = locked.templates.get(place.id)
    if host is not None and host.reports_inventories:
        raise rules.reports_it_itself(uuid, host.name)
    return locked, place.id


def delete(tx: session.Tx, memory: rows.Memory, uuid: str) -> bool:
    """Delete a provider without children and live claims; return True."""
    locked_ids = _named(_no_host(tx, uuid))
    locked = providers.lock(tx, memory, locked_ids)
    place = _no_host(tx, uuid)
    if not _named(place) <= locked_ids:
        raise Again('the tree was changed meanwhile')
    pid = place.id
    children = tx.connection.execute(CHILDREN, {'id': pid}).scalar_one()
    claims = tx.connection.execute(LIVE_CLAIMS, {'id': pid}).scalar_one()
    rules.check_unused(uuid, children, claims)
    for table in (models.inventories, models.provider_traits, models.provider_aggregates):
        tx.run(table.delete().where(table.c.provider_id == pid))
    tx.run(_p.delete().where(_p.c.id == pid))
    providers.announce(tx, 'provider', [pid])
    providers.save(tx, locked, locked.counters.keys() - {pid})
    return True


# -- inventories ----------------------------------------------------------------------
def write_inventories(
    tx: session.Tx,
    memory: rows.Memory,
    locked: LockedProviders,
    uuid: str,
    inventories: Mapping[str, Inventory],
) -> None:
    """Replace the inventories of a provider; its counters are still to be saved.

    :raises InUse: a class that would be removed is in use
    """
    pid = _there(tx, uuid).id
    counters = locked.counters[pid]
    providers.read_uncounted(tx, locked, [pid])
    others = {name: usage for name, usage in counters.others.items() if usage[1] or usage[2]}
    used = dict(zip(CORE_CLASSES, counters.used, strict=True))
    used |= {name: usage[1] for name, usage in others.items()}
    rules.check_used(uuid, used, inventories)
    caps = {name: inventory.cap for name, inventory in inventories.items()}
    hosts = HostRecords(tx, memory)
    facts = HostFacts(inventories=dict(inventories))
    counters.sparse_classes = hosts.write_inventories(pid, facts, others)
    counters.cap = [caps.get(name, 0) for name in CORE_CLASSES]
    counters.others = {
        name: [cap, *(others[name][1:] if name in others else (0, 0))]
        for name, cap in caps.items()
        if name not in CORE_CLASSES
    }
    locked.forget_others(pid)
    rows.flag(counters)
    counters.generation += 1
    hosts.follow_rows(locked, pid)


# -- positions in trees ---------------------------------------------------------------
def is_astray(parent: Any) -> Any:
    """Return a condition: a provider's row contradicts the row of its parent.

    :param parent: alias of ``providers``, outer joined as its parent
    """
    is_root = _p.c.parent_id.is_(None)
    root = sa.func.coalesce(parent.c.root_id, parent.c.id, _p.c.id)
    kind = sa.case((is_root, HostKind.POOL.value), else_=HostKind.NESTED.value)
    return sa.or_(
        sa.and_(~is_root, sa.or_(parent.c.id.is_(None), providers.is_host)),
        root != ROOT_ID,
        sa.and_(~providers.is_host, _p.c.kind != kind),
    )


def place_of(tx: session.Tx, uuid: str) -> Any:
    """Return the place of a provider in its tree; None: it does not exist."""
    return tx.first(PLACE, uuid=uuid) if is_id(uuid) else None


def _there(tx: session.Tx, uuid: str) -> Any:
    """:raises NotFound:"""
    place = place_of(tx, uuid)
    if place is None:
        raise exceptions.NotFound(kind='provider', name=uuid)
    return place


def _no_host(tx: session.Tx, uuid: str) -> Any:
    """:raises NotFound, ReportedByHost:"""
    place = _there(tx, uuid)
    if place.kind == HostKind.HOST:
        raise rules.is_a_host(uuid, place.name)
    return place


def _parent_of(tx: session.Tx, parent: str) -> Any:
    place = place_of(tx, parent)
    if place is None:
        raise rules.unknown_parent(parent)
    return place


def _target(tx: session.Tx, tree: _Tree, parent: str | None) -> Any:
    """Return the row of the new parent of a move; None: the provider becomes a root.

    :raises InvalidMessage: it is not stored, or in the subtree
    :raises ReportedByHost: a host stays a root, and is moved only to become one again
    """
    if tree.is_host and (parent is not None or tree.stands_below(None)):
        raise rules.is_a_host(tree.row.uuid, tree.row.name)
    if parent is None:
        return None
    parent_row = _parent_of(tx, parent)
    rules.check_below(parent, tree.below, parent_row.id)
    return parent_row


def _named(place: Any) -> set[int]:
    """Return the rows written in the tree that a provider leaves: root, parent and itself."""
    return {place.id, place.root_id, place.parent_id} - {None}


def _around(above: Any) -> set[int]:
    """Return the rows written in the tree where a provider is added below this one."""
    return set() if above is None else {above.id, above.root_id}


# -- creation -------------------------------------------------------------------------
def _must_be_free(tx: session.Tx, name: str, uuid: str) -> None:
    uuid_holder = tx.first(WITH_UUID, uuid=uuid)
    if uuid_holder is not None:
        raise rules.uuid_taken(uuid, uuid_holder.own_name)
    name_holder = tx.first(WITH_NAME, name=name)
    if name_holder is not None:
        raise rules.name_taken(name, name_holder.uuid)


def _values(
    tx: session.Tx, name: str, uuid: str, above: Any, inventories: Mapping[str, Inventory]
) -> dict[str, Any]:
    """Return the row of a new provider."""
    caps = {name: inventory.cap for name, inventory in inventories.items()}
    return {
        'uuid': uuid,
        'name': f'{NO_HOST}{uuid}',
        'own_name': name,
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
    row = tx.first(ONE, uuid=uuid)
    if row is None:
        return None
    return ResourceProvider(
        id=row.id,
        uuid=row.uuid,
        name=row.own_name,
        kind=_kind(row),
        root=row.top,
        parent=row.parent,
        host=row.name if row.kind == HostKind.HOST else None,
        generation=row.generation,
        inventories=inventories_of(tx, [row.id])[row.id],
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
    others = tx.all(providers.OTHERS_OF, ids=[pid])
    return {name: used for _, name, _, used, _ in others if used}
