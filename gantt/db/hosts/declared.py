# SPDX-License-Identifier: Apache-2.0
"""Declarations by operators: aggregates and metrics."""

import msgspec
import sqlalchemy as sa

from gantt import exceptions
from gantt.core.resources.host import Aggregate
from gantt.core.table import metrics
from gantt.core.table.metrics import DeclaredMetric
from gantt.db.database import SqlStore, reading, writing
from gantt.db.engine import engine, session
from gantt.db.hosts import aggregates, providers
from gantt.db.hosts.hosts import HostRecords
from gantt.db.schema import models

_declared_metrics = models.declared_metrics

SELECT_METRICS = sa.select(_declared_metrics).order_by(_declared_metrics.c.name)
LOCK_METRIC = (
    sa.select(_declared_metrics)
    .where(_declared_metrics.c.name == sa.bindparam('name'))
    .with_for_update()
)
SELECT_CLASS_NAMES = sa.select(models.resource_classes.c.name)
COUNT_METRICS = sa.select(sa.func.count()).select_from(_declared_metrics)


def load(tx: session.Tx) -> list[DeclaredMetric]:
    """Return all declarations, by name."""
    return [_declared(row) for row in tx.all(SELECT_METRICS)]


def _declared(row: sa.Row) -> DeclaredMetric:
    return DeclaredMetric(**{name: getattr(row, name) for name in DeclaredMetric.__struct_fields__})


class SqlDeclarations(SqlStore):
    """Declarations of operators: aggregates and metrics: ``ports.Declarations`` in SQL."""

    @writing
    def save_aggregate(
        self,
        tx: session.Tx,
        name: str,
        metadata: dict[str, str | None],
        hosts: list[str] | None,
        uuid: str | None = None,
    ) -> Aggregate:
        return aggregates.save(HostRecords(tx, self.database.memory), name, metadata, hosts, uuid)

    @writing
    def remove_aggregate(self, tx: session.Tx, name: str) -> None:
        aggregates.remove(HostRecords(tx, self.database.memory), name)

    @writing
    def save_metric(self, tx: session.Tx, metric: DeclaredMetric) -> DeclaredMetric:
        metrics.check(metric)
        name = engine.storable(metric.name)
        values = {**msgspec.structs.asdict(metric), 'name': name}
        if (
            tx.first(LOCK_METRIC, name=name) is None
            and tx.first(COUNT_METRICS)[0] >= metrics.DECLARED_METRICS_MAX
        ):
            raise exceptions.Refused(
                f'{metrics.DECLARED_METRICS_MAX} metrics are declared already, which is as many as '
                'may be; remove one first'
            )
        tx.insert_new(_declared_metrics, [values], 'name')
        row = tx.first(LOCK_METRIC, name=name)
        tx.run(_declared_metrics.update().where(_declared_metrics.c.id == row.id).values(**values))
        providers.announce(tx, 'metric', [row.id])
        return _declared(tx.first(LOCK_METRIC, name=name))

    @writing
    def remove_metric(self, tx: session.Tx, name: str) -> None:
        row = tx.first(LOCK_METRIC, name=engine.storable(name))
        if row is None:
            raise exceptions.NotFound(kind='declared metric', name=name)
        tx.run(_declared_metrics.delete().where(_declared_metrics.c.id == row.id))
        providers.announce(tx, 'metric', [row.id])

    @reading
    def declared_metrics(self, tx: session.Tx) -> list[DeclaredMetric]:
        return load(tx)
