# SPDX-License-Identifier: Apache-2.0
"""Providers that are not hosts but serve hosts: shared pools, and nested providers.

A pool is a separate provider that serves hosts, for example with storage.  A provider nested
below a host, such as a device or a cell, serves that host alone.
"""

import msgspec

from gantt.core.messages.resource_classes import Inventory

#: The trait of a provider that shares its inventories within its aggregates.
SHARES = 'MISC_SHARES_VIA_AGGREGATE'


class SharedPool(msgspec.Struct, gc=False, frozen=True, kw_only=True, omit_defaults=True):
    """State of one shared or nested provider.

    :ivar id: of the provider, which is not a host
    :ivar name: its own, unique among providers
    :ivar version: grows with each write
    :ivar usage_version: of its inventories and usage, if an own commit has returned these at a
        later version than the complete state; 0: it has not
    :ivar used: sum of the live claims' allocations, by class
    :ivar foreign: use by what runs outside any claim, by class
    :ivar aggregates: uuids; it serves every host that is in one of them, if it shares
    :ivar root: of what is nested below a host: the id of that host; else 0
    :ivar parent: likewise the id of what it is directly below of
    :ivar traits: ascending
    """

    id: int
    uuid: str = ''
    name: str = ''
    version: int = 0
    usage_version: int = 0
    inventories: dict[str, Inventory] = {}
    used: dict[str, int] = {}
    foreign: dict[str, int] = {}
    aggregates: list[str] = []
    root: int = 0
    parent: int = 0
    traits: list[str] = []

    @property
    def is_shared(self) -> bool:
        """True where it serves hosts by their aggregates."""
        return bool(self.aggregates) and (not self.root or SHARES in self.traits)


class PoolUsage(msgspec.Struct, gc=False, frozen=True, kw_only=True, omit_defaults=True):
    """A pool as a commit left it, or as it read it under the lock.

    :ivar version: version of the pool after the commit
    :ivar is_written: the commit has written it, and increased the version by one
    """

    id: int
    version: int
    is_written: bool = False
    inventories: dict[str, Inventory] = {}
    used: dict[str, int] = {}
    foreign: dict[str, int] = {}
