# SPDX-License-Identifier: Apache-2.0
"""Hosts: registered, disabled, enabled, removed; and their long facts written."""

import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from gantt import exceptions
from gantt.core.claims import host_event, registration
from gantt.core.claims.host_event import HostEvent
from gantt.core.claims.reconcile import Registration, RegistrationOutcome
from gantt.core.messages.base import derived_id
from gantt.core.messages.report import Registered, RegisterHost
from gantt.core.messages.resource_classes import CORE_CLASSES
from gantt.core.resources import host_keys
from gantt.core.resources.host import (
    API,
    HostChange,
    HostFacts,
    HostKind,
    HostRow,
    UnreadableFacts,
)
from gantt.core.resources.host_keys import HostKey
from gantt.db.claims.locks import Aside
from gantt.db.engine import engine, retry, session
from gantt.db.engine.arrays import Update
from gantt.db.engine.retry import Again
from gantt.db.hosts import details, host_events, providers, rows
from gantt.db.hosts.details import ProviderDetails
from gantt.db.schema import models

_p = models.providers
_c = models.claims
_f = models.provider_facts
_i = models.inventories
_t = models.provider_traits
_g = models.provider_aggregates
_h = models.former_hosts

NAMED = sa.select(_p.c.id).where(_p.c.name == sa.bindparam('name'))
FORMER = sa.select(_h.c.epoch).where(_h.c.name == sa.bindparam('name'))
#: Rarely needed: for hosts that come back under an unused former name.
WITH_JOURNAL = (
    sa.select(_p.c.name)
    .join(_f, _f.c.provider_id == _p.c.id)
    .where(_f.c.journal == sa.bindparam('journal'))
    .limit(1)
)
#: A provider of any kind.
WITH_UUID = sa.select(_p.c.id, _p.c.name, _p.c.own_name, _p.c.kind).where(
    _p.c.uuid == sa.bindparam('uuid')
)
WITH_ID = sa.select(_p.c.uuid, _p.c.own_name, _p.c.parent_id).where(_p.c.id == sa.bindparam('id'))
CHILDREN = sa.select(sa.func.count()).where(_p.c.parent_id == sa.bindparam('id'))
KEY = (
    sa.select(_f.c.signing_key)
    .join(_p, _p.c.id == _f.c.provider_id)
    .where(_p.c.name == sa.bindparam('name'))
)
INCARNATION = sa.select(models.meta.c.incarnation)
_facts_columns = [c.name for c in _f.c if c.name != 'provider_id']
WRITE_FACTS = Update(_f, {'b_id': 'provider_id'}, _facts_columns)
#: Most changes in reports are metrics: then nothing else of the row is written.
WRITE_LONG_FACTS = Update(_f, {'b_id': 'provider_id'}, ['facts'])
_names: Any = sa.bindparam('names', expanding=True)
_ids: Any = sa.bindparam('ids', expanding=True)
UNNAMED = sa.select(_p.c.id).where(_p.c.id.in_(_ids), _p.c.own_name.is_(None))
NAMES_TAKEN = sa.select(_p.c.own_name.label('name')).where(_p.c.own_name.in_(_names))
#: Hosts that use the name of their service as long as they have none of their own.
HOSTS_CALLED = sa.select(_p.c.name).where(
    _p.c.name.in_(_names), _p.c.own_name.is_(None), _p.c.id.not_in(_ids)
)
NAME = _p.update().where(_p.c.id == sa.bindparam('b_id')).values(own_name=sa.bindparam('own_name'))
INVENTORIES = sa.select(_i).where(_i.c.provider_id == sa.bindparam('id'))
TRAITS = sa.select(_t.c.trait_id).where(_t.c.provider_id == sa.bindparam('id'))
LIVE_CLAIMS = sa.select(sa.func.count()).where(
    sa.or_(
        sa.and_(models.claims.c.provider_id == sa.bindparam('id'), models.claims.c.live == 1),
        models.claims.c.id.in_(
            sa.select(models.allocations.c.claim_id)
            .join(models.claims, models.claims.c.id == models.allocations.c.claim_id)
            .where(models.allocations.c.provider_id == sa.bindparam('id'))
            .where(models.claims.c.live == 1)
        ),
    )
)


class HostRecords:
    """Operations on hosts, within one transaction.

    :param by: the actor, for the history
    """

    def __init__(self, tx: session.Tx, memory: rows.Memory, by: str = '') -> None:
        self.tx = tx
        self.memory = memory
        self._classes = Ids(tx, models.resource_classes)
        self._traits = Ids(tx, models.traits)
        self._facts: list[dict[str, Any]] = []
        self._long_facts: list[dict[str, Any]] = []
        #: Lines of the history: (name of a host, change).
        self.lines: list[tuple[str, HostEvent]] = []
        self._by = by

    # -- operations -------------------------------------------------------------
    def register(
        self, messages: Sequence[RegisterHost], report_seconds: int, aside: Aside
    ) -> list[RegistrationOutcome]:
        """Assign the next epochs, or refuse; the same nonce again gets the same epoch.

        :param messages: of different hosts
        """
        refused: dict[str, exceptions.GanttError] = {}
        host_ids = providers.ids_by_name(self.tx, [message.name for message in messages])
        # In the order of names: two schedulers that insert the same hosts must not
        # wait for each other.
        for message in sorted(messages, key=operator.attrgetter('name')):
            if message.name not in host_ids:
                try:
                    registration.check_key(None, message)
                    host_ids[message.name] = self._make(message)
                except exceptions.GanttError as e:
                    refused[message.name] = e
        locked = providers.lock(self.tx, self.memory, aside.without(set(host_ids.values())))
        for message in messages:
            if host_ids.get(message.name) in aside.left:
                refused[message.name] = retry.busy(f'host {message.name} is')
            if message.name not in refused:
                try:
                    self._register(locked, host_ids[message.name], message, report_seconds)
                except exceptions.Refused as e:
                    refused[message.name] = e
        self.write_noted()
        ids = [host_ids[message.name] for message in messages if message.name not in refused]
        self.name(locked, ids)
        providers.save(self.tx, locked, ids)
        changed = {
            change.provider_id: change
            for change in providers.changes_of(self.tx, self.memory, locked, ids)
        }
        incarnation = self.tx.first(INCARNATION).incarnation
        return [
            refused.get(message.name)
            or _registration(changed[host_ids[message.name]], incarnation, report_seconds)
            for message in messages
        ]

    def _register(
        self,
        locked: providers.LockedProviders,
        host_id: int,
        message: RegisterHost,
        report_seconds: int,
    ) -> None:
        counters = locked.counters.get(host_id)
        if counters is None:
            raise Again('the host was removed meanwhile')
        if not locked.is_host(host_id):
            self._attach(locked, host_id, message)
        before = locked.row(host_id)
        if before.name != message.name and before.uuid == message.uuid:
            self._check_uuid(before.uuid, message.name)
        if before.name != message.name:
            raise exceptions.invalid(
                'register_host.name',
                f'the database takes it for {before.name!r}; expected another name',
            )
        row = registration.register(
            before, message, provider_id=before.id, now=self.tx.now, report_seconds=report_seconds
        )
        if row.uuid != before.uuid:
            self._check_uuid(row.uuid, row.name)
            self.tx.run(_p.update().where(_p.c.id == row.id).values(uuid=row.uuid))
        if registration.begins_lists_anew(before, row):
            self.tx.run(
                _c.update()
                .where(_c.c.provider_id == row.id, _c.c.live == 1, _c.c.absences != 0)
                .values(absences=0)
            )
        row_known = {name: getattr(row, name) for name in _REGISTERED}
        self.note(locked, msgspec.structs.replace(locked.templates[row.id], **row_known))
        counters.epoch, counters.generation = row.epoch, row.generation
        counters.sequence, counters.full_sequence = row.sequence, row.full_sequence

    def _make(self, message: RegisterHost) -> int:
        """Insert a host that is not known yet, at epoch 0; return its id.

        A provider that is stored already becomes the host once it is locked.
        """
        former = self.tx.first(FORMER, name=message.name)
        last_epoch = former.epoch if former is not None else 0
        if former is not None and message.journal is not None:
            renamed = self.tx.first(WITH_JOURNAL, journal=message.journal)
            if renamed is not None:
                raise exceptions.HostRenamed(name=message.name, new=renamed.name)
        uuid = message.uuid or derived_id('host', message.name, last_epoch)
        stored_provider = self.tx.first(WITH_UUID, uuid=uuid)
        if stored_provider is not None and stored_provider.kind != HostKind.HOST:
            return int(stored_provider.id)
        self._check_uuid(uuid, message.name)
        self.tx.insert_new(
            _p,
            [
                {
                    'uuid': uuid,
                    'name': message.name,
                    'kind': HostKind.HOST.value,
                    'facts_stamp': self.tx.stamp,
                    'epoch': last_epoch,
                }
            ],
            'name',
        )
        row = self.tx.first(NAMED, name=message.name)
        if row is None:
            raise Again('the host was removed meanwhile')
        self._insert_record(row.id, uuid, message.name)
        host_id: int = row.id
        return host_id

    def _insert_record(
        self, provider_id: int, uuid: str, name: str, by: str | None = None
    ) -> HostRow:
        """Insert and return the record of a host that has no facts yet but its rows."""
        host_details = details.read(self.tx, [provider_id])[provider_id]
        blank = HostRow(
            id=provider_id,
            uuid=uuid,
            name=name,
            aggregates=host_details.aggregates,
            facts=HostFacts(inventories=host_details.inventories, traits=host_details.traits),
            inventories_by=by,
        )
        values = {'provider_id': provider_id, **self._facts_values(blank, host_details)}
        self.tx.insert_new(_f, [values], 'provider_id')
        return blank

    def _attach(
        self, locked: providers.LockedProviders, provider_id: int, message: RegisterHost
    ) -> None:
        """Convert a locked provider to the host that registers with its uuid.

        Its id, name, inventories and claims stay, and so does the source of its inventories.
        """
        row = self.tx.first(WITH_ID, id=provider_id)
        if row.parent_id is not None:
            raise exceptions.invalid(
                'register_host.uuid',
                f'{row.uuid} is the uuid of provider {row.own_name!r}, which is below another one; '
                'expected a root',
            )
        former = self.tx.first(FORMER, name=message.name)
        with providers.unless_taken():
            self.tx.run(
                _p.update()
                .where(_p.c.id == provider_id)
                .values(name=message.name, kind=HostKind.HOST.value)
            )
        locked.templates[provider_id] = self._insert_record(
            provider_id, row.uuid, message.name, API
        )
        counters = locked.counters[provider_id]
        counters.facts_stamp = self.tx.stamp
        counters.epoch = former.epoch if former is not None else 0
        providers.announce(self.tx, 'provider', [provider_id])

    def _check_uuid(self, uuid: str, name: str) -> None:
        owner = self.tx.first(WITH_UUID, uuid=uuid)
        # Its own name: another scheduler has inserted it meanwhile, for a copy of this message.
        if owner is not None and owner.name != name:
            raise _uuid_taken(uuid, owner)

    def name(self, locked: providers.LockedProviders, ids: Collection[int]) -> None:
        """Give locked hosts without a name of their own one, the node's if it is free."""
        unnamed = [row.id for row in self.tx.all(UNNAMED, ids=sorted(ids))] if ids else []
        if not unnamed:
            return
        rows_of = {pid: locked.templates[pid] for pid in sorted(unnamed)}
        candidates = {
            pid: [engine.storable(name) for name in (row.node, row.name, row.uuid) if name]
            for pid, row in rows_of.items()
        }
        candidate_names = sorted({name for names in candidates.values() for name in names})
        taken_names = {row.name for row in self.tx.all(NAMES_TAKEN, names=candidate_names)}
        taken_names |= {
            row.name
            for row in self.tx.all(HOSTS_CALLED, names=candidate_names, ids=sorted(unnamed))
        }
        name_rows = []
        for pid, names in candidates.items():
            own_name = next(name for name in names if name not in taken_names or name == names[-1])
            taken_names.add(own_name)
            name_rows.append({'b_id': pid, 'own_name': own_name})
        # Transactions that assign the same names wait for each other in this order.
        name_rows.sort(key=operator.itemgetter('own_name'))
        with providers.unless_taken():
            self.tx.many(NAME, name_rows)

    def change(self, name: str, **row_known: Any) -> HostChange:
        """Change fields of a host's row.  :raises NotFound:"""
        locked, row, template = self.lock_one(name)
        self.write_facts(locked, msgspec.structs.replace(template, **row_known))
        return self.save(locked, row.id)

    def change_key(self, name: str, change: Callable[[HostKey], HostKey | None]) -> HostChange:
        """Change the key of a host.

        :raises NotFound: the host is not known, or has no key
        """
        locked, row, template = self.lock_one(name)
        if template.key is None:
            raise exceptions.NotFound(kind='key of host', name=name)
        self.write_facts(locked, msgspec.structs.replace(template, key=change(template.key)))
        return self.save(locked, row.id)

    def remove(self, name: str) -> HostChange:
        """Remove a host without live claims."""
        locked, row, _ = self.lock_one(name)
        count = self.tx.connection.execute(LIVE_CLAIMS, {'id': row.id}).scalar_one()
        if count:
            raise exceptions.Refused(
                f'host {name!r} has {count} live claims; move or release what runs there first',
                name=name,
                claims=count,
            )
        child_count = self.tx.connection.execute(CHILDREN, {'id': row.id}).scalar_one()
        if child_count:
            raise exceptions.Refused(
                f'host {name!r} has {child_count} providers below it; delete or move them first',
                name=name,
                providers=child_count,
            )
        removed = HostEvent(kind='removed', message='it was forgotten')
        host_events.write(self.tx, [(name, removed)])
        self.tx.run(_h.delete().where(_h.c.name == name))
        self.tx.run(_h.insert().values(name=name, epoch=row.epoch))
        for table in (_f, _i, _t, _g):
            self.tx.run(table.delete().where(table.c.provider_id == row.id))
        self.tx.run(_p.delete().where(_p.c.id == row.id))
        providers.announce(self.tx, 'host', [row.id])
        return HostChange(provider_id=row.id, row=None)

    # -- parts of operations --------------------------------------------------------
    def lock_one(self, name: str) -> tuple[providers.LockedProviders, rows.Counters, HostRow]:
        """Lock and return one host.  :raises NotFound:"""
        host = self.tx.first(NAMED, name=name)
        locked = providers.lock(self.tx, self.memory, [host.id] if host else [])
        if host is None or host.id not in locked.counters:
            raise exceptions.NotFound(kind='host', name=name)
        return locked, locked.counters[host.id], locked.templates[host.id]

    def write_facts(self, locked: providers.LockedProviders, row_known: HostRow) -> None:
        """Write the host's row beyond its counters, where it differs."""
        self.note(locked, row_known)
        self.write_noted()

    def note(self, locked: providers.LockedProviders, row_known: HostRow) -> None:
        """Note such a change, to be written by ``write_noted`` with those of other hosts."""
        known_row = locked.templates[row_known.id]
        if row_known == known_row:
            return
        self.lines += [
            (row_known.name, event) for event in host_event.changes(known_row, row_known, self._by)
        ]
        host_details = self.memory.share(self.memory.details.of_row(row_known))
        if row_known == msgspec.structs.replace(known_row, facts=row_known.facts):
            text = self._facts_text(row_known, host_details)
            self._long_facts.append({'b_id': row_known.id, 'facts': text})
        else:
            self._facts.append(
                {'b_id': row_known.id, **self._facts_values(row_known, host_details)}
            )
        facts = self.memory.details.sharing(details.with_details(row_known.facts, host_details))
        row_known = msgspec.structs.replace(
            row_known, facts=facts, aggregates=host_details.aggregates
        )
        locked.templates[row_known.id] = row_known
        locked.counters[row_known.id].facts_stamp = self.tx.stamp
        self.memory.keep(row_known, self.tx.stamp)

    def follow_rows(self, locked: providers.LockedProviders, provider_id: int) -> None:
        """Update the known facts of a host from its rows, which this transaction has written."""
        if locked.is_host(provider_id):
            host_details = details.read(self.tx, [provider_id])[provider_id]
            template = locked.templates[provider_id]
            facts = details.with_details(template.facts, host_details)
            self.write_facts(
                locked,
                msgspec.structs.replace(template, facts=facts, aggregates=host_details.aggregates),
            )

    def write_noted(self) -> None:
        """Write the noted changes."""
        if self._facts:
            WRITE_FACTS.run(self.tx, self._facts)
        if self._long_facts:
            WRITE_LONG_FACTS.run(self.tx, self._long_facts)
        self._facts, self._long_facts = [], []
        if self.lines:
            host_events.write(self.tx, self.lines)
        self.lines = []

    def _facts_text(self, row: HostRow, has: ProviderDetails) -> str:
        if isinstance(row.facts, UnreadableFacts):
            return details.marked_anew(row.facts.stored['facts'], has)
        return rows.text(details.marked(row.facts, has))

    def _facts_values(self, row: HostRow, has: ProviderDetails) -> dict[str, Any]:
        """Return the columns of ``provider_facts``, without the provider's id."""
        unread = dict(row.facts.stored) if isinstance(row.facts, UnreadableFacts) else {}
        if row.key is not host_keys.UNREADABLE:
            unread.pop('signing_key', None)
        return {
            **{name: getattr(row, name) for name in rows.PLAIN_FACTS},
            'signing_key': None if row.key is None else rows.text(row.key),
            **unread,
            'facts': self._facts_text(row, has),
        }

    def save(self, locked: providers.LockedProviders, provider_id: int) -> HostChange:
        """Write the changed counters of a host; return the host as it is now."""
        providers.save(self.tx, locked, [provider_id])
        return providers.changes_of(self.tx, self.memory, locked, [provider_id])[0]

    # -- changes by a report beyond counters --------------------------------------------
    def write_inventories(
        self, provider_id: int, facts: HostFacts, others: dict[str, list[int]]
    ) -> int:
        """Write the inventories of the facts.

        :param others: class -> [cap, used, foreign] of the classes that are not hot; usage
            without an inventory keeps a row with a total of 0
        :returns: the number of rows of such classes
        """
        names = set(facts.inventories) | set(others)
        ids = self._classes.of(names)
        ids_before = {row.class_id for row in self.tx.all(INVENTORIES, id=provider_id)}
        values = [
            inventory_values(provider_id, ids[name], facts, name, others.get(name))
            for name in sorted(names)
        ]
        removed_ids = ids_before - {value['class_id'] for value in values}
        if removed_ids:
            self.tx.run(
                _i.delete().where(
                    _i.c.provider_id == provider_id, _i.c.class_id.in_(sorted(removed_ids))
                )
            )
        with retry.unless_raced():
            new_rows = [value for value in values if value['class_id'] not in ids_before]
            self.tx.many(_i.insert(), new_rows)
        self.tx.many(
            UPDATE_INVENTORY,
            [
                {
                    'b_provider': provider_id,
                    'b_class': value['class_id'],
                    **{
                        column: column_value
                        for column, column_value in value.items()
                        if column not in ('provider_id', 'class_id')
                    },
                }
                for value in values
                if value['class_id'] in ids_before
            ],
        )
        return sum(name not in CORE_CLASSES for name in names)

    def write_traits(self, provider_id: int, names: list[str]) -> None:
        """Write the traits of the facts."""
        trait_ids = set(self._traits.of(names).values())
        ids_before = {row.trait_id for row in self.tx.all(TRAITS, id=provider_id)}
        removed_ids = sorted(ids_before - trait_ids)
        if removed_ids:
            self.tx.run(
                _t.delete().where(_t.c.provider_id == provider_id, _t.c.trait_id.in_(removed_ids))
            )
        new_rows = [
            {'provider_id': provider_id, 'trait_id': trait_id}
            for trait_id in sorted(trait_ids - ids_before)
        ]
        with retry.unless_raced():
            self.tx.many(_t.insert(), new_rows)


UPDATE_INVENTORY = (
    _i.update()
    .where(_i.c.provider_id == sa.bindparam('b_provider'), _i.c.class_id == sa.bindparam('b_class'))
    .values(
        {c.name: sa.bindparam(c.name) for c in _i.c if c.name not in ('provider_id', 'class_id')}
    )
)


def inventory_values(
    provider_id: int, class_id: int, facts: HostFacts, name: str, other: list[int] | None
) -> dict[str, Any]:
    """Return a row of ``inventories``."""
    inventory = facts.inventories.get(name)
    values: dict[str, Any] = {
        'provider_id': provider_id,
        'class_id': class_id,
        'total': 0,
        'reserved': 0,
        'min_unit': 1,
        'max_unit': None,
        'step_size': 1,
        'allocation_ratio': 1.0,
        'cap': 0,
        'used': other[1] if other else 0,
        'foreign_use': other[2] if other else 0,
    }
    if inventory is not None:
        values.update(details.stored(inventory), cap=inventory.cap)
    return values


def _uuid_taken(uuid: str, taken: Any) -> exceptions.InvalidMessage:
    is_host = taken.kind == HostKind.HOST
    holder = f'host {taken.name!r}' if is_host else f'provider {taken.own_name!r}, which is no host'
    return exceptions.invalid(
        'register_host.uuid', f'{uuid} is the uuid of {holder}; expected one of its own'
    )


def _registration(change: HostChange, incarnation: int, report_seconds: int) -> Registration:
    row = change.row
    assert row is not None
    registered = Registered(
        name=row.name,
        uuid=row.uuid,
        epoch=row.epoch,
        incarnation=incarnation,
        report_seconds=report_seconds,
    )
    return registered, change


#: Fields of a registration beyond counters.
_REGISTERED = (
    *('uuid', 'node', 'cell', 'zone', 'build_topic', 'boot_nonce', 'reporter'),
    *('journal', 'journal_count', 'key'),
)


#: Built once: building a statement takes longer than running it.
IDS = {
    table: sa.select(table.c.name, table.c.id).where(
        table.c.name.in_(sa.bindparam('names', expanding=True))
    )
    for table in (models.resource_classes, models.traits)
}


class Ids:
    """Ids of resource classes, or of traits, for one transaction; inserted when first seen.

    Never kept beyond it: a database that was restored to an older state gives an id to another
    name than before.
    """

    def __init__(self, tx: session.Tx, table: sa.Table) -> None:
        self._tx = tx
        self._table = table
        self._known: dict[str, int] = {}

    def of(self, names: Iterable[str]) -> dict[str, int]:
        """Return the ids of names; new names are inserted."""
        stored_names = {name: engine.storable(name) for name in names}
        missing = sorted({name for name in stored_names.values() if name not in self._known})
        if missing:
            self._find(missing)
            unknown = [name for name in missing if name not in self._known]
            if unknown:
                self._tx.insert_new(self._table, [{'name': name} for name in unknown], 'name')
                self._find(unknown)
        return {name: self._known[cached] for name, cached in stored_names.items()}

    def _find(self, names: list[str]) -> None:
        id_rows = self._tx.all(IDS[self._table], names=names)
        self._known.update((row.name, row.id) for row in id_rows)
