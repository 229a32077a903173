# SPDX-License-Identifier: Apache-2.0
"""Live claims of consumers, groups and projects, here and in child zones.

All queries across both are here.  A claim in a child zone counts like a claim here while it
holds its consumer: it lives, or may live.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from gantt.core.claims.child_claim import HOLDING_STATES, ChildClaim
from gantt.core.claims.claim import LIFECYCLES_WITHOUT_CONFIRMATION, Claim, State
from gantt.core.claims.idempotency_keys import may_be_elsewhere
from gantt.core.messages.request import Lifecycle
from gantt.db.claims import lock_releases
from gantt.db.engine import session
from gantt.db.engine.engine import is_id
from gantt.db.hosts import claim_rows
from gantt.db.hosts.claim_rows import GUEST_UUID, is_live, load_claims, of_guests
from gantt.db.hosts.rows import readable_amounts, readable_purpose
from gantt.db.schema import models
from gantt.db.schema.models import CORE_CLASS_COLUMNS

_child_claims = models.child_claims
_claims = models.claims
_requests, _delegated_consumers = models.requests, models.delegated_consumers
_classes = list(CORE_CLASS_COLUMNS.values())
_uuids: Any = sa.bindparam('uuids', expanding=True)
_projects: Any = sa.bindparam('projects', expanding=True)

#: A claim in a child zone that holds its consumer.
is_live_child_claim = _child_claims.c.state.in_(HOLDING_STATES)
IS_IN_FLIGHT = sa.case(
    (
        sa.and_(
            _claims.c.state == State.RESERVED.value,
            _claims.c.lifecycle.not_in(
                [lifecycle.value for lifecycle in LIFECYCLES_WITHOUT_CONFIRMATION]
            ),
            # No create has taken it yet: see ``Claim.is_free_reservation``.
            sa.or_(
                _claims.c.lifecycle != Lifecycle.PLAN.value,
                _claims.c.member_name.is_(None),
                _claims.c.former_reservation.is_not(None),
            ),
        ),
        1,
    ),
    else_=0,
)
_ZERO: Any = sa.literal_column('0')
#: Columns of claims here and in child zones, by common names.
LOCAL_CLAIM_COLUMNS: Mapping[str, Any] = {
    'id': _claims.c.id,
    'consumer': _claims.c.consumer,
    'guest': GUEST_UUID,
    'in_flight': IS_IN_FLIGHT,
    'is_written': sa.case((_claims.c.lifecycle == Lifecycle.API.value, 1), else_=0),
    'type': _claims.c.consumer_type,
    'user_id': _claims.c.user_id,
}
CHILD_CLAIM_COLUMNS: Mapping[str, Any] = {
    'id': _child_claims.c.claim_id,
    'consumer': _child_claims.c.consumer,
    'guest': _child_claims.c.consumer,
    'in_flight': sa.case((_child_claims.c.state == State.RESERVED.value, 1), else_=0),
    'is_written': _ZERO,
    'type': sa.func.coalesce(_child_claims.c.consumer_type, 'INSTANCE'),
    'user_id': _child_claims.c.user_id,
}


def of_projects(kind: str, *names: str) -> Any:
    """Return a query of ``project_id`` and the named columns, of each live claim of some projects.

    Projects are bound by ``claim_rows.bound_projects``.

    :param kind: kind of the database
    """
    own_claims = sa.select(_claims.c.project_id, *_named(LOCAL_CLAIM_COLUMNS, names))
    return sa.union_all(
        own_claims.where(*claim_rows.of_projects(kind), is_live),
        _below(kind, names, _child_claims.c.project_id.in_(_projects)),
    )


def shares_of_projects(kind: str, *names: str) -> Any:
    """Return a query like ``of_projects``, a row per claim and provider, with amounts by class."""
    own_filters = [*claim_rows.of_projects(kind), is_live]
    columns = _claims.c.project_id, *_named(LOCAL_CLAIM_COLUMNS, names)
    return sa.union_all(
        claim_rows.own_shares(*columns, where=own_filters),
        claim_rows.other_shares(*columns, where=own_filters),
        _below(kind, names, _child_claims.c.project_id.in_(_projects), with_amounts=True),
    )


def shares_of_all(kind: str, *names: str, unnamed: bool = False) -> Any:
    """Return a query of the amounts of all live claims, like ``shares_of_projects``.

    :param unnamed: only claims without a project
    """
    project_id = _claims.c.project_id
    own_filters = [
        _claims.c.live == 1,
        *([project_id.is_(None) | (project_id == '')] if unnamed else []),
    ]
    below_filters = (
        [_child_claims.c.project_id.is_(None) | (_child_claims.c.project_id == '')]
        if unnamed
        else []
    )
    columns = project_id, *_named(LOCAL_CLAIM_COLUMNS, names)
    return sa.union_all(
        claim_rows.own_shares(*columns, where=own_filters),
        claim_rows.other_shares(*columns, where=own_filters),
        _below(kind, names, *below_filters, with_amounts=True),
    )


def _named(columns: Mapping[str, Any], names: Iterable[str]) -> list[Any]:
    return [columns[name].label(name) for name in names]


def _below(kind: str, names: Iterable[str], *where: Any, with_amounts: bool = False) -> Any:
    project: Any = _child_claims.c.project_id
    if kind == 'postgresql':  # compared columns of a union need one collation
        project = sa.collate(project, 'default').label('project_id')
    amounts = (
        _ZERO.label('provider_id'),
        *(_child_claims.c[c] for c in _classes),
        _child_claims.c.other,
    )
    column_groups = _named(CHILD_CLAIM_COLUMNS, names), amounts if with_amounts else ()
    return sa.select(project, *column_groups[0], *column_groups[1]).where(
        is_live_child_claim, *where
    )


#: Consumers that are held in child zones, with the names of their zones.
SELECT_ZONES_OF_CONSUMERS = (
    sa.select(_child_claims.c.consumer, models.child_zones.c.name)
    .join(models.child_zones, models.child_zones.c.uuid == _child_claims.c.child)
    .where(_child_claims.c.consumer.in_(_uuids), is_live_child_claim)
    .order_by(_child_claims.c.consumer, _child_claims.c.claim_id)
)


def zones_of_consumers(tx: session.Tx, consumers: Collection[str]) -> dict[str, str]:
    """Return consumer -> child zone where it lives or may live; without other consumers."""
    return dict(map(tuple, tx.in_parts(SELECT_ZONES_OF_CONSUMERS, uuids=sorted(consumers))))


#: The same for each claim, with the uuid of its zone.
SELECT_CHILD_CLAIMS = sa.select(
    _child_claims.c.child, _child_claims.c.claim_id, _child_claims.c.consumer
).where(_child_claims.c.consumer.in_(_uuids), is_live_child_claim)


def end_child_claims(tx: session.Tx, consumers: Collection[str]) -> set[str]:
    """Note that claims of consumers in child zones are to end; return those consumers."""
    claims = tx.all(SELECT_CHILD_CLAIMS, uuids=sorted(consumers)) if consumers else []
    if claims:
        lock_releases.add_releases(tx, [(row.child, row.claim_id) for row in claims], 0.0)
    return {row.consumer for row in claims}


#: Consumers that open requests are placing, with the openings.
SELECT_CONSUMERS_BEING_PLACED = (
    sa.select(_delegated_consumers.c.consumer, _requests.c.token)
    .join(_requests, _requests.c.id == _delegated_consumers.c.request_id)
    .where(
        _delegated_consumers.c.consumer.in_(_uuids),
        _requests.c.state == 'open',
        _requests.c.deadline > sa.bindparam('now'),
    )
)


def consumers_being_placed(tx: session.Tx, consumers: Collection[str]) -> set[str]:
    """Return the consumers that a request is placing now, possibly in a child zone."""
    if not consumers:
        return set()
    consumer_rows = tx.all(SELECT_CONSUMERS_BEING_PLACED, uuids=sorted(consumers), now=tx.now)
    return {row.consumer for row in consumer_rows if may_be_elsewhere(row.token)}


#: Guests of live claims by group, the oldest claim first.
SELECT_GROUP_MEMBERS = sa.union_all(
    sa.select(
        _claims.c.group_uuid,
        LOCAL_CLAIM_COLUMNS['guest'].label('consumer'),
        _claims.c.created_at,
        _claims.c.id,
    ).where(_claims.c.group_uuid.in_(_uuids), _claims.c.live == 1),
    sa.select(
        _child_claims.c.group_uuid,
        _child_claims.c.consumer,
        _child_claims.c.created_at,
        _child_claims.c.claim_id,
    ).where(_child_claims.c.group_uuid.in_(_uuids), is_live_child_claim),
).order_by('created_at', 'id')

SELECT_ZONES_OF_GROUPS = (
    sa.select(_child_claims.c.group_uuid, _child_claims.c.child)
    .where(_child_claims.c.group_uuid.in_(_uuids), is_live_child_claim)
    .distinct()
)


def has_claims_of_group(group: Any) -> Any:
    """Return a condition: a claim, live or ended, is of a group, here or in a child zone."""
    own_filter, below_filter = _claims.c.group_uuid == group, _child_claims.c.group_uuid == group
    return sa.or_(sa.exists().where(own_filter), sa.exists().where(below_filter))


def has_claims_of_project(request_id: Any, project: str) -> Any:
    """Return a condition: a request has claims of a project, here or in a child zone."""
    own_claim = sa.exists().where(
        _claims.c.request_id == request_id, _claims.c.project_id == project
    )
    claim_below = sa.exists().where(
        _child_claims.c.request_id == request_id, _child_claims.c.project_id == project
    )
    return sa.or_(own_claim, claim_below)


def count_child_claims(request_id: Any) -> Any:
    """Return a query of the number of claims of a request in child zones, with ended ones."""
    query = (
        sa.select(sa.func.count())
        .select_from(_child_claims)
        .where(_child_claims.c.request_id == request_id)
    )
    return query.scalar_subquery()


def live_claims_of(tx: session.Tx, consumers: Collection[str]) -> list[Claim]:
    """Return the live claims of consumers, here and below; see ``ports.Claims``."""
    consumer_ids = sorted(filter(is_id, set(consumers)))
    if not consumer_ids:
        return []
    own_claims = load_claims(tx, live=True, where=[of_guests(consumer_ids)])
    stored_below = child_claims(tx, _child_claims.c.consumer.in_(consumer_ids), is_live_child_claim)
    return [*own_claims, *(stored.claim for stored in stored_below)]


def owners_of(tx: session.Tx, consumers: Iterable[str]) -> dict[str, str | None]:
    """Return consumer -> project, of the consumers with a stored claim, live or ended."""
    owner_columns = claim_rows.owners(tx, list(filter(is_id, consumers)))
    return {consumer: columns['project_id'] for consumer, columns in owner_columns.items()}


def stored_owners_of(tx: session.Tx, consumers: Collection[str]) -> dict[str, str | None]:
    """Return the projects that consumers belong to; see ``ports.Quotas.owners_of``."""
    consumer_ids = sorted(filter(is_id, set(consumers)))
    owners_below = sa.select(_child_claims.c.consumer, _child_claims.c.project_id).where(
        _child_claims.c.consumer.in_(consumer_ids), _child_claims.c.restored.is_(None)
    )
    return {
        **(dict(map(tuple, tx.all(owners_below))) if consumer_ids else {}),
        **owners_of(tx, consumer_ids),
    }


def child_claims(tx: session.Tx, *where: Any, limit: int | None = None) -> list[ChildClaim]:
    """Return claims in child zones by id."""
    query = (
        sa.select(_child_claims)
        .where(*where)
        .order_by(_child_claims.c.claim_id, _child_claims.c.child)
        .limit(limit)
    )
    return [_child_claim(row) for row in tx.all(query)]


def zones_of_groups(tx: session.Tx, uuids: Collection[str]) -> dict[str, set[str]]:
    """Return group -> child zones where its members live, or may live."""
    zones: dict[str, set[str]] = {}
    for group, child in tx.all(SELECT_ZONES_OF_GROUPS, uuids=sorted(uuids)) if uuids else ():
        zones.setdefault(group, set()).add(child)
    return zones


# -- rows of claims in child zones ----------------------------------------------------------------
def child_claim_values(claim: ChildClaim) -> dict[str, Any]:
    """Return the columns of ``child_claims`` except request, times and ``restored``."""
    amounts = claim_rows.amount_values(claim.resources)
    return {
        'claim_id': claim.claim_id,
        'child': claim.child,
        'request_key': claim.key,
        'consumer': claim.consumer,
        'purpose': claim.purpose.value,
        'project_id': claim.project_id,
        'parent': claim.parent,
        'state': claim.state,
        'sealed_host': claim.sealed_host,
        'group_uuid': claim.group,
        **(amounts if claim.resources else dict.fromkeys(amounts)),
        'user_id': claim.user_id,
        'consumer_type': claim.consumer_type,
    }


def _child_claim(row: Any) -> ChildClaim:
    return ChildClaim(
        claim_id=row.claim_id,
        child=row.child,
        request_id=row.request_id,
        key=row.request_key,
        consumer=row.consumer,
        purpose=readable_purpose(row.purpose),
        project_id=row.project_id,
        parent=row.parent,
        state=row.state,
        sealed_host=row.sealed_host,
        group=row.group_uuid,
        restored=bool(row.restored),
        resources=claim_rows.amounts(row, '', readable_amounts),
        user_id=row.user_id,
        consumer_type=row.consumer_type or 'INSTANCE',
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
