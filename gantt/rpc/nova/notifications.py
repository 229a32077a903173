# SPDX-License-Identifier: Apache-2.0
"""Notifications of nova-scheduler: the two of ``select_destinations``.

``scheduler.select_destinations.start`` and ``.end``, in the unversioned form (the
request as two dictionaries once were) and in the versioned one (RequestSpecPayload
1.1), as Nova 34 sends them.  Left out is what its unversioned form includes from
inside its objects by accident: the context and the names of changed fields.
"""

import datetime
from typing import Any

from gantt.rpc.nova.objects import data_of

START, END = 'scheduler.select_destinations.start', 'scheduler.select_destinations.end'

#: Payload -> its version, and those of its fields that are the fields of the object.
_FIELDS: dict[str, tuple[str, str]] = {
    'FlavorPayload': (
        '1.4',
        'flavorid memory_mb vcpus root_gb ephemeral_gb name swap rxtx_factor vcpu_weight disabled'
        ' is_public extra_specs projects description',
    ),
    'ImageMetaPayload': (
        '1.0',
        'id name status visibility protected checksum owner size virtual_size container_format'
        ' disk_format created_at updated_at tags direct_url min_ram min_disk',
    ),
    'ServerGroupPayload': (
        '1.1',
        'uuid name user_id project_id policies members hosts policy rules',
    ),
    'InstanceNUMATopologyPayload': ('1.0', 'instance_uuid emulator_threads_policy'),
    'InstanceNUMACellPayload': (
        '1.2',
        'id cpuset pcpuset cpuset_reserved memory pagesize cpu_pinning_raw cpu_policy'
        ' cpu_thread_policy',
    ),
    'VirtCPUTopologyPayload': ('1.0', 'sockets cores threads'),
    'InstancePCIRequestsPayload': ('1.0', 'instance_uuid'),
    'InstancePCIRequestPayload': ('1.1', 'count spec alias_name request_id numa_policy'),
    'CellMappingPayload': ('2.0', 'uuid name disabled'),
    'DestinationPayload': ('1.0', 'aggregates'),
    'SchedulerRetriesPayload': ('1.0', 'num_attempts'),
    'RequestSpecPayload': (
        '1.1',
        'ignore_hosts instance_uuid project_id user_id availability_zone num_instances'
        ' scheduler_hints',
    ),
}

#: Image properties left out of the payload.
_NOT_FORWARDED = frozenset({'hw_ephemeral_encryption_secret_uuid'})
_INSTANCE = (
    'numa_topology',
    'pci_requests',
    'project_id',
    'user_id',
    'availability_zone',
)
_AMOUNTS = ('root_gb', 'ephemeral_gb', 'memory_mb', 'vcpus')
#: Secrets of a context, and their replacements.
_SECRET: dict[str, Any] = {'auth_token': None, 'service_catalog': []}  # nosec B105 # no password


class Context(dict[str, Any]):
    """A context without secrets; a plain dictionary the library would not send at all."""

    def redacted_copy(self) -> 'Context':
        """Return what is sent: the context itself."""
        return self


def context(context_fields: dict[str, Any]) -> Context:
    """Return the context of a request as it goes with its notifications."""
    return Context(context_fields | _SECRET)


def ended(spec: dict[str, Any], consumers: list[str], hosts: list[str]) -> dict[str, Any]:
    """Return a serialized RequestSpec as it is after all instances were placed."""
    data = data_of(spec) | {'instance_uuid': consumers[-1]}
    group = data_of(data.get('instance_group'))
    if group:
        group = group | {'hosts': [*(group.get('hosts') or []), *hosts]}
        data['instance_group'] = data['instance_group'] | {'nova_object.data': group}
    return spec | {'nova_object.data': data}


def unversioned(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the payload of the unversioned form."""
    data = data_of(spec)
    flavor = _dated(_plain(data.get('flavor')))
    instance = {name: _plain(data[name]) for name in _INSTANCE if name in data}
    if 'instance_uuid' in data:
        instance['uuid'] = data['instance_uuid']
    instance |= {name: flavor[name] for name in _AMOUNTS if name in flavor}
    return {
        'request_spec': {
            'num_instances': data.get('num_instances', 1),
            'image': _dated(_plain(data.get('image'))),
            'instance_properties': instance,
            'instance_type': flavor,
        }
    }


def versioned(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the payload of the versioned form."""
    data = data_of(spec)
    groups = data_of(data.get('security_groups')).get('objects') or []
    return _payload(
        'RequestSpecPayload',
        spec,
        {
            'flavor': _payload('FlavorPayload', data.get('flavor')),
            'force_hosts': _first(data.get('force_hosts')),
            'force_nodes': _first(data.get('force_nodes')),
            'image': _image(data.get('image')),
            'instance_group': _group(data.get('instance_group')),
            'numa_topology': _topology(data.get('numa_topology'), data.get('instance_uuid')),
            'pci_requests': _devices(data.get('pci_requests'), data.get('instance_uuid')),
            'requested_destination': _destination(data.get('requested_destination')),
            'retry': _retry(data.get('retry')),
            'security_groups': [_identifier(data_of(group)) for group in groups],
        },
    )


def _plain(value: Any) -> Any:
    """Return a serialized object as its fields."""
    if isinstance(value, dict):
        if 'nova_object.name' in value:
            value = data_of(value)
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def _dated(data: Any) -> dict[str, Any]:
    """Return fields with times as they are written outside of objects."""
    if not isinstance(data, dict):
        return {}
    return {name: _time(v) if name.endswith('_at') else v for name, v in data.items()}


def _time(value: Any) -> Any:
    try:
        parsed_time = datetime.datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return value
    return parsed_time.strftime('%Y-%m-%dT%H:%M:%S.%f')


def _payload(name: str, primitive: Any, more: dict[str, Any] | None = None) -> Any:
    """Return a payload with the fields of an object; fields that are not set are null."""
    if primitive is None:
        return None
    version, fields = _FIELDS[name]
    data = data_of(primitive)
    return _object(
        name, version, {field: data.get(field) for field in fields.split()} | (more or {})
    )


def _object(name: str, version: str, data: dict[str, Any]) -> dict[str, Any]:
    return {
        'nova_object.name': name,
        'nova_object.namespace': 'nova',
        'nova_object.version': version,
        'nova_object.data': data,
    }


def _first(names: Any) -> Any:
    return names[0] if isinstance(names, list) and names else None


def _image(image: Any) -> Any:
    properties = data_of(data_of(image).get('properties'))
    forwarded = {name: value for name, value in properties.items() if name not in _NOT_FORWARDED}
    return _payload(
        'ImageMetaPayload',
        image,
        {'properties': _object('ImageMetaPropsPayload', '1.20', forwarded)},
    )


def _group(group: Any) -> Any:
    data = data_of(group)
    rules = data.get('rules') or data.get('_rules') or {}
    return _payload('ServerGroupPayload', group, {'rules': rules})


def _topology(numa: Any, instance: Any) -> Any:
    cells = []
    for cell in data_of(numa).get('cells') or []:
        shape = _payload('VirtCPUTopologyPayload', data_of(cell).get('cpu_topology'))
        cells.append(_payload('InstanceNUMACellPayload', cell, {'cpu_topology': shape}))
    uuid = data_of(numa).get('instance_uuid') or instance
    return _payload('InstanceNUMATopologyPayload', numa, {'cells': cells, 'instance_uuid': uuid})


def _devices(devices: Any, instance: Any) -> Any:
    requests = [
        _payload('InstancePCIRequestPayload', request)
        for request in data_of(devices).get('requests') or []
    ]
    uuid = data_of(devices).get('instance_uuid') or instance
    return _payload(
        'InstancePCIRequestsPayload', devices, {'requests': requests, 'instance_uuid': uuid}
    )


def _destination(wanted: Any) -> Any:
    data = data_of(wanted)
    further_fields = {name: data[name] for name in ('host', 'node') if data.get(name) is not None}
    if data.get('cell') is not None:
        further_fields['cell'] = _payload('CellMappingPayload', data['cell'])
    return _payload('DestinationPayload', wanted, further_fields)


def _retry(retry: Any) -> Any:
    nodes = data_of(data_of(retry).get('hosts')).get('objects') or []
    hosts = [data_of(node).get('hypervisor_hostname') for node in nodes]
    return _payload('SchedulerRetriesPayload', retry, {'hosts': hosts})


def _identifier(group: dict[str, Any]) -> Any:
    return group.get('uuid') or group.get('name')
