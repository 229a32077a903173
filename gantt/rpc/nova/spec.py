# SPDX-License-Identifier: Apache-2.0
"""Nova's ``select_destinations`` (RequestSpec 1.x) as our request.

Nova does not say why it asks; the purpose is read from marks that its callers
leave:

    hint _nova_check_type = rebuild         rebuild, where no alternates are wanted of the
                                            one host that is asked for and none is ignored
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
from gantt.rpc.call import RpcCall
from gantt.rpc.nova import flavor as nova_flavor
from gantt.rpc.nova import image as nova_image
from gantt.rpc.nova import legacy, remembered
from gantt.rpc.nova.objects import Topology, fields, objects, optional, topology_of
from gantt.rpc.nova.remembered import Translations, UsualCall

_UNSET_ID = '00000000-0000-0000-0000-000000000000'


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
    """The arguments of a call as a request.

    The request id derives from what is asked and from the context's request
    id, so that a call repeated by Nova has the effect of one.

    :raises InvalidMessage: names the field
    """
    alternates = bool(args.get('return_alternates'))
    spec_obj = fields(args.get('spec_obj'), 'RequestSpec', 'spec_obj')
    consumers = _uuids(args.get('instance_uuids') or _own_uuid(spec_obj), 'instance_uuids')
    terms = RequestTerms(budget_ms, lease_seconds, max_attempts)
    return DestinationRequest(
        request=_named(
            _request_of(spec_obj, consumers, terms, alternates=alternates),
            context.get('request_id'),
        ),
        as_objects=bool(args.get('return_objects')),
        alternates=alternates,
    )


class RequestTerms(NamedTuple):
    """What a request says that is not of its spec."""

    budget_ms: int
    lease_seconds: int
    max_attempts: int


def of_call(
    call: RpcCall, translations: Translations, terms: RequestTerms
) -> tuple[DestinationRequest, Topology | None]:
    """What a call asks for, and the topology that it has.

    :raises InvalidMessage: names the field
    """
    usual = remembered.usual(call.raw.raw_args)
    if usual is not None:
        with contextlib.suppress(msgspec.DecodeError):  # what is wrong is found out below
            return _of_parts(usual, call.raw.request_id, translations, terms), usual.topology
    args = legacy.arguments(call.args)
    return translate(args, call.context, **terms._asdict()), topology_of(args['spec_obj'])


def _of_parts(
    usual: UsualCall, origin: Any, translations: Translations, terms: RequestTerms
) -> DestinationRequest:
    """As :func:`translate`, of a call of the usual form.

    :param origin: the context's request id
    :raises msgspec.DecodeError: it has a number that is too large
    """
    # The purpose depends on whether alternates are wanted.
    key = (b'+' if usual.alternates else b'-', *usual.data.parts())
    spec = translations.get(key)
    if spec is None:
        fields_ = usual.data.fields() | usual.owner
        request = _request_of(fields_, usual.consumers, terms, alternates=usual.alternates)
        translations.put(key, request.spec)
    else:
        owner = usual.owner
        if spec.project_id != owner['project_id'] or spec.user_id != owner['user_id']:
            spec = msgspec.structs.replace(spec, **owner)
        request = _request(spec, usual.consumers, terms, alternates=usual.alternates)
    return DestinationRequest(
        request=_named(request, origin),
        as_objects=usual.as_objects,
        alternates=usual.alternates,
    )


def _request_of(
    spec_obj: dict[str, Any], consumers: list[str], terms: RequestTerms, *, alternates: bool
) -> SelectDestinations:
    """A request by the fields of a RequestSpec.

    :raises InvalidMessage: names the field
    """
    body = _spec(spec_obj, consumers, alternates=alternates)
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
    """
    :param spec: ours; one that was decoded already is taken as it is
    :raises InvalidMessage: names the field
    """
    return base.decode(
        {
            'request_id': _UNSET_ID,
            'spec': spec,
            'consumers': consumers,
            'alternates': terms.max_attempts - 1 if alternates else 0,
            'budget_ms': terms.budget_ms,
            'lease_seconds': terms.lease_seconds,
        },
        SelectDestinations,
        inside='request',
    )


def _named(request: SelectDestinations, origin: Any) -> SelectDestinations:
    """The request under the id that follows from what is asked, and from who asked."""
    request_id = base.derived_id('nova', origin or '', *request.consumers, request.fingerprint)
    return msgspec.structs.replace(request, request_id=request_id, origin=_origin(origin))


def _origin(given: Any) -> str | None:
    """The id of the request to Nova's API, as operators meet it in Nova's logs and events."""
    try:
        return msgspec.convert(given, Origin)
    except msgspec.ValidationError:
        return None  # no decision depends on it


def _own_uuid(spec: dict[str, Any]) -> list[Any]:
    """Callers before 4.3 may leave the list out: the spec names its instance."""
    return [spec['instance_uuid']] if spec.get('instance_uuid') else []


def _spec(spec: dict[str, Any], consumers: list[str], *, alternates: bool) -> dict[str, Any]:
    """The body of our RequestSpec."""
    _refuse_what_cannot_be_carried(spec)
    flavor = fields(spec.get('flavor'), 'Flavor', 'spec_obj.flavor')
    image = optional(spec.get('image'), 'ImageMeta', 'spec_obj.image')
    properties = optional(image.get('properties'), 'ImageMetaProps', 'spec_obj.image.properties')
    hints = _hints(spec.get('scheduler_hints'))
    given = nova_image.properties(properties, 'spec_obj.image.properties')
    flavor_request = nova_flavor.requested(flavor, given, volume=bool(spec.get('is_bfv')))
    wanted = optional(
        spec.get('requested_destination'), 'Destination', 'spec_obj.requested_destination'
    )
    ignore = _names(spec.get('ignore_hosts'), 'spec_obj.ignore_hosts')
    purpose = _purpose(hints, wanted, ignore, alternates=alternates)
    group = _group(spec.get('instance_group'), consumers)
    if group and 'group' in hints:
        hints['group'] = [group['uuid']]  # the hint was how the caller found it, by name perhaps
    return {
        'resources': flavor_request.resources,
        'required_traits': flavor_request.required,
        'forbidden_traits': flavor_request.forbidden,
        'tree': (_groups(flavor_request) | _of_tree(spec)) or None,
        'project_id': spec.get('project_id'),
        'user_id': spec.get('user_id'),
        'purpose': purpose,
        'availability_zone': spec.get('availability_zone'),
        'force_hosts': _names(spec.get('force_hosts'), 'spec_obj.force_hosts'),
        'force_nodes': _names(spec.get('force_nodes'), 'spec_obj.force_nodes'),
        'ignore_hosts': list(dict.fromkeys([*ignore, *_tried(spec)])),
        'destination': _destination(wanted),
        'group': group,
        'flavor': {
            'name': flavor.get('name') or '',
            'extra_specs': nova_flavor.extra_specs(flavor),
        },
        'image': {
            'uuid': image.get('id'),
            'properties': given,
            'disk_format': image.get('disk_format') or '',
        },
        'volume_backed': bool(spec.get('is_bfv')),
        'hints': hints,
        'devices': devices(spec),
        'networks': networks(spec),
    }


def _refuse_what_cannot_be_carried(spec: dict[str, Any]) -> None:
    if spec.get('requested_resources'):
        raise exceptions.invalid(
            'spec_obj.requested_resources',
            'bandwidth of ports and accelerators cannot be placed by this version',
        )


def _groups(flavor_request: nova_flavor.FlavorRequest) -> dict[str, Any]:
    """Numbered groups of a flavor as fields of ``spec.tree``; nothing where there are none."""
    if not flavor_request.groups:
        return {}
    groups = {suffix: one.as_group() for suffix, one in flavor_request.groups.items()}
    return {'groups': groups, 'group_policy': flavor_request.policy or None}


def _of_tree(spec: dict[str, Any]) -> dict[str, Any]:
    """What a request says of roots and subtrees, as fields of ``spec.tree``."""
    where = 'spec_obj.request_level_params'
    level = optional(spec.get('request_level_params'), 'RequestLevelParams', where)
    found: dict[str, Any] = {}
    for name in ('root_required', 'root_forbidden', 'same_subtree'):
        value = level.get(name) or []
        if not isinstance(value, (list, tuple, set)):
            raise exceptions.invalid(f'{where}.{name}', 'expected a list')
        if value:
            found[name] = list(value) if name == 'same_subtree' else sorted(map(str, value))
    return found


def _purpose(
    hints: dict[str, list[str]], wanted: dict[str, Any], ignore: list[str], *, alternates: bool
) -> Purpose:
    # A rebuild claims nothing.  Tenants can set the hint too: on a boot it means nothing.
    is_rebuild = hints.pop('_nova_check_type', None) == ['rebuild']
    if is_rebuild and wanted.get('host') and not (alternates or ignore):
        return Purpose.REBUILD
    if 'allow_cross_cell_move' in wanted and alternates:
        return Purpose.RESIZE
    if alternates:
        return Purpose.CREATE
    if ignore:
        return Purpose.EVACUATE if wanted.get('host') else Purpose.LIVE_MIGRATE
    return Purpose.UNSHELVE if wanted else Purpose.CREATE


def _destination(wanted: dict[str, Any]) -> dict[str, Any] | None:
    if not wanted:
        return None
    field = 'spec_obj.requested_destination'
    cell = optional(wanted.get('cell'), 'CellMapping', f'{field}.cell').get('uuid')
    # The cell is where the guest is now: a move that may leave it rather does not.
    may_leave = bool(wanted.get('allow_cross_cell_move'))
    # Each entry is a list of alternatives, joined by commas.
    any_of = [
        [part for part in text.split(',') if part]
        for text in _names(wanted.get('aggregates'), f'{field}.aggregates')
    ]
    body = {
        'host': wanted.get('host'),
        'node': wanted.get('node'),
        'cell': None if may_leave else cell,
        'preferred_cell': cell if may_leave else None,
        'aggregates': any_of,
        'forbidden_aggregates': _names(
            wanted.get('forbidden_aggregates'), f'{field}.forbidden_aggregates'
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
    most = str(rules.get('max_server_per_host', 1)) if isinstance(rules, dict) else ''
    if not (most.isascii() and most.isdigit() and len(most) < 12):
        raise exceptions.invalid(
            f'{field}.rules.max_server_per_host', f'expected an integer, got {most[:20]!r}'
        )
    members = _names(group.get('members'), f'{field}.members')
    placed_now = set(consumers)
    return {
        'uuid': group.get('uuid'),
        'policy': policy,
        'max_per_host': int(most),
        # Nova lists the instances that are being placed among the members.
        'members': [m for m in members if m not in placed_now],
        'hosts': _names(group.get('hosts'), f'{field}.hosts'),
    }


def _hints(hints: Any) -> dict[str, list[str]]:
    """Hints as lists of text; a single text is a list of one."""
    if hints is None:
        return {}
    if not isinstance(hints, dict):
        raise exceptions.invalid('spec_obj.scheduler_hints', 'expected an object')
    return {
        name: [str(v) for v in (value if isinstance(value, list) else [value])]
        for name, value in hints.items()
        if value is not None
    }


def _tried(spec: dict[str, Any]) -> list[str]:
    """Hosts that an earlier attempt of this instance failed on."""
    retry = optional(spec.get('retry'), 'SchedulerRetries', 'spec_obj.retry')
    nodes = objects(retry.get('hosts'), 'ComputeNodeList', 'ComputeNode', 'spec_obj.retry.hosts')
    return [node['host'] for node in nodes if isinstance(node.get('host'), str)]


def _names(value: Any, field: str) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(x, str) for x in value):
        raise exceptions.invalid(field, 'expected a list of text')
    return list(value)


def _uuids(value: Any, field: str) -> list[str]:
    found = base.decode(value, list[base.Uuid], inside=field)
    if not found:
        raise exceptions.invalid(field, 'expected at least one uuid')
    return found


# -- Devices and networks of Nova's RequestSpec: ``pci_requests`` and ``network_metadata``.
_REQUESTS = 'spec_obj.pci_requests.requests'
_NETWORKS = 'spec_obj.network_metadata'
#: Their name of what has a field of its own here.
_OWN = {'vendor_id': 'vendor_id', 'product_id': 'product_id', 'dev_type': 'device_type'}
#: Resolved against resource providers, of which devices have none here.
_OF_PROVIDERS = ('resource_class', 'traits')
#: Which providers they came from the last time: the next time they may be others.
_OLD = 'rp_uuids'


def devices(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """The devices that are described in the request.

    :raises InvalidMessage: names the field
    """
    found = optional(spec.get('pci_requests'), 'InstancePCIRequests', 'spec_obj.pci_requests')
    requests = found.get('requests') or []
    if not isinstance(requests, list):
        raise exceptions.invalid(_REQUESTS, 'expected a list')
    flavor_request = [
        _device(fields(one, 'InstancePCIRequest', _REQUESTS), f'{_REQUESTS}[{number}]')
        for number, one in enumerate(requests)
    ]
    return [one for one in flavor_request if one is not None]


def _device(one: dict[str, Any], field: str) -> dict[str, Any] | None:
    """None: of a named device only the name counts."""
    alias, alternatives = one.get('alias_name'), one.get('spec')
    if not isinstance(alternatives, list) or not alternatives:
        raise exceptions.invalid(f'{field}.spec', 'expected at least one description of a device')
    if not all(isinstance(kind, dict) for kind in alternatives):
        raise exceptions.invalid(f'{field}.spec', 'expected objects')
    resolved = [name for name in _OF_PROVIDERS if any(name in kind for kind in alternatives)]
    if resolved and alias:
        return None
    if resolved:
        raise exceptions.invalid(f'{field}.spec.{resolved[0]}', 'cannot be placed by this version')
    return {
        'alias': alias or '',
        # Of a port; a request that nobody stands for is known by its own id.
        'port': '' if alias else one.get('requester_id') or one.get('request_id') or 'port',
        'count': one.get('count'),
        'any_of': [_kind(kind) for kind in alternatives],
        'affinity': one.get('numa_policy') or 'legacy',
    }


def _kind(kind: dict[str, Any]) -> dict[str, Any]:
    body = {ours: kind[theirs] for theirs, ours in _OWN.items() if theirs in kind}
    tags = {str(n): value for n, value in kind.items() if n not in _OWN and n != _OLD}
    return {**body, 'tags': tags}


def networks(spec: dict[str, Any]) -> dict[str, Any] | None:
    """The networks of the guest as far as cells of a host may be near to them.

    :raises InvalidMessage: names the field
    """
    found = optional(spec.get('network_metadata'), 'NetworkMetadata', _NETWORKS)
    physical, tunneled = found.get('physnets') or [], bool(found.get('tunneled'))
    if not isinstance(physical, list) or not all(isinstance(name, str) for name in physical):
        raise exceptions.invalid(f'{_NETWORKS}.physnets', 'expected a list of text')
    # A set when it was sent: in any order, and the same request all the same.
    return {'physical': sorted(set(physical)), 'tunneled': tunneled} if found else None
