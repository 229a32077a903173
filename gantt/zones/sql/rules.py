# SPDX-License-Identifier: Apache-2.0
"""The rule of a server group for a request whose row is opened.

It is determined before anything is claimed, wherever that will be: a child zone is sent it.  The
transaction that stores an answer compares it once more, as the group may have changed by then.
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
from gantt.db.engine import session
from gantt.db.engine.session import bound
from gantt.db.hosts import providers
from gantt.db.schema import models

_group_rules = models.group_rules
_uuid: Any = sa.bindparam('uuid')
#: Columns of a rule as ``rule_of_row`` takes them.
RULE_COLUMNS = ('policy', 'max_per_host', 'generation', 'policies', 'rule_generation')
_claims, _child_claims = models.claims, models.child_claims
#: Finds a rule that came with a request, and whose group never had a member, here or below.
UNUSED_GROUP = groups.SELECT_GROUP_OF_REQUEST.where(
    *(
        ~sa.exists().where(table.c.group_uuid == _group_rules.c.uuid)
        for table in (_claims, _child_claims)
    )
)
REPLACE_RULE = (
    _group_rules.update()
    .where(_group_rules.c.uuid == sa.bindparam('b_uuid'))
    .values(
        generation=_group_rules.c.generation + 1,
        **bound('policy', 'max_per_host', 'policies', 'rule_generation'),
    )
)
SET_GENERATION = (
    _group_rules.update()
    .where(_group_rules.c.uuid == sa.bindparam('b_uuid'))
    .values(bound('rule_generation'))
)
#: Lock against removal or replacement until the transaction ends.
LOCK_RULE = groups.SELECT_GROUP.with_for_update(read=True)


def rule_of_row(row: Sequence[Any]) -> GroupRule | None:
    """Return the rule in its columns; None if there is none."""
    policy, max_per_host, generation, policies, rule_generation = row
    if policy is None:
        return None
    return GroupRule(policy, max_per_host, generation, policies, rule_generation)


def has_generation(stored: GroupRule | None, declared: int | None, of_parent: bool) -> bool:
    """Return whether a rule has its number: the one of the parent zone, else one of this zone."""
    if stored is None:
        return False
    number = stored.rule_generation
    if of_parent and declared is None:
        return True
    return number is not None and (not of_parent or number >= (declared or 0))


def rule_for(
    tx: session.Tx, group: GroupRef, project_id: str | None, of_parent: bool, declared: int | None
) -> GroupRule:
    """Return the rule that holds for a request, after storing it with its group.

    A rule that came with a request, and whose group never had a member, is replaced by that of the
    next request.  A parent zone decides whether its group was created anew, as none of its requests
    may be left; but a late request, under an earlier rule, changes nothing.

    :param project_id: of the request
    :param of_parent: the request is of a parent zone
    :param declared: the generation of the rule there
    :raises Refused: the request names no rule, or another one than is stored
    """
    stored_rule = _stored_rule(tx, groups.SELECT_GROUP, group)
    named_rule = group_rule.requested_rule(group)
    if stored_rule is None and named_rule is not None:
        _insert_rule(
            tx, group, named_rule, project_id, declared if of_parent else _next_generation(tx, None)
        )
        stored_rule = _stored_rule(tx, groups.SELECT_GROUP, group)
    try:
        rule = group_rule.rule_in_force(group, stored_rule)
        if has_generation(stored_rule, declared, of_parent):
            return rule
        locked = _stored_rule(tx, groups.LOCK_GROUP, group)
        rule = group_rule.rule_in_force(group, locked)
        if not has_generation(locked, declared, of_parent):
            number = declared if of_parent else _next_generation(tx, None)
            tx.run(SET_GENERATION, b_uuid=group.uuid, rule_generation=number)
            rule = msgspec.structs.replace(rule, rule_generation=number)
        return rule
    except exceptions.NotFound:
        raise
    except exceptions.Refused:
        locked = _stored_rule(tx, groups.LOCK_GROUP, group)
        if named_rule is None or locked is None:
            raise
        known_number = locked.rule_generation
        if (
            of_parent
            and declared is not None
            and known_number is not None
            and declared <= known_number
        ):
            raise exceptions.Refused(
                f'server group {group.uuid} exists with {group_rule.rule_text(locked)} of '
                f'generation {known_number}, and {group_rule.rule_text(named_rule)} of generation '
                f'{declared} was asked for; expected one of a higher generation, or the same rule',
                uuid=group.uuid,
            ) from None
        rule = tx.first(UNUSED_GROUP, uuid=group.uuid)
        if rule is None and of_parent:
            rule = tx.first(groups.SELECT_IDLE_GROUP, uuid=group.uuid, project=project_id)
        if rule is None:
            raise
        number = declared if of_parent else _next_generation(tx, known_number)
        tx.run(REPLACE_RULE, b_uuid=group.uuid, **_rule_values(named_rule), rule_generation=number)
        providers.announce(tx, 'group', [group.uuid])
        return group_rule.rule_in_force(group, _stored_rule(tx, groups.SELECT_GROUP, group))


def is_rule_stored(tx: session.Tx, group: GroupRef, declared: int | None) -> bool:
    """Return whether the rule that a parent zone states for its group is stored."""
    rule = _stored_rule(tx, groups.SELECT_GROUP, group)
    return group_rule.is_stored_rule(group, rule) and has_generation(rule, declared, of_parent=True)


def is_rule_in_force(tx: session.Tx, group: GroupRef, project_id: str | None) -> bool:
    """Return whether the rule that a request was placed under still holds; lock it."""
    named_rule = group_rule.requested_rule(group)
    if named_rule is None:
        return True
    stored_rule = _stored_rule(tx, LOCK_RULE, group)
    if stored_rule is None:
        # Deleted in between, as the group had no members.
        _insert_rule(tx, group, named_rule, project_id, None)
        stored_rule = _stored_rule(tx, LOCK_RULE, group)
    return stored_rule is not None and group_rule.rules_equal(named_rule, stored_rule)


def rule_parameters(group: GroupRef | None) -> dict[str, Any]:
    """Return parameters to compare the rule that a request was placed under."""
    named_rule = None if group is None else group_rule.requested_rule(group)
    if group is None or named_rule is None:
        return dict.fromkeys(('group', 'policy', 'max_per_host', 'policies'))
    return {'group': group.uuid, **_rule_values(named_rule)}


def _stored_rule(tx: session.Tx, statement: Any, group: GroupRef) -> GroupRule | None:
    row = tx.first(statement, uuid=group.uuid)
    return None if row is None else rule_of_row([getattr(row, name) for name in RULE_COLUMNS])


def _next_generation(tx: session.Tx, known: int | None) -> int:
    """Return a number for a new rule: the time, and higher than that of the rule before."""
    return max(int(tx.now * 1_000_000), (known or 0) + 1)


def _insert_rule(
    tx: session.Tx, group: GroupRef, rule: GroupRule, project_id: str | None, number: int | None
) -> None:
    values = {
        'uuid': group.uuid,
        'name': '',
        'project_id': project_id,
        'generation': group_rule.first_generation(tx.stamp),
        'members': '[]',
        'rule_generation': number,
        **_rule_values(rule),
    }
    tx.insert_new(_group_rules, [values], 'uuid')
    providers.announce(tx, 'group', [group.uuid])


def _rule_values(rule: GroupRule) -> dict[str, Any]:
    return {'policy': rule.policy, 'max_per_host': rule.max_per_host, 'policies': rule.policies}
