# SPDX-License-Identifier: Apache-2.0
"""What consumers, groups and projects have, here and in zones below.

Whoever asks the book for that asks here.  A claim in a zone below counts as one here while it
holds its consumer: it lives, or may.
"""

import functools
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from gantt.core.claims.claim import NOT_IN_FLIGHT, Claim, State
from gantt.core.messages.request import Lifecycle
from gantt.core.zones.keys import may_be_elsewhere
from gantt.db.claims import openings
from gantt.db.claims.claims import owners_of
from gantt.db.engine import session
from gantt.db.engine.session import reading
from gantt.db.hosts import claim_rows
from gantt.db.hosts.base import HostTables, is_id
from gantt.db.hosts.claim_rows import GUEST, is_live, load_claims, of_guests
from gantt.db.hosts.rows import known_amounts, known_purpose
from gantt.db.schema import models
from gantt.db.schema.models import CORE_CLASS_COLUMNS
from gantt.scheduler.ports.zones import HOLDS, StoredBelow

_b = models.claims_below
_c = models.claims
_r, _way = models.requests, models.consumers_on_their_way
_classes = list(CORE_CLASS_COLUMNS.values())
_uuids: Any = sa.bindparam('uuids', expanding=True)
_projects: Any = sa.bindparam('projects', expanding=True)

#: A claim below that holds its consumer.
holds_below = _b.c.state.in_(HOLDS)
IN_FLIGHT = sa.case(
    (
        sa.and_(
            _c.c.state == State.RESERVED.value,
            _c.c.lifecycle.not_in([one.value for one in NOT_IN_FLIGHT]),
            # No create has it yet: see ``Claim.is_free_place``.
            sa.or_(
                _c.c.lifecycle != Lifecycle.PLAN.value,
                _c.c.member_name.is_(None),
                _c.c.planned.is_not(None),
            ),
        ),
        1,
    ),
    else_=0,
)
_NONE: Any = sa.literal_column('0')
#: What is asked of claims here and below, by the same names: columns of each.
HERE: Mapping[str, Any] = {
    'id': _c.c.id,
    'consumer': _c.c.consumer,
    'guest': GUEST,
    'in_flight': IN_FLIGHT,
    'is_written': sa.case((_c.c.lifecycle == Lifecycle.API.value, 1), else_=0),
    'type': _c.c.consumer_type,
    'user_id': _c.c.user_id,
}
BELOW: Mapping[str, Any] = {
    'id': _b.c.claim_id,
    'consumer': _b.c.consumer,
    'guest': _b.c.consumer,
    'in_flight': sa.case((_b.c.state == State.RESERVED.value, 1), else_=0),
    'is_written': _NONE,
    'type': sa.func.coalesce(_b.c.consumer_type, 'INSTANCE'),
    'user_id': _b.c.user_id,
}


class HeldByProjects:
    """Live claims of some projects, which are bound by ``claim_rows.bound_projects``.

    :param kind: of the database
    """

    def __init__(self, kind: str) -> None:
        self._kind, self._where = kind, [*claim_rows.of_projects(kind), is_live]

    def claims(self, *names: str) -> Any:
        """``project_id`` and what has these names, of each claim."""
        here = sa.select(_c.c.project_id, *_named(HERE, names)).where(*self._where)
        return sa.union_all(here, _below(self._kind, names, _b.c.project_id.in_(_projects)))

    def shares(self, *names: str) -> Any:
        """The same of each claim and provider, with what it takes there by class."""
        columns = _c.c.project_id, *_named(HERE, names)
        return sa.union_all(
            claim_rows.own_shares(*columns, where=self._where),
            claim_rows.other_shares(*columns, where=self._where),
            _below(self._kind, names, _b.c.project_id.in_(_projects), with_amounts=True),
        )


@functools.cache
def of_projects(kind: str) -> HeldByProjects:
    """For a kind of database."""
    return HeldByProjects(kind)


def shares_of_all(kind: str, *names: str, unnamed: bool = False) -> Any:
    """What all live claims take, as ``HeldByProjects.shares`` has it.

    :param unnamed: of those alone whose project nobody has said
    """
    of = _c.c.project_id
    here = [_c.c.live == 1, *([of.is_(None) | (of == '')] if unnamed else [])]
    below = [_b.c.project_id.is_(None) | (_b.c.project_id == '')] if unnamed else []
    theirs = of, *_named(HERE, names)
    return sa.union_all(
        claim_rows.own_shares(*theirs, where=here),
        claim_rows.other_shares(*theirs, where=here),
        _below(kind, names, *below, with_amounts=True),
    )


def _named(columns: Mapping[str, Any], names: Iterable[str]) -> list[Any]:
    return [columns[name].label(name) for name in names]


def _below(kind: str, names: Iterable[str], *where: Any, with_amounts: bool = False) -> Any:
    project: Any = _b.c.project_id
    if kind == 'postgresql':  # where columns of a union are compared, they are of one collation
        project = sa.collate(project, 'default').label('project_id')
    amounts = (_NONE.label('provider_id'), *(_b.c[c] for c in _classes), _b.c.other)
    columns = _named(BELOW, names), amounts if with_amounts else ()
    return sa.select(project, *columns[0], *columns[1]).where(holds_below, *where)


#: Which consumers are held below, and the names of their zones.
ZONES_OF = (
    sa.select(_b.c.consumer, models.child_zones.c.name)
    .join(models.child_zones, models.child_zones.c.uuid == _b.c.child)
    .where(_b.c.consumer.in_(_uuids), holds_below)
    .order_by(_b.c.consumer, _b.c.claim_id)
)


def zones_of(tx: session.Tx, consumers: Collection[str]) -> dict[str, str]:
    """Names of the zones below where consumers live, or may; of the others there is nothing."""
    return dict(map(tuple, tx.all(ZONES_OF, uuids=sorted(consumers)))) if consumers else {}


#: The same, each claim with the uuid of its zone.
BELOW_OF = sa.select(_b.c.child, _b.c.claim_id, _b.c.consumer).where(
    _b.c.consumer.in_(_uuids), holds_below
)


def end_below(tx: session.Tx, consumers: Collection[str]) -> set[str]:
    """Note that what consumers have in zones below is to end; those that have something there."""
    found = tx.all(BELOW_OF, uuids=sorted(consumers)) if consumers else []
    if found:
        openings.add(tx, [(row.child, row.claim_id) for row in found], 0.0)
    return {row.consumer for row in found}


#: Which consumers open requests are placing, and the openings.
ON_THEIR_WAY = (
    sa.select(_way.c.consumer, _r.c.token)
    .join(_r, _r.c.id == _way.c.request_id)
    .where(_way.c.consumer.in_(_uuids), _r.c.state == 'open', _r.c.deadline > sa.bindparam('now'))
)


def on_their_way(tx: session.Tx, consumers: Collection[str]) -> set[str]:
    """Consumers that a request is placing now which may do so in a zone below."""
    if not consumers:
        return set()
    found = tx.all(ON_THEIR_WAY, uuids=sorted(consumers), now=tx.now)
    return {row.consumer for row in found if may_be_elsewhere(row.token)}


#: Guests of live claims by group, the claim that was made first first.
MEMBERS = sa.union_all(
    sa.select(_c.c.group_uuid, HERE['guest'].label('consumer'), _c.c.created_at, _c.c.id).where(
        _c.c.group_uuid.in_(_uuids), _c.c.live == 1
    ),
    sa.select(_b.c.group_uuid, _b.c.consumer, _b.c.created_at, _b.c.claim_id).where(
        _b.c.group_uuid.in_(_uuids), holds_below
    ),
).order_by('created_at', 'id')

ZONES_OF_GROUPS = (
    sa.select(_b.c.group_uuid, _b.c.child)
    .where(_b.c.group_uuid.in_(_uuids), holds_below)
    .distinct()
)


def has_claims_of_group(group: Any) -> Any:
    """Whether a claim is of a group, here or below, one that has ended too."""
    here, below = _c.c.group_uuid == group, _b.c.group_uuid == group
    return sa.or_(sa.exists().where(here), sa.exists().where(below))


def has_claims_of_project(request_id: Any, project: str) -> Any:
    """Whether a request has claims of a project, here or below."""
    here = sa.exists().where(_c.c.request_id == request_id, _c.c.project_id == project)
    below = sa.exists().where(_b.c.request_id == request_id, _b.c.project_id == project)
    return sa.or_(here, below)


def count_below(request_id: Any) -> Any:
    """Claims that a request has in zones below, those that have ended too."""
    query = sa.select(sa.func.count()).select_from(_b).where(_b.c.request_id == request_id)
    return query.scalar_subquery()


class SqlHeld(HostTables):
    """See ``scheduler.ports.claims``, ``quotas`` and ``zones``."""

    @reading
    def live_claims_of(self, tx: session.Tx, consumers: Collection[str]) -> list[Claim]:
        wanted = sorted(filter(is_id, set(consumers)))
        if not wanted:
            return []
        here = load_claims(tx, live=True, where=[of_guests(wanted)])
        below = _claims_below(tx, _b.c.consumer.in_(wanted), holds_below)
        return [*here, *(one.claim for one in below)]

    @reading
    def owners_of(self, tx: session.Tx, consumers: Collection[str]) -> dict[str, str | None]:
        wanted = sorted(filter(is_id, set(consumers)))
        below = sa.select(_b.c.consumer, _b.c.project_id).where(
            _b.c.consumer.in_(wanted), _b.c.read_back.is_(None)
        )
        return {**(dict(map(tuple, tx.all(below))) if wanted else {}), **owners_of(tx, wanted)}

    @reading
    def zones_of_groups(self, tx: session.Tx, uuids: Collection[str]) -> dict[str, set[str]]:
        return zones_of_groups(tx, uuids)

    @reading
    def claims_below(
        self,
        tx: session.Tx,
        request_id: str | None = None,
        consumers: Collection[str] = (),
        child: str = '',
        *,
        claim_id: str | None = None,
        state: str | None = None,
        project: str | None = None,
        group: str | None = None,
        marker: str | None = None,
        limit: int | None = None,
    ) -> list[StoredBelow]:
        equal = {
            _b.c.request_id: request_id,
            _b.c.child: child or None,
            _b.c.claim_id: claim_id,
            _b.c.state: state,
            _b.c.project_id: project,
            _b.c.group_uuid: group,
        }
        ids = [one for one in (request_id, claim_id, group, *consumers) if one is not None]
        if not all(map(is_id, ids)):
            return []
        where = [column == value for column, value in equal.items() if value is not None]
        if consumers:
            where.append(_b.c.consumer.in_(sorted(consumers)))
        if marker is not None:
            where.append(_b.c.claim_id > marker)
        return _claims_below(tx, *where, limit=limit)


def zones_of_groups(tx: session.Tx, uuids: Collection[str]) -> dict[str, set[str]]:
    """The zones below where members of groups live, or may."""
    found: dict[str, set[str]] = {}
    for group, child in tx.all(ZONES_OF_GROUPS, uuids=sorted(uuids)) if uuids else ():
        found.setdefault(group, set()).add(child)
    return found


def _claims_below(tx: session.Tx, *where: Any, limit: int | None = None) -> list[StoredBelow]:
    query = sa.select(_b).where(*where).order_by(_b.c.claim_id, _b.c.child).limit(limit)
    return [_of_below(row) for row in tx.all(query)]


# -- rows of claims below ----------------------------------------------------------------
def below_values(one: StoredBelow) -> dict[str, Any]:
    """The columns of ``claims_below`` but for the request, the times and what is read back."""
    amounts = claim_rows.amount_values(one.resources)
    return {
        'claim_id': one.claim_id,
        'child': one.child,
        'request_key': one.key,
        'consumer': one.consumer,
        'purpose': one.purpose.value,
        'project_id': one.project_id,
        'parent': one.parent,
        'state': one.state,
        'place': one.place,
        'group_uuid': one.group,
        **(amounts if one.resources else dict.fromkeys(amounts)),
        'user_id': one.user_id,
        'consumer_type': one.consumer_type,
    }


def _of_below(row: Any) -> StoredBelow:
    return StoredBelow(
        claim_id=row.claim_id,
        child=row.child,
        request_id=row.request_id,
        key=row.request_key,
        consumer=row.consumer,
        purpose=known_purpose(row.purpose),
        project_id=row.project_id,
        parent=row.parent,
        state=row.state,
        place=row.place,
        group=row.group_uuid,
        read_back=bool(row.read_back),
        resources=claim_rows.amounts(row, '', known_amounts),
        user_id=row.user_id,
        consumer_type=row.consumer_type or 'INSTANCE',
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
