# SPDX-License-Identifier: Apache-2.0
"""Encoding of a decision with its request, and decoding.

Members are stored as their columns (``core.records.members``), those of a request over zones
one by one.
"""

import msgspec

from gantt.core.messages.request import SelectDestinations
from gantt.core.records.decision import Decision
from gantt.core.records.members import MemberColumns
from gantt.core.records.stored_members import StoredMembers, restored, stored

#: Minimum length of an id's prefix for a search.
PREFIX_MIN = 6


class StoredDecision(msgspec.Struct, frozen=True, omit_defaults=True):
    """The stored form of a decision.

    :ivar columns: the members; None: they are in the decision
    """

    decision: Decision
    request: SelectDestinations
    columns: StoredMembers | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StoredDecision).decode


def pack(decision: Decision, request: SelectDestinations) -> bytes:
    """Return a decision as it is stored; its list of hosts is stored separately."""
    members = decision.members
    columns = stored(members) if isinstance(members, MemberColumns) else None
    short = msgspec.structs.replace(
        decision, members=[] if columns else list(members), provider_ids=b''
    )
    return _encode(StoredDecision(short, request, columns))


def unpack(packed: bytes) -> StoredDecision:
    """Return a stored decision."""
    stored_decision = _decode(packed)
    if stored_decision.columns is None:
        return stored_decision
    members = restored(
        stored_decision.columns,
        stored_decision.decision.request_id,
        stored_decision.request.consumers,
    )
    decision = msgspec.structs.replace(stored_decision.decision, members=members)
    return StoredDecision(decision, stored_decision.request)
