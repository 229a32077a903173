# SPDX-License-Identifier: Apache-2.0
"""Nova's ``select_destinations`` (RequestSpec 1.x) as our request.

Nova does not state the purpose of a request; it is read from marks that its callers
leave:

    hint _nova_check_type = rebuild         rebuild, where no alternates are wanted of the
                                            one host requested and none is ignored
    no alternates, requested host, ignore   evacuate (to a named host)
    no alternates, ignore_hosts             live migration, or evacuation
    no alternates                           unshelve
    allow_cross_cell_move was set           resize or cold migration
    else                                    create
"""

import contextlib
from typing import Any, NamedTuple

import msgspec

from gantt import exceptions
from gantt.core.messages import base
from gantt.core.messages.request import (
    Origin,
    Policy,
    Purpose,
    RequestSpec,
    SelectDestinations,
)
from gantt.nova.model import flavor as nova_flavor
from gantt.nova.wire import legacy, remembered
from gantt.nova.wire.objects import Topology, fields, objects, optional_fields, topology_of
from gantt.nova.wire.remembered import CommonCall, Translations
from gantt.rpc.call import RpcCall

_UNSET_UUID = '00000000-0000-0000-0000-000000000000'


class DestinationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of Nova and the form that its answer must have."""

    request: SelectDestinations
    as_objects: bool
    alternates: bool


def translate(
    args: dict[str, Any],
    context: dict[str, Any],
    *,
    budget_ms: int,
    lease_seconds: int,
    max_attempts: int,
) -> DestinationRequest:
    """Return the arguments of a call as a request.

    The request id derives from the content and from the context's request id, so
    that a call repeated by Nova has the effect of one.

    :raises InvalidMessage: names the field
    """
    alternates = bool(args.get('return_alternates'))
    spec_obj = fields(args.get('spec_obj'), 'RequestSpec', 'spec_obj')
    consumers = _uuids(args.get('instance_uuids') or _instance_uuid(spec_obj), 'instance_uuids')
    terms = RequestTerms(budget_ms, lease_seconds, max_attempts)
    return DestinationRequest(
        request=_with_request_id(
            _request_of(spec_obj, consumers, terms, alternates=alternates),
            context.get('request_id'),
        ),
        as_objects=bool(args.get('return_objects')),
        alternates=alternates,
    )


class RequestTerms(NamedTuple):
    """Terms of a request that are not in its spec."""

    budget_ms: int
    lease_seconds: int
    max_attempts: int


def request_of_call(
    call: RpcCall, translations: Translations, terms: RequestTerms
) -> tuple[DestinationRequest, Topology | None]:
    """Return the request of a call, and its topology.

    :raises InvalidMessage: names the field
    """
    usual_call = remembered.decode_common_call(call.raw.raw_args)
    if usual_call is not None:
        with contextlib.suppress(msgspec.DecodeError):  # translating below reports the error
            return _request_of_common_call(
                usual_call, call.raw.request_id, translations, terms
            ), usual_call.topology
    args = legacy.arguments(call.args)
    return translate(args, call.context, **terms._asdict()), topology_of(args['spec_obj'])


def _request_of_common_call(
    usual: CommonCall, origin: Any, translations: Translations, terms: RequestTerms
) -> DestinationRequest:
    """Translate a call of the usual form; see :func:`translate`.

    :param origin: the context's request id
    :raises msgspec.DecodeError: a field has a number that is too large
    """
    # The purpose depends on whether alternates are wanted.
    key = (b'+' if usual.alternates else b'-', *usual.data.parts())
    translation = translations.get(key)
    if translation is None:
        spec_fields = usual.data.fields() | usual.owner
        request = _request_of(spec_fields, usual.consumers, terms, alternates=usual.alternates)
        translations.put(key, request.spec)
    else:
        (spec, _), owner = translation, usual.owner
        if spec.project_id != owner['project_id'] or spec.user_id != owner['user_id']:
            spec = msgspec.structs.replace(spec, **owner)
        request = _request(spec, usual.consumers, terms, alternates=usual.alternates)
    return DestinationRequest(
        request=_with_request_id(request, origin),
        as_objects=usual.as_objects,
        alternates=usual.alternates,
    )


def _request_of(
    spec_obj: dict[str, Any], consumers: list[str], terms: RequestTerms, *, alternates: bool
) -> SelectDestinations:
    """Return a request from the fields of a RequestSpec.

    :raises InvalidMessage: names the field
    """
    body = _converted_spec(spec_obj, consumers, alternates=alternates)
    request = _request(body, consumers, terms, alternates=alternates)
    nova_flavor.check_cells(fields(spec_obj['flavor'], 'Flavor', 'spec_obj.flavor'), request.spec)
    return request


def _request(
    spec: dict[str, Any] | RequestSpec,
    consumers: list[str],
    terms: RequestTerms,
    *,
    alternates: bool,
) -> SelectDestinations:
    """Return a request for a spec.

    :param spec: ours; one that was decoded already is taken as it is
    :raises InvalidMessage: names the field
    """
    return base.decode(
        {
            'request_id': _UNSET_UUID,
            'spec': spec,
            'consumers': consumers,
            'alternates': terms.max_attempts - 1 if alternates else 0,
            'budget_ms': terms.budget_ms,
            'lease_seconds': terms.lease_seconds,
        },
        SelectDestinations,
        inside='request',
    )


def _with_request_id(request: SelectDestinations, origin: Any) -> SelectDestinations:
    """Return the request under the id that derives from its content and from its origin."""
    request_id = base.derived_id('nova', origin or '', *request.consumers, request.fingerprint)
    return msgspec.structs.replace(request, request_id=request_id, origin=_origin(origin))


def _origin(global_id: Any) -> str | None:
    """Return the id of the request to Nova's API, as operators meet it in logs and events."""
    try:
        return msgspec.convert(global_id, Origin)
    except msgspec.ValidationError:
        return None  # no decision depends on it


def _instance_uuid(spec: dict[str, Any]) -> list[Any]:
    """Return a list of the spec's instance uuid: callers before 4.3 may leave the list out."""
    return [spec['instance_uuid']] if spec.get('instance_uuid') else []


def _converted_spec(
    spec: dict[str, Any], consumers: list[str], *, alternates: bool
) -> dict[str, Any]:
    """Return Nova's RequestSpec converted to the body of Gantt's RequestSpec."""
    _refuse_unsupported(spec)
    flavor = fields(spec.get('flavor'), 'Flavor', 'spec_obj.flavor')
    image = optional_fields(spec.get('image'), 'ImageMeta', 'spec_obj.image')
    properties = optional_fields(
        image.get('properties'), 'ImageMetaProps', 'spec_obj.image.properties'
    )
    hints = _hints(spec.get('scheduler_hints'))
    image_properties = nova_flavor.image_properties(properties, 'spec_obj.image.properties')
    needs = nova_flavor.needs_of(
        flavor,
        {
            'uuid': image.get('id'),
            'properties': image_properties,
            'disk_format': image.get('disk_format') or '',
        },
        volume=bool(spec.get('is_bfv')),
    )
    destination = optional_fields(
        spec.get('requested_destination'), 'Destination', 'spec_obj.requested_destination'
    )
    ignore = _names(spec.get('ignore_hosts'), 'spec_obj.ignore_hosts')
    purpose = _purpose(hints, destination, ignore, alternates=alternates)
    group = _group(spec.get('instance_group'), consumers)
    if group and 'group' in hints:
        hints['group'] = [group['uuid']]  # the caller found the group by the hint, by name perhaps
    return {
        **needs,
        'tree': (needs['tree'] | _tree_constraints(spec)) or None,
        'project_id': spec.get('project_id'),
        'user_id': spec.get('user_id'),
        'purpose': purpose,
        'availability_zone': spec.get('availability_zone'),
        'force_hosts': _names(spec.get('force_hosts'), 'spec_obj.force_hosts'),
        'force_nodes': _names(spec.get('force_nodes'), 'spec_obj.force_nodes'),
        'ignore_hosts': list(dict.fromkeys([*ignore, *_hosts_tried(spec)])),
        'destination': _destination(destination),
        'group': group,
        'hints': hints,
        'devices': devices(spec),
        'networks': networks(spec),
    }


def _refuse_unsupported(spec: dict[str, Any]) -> None:
    if spec.get('requested_resources'):
        raise exceptions.invalid(
            'spec_obj.requested_resources',
            'expected none: bandwidth of ports and accelerators cannot be placed by this version',
        )


def _tree_constraints(spec: dict[str, Any]) -> dict[str, Any]:
    """Return constraints on roots and subtrees, as fields of ``spec.tree``."""
    path = 'spec_obj.request_level_params'
    level = optional_fields(spec.get('request_level_params'), 'RequestLevelParams', path)
    tree_fields: dict[str, Any] = {}
    for name in ('root_required', 'root_forbidden', 'same_subtree'):
        value = level.get(name) or []
        if not isinstance(value, (list, tuple, set)):
            raise exceptions.invalid(f'{path}.{name}', 'expected a list')
        if value:
            tree_fields[name] = list(value) if name == 'same_subtree' else sorted(map(str, value))
    return tree_fields


def _purpose(
    hints: dict[str, list[str]], destination: dict[str, Any], ignore: list[str], *, alternates: bool
) -> Purpose:
    # A rebuild claims nothing.  Tenants can set the hint too: on a boot it means nothing.
    is_rebuild = hints.pop('_nova_check_type', None) == ['rebuild']
    if is_rebuild and destination.get('host') and not (alternates or ignore):
        return Purpose.REBUILD
    if 'allow_cross_cell_move' in destination and alternates:
        return Purpose.RESIZE
    if alternates:
        return Purpose.CREATE
    if ignore:
        return Purpose.EVACUATE if destination.get('host') else Purpose.LIVE_MIGRATE
    return Purpose.UNSHELVE if destination else Purpose.CREATE


def _destination(destination: dict[str, Any]) -> dict[str, Any] | None:
    if not destination:
        return None
    field = 'spec_obj.requested_destination'
    cell = optional_fields(destination.get('cell'), 'CellMapping', f'{field}.cell').get('uuid')
    # The cell is where the guest is now: a move that may leave it rather does not.
    may_leave = bool(destination.get('allow_cross_cell_move'))
    # Each entry is a list of alternatives, joined by commas.
    any_of = [
        [part for part in text.split(',') if part]
        for text in _names(destination.get('aggregates'), f'{field}.aggregates')
    ]
    body = {
        'host': destination.get('host'),
        'node': destination.get('node'),
        'cell': None if may_leave else cell,
        'preferred_cell': cell if may_leave else None,
        'aggregates': any_of,
        'forbidden_aggregates': _names(
            destination.get('forbidden_aggregates'), f'{field}.forbidden_aggregates'
        ),
    }
    return body if any(body.values()) else None


def _group(primitive: Any, consumers: list[str]) -> dict[str, Any] | None:
    if primitive is None:
        return None  # a hint may name it
    field = 'spec_obj.instance_group'
    group = fields(primitive, 'InstanceGroup', field)
    policies = group.get('policies')
    policy = group.get('policy') or (policies[0] if isinstance(policies, list) and policies else '')
    if not isinstance(policy, str) or policy not in set(Policy):
        raise exceptions.invalid(
            f'{field}.policy',
            f'expected one of {", ".join(sorted(Policy))}, got {str(policy)[:100]!r}',
        )
    rules = group.get('rules') or group.get('_rules') or {}
    max_per_host = str(rules.get('max_server_per_host', 1)) if isinstance(rules, dict) else ''
    if not (max_per_host.isascii() and max_per_host.isdigit() and len(max_per_host) < 12):
        raise exceptions.invalid(
            f'{field}.rules.max_server_per_host', f'expected an integer, got {max_per_host[:20]!r}'
        )
    members = _names(group.get('members'), f'{field}.members')
    placed_now = set(consumers)
    return {
        'uuid': group.get('uuid'),
        'policy': policy,
        'max_per_host': int(max_per_host),
        # Nova lists the instances that are being placed among the members.
        'members': [m for m in members if m not in placed_now],
        'hosts': _names(group.get('hosts'), f'{field}.hosts'),
    }


def _hints(hints: Any) -> dict[str, list[str]]:
    """Return hints as lists of text; a single text is a list of one."""
    if hints is None:
        return {}
    if not isinstance(hints, dict):
        raise exceptions.invalid('spec_obj.scheduler_hints', 'expected an object')
    return {
        name: [str(v) for v in (value if isinstance(value, list) else [value])]
        for name, value in hints.items()
        if value is not None
    }


def _hosts_tried(spec: dict[str, Any]) -> list[str]:
    """Return hosts that an earlier attempt of this instance failed on."""
    retry = optional_fields(spec.get('retry'), 'SchedulerRetries', 'spec_obj.retry')
    nodes = objects(retry.get('hosts'), 'ComputeNodeList', 'ComputeNode', 'spec_obj.retry.hosts')
    return [node['host'] for node in nodes if isinstance(node.get('host'), str)]


def _names(value: Any, field: str) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(x, str) for x in value):
        raise exceptions.invalid(field, 'expected a list of text')
    return list(value)


def _uuids(value: Any, field: str) -> list[str]:
    uuids = base.decode(value, list[base.Uuid], inside=field)
    if not uuids:
        raise exceptions.invalid(field, 'expected at least one uuid')
    return uuids


# -- Devices and networks of Nova's RequestSpec: ``pci_requests`` and ``network_metadata``.
_PCI_REQUESTS_FIELD = 'spec_obj.pci_requests.requests'
_NETWORKS_FIELD = 'spec_obj.network_metadata'
#: Nova's key -> our field.
_DEVICE_KEYS = {'vendor_id': 'vendor_id', 'product_id': 'product_id', 'dev_type': 'device_type'}
#: Keys resolved against resource providers, which devices do not have here.
_PROVIDER_KEYS = ('resource_class', 'traits')
#: Providers of the last placement: the next one may have others.
_PROVIDER_UUIDS_KEY = 'rp_uuids'


def devices(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the devices that are described in the request.

    :raises InvalidMessage: names the field
    """
    requests_data = optional_fields(
        spec.get('pci_requests'), 'InstancePCIRequests', 'spec_obj.pci_requests'
    )
    requests = requests_data.get('requests') or []
    if not isinstance(requests, list):
        raise exceptions.invalid(_PCI_REQUESTS_FIELD, 'expected a list')
    requested_resources = [
        _device(
            fields(request, 'InstancePCIRequest', _PCI_REQUESTS_FIELD),
            f'{_PCI_REQUESTS_FIELD}[{number}]',
        )
        for number, request in enumerate(requests)
    ]
    return [request for request in requested_resources if request is not None]


def _device(request: dict[str, Any], field: str) -> dict[str, Any] | None:
    """Return a requested device; None: of a named device only the name counts."""
    alias, alternatives = request.get('alias_name'), request.get('spec')
    if not isinstance(alternatives, list) or not alternatives:
        raise exceptions.invalid(f'{field}.spec', 'expected at least one description of a device')
    if not all(isinstance(kind, dict) for kind in alternatives):
        raise exceptions.invalid(f'{field}.spec', 'expected objects')
    resolved = [name for name in _PROVIDER_KEYS if any(name in kind for kind in alternatives)]
    if resolved and alias:
        return None
    if resolved:
        raise exceptions.invalid(
            f'{field}.spec.{resolved[0]}', 'expected none: it cannot be placed by this version'
        )
    return {
        'alias': alias or '',
        # The port's id; a request without requester is known by its own id.
        'port': '' if alias else request.get('requester_id') or request.get('request_id') or 'port',
        'count': request.get('count'),
        'any_of': [_device_type(kind) for kind in alternatives],
        'affinity': request.get('numa_policy') or 'legacy',
    }


def _device_type(kind: dict[str, Any]) -> dict[str, Any]:
    body = {field: kind[key] for key, field in _DEVICE_KEYS.items() if key in kind}
    tags = {
        str(n): value
        for n, value in kind.items()
        if n not in _DEVICE_KEYS and n != _PROVIDER_UUIDS_KEY
    }
    return {**body, 'tags': tags}


def networks(spec: dict[str, Any]) -> dict[str, Any] | None:
    """Return the networks of the guest as far as cells of a host may be near to them.

    :raises InvalidMessage: names the field
    """
    metadata = optional_fields(spec.get('network_metadata'), 'NetworkMetadata', _NETWORKS_FIELD)
    physical, tunneled = metadata.get('physnets') or [], bool(metadata.get('tunneled'))
    if not isinstance(physical, list) or not all(isinstance(name, str) for name in physical):
        raise exceptions.invalid(f'{_NETWORKS_FIELD}.physnets', 'expected a list of text')
    # Sent as a set: sorted, so that the same request always equals itself.
    return {'physical': sorted(set(physical)), 'tunneled': tunneled} if metadata else None
