# SPDX-License-Identifier: Apache-2.0
"""A decision and its request as bytes, and back.

Members are stored as the columns that they were made as (``core.records.members``).  Records
of the releases before have them one by one: of each after the first only the verdicts that
differ from the one before it, and its filter counts only where they differ.
"""

import msgspec
import numpy as np

from gantt.core.messages.request import SelectDestinations
from gantt.core.records.decision import Decision, MemberDecision, Score
from gantt.core.records.members import MemberColumns
from gantt.core.records.stored_members import StoredMembers, restored, stored

_ROW = np.dtype('<i4')
#: Characters of an id that are enough to look for it.
PREFIX_MIN = 6


class StoredDecision(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is packed for a decision.

    :ivar columns: the members; None: they are those of the decision, as in older records
    :ivar steps: of older records, per member the rows whose verdicts differ from those of the
        member before, as int32, then these verdicts; None: the member has its own
    :ivar scores: of older records, lines of the score tables, each once
    :ivar finalists: of older records, per member its lines; empty: the members have their own
    :ivar origin: of the request, which is kept without it: older readers do not know it
    :ivar trace: likewise
    """

    decision: Decision
    request: SelectDestinations | None = None
    steps: list[bytes | None] = []
    scores: list[Score] = []
    finalists: list[list[int]] = []
    origin: str | None = None
    columns: StoredMembers | None = None
    trace: str | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StoredDecision).decode


def pack(decision: Decision, request: SelectDestinations) -> bytes:
    """A decision as it is kept; its list of hosts is kept on its own."""
    origin, trace, members = request.origin, request.trace, decision.members
    if origin is not None or trace is not None:
        request = msgspec.structs.replace(request, origin=None, trace=None)
    columns = stored(members) if isinstance(members, MemberColumns) else None
    short = msgspec.structs.replace(
        decision, members=[] if columns else list(members), provider_ids=b''
    )
    return _encode(StoredDecision(short, request, origin=origin, columns=columns, trace=trace))


def unpack(packed: bytes) -> StoredDecision:
    """A decision as it was kept."""
    found = _with_scores(_decode(packed))
    origin, trace = found.origin, found.trace
    columns, request = found.columns, found.request
    if columns is not None and request is not None:
        restored_members = restored(columns, found.decision.request_id, request.consumers)
        decision = msgspec.structs.replace(found.decision, members=restored_members)
        return StoredDecision(decision, request, origin=origin, trace=trace)
    if not found.steps:
        return found
    members: list[MemberDecision] = []
    for member, step in zip(found.decision.members, found.steps, strict=True):
        whole = member
        if step is not None:
            before = members[-1]
            whole = msgspec.structs.replace(
                member,
                verdicts=_stepped(before.verdicts, step),
                filters=member.filters or before.filters,
            )
        members.append(whole)
    decision = msgspec.structs.replace(found.decision, members=members)
    return StoredDecision(decision, found.request, origin=origin, trace=trace)


def _with_scores(found: StoredDecision) -> StoredDecision:
    if not found.finalists:
        return found
    pairs = zip(found.decision.members, found.finalists, strict=True)
    members = [
        msgspec.structs.replace(member, scores=[found.scores[i] for i in line])
        for member, line in pairs
    ]
    decision = msgspec.structs.replace(found.decision, members=members)
    return StoredDecision(decision, found.request, found.steps, origin=found.origin)


def _stepped(before: bytes, step: bytes) -> bytes:
    count = len(step) // (_ROW.itemsize + 1)
    verdicts = np.frombuffer(before, np.uint8).copy()
    rows = np.frombuffer(step, _ROW, count)
    verdicts[rows] = np.frombuffer(step, np.uint8, count, count * _ROW.itemsize)
    return verdicts.tobytes()
