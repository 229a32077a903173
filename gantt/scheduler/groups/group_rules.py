# SPDX-License-Identifier: Apache-2.0
"""The rules of the groups that requests are of, and their comparison by a commit."""

from gantt import exceptions
from gantt.core.claims.commit import GroupSwap
from gantt.core.messages.request import GroupRef, SelectDestinations
from gantt.core.resources import group_rule
from gantt.core.resources.group_rule import GroupRule
from gantt.scheduler.host_cache import HostCache
from gantt.scheduler.ports import Store


class GroupSwaps:
    """Groups as one scheduler knows them."""

    def __init__(self, store: Store, cache: HostCache) -> None:
        self._store, self._cache = store, cache

    def know_rule(self, request: SelectDestinations) -> None:
        """Read the rule of a group where neither the request nor this scheduler has it.

        :raises NotFound: there is no such group
        """
        group = request.spec.group
        if group is None or group.is_ruled or group.uuid in self._cache.rules:
            return
        self._read_rule(group.uuid)

    def _read_rule(self, uuid: str) -> GroupRule:
        group = self._store.load_group(uuid)
        if group is None:
            raise group_rule.unknown_group(uuid)
        self._cache.set_rules([uuid], {uuid: group.rule})
        return group.rule

    def with_rule(self, request: SelectDestinations) -> SelectDestinations:
        """Return the request with the rule of its group, as far as that is known here."""
        group = request.spec.group
        if group is None:
            return request
        stored = self._cache.rules.get(group.uuid)
        if stored is None and not group.is_ruled:
            stored = self._read_rule(group.uuid)
        return group_rule.with_rule(request, rule_of(self._store, request, group, stored))

    def swap(self, request: SelectDestinations) -> GroupSwap | None:
        """Return what the commit compares of the group that a request is planned with."""
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
        """Return what the commit compares of other groups that hard policies refer to.

        A group not known here has no members that could conflict.
        """
        group = request.spec.group
        if group is None or group.policies is None:
            return ()
        ruled_groups = [(uuid, self._cache.rules.get(uuid)) for uuid in group.policies.other_groups]
        return tuple(
            GroupSwap(
                uuid=uuid,
                generation=self._generation(uuid),
                policy=rule.policy,
                max_per_host=rule.max_per_host,
                makes=False,
                policies=rule.policies,
            )
            for uuid, rule in ruled_groups
            if rule is not None and uuid != group.uuid
        )


def rule_of(
    store: Store, request: SelectDestinations, group: GroupRef, stored: GroupRule | None
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
        if named_rule is None or not _may_have(store, request, group.uuid, named_rule):
            raise
        return named_rule


def _may_have(store: Store, request: SelectDestinations, uuid: str, rule: GroupRule) -> bool:
    """Return whether a group has a rule by now, or may get it."""
    group = store.load_group(uuid)
    if group is None or group_rule.agree(rule, group.rule):
        return True
    is_of_parent = request.parent is not None
    return is_of_parent and store.is_idle_group(uuid, request.spec.project_id)


def is_of_rule(error: exceptions.Refused) -> bool:
    """Return whether a request was refused for its group's rule, which may have changed."""
    return type(error) is exceptions.Refused
