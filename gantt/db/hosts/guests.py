# SPDX-License-Identifier: Apache-2.0
"""Guests placed on hosts, from rows of their live claims."""

import hashlib
import itertools
import operator
import sys
from collections.abc import Iterable
from typing import Any

from gantt.core.resources.host import Placed
from gantt.db.hosts import rows


def fold(found: Iterable[Any]) -> dict[int, tuple[tuple[Placed, ...], bytes]]:
    """Return rows of ``PLACED`` by provider, with the digest of a quiet report."""
    by_host = {}
    for pid, host_rows in itertools.groupby(found, key=operator.itemgetter(0)):
        placed, is_complete = [], True
        for _, claim_id, consumer, group, unsettled, image, flavor, member, layout in host_rows:
            # Thousands of guests share a few of these strings.
            image = image and sys.intern(image)
            flavor = flavor and sys.intern(flavor)
            placed.append(
                Placed(claim_id, consumer, pid, group, rows.layout(layout), image, flavor, member)
            )
            is_complete = is_complete and not unsettled
        digest = (
            quiet_digest((guest.claim_id, guest.consumer) for guest in placed)
            if is_complete
            else b''
        )
        by_host[pid] = tuple(placed), digest
    return by_host


def quiet_digest(guests: Iterable[tuple[str, str]]) -> bytes:
    """Return the digest of a report without changes of claims.

    :param guests: ids of claims, ascending, each with its guest
    """
    return hashlib.blake2b('\n'.join(map(' '.join, guests)).encode(), digest_size=16).digest()


NOBODY: tuple[tuple[Placed, ...], bytes] = ((), quiet_digest(()))
