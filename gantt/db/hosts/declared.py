# SPDX-License-Identifier: Apache-2.0
"""Metrics that operators declare."""

import msgspec
import sqlalchemy as sa

from gantt import exceptions
from gantt.core.table import metrics
from gantt.core.table.metrics import DeclaredMetric
from gantt.db.engine import kinds, session
from gantt.db.hosts import providers
from gantt.db.schema import models

_m = models.declared_metrics

READ = sa.select(_m).order_by(_m.c.name)
LOCK = sa.select(_m).where(_m.c.name == sa.bindparam('name')).with_for_update()
COUNT = sa.select(sa.func.count()).select_from(_m)


def load(tx: session.Tx) -> list[DeclaredMetric]:
    """All declarations, by name."""
    return [_declared(row) for row in tx.all(READ)]


def save(tx: session.Tx, metric: DeclaredMetric) -> DeclaredMetric:
    """Declare a metric, or change what is declared.

    :raises InvalidMessage: a field that says nothing
    :raises Refused: there are too many already
    """
    metrics.check(metric)
    name = kinds.storable(metric.name)
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


def remove(tx: session.Tx, name: str) -> None:
    """Forget a declaration; what hosts report under the name stays.

    :raises NotFound:
    """
    row = tx.first(LOCK, name=kinds.storable(name))
    if row is None:
        raise exceptions.NotFound(kind='declared metric', name=name)
    tx.run(_m.delete().where(_m.c.id == row.id))
    providers.announce(tx, 'metric', [row.id])


def _declared(row: sa.Row) -> DeclaredMetric:
    return DeclaredMetric(
        name=row.name,
        unit=row.unit,
        lower=row.lower,
        upper=row.upper,
        stale_seconds=row.stale_seconds,
        description=row.description,
    )
