# SPDX-License-Identifier: Apache-2.0
"""A cluster and the hosts for it: a placement is drawn first, and hosts have room for that alone.

Whoever places its members one after the other runs into a wall: what is left then is in the wrong
racks, or in pieces.
"""

import random
import uuid

from gantt.compute.shapes import Shape
from gantt.core.messages.policy_set import GroupPolicyKind, LevelPolicy
from gantt.core.messages.request import Flavor, RequestSpec
from gantt.groups.model.group_description import GroupDescription, MemberDescription

#: The availability zone of its hosts, where nothing else is placed.
ZONE_NAME = 'hall-2'
#: vCPU, MiB, GB.
FLAVORS = {
    'tiny': (1, 2048, 20),
    'small': (2, 8192, 40),
    'medium': (4, 8192, 40),
    'memory': (4, 32_768, 80),
    'large': (8, 16_384, 80),
    'huge': (16, 32_768, 160),
}
RACKS, HOSTS, SPARES = 8, 40, 4
DATABASES, REPLICAS, SHOPS = 12, 3, 12
_SEED = 1


class Cluster:
    """The group of a cluster, and shapes of hosts that have room for one placement of it.

    :ivar shapes: of its hosts, in their order
    :ivar spare: the shape of hosts that are switched on when one is lost
    :ivar description: of the group
    """

    def __init__(self) -> None:
        self._rng = random.Random(_SEED)
        self._used = [[0, 0, 0] for _ in range(HOSTS)]
        #: Of each host, so that none of them is for nothing.
        self._empty = list(range(HOSTS))
        self._rng.shuffle(self._empty)
        self._members: list[MemberDescription] = []
        self._shops: dict[str, list[str]] = {}
        databases = [self._add_database(number) for number in range(1, DATABASES + 1)]
        for number in range(1, SHOPS + 1):
            self._add_shop(number)
        while self._empty:
            # A host without a guest has room for one of the least.
            self._place_guest(self._empty[0], 'tiny')
        self._rng.shuffle(self._members)
        apart = LevelPolicy(policy=GroupPolicyKind.ANTI_AFFINITY, level='rack', of=databases)
        together = LevelPolicy(policy=GroupPolicyKind.AFFINITY, of=list(self._shops))
        self.description = GroupDescription(
            uuid=str(uuid.UUID(int=self._rng.getrandbits(128), version=4)),
            members=self._members,
            subgroups=self._shops,
            policies=[apart, together],
        )
        self.shapes = [_host_shape(host, used) for host, used in enumerate(self._used)]
        # Whatever was on a host has room on one of these.
        largest = [max(amounts) for amounts in zip(*self._used, strict=True)]
        self.spare = _host_shape(HOSTS, largest, racks='spare')

    def _add_database(self, number: int) -> str:
        """Add a database with replicas on racks of their own; return its name."""
        name, flavor = f'db{number}', self._rng.choice(list(FLAVORS))
        for rack in self._rng.sample(range(RACKS), REPLICAS):
            self._place_guest(self._random_host(rack), flavor)
        self._describe(name, flavor, REPLICAS)
        return name

    def _add_shop(self, number: int) -> None:
        """Add a web server and its cache on one host."""
        host, names = self._random_host(), [f'web{number}', f'cache{number}']
        for name in names:
            flavor = self._rng.choice(list(FLAVORS))
            self._place_guest(host, flavor)
            self._describe(name, flavor)
        self._shops[f'shop{number}'] = names

    def _describe(self, name: str, flavor: str, count: int = 1) -> None:
        self._members.append(MemberDescription(name=name, count=count, spec=spec_of(flavor)))

    def _random_host(self, rack: int | None = None) -> int:
        """Return a host, mostly one that has no guest."""
        empty = [host for host in self._empty if rack in (None, rack_of(host))]
        if empty and self._rng.random() < 0.8:
            return empty[0]
        return self._rng.choice([host for host in range(HOSTS) if rack in (None, rack_of(host))])

    def _place_guest(self, host: int, flavor: str) -> None:
        for at, amount in enumerate(FLAVORS[flavor]):
            self._used[host][at] += amount
        if host in self._empty:
            self._empty.remove(host)


def spec_of(flavor: str) -> RequestSpec:
    """Return the spec of a member of a flavor."""
    resources = dict(zip(('VCPU', 'MEMORY_MB', 'DISK_GB'), FLAVORS[flavor], strict=True))
    return RequestSpec(
        resources=resources,
        flavor=Flavor(name=flavor),
        availability_zone=ZONE_NAME,
        project_id='demo',
    )


def rack_of(host: int) -> int:
    """Return the rack of a host: hosts are in the racks in turn."""
    return host % RACKS


def _host_shape(host: int, amounts: list[int], racks: str = '') -> Shape:
    vcpus, memory_mb, disk_gb = amounts
    return Shape(
        name=f'hall-{host:02d}',
        count=SPARES if racks else 1,
        vcpus=vcpus,
        memory_mb=memory_mb,
        disk_gb=disk_gb,
        cpu_allocation_ratio=1.0,
        zones=[ZONE_NAME],
        location=f'demo.{ZONE_NAME}.rack{racks or rack_of(host) + 1}',
    )
