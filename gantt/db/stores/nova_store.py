# SPDX-License-Identifier: Apache-2.0
"""The part of the store's port that is about hosts of an unmodified Nova."""

from collections.abc import Sequence

from gantt.core.claims.host_facts import TellFacts
from gantt.core.nova.events import Cast, GuestSettled
from gantt.db.claims.locks import Locks
from gantt.db.hosts import host_facts, nova_hosts
from gantt.db.stores.store_part import StorePart
from gantt.scheduler.ports import FactsResult, HeardResult, OpenMove


class NovaStore(StorePart):
    """Hosts of an unmodified Nova."""

    locks: Locks

    def hear_guests(self, casts: Sequence[Cast]) -> HeardResult:
        """See the port."""
        hearing = nova_hosts.Hearing(casts)
        return self.locks.around(
            lambda aside: self.database.write(
                lambda tx: hearing.run(self._changes(tx), self._hosts(tx), aside),
                once_locked=True,
            )
        )

    def hear_aggregates(self, cast: Cast) -> bool:
        """See the port."""
        return self.database.write(lambda tx: nova_hosts.hear_aggregates(self._hosts(tx), cast))

    def settle_guest(self, said: GuestSettled) -> HeardResult:
        """See the port."""
        return self.database.write(lambda tx: nova_hosts.settle(self._changes(tx), said))

    def tell_facts(self, told: TellFacts) -> FactsResult:
        """See the port."""
        return self.database.write(
            lambda tx: host_facts.tell(self._changes(tx), self._hosts(tx), told)
        )

    def open_moves(self, seconds: float, limit: int, reserved: bool = False) -> list[OpenMove]:
        """See the port."""
        return self.reads.read(lambda tx: nova_hosts.open_moves(tx, seconds, limit, reserved))
