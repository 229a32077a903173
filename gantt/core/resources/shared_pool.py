# SPDX-License-Identifier: Apache-2.0
"""A pool that hosts share: a provider of its own that serves them, say with storage."""

import msgspec

from gantt.core.messages.resource_classes import Inventory


class SharedPool(msgspec.Struct, gc=False, frozen=True, kw_only=True, omit_defaults=True):
    """One pool, whole.

    :ivar id: of the provider, which is no host
    :ivar version: grows with each write
    :ivar used: sum of the live claims' allocations, by class
    :ivar foreign: use by what runs outside any claim, by class
    :ivar hosts: provider ids of the hosts that it serves
    :ivar claims: ids of the claims that ``used`` contains
    """

    id: int
    version: int = 0
    inventories: dict[str, Inventory] = {}
    used: dict[str, int] = {}
    foreign: dict[str, int] = {}
    hosts: frozenset[int] = frozenset()
    claims: frozenset[str] = frozenset()
