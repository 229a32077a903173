# SPDX-License-Identifier: Apache-2.0
"""The part of the store's port that is about hosts as operators keep them."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from gantt.core.claims.adoption import Guest, GuestFate
from gantt.core.resources import host_keys
from gantt.core.resources.host import HostChange
from gantt.core.resources.host_keys import HostKey
from gantt.db.claims import adopted
from gantt.db.hosts import renaming
from gantt.db.hosts.hosts import Hosts, load_key
from gantt.db.stores.store_part import StorePart

T = TypeVar('T')


class HostStore(StorePart):
    """Hosts as operators keep them."""

    def _with_host(self, work: Callable[[Hosts], T]) -> T:
        return self.database.write(lambda tx: work(self._hosts(tx)))

    def disable_host(self, name: str, reason: str, by: str) -> HostChange:
        """See the port."""
        return self._with_host(lambda hosts: hosts.disable(name, reason, by))

    def enable_host(self, name: str, by: str = '') -> HostChange:
        """See the port."""
        return self._with_host(lambda hosts: hosts.enable(name, by))

    def revoke_host_key(self, name: str) -> HostChange:
        """See the port."""
        return self._with_host(lambda hosts: hosts.change_key(name, host_keys.revoked))

    def load_host_key(self, name: str) -> HostKey | None:
        """See the port."""
        return self.reads.read(lambda tx: load_key(tx, name))

    def forget_host_key(self, name: str) -> HostChange:
        """See the port."""
        return self._with_host(lambda hosts: hosts.change_key(name, host_keys.forgotten))

    def remove_host(self, name: str) -> HostChange:
        """See the port."""
        return self._with_host(lambda hosts: hosts.remove(name))

    def rename_host(self, old: str, new: str) -> HostChange:
        """See the port."""
        return self._with_host(lambda hosts: renaming.rename(hosts, old, new))

    def decommission_host(self, name: str) -> HostChange:
        """See the port."""
        return self._with_host(lambda hosts: renaming.decommission(hosts, name))

    def adopt_guests(self, guests: Sequence[Guest], *, dry_run: bool = False) -> list[GuestFate]:
        """See the port."""
        if dry_run:
            return self.reads.read(lambda tx: adopted.judge(self._changes(tx), guests))
        return self.database.write(
            lambda tx: adopted.adopt(self._changes(tx), self._hosts(tx), guests)
        )
