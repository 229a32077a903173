# SPDX-License-Identifier: Apache-2.0
"""A decision and its request as bytes, and back.

Members are stored as the columns that they were made as (``core.records.members``), those of a
request over zones one by one.
"""

import msgspec

from gantt.core.messages.request import SelectDestinations
from gantt.core.records.decision import Decision
from gantt.core.records.members import MemberColumns
from gantt.core.records.stored_members import StoredMembers, restored, stored

#: Characters of an id that are enough to look for it.
PREFIX_MIN = 6


class StoredDecision(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is packed for a decision.

    :ivar columns: the members; None: they are those of the decision
    """

    decision: Decision
    request: SelectDestinations
    columns: StoredMembers | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StoredDecision).decode


def pack(decision: Decision, request: SelectDestinations) -> bytes:
    """A decision as it is kept; its list of hosts is kept on its own."""
    members = decision.members
    columns = stored(members) if isinstance(members, MemberColumns) else None
    short = msgspec.structs.replace(
        decision, members=[] if columns else list(members), provider_ids=b''
    )
    return _encode(StoredDecision(short, request, columns))


def unpack(packed: bytes) -> StoredDecision:
    """A decision as it was kept."""
    found = _decode(packed)
    if found.columns is None:
        return found
    members = restored(found.columns, found.decision.request_id, found.request.consumers)
    decision = msgspec.structs.replace(found.decision, members=members)
    return StoredDecision(decision, found.request)
