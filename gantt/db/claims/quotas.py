# SPDX-License-Identifier: Apache-2.0
"""Quotas of projects: their limits, and each project's usage by all live claims."""

import functools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from gantt import exceptions
from gantt.core.claims import quota
from gantt.core.claims.quota import Limit, ProjectUsage, TakenByClaim, Usage
from gantt.core.claims.reservations import PlannedUsage, usage_of
from gantt.core.messages.request import Lifecycle
from gantt.db.claims import held
from gantt.db.database import SqlStore, reading, reading_long, writing
from gantt.db.engine import session
from gantt.db.engine.engine import storable
from gantt.db.hosts import claim_rows, rows
from gantt.db.schema import models
from gantt.db.schema.models import CORE_CLASS_COLUMNS

_quotas, _claims = models.quotas, models.claims

SELECT_LIMITS = sa.select(_quotas).order_by(_quotas.c.project_id, _quotas.c.name)
COUNT_LIMITS = sa.select(sa.func.count()).select_from(_quotas)
_is_limit = (
    _quotas.c.project_id == sa.bindparam('b_project'),
    _quotas.c.name == sa.bindparam('b_name'),
)
UPDATE_LIMIT = _quotas.update().where(*_is_limit).values(session.bound('hard_limit'))
DELETE_LIMIT = _quotas.delete().where(*_is_limit)

_classes = list(CORE_CLASS_COLUMNS.values())


def _of_consumer(claims: Any, name: str) -> Any:
    """Return a guest's amount: the largest of its claims, plus the sum of those written by API."""
    amount, is_written = claims.c[name], claims.c.is_written == 1
    largest = sa.func.max(sa.case((is_written, 0), else_=amount))
    written = sa.func.sum(sa.case((is_written, amount), else_=0))
    return sa.func.coalesce(largest, 0) + sa.func.coalesce(written, 0)


class UsageQueries:
    """Queries of the usage of projects, for a kind of database.

    Projects are bound by ``claim_rows.bound_projects``.
    """

    def __init__(self, kind: str) -> None:
        owner_columns = 'project_id', 'guest', 'consumer'
        claims = held.of_projects(kind, 'guest', 'in_flight').subquery('claims_of')
        shares = held.shares_of_projects(kind, *owner_columns[1:], 'id', 'is_written')
        shares = shares.subquery('shares_of')
        by_claim = _grouped(
            shares,
            (*owner_columns, 'id', 'is_written'),
            [sa.func.sum(shares.c[c]) for c in _classes],
        )
        by_consumer = _grouped(
            by_claim, owner_columns, [_of_consumer(by_claim, c) for c in _classes]
        )
        largest = [sa.func.max(by_consumer.c[c]) for c in _classes]
        by_guest = _grouped(by_consumer, owner_columns[:2], largest)
        self.amounts = sa.select(
            by_guest.c.project_id, *[sa.func.sum(by_guest.c[c]).label(c) for c in _classes]
        ).group_by(by_guest.c.project_id)
        self.counts = sa.select(
            claims.c.project_id,
            sa.func.count(sa.distinct(claims.c.guest)).label('guests'),
            sa.func.sum(claims.c.in_flight).label('reserved'),
        ).group_by(claims.c.project_id)
        #: Classes without a column of their own.
        self.others = sa.select(
            *(shares.c[name] for name in (*owner_columns, 'id', 'is_written', 'other'))
        ).where(shares.c.other.is_not(None))


def _grouped(rows: Any, names: Sequence[str], amounts: Sequence[Any]) -> Any:
    """Return a subquery of amounts by class, grouped by these columns."""
    columns = [rows.c[name] for name in names]
    labelled = (amount.label(c) for amount, c in zip(amounts, _classes, strict=True))
    return sa.select(*columns, *labelled).group_by(*columns).subquery(f'by_{names[-1]}')


@functools.cache
def _queries(kind: str) -> UsageQueries:
    return UsageQueries(kind)


def _held(kind: str, project: str | None) -> Any:
    """Return a query of amounts, a row per claim and provider, of one project or all."""
    names = 'id', 'consumer', 'in_flight'
    if project:
        shares = held.shares_of_projects(kind, *names)
        return shares.params(**claim_rows.bound_projects([project]))
    return held.shares_of_all(kind, *names, unnamed=project == '')


class SqlQuotas(SqlStore):
    """Limits and usage of projects: ``ports.Quotas`` in SQL."""

    @reading
    def limits(self, tx: session.Tx) -> list[Limit]:
        return [
            Limit(project_id=row.project_id, name=row.name, limit=row.hard_limit)
            for row in tx.all(SELECT_LIMITS)
        ]

    @writing
    def set_quotas(self, tx: session.Tx, project: str, limits: Mapping[str, int | None]) -> None:
        project = storable(project)
        limits_set = {name: limit for name, limit in limits.items() if limit is not None}
        quota.check(
            Limit(project_id=project, name=name, limit=limits_set[name]) for name in limits_set
        )
        tx.run_many(
            DELETE_LIMIT,
            [{'b_project': project, 'b_name': name} for name in limits.keys() - limits_set],
        )
        values = [
            {'project_id': project, 'name': name, 'hard_limit': limit}
            for name, limit in limits_set.items()
        ]
        tx.insert_new(_quotas, values, 'project_id', 'name')
        # Counted now: limits that only change are not counted twice.
        if limits_set and tx.first(COUNT_LIMITS)[0] > quota.LIMITS_MAX:
            raise exceptions.Refused(quota.too_many_limits_text())
        tx.run_many(
            UPDATE_LIMIT,
            [
                {'b_project': project, 'b_name': name, 'hard_limit': limit}
                for name, limit in sorted(limits_set.items())
            ],
        )

    @reading
    def planned_usage(self, tx: session.Tx, project: str) -> PlannedUsage:
        query = sa.select(_claims.c.id).where(
            *claim_rows.of_projects(tx.kind),
            claim_rows.is_live,
            _claims.c.lifecycle == Lifecycle.PLAN.value,
            _claims.c.member_name.is_not(None),
        )
        ids = [row.id for row in tx.all(query, **claim_rows.bound_projects([project]))]
        return usage_of(claim_rows.load_claims(tx, ids=ids) if ids else ())

    @reading
    def quota_usage(
        self, tx: session.Tx, projects: Collection[str], classes: Collection[str] = ()
    ) -> dict[str, Usage]:
        stored_names = {project: storable(project) for project in projects}
        stored_projects = sorted(set(stored_names.values()))
        queries, bound = _queries(tx.kind), claim_rows.bound_projects(stored_projects)
        amounts: dict[str, dict[str, int]] = {}
        core_columns = {
            name: column for name, column in CORE_CLASS_COLUMNS.items() if name in classes
        }
        if core_columns:
            for row in tx.all(queries.amounts, **bound):
                amounts[row.project_id] = {
                    name: int(getattr(row, column) or 0) for name, column in core_columns.items()
                }
        other_classes = set(classes) - core_columns.keys()
        if other_classes:
            for project, other_amounts in _others(tx, stored_projects, other_classes).items():
                amounts.setdefault(project, {}).update(other_amounts)
        counts = {row.project_id: row for row in tx.all(queries.counts, **bound)}
        return {
            project: Usage(
                claims_in_flight=int(counts[key].reserved) if key in counts else 0,
                live_claims=int(counts[key].guests) if key in counts else 0,
                amounts={name: n for name, n in amounts.get(key, {}).items() if n},
            )
            for project, key in stored_names.items()
        }

    @reading
    def owners_of(self, tx: session.Tx, consumers: Collection[str]) -> dict[str, str | None]:
        return held.stored_owners_of(tx, consumers)

    @reading_long
    def usages(
        self, tx: session.Tx, limit: int, marker: str | None = None, project: str | None = None
    ) -> list[ProjectUsage]:
        shares = _held(tx.kind, None if project is None else storable(project)).subquery('taken')
        project_column = sa.func.coalesce(shares.c.project_id, '')
        reserved = sa.case((shares.c.in_flight == 1, shares.c.id))
        statement = (
            sa.select(
                project_column.label('project'),
                sa.func.count(sa.distinct(shares.c.id)).label('claims'),
                sa.func.count(sa.distinct(reserved)).label('reserved'),
                sa.func.count(sa.distinct(shares.c.consumer)).label('consumers'),
                *[sa.func.sum(shares.c[column]).label(column) for column in _classes],
            )
            .group_by(project_column)
            .order_by(project_column)
            .limit(limit)
        )
        if marker is not None:
            statement = statement.where(project_column > storable(marker))
        usage_rows = tx.all(statement)
        #: Classes without a column of their own.
        others = sa.select(project_column.label('project'), shares.c.other).where(
            shares.c.other.is_not(None), project_column.in_([row.project for row in usage_rows])
        )
        other_amounts = _sums(tx.stream(others)) if usage_rows else {}
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
                    **other_amounts.get(row.project, {}),
                },
            )
            for row in usage_rows
        ]


def _others(
    tx: session.Tx, projects: list[str], classes: Collection[str]
) -> dict[str, dict[str, int]]:
    """Return the amounts of classes without a column: project -> class -> amount."""
    of_claim: dict[str, dict[tuple[str, str, str, int], Counter[str]]] = {}
    for project, *claim, text in tx.all(
        _queries(tx.kind).others, **claim_rows.bound_projects(projects)
    ):
        claim_amounts = of_claim.setdefault(project, {}).setdefault(tuple(claim), Counter())
        for name, amount in rows.readable_amounts(text).items():
            if name in classes:
                claim_amounts[name] += amount
    amounts_of_projects = {}
    for project, claims in of_claim.items():
        amounts_of_guests = quota.counted_amounts(
            TakenByClaim(guest, consumer, bool(is_written), claim_taken)
            for (guest, consumer, _, is_written), claim_taken in claims.items()
        )
        amounts_of_projects[project] = dict(sum(amounts_of_guests.values(), Counter()))
    return amounts_of_projects


def _sums(usage_rows: Iterable[Any]) -> dict[str, dict[str, int]]:
    sums: dict[str, dict[str, int]] = {}
    for row in usage_rows:
        project_amounts = sums.setdefault(row.project, {})
        for name, amount in rows.readable_amounts(row.other).items():
            project_amounts[name] = project_amounts.get(name, 0) + amount
    return sums
