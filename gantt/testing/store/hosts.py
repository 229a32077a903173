# SPDX-License-Identifier: Apache-2.0
"""The in-memory store: hosts as operators keep them."""

from collections.abc import Callable, Sequence

import msgspec

from gantt import exceptions
from gantt.core.claims.adoption import Adoption, GuestOutcome, GuestToAdopt
from gantt.core.claims.registration import renamed
from gantt.core.messages.base import derived_id
from gantt.core.messages.report import RegisterHost
from gantt.core.resources import host_keys
from gantt.core.resources.host import HostChange, HostRow
from gantt.core.resources.host_keys import HostKey
from gantt.testing.store.nova import NovaTables
from gantt.testing.store.operators import atomic

_replace = msgspec.structs.replace


class HostKeeping(NovaTables):
    """Disabled, enabled, renamed, removed; and guests told of."""

    @atomic
    def disable_host(self, name: str, reason: str, by: str) -> HostChange:
        return self._put(_replace(self._host(name), disabled=reason, disabled_by=by))

    @atomic
    def enable_host(self, name: str, by: str = '') -> HostChange:
        return self._put(_replace(self._host(name), disabled=None, disabled_by=None))

    @atomic
    def revoke_host_key(self, name: str) -> HostChange:
        """Nobody reports for the host until its key is forgotten.  :raises NotFound:"""
        return self._change_key(name, host_keys.revoked)

    @atomic
    def forget_host_key(self, name: str) -> HostChange:
        """The next key that it registers with is taken.  :raises NotFound:"""
        return self._change_key(name, host_keys.forgotten)

    @atomic
    def load_host_key(self, name: str) -> HostKey | None:
        row = self._tables.named(name)
        return None if row is None else row.key

    def _change_key(self, name: str, change: Callable[[HostKey], HostKey | None]) -> HostChange:
        row = self._host(name)
        if row.key is None:
            raise exceptions.NotFound(kind='key of host', name=name)
        return self._put(_replace(row, key=change(row.key)))

    @atomic
    def remove_host(self, name: str) -> HostChange:
        row, tables = self._host(name), self._tables
        count = sum(row.id in claim.allocations for claim in tables.all_live())
        count = max(count, len(tables.live_on(row.id)))
        if count:
            raise exceptions.Refused(
                f'host {name!r} has {count} live claims; move or release what runs there first',
                name=name,
                claims=count,
            )
        del tables.hosts[row.id], tables.ids[name]
        tables.epochs[name] = row.epoch
        tables.append_change('host', row.id)
        return HostChange(provider_id=row.id, row=None)

    def _host(self, name: str) -> HostRow:
        row = self._tables.named(name)
        if row is None:
            raise exceptions.NotFound(kind='host', name=name)
        return row

    def _put(self, row: HostRow) -> HostChange:
        self._tables.hosts[row.id] = row
        self._tables.touch(row.id)
        return self._tables.write()[0]

    @atomic
    def rename_host(self, old: str, new: str) -> HostChange:
        tables = self._tables
        if tables.named(new) is not None:
            raise exceptions.Refused(
                f'a host {new!r} is known already; a host can only be renamed to a name that is '
                'free',
                name=new,
            )
        before = self._host(old)
        self._move_members(old, new)
        row = renamed(before, new, tables.epochs.pop(new, 0))
        del tables.ids[old]
        tables.ids[new] = row.id
        tables.epochs[old] = before.epoch
        seen = tables.events_seen.pop(derived_id('nova host', old), None)
        tables.events_seen.pop(derived_id('nova host', new), None)
        if seen is not None:
            tables.events_seen[derived_id('nova host', new)] = seen
        tables.call_host(row.id, new)
        uuids = sorted(a.uuid for a in tables.aggregates.values() if new in a.hosts)
        return self._put(_replace(row, aggregates=uuids))

    @atomic
    def decommission_host(self, name: str) -> HostChange:
        change = self.remove_host(name)
        self._move_members(name, None)
        self._tables.events_seen.pop(derived_id('nova host', name), None)
        return change

    def _move_members(self, old: str, new: str | None) -> None:
        for aggregate in list(self._tables.aggregates.values()):
            if old in aggregate.hosts:
                hosts = {*aggregate.hosts, new} - {old, None}
                self._tables.put_aggregate(_replace(aggregate, hosts=sorted(map(str, hosts))))

    def _check_former(self, message: RegisterHost) -> None:
        """:raises HostRenamed: the host with this journal has another name now"""
        tables = self._tables
        if message.journal is None or message.name not in tables.epochs:
            return
        for row in tables.hosts.values():
            if row.journal == message.journal:
                raise exceptions.HostRenamed(name=message.name, new=row.name)

    @atomic
    def adopt_guests(
        self, guests: Sequence[GuestToAdopt], *, dry_run: bool = False
    ) -> list[GuestOutcome]:
        tables = self._tables
        found = (tables.named(guest.host) for guest in guests)
        rows = {row.name: row for row in found if row is not None}
        live = [claim for one in {g.consumer for g in guests} for claim in tables.live_of(one)]
        adoption = Adoption(rows, live, self._now)
        outcomes = [adoption.judge(guest) for guest in guests]
        if not dry_run:
            self._put_claims(adoption.made)
            tables.write()
        return outcomes
