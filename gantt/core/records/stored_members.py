# SPDX-License-Identifier: Apache-2.0
"""Encoding of a decision's members for storage, and back; see ``core.records.members``."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from gantt.core.records.decision import (
    FilterCount,
    MemberDecision,
    ProviderAllocation,
    Selection,
)
from gantt.core.records.members import LookResult, MemberColumns

_ROW, _FLOAT = np.dtype('<i4'), np.dtype('<f8')


class StoredLook(msgspec.Struct, frozen=True, omit_defaults=True):
    """The stored ``LookResult``: rows, members and numbers of lines as int32, lines as float64.

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
    evaluations: list[StoredLook]
    place_rows: list[int]
    places: list[Selection]
    host_rows: list[int]
    hosts: list[tuple[str, int]]
    alternates: list[tuple[list[int], list[int]]]  # rows of picks, and rows of their alternates
    failed: MemberDecision | None = None
    takes_over: bool = False


def stored(members: MemberColumns) -> StoredMembers:
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
            StoredLook(
                filters=look.filters,
                survivors=look.survivors,
                verdicts=look.verdicts.tobytes(),
                used=look.used,
                line_rows=_packed(look.line_rows),
                lines=np.array(look.lines, _FLOAT).tobytes(),
                members=_packed(look.members),
                rows=_packed(look.rows),
                finalists=_packed(look.finalists),
                layout=look.layout,
                level=look.level,
                given_up=look.given_up,
                allocations=look.allocations,
                claim_ids=look.claim_ids if members.takes_over else [],
            )
            for look in members.looks
        ],
        place_rows=list(members.places),
        places=list(members.places.values()),
        host_rows=list(members.hosts),
        hosts=list(members.hosts.values()),
        alternates=list(by_alternates.values()),
        failed=members.failed,
        takes_over=members.takes_over,
    )


def restored(found: StoredMembers, request_id: str, consumers: Sequence[str]) -> MemberColumns:
    """Return stored members as columns."""
    members = MemberColumns(request_id, found.attempt, consumers, found.weighers, found.claims)
    members.is_withdrawn, members.failed = found.is_withdrawn, found.failed
    members.takes_over = found.takes_over
    members.places = dict(zip(found.place_rows, found.places, strict=True))
    members.hosts = dict(zip(found.host_rows, found.hosts, strict=True))
    members.alternates = {row: rows for picks, rows in found.alternates for row in picks}
    for stored_look in found.evaluations:
        look = LookResult(
            stored_look.filters,
            stored_look.survivors,
            np.frombuffer(stored_look.verdicts, np.uint8),
            stored_look.used,
        )
        look.line_rows, look.lines = (
            _unpacked(stored_look.line_rows),
            _unpacked(stored_look.lines, _FLOAT),
        )
        look.members, look.rows = _unpacked(stored_look.members), _unpacked(stored_look.rows)
        look.finalists, look.layout = _unpacked(stored_look.finalists), stored_look.layout
        look.level, look.given_up = stored_look.level, stored_look.given_up
        look.allocations, look.claim_ids = stored_look.allocations, stored_look.claim_ids
        members.looks.append(look)
    return members


def _packed(numbers: list[int]) -> bytes:
    return np.array(numbers, _ROW).tobytes()


def _unpacked(packed: bytes, kind: np.dtype[Any] = _ROW) -> list[Any]:
    numbers: list[Any] = np.frombuffer(packed, kind).tolist()
    return numbers
