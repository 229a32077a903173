# SPDX-License-Identifier: Apache-2.0
"""Who may do what: every route declares the name of a rule and asks here.

Under ``noauth`` everybody has the role ``admin``.  The rules say which roles
may, so that a strategy that knows its callers needs no change in any handler.
"""

from gantt import exceptions
from gantt.http.world import Caller

READER = ('reader', 'member', 'manager', 'admin', 'service')
MEMBER = ('member', 'manager', 'admin', 'service')
MANAGER = ('manager', 'admin')
ANYBODY: tuple[str, ...] = ()

#: Name of the rule -> roles that meet it; empty: no role is needed.
RULES: dict[str, tuple[str, ...]] = {
    'gantt:root:show': ANYBODY,
    'gantt:health:show': ANYBODY,
    'gantt:metrics:show': ANYBODY,
    'gantt:status:show': READER,
    'gantt:hosts:list': READER,
    'gantt:hosts:show': READER,
    'gantt:hosts:disable': MANAGER,
    'gantt:hosts:enable': MANAGER,
    'gantt:hosts:remove': MANAGER,
    'gantt:aggregates:list': READER,
    'gantt:aggregates:show': READER,
    'gantt:aggregates:set': MANAGER,
    'gantt:aggregates:remove': MANAGER,
    'gantt:server_groups:list': READER,
    'gantt:server_groups:show': READER,
    'gantt:server_groups:create': MEMBER,
    'gantt:server_groups:remove': MEMBER,
    'gantt:requests:create': MEMBER,
    'gantt:requests:show': READER,
    'gantt:requests:cancel': MEMBER,
    'gantt:decisions:list': READER,
    'gantt:decisions:show': READER,  # of the own project, and why in general words
    'gantt:decisions:explain': MANAGER,  # of all, with hosts, numbers and scores
    'gantt:decisions:replay': MANAGER,
    'gantt:what_if:show': MANAGER,
    'gantt:claims:list': READER,
    'gantt:claims:show': READER,
    'gantt:claims:release': MANAGER,
    'gantt:capacity:show': READER,
    'gantt:resource_classes:list': READER,
    'gantt:resource_classes:set': MANAGER,
    'gantt:declared_metrics:list': READER,
    'gantt:declared_metrics:set': MANAGER,
    'gantt:declared_metrics:remove': MANAGER,
}


class Forbidden(exceptions.Refused):
    """The caller has none of the roles that the rule names."""

    code = 'gantt.forbidden'
    http_status = 403
    template = 'rule {rule} needs one of the roles {roles}'


def check(rule: str, caller: Caller) -> None:
    """Let the caller through.

    :raises Forbidden: no role of the caller meets the rule
    :raises Bug: a route names a rule that does not exist
    """
    if not allows(rule, caller):
        raise Forbidden(rule=rule, roles=', '.join(RULES[rule]))


def allows(rule: str, caller: Caller) -> bool:
    """Whether a role of the caller meets the rule.

    :raises Bug: a handler names a rule that does not exist
    """
    if rule not in RULES:
        raise exceptions.Bug(invariant=f'{rule} is a rule of the policy')
    roles = RULES[rule]
    return not roles or bool(set(roles) & set(caller.roles))
