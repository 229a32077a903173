# SPDX-License-Identifier: Apache-2.0
"""Who is on hosts, from rows of their live claims."""

import hashlib
import itertools
import operator
import sys
from collections.abc import Iterable
from typing import Any

from gantt.core.resources.host import Placed
from gantt.db.hosts import rows


def fold(found: Iterable[Any]) -> dict[int, tuple[tuple[Placed, ...], bytes]]:
    """Rows of ``PLACED`` by provider, with the digest of a quiet report."""
    by_host = {}
    for pid, of in itertools.groupby(found, key=operator.itemgetter(0)):
        placed, is_complete = [], True
        for _, claim_id, consumer, group, unsettled, image, flavor, member, layout in of:
            # Thousands of guests have a few of them.
            image = image and sys.intern(image)
            flavor = flavor and sys.intern(flavor)
            placed.append(
                Placed(claim_id, consumer, pid, group, rows.layout(layout), image, flavor, member)
            )
            is_complete = is_complete and not unsettled
        digest = (
            quiet_digest((one.claim_id, one.consumer) for one in placed) if is_complete else b''
        )
        by_host[pid] = tuple(placed), digest
    return by_host


def quiet_digest(guests: Iterable[tuple[str, str]]) -> bytes:
    """What a report that says nothing new about claims is known by.

    :param guests: ids of claims, ascending, each with its guest
    """
    return hashlib.blake2b('\n'.join(map(' '.join, guests)).encode(), digest_size=16).digest()


NOBODY: tuple[tuple[Placed, ...], bytes] = ((), quiet_digest(()))
