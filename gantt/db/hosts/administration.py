# SPDX-License-Identifier: Apache-2.0
"""Hosts as operators manage them: disabled, renamed, removed, their keys and their history.

Claims refer to the id of a host and need no change where it is renamed; here are the
rows that refer to its name.  Aggregates are written before the host is locked, as where their
members change.
"""

from collections.abc import Callable, Collection, Sequence

import msgspec
import sqlalchemy as sa

from gantt import exceptions
from gantt.core.claims.host_event import HostEvent
from gantt.core.claims.registration import renamed_host, with_inventories_by
from gantt.core.resources import host_keys
from gantt.core.resources.host import HostChange
from gantt.core.resources.host_keys import HostKey
from gantt.db.database import Database, SqlStore, reading, writing
from gantt.db.engine import session
from gantt.db.hosts import details, host_events, providers, rows
from gantt.db.hosts.hosts import (
    SELECT_FORMER_EPOCH,
    SELECT_HOST_ID,
    SELECT_SIGNING_KEY,
    HostRecords,
)
from gantt.db.schema import models

_providers = models.providers
_aggregates = models.aggregates
_aggregate_members = models.aggregate_members
_former_hosts = models.former_hosts

SELECT_AGGREGATES_OF_HOST = sa.select(_aggregate_members.c.aggregate_id).where(
    _aggregate_members.c.host == sa.bindparam('host')
)


#: ``follow(tx, name, new)``: moves what a capability stores by the name of a host to its new name;
#: None: removes it.
FollowName = Callable[[session.Tx, str, str | None], None]


class SqlHosts(SqlStore):
    """Hosts as operators manage them: ``ports.Hosts`` in SQL."""

    def __init__(self, database: Database, name_hooks: Sequence[FollowName] = ()) -> None:
        super().__init__(database)
        self._name_hooks = name_hooks

    @writing
    def disable_host(self, tx: session.Tx, name: str, reason: str, by: str) -> HostChange:
        return HostRecords(tx, self.database.memory).change_host(
            name, disabled=reason, disabled_by=by
        )

    @writing
    def enable_host(self, tx: session.Tx, name: str, by: str = '') -> HostChange:
        hosts = HostRecords(tx, self.database.memory, by)
        return hosts.change_host(name, disabled=None, disabled_by=None)

    @writing
    def set_inventories_by(
        self, tx: session.Tx, name: str, by: str | None, who: str = ''
    ) -> HostChange:
        hosts = HostRecords(tx, self.database.memory, who)
        locked, counters, template = hosts.lock_one(name)
        row = with_inventories_by(locked.row(counters.id), by)
        hosts.write_facts(
            locked, msgspec.structs.replace(template, inventories_by=row.inventories_by)
        )
        counters.full_sequence = row.full_sequence
        return hosts.save_counters(locked, counters.id)

    @writing
    def revoke_host_key(self, tx: session.Tx, name: str) -> HostChange:
        return HostRecords(tx, self.database.memory).change_key(name, host_keys.revoked_key)

    @writing
    def forget_host_key(self, tx: session.Tx, name: str) -> HostChange:
        return HostRecords(tx, self.database.memory).change_key(name, host_keys.forgotten_key)

    @reading
    def load_host_key(self, tx: session.Tx, name: str) -> HostKey | None:
        key_row = tx.first(SELECT_SIGNING_KEY, name=name)
        return None if key_row is None else rows.readable_key(key_row.signing_key)

    @writing
    def remove_host(self, tx: session.Tx, name: str) -> HostChange:
        return HostRecords(tx, self.database.memory).remove(name)

    @writing
    def rename_host(self, tx: session.Tx, old: str, new: str) -> HostChange:
        hosts = HostRecords(tx, self.database.memory)
        if tx.first(SELECT_HOST_ID, name=new) is not None:
            raise exceptions.Refused(
                f'a host {new!r} is known already; a host can only be renamed to a name that is '
                'free',
                name=new,
            )
        _move_members(hosts, old, new)
        locked, counters, template = hosts.lock_one(old)
        row_before = locked.row(counters.id)
        former = tx.first(SELECT_FORMER_EPOCH, name=new)
        row = renamed_host(row_before, new, former.epoch if former is not None else 0)
        tx.run(_former_hosts.delete().where(_former_hosts.c.name.in_([old, new])))
        tx.run(_former_hosts.insert().values(name=old, epoch=row_before.epoch))
        for follow in self._name_hooks:
            follow(tx, old, new)
        placement_name = sa.case(
            (_providers.c.placement_name != old, _providers.c.placement_name)
        )  # chosen anew if it was the old name
        tx.run(
            _providers.update()
            .where(_providers.c.id == row.id)
            .values(name=new, placement_name=placement_name)
        )
        member_of = details.aggregates_of(tx, [row.id])[row.id]
        row_fields = {
            name: getattr(row, name) for name in ('name', 'node', 'build_topic', 'boot_nonce')
        }
        host_events.rename(tx, old, new)
        line = HostEvent(kind='renamed', message=f'it was called {old} before')
        host_events.write(tx, [(new, line)])
        hosts.write_facts(
            locked, msgspec.structs.replace(template, aggregates=member_of, **row_fields)
        )
        counters.epoch = row.epoch
        counters.generation = row.generation
        counters.sequence = counters.full_sequence = 0
        hosts.assign_names(locked, [row.id])
        return hosts.save_counters(locked, row.id)

    @writing
    def decommission_host(self, tx: session.Tx, name: str) -> HostChange:
        hosts = HostRecords(tx, self.database.memory)
        _move_members(hosts, name, None)
        for follow in self._name_hooks:
            follow(tx, name, None)
        return hosts.remove(name)

    @reading
    def host_history(self, tx: session.Tx, name: str, limit: int) -> list[HostEvent]:
        return host_events.load(tx, name, limit)

    @reading
    def recent_events(
        self, tx: session.Tx, hosts: Collection[str], since: float, limit: int
    ) -> list[tuple[str, HostEvent]]:
        return host_events.recent(tx, hosts, since, limit)


def _move_members(hosts: HostRecords, old: str, new: str | None) -> None:
    """Move a host's memberships in aggregates to its new name; None: remove them."""
    tx = hosts.tx
    of_old = {row.aggregate_id for row in tx.all(SELECT_AGGREGATES_OF_HOST, host=old)}
    if not of_old:
        return
    tx.run(_aggregate_members.delete().where(_aggregate_members.c.host == old))
    if new is not None:
        of_new = {row.aggregate_id for row in tx.all(SELECT_AGGREGATES_OF_HOST, host=new)}
        member_rows = [
            {'aggregate_id': aggregate_id, 'host': new} for aggregate_id in sorted(of_old - of_new)
        ]
        tx.run_many(_aggregate_members.insert(), member_rows)
    tx.run(
        _aggregates.update()
        .where(_aggregates.c.id.in_(sorted(of_old)))
        .values(generation=_aggregates.c.generation + 1)
    )
    providers.announce(tx, 'aggregate', sorted(of_old))
