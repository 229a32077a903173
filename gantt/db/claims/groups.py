# SPDX-License-Identifier: Apache-2.0
"""Server groups: the rule, and the generation that guards its placements."""

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from gantt import exceptions
from gantt.core.resources import group_rule
from gantt.core.resources.group_rule import GroupRule
from gantt.core.resources.host import Group
from gantt.db.claims.held import MEMBERS
from gantt.db.database import Database, reading, writing
from gantt.db.engine import session
from gantt.db.engine.arrays import by_key
from gantt.db.hosts import providers, rows
from gantt.db.hosts.base import is_id
from gantt.db.schema import models

_g = models.group_rules

READ = sa.select(_g).where(_g.c.uuid == sa.bindparam('uuid'))
LOCK = READ.with_for_update(key_share=True)
GENERATIONS = sa.select(_g.c.uuid, _g.c.generation)
RULES = sa.select(_g.c.uuid, _g.c.policy, _g.c.max_per_host, _g.c.generation, _g.c.policies)
LOCK_MANY = by_key(
    GENERATIONS.where(_g.c.uuid.in_(sa.bindparam('uuids', expanding=True)))
    .order_by(_g.c.uuid)
    .with_for_update(key_share=True),
    _g,
)
BUMP = _g.update().where(_g.c.uuid == sa.bindparam('b_uuid')).values(generation=_g.c.generation + 1)

COUNT = (
    sa.select(sa.func.count())
    .select_from(_g)
    .where(_g.c.project_id == sa.bindparam('project', type_=_g.c.project_id.type))
)


class SqlGroups:
    """Server groups: ``ports.Groups`` in SQL."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @reading
    def load_group(self, tx: session.Tx, uuid: str) -> Group | None:
        # The rule first: members read after it can only be newer than its generation.
        row = tx.first(READ, uuid=uuid) if is_id(uuid) else None
        return _groups(tx, [row])[0] if row is not None else None

    @reading
    def list_groups(
        self, tx: session.Tx, limit: int, marker: str | None = None, project: str | None = None
    ) -> list[Group]:
        query = sa.select(_g).order_by(_g.c.uuid).limit(limit)
        if marker is not None:
            query = query.where(_g.c.uuid > marker)
        if project is not None:
            query = query.where(_g.c.project_id == project)
        return _groups(tx, tx.all(query))

    @writing
    def save_group(self, tx: session.Tx, group: Group) -> Group:
        rule = group.rule
        values = {
            'uuid': group.uuid,
            'name': group.name,
            'policy': rule.policy,
            'max_per_host': rule.max_per_host,
            'project_id': group.project_id,
            'generation': group_rule.first_generation(tx.stamp, by_itself=True),
            'members': rows.text(group.members),
            'policies': rule.policies,
        }
        stored = tx.first(READ, uuid=group.uuid)
        if stored is None:
            tx.insert_new(_g, [values], 'uuid')
            providers.announce(tx, 'group', [group.uuid])
        row = tx.first(LOCK, uuid=group.uuid)
        group_rule.check(group.uuid, rule, row)
        return _groups(tx, [row])[0]

    @writing
    def remove_group(self, tx: session.Tx, uuid: str) -> None:
        row = tx.first(LOCK, uuid=uuid)
        if row is None:
            raise exceptions.NotFound(kind='server group', name=uuid)
        count = len(tx.all(MEMBERS, uuids=[uuid]))
        if count:
            raise exceptions.InUse(
                f'server group {uuid} has {count} live claims; it can be removed without any',
                uuid=uuid,
                claims=count,
            )
        tx.run(_g.delete().where(_g.c.uuid == uuid))
        tx.run(models.group_plans.delete().where(models.group_plans.c.group_uuid == uuid))
        providers.announce(tx, 'group', [uuid])

    @reading
    def count_groups(self, tx: session.Tx, project: str) -> int:
        return int(tx.first(COUNT, project=project)[0])


def _groups(tx: session.Tx, found: Sequence[Any]) -> list[Group]:
    """Return the groups with their live claims' consumers, members named at creation first."""
    # Members named at creation are only shown, so unreadable ones count as none.
    members = {row.uuid: dict.fromkeys(rows.known_texts(row.members)) for row in found}
    if members:
        for row in tx.all(MEMBERS, uuids=sorted(members)):
            members[row.group_uuid][row.consumer] = None
    return [
        Group(
            uuid=row.uuid,
            name=row.name,
            policy=row.policy,
            project_id=row.project_id,
            generation=row.generation,
            members=list(members[row.uuid]),
        ).ruled(row)
        for row in found
    ]


def rules_of(found: Iterable[tuple[str, str, int, int, str | None]]) -> dict[str, GroupRule]:
    """Return the rules by uuid, of rows of ``RULES``."""
    return {
        uuid: GroupRule(policy, max_per_host, generation, policies)
        for uuid, policy, max_per_host, generation, policies in found
    }


def lock(tx: session.Tx, uuids: Iterable[str]) -> dict[str, int]:
    """Lock groups ascending; return uuid -> generation of those that exist."""
    sorted_uuids = sorted(set(uuids))
    return dict(tx.all(LOCK_MANY, uuids=sorted_uuids)) if sorted_uuids else {}


def bump(tx: session.Tx, uuids: Iterable[str]) -> None:
    """Void what is planned for these groups elsewhere; they are locked."""
    sorted_uuids = sorted(set(uuids))
    if not sorted_uuids:
        return
    tx.many(BUMP, [{'b_uuid': uuid} for uuid in sorted_uuids])
    providers.announce(tx, 'group', sorted_uuids)
