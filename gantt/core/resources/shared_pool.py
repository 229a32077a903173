# SPDX-License-Identifier: Apache-2.0
"""What hosts take from that is no host: pools that they share, and what is nested below one.

A pool is a provider of its own that serves hosts, say with storage.  What is nested below a host,
say a device or a cell, serves that host alone.
"""

import msgspec

from gantt.core.messages.resource_classes import Inventory

#: The trait by which a provider says that it shares what it has within its aggregates.
SHARES = 'MISC_SHARES_VIA_AGGREGATE'


class SharedPool(msgspec.Struct, gc=False, frozen=True, kw_only=True, omit_defaults=True):
    """One such provider, whole.

    :ivar id: of the provider, which is no host
    :ivar name: its own, by which no other provider goes
    :ivar version: grows with each write
    :ivar usage_version: of its inventories and use, where a commit of ours has told these at a
        later version than all of it is known at; 0: it has not
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
        """Whether it serves hosts by their aggregates."""
        return bool(self.aggregates) and (not self.root or SHARES in self.traits)


class PoolUsage(msgspec.Struct, gc=False, frozen=True, kw_only=True, omit_defaults=True):
    """A pool as a commit left it, or as it read it under the lock.

    :ivar version: that it has with it
    :ivar is_written: the commit has written it, one version up
    """

    id: int
    version: int
    is_written: bool = False
    inventories: dict[str, Inventory] = {}
    used: dict[str, int] = {}
    foreign: dict[str, int] = {}
