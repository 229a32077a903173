# SPDX-License-Identifier: Apache-2.0
"""The rules of the groups that requests are of."""

from gantt import exceptions
from gantt.core.messages.request import GroupRef, SelectDestinations
from gantt.core.resources import group_rule
from gantt.core.resources.group_rule import GroupRule
from gantt.scheduler.ports import Groups, ZoneRequests


def rule_of(
    groups: Groups,
    zone_requests: ZoneRequests,
    request: SelectDestinations,
    group: GroupRef,
    stored: GroupRule | None,
) -> GroupRule:
    """Return the rule that holds for a request of a group.

    A parent zone may have created its group anew: without members here its rule holds.

    :param stored: as it is known here; None: it is not
    :raises NotFound: neither the request nor the store has a rule
    :raises Refused: the request names another one than is stored
    """
    try:
        return group_rule.of_request(group, stored)
    except exceptions.Refused:
        named_rule = group_rule.named(group)
        if named_rule is None or not _may_have(
            groups, zone_requests, request, group.uuid, named_rule
        ):
            raise
        return named_rule


def _may_have(
    groups: Groups,
    zone_requests: ZoneRequests,
    request: SelectDestinations,
    uuid: str,
    rule: GroupRule,
) -> bool:
    """Return whether a group has a rule by now, or may get it."""
    group = groups.load_group(uuid)
    if group is None or group_rule.agree(rule, group.rule):
        return True
    is_of_parent = request.parent is not None
    return is_of_parent and zone_requests.is_idle_group(uuid, request.spec.project_id)
