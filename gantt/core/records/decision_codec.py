# SPDX-License-Identifier: Apache-2.0
"""A decision and its request as bytes, and back.

The members of a request see nearly the same hosts: of each after the first only
the verdicts that differ from the one before it are kept, and its filter counts
only where they differ.  Fifty members on five thousand hosts are a hundred
kilobytes that way and four hundred otherwise, most of the cost of a commit.
"""

import itertools

import msgspec
import numpy as np

from gantt.core.messages.request import SelectDestinations
from gantt.core.records.decision import Decision, MemberDecision, Score

_ROW = np.dtype('<i4')
#: Characters of an id that are enough to look for it.
PREFIX_MIN = 6


class StoredDecision(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is packed for a decision.

    :ivar steps: per member the rows whose verdicts differ from those of the member
        before, as int32, then these verdicts; None: the member has its own
    :ivar scores: lines of the score tables, each once
    :ivar finalists: per member its lines; empty: the members have their own
    :ivar origin: of the request, which is kept without it: older readers do not know it
    """

    decision: Decision
    request: SelectDestinations | None = None
    steps: list[bytes | None] = []
    scores: list[Score] = []
    finalists: list[list[int]] = []
    origin: str | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StoredDecision).decode


def pack(decision: Decision, request: SelectDestinations) -> bytes:
    """A decision as it is kept; its list of hosts is kept on its own."""
    members, steps = _stepwise(decision.members)
    scores: list[Score] = []
    finalists: list[list[int]] = []
    if len(members) > 1:
        scores, finalists = _each_once(members)
        members = [msgspec.structs.replace(member, scores=[]) for member in members]
    origin = request.origin
    if origin is not None:
        request = msgspec.structs.replace(request, origin=None)
    short = msgspec.structs.replace(decision, members=members, provider_ids=b'')
    return _encode(StoredDecision(short, request, steps, scores, finalists, origin))


def unpack(packed: bytes) -> StoredDecision:
    """A decision as it was kept."""
    found = _with_scores(_decode(packed))
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
    return StoredDecision(decision, found.request, origin=found.origin)


def _each_once(members: list[MemberDecision]) -> tuple[list[Score], list[list[int]]]:
    """The lines of all score tables; of a host that no pick has changed they are the same ones."""
    # By identity, and without a line of Python for each: there are tens of thousands.
    of_all = [score for member in members for score in member.scores]
    keys = list(map(id, of_all))
    each = dict(zip(keys, of_all, strict=True))
    places = dict(zip(each, range(len(each)), strict=True))
    line = list(map(places.__getitem__, keys))
    ends = itertools.accumulate(len(member.scores) for member in members)
    scores, finalists = list(each.values()), []
    begin = 0
    for end in ends:
        finalists.append(line[begin:end])
        begin = end
    return scores, finalists


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


def _stepwise(members: list[MemberDecision]) -> tuple[list[MemberDecision], list[bytes | None]]:
    """Members without what is as with the one before, and what differs."""
    size = len(members[0].verdicts) if members else 0
    alike = 0
    while alike < len(members) and len(members[alike].verdicts) == size:
        alike += 1
    if alike < 2 or not size:
        return members, []
    verdicts_of_all = np.frombuffer(b''.join([m.verdicts for m in members[:alike]]), np.uint8)
    # In one dimension: that is many times faster where little differs.
    differ = np.flatnonzero(verdicts_of_all[size:] != verdicts_of_all[:-size])
    at, rows = np.divmod(differ, size)
    member_verdicts = verdicts_of_all[differ + size].tobytes()
    packed = rows.astype(_ROW).tobytes()
    ends = np.searchsorted(at, np.arange(alike)).tolist()
    members_packed = list(members)
    steps: list[bytes | None] = [None] * len(members)
    for i in range(1, alike):
        begin, end = ends[i - 1], ends[i]
        if (end - begin) * (_ROW.itemsize + 1) >= size:
            continue
        steps[i] = packed[begin * _ROW.itemsize : end * _ROW.itemsize] + member_verdicts[begin:end]
        same = members[i].filters is members[i - 1].filters
        members_packed[i] = msgspec.structs.replace(
            members[i], verdicts=b'', filters=[] if same else members[i].filters
        )
    return members_packed, steps


def _stepped(before: bytes, step: bytes) -> bytes:
    count = len(step) // (_ROW.itemsize + 1)
    verdicts = np.frombuffer(before, np.uint8).copy()
    rows = np.frombuffer(step, _ROW, count)
    verdicts[rows] = np.frombuffer(step, np.uint8, count, count * _ROW.itemsize)
    return verdicts.tobytes()
