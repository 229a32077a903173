# SPDX-License-Identifier: Apache-2.0
"""What somebody may have meant who named something that is not there."""

from collections.abc import Iterable, Sequence
from itertools import islice

#: Names that are compared; more of them are not looked at.
KNOWN_MAX = 20_000
#: A name that is only begun has so many characters, and so few known ones begin with it.
_BEGINS_MIN, _LONGER_MAX = 4, 5
#: A longer name is not a slip of the hand.
_NAME_MAX = 255


def near(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """The known names that are the fewest slips of a key away, in their order; mostly none.

    A slip is a character too many, too few or another, or two of them exchanged.
    One is allowed in a name of up to five characters, two in a longer one: what takes
    more is another name.  Capitals do not count, nor does ``-`` for ``_`` or ``y`` for ``ies``.
    Where none is near: those that begin with the name, the shortest first, if they are so few
    that one of them was meant.
    """
    wanted = _plain(name)
    if not wanted or len(wanted) > _NAME_MAX:
        return []
    limit = 1 if len(wanted) <= 5 else 2
    found: list[str] = []
    longer: list[str] = []
    for one in islice(known, KNOWN_MAX):
        plain = _plain(one)
        if len(wanted) >= _BEGINS_MIN and plain.startswith(wanted):
            longer.append(one)
        slips = _slips(wanted, plain, limit)
        if slips < limit:
            limit, found = slips, []
        if slips == limit and one not in found:
            found.append(one)
    if found or len(longer) > _LONGER_MAX:
        return found[:most]
    return sorted(longer, key=len)[:most]


def did_you_mean(found: Sequence[str]) -> str:
    """``; did you mean az-1 or az-2?``, or nothing where no name is near."""
    return f'; did you mean {" or ".join(found)}?' if found else ''


def _plain(name: str) -> str:
    plain = name.casefold().replace('-', '_')
    return f'{plain[:-3]}y' if plain.endswith('ies') else plain


def _slips(one: str, other: str, limit: int) -> int:
    """How many slips apart two names are; more than ``limit`` where it is more than that."""
    if abs(len(one) - len(other)) > limit:
        return limit + 1
    # What they share at both ends is nearly all of them where they are near.
    start = _shared(one, other)
    one, other = one[start:], other[start:]
    end = _shared(one[::-1], other[::-1])
    one, other = one[: len(one) - end], other[: len(other) - end]
    if not one or not other:
        return len(one) + len(other)
    if limit == 1 and max(len(one), len(other)) > 1 and one != other[::-1]:
        return 2
    return _distance(one, other, limit)


def _shared(one: str, other: str) -> int:
    """How many characters two names begin with alike."""
    count = 0
    for here, there in zip(one, other, strict=False):
        if here != there:
            break
        count += 1
    return count


def _distance(one: str, other: str, limit: int) -> int:
    """The number of single edits, an exchange of neighbours being one of them."""
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, here in enumerate(one, 1):
        row = [i]
        for j, there in enumerate(other, 1):
            cost = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (here != there))
            if i > 1 and j > 1 and here == other[j - 2] and there == one[i - 2]:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        if min(row) > limit:
            return limit + 1
        before, last = last, row
    return last[-1]
