# SPDX-License-Identifier: Apache-2.0
"""Usage by project: a plain read of the live claims."""

import json
from typing import Any

import sqlalchemy as sa

from gantt.core.claims.claim import State
from gantt.core.claims.quota import ProjectUsage
from gantt.db.engine import kinds, session
from gantt.db.schema import models
from gantt.db.schema.models import HOT_COLUMNS

_u = models.consumers
_c = models.claims
_a = models.allocations

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
        *[sa.func.sum(_a.c[column]).label(column) for column in HOT_COLUMNS.values()],
    )
    .select_from(_held)
    .group_by(_project)
    .order_by(_project)
    .limit(sa.bindparam('limit'))
)
_live = _c.c.live == 1
#: Classes without a column of their own.
OTHERS = sa.select(_project, _a.c.other).select_from(_held).where(_a.c.other.is_not(None))


def page(tx: session.Tx, limit: int, marker: str | None, project: str | None) -> list[ProjectUsage]:
    """Projects with live claims by id, after ``marker``; one of them, or all."""
    plain = sa.func.coalesce(_u.c.project_id, '')
    which = [_live] if project is None else _of(kinds.storable(project))
    statement = PAGE.where(*which)
    if marker is not None:
        statement = statement.where(plain > kinds.storable(marker))
    rows = tx.all(statement, limit=limit)
    if project is None:
        which.append(plain.in_([row.project for row in rows]))
    others = _others(tx, which) if rows else {}
    return [
        ProjectUsage(
            project_id=row.project,
            claims=row.claims,
            claims_in_flight=row.reserved,
            consumers=row.consumers,
            amounts={
                **{
                    name: int(amount)
                    for name, column in HOT_COLUMNS.items()
                    if (amount := getattr(row, column))
                },
                **others.get(row.project, {}),
            },
        )
        for row in rows
    ]


def _of(project: str) -> list[Any]:
    """The live claims of one project, found by its consumers and not among all live claims."""
    if not project:
        return [_live, _u.c.project_id.is_(None) | (_u.c.project_id == '')]
    return [_c.c.live != 0, _u.c.project_id == project]


def _others(tx: session.Tx, which: list[Any]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    row: Any
    for row in tx.stream(OTHERS.where(*which)):
        sums = found.setdefault(row.project, {})
        for name, amount in json.loads(row.other).items():
            sums[name] = sums.get(name, 0) + amount
    return found
