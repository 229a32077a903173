# SPDX-License-Identifier: Apache-2.0
"""Filters written for Nova: ``host_passes(host_state, spec_obj)``, run as they are.

Such a filter is given views with the names that Nova uses; behind them are the host table and the
request, read only.  Nova is not needed and not imported: a filter derives from
:class:`BaseHostFilter` here instead of from Nova's, or from nothing at all.  A name of Nova's
without a counterpart here is None.
"""

import datetime
import functools
import json
from collections.abc import Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any, ClassVar

from gantt import exceptions
from gantt.core.filters.base import EVERY_PURPOSE, PLACING, PerHostFilter
from gantt.core.messages.request import GroupRef, RequestSpec
from gantt.core.table.host_state import HostState


class BaseHostFilter:
    """Base class with the interface of Nova's class of this name."""

    RUN_ON_REBUILD: ClassVar[bool] = False
    run_filter_once_per_request: ClassVar[bool] = False

    def host_passes(self, host_state: Any, spec_obj: Any) -> bool:
        """Return whether the host passes."""
        raise NotImplementedError


class NovaFilter(PerHostFilter):
    """One filter of Nova's shape; made by :func:`adapted_filter`."""

    reason = 'removed by {name}'
    nova_class: ClassVar[type]

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        super().__init__(values)
        self.nova_filter = self.nova_class()

    def host_passes(self, host: HostState, spec: RequestSpec) -> bool:
        return bool(self.nova_filter.host_passes(HostView(host), SpecView(spec)))


def is_for_nova(plugin: object) -> bool:
    """Return whether an object is a class of the shape of Nova's filters."""
    return isinstance(plugin, type) and callable(getattr(plugin, 'host_passes', None))


@functools.cache
def adapted_filter(nova_class: type) -> type[NovaFilter]:
    """Return a filter of ours that runs a filter of Nova's.

    It may read anything, so it declares no columns, and is run again for a host that was picked,
    unless ``run_filter_once_per_request`` is set.

    :raises PluginError: it does its work elsewhere than in ``host_passes``
    """
    _check(nova_class)
    rebuild = bool(getattr(nova_class, 'RUN_ON_REBUILD', False))
    doc = (nova_class.__doc__ or f'{nova_class.__name__}, written for Nova.').strip()
    return type(
        nova_class.__name__,
        (NovaFilter,),
        {
            '__doc__': doc,
            '__module__': nova_class.__module__,
            'nova_class': nova_class,
            'purposes': EVERY_PURPOSE if rebuild else PLACING,
            'once': bool(getattr(nova_class, 'run_filter_once_per_request', False)),
        },
    )


#: Modules of Nova's own base classes: their methods are no overrides.
_NOVA_BASES = ('nova.filters', 'nova.scheduler.filters')
#: Other entry points of a filter of Nova's, which are not called here.
_IGNORED_METHODS = ('filter_all', '_filter_one')


def _check(nova_class: type) -> None:
    for base in nova_class.__mro__:
        if base.__module__ in _NOVA_BASES or base in (object, BaseHostFilter):
            continue
        for name in _IGNORED_METHODS:
            if name in vars(base):
                _refuse(nova_class, f'overrides {name}, which is not asked here')
    if getattr(nova_class, 'host_passes', None) is BaseHostFilter.host_passes:
        _refuse(nova_class, 'does not say what host_passes is')


def _refuse(nova_class: type, problem: str) -> None:
    raise exceptions.PluginError(
        plugin=nova_class.__name__,
        problem=f'{problem}; expected host_passes(host_state, spec_obj) alone',
        fix='Look at one host at a time',
    )


class _NovaObjectView:
    """A view whose attributes are computed on access; names without a counterpart are None."""

    __slots__ = ('_viewed',)
    _viewed: Any

    def __init__(self, viewed: Any) -> None:
        object.__setattr__(self, '_viewed', viewed)

    def __repr__(self) -> str:
        return f'<{type(self).__name__}>'

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f'{name}: hosts and requests are not changed by filters')

    def __getattr__(self, name: str) -> Any:
        compute = self._names().get(name)
        if compute is not None:
            return compute(self._viewed)
        if name in self._unknown:
            return None
        raise AttributeError(f'{type(self).__name__} has no {name!r}')

    _unknown: ClassVar[frozenset[str]] = frozenset()

    @staticmethod
    def _names() -> Mapping[str, Any]:
        """Return name -> function that computes it from the object behind the view."""
        raise NotImplementedError


class HostView(_NovaObjectView):
    """A host under the names of Nova's HostState."""

    _unknown = frozenset({'pci_stats', 'allocation_candidates'})

    @staticmethod
    def _names() -> Mapping[str, Any]:
        return _HOST_ATTRIBUTES


def _inventory(host: HostState, name: str, field: str, default: Any) -> Any:
    inventory = host.inventories.get(name)
    return getattr(inventory, field) if inventory else default


def _aggregates(host: HostState) -> list[SimpleNamespace]:
    return [
        SimpleNamespace(
            id=a.id,
            uuid=a.uuid,
            name=a.name,
            hosts=list(a.hosts),
            metadata=MappingProxyType(a.metadata),
            availability_zone=a.metadata.get('availability_zone'),
        )
        for a in host.aggregates
    ]


def _metrics(host: HostState) -> list[SimpleNamespace]:
    return [
        SimpleNamespace(name=name, value=metric.value, source=metric.source)
        for name, metric in host.metrics.items()
    ]


def _cpu_info(host: HostState) -> str:
    cpu_info = host.hypervisor.cpu_info
    return cpu_info if isinstance(cpu_info, str) else json.dumps(cpu_info)


def _updated_at(host: HostState) -> datetime.datetime | None:
    at = host.reported_at
    return None if at is None else datetime.datetime.fromtimestamp(at, datetime.UTC)


def _service(host: HostState) -> Mapping[str, Any]:
    return {
        'id': None,
        'uuid': None,
        'version': None,
        'report_count': None,
        'host': host.service,
        'binary': 'nova-compute',
        'topic': 'compute',
        'disabled': not host.is_enabled,
        'disabled_reason': host.disabled_reason,
        'forced_down': False,
        'availability_zone': host.zone,
        'last_seen_up': _updated_at(host),
        'updated_at': _updated_at(host),
    }


def _numa(host: HostState) -> SimpleNamespace | None:
    cells = [
        SimpleNamespace(
            id=c.id,
            cpuset=set(c.cpus),
            pcpuset=set(c.pinned_cpus),
            memory=c.memory_mb,
            memory_usage=c.memory_used_mb,
            cpu_usage=c.cpu_used,
            socket=c.socket,
            pinned_cpus=set(c.used_pinned_cpus),
            siblings=[set(s) for s in c.siblings],
        )
        for c in host.numa
    ]
    return SimpleNamespace(cells=cells) if cells else None


def _guests(host: HostState) -> Mapping[str, Any]:
    return {consumer: SimpleNamespace(uuid=consumer) for consumer in host.consumers}


_HOST_ATTRIBUTES: dict[str, Any] = {
    'host': lambda host: host.service,
    'nodename': lambda host: host.node,
    'uuid': lambda host: host.uuid,
    'cell_uuid': lambda host: host.cell,
    'total_usable_ram_mb': lambda host: _inventory(host, 'MEMORY_MB', 'total', 0),
    'total_usable_disk_gb': lambda host: _inventory(host, 'DISK_GB', 'total', 0),
    'free_ram_mb': lambda host: _free(host, 'MEMORY_MB'),
    'free_disk_mb': lambda host: _free(host, 'DISK_GB') * 1024,
    'disk_mb_used': lambda host: _used(host, 'DISK_GB') * 1024,
    'vcpus_total': lambda host: _inventory(host, 'VCPU', 'total', 0),
    'vcpus_used': lambda host: _used(host, 'VCPU'),
    'cpu_allocation_ratio': lambda host: _inventory(host, 'VCPU', 'allocation_ratio', 1.0),
    'ram_allocation_ratio': lambda host: _inventory(host, 'MEMORY_MB', 'allocation_ratio', 1.0),
    'disk_allocation_ratio': lambda host: _inventory(host, 'DISK_GB', 'allocation_ratio', 1.0),
    'num_instances': lambda host: host.instances,
    'num_io_ops': lambda host: max(_stats_value(host, 'io_workload'), host.io_ops),
    'failed_builds': lambda host: _stats_value(host, 'failed_builds'),
    'host_ip': lambda host: host.hypervisor.host_ip or None,
    'hypervisor_type': lambda host: host.hypervisor.type,
    'hypervisor_version': lambda host: host.hypervisor.version,
    'hypervisor_hostname': lambda host: host.hypervisor.hostname or host.node,
    'cpu_info': _cpu_info,
    'supported_instances': lambda host: [list(instance) for instance in host.hypervisor.supported],
    'stats': lambda host: MappingProxyType(host.hypervisor.stats),
    'metrics': _metrics,
    'aggregates': _aggregates,
    'instances': _guests,
    'numa_topology': _numa,
    'service': _service,
    'limits': lambda host: {},
    'updated': _updated_at,
}


def _used(host: HostState, name: str) -> int:
    """Return the used amount, reserved included and ratios left out, as in Nova."""
    reserved = _inventory(host, name, 'reserved', 0)
    return host.used.get(name, 0) + host.foreign.get(name, 0) + reserved


def _free(host: HostState, name: str) -> int:
    return _inventory(host, name, 'total', 0) - _used(host, name)


def _stats_value(host: HostState, name: str) -> int:
    measured = host.metrics.get(f'stats.{name}')
    if measured is not None:
        return int(measured.value)
    text = host.hypervisor.stats.get(name, '0')
    return int(text) if text.isdecimal() else 0


class SpecView(_NovaObjectView):
    """A request under the names of Nova's RequestSpec."""

    _unknown = frozenset(
        {
            'id',
            'instance_uuid',
            'limits',
            'retry',
            'pci_requests',
            'numa_topology',
            'network_metadata',
            'requested_networks',
            'security_groups',
            'num_instances',
        }
    )

    @staticmethod
    def _names() -> Mapping[str, Any]:
        return _SPEC_ATTRIBUTES

    def __contains__(self, name: str) -> bool:
        return getattr(self, name, None) is not None

    def obj_attr_is_set(self, name: str) -> bool:
        """Return whether a field is set, as objects of Nova do."""
        return name in self

    def get_scheduler_hint(self, name: str, default: Any = None) -> Any:
        """Return a hint: a list of one is its element, as in Nova."""
        values = self.scheduler_hints.get(name)
        if not values:
            return default
        return values[0] if len(values) == 1 else values


def _flavor(spec: RequestSpec) -> SimpleNamespace:
    amounts = spec.resources
    return SimpleNamespace(
        name=spec.flavor.name,
        vcpus=amounts.get('VCPU', 0) + amounts.get('PCPU', 0),
        memory_mb=amounts.get('MEMORY_MB', 0),
        # One amount here: root, ephemeral and swap are not distinguished.
        root_gb=amounts.get('DISK_GB', 0),
        ephemeral_gb=0,
        swap=0,
        extra_specs=MappingProxyType(spec.flavor.extra_specs),
    )


class _Properties(_NovaObjectView):
    """Image properties as attributes and as a mapping."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith('__'):
            raise AttributeError(name)
        return self._viewed.get(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a property or the default, as objects of Nova do."""
        return self._viewed.get(name, default)

    def __contains__(self, name: str) -> bool:
        return name in self._viewed

    def to_dict(self) -> dict[str, str]:
        """Return all properties, as objects of Nova do."""
        return dict(self._viewed)


def _image(spec: RequestSpec) -> SimpleNamespace:
    return SimpleNamespace(id=spec.image.uuid, properties=_Properties(spec.image.properties))


def _group(spec: RequestSpec) -> SimpleNamespace | None:
    group: GroupRef | None = spec.group
    if group is None:
        return None
    policy = group.policy.value if group.policy else None
    return SimpleNamespace(
        uuid=group.uuid,
        policy=policy,
        policies=[policy] if policy else [],
        members=list(group.members),
        hosts=list(group.hosts),
        rules={'max_server_per_host': group.max_per_host},
    )


def _destination(spec: RequestSpec) -> SimpleNamespace | None:
    destination = spec.destination
    if destination is None:
        return None
    return SimpleNamespace(
        host=destination.host,
        node=destination.node,
        cell=destination.cell,
        aggregates=[','.join(names) for names in destination.aggregates],
        forbidden_aggregates=list(destination.forbidden_aggregates),
    )


def _hints(spec: RequestSpec) -> dict[str, list[str]]:
    named = {'same_host': spec.same_host, 'different_host': spec.different_host}
    hints = {name: list(values) for name, values in spec.hints.items()}
    hints.update({name: list(values) for name, values in named.items() if values})
    if spec.group is not None:
        hints.setdefault('group', [spec.group.uuid])
    return hints


_SPEC_ATTRIBUTES: dict[str, Any] = {
    'flavor': _flavor,
    'image': _image,
    'project_id': lambda spec: spec.project_id,
    'user_id': lambda spec: spec.user_id,
    'availability_zone': lambda spec: spec.availability_zone,
    'ignore_hosts': lambda spec: list(spec.ignore_hosts) or None,
    'force_hosts': lambda spec: list(spec.force_hosts) or None,
    'force_nodes': lambda spec: list(spec.force_nodes) or None,
    'requested_destination': _destination,
    'instance_group': _group,
    'scheduler_hints': _hints,
    'is_bfv': lambda spec: spec.volume_backed,
    'vcpus': lambda spec: _flavor(spec).vcpus,
    'memory_mb': lambda spec: _flavor(spec).memory_mb,
    'root_gb': lambda spec: _flavor(spec).root_gb,
    'ephemeral_gb': lambda spec: 0,
    'swap': lambda spec: 0,
}
