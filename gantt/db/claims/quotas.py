# SPDX-License-Identifier: Apache-2.0
"""Quotas of projects: their limits, and what each project has of all live claims."""

from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa

from gantt import exceptions
from gantt.core.claims import quota
from gantt.core.claims.claim import State
from gantt.core.claims.quota import Limit, ProjectUsage, Usage
from gantt.db.engine import session
from gantt.db.engine.engine import storable
from gantt.db.engine.session import reading, reading_long, writing
from gantt.db.hosts import rows
from gantt.db.hosts.base import HostTables
from gantt.db.schema import models
from gantt.db.schema.models import CORE_CLASS_COLUMNS

_q = models.quotas
_u = models.consumers
_c = models.claims
_a = models.allocations

_projects: Any = sa.bindparam('projects', expanding=True)

READ = sa.select(_q).order_by(_q.c.project_id, _q.c.name)
COUNT = sa.select(sa.func.count()).select_from(_q)
_one = (_q.c.project_id == sa.bindparam('b_project'), _q.c.name == sa.bindparam('b_name'))
CHANGE = _q.update().where(*_one).values(hard_limit=sa.bindparam('hard_limit'))
REMOVE = _q.delete().where(*_one)

# Not "live = 1", by which PostgreSQL might read every live claim there is.
_live = (_u.c.project_id.in_(_projects), _c.c.live != 0)
_claims_of = _u.join(_c, _c.c.consumer == _u.c.uuid)
_shares = _claims_of.join(_a, _a.c.claim_id == _c.c.id)
#: Of each consumer: of each class the most that one of its claims takes.
_by_claim = (
    sa.select(
        _u.c.project_id,
        _c.c.consumer,
        _c.c.id,
        *[sa.func.sum(_a.c[c]).label(c) for c in CORE_CLASS_COLUMNS.values()],
    )
    .select_from(_shares)
    .where(*_live)
    .group_by(_u.c.project_id, _c.c.consumer, _c.c.id)
    .subquery()
)
_by_consumer = (
    sa.select(
        _by_claim.c.project_id,
        *[sa.func.max(_by_claim.c[c]).label(c) for c in CORE_CLASS_COLUMNS.values()],
    )
    .group_by(_by_claim.c.project_id, _by_claim.c.consumer)
    .subquery()
)
AMOUNTS = sa.select(
    _by_consumer.c.project_id,
    *[sa.func.sum(_by_consumer.c[c]).label(c) for c in CORE_CLASS_COLUMNS.values()],
).group_by(_by_consumer.c.project_id)
COUNTS = (
    sa.select(
        _u.c.project_id,
        sa.func.count(sa.distinct(_c.c.consumer)).label('consumers'),
        sa.func.sum(sa.case((_c.c.state == State.RESERVED.value, 1), else_=0)).label('reserved'),
    )
    .select_from(_claims_of)
    .where(*_live)
    .group_by(_u.c.project_id)
)
#: Classes without a column of their own.
OTHERS = (
    sa.select(_u.c.project_id, _c.c.consumer, _c.c.id, _a.c.other)
    .select_from(_shares)
    .where(*_live, _a.c.other.is_not(None))
)

_project = sa.func.coalesce(_u.c.project_id, '').label('project')
_held = _u.join(_c, _c.c.consumer == _u.c.uuid).join(_a, _a.c.claim_id == _c.c.id)
_reserved = sa.case((_c.c.state == State.RESERVED.value, _c.c.id))
#: A claim has a row of amounts for each provider that it takes something of.
PAGE = (
    sa.select(
        _project,
        sa.func.count(sa.distinct(_c.c.id)).label('claims'),
        sa.func.count(sa.distinct(_reserved)).label('reserved'),
        sa.func.count(sa.distinct(_c.c.consumer)).label('consumers'),
        *[sa.func.sum(_a.c[column]).label(column) for column in CORE_CLASS_COLUMNS.values()],
    )
    .select_from(_held)
    .group_by(_project)
    .order_by(_project)
    .limit(sa.bindparam('limit'))
)
#: Classes without a column of their own.
OTHERS_HELD = sa.select(_project, _a.c.other).select_from(_held).where(_a.c.other.is_not(None))


class SqlQuotas(HostTables):
    """See ``scheduler.ports.quotas``."""

    @reading
    def quotas(self, tx: session.Tx) -> list[Limit]:
        return [
            Limit(project_id=row.project_id, name=row.name, limit=row.hard_limit)
            for row in tx.all(READ)
        ]

    @writing
    def set_quotas(self, tx: session.Tx, project: str, limits: Mapping[str, int | None]) -> None:
        project = storable(project)
        limits_set = {name: limit for name, limit in limits.items() if limit is not None}
        quota.check(
            Limit(project_id=project, name=name, limit=limits_set[name]) for name in limits_set
        )
        tx.many(
            REMOVE, [{'b_project': project, 'b_name': name} for name in limits.keys() - limits_set]
        )
        values = [
            {'project_id': project, 'name': name, 'hard_limit': limit}
            for name, limit in limits_set.items()
        ]
        tx.insert_new(_q, values, 'project_id', 'name')
        # Counted now: those that are changed only are not counted twice.
        if limits_set and tx.first(COUNT)[0] > quota.LIMITS_MAX:
            raise exceptions.Refused(quota.too_many())
        tx.many(
            CHANGE,
            [
                {'b_project': project, 'b_name': name, 'hard_limit': limit}
                for name, limit in sorted(limits_set.items())
            ],
        )

    @reading
    def quota_usage(
        self, tx: session.Tx, projects: Collection[str], classes: Collection[str] = ()
    ) -> dict[str, Usage]:
        stored = {project: storable(project) for project in projects}
        wanted = sorted(set(stored.values()))
        amounts: dict[str, dict[str, int]] = {}
        core_columns = {
            name: column for name, column in CORE_CLASS_COLUMNS.items() if name in classes
        }
        if core_columns:
            for row in tx.all(AMOUNTS, projects=wanted):
                amounts[row.project_id] = {
                    name: int(getattr(row, column) or 0) for name, column in core_columns.items()
                }
        other_classes = set(classes) - core_columns.keys()
        if other_classes:
            for project, found in _others(tx, wanted, other_classes).items():
                amounts.setdefault(project, {}).update(found)
        counts = {row.project_id: row for row in tx.all(COUNTS, projects=wanted)}
        return {
            project: Usage(
                claims_in_flight=int(counts[key].reserved) if key in counts else 0,
                live_claims=int(counts[key].consumers) if key in counts else 0,
                amounts=_without_zeros(amounts.get(key, {})),
            )
            for project, key in stored.items()
        }

    @reading_long
    def usages(
        self, tx: session.Tx, limit: int, marker: str | None = None, project: str | None = None
    ) -> list[ProjectUsage]:
        plain = sa.func.coalesce(_u.c.project_id, '')
        which: list[Any] = [_c.c.live == 1] if project is None else _of(storable(project))
        statement = PAGE.where(*which)
        if marker is not None:
            statement = statement.where(plain > storable(marker))
        found = tx.all(statement, limit=limit)
        if project is None:
            which.append(plain.in_([row.project for row in found]))
        others = _other_amounts(tx, which) if found else {}
        return [
            ProjectUsage(
                project_id=row.project,
                claims=row.claims,
                claims_in_flight=row.reserved,
                consumers=row.consumers,
                amounts={
                    **{
                        name: int(amount)
                        for name, column in CORE_CLASS_COLUMNS.items()
                        if (amount := getattr(row, column))
                    },
                    **others.get(row.project, {}),
                },
            )
            for row in found
        ]


def _without_zeros(amounts: Mapping[str, int]) -> dict[str, int]:
    return {name: amount for name, amount in amounts.items() if amount}


def _others(
    tx: session.Tx, projects: list[str], classes: Collection[str]
) -> dict[str, dict[str, int]]:
    """Amounts of classes without a column: project -> class -> amount."""
    of_claim: dict[tuple[str, str, str], dict[str, int]] = {}
    for row in tx.all(OTHERS, projects=projects):
        mine = of_claim.setdefault((row.project_id, row.consumer, row.id), {})
        for name, amount in rows.decode_amounts(row.other).items():
            if name in classes:
                mine[name] = mine.get(name, 0) + amount
    of_consumer: dict[tuple[str, str], dict[str, int]] = {}
    for (project, consumer, _), taken in of_claim.items():
        most = of_consumer.setdefault((project, consumer), {})
        for name, amount in taken.items():
            most[name] = max(most.get(name, 0), amount)
    found: dict[str, dict[str, int]] = {}
    for (project, _), most in of_consumer.items():
        total = found.setdefault(project, {})
        for name, amount in most.items():
            total[name] = total.get(name, 0) + amount
    return found


def _of(project: str) -> list[Any]:
    """The live claims of one project, found by its consumers and not among all live claims."""
    if not project:
        return [_c.c.live == 1, _u.c.project_id.is_(None) | (_u.c.project_id == '')]
    return [_c.c.live != 0, _u.c.project_id == project]


def _other_amounts(tx: session.Tx, which: list[Any]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    row: Any
    for row in tx.stream(OTHERS_HELD.where(*which)):
        sums = found.setdefault(row.project, {})
        for name, amount in rows.decode_amounts(row.other).items():
            sums[name] = sums.get(name, 0) + amount
    return found
