# SPDX-License-Identifier: Apache-2.0
"""Nova's broadcasts to its schedulers, decoded into typed events."""

from typing import Any

from gantt import exceptions
from gantt.core.messages import base
from gantt.nova.model import flavor as nova_flavor
from gantt.nova.model.events import (
    AggregateDeleted,
    AggregatesUpdated,
    GuestDeleted,
    GuestsListed,
    GuestsUpdated,
    NovaAggregate,
    NovaGuest,
)
from gantt.nova.wire.objects import fields, objects, optional_fields
from gantt.rpc import wire


def update_aggregates(args: dict[str, Any]) -> AggregatesUpdated:
    """Decode updated aggregates.

    :raises InvalidMessage: names the field
    """
    wire.check_names(args, ('aggregates',), newer=True)
    aggregates = args['aggregates']
    if not isinstance(aggregates, list):
        raise exceptions.invalid('aggregates', 'expected a list')
    return AggregatesUpdated(aggregates=[_aggregate(a) for a in aggregates])


def delete_aggregate(args: dict[str, Any]) -> AggregateDeleted:
    """Decode a deleted aggregate.

    :raises InvalidMessage: names the field
    """
    wire.check_names(args, ('aggregate',), newer=True)
    return AggregateDeleted(aggregate=_aggregate(args['aggregate']))


def update_instance_info(args: dict[str, Any]) -> GuestsUpdated:
    """Decode updated instances of a host.

    :raises InvalidMessage: names the field
    """
    wire.check_names(args, ('host_name', 'instance_info'), newer=True)
    instances = objects(args['instance_info'], 'InstanceList', 'Instance', 'instance_info')
    return base.decode(
        {'host': args['host_name'], 'guests': [_guest(i) for i in instances]},
        GuestsUpdated,
        inside='event',
    )


def delete_instance_info(args: dict[str, Any]) -> GuestDeleted:
    """Decode a deleted instance.

    :raises InvalidMessage: names the field
    """
    wire.check_names(args, ('host_name', 'instance_uuid'), newer=True)
    return base.decode(
        {'host': args['host_name'], 'consumer': args['instance_uuid']}, GuestDeleted, inside='event'
    )


def sync_instance_info(args: dict[str, Any]) -> GuestsListed:
    """Decode the list of instances on a host.

    :raises InvalidMessage: names the field
    """
    wire.check_names(args, ('host_name', 'instance_uuids'), newer=True)
    return base.decode(
        {'host': args['host_name'], 'consumers': args['instance_uuids']},
        GuestsListed,
        inside='event',
    )


def _aggregate(primitive: Any) -> NovaAggregate:
    data = fields(primitive, 'Aggregate', 'aggregate')
    body = {
        'uuid': data.get('uuid'),
        'name': data.get('name'),
        'metadata': data.get('metadata') or {},
        'hosts': data.get('hosts') or [],
    }
    return base.decode(body, NovaAggregate, inside='aggregate')


def _guest(data: dict[str, Any]) -> NovaGuest:
    """Return an instance; without its flavor its amounts come from its own columns.

    Its image, if it has one, is in its metadata: it may have pinned the processors.
    """
    flavor = optional_fields(data.get('flavor'), 'Flavor', 'instance_info.flavor') or data
    image = nova_flavor.instance_image(data.get('system_metadata'))
    volume = data.get('image_ref') == ''
    resources = nova_flavor.in_use(flavor, image, volume=volume)
    body = {
        'consumer': data.get('uuid'),
        'node': data.get('node') or '',
        'resources': resources,
        'project_id': data.get('project_id'),
        'user_id': data.get('user_id'),
        'vm_state': data.get('vm_state') or '',
        'task_state': data.get('task_state') or '',
        'moving': data.get('migration_context') is not None,
        'flavor': flavor.get('name') if flavor is not data else None,
    }
    return base.decode(body, NovaGuest, inside='instance_info')
