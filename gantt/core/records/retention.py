# SPDX-License-Identifier: Apache-2.0
"""Retention beyond a bound: the oldest rows of the owner with the most are deleted first.

So all large owners end with equal amounts, an owner with less than an equal share loses
nothing, and no owner can evict rows of another.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

Owner = TypeVar('Owner')

#: Seconds for which decisions stay regardless of their number, within the bound of bytes: answers
#: of requests refer to them, which may be repeated until an hour after their budget of at most
#: ten minutes.
DECISION_STORED_SECONDS = 4200.0


class Piece(NamedTuple):
    """Consecutive rows of one owner.

    :ivar last: number of the newest
    :ivar rows: number of rows
    :ivar bytes: their size
    :ivar at: creation time of the newest, in seconds
    """

    last: int
    rows: int
    bytes: int
    at: float = 0.0


def pieces_to_delete(
    held: Mapping[Owner, Sequence[Piece]],
    most: int,
    most_bytes: int | None,
    limit: int,
    young: float = math.inf,
) -> dict[Owner, int]:
    """Return the number of pieces of each owner to delete, the oldest first.

    :param held: the pieces of each owner, oldest first
    :param most: upper bound of rows that stay
    :param most_bytes: upper bound of their bytes; None: no bound
    :param limit: approximate bound of rows to delete: a last piece of several rows may exceed it
    :param young: pieces with ``at`` not before it are deleted for bytes only
    """
    taken = dict.fromkeys(held, 0)
    counts = {owner: sum(piece.rows for piece in pieces) for owner, pieces in held.items()}
    sizes = {owner: sum(piece.bytes for piece in pieces) for owner, pieces in held.items()}
    # Bytes first: pieces deleted for them no longer count.
    for amounts, bound, older in ((sizes, most_bytes, math.inf), (counts, most, young)):
        if bound is None:
            continue
        over = sum(amounts.values()) - bound
        heap = [
            (-amounts[owner], held[owner][taken[owner]].last, number, owner)
            for number, owner in enumerate(held)
            if taken[owner] < len(held[owner]) and held[owner][taken[owner]].at < older
        ]
        heapq.heapify(heap)
        while heap and over > 0 and limit > 0:
            _, _, number, owner = heapq.heappop(heap)
            piece = held[owner][taken[owner]]
            amount_before = amounts[owner]
            taken[owner] += 1
            counts[owner] -= piece.rows
            sizes[owner] -= piece.bytes
            over -= amount_before - amounts[owner]
            limit -= piece.rows
            if taken[owner] < len(held[owner]):
                following = held[owner][taken[owner]]
                if following.at < older:
                    heapq.heappush(heap, (-amounts[owner], following.last, number, owner))
    return {owner: count for owner, count in taken.items() if count}
