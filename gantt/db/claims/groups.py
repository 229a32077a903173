# SPDX-License-Identifier: Apache-2.0
"""Server groups: the rule, and the generation that guards its placements."""

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from gantt import exceptions
from gantt.core.resources import group_rule
from gantt.core.resources.group_rule import GroupRule
from gantt.core.resources.host import Group
from gantt.db.claims.held import SELECT_GROUP_MEMBERS, is_live_child_claim
from gantt.db.database import SqlStore, reading, writing
from gantt.db.engine import session
from gantt.db.engine.arrays import lock_by_key
from gantt.db.engine.engine import is_id
from gantt.db.hosts import providers, rows
from gantt.db.schema import models

_group_rules = models.group_rules
_claims, _child_claims = models.claims, models.child_claims

SELECT_GROUP = sa.select(_group_rules).where(_group_rules.c.uuid == sa.bindparam('uuid'))
LOCK_GROUP = SELECT_GROUP.with_for_update(key_share=True)
SELECT_GENERATIONS = sa.select(_group_rules.c.uuid, _group_rules.c.generation)
SELECT_RULES = sa.select(
    _group_rules.c.uuid,
    _group_rules.c.policy,
    _group_rules.c.max_per_host,
    _group_rules.c.generation,
    _group_rules.c.policies,
)
LOCK_GROUPS = lock_by_key(
    SELECT_GENERATIONS.where(_group_rules.c.uuid.in_(sa.bindparam('uuids', expanding=True)))
    .order_by(_group_rules.c.uuid)
    .with_for_update(key_share=True),
    _group_rules,
)
INCREMENT_GENERATION = (
    _group_rules.update()
    .where(_group_rules.c.uuid == sa.bindparam('b_uuid'))
    .values(generation=_group_rules.c.generation + 1)
)

COUNT_GROUPS_OF_PROJECT = (
    sa.select(sa.func.count())
    .select_from(_group_rules)
    .where(
        _group_rules.c.project_id == sa.bindparam('project', type_=_group_rules.c.project_id.type)
    )
)
#: Finds a rule that came with a request.
SELECT_GROUP_OF_REQUEST = sa.select(_group_rules.c.uuid).where(
    _group_rules.c.uuid == sa.bindparam('uuid'),
    _group_rules.c.name == '',
    _group_rules.c.generation < group_rule.OWN_GROUPS_GENERATION,
    _group_rules.c.members == '[]',
    ~sa.exists().where(models.group_plans.c.group_uuid == _group_rules.c.uuid),
)
#: Finds a rule that came with a request of a project, and whose group has no member now.
SELECT_IDLE_GROUP = SELECT_GROUP_OF_REQUEST.where(
    _group_rules.c.project_id == sa.bindparam('project', type_=_group_rules.c.project_id.type),
    ~sa.exists().where(_claims.c.group_uuid == _group_rules.c.uuid, _claims.c.live == 1),
    ~sa.exists().where(_child_claims.c.group_uuid == _group_rules.c.uuid, is_live_child_claim),
)


class SqlGroups(SqlStore):
    """Server groups: ``ports.Groups`` in SQL."""

    @reading
    def load_group(self, tx: session.Tx, uuid: str) -> Group | None:
        # The rule first: members read after it can only be newer than its generation.
        row = tx.first(SELECT_GROUP, uuid=uuid) if is_id(uuid) else None
        return _groups(tx, [row])[0] if row is not None else None

    @reading
    def list_groups(
        self, tx: session.Tx, limit: int, marker: str | None = None, project: str | None = None
    ) -> list[Group]:
        query = sa.select(_group_rules).order_by(_group_rules.c.uuid).limit(limit)
        if marker is not None:
            query = query.where(_group_rules.c.uuid > marker)
        if project is not None:
            query = query.where(_group_rules.c.project_id == project)
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
            'members': rows.json_text(group.members),
            'policies': rule.policies,
        }
        stored = tx.first(SELECT_GROUP, uuid=group.uuid)
        if stored is None:
            tx.insert_new(_group_rules, [values], 'uuid')
            providers.announce(tx, 'group', [group.uuid])
        row = tx.first(LOCK_GROUP, uuid=group.uuid)
        group_rule.check(group.uuid, rule, row)
        return _groups(tx, [row])[0]

    @writing
    def remove_group(self, tx: session.Tx, uuid: str) -> None:
        row = tx.first(LOCK_GROUP, uuid=uuid)
        if row is None:
            raise exceptions.NotFound(kind='server group', name=uuid)
        count = len(tx.all(SELECT_GROUP_MEMBERS, uuids=[uuid]))
        if count:
            raise exceptions.InUse(
                f'server group {uuid} has {count} live claims; it can be removed without any',
                uuid=uuid,
                claims=count,
            )
        tx.run(_group_rules.delete().where(_group_rules.c.uuid == uuid))
        tx.run(models.group_plans.delete().where(models.group_plans.c.group_uuid == uuid))
        providers.announce(tx, 'group', [uuid])

    @reading
    def is_idle_group(self, tx: session.Tx, uuid: str, project: str | None) -> bool:
        return tx.first(SELECT_IDLE_GROUP, uuid=uuid, project=project) is not None

    @reading
    def count_groups(self, tx: session.Tx, project: str) -> int:
        return int(tx.first(COUNT_GROUPS_OF_PROJECT, project=project)[0])


def _groups(tx: session.Tx, group_rows: Sequence[Any]) -> list[Group]:
    """Return the groups with their live claims' consumers, members named at creation first."""
    # Members named at creation are only shown, so unreadable ones count as none.
    members = {row.uuid: dict.fromkeys(rows.readable_texts(row.members)) for row in group_rows}
    if members:
        for row in tx.all(SELECT_GROUP_MEMBERS, uuids=sorted(members)):
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
        for row in group_rows
    ]


def rules_of(rule_rows: Iterable[tuple[str, str, int, int, str | None]]) -> dict[str, GroupRule]:
    """Return the rules by uuid, of rows of ``SELECT_RULES``."""
    return {
        uuid: GroupRule(policy, max_per_host, generation, policies)
        for uuid, policy, max_per_host, generation, policies in rule_rows
    }


def lock_groups(tx: session.Tx, uuids: Iterable[str]) -> dict[str, int]:
    """Lock groups ascending; return uuid -> generation of those that exist."""
    sorted_uuids = sorted(set(uuids))
    return dict(tx.all(LOCK_GROUPS, uuids=sorted_uuids)) if sorted_uuids else {}


def increment_generations(tx: session.Tx, uuids: Iterable[str]) -> None:
    """Increase the generations of locked groups: plans made from the old ones are refused."""
    sorted_uuids = sorted(set(uuids))
    if not sorted_uuids:
        return
    tx.run_many(INCREMENT_GENERATION, [{'b_uuid': uuid} for uuid in sorted_uuids])
    providers.announce(tx, 'group', sorted_uuids)
