# SPDX-License-Identifier: Apache-2.0
"""The rules of the groups that requests are of, and what a commit compares of them."""

from gantt import exceptions
from gantt.core.claims.commit import GroupSwap
from gantt.core.messages.request import GroupRef, SelectDestinations
from gantt.core.resources import group_rule
from gantt.core.resources.group_rule import GroupRule
from gantt.scheduler.host_cache import HostCache
from gantt.scheduler.ports import Store


class GroupSwaps:
    """Groups as they are known to one scheduler."""

    def __init__(self, store: Store, cache: HostCache) -> None:
        self._store, self._cache = store, cache

    def know_rule(self, request: SelectDestinations) -> None:
        """Read the rule of a group where neither the request nor anybody here knows it.

        :raises NotFound: there is no such group
        """
        group = request.spec.group
        if group is None or group.is_ruled or group.uuid in self._cache.rules:
            return
        self._read_rule(group.uuid)

    def _read_rule(self, uuid: str) -> GroupRule:
        known = self._store.load_group(uuid)
        if known is None:
            raise group_rule.unknown_group(uuid)
        self._cache.set_rules([uuid], {uuid: known.rule})
        return known.rule

    def with_rule(self, request: SelectDestinations) -> SelectDestinations:
        """The request with the rule of its group, as far as that is known here."""
        group = request.spec.group
        if group is None:
            return request
        stored = self._cache.rules.get(group.uuid)
        if stored is None and not group.is_ruled:
            stored = self._read_rule(group.uuid)
        return group_rule.with_rule(request, rule_of(self._store, request, group, stored))

    def swap(self, request: SelectDestinations) -> GroupSwap | None:
        """What the commit compares of the group that a request is planned with."""
        group = request.spec.group
        rule = None if group is None else group_rule.named(group)
        if group is None or rule is None:
            return None
        stored = self._cache.rules.get(group.uuid)
        replaces = stored is not None and not group_rule.agree(rule, stored)
        return GroupSwap(
            uuid=group.uuid,
            generation=self._generation(group.uuid) if group.is_hard or replaces else None,
            policy=rule.policy,
            max_per_host=rule.max_per_host,
            makes=stored is None,
            policies=rule.policies,
            replaces=replaces,
        )

    def _generation(self, group: str) -> int:
        return self._cache.working.group_generation(group)

    def swaps_of_others(self, request: SelectDestinations) -> tuple[GroupSwap, ...]:
        """What the commit compares of other groups, which hard policies of the request are about.

        One that is not known here has nobody that could be in the way.
        """
        group = request.spec.group
        if group is None or group.policies is None:
            return ()
        known = [(uuid, self._cache.rules.get(uuid)) for uuid in group.policies.other_groups]
        return tuple(
            GroupSwap(
                uuid=uuid,
                generation=self._generation(uuid),
                policy=rule.policy,
                max_per_host=rule.max_per_host,
                makes=False,
                policies=rule.policies,
            )
            for uuid, rule in known
            if rule is not None and uuid != group.uuid
        )


def rule_of(
    store: Store, request: SelectDestinations, group: GroupRef, stored: GroupRule | None
) -> GroupRule:
    """The rule that holds for a request of a group.

    A zone above may have made its group anew: where nobody of it is here the rule is as it says.

    :param stored: as it is known here; None: it is not
    :raises NotFound: nobody says which
    :raises Refused: the request names another one than is stored
    """
    try:
        return group_rule.of_request(group, stored)
    except exceptions.Refused:
        named = group_rule.named(group)
        if named is None or not _may_have(store, request, group.uuid, named):
            raise
        return named


def _may_have(store: Store, request: SelectDestinations, uuid: str, rule: GroupRule) -> bool:
    """Whether a group has a rule by now, or may get it."""
    known = store.load_group(uuid)
    if known is None or group_rule.agree(rule, known.rule):
        return True
    is_of_parent = request.parent is not None
    return is_of_parent and store.is_idle_group(uuid, request.spec.project_id)


def is_of_rule(error: exceptions.Refused) -> bool:
    """Whether a request was refused for the rule of its group, which may be another by now."""
    return type(error) is exceptions.Refused
