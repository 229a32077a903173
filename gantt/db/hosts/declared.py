# SPDX-License-Identifier: Apache-2.0
"""Declarations by operators: aggregates, resource classes, metrics."""

import msgspec
import sqlalchemy as sa

from gantt import exceptions
from gantt.core.messages import resource_classes
from gantt.core.resources.host import Aggregate
from gantt.core.table import metrics
from gantt.core.table.metrics import DeclaredMetric
from gantt.db.engine import engine, session
from gantt.db.engine.session import reading, writing
from gantt.db.hosts import aggregates, providers
from gantt.db.hosts.base import HostTables
from gantt.db.hosts.hosts import HostRecords, Ids
from gantt.db.schema import models

_m = models.declared_metrics

READ = sa.select(_m).order_by(_m.c.name)
LOCK = sa.select(_m).where(_m.c.name == sa.bindparam('name')).with_for_update()
CLASSES = sa.select(models.resource_classes.c.name)
COUNT = sa.select(sa.func.count()).select_from(_m)


def load(tx: session.Tx) -> list[DeclaredMetric]:
    """Return all declarations, by name."""
    return [_declared(row) for row in tx.all(READ)]


def _declared(row: sa.Row) -> DeclaredMetric:
    return DeclaredMetric(**{name: getattr(row, name) for name in DeclaredMetric.__struct_fields__})


class SqlDeclarations(HostTables):
    """See ``scheduler.ports.hosts``."""

    @writing
    def save_aggregate(
        self,
        tx: session.Tx,
        name: str,
        metadata: dict[str, str | None],
        hosts: list[str] | None,
        uuid: str | None = None,
    ) -> Aggregate:
        return aggregates.save(HostRecords(tx, self.memory), name, metadata, hosts, uuid)

    @writing
    def remove_aggregate(self, tx: session.Tx, name: str) -> None:
        aggregates.remove(HostRecords(tx, self.memory), name)

    def declare_class(self, name: str) -> None:
        if not resource_classes.is_class_name(name):
            raise exceptions.UnknownResourceClass(field='name', name=name)
        self.database.write(lambda tx: Ids(tx, models.resource_classes).of([name]))

    @reading
    def declared_classes(self, tx: session.Tx) -> frozenset[str]:
        return frozenset(row.name for row in tx.all(CLASSES))

    @writing
    def save_metric(self, tx: session.Tx, metric: DeclaredMetric) -> DeclaredMetric:
        metrics.check(metric)
        name = engine.storable(metric.name)
        values = {**msgspec.structs.asdict(metric), 'name': name}
        if tx.first(LOCK, name=name) is None and tx.first(COUNT)[0] >= metrics.DECLARED_MAX:
            raise exceptions.Refused(
                f'{metrics.DECLARED_MAX} metrics are declared already, which is as many as may be; '
                'remove one first'
            )
        tx.insert_new(_m, [values], 'name')
        row = tx.first(LOCK, name=name)
        tx.run(_m.update().where(_m.c.id == row.id).values(**values))
        providers.announce(tx, 'metric', [row.id])
        return _declared(tx.first(LOCK, name=name))

    @writing
    def remove_metric(self, tx: session.Tx, name: str) -> None:
        row = tx.first(LOCK, name=engine.storable(name))
        if row is None:
            raise exceptions.NotFound(kind='declared metric', name=name)
        tx.run(_m.delete().where(_m.c.id == row.id))
        providers.announce(tx, 'metric', [row.id])

    @reading
    def declared_metrics(self, tx: session.Tx) -> list[DeclaredMetric]:
        return load(tx)
