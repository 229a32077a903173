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
    INVENTORIES_BY_API,
    HostChange,
    HostFacts,
    HostKind,
    HostRow,
    UnreadableFacts,
)
from gantt.core.resources.host_keys import HostKey
from gantt.db.claims.locks import SkippedProviders
from gantt.db.engine import engine, retry, session
from gantt.db.engine.arrays import BulkUpdate
from gantt.db.engine.retry import RetryTransaction
from gantt.db.hosts import details, host_events, providers, rows
from gantt.db.hosts.details import ProviderDetails
from gantt.db.schema import models

_providers = models.providers
_claims = models.claims
_provider_facts = models.provider_facts
_inventories = models.inventories
_provider_traits = models.provider_traits
_provider_aggregates = models.provider_aggregates
_former_hosts = models.former_hosts

SELECT_HOST_ID = sa.select(_providers.c.id).where(_providers.c.name == sa.bindparam('name'))
SELECT_FORMER_EPOCH = sa.select(_former_hosts.c.epoch).where(
    _former_hosts.c.name == sa.bindparam('name')
)
#: Rarely needed: for hosts that come back under an unused former name.
SELECT_HOST_BY_JOURNAL = (
    sa.select(_providers.c.name)
    .join(_provider_facts, _provider_facts.c.provider_id == _providers.c.id)
    .where(_provider_facts.c.journal == sa.bindparam('journal'))
    .limit(1)
)
#: A provider of any kind.
SELECT_PROVIDER_BY_UUID = sa.select(
    _providers.c.id, _providers.c.name, _providers.c.placement_name, _providers.c.kind
).where(_providers.c.uuid == sa.bindparam('uuid'))
SELECT_PROVIDER_BY_ID = sa.select(
    _providers.c.uuid, _providers.c.placement_name, _providers.c.parent_id
).where(_providers.c.id == sa.bindparam('id'))
COUNT_CHILDREN = sa.select(sa.func.count()).where(_providers.c.parent_id == sa.bindparam('id'))
SELECT_SIGNING_KEY = (
    sa.select(_provider_facts.c.signing_key)
    .join(_providers, _providers.c.id == _provider_facts.c.provider_id)
    .where(_providers.c.name == sa.bindparam('name'))
)
SELECT_INCARNATION = sa.select(models.meta.c.incarnation)
_facts_columns = [c.name for c in _provider_facts.c if c.name != 'provider_id']
UPDATE_FACTS = BulkUpdate(_provider_facts, {'b_id': 'provider_id'}, _facts_columns)
#: Most changes in reports are metrics: then nothing else of the row is written.
UPDATE_FACTS_TEXT = BulkUpdate(_provider_facts, {'b_id': 'provider_id'}, ['facts'])
_names: Any = sa.bindparam('names', expanding=True)
_ids: Any = sa.bindparam('ids', expanding=True)
SELECT_UNNAMED_PROVIDERS = sa.select(_providers.c.id).where(
    _providers.c.id.in_(_ids), _providers.c.placement_name.is_(None)
)
SELECT_TAKEN_NAMES = sa.select(_providers.c.placement_name.label('name')).where(
    _providers.c.placement_name.in_(_names)
)
#: Hosts that use the name of their service as long as they have none of their own.
SELECT_HOSTS_BY_NAME = sa.select(_providers.c.name).where(
    _providers.c.name.in_(_names),
    _providers.c.placement_name.is_(None),
    _providers.c.id.not_in(_ids),
)
UPDATE_PLACEMENT_NAME = (
    _providers.update()
    .where(_providers.c.id == sa.bindparam('b_id'))
    .values(session.bound('placement_name'))
)
SELECT_INVENTORIES = sa.select(_inventories).where(_inventories.c.provider_id == sa.bindparam('id'))
SELECT_TRAIT_IDS = sa.select(_provider_traits.c.trait_id).where(
    _provider_traits.c.provider_id == sa.bindparam('id')
)
COUNT_LIVE_CLAIMS = sa.select(sa.func.count()).where(
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

    def __init__(self, tx: session.Tx, memory: rows.RowCache, by: str = '') -> None:
        self.tx = tx
        self.memory = memory
        self._classes = NameIds(tx, models.resource_classes)
        self._traits = NameIds(tx, models.traits)
        self._facts_rows: list[dict[str, Any]] = []
        self._facts_text_rows: list[dict[str, Any]] = []
        #: Lines of the history: (name of a host, change).
        self.event_lines: list[tuple[str, HostEvent]] = []
        self._actor = by

    # -- operations -------------------------------------------------------------
    def register(
        self, messages: Sequence[RegisterHost], report_seconds: int, skipped: SkippedProviders
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
                    host_ids[message.name] = self._insert_host(message)
                except exceptions.GanttError as e:
                    refused[message.name] = e
        locked = providers.lock(self.tx, self.memory, skipped.remaining(set(host_ids.values())))
        for message in messages:
            if host_ids.get(message.name) in skipped.ids:
                refused[message.name] = retry.busy(f'host {message.name} is')
            if message.name not in refused:
                try:
                    self._register(locked, host_ids[message.name], message, report_seconds)
                except exceptions.Refused as e:
                    refused[message.name] = e
        self.write_collected_facts()
        ids = [host_ids[message.name] for message in messages if message.name not in refused]
        self.assign_names(locked, ids)
        providers.save(self.tx, locked, ids)
        changed = {
            change.provider_id: change
            for change in providers.changes_of(self.tx, self.memory, locked, ids)
        }
        incarnation = self.tx.first(SELECT_INCARNATION).incarnation
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
            raise RetryTransaction('the host was removed meanwhile')
        if not locked.is_host(host_id):
            self._convert_to_host(locked, host_id, message)
        before = locked.row(host_id)
        if before.name != message.name and before.uuid == message.uuid:
            self._check_uuid(before.uuid, message.name)
        if before.name != message.name:
            raise exceptions.invalid(
                'register_host.name',
                f'expected another name: to the database this one equals {before.name!r}',
            )
        row = registration.register(
            before, message, provider_id=before.id, now=self.tx.now, report_seconds=report_seconds
        )
        if row.uuid != before.uuid:
            self._check_uuid(row.uuid, row.name)
            self.tx.run(_providers.update().where(_providers.c.id == row.id).values(uuid=row.uuid))
        if registration.restarts_guest_lists(before, row):
            self.tx.run(
                _claims.update()
                .where(
                    _claims.c.provider_id == row.id, _claims.c.live == 1, _claims.c.absences != 0
                )
                .values(absences=0)
            )
        row_known = {name: getattr(row, name) for name in _REGISTRATION_FIELDS}
        self.collect_facts(locked, msgspec.structs.replace(locked.templates[row.id], **row_known))
        counters.epoch = row.epoch
        counters.generation = row.generation
        counters.sequence = row.sequence
        counters.full_sequence = row.full_sequence

    def _insert_host(self, message: RegisterHost) -> int:
        """Insert a host that is not known yet, at epoch 0; return its id.

        A provider that is stored already becomes the host once it is locked.
        """
        former = self.tx.first(SELECT_FORMER_EPOCH, name=message.name)
        last_epoch = former.epoch if former is not None else 0
        if former is not None and message.journal is not None:
            renamed = self.tx.first(SELECT_HOST_BY_JOURNAL, journal=message.journal)
            if renamed is not None:
                raise exceptions.HostRenamed(name=message.name, new=renamed.name)
        uuid = message.uuid or derived_id('host', message.name, last_epoch)
        stored_provider = self.tx.first(SELECT_PROVIDER_BY_UUID, uuid=uuid)
        if stored_provider is not None and stored_provider.kind != HostKind.HOST:
            return int(stored_provider.id)
        self._check_uuid(uuid, message.name)
        self.tx.insert_new(
            _providers,
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
        row = self.tx.first(SELECT_HOST_ID, name=message.name)
        if row is None:
            raise RetryTransaction('the host was removed meanwhile')
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
        self.tx.insert_new(_provider_facts, [values], 'provider_id')
        return blank

    def _convert_to_host(
        self, locked: providers.LockedProviders, provider_id: int, message: RegisterHost
    ) -> None:
        """Convert a locked provider to the host that registers with its uuid.

        Its id, name, inventories and claims stay, and so does the source of its inventories.
        """
        row = self.tx.first(SELECT_PROVIDER_BY_ID, id=provider_id)
        if row.parent_id is not None:
            raise exceptions.invalid(
                'register_host.uuid',
                f'{row.uuid} is the uuid of provider {row.placement_name!r}, which is not a root; '
                'expected a root',
            )
        former = self.tx.first(SELECT_FORMER_EPOCH, name=message.name)
        with providers.unless_taken():
            self.tx.run(
                _providers.update()
                .where(_providers.c.id == provider_id)
                .values(name=message.name, kind=HostKind.HOST.value)
            )
        locked.templates[provider_id] = self._insert_record(
            provider_id, row.uuid, message.name, INVENTORIES_BY_API
        )
        counters = locked.counters[provider_id]
        counters.facts_stamp = self.tx.stamp
        counters.epoch = former.epoch if former is not None else 0
        providers.announce(self.tx, 'provider', [provider_id])

    def _check_uuid(self, uuid: str, name: str) -> None:
        owner = self.tx.first(SELECT_PROVIDER_BY_UUID, uuid=uuid)
        # Its own name: another scheduler has inserted it meanwhile, for a copy of this message.
        if owner is not None and owner.name != name:
            raise _uuid_taken(uuid, owner)

    def assign_names(self, locked: providers.LockedProviders, ids: Collection[int]) -> None:
        """Name the locked hosts that have no name yet: after their node if that name is free."""
        unnamed = (
            [row.id for row in self.tx.all(SELECT_UNNAMED_PROVIDERS, ids=sorted(ids))]
            if ids
            else []
        )
        if not unnamed:
            return
        rows_of = {pid: locked.templates[pid] for pid in sorted(unnamed)}
        candidates = {
            pid: [engine.storable(name) for name in (row.node, row.name, row.uuid) if name]
            for pid, row in rows_of.items()
        }
        candidate_names = sorted({name for names in candidates.values() for name in names})
        taken_names = {row.name for row in self.tx.all(SELECT_TAKEN_NAMES, names=candidate_names)}
        taken_names |= {
            row.name
            for row in self.tx.all(SELECT_HOSTS_BY_NAME, names=candidate_names, ids=sorted(unnamed))
        }
        name_rows = []
        for pid, names in candidates.items():
            placement_name = next(
                name for name in names if name not in taken_names or name == names[-1]
            )
            taken_names.add(placement_name)
            name_rows.append({'b_id': pid, 'placement_name': placement_name})
        # Transactions that assign the same names wait for each other in this order.
        name_rows.sort(key=operator.itemgetter('placement_name'))
        with providers.unless_taken():
            self.tx.run_many(UPDATE_PLACEMENT_NAME, name_rows)

    def change_host(self, name: str, **row_known: Any) -> HostChange:
        """Change fields of a host's row.  :raises NotFound:"""
        locked, row, template = self.lock_one(name)
        self.write_facts(locked, msgspec.structs.replace(template, **row_known))
        return self.save_counters(locked, row.id)

    def change_key(self, name: str, change: Callable[[HostKey], HostKey | None]) -> HostChange:
        """Change the key of a host.

        :raises NotFound: the host is not known, or has no key
        """
        locked, row, template = self.lock_one(name)
        if template.key is None:
            raise exceptions.NotFound(kind='key of host', name=name)
        self.write_facts(locked, msgspec.structs.replace(template, key=change(template.key)))
        return self.save_counters(locked, row.id)

    def remove(self, name: str) -> HostChange:
        """Remove a host without live claims."""
        locked, row, _ = self.lock_one(name)
        count = self.tx.connection.execute(COUNT_LIVE_CLAIMS, {'id': row.id}).scalar_one()
        if count:
            raise exceptions.Refused(
                f'host {name!r} has {count} live claims; move or release what runs there first',
                name=name,
                claims=count,
            )
        child_count = self.tx.connection.execute(COUNT_CHILDREN, {'id': row.id}).scalar_one()
        if child_count:
            raise exceptions.Refused(
                f'host {name!r} has {child_count} providers below it; delete or move them first',
                name=name,
                providers=child_count,
            )
        removed = HostEvent(kind='removed', message='it was forgotten')
        host_events.write(self.tx, [(name, removed)])
        self.tx.run(_former_hosts.delete().where(_former_hosts.c.name == name))
        self.tx.run(_former_hosts.insert().values(name=name, epoch=row.epoch))
        for table in (_provider_facts, _inventories, _provider_traits, _provider_aggregates):
            self.tx.run(table.delete().where(table.c.provider_id == row.id))
        self.tx.run(_providers.delete().where(_providers.c.id == row.id))
        providers.announce(self.tx, 'host', [row.id])
        return HostChange(provider_id=row.id, row=None)

    # -- parts of operations --------------------------------------------------------
    def lock_one(self, name: str) -> tuple[providers.LockedProviders, rows.Counters, HostRow]:
        """Lock and return one host.  :raises NotFound:"""
        host = self.tx.first(SELECT_HOST_ID, name=name)
        locked = providers.lock(self.tx, self.memory, [host.id] if host else [])
        if host is None or host.id not in locked.counters:
            raise exceptions.NotFound(kind='host', name=name)
        return locked, locked.counters[host.id], locked.templates[host.id]

    def write_facts(self, locked: providers.LockedProviders, row_known: HostRow) -> None:
        """Write the host's row beyond its counters, where it differs."""
        self.collect_facts(locked, row_known)
        self.write_collected_facts()

    def collect_facts(self, locked: providers.LockedProviders, row_known: HostRow) -> None:
        """Collect a change of a host's row, for ``write_collected_facts``."""
        known_row = locked.templates[row_known.id]
        if row_known == known_row:
            return
        self.event_lines += [
            (row_known.name, event)
            for event in host_event.host_events(known_row, row_known, self._actor)
        ]
        host_details = self.memory.share_details(self.memory.details.of_row(row_known))
        if row_known == msgspec.structs.replace(known_row, facts=row_known.facts):
            text = self._facts_text(row_known, host_details)
            self._facts_text_rows.append({'b_id': row_known.id, 'facts': text})
        else:
            self._facts_rows.append(
                {'b_id': row_known.id, **self._facts_values(row_known, host_details)}
            )
        facts = self.memory.details.sharing(details.with_details(row_known.facts, host_details))
        row_known = msgspec.structs.replace(
            row_known, facts=facts, aggregates=host_details.aggregates
        )
        locked.templates[row_known.id] = row_known
        locked.counters[row_known.id].facts_stamp = self.tx.stamp
        self.memory.remember_template(row_known, self.tx.stamp)

    def refresh_facts(self, locked: providers.LockedProviders, provider_id: int) -> None:
        """Update the known facts of a host from its rows, which this transaction has written."""
        if locked.is_host(provider_id):
            host_details = details.read(self.tx, [provider_id])[provider_id]
            template = locked.templates[provider_id]
            facts = details.with_details(template.facts, host_details)
            self.write_facts(
                locked,
                msgspec.structs.replace(template, facts=facts, aggregates=host_details.aggregates),
            )

    def write_collected_facts(self) -> None:
        """Write the changes that ``collect_facts`` has collected."""
        if self._facts_rows:
            UPDATE_FACTS.run(self.tx, self._facts_rows)
        if self._facts_text_rows:
            UPDATE_FACTS_TEXT.run(self.tx, self._facts_text_rows)
        self._facts_rows = []
        self._facts_text_rows = []
        if self.event_lines:
            host_events.write(self.tx, self.event_lines)
        self.event_lines = []

    def _facts_text(self, row: HostRow, has: ProviderDetails) -> str:
        if isinstance(row.facts, UnreadableFacts):
            return details.replace_details_mark(row.facts.stored['facts'], has)
        return rows.json_text(details.with_details_mark(row.facts, has))

    def _facts_values(self, row: HostRow, has: ProviderDetails) -> dict[str, Any]:
        """Return the columns of ``provider_facts``, without the provider's id."""
        unread = dict(row.facts.stored) if isinstance(row.facts, UnreadableFacts) else {}
        if row.key is not host_keys.UNREADABLE_KEY:
            unread.pop('signing_key', None)
        return {
            **{name: getattr(row, name) for name in rows.PLAIN_FACTS_COLUMNS},
            'signing_key': None if row.key is None else rows.json_text(row.key),
            **unread,
            'facts': self._facts_text(row, has),
        }

    def save_counters(self, locked: providers.LockedProviders, provider_id: int) -> HostChange:
        """Write the changed counters of a host; return the host as it is now."""
        providers.save(self.tx, locked, [provider_id])
        return providers.changes_of(self.tx, self.memory, locked, [provider_id])[0]

    # -- changes by a report beyond counters --------------------------------------------
    def replace_inventories(
        self, locked: providers.LockedProviders, provider_id: int, facts: HostFacts
    ) -> None:
        """Replace the inventories of a locked provider by those of the facts; its usage stays.

        Of non-core classes it is the usage in its counters, which has to be complete.
        """
        counters = locked.counters[provider_id]
        caps = {name: inventory.cap for name, inventory in facts.inventories.items()}
        counters.cap = [caps.get(name, 0) for name in CORE_CLASSES]
        in_use = {
            name: [caps.get(name, 0), used, foreign]
            for name, (_, used, foreign) in counters.others.items()
            if used or foreign
        }
        unused = {name: [cap, 0, 0] for name, cap in caps.items() if name not in CORE_CLASSES}
        counters.others = unused | in_use
        counters.sparse_classes = self.write_inventories(provider_id, facts, counters.others)
        locked.forget_others(provider_id)

    def write_inventories(
        self, provider_id: int, facts: HostFacts, others: dict[str, list[int]]
    ) -> int:
        """Write the inventories of the facts.

        :param others: class -> [cap, used, foreign] of non-core classes; usage
            without an inventory keeps a row with a total of 0
        :returns: the number of rows of such classes
        """
        names = set(facts.inventories) | set(others)
        ids = self._classes.ids_of(names)
        ids_before = {row.class_id for row in self.tx.all(SELECT_INVENTORIES, id=provider_id)}
        values = [
            inventory_values(provider_id, ids[name], facts, name, others.get(name))
            for name in sorted(names)
        ]
        removed_ids = ids_before - {value['class_id'] for value in values}
        if removed_ids:
            self.tx.run(
                _inventories.delete().where(
                    _inventories.c.provider_id == provider_id,
                    _inventories.c.class_id.in_(sorted(removed_ids)),
                )
            )
        with retry.unless_raced():
            new_rows = [value for value in values if value['class_id'] not in ids_before]
            self.tx.run_many(_inventories.insert(), new_rows)
        self.tx.run_many(
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
        trait_ids = set(self._traits.ids_of(names).values())
        ids_before = {row.trait_id for row in self.tx.all(SELECT_TRAIT_IDS, id=provider_id)}
        removed_ids = sorted(ids_before - trait_ids)
        if removed_ids:
            self.tx.run(
                _provider_traits.delete().where(
                    _provider_traits.c.provider_id == provider_id,
                    _provider_traits.c.trait_id.in_(removed_ids),
                )
            )
        new_rows = [
            {'provider_id': provider_id, 'trait_id': trait_id}
            for trait_id in sorted(trait_ids - ids_before)
        ]
        with retry.unless_raced():
            self.tx.run_many(_provider_traits.insert(), new_rows)


UPDATE_INVENTORY = (
    _inventories.update()
    .where(
        _inventories.c.provider_id == sa.bindparam('b_provider'),
        _inventories.c.class_id == sa.bindparam('b_class'),
    )
    .values(
        session.bound(
            *(c.name for c in _inventories.c if c.name not in ('provider_id', 'class_id'))
        )
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
        values.update(details.stored_inventory(inventory), cap=inventory.cap)
    return values


def _uuid_taken(uuid: str, taken: Any) -> exceptions.InvalidMessage:
    is_host = taken.kind == HostKind.HOST
    holder = (
        f'host {taken.name!r}'
        if is_host
        else f'provider {taken.placement_name!r}, which is no host'
    )
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
_REGISTRATION_FIELDS = (
    *('uuid', 'node', 'cell', 'zone', 'build_topic', 'boot_nonce', 'reporter'),
    *('journal', 'journal_count', 'key'),
)


#: Built once: building a statement takes longer than running it.
SELECT_IDS = {
    table: sa.select(table.c.name, table.c.id).where(
        table.c.name.in_(sa.bindparam('names', expanding=True))
    )
    for table in (models.resource_classes, models.traits)
}


class NameIds:
    """Ids of resource classes, or of traits, for one transaction; inserted when first seen.

    Never kept beyond it: a database that was restored to an older state gives an id to another
    name than before.
    """

    def __init__(self, tx: session.Tx, table: sa.Table) -> None:
        self._tx = tx
        self._table = table
        self._known: dict[str, int] = {}

    def ids_of(self, names: Iterable[str]) -> dict[str, int]:
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
        id_rows = self._tx.all(SELECT_IDS[self._table], names=names)
        self._known.update((row.name, row.id) for row in id_rows)
