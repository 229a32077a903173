# SPDX-License-Identifier: Apache-2.0
"""Live claims of consumers, groups and projects, here and in child zones.

All queries across both are here.  A claim in a child zone counts like a claim here while it
holds its consumer: it lives, or may live.
"""

import functools
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from gantt.core.claims.claim import NOT_IN_FLIGHT, Claim, State
from gantt.core.messages.request import Lifecycle
from gantt.core.zones.idempotency_keys import may_be_elsewhere
from gantt.db.claims import lock_releases
from gantt.db.engine import session
from gantt.db.hosts import claim_rows
from gantt.db.hosts.base import is_id
from gantt.db.hosts.claim_rows import GUEST, is_live, load_claims, of_guests
from gantt.db.hosts.rows import known_amounts, known_purpose
from gantt.db.schema import models
from gantt.db.schema.models import CORE_CLASS_COLUMNS
from gantt.scheduler.ports.zones import HOLDS, StoredBelow

_b = models.child_claims
_c = models.claims
_r, _way = models.requests, models.delegated_consumers
_classes = list(CORE_CLASS_COLUMNS.values())
_uuids: Any = sa.bindparam('uuids', expanding=True)
_projects: Any = sa.bindparam('projects', expanding=True)

#: A claim in a child zone that holds its consumer.
holds_below = _b.c.state.in_(HOLDS)
IN_FLIGHT = sa.case(
    (
        sa.and_(
            _c.c.state == State.RESERVED.value,
            _c.c.lifecycle.not_in([one.value for one in NOT_IN_FLIGHT]),
            # No create has taken it yet: see ``Claim.is_free_reservation``.
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
#: Columns of claims here and in child zones, by common names.
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
    """Queries of live claims of some projects, bound by ``claim_rows.bound_projects``.

    :param kind: of the database
    """

    def __init__(self, kind: str) -> None:
        self._kind, self._where = kind, [*claim_rows.of_projects(kind), is_live]

    def claims(self, *names: str) -> Any:
        """Return a query of ``project_id`` and the named columns, of each claim."""
        own_claims = sa.select(_c.c.project_id, *_named(HERE, names)).where(*self._where)
        return sa.union_all(own_claims, _below(self._kind, names, _b.c.project_id.in_(_projects)))

    def shares(self, *names: str) -> Any:
        """Return the same query for each claim and provider, with the amounts there by class."""
        columns = _c.c.project_id, *_named(HERE, names)
        return sa.union_all(
            claim_rows.own_shares(*columns, where=self._where),
            claim_rows.other_shares(*columns, where=self._where),
            _below(self._kind, names, _b.c.project_id.in_(_projects), with_amounts=True),
        )


@functools.cache
def of_projects(kind: str) -> HeldByProjects:
    """Return the queries for a kind of database."""
    return HeldByProjects(kind)


def shares_of_all(kind: str, *names: str, unnamed: bool = False) -> Any:
    """Return a query of the amounts of all live claims, like ``HeldByProjects.shares``.

    :param unnamed: only claims without a project
    """
    project_id = _c.c.project_id
    own_filters = [
        _c.c.live == 1,
        *([project_id.is_(None) | (project_id == '')] if unnamed else []),
    ]
    below_filters = [_b.c.project_id.is_(None) | (_b.c.project_id == '')] if unnamed else []
    columns = project_id, *_named(HERE, names)
    return sa.union_all(
        claim_rows.own_shares(*columns, where=own_filters),
        claim_rows.other_shares(*columns, where=own_filters),
        _below(kind, names, *below_filters, with_amounts=True),
    )


def _named(columns: Mapping[str, Any], names: Iterable[str]) -> list[Any]:
    return [columns[name].label(name) for name in names]


def _below(kind: str, names: Iterable[str], *where: Any, with_amounts: bool = False) -> Any:
    project: Any = _b.c.project_id
    if kind == 'postgresql':  # compared columns of a union need one collation
        project = sa.collate(project, 'default').label('project_id')
    amounts = (_NONE.label('provider_id'), *(_b.c[c] for c in _classes), _b.c.other)
    column_groups = _named(BELOW, names), amounts if with_amounts else ()
    return sa.select(project, *column_groups[0], *column_groups[1]).where(holds_below, *where)


#: Consumers that are held in child zones, with the names of their zones.
ZONES_OF = (
    sa.select(_b.c.consumer, models.child_zones.c.name)
    .join(models.child_zones, models.child_zones.c.uuid == _b.c.child)
    .where(_b.c.consumer.in_(_uuids), holds_below)
    .order_by(_b.c.consumer, _b.c.claim_id)
)


def zones_of(tx: session.Tx, consumers: Collection[str]) -> dict[str, str]:
    """Return consumer -> name of the child zone where it lives, or may; others are left out."""
    return dict(map(tuple, tx.all(ZONES_OF, uuids=sorted(consumers)))) if consumers else {}


#: The same for each claim, with the uuid of its zone.
BELOW_OF = sa.select(_b.c.child, _b.c.claim_id, _b.c.consumer).where(
    _b.c.consumer.in_(_uuids), holds_below
)


def end_below(tx: session.Tx, consumers: Collection[str]) -> set[str]:
    """Note that claims of consumers in child zones are to end; return those consumers."""
    claims = tx.all(BELOW_OF, uuids=sorted(consumers)) if consumers else []
    if claims:
        lock_releases.add(tx, [(row.child, row.claim_id) for row in claims], 0.0)
    return {row.consumer for row in claims}


#: Consumers that open requests are placing, with the openings.
ON_THEIR_WAY = (
    sa.select(_way.c.consumer, _r.c.token)
    .join(_r, _r.c.id == _way.c.request_id)
    .where(_way.c.consumer.in_(_uuids), _r.c.state == 'open', _r.c.deadline > sa.bindparam('now'))
)


def on_their_way(tx: session.Tx, consumers: Collection[str]) -> set[str]:
    """Return the consumers that a request is placing now, possibly in a child zone."""
    if not consumers:
        return set()
    consumer_rows = tx.all(ON_THEIR_WAY, uuids=sorted(consumers), now=tx.now)
    return {row.consumer for row in consumer_rows if may_be_elsewhere(row.token)}


#: Guests of live claims by group, the oldest claim first.
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
    """Return a condition: a claim, live or ended, is of a group, here or in a child zone."""
    own_filter, below_filter = _c.c.group_uuid == group, _b.c.group_uuid == group
    return sa.or_(sa.exists().where(own_filter), sa.exists().where(below_filter))


def has_claims_of_project(request_id: Any, project: str) -> Any:
    """Return a condition: a request has claims of a project, here or in a child zone."""
    own_claim = sa.exists().where(_c.c.request_id == request_id, _c.c.project_id == project)
    claim_below = sa.exists().where(_b.c.request_id == request_id, _b.c.project_id == project)
    return sa.or_(own_claim, claim_below)


def count_below(request_id: Any) -> Any:
    """Return a query of the number of claims of a request in child zones, with ended ones."""
    query = sa.select(sa.func.count()).select_from(_b).where(_b.c.request_id == request_id)
    return query.scalar_subquery()


def live_claims_of(tx: session.Tx, consumers: Collection[str]) -> list[Claim]:
    """Return the live claims of consumers, here and below; see ``ports.Claims``."""
    consumer_ids = sorted(filter(is_id, set(consumers)))
    if not consumer_ids:
        return []
    own_claims = load_claims(tx, live=True, where=[of_guests(consumer_ids)])
    stored_below = child_claims(tx, _b.c.consumer.in_(consumer_ids), holds_below)
    return [*own_claims, *(stored.claim for stored in stored_below)]


def owners_of(tx: session.Tx, consumers: Iterable[str]) -> dict[str, str | None]:
    """Return consumer -> project, of the consumers with a stored claim, live or ended."""
    owner_columns = claim_rows.owners(tx, list(filter(is_id, consumers)))
    return {consumer: columns['project_id'] for consumer, columns in owner_columns.items()}


def stored_owners_of(tx: session.Tx, consumers: Collection[str]) -> dict[str, str | None]:
    """Return the projects that consumers belong to; see ``ports.Quotas.owners_of``."""
    consumer_ids = sorted(filter(is_id, set(consumers)))
    owners_below = sa.select(_b.c.consumer, _b.c.project_id).where(
        _b.c.consumer.in_(consumer_ids), _b.c.read_back.is_(None)
    )
    return {
        **(dict(map(tuple, tx.all(owners_below))) if consumer_ids else {}),
        **owners_of(tx, consumer_ids),
    }


def child_claims(tx: session.Tx, *where: Any, limit: int | None = None) -> list[StoredBelow]:
    """Return claims in child zones by id."""
    query = sa.select(_b).where(*where).order_by(_b.c.claim_id, _b.c.child).limit(limit)
    return [_of_below(row) for row in tx.all(query)]


def zones_of_groups(tx: session.Tx, uuids: Collection[str]) -> dict[str, set[str]]:
    """Return group -> child zones where its members live, or may live."""
    zones: dict[str, set[str]] = {}
    for group, child in tx.all(ZONES_OF_GROUPS, uuids=sorted(uuids)) if uuids else ():
        zones.setdefault(group, set()).add(child)
    return zones


# -- rows of claims below ----------------------------------------------------------------
def below_values(one: StoredBelow) -> dict[str, Any]:
    """Return the columns of ``child_claims`` except request, times and ``read_back``."""
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
