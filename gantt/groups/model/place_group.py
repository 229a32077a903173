# SPDX-License-Identifier: Apache-2.0
"""Groups that are placed as a whole: the messages of ``place_group`` and its kin.

A group is described whole, at first and whenever it is changed: a placed member in the new
description stays where it is, a member no longer described goes, the others are placed.
"""

import hashlib
from typing import Annotated

import msgspec

from gantt.core.messages import base
from gantt.core.messages.base import FieldError, Message, Name, Text, Uuid
from gantt.groups.model.group_description import GroupDescription, uuid_of_name

#: Most seconds that a place may be held, whatever an operator allows.
LEASE_MAX = 604_800
#: Most milliseconds for improving a plan.
PLAN_MS_MAX = 120_000

BudgetMs = Annotated[int, msgspec.Meta(ge=1, le=600_000)]
PlanMs = Annotated[int, msgspec.Meta(ge=1, le=PLAN_MS_MAX)]
LeaseSeconds = Annotated[int, msgspec.Meta(ge=5, le=LEASE_MAX)]
Names = Annotated[list[Name], msgspec.Meta(max_length=base.LIST_MAX)]

_encode = msgspec.msgpack.Encoder(order='deterministic').encode


class PlaceGroup(Message, frozen=True, kw_only=True):
    """Plan a group and reserve resources for each of its members.

    :ivar request_id: chosen once by the caller; repeating it has the effect of one
    :ivar budget_ms: time that the caller will wait, queueing included
    :ivar plan_ms: part of it in which the plan may be improved; null: as configured
    :ivar lease_seconds: lease of the reservations; null: as configured
    :ivar dry_run: plan, and claim nothing
    :ivar what_if: of a dry run: plan it without each of its policies as well, to see what it costs
    :ivar project_id: owner of the reservations; the project of the members has to be the same
    :ivar only_project: the one project that its caller acts for; null: any project. ``gantt-api``
        sets it
    :ivar repeat: the request was sent before, and its outcome is unknown: a refusal is
        then stored, so that the copy is not placed later
    """

    request_id: Uuid
    group: GroupDescription
    budget_ms: BudgetMs = 60_000
    plan_ms: PlanMs | None = None
    lease_seconds: LeaseSeconds | None = None
    dry_run: bool = False
    what_if: bool = False
    project_id: Text | None = None
    user_id: Text | None = None
    only_project: Text | None = None
    repeat: bool = False

    def __post_init__(self) -> None:
        _check_what_if(self.what_if, self.dry_run)
        name, uuid = self.group.name, self.group.uuid
        if uuid is not None and base.is_named_id(uuid) != (name is not None):
            if name is not None:
                raise FieldError('group.name', 'expected none beside a uuid: one follows from it')
            raise FieldError(
                'group.uuid', 'expected no uuid of version 8, which follows from a name: give that'
            )
        problem = check_owners(self.group, self.project_id, self.user_id)
        if problem is not None:
            raise problem

    @property
    def uuid(self) -> str:
        """Uuid of the group: as it is described, else by its name, or the request."""
        if self.group.name is not None:
            return uuid_of_name(self.project_id, self.group.name)
        return self.group.uuid or base.derived_id('group', self.request_id)

    @property
    def fingerprint(self) -> str:
        """Digest of the fields that decide the outcome: a repeat must carry the same."""
        return _digest('place_group', self.group, self.project_id, self.user_id)


class ChangeGroup(Message, frozen=True, kw_only=True):
    """Change a group to a new description: members that are placed stay where they are.

    :ivar request_id: chosen once by the caller; repeating it has the effect of one
    :ivar group: the complete new description, with its uuid
    :ivar revision: revision of the plan that the caller knows; any other is refused. Null: any
    :ivar heal: members on a host that is down get another place as well
    :ivar replace: names of members that get another place, wherever they are
    :ivar lease_seconds: lease of the new reservations; null: as configured
    :ivar what_if: of a dry run: plan it without each of its policies as well, to see what it costs
    :ivar asked: digest of the request that the description was made for, which a repeat has to
        equal in place of the description; ``gantt-api`` sets it
    """

    request_id: Uuid
    group: GroupDescription
    revision: Annotated[int, msgspec.Meta(ge=1)] | None = None
    heal: bool = False
    replace: Names = []
    budget_ms: BudgetMs = 60_000
    plan_ms: PlanMs | None = None
    lease_seconds: LeaseSeconds | None = None
    dry_run: bool = False
    what_if: bool = False
    only_project: Text | None = None
    repeat: bool = False
    asked: Text = ''

    def __post_init__(self) -> None:
        _check_what_if(self.what_if, self.dry_run)
        if self.group.uuid is None:
            raise FieldError('group.uuid', 'expected the uuid of the group to be changed')

    @property
    def uuid(self) -> str:
        """Uuid of the group."""
        assert self.group.uuid is not None, 'it is checked when it is read'
        return self.group.uuid

    @property
    def fingerprint(self) -> str:
        """Digest of the fields that decide the outcome: a repeat must carry the same."""
        if self.asked:
            return self.asked
        return _digest('change_group', self.group, self.revision, self.heal, sorted(self.replace))


class ScaleGroup(Message, frozen=True, kw_only=True):
    """Change the numbers of members of a planned group, and nothing else of it.

    :ivar request_id: chosen once by the caller; repeating it has the effect of one
    :ivar members: name of a member -> its number, ``[least, most]``, or the difference to the
        present number as ``+2`` or ``-1``
    :ivar revision: revision of the plan that the caller knows; any other is refused. Null: the
        present one
    :ivar what_if: see ``ChangeGroup``
    """

    request_id: Uuid
    members: Annotated[
        dict[Name, int | Text | Annotated[list[int], msgspec.Meta(min_length=2, max_length=2)]],
        msgspec.Meta(min_length=1, max_length=base.LIST_MAX),
    ]
    revision: Annotated[int, msgspec.Meta(ge=1)] | None = None
    budget_ms: BudgetMs = 60_000
    plan_ms: PlanMs | None = None
    lease_seconds: LeaseSeconds | None = None
    dry_run: bool = False
    what_if: bool = False

    def __post_init__(self) -> None:
        _check_what_if(self.what_if, self.dry_run)

    def fingerprint(self, group: str) -> str:
        """Digest of the fields that decide the outcome: a repeat must carry the same."""
        return _digest('scale_group', group, sorted(self.members.items()), self.revision)


class ShowGroupPlan(Message, frozen=True, kw_only=True):
    """Ask for the plan of a group and for what has become of its members.

    :ivar check: evaluate whether the placed members meet its policies now
    """

    group: Uuid
    check: bool = False
    only_project: Text | None = None


class ExtendGroupPlan(Message, frozen=True, kw_only=True):
    """Extend the leases of reservations that no create has taken over; none gets shorter."""

    group: Uuid
    seconds: LeaseSeconds
    only_project: Text | None = None


class ReleaseGroupPlan(Message, frozen=True, kw_only=True):
    """Release the reservations that no create has taken over; running guests are not touched.

    :ivar planned_by: id of the request whose plan is meant, as the view of the plan has it; a plan
        of another request is refused, so that a late copy of this message ends no later plan. Null:
        any
    """

    group: Uuid
    reason: Text = ''
    only_project: Text | None = None
    planned_by: Uuid | None = None


def _check_what_if(what_if: bool, dry_run: bool) -> None:
    if what_if and not dry_run:
        raise FieldError(
            'what_if', 'expected false unless dry_run is true: it plans, and places nobody'
        )


def _digest(*parts: object) -> str:
    return hashlib.blake2b(_encode(parts), digest_size=16).hexdigest()


def check_owners(
    group: GroupDescription, project_id: str | None, user_id: str | None
) -> FieldError | None:
    """Return why a member is not of the project and user of its group; None: all are."""
    for path, spec in group.specs_by_path:
        for field, whole in (('project_id', project_id), ('user_id', user_id)):
            owner = getattr(spec, field)
            if owner is not None and owner != whole:
                return FieldError(
                    f'group.{path}.{field}',
                    f'expected none, or that of the group ({whole}); got {owner}',
                )
    return None
