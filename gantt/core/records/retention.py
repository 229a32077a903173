# SPDX-License-Identifier: Apache-2.0
"""What goes where more is kept than may be: the oldest of who has the most.

So all who have much end with as much as each other, who has less than an equal part loses
nothing, and nobody can flush what another has.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

Owner = TypeVar('Owner')

#: For so long a decision stays whatever their number, within the bytes that they may take: answers
#: of requests refer to it, which are asked for again until an hour after their budget, and that is
#: ten minutes at most.
DECISION_SECONDS = 4200.0


class Piece(NamedTuple):
    """Rows of one owner, one after another.

    :ivar last: number of the newest
    :ivar rows: how many
    :ivar bytes: what they take
    :ivar at: when the newest was made, in seconds
    """

    last: int
    rows: int
    bytes: int
    at: float = 0.0


def excess(
    held: Mapping[Owner, Sequence[Piece]],
    most: int,
    most_bytes: int | None,
    limit: int,
    young: float = math.inf,
) -> dict[Owner, int]:
    """How many pieces of each owner are to go, the oldest first.

    :param held: the pieces of each owner, oldest first
    :param most: rows that may stay
    :param most_bytes: likewise; None: any
    :param limit: rows that may go, about: one piece more where it is of several rows
    :param young: pieces that are not older go for bytes alone
    """
    taken = dict.fromkeys(held, 0)
    counts = {owner: sum(piece.rows for piece in pieces) for owner, pieces in held.items()}
    sizes = {owner: sum(piece.bytes for piece in pieces) for owner, pieces in held.items()}
    # Bytes first: what goes for them is counted no more.
    for has, bound, older in ((sizes, most_bytes, math.inf), (counts, most, young)):
        if bound is None:
            continue
        over = sum(has.values()) - bound
        heap = [
            (-has[owner], held[owner][taken[owner]].last, number, owner)
            for number, owner in enumerate(held)
            if taken[owner] < len(held[owner]) and held[owner][taken[owner]].at < older
        ]
        heapq.heapify(heap)
        while heap and over > 0 and limit > 0:
            _, _, number, owner = heapq.heappop(heap)
            piece = held[owner][taken[owner]]
            before = has[owner]
            taken[owner] += 1
            counts[owner] -= piece.rows
            sizes[owner] -= piece.bytes
            over -= before - has[owner]
            limit -= piece.rows
            if taken[owner] < len(held[owner]):
                following = held[owner][taken[owner]]
                if following.at < older:
                    heapq.heappush(heap, (-has[owner], following.last, number, owner))
    return {owner: count for owner, count in taken.items() if count}
