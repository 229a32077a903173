# SPDX-License-Identifier: Apache-2.0
"""Groups of resources that a request takes of the providers of one tree, as in Placement.

The amounts of the spec itself are the group without a suffix: each of its classes may come from
another provider of the tree.  All of a group with a suffix comes from one provider.
"""

import enum
import re
from collections.abc import Iterator
from typing import Annotated

import msgspec

from gantt.core.messages import base
from gantt.core.messages.base import Message, Name, Positive, Uuid

#: Most groups with a suffix in one request, those of devices included.
GROUPS_MAX = 64
#: Most names of traits and aggregates in all groups together.
NAMES_MAX = 1024

#: Problem of an empty list of which one name has to be met.
EMPTY_LIST = 'expected at least one name in the list: nothing has one of none'

_SUFFIX = re.compile(r'[A-Za-z0-9_-]{1,64}\Z')
Names = Annotated[list[Name], msgspec.Meta(max_length=512)]
ListsOfNames = Annotated[list[Names], msgspec.Meta(max_length=64)]
Amounts = Annotated[dict[Name, Positive], msgspec.Meta(max_length=64)]


class GroupPolicy(enum.StrEnum):
    """Rule on whether two groups with a suffix may lie on one provider."""

    NONE = 'none'
    ISOLATE = 'isolate'


class ResourceGroup(Message, frozen=True, kw_only=True):
    """Resources from one provider: the root, a provider below it, or a pool that serves the tree.

    :ivar resources: empty only of a group that ``same_subtree`` names
    :ivar any_traits: of each list one; ``member_of`` likewise, aggregates by uuid or name
    :ivar in_tree: uuid of a provider in whose tree it has to be
    """

    resources: Amounts = {}
    required_traits: Names = []
    forbidden_traits: Names = []
    any_traits: ListsOfNames = []
    member_of: ListsOfNames = []
    forbidden_aggregates: Names = []
    in_tree: Uuid | None = None

    def name_count(self) -> int:
        """Return the number of traits and aggregates that the group names."""
        lists = [self.required_traits, self.forbidden_traits, self.forbidden_aggregates]
        return sum(map(len, (*lists, *self.any_traits, *self.member_of)))


class DeviceAmount(Message, frozen=True, kw_only=True):
    """So many devices, of each of which the same amount is taken.

    :ivar resource_class: class that the devices provide, such as ``VGPU``
    :ivar count: number of distinct devices
    :ivar amount: amount from each device; of a whole device the least that it has to have
    :ivar whole: take all of each device, of which nothing may be in use
    """

    resource_class: Name
    count: Annotated[int, msgspec.Meta(ge=1, le=GROUPS_MAX)] = 1
    amount: Positive = 1
    whole: bool = False
    required_traits: Names = []
    forbidden_traits: Names = []


class TreeGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One group with a suffix, whether it was asked for as such or as a device.

    :ivar whole: all of a provider of which nothing is used, at least the amount asked for
    """

    suffix: str
    group: ResourceGroup
    whole: bool = False


class TreeRequest(Message, frozen=True, kw_only=True):
    """Groups of resources requested from the tree of one host.

    :ivar groups: groups by suffix
    :ivar group_policy: policy of ``groups``; required where there are two or more
    :ivar same_subtree: lists of suffixes; of the providers of such groups one is above the others
    :ivar root_required: traits of the root; ``root_forbidden`` likewise
    :ivar devices: short for groups ``deviceN-M``: the M-th of the N-th entry, counted from 1
    """

    groups: Annotated[dict[Name, ResourceGroup], msgspec.Meta(max_length=GROUPS_MAX)] = {}
    group_policy: GroupPolicy | None = None
    same_subtree: Annotated[
        list[Annotated[list[Name], msgspec.Meta(min_length=1, max_length=GROUPS_MAX)]],
        msgspec.Meta(max_length=GROUPS_MAX),
    ] = []
    root_required: Names = []
    root_forbidden: Names = []
    devices: Annotated[list[DeviceAmount], msgspec.Meta(max_length=GROUPS_MAX)] = []

    def __post_init__(self) -> None:
        self._check_groups()
        suffixes = {group.suffix for group in self.expanded()}
        for n, names in enumerate(self.same_subtree):
            for name in names:
                if name not in suffixes:
                    raise base.FieldError(f'same_subtree[{n}]', f'no group has the suffix {name!r}')
        both = set(self.root_required) & set(self.root_forbidden)
        if both:
            raise base.FieldError('root_forbidden', f'{min(both)} is required as well')

    def expanded(self) -> Iterator[TreeGroup]:
        """Yield all groups with a suffix."""
        for suffix, group in self.groups.items():
            yield TreeGroup(suffix=suffix, group=group)
        for n, device in enumerate(self.devices, 1):
            group = ResourceGroup(
                resources={device.resource_class: device.amount},
                required_traits=device.required_traits,
                forbidden_traits=device.forbidden_traits,
            )
            for m in range(1, device.count + 1):
                yield TreeGroup(suffix=f'device{n}-{m}', group=group, whole=device.whole)

    def distinct(self) -> Iterator[frozenset[str]]:
        """Yield sets of suffixes whose providers differ from each other."""
        if self.group_policy == GroupPolicy.ISOLATE and len(self.groups) > 1:
            yield frozenset(self.groups)
        for n, device in enumerate(self.devices, 1):
            if device.count > 1:
                yield frozenset(f'device{n}-{m}' for m in range(1, device.count + 1))

    def classes(self) -> Iterator[tuple[str, str]]:
        """Yield (path below it, resource class) of all that groups and devices name."""
        for suffix, group in self.groups.items():
            for name in group.resources:
                yield f'groups.{suffix}.resources.{name}', name
        for n, device in enumerate(self.devices):
            yield f'devices[{n}].resource_class', device.resource_class

    def _check_groups(self) -> None:
        """Check the groups and devices.

        :raises FieldError: names the field
        """
        count = len(self.groups) + sum(device.count for device in self.devices)
        if not count and not (self.root_required or self.root_forbidden):
            raise base.FieldError('groups', 'expected groups, devices, or traits of the root')
        if count > GROUPS_MAX:
            problem = f'expected at most {GROUPS_MAX} groups and devices in all, got {count}'
            raise base.FieldError('groups', problem)
        if len(self.groups) > 1 and self.group_policy is None:
            problem = f"expected 'none' or 'isolate' with {len(self.groups)} groups, got none"
            raise base.FieldError('group_policy', problem)
        clash = [name for name in self.groups if name.startswith('device') and self.devices]
        if clash:
            problem = f'{clash[0]!r}: with devices no suffix begins with "device"'
            raise base.FieldError('groups', problem)
        if sum(group.name_count() for group in self.groups.values()) > NAMES_MAX:
            problem = f'expected at most {NAMES_MAX} traits and aggregates in all of them'
            raise base.FieldError('groups', problem)
        named = {name for names in self.same_subtree for name in names}
        for suffix, group in self.groups.items():
            _check_group(suffix, group, suffix in named)
        for n, device in enumerate(self.devices):
            both = set(device.required_traits) & set(device.forbidden_traits)
            if both:
                raise base.FieldError(
                    f'devices[{n}].forbidden_traits', f'{min(both)} is required as well'
                )


def _check_group(suffix: str, group: ResourceGroup, in_subtree: bool) -> None:
    if not _SUFFIX.match(suffix):
        problem = f'expected suffixes of 1 to 64 letters, digits, "_" and "-", got {suffix!r}'
        raise base.FieldError('groups', problem)
    is_selective = group.required_traits or group.any_traits or group.member_of
    if not group.resources and not (in_subtree and is_selective):
        problem = 'expected amounts, or a trait or an aggregate and the suffix in same_subtree'
        raise base.FieldError(f'groups.{suffix}.resources', problem)
    for field in ('any_traits', 'member_of'):
        for n, names in enumerate(getattr(group, field)):
            if not names:
                raise base.FieldError(f'groups.{suffix}.{field}[{n}]', EMPTY_LIST)
    both = set(group.required_traits) & set(group.forbidden_traits)
    if both:
        problem = f'{min(both)} is required as well; expected it in one of the two lists only'
        raise base.FieldError(f'groups.{suffix}.forbidden_traits', problem)
