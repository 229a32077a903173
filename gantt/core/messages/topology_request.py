# SPDX-License-Identifier: Apache-2.0
"""Topology requests: cells, CPUs, pages and devices that a guest asks for inside a host."""

import enum

import msgspec


class CpuPolicy(enum.StrEnum):
    """Sharing of the host's processors by the guest's."""

    SHARED = 'shared'
    DEDICATED = 'dedicated'
    MIXED = 'mixed'


class ThreadPolicy(enum.StrEnum):
    """Use of the hardware threads beside a dedicated one."""

    PREFER = 'prefer'  # siblings together where there are any
    ISOLATE = 'isolate'  # a core for itself, its other threads idle
    REQUIRE = 'require'  # only on cores of which two threads are free


class EmulatorPolicy(enum.StrEnum):
    """Place of the threads of the emulator."""

    SHARE = 'share'  # with the guest's processors, or where the host shares some
    ISOLATE = 'isolate'  # on a dedicated processor of their own


class Affinity(enum.StrEnum):
    """Required nearness of a device to the guest's cells."""

    REQUIRED = 'required'  # on one of them
    PREFERRED = 'preferred'  # anywhere, there if that can be had
    LEGACY = 'legacy'  # on one of them, or on no cell that is known
    SOCKET = 'socket'  # on a socket of one of them


class GuestCell(msgspec.Struct, frozen=True):
    """One NUMA cell of the guest.

    :ivar dedicated: the ``vcpus`` that are pinned
    """

    vcpus: tuple[int, ...]
    memory_mb: int
    dedicated: tuple[int, ...] = ()

    @property
    def shared(self) -> int:
        """Number of its processors that are not pinned."""
        return len(self.vcpus) - len(self.dedicated)


class DeviceSpec(msgspec.Struct, frozen=True):
    """Required properties of a device; all text in lower case, '' is anything.

    :ivar tags: required values of further tags of the pool; None: the pool must not have the tag
    """

    vendor_id: str = ''
    product_id: str = ''
    dev_type: str = ''
    tags: tuple[tuple[str, str | None], ...] = ()


class PciRequest(msgspec.Struct, frozen=True):
    """A number of PCI devices of one alias.

    :ivar specs: device specs, any of which a device has to match
    """

    alias: str
    count: int
    specs: tuple[DeviceSpec, ...]
    affinity: Affinity = Affinity.LEGACY


class GuestTopology(msgspec.Struct, frozen=True):
    """Topology of processors that the guest sees; 0: as the compute likes."""

    sockets: int = 0
    cores: int = 0
    threads: int = 0
    max_sockets: int = 0
    max_cores: int = 0
    max_threads: int = 0


class TopologyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Requirements of a request on the topology inside a host.

    :ivar cells: cells of the guest; empty: only devices are asked for
    :ivar page: '' (no wish), small, large, any, or a size in KiB as text
    :ivar emulator_apart: a dedicated processor for the emulator, in the first cell
    :ivar realtime: processors of the guest under a real-time policy
    :ivar networks: physical networks that its cells are to be near to
    :ivar tunneled: whether they are to be near to the tunneled ones as well
    """

    cells: tuple[GuestCell, ...] = ()
    cpu_policy: CpuPolicy = CpuPolicy.SHARED
    thread_policy: ThreadPolicy = ThreadPolicy.PREFER
    page: str = ''
    emulator_apart: bool = False
    realtime: tuple[int, ...] = ()
    devices: tuple[PciRequest, ...] = ()
    guest: GuestTopology = GuestTopology()
    pmem: tuple[str, ...] = ()
    encrypted: bool = False
    networks: tuple[str, ...] = ()
    tunneled: bool = False

    def without_cells(self) -> 'TopologyRequest | None':
        """Return only the devices; None where there are none."""
        return TopologyRequest(devices=self.devices) if self.devices else None
