# SPDX-License-Identifier: Apache-2.0
"""Devices and networks of Nova's RequestSpec: ``pci_requests`` and ``network_metadata``.

The API has looked up what flavors mean by the names of devices, and what ports
want, before the request comes here: each of them is a list of alternatives, and
each alternative says what a pool has to be.
"""

from typing import Any

from gantt import exceptions
from gantt.rpc.nova.objects import fields, optional

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
        raise exceptions.InvalidMessage(field=_REQUESTS, problem='expected a list')
    asked = [
        _request(fields(one, 'InstancePCIRequest', _REQUESTS), f'{_REQUESTS}[{number}]')
        for number, one in enumerate(requests)
    ]
    return [one for one in asked if one is not None]


def _request(one: dict[str, Any], field: str) -> dict[str, Any] | None:
    """None: of a named device only the name counts."""
    alias, alternatives = one.get('alias_name'), one.get('spec')
    if not isinstance(alternatives, list) or not alternatives:
        raise exceptions.InvalidMessage(
            field=f'{field}.spec', problem='expected at least one description of a device'
        )
    if not all(isinstance(kind, dict) for kind in alternatives):
        raise exceptions.InvalidMessage(field=f'{field}.spec', problem='expected objects')
    resolved = [name for name in _OF_PROVIDERS if any(name in kind for kind in alternatives)]
    if resolved and alias:
        return None
    if resolved:
        raise exceptions.InvalidMessage(
            field=f'{field}.spec.{resolved[0]}', problem='cannot be placed by this version'
        )
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
        raise exceptions.InvalidMessage(
            field=f'{_NETWORKS}.physnets', problem='expected a list of text'
        )
    # A set when it was sent: in any order, and the same request all the same.
    return {'physical': sorted(set(physical)), 'tunneled': tunneled} if found else None
