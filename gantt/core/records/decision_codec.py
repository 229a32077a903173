# SPDX-License-Identifier: Apache-2.0
"""Encoding of a decision with its request, and decoding.

Members are stored as their columns (``core.records.members``), those of a request over zones
one by one.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from gantt.core.messages.request import SelectDestinations
from gantt.core.records.decision import (
    Decision,
    FilterCount,
    MemberDecision,
    ProviderAllocation,
    Selection,
)
from gantt.core.records.members import MemberColumns, MemberEvaluation

#: Minimum length of an id's prefix for a search.
ID_PREFIX_MIN = 6

_ROW_DTYPE, _FLOAT_DTYPE = np.dtype('<i4'), np.dtype('<f8')


#: Fields of an evaluation that are stored as they are, and those stored as int32.
_UNCHANGED_FIELDS = ('filters', 'survivors', 'used', 'layout', 'level', 'given_up', 'allocations')
_PACKED_FIELDS = ('line_rows', 'members', 'rows', 'finalists')


class StoredEvaluation(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stored ``MemberEvaluation``: rows, members and numbers of lines as int32, lines as float64.

    :ivar claim_ids: of places of a plan; of other members they derive from the request
    """

    filters: list[FilterCount]
    survivors: int
    verdicts: bytes
    used: list[int]
    line_rows: bytes
    lines: bytes
    members: bytes
    rows: bytes
    finalists: bytes
    layout: dict[str, Any] | None = None
    level: int = 0
    given_up: list[str] = []
    allocations: list[list[ProviderAllocation]] = []
    claim_ids: list[str] = []


class StoredMembers(msgspec.Struct, frozen=True, omit_defaults=True):
    """The stored ``MemberColumns``; the consumers are those of the request."""

    attempt: int
    weighers: int
    claims: bool
    is_withdrawn: bool
    evaluations: list[StoredEvaluation]
    place_rows: list[int]
    places: list[Selection]
    host_rows: list[int]
    hosts: list[tuple[str, int]]
    alternates: list[tuple[list[int], list[int]]]  # rows of picks, and rows of their alternates
    failed: MemberDecision | None = None
    takes_over: bool = False


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
    columns = _stored_members(members) if isinstance(members, MemberColumns) else None
    short = msgspec.structs.replace(
        decision, members=[] if columns else list(members), provider_ids=b''
    )
    return _encode(StoredDecision(short, request, columns))


def unpack(packed: bytes) -> StoredDecision:
    """Return a stored decision."""
    stored_decision = _decode(packed)
    if stored_decision.columns is None:
        return stored_decision
    members = _restored_members(
        stored_decision.columns,
        stored_decision.decision.request_id,
        stored_decision.request.consumers,
    )
    decision = msgspec.structs.replace(stored_decision.decision, members=members)
    return StoredDecision(decision, stored_decision.request)


def _stored_members(members: MemberColumns) -> StoredMembers:
    """Return members as they are stored."""
    by_alternates: dict[int, tuple[list[int], list[int]]] = {}
    for row, rows in members.alternates.items():
        by_alternates.setdefault(id(rows), ([], rows))[0].append(row)
    return StoredMembers(
        attempt=members.attempt,
        weighers=members.weighers,
        claims=members.claims,
        is_withdrawn=members.is_withdrawn,
        evaluations=[
            StoredEvaluation(
                **_common_fields(evaluation, _pack_numbers),
                lines=struct.pack(f'<{len(evaluation.lines)}d', *evaluation.lines),
                verdicts=evaluation.verdicts.tobytes(),
                claim_ids=evaluation.claim_ids if members.takes_over else [],
            )
            for evaluation in members.evaluations
        ],
        place_rows=list(members.places),
        places=list(members.places.values()),
        host_rows=list(members.hosts),
        hosts=list(members.hosts.values()),
        alternates=list(by_alternates.values()),
        failed=members.failed,
        takes_over=members.takes_over,
    )


def _restored_members(
    stored_members: StoredMembers, request_id: str, consumers: Sequence[str]
) -> MemberColumns:
    """Return stored members as columns."""
    members = MemberColumns(
        request_id,
        stored_members.attempt,
        consumers,
        stored_members.weighers,
        stored_members.claims,
    )
    members.is_withdrawn = stored_members.is_withdrawn
    members.failed = stored_members.failed
    members.takes_over = stored_members.takes_over
    members.places = dict(zip(stored_members.place_rows, stored_members.places, strict=True))
    members.hosts = dict(zip(stored_members.host_rows, stored_members.hosts, strict=True))
    members.alternates = {row: rows for picks, rows in stored_members.alternates for row in picks}
    members.evaluations = [
        MemberEvaluation(
            **_common_fields(stored, _unpack_numbers),
            claim_ids=stored.claim_ids,
            lines=_unpack_numbers(stored.lines, _FLOAT_DTYPE),
            verdicts=np.frombuffer(stored.verdicts, np.uint8),
        )
        for stored in stored_members.evaluations
    ]
    return members


def _common_fields(
    evaluation: MemberEvaluation | StoredEvaluation, convert: Callable[[Any], Any]
) -> dict[str, Any]:
    """Return the fields that both forms have, the columns of int32 converted."""
    columns = {name: convert(getattr(evaluation, name)) for name in _PACKED_FIELDS}
    return {**columns, **{name: getattr(evaluation, name) for name in _UNCHANGED_FIELDS}}


def _pack_numbers(numbers: list[int]) -> bytes:
    return struct.pack(f'<{len(numbers)}i', *numbers)


def _unpack_numbers(packed: bytes, kind: np.dtype[Any] = _ROW_DTYPE) -> list[Any]:
    numbers: list[Any] = np.frombuffer(packed, kind).tolist()
    return numbers
