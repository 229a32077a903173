# SPDX-License-Identifier: Apache-2.0
"""Answer to a request for a group, and its stored form for a repeat.

Stored plans are decoded here, for all readers.  A process of a later release may
have written one that this release cannot read, as while a site is upgraded: such a plan is shown
with its problem, is extended, and can be given back.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from gantt import exceptions
from gantt.core.claims.reservations import GroupPlanRecord
from gantt.core.group_policies.violated import StandingViolation
from gantt.core.groups.group_plan import GroupPlan, PlannedMember, WithoutPolicy
from gantt.core.messages import quoting
from gantt.core.messages.group_description import GroupDescription
from gantt.core.records.members import GROUP_ANSWER


class GroupAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """See the module docstring.

    :ivar group: uuid of it
    :ivar revision: of its plan; 0: there is none
    :ivar plan: of those that were to be placed; None: nobody was
    :ivar stayed: names of members that had a place before, and have it still
    :ivar released: names of members whose places are given back
    :ivar violated: policies that those violate who stayed
    :ivar attempts: times that it was planned
    :ivar conflicts: why it was planned again, a line each
    :ivar age_seconds: of the state that it was decided on
    :ivar zones_not_queried: names of child zones that may have room for members without a place: no
        child zone is queried for a group that is planned
    :ivar what_if: a line for each policy and whom it is about; None: it was not wanted
    """

    request_id: str
    group: str
    revision: int
    plan: GroupPlan | None
    lease_seconds: float
    dry_run: bool = False
    stayed: list[str] = []
    released: list[str] = []
    violated: list[StandingViolation] = []
    attempts: int = 1
    conflicts: list[str] = []
    age_seconds: float = 0.0
    what_if: list[WithoutPolicy] | None = None
    zones_not_queried: list[str] = []


class StoredAnswer(GroupAnswer, frozen=True, kw_only=True):
    """Answer with the state that is stored of the plan beside it.

    :ivar given_up: ids of claims of guests that were replaced by name, and these guests: they are
        others from then on, whether or not their hosts respond
    """

    given_up: list[str] = []


class StoredPlan(NamedTuple):
    """Plan decoded from its record.

    :ivar decided: the last answer; None: no group was planned then
    :ivar given_up: see ``StoredAnswer``
    """

    description: GroupDescription
    decided: GroupAnswer | None
    given_up: frozenset[str]


_description = msgspec.json.Decoder(GroupDescription).decode
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StoredAnswer).decode
_plain = msgspec.msgpack.Decoder(GroupAnswer).decode
#: Prefix of a refusal, and of no answer, see ``GROUP_ANSWER``.
REFUSAL = GROUP_ANSWER + b'\xc1'


def pack(answer: GroupAnswer, given_up: Iterable[str] = ()) -> bytes:
    """Return an answer as it is stored.

    :param given_up: see ``StoredAnswer``
    """
    fields = msgspec.structs.asdict(answer)
    return GROUP_ANSWER + _encode(StoredAnswer(**fields, given_up=sorted(given_up)))


class StoredRefusal(msgspec.Struct, frozen=True, array_like=True):
    """Error as it is stored."""

    code: str
    message: str
    details: dict[str, Any]


_refusal = msgspec.msgpack.Decoder(StoredRefusal).decode


def pack_refusal(error: exceptions.Refused | exceptions.Conflict) -> bytes:
    """Return the error of a group that was not placed, as it is stored."""
    details = msgspec.to_builtins(error.kwargs)
    return REFUSAL + _encode(StoredRefusal(error.code, error.message, details))


def unpack_refusal(stored: bytes) -> exceptions.Refused | exceptions.Conflict | None:
    """Return the error as it was stored; None: it is none."""
    if not stored.startswith(REFUSAL):
        return None
    refusal = _refusal(stored[len(REFUSAL) :])
    if refusal.code == exceptions.Conflict.code:
        return exceptions.Conflict(refusal.message, **refusal.details)
    kinds = {kind.code: kind for kind in _below(exceptions.Refused)}
    return kinds.get(refusal.code, exceptions.Refused)(refusal.message, **refusal.details)


def _below(kind: type[exceptions.Refused]) -> Iterable[type[exceptions.Refused]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _below(subclass)


def given_up(stored: bytes) -> frozenset[str]:
    """Return the given up guests of a stored plan, see ``StoredAnswer``; empty: it has none."""
    if not stored.startswith(GROUP_ANSWER):
        return frozenset()
    return frozenset(_decode(stored[len(GROUP_ANSWER) :]).given_up)


def unpack(stored: bytes) -> GroupAnswer | None:
    """Return the stored answer; None: it is that of another kind of request, or a refusal."""
    if not stored.startswith(GROUP_ANSWER) or stored.startswith(REFUSAL):
        return None
    return _plain(stored[len(GROUP_ANSWER) :])


def read_plan(record: GroupPlanRecord) -> StoredPlan:
    """Decode a stored plan.

    :raises PlanUnreadable: by this release
    """
    try:
        return StoredPlan(
            _description(record.description),
            unpack(record.plan),
            given_up(record.plan),
        )
    except (msgspec.MsgspecError, ValueError) as e:
        raise exceptions.PlanUnreadable(
            group=record.group_uuid, problem=quoting.plain(str(e), quoting.SENTENCE_MAX)
        ) from e


def with_others(plan: GroupPlan, keeps: Sequence[PlannedMember]) -> GroupPlan:
    """Return a plan of some members with the others, which stayed where they were planned before.

    Proofs hold only for the members that were planned again.
    """
    if not keeps:
        return plan
    status = 'feasible' if plan.status == 'optimal' else plan.status
    members = [*keeps, *plan.members]
    return msgspec.structs.replace(
        plan, members=members, status=status, bound=None, gap=None, proven=0
    )
