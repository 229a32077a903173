# SPDX-License-Identifier: Apache-2.0
"""The two forms that a claim has in the tables, and which of them is written.

*Wide*: what it takes stands in ``allocations``, a row for each provider; its project, user and
type in the row of its consumer.  *Narrow*: what it takes of its own host, its project, user and
type stand in its row; ``allocations`` has other providers only, ``consumers`` nothing.

All readers read both, through the expressions here.  Which one is written stands in ``meta``.
Who writes claims looks there in the same transaction, so that none writes the wide form after
the mark: its transaction waits for those that write, and those that begin after it see it.

A row is narrow where it has a ``consumer_type``.  One that has a ``vcpu`` takes something of its
host.
"""

import functools
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from gantt.db.schema import models
from gantt.db.schema.models import CORE_CLASS_COLUMNS

#: ``meta.claims_form``: the wide form is written; the narrow one is, and claims are moved to it;
#: all are moved.
WIDE, MOVING, NARROW = 0, 1, 2
#: In ``schema_steps`` from the mark on: no release that does not know the narrow form starts.
STEP = '0016_contract_claims'

_c = models.claims
_a = models.allocations
_u = models.consumers
_m = models.meta
_hot = list(CORE_CLASS_COLUMNS.values())

is_narrow = _c.c.consumer_type.is_not(None)
is_wide = _c.c.consumer_type.is_(None)
#: Claims with the rows of their consumers, which narrow ones have none of.
OWNED = _c.outerjoin(_u, _u.c.uuid == _c.c.consumer)
PROJECT = sa.case((is_narrow, _c.c.project_id), else_=_u.c.project_id)
USER = sa.case((is_narrow, _c.c.user_id), else_=_u.c.user_id)
TYPE = sa.case((is_narrow, _c.c.consumer_type), else_=_u.c.type)
#: Whose claim it is to lists, groups and hints, see ``core.claims.claim.guest_of``.
GUEST = sa.func.coalesce(_c.c.guest, _c.c.consumer)
#: Not "live = 1", by which PostgreSQL might read every live claim there is, and no parameter,
#: for which no partial index is used.
is_live = _c.c.live != sa.literal_column('0')

FORM = sa.select(_m.c.claims_form)
FORM_SHARED = FORM.with_for_update(read=True)
_ids: Any = sa.bindparam('ids', expanding=True)
_projects: Any = sa.bindparam('projects', expanding=True)
_parts: Any = sa.bindparam('parts', expanding=True)


def of_guests(guests: Sequence[str]) -> Any:
    """Claims that are of these guests, or were and are another consumer's by now, by index."""
    return sa.or_(_c.c.consumer.in_(guests), _c.c.guest.in_(guests))


# -- reading ------------------------------------------------------------------------
def own_shares(*columns: Any, where: Sequence[Any], source: Any = _c) -> Any:
    """What claims take of their hosts by their rows: ``columns``, provider, classes, ``other``."""
    query = sa.select(*columns, _c.c.provider_id, *(_c.c[c] for c in _hot), _c.c.other)
    return query.select_from(source).where(_c.c.vcpu.is_not(None), *where)


def other_shares(*columns: Any, where: Sequence[Any], source: Any = _c) -> Any:
    """What they take by ``allocations``, likewise: a row for each provider."""
    query = sa.select(*columns, _a.c.provider_id, *(_a.c[c] for c in _hot), _a.c.other)
    return query.select_from(source.join(_a, _a.c.claim_id == _c.c.id)).where(*where)


class OfProjects:
    """Claims of some projects, bound as ``bound`` does, found by an index whatever their form.

    :ivar forms: column of the project, what to read from, and which: of each form
    """

    def __init__(self, kind: str) -> None:
        narrow = [is_narrow, _c.c.project_id.in_(_projects)]
        if kind == 'postgresql':
            narrow.append(models.ProjectPart(_c.c.project_id).in_(_parts))
        wide = [is_wide, _u.c.project_id.in_(_projects)]
        self.forms: list[tuple[Any, Any, list[Any]]] = [
            (_c.c.project_id, _c, narrow),
            (_u.c.project_id, _u.join(_c, _c.c.consumer == _u.c.uuid), wide),
        ]

    def claims(self, *columns: Any, where: Sequence[Any] = ()) -> Any:
        """``project_id`` and ``columns`` of each claim."""
        return sa.union_all(
            *(
                sa.select(project.label('project_id'), *columns)
                .select_from(source)
                .where(*which, *where)
                for project, source, which in self.forms
            )
        )


@functools.cache
def of_projects(kind: str) -> OfProjects:
    """For a kind of database."""
    return OfProjects(kind)


def bound(projects: Sequence[str]) -> dict[str, Any]:
    """The parameters of ``OfProjects``."""
    return {'projects': projects, 'parts': [one[: models.PROJECT_PART] for one in projects]}
