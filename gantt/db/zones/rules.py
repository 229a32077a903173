# SPDX-License-Identifier: Apache-2.0
"""The rule of a server group for a request whose row is opened.

It is said before anything is claimed, wherever that will be: a zone below is told it.  Whoever
stores an answer compares it once more, as the group may be another by then.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from gantt import exceptions
from gantt.core.messages.request import GroupRef
from gantt.core.resources import group_rule
from gantt.core.resources.group_rule import GroupRule
from gantt.db.claims import groups
from gantt.db.claims.held import holds_below
from gantt.db.engine import session
from gantt.db.hosts import providers
from gantt.db.schema import models

_g = models.group_rules
_uuid: Any = sa.bindparam('uuid')
#: Columns of a rule as ``of`` takes them.
COLUMNS = ('policy', 'max_per_host', 'generation', 'policies', 'rule_generation')
_c, _b = models.claims, models.claims_below
_OF_REQUEST = sa.select(_g.c.uuid).where(
    _g.c.uuid == _uuid,
    _g.c.name == '',
    _g.c.generation < group_rule.APART,
    _g.c.members == '[]',
    ~sa.exists().where(models.group_plans.c.group_uuid == _g.c.uuid),
)
#: Whether a rule came with a request, and nobody ever was in its group, here or below.
IS_UNUSED = _OF_REQUEST.where(
    *(~sa.exists().where(table.c.group_uuid == _g.c.uuid) for table in (_c, _b))
)
#: Whether it came with one of a project, and nobody is in its group now.
IS_IDLE = _OF_REQUEST.where(
    _g.c.project_id == sa.bindparam('project', type_=_g.c.project_id.type),
    ~sa.exists().where(_c.c.group_uuid == _g.c.uuid, _c.c.live == 1),
    ~sa.exists().where(_b.c.group_uuid == _g.c.uuid, holds_below),
)
REPLACE = (
    _g.update()
    .where(_g.c.uuid == sa.bindparam('b_uuid'))
    .values(
        policy=sa.bindparam('policy'),
        max_per_host=sa.bindparam('max_per_host'),
        policies=sa.bindparam('policies'),
        generation=_g.c.generation + 1,
        rule_generation=sa.bindparam('rule_generation'),
    )
)
NUMBER = (
    _g.update()
    .where(_g.c.uuid == sa.bindparam('b_uuid'))
    .values(rule_generation=sa.bindparam('rule_generation'))
)
#: Nobody removes or replaces it until the transaction ends.
HOLD = groups.READ.with_for_update(read=True)


def of(row: Sequence[Any]) -> GroupRule | None:
    """A rule out of its columns; None: there is none."""
    policy, most, generation, policies, rule_generation = row
    if policy is None:
        return None
    return GroupRule(policy, most, generation, policies, rule_generation)


def is_numbered(stored: GroupRule | None, declared: int | None, of_parent: bool) -> bool:
    """Whether a rule has its number: the one that a zone above says, else one of here."""
    if stored is None:
        return False
    number = stored.rule_generation
    if of_parent and declared is None:
        return True
    return number is not None and (not of_parent or number >= (declared or 0))


def rule_for(
    tx: session.Tx, group: GroupRef, project_id: str | None, of_parent: bool, declared: int | None
) -> GroupRule:
    """The rule that holds for a request, stored with its group.

    A rule that a request has brought, and of which nobody ever was, is that of whoever comes next.
    A zone above knows best whether its group was made anew: of its requests nobody need be left;
    but one that comes late, under a rule of before, changes nothing.

    :param project_id: of the request
    :param of_parent: it is of a zone above
    :param declared: the generation of the rule there
    :raises Refused: nobody says which, or it names another one than is stored
    """
    stored = _stored(tx, groups.READ, group)
    asked = group_rule.named(group)
    if stored is None and asked is not None:
        _insert(tx, group, asked, project_id, declared if of_parent else _next(tx, None))
        stored = _stored(tx, groups.READ, group)
    try:
        found = group_rule.of_request(group, stored)
        if is_numbered(stored, declared, of_parent):
            return found
        locked = _stored(tx, groups.LOCK, group)
        found = group_rule.of_request(group, locked)
        if not is_numbered(locked, declared, of_parent):
            number = declared if of_parent else _next(tx, None)
            tx.run(NUMBER, b_uuid=group.uuid, rule_generation=number)
            found = msgspec.structs.replace(found, rule_generation=number)
        return found
    except exceptions.NotFound:
        raise
    except exceptions.Refused:
        locked = _stored(tx, groups.LOCK, group)
        if asked is None or locked is None:
            raise
        known = locked.rule_generation
        if of_parent and declared is not None and known is not None and declared <= known:
            raise exceptions.Refused(
                f'server group {group.uuid} exists with {group_rule.in_words(locked)} of '
                f'generation {known}, and {group_rule.in_words(asked)} of generation {declared} '
                'was asked for; expected one of a higher generation, or the same rule',
                uuid=group.uuid,
            ) from None
        found = tx.first(IS_UNUSED, uuid=group.uuid)
        if found is None and of_parent:
            found = tx.first(IS_IDLE, uuid=group.uuid, project=project_id)
        if found is None:
            raise
        number = declared if of_parent else _next(tx, known)
        tx.run(REPLACE, b_uuid=group.uuid, **_values(asked), rule_generation=number)
        providers.announce(tx, 'group', [group.uuid])
        return group_rule.of_request(group, _stored(tx, groups.READ, group))


def is_known(tx: session.Tx, group: GroupRef, declared: int | None) -> bool:
    """Whether what a zone above says of the rule of its group is stored."""
    rule = _stored(tx, groups.READ, group)
    return group_rule.holds(group, rule) and is_numbered(rule, declared, of_parent=True)


def stands(tx: session.Tx, group: GroupRef, project_id: str | None) -> bool:
    """Whether the rule that a request was placed under holds still; until the end it does."""
    asked = group_rule.named(group)
    if asked is None:
        return True
    stored = _stored(tx, HOLD, group)
    if stored is None:
        # Forgotten in between, as nobody was in it.
        _insert(tx, group, asked, project_id, None)
        stored = _stored(tx, HOLD, group)
    return stored is not None and group_rule.agree(asked, stored)


def compared(group: GroupRef | None) -> dict[str, Any]:
    """What a statement is given to compare the rule that a request was placed under."""
    asked = None if group is None else group_rule.named(group)
    if group is None or asked is None:
        return dict.fromkeys(('group', 'policy', 'max_per_host', 'policies'))
    return {'group': group.uuid, **_values(asked)}


def _stored(tx: session.Tx, statement: Any, group: GroupRef) -> GroupRule | None:
    row = tx.first(statement, uuid=group.uuid)
    return None if row is None else of([getattr(row, name) for name in COLUMNS])


def _next(tx: session.Tx, known: int | None) -> int:
    """A number of a rule that is made now: the time, and higher than that of the one before."""
    return max(int(tx.now * 1_000_000), (known or 0) + 1)


def _insert(
    tx: session.Tx, group: GroupRef, rule: GroupRule, project_id: str | None, number: int | None
) -> None:
    values = {
        'uuid': group.uuid,
        'name': '',
        'project_id': project_id,
        'generation': group_rule.first_generation(tx.stamp),
        'members': '[]',
        'rule_generation': number,
        **_values(rule),
    }
    tx.insert_new(_g, [values], 'uuid')
    providers.announce(tx, 'group', [group.uuid])


def _values(rule: GroupRule) -> dict[str, Any]:
    return {'policy': rule.policy, 'max_per_host': rule.max_per_host, 'policies': rule.policies}
