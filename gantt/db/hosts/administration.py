# SPDX-License-Identifier: Apache-2.0
"""Hosts as operators manage them: disabled, renamed, removed, their keys and their history.

Claims refer to the id of a host and follow by themselves where it gets another name; here are the
rows that refer to its name.  Aggregates are written before the host is locked, as where their
members change.
"""

from collections.abc import Collection

import msgspec
import sqlalchemy as sa

from gantt import exceptions
from gantt.core.claims.host_event import HostEvent
from gantt.core.claims.registration import renamed, with_inventories_by
from gantt.core.resources import host_keys
from gantt.core.resources.host import HostChange
from gantt.core.resources.host_keys import HostKey
from gantt.db.database import Database, reading, writing
from gantt.db.engine import session
from gantt.db.hosts import details, host_events, providers, rows
from gantt.db.hosts.hosts import FORMER, KEY, NAMED, HostRecords
from gantt.db.hosts.nova_hosts import key_of_host
from gantt.db.schema import models

_p = models.providers
_a = models.aggregates
_m = models.aggregate_members
_h = models.former_hosts
_n = models.nova_events_seen

AGGREGATES_OF = sa.select(_m.c.aggregate_id).where(_m.c.host == sa.bindparam('host'))


class SqlHosts:
    """Hosts as operators manage them: ``ports.Hosts`` in SQL."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @writing
    def disable_host(self, tx: session.Tx, name: str, reason: str, by: str) -> HostChange:
        return HostRecords(tx, self.database.memory).change(name, disabled=reason, disabled_by=by)

    @writing
    def enable_host(self, tx: session.Tx, name: str, by: str = '') -> HostChange:
        hosts = HostRecords(tx, self.database.memory, by)
        return hosts.change(name, disabled=None, disabled_by=None)

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
        return hosts.save(locked, counters.id)

    @writing
    def revoke_host_key(self, tx: session.Tx, name: str) -> HostChange:
        return HostRecords(tx, self.database.memory).change_key(name, host_keys.revoked)

    @writing
    def forget_host_key(self, tx: session.Tx, name: str) -> HostChange:
        return HostRecords(tx, self.database.memory).change_key(name, host_keys.forgotten)

    @reading
    def load_host_key(self, tx: session.Tx, name: str) -> HostKey | None:
        key_row = tx.first(KEY, name=name)
        return None if key_row is None else rows.known_key(key_row.signing_key)

    @writing
    def remove_host(self, tx: session.Tx, name: str) -> HostChange:
        return HostRecords(tx, self.database.memory).remove(name)

    @writing
    def rename_host(self, tx: session.Tx, old: str, new: str) -> HostChange:
        hosts = HostRecords(tx, self.database.memory)
        if tx.first(NAMED, name=new) is not None:
            raise exceptions.Refused(
                f'a host {new!r} is known already; a host can only be renamed to a name that is '
                'free',
                name=new,
            )
        _move_members(hosts, old, new)
        locked, counters, template = hosts.lock_one(old)
        row_before = locked.row(counters.id)
        former = tx.first(FORMER, name=new)
        row = renamed(row_before, new, former.epoch if former is not None else 0)
        tx.run(_h.delete().where(_h.c.name.in_([old, new])))
        tx.run(_h.insert().values(name=old, epoch=row_before.epoch))
        _move_events_seen(hosts, old, new)
        own_name = sa.case(
            (_p.c.own_name != old, _p.c.own_name)
        )  # chosen anew if it was the old name
        tx.run(_p.update().where(_p.c.id == row.id).values(name=new, own_name=own_name))
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
        counters.epoch, counters.generation = row.epoch, row.generation
        counters.sequence = counters.full_sequence = 0
        hosts.name(locked, [row.id])
        return hosts.save(locked, row.id)

    @writing
    def decommission_host(self, tx: session.Tx, name: str) -> HostChange:
        hosts = HostRecords(tx, self.database.memory)
        _move_members(hosts, name, None)
        tx.run(_n.delete().where(_n.c.id == key_of_host(name)))
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
    of_old = {row.aggregate_id for row in tx.all(AGGREGATES_OF, host=old)}
    if not of_old:
        return
    tx.run(_m.delete().where(_m.c.host == old))
    if new is not None:
        of_new = {row.aggregate_id for row in tx.all(AGGREGATES_OF, host=new)}
        member_rows = [
            {'aggregate_id': aggregate_id, 'host': new} for aggregate_id in sorted(of_old - of_new)
        ]
        tx.many(_m.insert(), member_rows)
    tx.run(_a.update().where(_a.c.id.in_(sorted(of_old))).values(generation=_a.c.generation + 1))
    providers.announce(tx, 'aggregate', sorted(of_old))


def _move_events_seen(hosts: HostRecords, old: str, new: str) -> None:
    """Move the record of Nova events seen to the new name of a host."""
    tx = hosts.tx
    tx.run(_n.delete().where(_n.c.id == key_of_host(new)))
    tx.run(_n.update().where(_n.c.id == key_of_host(old)).values(id=key_of_host(new)))
