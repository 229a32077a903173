# SPDX-License-Identifier: Apache-2.0
"""Known names that a caller may have meant by a name that does not exist."""

from collections.abc import Iterable, Sequence
from itertools import islice

#: Most names that are compared.
KNOWN_NAMES_MAX = 20_000
#: Least characters of a prefix of a name, and most known names that may begin with it.
_COMMON_PREFIX_MIN, _PREFIX_MATCHES_MAX = 4, 5
#: A longer name is not a slip of the hand.
_NAME_MAX = 255


def nearest_names(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """Return the known names that are the fewest slips of a key away, in their order; usually none.

    A slip is a character too many, too few or another, or two of them exchanged.  One is allowed in
    a name of up to five characters, two in a longer one: a name with more is another name.
    Capitals do not count, nor does ``-`` for ``_`` or ``y`` for ``ies``.  Where none is near: those
    that begin with the name, the shortest first, if they are so few that one of them was meant.
    """
    plain_name = _normalized_name(name)
    if not plain_name or len(plain_name) > _NAME_MAX:
        return []
    limit = 1 if len(plain_name) <= 5 else 2
    nearest: list[str] = []
    longer: list[str] = []
    for candidate in islice(known, KNOWN_NAMES_MAX):
        plain = _normalized_name(candidate)
        if len(plain_name) >= _COMMON_PREFIX_MIN and plain.startswith(plain_name):
            longer.append(candidate)
        slips = _edit_count(plain_name, plain, limit)
        if slips < limit:
            limit, nearest = slips, []
        if slips == limit and candidate not in nearest:
            nearest.append(candidate)
    if nearest or len(longer) > _PREFIX_MATCHES_MAX:
        return nearest[:most]
    return sorted(longer, key=len)[:most]


def did_you_mean(names: Sequence[str]) -> str:
    """Return ``; did you mean az-1 or az-2?``, or '' where no name is near."""
    return f'; did you mean {" or ".join(names)}?' if names else ''


def _normalized_name(name: str) -> str:
    plain = name.casefold().replace('-', '_')
    return f'{plain[:-3]}y' if plain.endswith('ies') else plain


def _edit_count(one: str, other: str, limit: int) -> int:
    """Return the number of slips between two names; any number above ``limit`` beyond it."""
    if abs(len(one) - len(other)) > limit:
        return limit + 1
    # Near names share nearly all of their characters at both ends.
    start = _common_prefix(one, other)
    one, other = one[start:], other[start:]
    end = _common_prefix(one[::-1], other[::-1])
    one, other = one[: len(one) - end], other[: len(other) - end]
    if not one or not other:
        return len(one) + len(other)
    if limit == 1 and max(len(one), len(other)) > 1 and one != other[::-1]:
        return 2
    return _distance(one, other, limit)


def _common_prefix(one: str, other: str) -> int:
    """Return the number of leading characters that two names share."""
    count = 0
    for char, other_char in zip(one, other, strict=False):
        if char != other_char:
            break
        count += 1
    return count


def _distance(one: str, other: str, limit: int) -> int:
    """Return the number of single edits, an exchange of neighbours being one of them."""
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, left in enumerate(one, 1):
        row = [i]
        for j, right in enumerate(other, 1):
            cost = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (left != right))
            if i > 1 and j > 1 and left == other[j - 2] and right == one[i - 2]:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        if min(row) > limit:
            return limit + 1
        before, last = last, row
    return last[-1]
