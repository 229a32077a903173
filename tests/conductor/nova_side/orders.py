# SPDX-License-Identifier: Apache-2.0
"""What the client does: captured requests and casts, hydrated by Nova's classes and sent anew."""

import collections
import concurrent.futures
import datetime
import json
import threading
import time
import uuid
from typing import Any

import nova.conf
from nova import context as nova_context
from nova import exception, objects, rpc
from nova.compute import utils as compute_utils
from nova.objects import base, fields
from nova.scheduler import rpcapi
from oslo_messaging.notify import _impl_test

CONF = nova.conf.CONF
_apis: dict[str | None, rpcapi.SchedulerAPI] = {}
_lock = threading.Lock()


def run(asked: dict[str, Any]) -> dict[str, Any]:
    """The answer to one order."""
    return ORDERS[asked['order']](asked)


def select(asked: dict[str, Any]) -> dict[str, Any]:
    """One call, as its caller in the conductor makes it.

    Keys: ``message`` (a captured one), ``uuids``, ``objects``, ``alternates``,
    ``cap`` (the version that the client is held to), ``request_id``, and what
    :func:`_spec` takes.
    """
    message = asked['message']
    context = _context(message, asked.get('request_id'))
    spec = _spec(message, context, asked)
    api = _api(asked.get('cap'))
    try:
        answer = api.select_destinations(
            context,
            spec,
            asked['uuids'],
            return_objects=asked.get('objects', True),
            return_alternates=asked.get('alternates', False),
        )
    except Exception as e:
        return {
            'error': {
                # Of a class made for what came from afar, below Nova's own.
                'no_valid_host': isinstance(e, exception.NoValidHost),
                'class': type(e).__name__,
                'message': str(e),
                'kwargs': getattr(e, 'kwargs', None),
                'code': getattr(e, 'code', None),
            }
        }
    if not asked.get('objects', True):
        return {'dictionaries': answer}
    return {'selections': [[_selection(selection) for selection in hosts] for hosts in answer]}


def many(asked: dict[str, Any]) -> dict[str, Any]:
    """``count`` calls, ``at_once`` of them at a time; each for an instance of its own."""

    def once(_: int) -> dict[str, Any]:
        order = {
            'message': asked['message'],
            'uuids': [str(uuid.uuid4())],
            'alternates': True,
            'request_id': f'req-{uuid.uuid4()}',
        }
        return select(order)

    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(asked['at_once']) as pool:
        answers = list(pool.map(once, range(asked['count'])))
    hosts: collections.Counter[str] = collections.Counter()
    for answer in answers:
        for chosen, *_ in answer.get('selections', []):
            hosts[chosen['service_host']] += 1
    return {
        'seconds': time.monotonic() - began,
        'errors': [answer['error'] for answer in answers if 'error' in answer],
        'hosts': hosts,
    }


def cast(asked: dict[str, Any]) -> dict[str, Any]:
    """One of the five broadcasts; ``args`` in place of those that were captured."""
    message = asked['message']
    context = _context(message, asked.get('request_id'))
    arguments = message['args'] | asked.get('args', {})
    args = {name: _hydrated(value, context) for name, value in arguments.items()}
    getattr(_api(None), message['method'])(context, **args)
    return {}


def notices(asked: dict[str, Any]) -> dict[str, Any]:
    """What nova-scheduler notifies of when it takes a request up: both forms."""
    message = asked['message']
    context = _context(message, None)
    spec = _spec(message, context, asked)
    primitive = spec.obj_to_primitive()
    del _impl_test.NOTIFICATIONS[:]
    rpc.get_notifier('scheduler').info(
        context,
        'scheduler.select_destinations.start',
        {'request_spec': spec.to_legacy_request_spec_dict()},
    )
    compute_utils.notify_about_scheduler_action(
        context=context,
        request_spec=spec,
        action=fields.NotificationAction.SELECT_DESTINATIONS,
        phase=fields.NotificationPhase.START,
    )
    return {'spec': primitive, 'sent': [message for _, message, *_ in _impl_test.NOTIFICATIONS]}


def _api(cap: str | None) -> rpcapi.SchedulerAPI:
    with _lock:
        if cap not in _apis:
            CONF.set_override('scheduler', cap, group='upgrade_levels')
            _apis[cap] = rpcapi.SchedulerAPI()
        return _apis[cap]


def _context(message: dict[str, Any], request_id: str | None) -> nova_context.RequestContext:
    prefix = '_context_'
    values = {k.removeprefix(prefix): v for k, v in message.items() if k.startswith(prefix)}
    now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    values['timestamp'] = now.isoformat()
    values['request_id'] = request_id or f'req-{uuid.uuid4()}'
    values['service_catalog'] = []
    return nova_context.RequestContext.from_dict(values)


def _spec(
    message: dict[str, Any], context: nova_context.RequestContext, asked: dict[str, Any]
) -> objects.RequestSpec:
    """A captured RequestSpec for these instances.

    Keys of the order: ``evacuate`` (the source) and ``rebuild`` (the host) make
    of it what the conductor makes for these; ``target`` names a host with
    them; ``ignore`` the hosts not to take, ``force`` the one to take;
    ``memory_mb`` of the flavor; ``extra_specs`` beside its own; ``cells``
    of a NUMA topology.
    """
    spec = objects.RequestSpec.obj_from_primitive(message['args']['spec_obj'], context)
    spec.instance_uuid = asked['uuids'][0]
    spec.num_instances = len(asked['uuids'])
    if 'memory_mb' in asked:
        spec.flavor.memory_mb = asked['memory_mb']
    if 'extra_specs' in asked:
        spec.flavor.extra_specs = {**spec.flavor.extra_specs, **asked['extra_specs']}
    if 'ignore' in asked:
        spec.ignore_hosts = asked['ignore']
    if 'force' in asked:
        spec.force_hosts = [asked['force']]
    if 'cells' in asked:
        spec.numa_topology = objects.InstanceNUMATopology(
            instance_uuid=spec.instance_uuid,
            cells=[
                objects.InstanceNUMACell(id=n, cpuset={n}, pcpuset=set(), memory=256)
                for n in range(asked['cells'])
            ],
        )
    if 'evacuate' in asked:
        spec.ignore_hosts = [asked['evacuate']]
        spec.reset_forced_destinations()
        spec.requested_resources = []
        spec.request_level_params = objects.RequestLevelParams()
        spec.generate_request_groups_from_pci_requests()
    if 'rebuild' in asked:
        spec.requested_destination = objects.Destination(
            host=asked['rebuild'], node=asked['rebuild']
        )
        spec.scheduler_hints = {'_nova_check_type': ['rebuild']}
        spec.force_hosts = spec.force_nodes = None
    if 'target' in asked:
        spec.requested_destination = objects.Destination(host=asked['target'])
    if 'cell' in asked:
        _restrict(spec, asked['cell'])
    return spec


def _restrict(spec: objects.RequestSpec, cell: str) -> None:
    """As the conductor's ``_restrict_request_spec_to_cell``."""
    mapping = objects.CellMapping(id=2, uuid=cell, name='cell1', disabled=False)
    if spec.obj_attr_is_set('requested_destination') and spec.requested_destination:
        spec.requested_destination.cell = mapping
    else:
        spec.requested_destination = objects.Destination(cell=mapping)


def _selection(selection: Any) -> dict[str, Any]:
    """A Selection that Nova accepts: all of its fields set, and of their types."""
    assert type(selection) is objects.Selection, type(selection)
    unset = [name for name in selection.fields if not selection.obj_attr_is_set(name)]
    assert not unset, unset
    assert type(selection.limits) is objects.SchedulerLimits
    again = objects.Selection.obj_from_primitive(selection.obj_to_primitive())
    assert base.obj_equal_prims(selection, again)
    selection.to_dict()
    shown = {name: getattr(selection, name) for name in selection.fields}
    if selection.allocation_request is not None:
        shown['allocation_request'] = json.loads(selection.allocation_request)
    limits = selection.limits.to_dict()
    if 'numa_topology' in limits:
        limits['numa_topology'] = limits['numa_topology'].obj_to_primitive()['nova_object.data']
    shown['limits'] = limits
    return shown


def _hydrated(value: Any, context: nova_context.RequestContext) -> Any:
    if isinstance(value, list):
        return [_hydrated(element, context) for element in value]
    if isinstance(value, dict) and 'nova_object.name' in value:
        return base.NovaObject.obj_from_primitive(value, context)
    return value


ORDERS = {'select': select, 'many': many, 'cast': cast, 'notices': notices}
