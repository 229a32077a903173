# SPDX-License-Identifier: Apache-2.0
"""Notifications of nova-scheduler, the two of ``select_destinations``, and their sender.

``scheduler.select_destinations.start`` and ``.end``, in the unversioned form (the
request as two dictionaries once were) and in the versioned one (RequestSpecPayload
1.1), as Nova 34 sends them.  Left out is what its unversioned form includes from
inside its objects by accident: the context and the names of changed fields.

They are sent by a thread and never waited for.  What cannot be sent in time is dropped and
counted: no instance waits for listeners.
"""

import datetime
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

import oslo_messaging as om

from gantt.nova.wire.objects import fields_of_any
from gantt.rpc.amqp import transport
from gantt.rpc.amqp.replies import Count

START, END = 'scheduler.select_destinations.start', 'scheduler.select_destinations.end'

#: Payload -> its version, and those of its fields that are the fields of the object.
_OBJECT_VERSIONS: dict[str, tuple[str, str]] = {
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
_INSTANCE_FIELDS = (
    'numa_topology',
    'pci_requests',
    'project_id',
    'user_id',
    'availability_zone',
)
_FLAVOR_AMOUNTS = ('root_gb', 'ephemeral_gb', 'memory_mb', 'vcpus')
#: Secrets of a context, and their replacements.
_SECRET_FIELDS: dict[str, Any] = {'auth_token': None, 'service_catalog': []}  # nosec B105 # no password


class Context(dict[str, Any]):
    """A context without secrets; a plain dictionary the library would not send at all."""

    def redacted_copy(self) -> 'Context':
        """Return what is sent: the context itself."""
        return self


def ended(spec: dict[str, Any], consumers: list[str], hosts: list[str]) -> dict[str, Any]:
    """Return a serialized RequestSpec as it is after all instances were placed."""
    data = fields_of_any(spec) | {'instance_uuid': consumers[-1]}
    group = fields_of_any(data.get('instance_group'))
    if group:
        group = group | {'hosts': [*(group.get('hosts') or []), *hosts]}
        data['instance_group'] = data['instance_group'] | {'nova_object.data': group}
    return spec | {'nova_object.data': data}


def unversioned(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the payload of the unversioned form."""
    data = fields_of_any(spec)
    flavor = _with_time_texts(_plain_fields(data.get('flavor')))
    instance = {name: _plain_fields(data[name]) for name in _INSTANCE_FIELDS if name in data}
    if 'instance_uuid' in data:
        instance['uuid'] = data['instance_uuid']
    instance |= {name: flavor[name] for name in _FLAVOR_AMOUNTS if name in flavor}
    return {
        'request_spec': {
            'num_instances': data.get('num_instances', 1),
            'image': _with_time_texts(_plain_fields(data.get('image'))),
            'instance_properties': instance,
            'instance_type': flavor,
        }
    }


def versioned(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the payload of the versioned form."""
    data = fields_of_any(spec)
    groups = fields_of_any(data.get('security_groups')).get('objects') or []
    return _payload(
        'RequestSpecPayload',
        spec,
        {
            'flavor': _payload('FlavorPayload', data.get('flavor')),
            'force_hosts': _first_value(data.get('force_hosts')),
            'force_nodes': _first_value(data.get('force_nodes')),
            'image': _image(data.get('image')),
            'instance_group': _group(data.get('instance_group')),
            'numa_topology': _topology(data.get('numa_topology'), data.get('instance_uuid')),
            'pci_requests': _devices(data.get('pci_requests'), data.get('instance_uuid')),
            'requested_destination': _destination(data.get('requested_destination')),
            'retry': _retry(data.get('retry')),
            'security_groups': [
                group.get('uuid') or group.get('name') for group in map(fields_of_any, groups)
            ],
        },
    )


def _plain_fields(value: Any) -> Any:
    """Return a serialized object as its fields."""
    if isinstance(value, dict):
        if 'nova_object.name' in value:
            value = fields_of_any(value)
        return {name: _plain_fields(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain_fields(item) for item in value]
    return value


def _with_time_texts(data: Any) -> dict[str, Any]:
    """Return fields with times as they are written outside of objects."""
    if not isinstance(data, dict):
        return {}
    return {name: _time_text(v) if name.endswith('_at') else v for name, v in data.items()}


def _time_text(value: Any) -> Any:
    try:
        parsed_time = datetime.datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return value
    return parsed_time.strftime('%Y-%m-%dT%H:%M:%S.%f')


def _payload(name: str, primitive: Any, more: dict[str, Any] | None = None) -> Any:
    """Return a payload with the fields of an object; fields that are not set are null."""
    if primitive is None:
        return None
    version, fields = _OBJECT_VERSIONS[name]
    data = fields_of_any(primitive)
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


def _first_value(names: Any) -> Any:
    return names[0] if isinstance(names, list) and names else None


def _image(image: Any) -> Any:
    properties = fields_of_any(fields_of_any(image).get('properties'))
    forwarded = {name: value for name, value in properties.items() if name not in _NOT_FORWARDED}
    return _payload(
        'ImageMetaPayload',
        image,
        {'properties': _object('ImageMetaPropsPayload', '1.20', forwarded)},
    )


def _group(group: Any) -> Any:
    data = fields_of_any(group)
    rules = data.get('rules') or data.get('_rules') or {}
    return _payload('ServerGroupPayload', group, {'rules': rules})


def _topology(numa: Any, instance: Any) -> Any:
    cells = []
    for cell in fields_of_any(numa).get('cells') or []:
        shape = _payload('VirtCPUTopologyPayload', fields_of_any(cell).get('cpu_topology'))
        cells.append(_payload('InstanceNUMACellPayload', cell, {'cpu_topology': shape}))
    uuid = fields_of_any(numa).get('instance_uuid') or instance
    return _payload('InstanceNUMATopologyPayload', numa, {'cells': cells, 'instance_uuid': uuid})


def _devices(devices: Any, instance: Any) -> Any:
    requests = [
        _payload('InstancePCIRequestPayload', request)
        for request in fields_of_any(devices).get('requests') or []
    ]
    uuid = fields_of_any(devices).get('instance_uuid') or instance
    return _payload(
        'InstancePCIRequestsPayload', devices, {'requests': requests, 'instance_uuid': uuid}
    )


def _destination(destination: Any) -> Any:
    data = fields_of_any(destination)
    further_fields = {name: data[name] for name in ('host', 'node') if data.get(name) is not None}
    if data.get('cell') is not None:
        further_fields['cell'] = _payload('CellMappingPayload', data['cell'])
    return _payload('DestinationPayload', destination, further_fields)


def _retry(retry: Any) -> Any:
    nodes = fields_of_any(fields_of_any(retry).get('hosts')).get('objects') or []
    hosts = [fields_of_any(node).get('hypervisor_hostname') for node in nodes]
    return _payload('SchedulerRetriesPayload', retry, {'hosts': hosts})


LOG = logging.getLogger(__name__)

#: Notifications that may wait: from a burst, or while the broker is away.
QUEUE_LIMIT = 1000
#: Tries to publish a notification.
RETRIES = 2

#: (event, context, serialized RequestSpec)
_Notice = tuple[str, dict[str, Any], dict[str, Any]]


class NovaNotifier:
    """A queue of notifications and its thread; without a driver there is neither.

    :param server: host name in the publisher's id
    :param url: broker of Nova, where [oslo_messaging_notifications] names none
    """

    def __init__(self, conf: Any, url: str, server: str, count: Count) -> None:
        self._count = count
        self._queue: queue.Queue[_Notice | None] = queue.Queue(QUEUE_LIMIT)
        self._thread: threading.Thread | None = None
        self._forms: list[tuple[om.Notifier, Callable[[dict[str, Any]], Any]]] = []
        self._carrier: Any = None
        form = conf.rpc.nova_notification_format
        if form != 'none':
            self._carrier = _carrier(conf, url)
            self._forms = _forms(conf, self._carrier, form, server)

    @property
    def is_enabled(self) -> bool:
        """True where anything is sent: a format and a driver are configured."""
        return bool(self._forms)

    def start(self) -> None:
        """Start the thread, where anything is sent."""
        if self.is_enabled:
            self._thread = threading.Thread(target=self._run, name='nova notices', daemon=True)
            self._thread.start()

    def stop(self, seconds: float = 2.0) -> None:
        """Send what waits, for ``seconds`` at most."""
        if self._thread is not None:
            try:
                self._queue.put(None, timeout=seconds)
            except queue.Full:
                LOG.warning(
                    'Notifications are not sent before the end of the process: count=%d',
                    self._queue.qsize(),
                )
            self._thread.join(seconds)
        if self._carrier is not None:
            self._carrier.cleanup()

    def begin_notification(self, context: dict[str, Any], spec: dict[str, Any]) -> None:
        """Notify of the start of a request."""
        self._queue_notice((START, context, spec))

    def ended(
        self, context: dict[str, Any], spec: dict[str, Any], consumers: list[str], hosts: list[str]
    ) -> None:
        """Notify of a request whose instances are all placed."""
        if self.is_enabled:
            spec = ended(spec, consumers, hosts)
        self._queue_notice((END, context, spec))

    def _queue_notice(self, notice: _Notice) -> None:
        if not self.is_enabled:
            return
        try:
            self._queue.put_nowait(notice)
        except queue.Full:
            self._count('gantt_nova_notifications_total', outcome='dropped')

    def _run(self) -> None:
        while (notice := self._queue.get()) is not None:
            event, context, spec = notice
            try:
                notification_context = Context(context | _SECRET_FIELDS)
                for notifier, payload in self._forms:
                    notifier.info(notification_context, event, payload(spec))
                self._count('gantt_nova_notifications_total', outcome='sent')
            except Exception:
                LOG.warning('Notification is dropped: event=%s', event, exc_info=True)
                self._count('gantt_nova_notifications_total', outcome='failed')


def _carrier(conf: Any, url: str) -> Any:
    transport.register_opts(conf)
    # Notifications name no exchange; the library takes that which is set when it makes this.
    conf.set_override('control_exchange', conf.rpc.nova_exchange)
    try:
        carrier = om.get_notification_transport(conf, url=url)
        url_option = conf.oslo_messaging_notifications.transport_url
        if url_option:
            carrier.cleanup()
            carrier = om.get_notification_transport(conf, url=url_option)
    finally:
        conf.clear_override('control_exchange')
    LOG.debug('Notifications are sent to a broker: broker=%s', transport.masked(url_option or url))
    return carrier


def _forms(
    conf: Any, carrier: Any, form: str, server: str
) -> list[tuple[om.Notifier, Callable[[dict[str, Any]], Any]]]:
    forms: list[tuple[om.Notifier, Callable[[dict[str, Any]], Any]]] = []
    if form in ('unversioned', 'both'):
        legacy = om.Notifier(carrier, publisher_id=f'scheduler.{server}', retry=RETRIES)
        forms.append((legacy, unversioned))
    if form in ('versioned', 'both'):
        newer = om.Notifier(
            carrier,
            publisher_id=f'nova-scheduler:{server}',
            retry=RETRIES,
            topics=conf.rpc.nova_versioned_topics,
        )
        forms.append((newer, versioned))
    # The library treats the absence of drivers as a driver that may send.
    return forms if set(conf.oslo_messaging_notifications.driver) - {'noop'} else []
