# SPDX-License-Identifier: Apache-2.0
"""Types of the answers of Nova's and Placement's API, as far as they are read here.

Nova at microversion 2.69 (Stein), Placement at 1.14 (Rocky).  Keys that are not
named here are ignored.
"""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType, field

NOVA_VERSION, PLACEMENT_VERSION = '2.69', '1.14'

#: Status of a service, or a server, of a cell that Nova cannot reach now.
UNKNOWN = 'UNKNOWN'
#: Key of a server's host.
HOST_KEY = 'OS-EXT-SRV-ATTR:host'

#: Statuses of migrations that are over.  'finished' is not: the user has not decided yet.
FINISHED_STATUSES = frozenset(
    {'confirmed', 'reverted', 'error', 'failed', 'completed', 'cancelled', 'done'}
)

#: Task states of guests that are on their way, and the state of those that may go back.
_MOVING_TASKS = frozenset(
    {
        'resize_prep',
        'resize_migrating',
        'resize_migrated',
        'resize_finish',
        'resize_reverting',
        'resize_confirming',
        'migrating',
        'rebuilding',
        'rebuild_block_device_mapping',
        'rebuild_spawning',
    }
)
#: Task states that make work for a host's disks.
_LOADING_TASKS = frozenset(
    {
        'resize_migrating',
        'rebuilding',
        'resize_prep',
        'image_snapshot',
        'image_backup',
        'rescuing',
        'unshelving',
        'shelving',
        'shelving_image_uploading',
    }
)


class ApiService(msgspec.Struct, frozen=True, kw_only=True):
    """A ``nova-compute``; only host and status where its cell is away."""

    host: str
    status: str
    state: str | None = None
    disabled_reason: str | None = None
    forced_down: bool | None = None

    @property
    def is_known(self) -> bool:
        return self.status != UNKNOWN

    @property
    def disabled(self) -> str | None:
        """Reason why nothing new may land there; None: it may."""
        if self.status == 'disabled':
            return self.disabled_reason or 'disabled in Nova'
        if self.forced_down:
            return 'nova-compute was forced down'
        return 'nova-compute is down' if self.state == 'down' else None


class HypervisorService(msgspec.Struct, frozen=True):
    """The service that runs a hypervisor."""

    host: str


class ApiHypervisor(msgspec.Struct, frozen=True, kw_only=True):
    """A compute node; ``id`` is its uuid, and that of its provider in Placement."""

    id: str
    node: str = field(name='hypervisor_hostname')
    type: str | None = field(name='hypervisor_type', default=None)
    version: int | None = field(name='hypervisor_version', default=None)
    state: str | None = None
    host_ip: str | None = None
    cpu_info: Any = None
    running_vms: int | None = None
    current_workload: int | None = None
    service: HypervisorService


class ApiFlavor(msgspec.Struct, frozen=True, kw_only=True):
    """Flavor that a server was created from; MiB and GiB, swap in MiB."""

    vcpus: int
    ram: int
    disk: int
    ephemeral: int | None = None
    swap: int | str | None = None
    original_name: str | None = None
    extra_specs: dict[str, str] | None = None


class ApiServer(msgspec.Struct, frozen=True, kw_only=True):
    """An instance; without ``flavor`` it is one of a cell that is away.

    :ivar shown_host: UNSET: the user may not see it
    """

    id: str
    status: str = ''
    project_id: str | None = field(name='tenant_id', default=None)
    user_id: str | None = None
    shown_host: str | None | UnsetType = field(name=HOST_KEY, default=UNSET)
    node: str | None = field(name='OS-EXT-SRV-ATTR:hypervisor_hostname', default=None)
    vm_state: str | None = field(name='OS-EXT-STS:vm_state', default=None)
    task_state: str | None = field(name='OS-EXT-STS:task_state', default=None)
    flavor: ApiFlavor | None = None
    image: dict[str, Any] | str | None = None

    @property
    def is_known(self) -> bool:
        return self.status != UNKNOWN and self.flavor is not None

    @property
    def host(self) -> str | None:
        """Host that it is on; None: none."""
        return None if self.shown_host is UNSET else self.shown_host

    @property
    def is_hidden(self) -> bool:
        """True where its host may not be seen."""
        return self.is_known and self.shown_host is UNSET

    @property
    def may_move(self) -> bool:
        """True where a migration of it may be open."""
        return self.vm_state == 'resized' or self.task_state in _MOVING_TASKS

    @property
    def is_being_placed(self) -> bool:
        """True where a host may still be found for it, or has just been."""
        return self.vm_state == 'building' or bool(self.task_state)

    @property
    def is_loading_host(self) -> bool:
        """True where it counts among the operations that load a host."""
        return self.vm_state == 'building' or self.task_state in _LOADING_TASKS


class Migration(msgspec.Struct, frozen=True, kw_only=True):
    """A migration of any kind, open or over; its uuid is a consumer in Placement."""

    id: int = 0
    uuid: str | None = None
    created_at: str | None = None
    status: str | None = None
    migration_type: str | None = None
    source_compute: str | None = None
    source_node: str | None = None

    @property
    def is_open(self) -> bool:
        return self.status is not None and self.status not in FINISHED_STATUSES

    @property
    def age(self) -> tuple[str, int]:
        """Key that is greater for the newer of two migrations of an instance."""
        return self.created_at or '', self.id


class ApiAggregate(msgspec.Struct, frozen=True, kw_only=True):
    """A host aggregate; its availability zone is a key of its metadata."""

    uuid: str
    name: str
    metadata: dict[str, str | None] | None = None
    hosts: list[str] | None = None


class ApiServerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A server group; members are uuids of servers."""

    id: str
    name: str | None = None
    policy: str | None = None
    rules: dict[str, Any] | None = None
    members: list[str] | None = None
    project_id: str | None = None


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """A resource provider.

    Its generation grows with inventories, traits and allocations that are written; it does not
    when allocations are deleted.
    """

    uuid: str
    generation: int


class Amounts(msgspec.Struct, frozen=True, kw_only=True):
    """Amounts of one class in an inventory."""

    total: int
    reserved: int = 0
    min_unit: int = 1
    max_unit: int | None = None
    step_size: int = 1
    allocation_ratio: float = 1.0


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """Allocation of one consumer on a provider."""

    resources: dict[str, int] = {}


class ApiProviderDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Inventories, traits and allocations of a provider.

    :ivar allocations: consumer -> class -> amount
    """

    generation: int
    inventories: dict[str, Amounts]
    traits: list[str]
    allocations: dict[str, dict[str, int]]
