# SPDX-License-Identifier: Apache-2.0
"""Inventories of providers and allocations of consumers, changed together."""

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from gantt.core.claims.allocations import AllocationWish
from gantt.core.resources import provider as rules
from gantt.db.engine import session
from gantt.db.hosts import trees
from gantt.db.placement.allocations import AllocationWriter, SqlAllocations
from gantt.db.placement.providers import CHANGED, check_classes
from gantt.db.schema import models
from gantt.scheduler.ports import ReshapedProvider

_p = models.providers
GENERATION = sa.select(_p.c.generation).where(_p.c.uuid == sa.bindparam('uuid'))


class SqlReshaping(SqlAllocations):
    """See ``scheduler.ports.allocations``."""

    def reshape(
        self, providers: Mapping[str, ReshapedProvider], wishes: Sequence[AllocationWish]
    ) -> None:
        stamps: list[int] = []

        def work(tx: session.Tx) -> bool:
            stamps.append(tx.stamp)
            self._reshape(tx, providers, wishes)
            return True

        self.run(work, wishes, stamps)

    def _reshape(
        self,
        tx: session.Tx,
        providers: Mapping[str, ReshapedProvider],
        wishes: Sequence[AllocationWish],
    ) -> None:
        # Checked before any consumer is read, as in Placement; and again under the locks.
        for uuid, declared in providers.items():
            provider_row = tx.first(GENERATION, uuid=uuid)
            if provider_row is None:
                raise rules.not_there(uuid)
            rules.check_generation(uuid, provider_row.generation, declared.generation)
        check_classes(
            tx, {name for declared in providers.values() for name in declared.inventories}
        )
        for declared in providers.values():
            rules.check_inventories(declared.inventories)
        writer = AllocationWriter(tx, self.memory, self.known_places)
        writer.begin(wishes, providers)
        locked = writer.locked
        union = {}
        for uuid, declared in providers.items():
            pid, host = writer.id_of(uuid), writer.host_of(uuid)
            rules.check_generation(uuid, locked.counters[pid].generation, declared.generation)
            if host is not None and host.reports_inventories:
                raise rules.reports_it_itself(uuid, host.name)
            union[pid] = {**locked.inventories(pid), **declared.inventories}
        changes = writer.changes(wishes)
        heirs = writer.resolve_heirs(wishes, changes)
        writer.judge(wishes, changes, heirs, union)
        writer.count(changes, heirs)
        writer.step_named(wishes)
        for uuid, declared in sorted(providers.items()):
            pid = writer.id_of(uuid)
            # One step for the inventories meanwhile, as in Placement, and one for the outcome.
            writer.step(pid, by=int(bool(declared.inventories)))
            trees.write_inventories(tx, self.memory, locked, uuid, declared.inventories)
            tx.run(CHANGED.values(changed_at=tx.now), b_id=pid)
        writer.write(changes, usage_only=False)
