# SPDX-License-Identifier: Apache-2.0
"""Form of ``select_destinations`` before 4.3: two dictionaries in place of a RequestSpec.

A conductor that is held to an older version ([upgrade_levels] scheduler) sends
them, as ``to_legacy_request_spec_dict`` and ``to_legacy_filter_properties_dict``
of Nova's RequestSpec build them: objects inside are serialized, or plain.
"""

from typing import Any

from gantt import exceptions
from gantt.core.messages import base
from gantt.nova.wire.objects import fields_of_any

#: Instances in one call that does not name them.
MEMBERS_MAX = 1000

#: Keys of the two dictionaries that a RequestSpec has under the same name.
_INSTANCE_FIELDS = ('project_id', 'user_id', 'availability_zone', 'pci_requests', 'numa_topology')
_FILTER_PROPERTIES = (
    'ignore_hosts',
    'force_hosts',
    'force_nodes',
    'scheduler_hints',
    'requested_destination',
)


def arguments(args: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments as of 4.4: a RequestSpec, and the instances that it is for.

    Before 4.4 only the first of several instances is named.  The others get names
    derived from it, so that a claim is held for each until the lease ends.

    :raises InvalidMessage: names the field
    """
    args = args | {'spec_obj': _request_spec(args)}
    if args.get('instance_uuids'):
        return args
    data = fields_of_any(args['spec_obj'])
    first_uuid = data.get('instance_uuid')
    if not isinstance(first_uuid, str):
        return args
    count = data.get('num_instances') or 1
    if not isinstance(count, int) or not 1 <= count <= MEMBERS_MAX:
        raise exceptions.invalid('num_instances', f'expected 1 to {MEMBERS_MAX}, got {count!r}')
    other_members = [base.derived_id('nova member', first_uuid, n) for n in range(1, count)]
    return args | {'instance_uuids': [first_uuid, *other_members]}


def _request_spec(args: dict[str, Any]) -> Any:
    if 'spec_obj' in args or 'request_spec' not in args:
        return args.get('spec_obj')
    spec = _dictionary(args['request_spec'], 'request_spec')
    filters = _dictionary(args.get('filter_properties'), 'filter_properties')
    instance = _dictionary(spec.get('instance_properties'), 'request_spec.instance_properties')
    data = {name: instance.get(name) for name in _INSTANCE_FIELDS}
    data |= {name: filters.get(name) for name in _FILTER_PROPERTIES}
    data |= {
        'instance_uuid': instance.get('uuid'),
        'num_instances': spec.get('num_instances', 1),
        'flavor': _object(spec.get('instance_type'), 'Flavor'),
        'image': _image(spec.get('image')),
        'retry': _retry(filters.get('retry')),
        'instance_group': filters.get('instance_group') or _group(filters),
    }
    return _object(data, 'RequestSpec')


def _dictionary(value: Any, field: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise exceptions.invalid(field, f'expected an object, got {type(value).__name__}')
    return value


def _object(value: Any, name: str) -> Any:
    """Return a plain dictionary as the serialized object that it was created from."""
    if not isinstance(value, dict) or 'nova_object.name' in value:
        return value
    return {'nova_object.name': name, 'nova_object.data': value}


def _image(image: Any) -> Any:
    if not image:
        return None
    primitive = _object(image, 'ImageMeta')
    data = primitive['nova_object.data'] if isinstance(primitive, dict) else None
    if not isinstance(data, dict) or 'properties' not in data:
        return primitive
    properties = _object(data['properties'], 'ImageMetaProps')
    return primitive | {'nova_object.data': data | {'properties': properties}}


def _retry(retry: Any) -> Any:
    """Return tried hosts, which come as pairs of host and node, as serialized objects."""
    if not isinstance(retry, dict) or 'nova_object.name' in retry:
        return retry
    hosts = retry.get('hosts') or []
    if not isinstance(hosts, list) or not all(isinstance(h, list) and len(h) == 2 for h in hosts):
        raise exceptions.invalid('filter_properties.retry.hosts', 'expected pairs of host and node')
    nodes = [
        _object({'host': host, 'hypervisor_hostname': node}, 'ComputeNode') for host, node in hosts
    ]
    return _object({'hosts': _object({'objects': nodes}, 'ComputeNodeList')}, 'SchedulerRetries')


def _group(filters: dict[str, Any]) -> Any:
    if filters.get('group_updated') is not True:
        return None
    policies = filters.get('group_policies') or []
    return _object(
        {
            'uuid': filters.get('group_uuid'),
            'policy': next(iter(policies), None),
            'hosts': filters.get('group_hosts') or [],
            'members': filters.get('group_members') or [],
        },
        'InstanceGroup',
    )
